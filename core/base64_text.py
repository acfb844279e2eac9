"""Base64 in pieces: checked, measured and read at any place without being decoded as a whole.

Rule: the text is standard Base64 (RFC 4648, section 4) with its padding; line breaks are dropped, and nothing else is
forgiven. A piece costs one pass of `bytes.translate`, about 0.4 ms a MiB. No I/O and no clock here.
"""

from __future__ import annotations

import binascii
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate

_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_BREAKS = b"\r\n"
_PADDING = b"="


class Base64Invalid(Exception):
    """`str()` is a Chinese clause that says what is wrong with the text, for a sentence about whose text it is."""


@dataclass(frozen=True, slots=True)
class Base64Text:
    """Checked Base64: `parts` in order hold nothing but the alphabet and the padding at their end; `num_bytes` is
    what they would decode to."""

    parts: tuple[bytes, ...]
    num_bytes: int


class Base64Checker:
    """Feed the text cut anywhere, then `finish`. Both raise Base64Invalid; after that the checker is spent.

    A piece without line breaks is kept as it is, so that nothing is copied.
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._num_fed = 0
        self._num_characters = 0
        self._num_padding = 0

    def feed(self, piece: bytes) -> None:
        rest = piece.translate(None, _ALPHABET)
        if rest.strip(_BREAKS + _PADDING):
            raise Base64Invalid(self._stranger(piece))
        clean = piece.translate(None, _BREAKS) if rest.strip(_PADDING) else piece
        num_padding = rest.count(_PADDING)
        if (self._num_padding and len(clean) > num_padding) or not clean.endswith(_PADDING * num_padding):
            raise Base64Invalid("的 base64 中间有填充符 =，请逐张提交，不要拼接")
        self._num_fed += len(piece)
        self._num_characters += len(clean) - num_padding
        self._num_padding += num_padding
        if clean:
            self._parts.append(clean)

    def finish(self) -> Base64Text:
        if not self._parts:
            raise Base64Invalid("没有内容")
        if self._num_padding > 2 or (self._num_characters + self._num_padding) % 4:
            length = self._num_characters + self._num_padding
            raise Base64Invalid(f"的 base64 不完整或填充符 = 不对：共 {length} 个字符，须为 4 的倍数")
        return Base64Text(tuple(self._parts), self._num_characters * 3 // 4)

    def _stranger(self, piece: bytes) -> str:
        known = _ALPHABET + _BREAKS + _PADDING
        place = next(number for number, byte in enumerate(piece) if byte not in known)
        byte = piece[place]
        if byte in b"-_":
            return "的 base64 用了 URL 变体（- 与 _），请改用标准 base64（+ 与 /）"
        shown = f" {chr(byte)} " if 0x20 < byte < 0x7F else f" 0x{byte:02X} "
        return f"的 base64 第 {self._num_fed + place + 1} 个字符{shown}不在字母表内"


class Base64Reader:
    """The bytes that a checked text stands for; only what is asked for is decoded."""

    def __init__(self, text: Base64Text) -> None:
        self.num_bytes = text.num_bytes
        self._parts = text.parts
        self._starts = list(accumulate(map(len, text.parts), initial=0))

    def read(self, start: int, size: int) -> bytes:
        """At most `size` bytes from `start`; fewer at the end, none beyond it."""
        end = min(start + size, self.num_bytes)
        if start >= end:
            return b""
        quads = self._characters(start // 3 * 4, -(-end // 3) * 4)
        return binascii.a2b_base64(quads)[start % 3 :][: end - start]

    def _characters(self, start: int, end: int) -> bytes:
        first = bisect_right(self._starts, start) - 1
        found = bytearray()
        for number in range(first, len(self._parts)):
            base = self._starts[number]
            if base >= end:
                break
            found += self._parts[number][max(0, start - base) : end - base]
        return bytes(found)
