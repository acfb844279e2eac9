"""JSON text, parsed while it arrives: long strings are lifted out as slices, the small rest goes to orjson.

Rule: a step costs no more than the bytes it was fed, and `finish` costs nothing for the lifted bytes. What
can be refused early (nesting, size, number of values) is refused while feeding; what counts as JSON is
for orjson to say. No I/O and no clock here.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import orjson

from cg_rag.core.errors import CgError

MAX_DEPTH = 32  # docs/http.md: deeper nesting is invalid_request; orjson would read 1024 levels and write 254
MAX_STRING_BYTES = 64 * 1024  # longer strings are pictures; texts of 20,000 Chinese characters stay below it
MAX_REST_BYTES = 2 * 1024 * 1024  # everything but the pictures; orjson needs about 5 ms for it
MAX_VALUES = 50_000  # `{},` is 3 bytes of text and 72 of memory: the byte limit alone would allow 50 MiB

_WHITESPACE = b" \t\r\n"
_BRACKETS = b"[]{}"
_NO_BRACKETS = bytes(sorted(set(range(256)) - set(_BRACKETS)))
_STEPS: Final = tuple(1 if byte in b"[{" else -1 if byte in b"]}" else 0 for byte in range(256))

# The possessive quantifiers keep every match linear: nothing is ever tried a second time.
_COMPLETE_RUN = re.compile(rb'(?:[^"]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
_COMPLETE_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_STRING_BODY = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
# A slice may end neither inside an escape nor between the two halves of a surrogate pair.
_COMPLETE_ESCAPES = re.compile(
    rb"(?:[^\\]++|\\u[dD][89abAB]..\\u....|\\u(?![dD][89abAB])....|\\[^u])*+", re.DOTALL
)
_MAX_ESCAPE_TAIL = 11  # `\ud83d\ude0` is the longest beginning of an escape that can still become valid
_UTF8_TAIL = re.compile(rb"[\xc0-\xff][\x80-\xbf]{0,2}\Z")
_NUMBER_BYTES = b"-+.0123456789eE"
_LONG_INTEGER = re.compile(rb"(?<![-+.0-9eE])-?[0-9]{19,}+(?![-+.0-9eE])")

# orjson's words, matched in part; a message that is not here is told by its place alone.
_REASONS = (
    ("trailing comma", "多了一个逗号"),
    ("control character", "字符串里有未转义的控制字符"),
    ("escape", "转义不合法"),
    ("surrogate", "代理字符（surrogate）不成对"),
    ("infinity", "数字超出范围"),
    ("after document", "JSON 之后还有多余内容"),
    ("end of data", "内容不完整"),
)


@dataclass(slots=True)
class LongString:
    """A string value of more than 64 KiB of JSON text: its UTF-8 bytes in order, escapes undone."""

    slices: tuple[bytes, ...]
    num_bytes: int

    def text(self) -> str:
        return b"".join(self.slices).decode()

    def take(self) -> tuple[bytes, ...]:
        """The slices, given up here: whoever writes them anew can let go of each as it is done."""
        slices, self.slices = self.slices, ()
        return slices


@dataclass(frozen=True, slots=True)
class ParsedBody:
    """`value` is the top-level object, long strings in it as `LongString`; `num_bytes` is what was fed."""

    value: dict[str, Any]
    num_bytes: int


class BodyLexer:
    """Feed bytes, then `finish`. Both raise CgError("invalid_request"); after that the lexer is spent.

    `max_string_bytes` counts the JSON text between the quotes. A key longer than that is refused.
    """

    def __init__(
        self, max_string_bytes: int = MAX_STRING_BYTES, max_rest_bytes: int = MAX_REST_BYTES
    ) -> None:
        self._max_string_bytes = max_string_bytes
        self._max_rest_bytes = max_rest_bytes
        self._num_bytes = 0
        self._rest = bytearray()
        self._started = False
        self._depth = 0
        self._num_values = 0
        self._number_tail = b""
        self._in_string = False
        self._escaped = (
            False  # the last byte seen of the open string is a backslash that escapes the next one
        )
        self._pending = bytearray()  # JSON text of the open string that is in no slice yet
        self._slices: list[bytes] | None = None  # of the open string, once it is lifted
        self._num_sliced = 0  # bytes of JSON text behind these slices
        self._lifted: dict[str, LongString] = {}
        self._lifted_sizes: list[tuple[int, int]] = []  # (place in the rest, bytes that are missing there)
        # Random, so that no string of the caller's can be taken for a placeholder.
        self._token = secrets.token_hex(16)

    @property
    def in_long_string(self) -> bool:
        """Whether the next bytes continue a string that is lifted out."""
        return self._slices is not None

    def feed(self, data: bytes) -> None:
        """Takes the next bytes, cut anywhere."""
        position = 0
        while position < len(data):
            step = self._feed_string if self._in_string else self._feed_structure
            position = step(data, position)
        self._num_bytes += len(data)

    def finish(self) -> ParsedBody:
        """The parsed object. Raises CgError("invalid_request") when what was fed is not one JSON object."""
        if not self._started:
            raise _invalid("请求体为空，须为 JSON 对象。")
        if self._in_string:
            raise _invalid("请求体不是完整的 JSON：字符串没有结束。")
        value = self._parse()
        if self._lifted:
            self._restore(value)
        return ParsedBody(value, self._num_bytes)

    def _feed_structure(self, data: bytes, position: int) -> int:
        # A string that is complete inside one piece is short, so only one cut by its end can become long.
        piece = data[position : position + self._max_string_bytes]
        if not self._started:
            self._check_start(piece)
        match = _COMPLETE_RUN.match(piece)
        end = match.end() if match else 0
        run = piece[:end]
        self._check_structure(_COMPLETE_STRING.sub(b"", run))
        self._append(run)
        if end == len(piece):
            return position + end
        self._append(b'"')
        self._in_string = True
        return position + end + 1

    def _check_start(self, piece: bytes) -> None:
        head = piece.lstrip(_WHITESPACE)
        if head and head[:1] != b"{":
            hint = "（开头有 BOM，或不是 UTF-8）" if head[0] >= 0x80 else ""
            raise _invalid(f"请求体须为 JSON 对象，以 {{ 开头{hint}。")
        self._started = bool(head)

    def _check_structure(self, bones: bytes) -> None:
        """`bones` is JSON text without its strings."""
        num_opened = bones.count(b"[") + bones.count(b"{")
        self._num_values += num_opened + bones.count(b",")
        if self._num_values > MAX_VALUES:
            raise _invalid(f"请求体的 JSON 超过 {MAX_VALUES} 个值。")
        if self._depth + num_opened > MAX_DEPTH:
            steps = map(_STEPS.__getitem__, bones.translate(None, _NO_BRACKETS))
            if max(accumulate(steps, initial=self._depth)) > MAX_DEPTH:
                raise _invalid(f"请求体的 JSON 嵌套超过 {MAX_DEPTH} 层。")
        self._depth += num_opened - bones.count(b"]") - bones.count(b"}")
        self._check_numbers(bones)

    def _check_numbers(self, bones: bytes) -> None:
        # orjson turns an integer beyond 64 bit into a float without a word.
        bones = self._number_tail + bones
        end = len(bones.rstrip(_NUMBER_BYTES))
        self._number_tail = _shortened(bones[end:])
        # Not finditer: each call of it leaves a name in CPython's cache of attributes, and up to 4096 such names,
        # one per request, keep apart the memory that a burst of requests has freed.
        for digits in _LONG_INTEGER.findall(bones, 0, end):
            if len(digits) > 20 or not -(2**63) <= int(digits) < 2**64:
                raise _invalid("请求体里有整数超出 64 位。")

    def _append(self, text: bytes | bytearray) -> None:
        self._rest += text
        if len(self._rest) > self._max_rest_bytes:
            raise _invalid(f"请求体除长字符串（图片）外的内容超过 {self._max_rest_bytes} 字节。")

    def _feed_string(self, data: bytes, position: int) -> int:
        end = _string_end(data, position + self._escaped)
        closed = data[end : end + 1] == b'"'
        self._escaped = not closed and end < len(data)
        self._take(data[position:end] if closed else data[position:])
        if not closed:
            return len(data)
        self._close_string()
        return end + 1

    def _take(self, text: bytes) -> None:
        if len(self._pending) + len(text) <= self._max_string_bytes:
            self._pending += text
            return
        if self._slices is None:
            self._slices = []
        if self._pending:
            text = bytes(self._pending) + text
        end = _clean_end(text)
        self._add_slice(self._slices, text[:end])
        self._pending[:] = text[end:]

    def _add_slice(self, slices: list[bytes], text: bytes) -> None:
        if not text:
            return
        self._num_sliced += len(text)
        try:
            plain: str = orjson.loads(b'"%b"' % text)
        except orjson.JSONDecodeError as error:
            place = self._num_bytes + 1
            raise _invalid(f"请求体不是合法的 JSON：第 {place} 个字节附近，{_reason(error)}。") from None
        slices.append(plain.encode() if b"\\" in text else text)

    def _close_string(self) -> None:
        self._in_string = False
        if self._slices is None:
            self._append(self._pending)
        else:
            self._add_slice(self._slices, bytes(self._pending))
            self._append(self._placeholder(self._slices))
        self._append(b'"')
        self._slices = None
        self._num_sliced = 0
        self._pending.clear()

    def _placeholder(self, slices: list[bytes]) -> bytes:
        name = f"{self._token}:{len(self._lifted)}"
        self._lifted[name] = LongString(tuple(slices), sum(map(len, slices)))
        self._lifted_sizes.append((len(self._rest), self._num_sliced - len(name)))
        return name.encode()

    def _parse(self) -> dict[str, Any]:
        try:
            value: dict[str, Any] = orjson.loads(self._rest)
        except orjson.JSONDecodeError as error:
            raise self._syntax_error(error) from None
        return value

    def _syntax_error(self, error: orjson.JSONDecodeError) -> CgError:
        try:
            self._rest.decode()
        except UnicodeDecodeError as bad:
            return _invalid(f"请求体不是合法的 UTF-8：第 {self._place(bad.start)} 个字节有误。")
        place = self._place(len(error.doc[: error.pos].encode()))
        return _invalid(f"请求体不是合法的 JSON：第 {place} 个字节附近，{_reason(error)}。")

    def _place(self, offset: int) -> int:
        """The caller's byte number, from 1, for an offset in the rest."""
        return offset + 1 + sum(missing for place, missing in self._lifted_sizes if place < offset)

    def _restore(self, value: Any) -> Any:
        """Puts the lifted strings in place of their placeholders, in place."""
        if isinstance(value, str):
            return self._lifted.get(value, value)
        if isinstance(value, list):
            value[:] = map(self._restore, value)
        elif isinstance(value, dict):
            if not self._lifted.keys().isdisjoint(value):
                raise _invalid(f"请求体里有键名超过 {self._max_string_bytes} 字节。")
            for key, item in value.items():
                value[key] = self._restore(item)
        return value


def _shortened(number: bytes) -> bytes:
    """The beginning of a number that is still to go on, kept short: as much of it as says whether it is too long."""
    if len(number) <= 32:
        return number
    return number[:32] if number.strip(b"-").isdigit() else b"0."


def _string_end(data: bytes, position: int) -> int:
    """Where the open string ends: its quote, a backslash that is the last byte, or the end of `data`."""
    quote = data.find(b'"', position)
    stop = quote if quote >= 0 else len(data)
    if data.find(b"\\", position, stop) < 0:
        return stop
    match = _STRING_BODY.match(data, position)
    return match.end() if match else position


def _clean_end(text: bytes) -> int:
    """The longest beginning of `text` that cuts no escape, surrogate pair or character in two."""
    end = len(text)
    if b"\\" in text:
        match = _COMPLETE_ESCAPES.match(text)
        end = match.end() if match else 0
        if len(text) - end > _MAX_ESCAPE_TAIL:
            return len(text)  # it can no longer become valid: orjson says so
    tail = _UTF8_TAIL.search(text, max(0, end - 3), end)
    return tail.start() if tail else end


def _reason(error: orjson.JSONDecodeError) -> str:
    return next((told for words, told in _REASONS if words in error.msg), "语法有误")


def _invalid(message: str) -> CgError:
    return CgError("invalid_request", message)
