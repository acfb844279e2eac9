"""What a file is by its bytes, and how large a picture its header claims. Nothing is decompressed.

Rule: the head alone is judged, and within bounds: a file can make us look at no more than MAX_STEPS of its parts. What
stands behind the header may be anything. Broken EXIF is no EXIF; a broken header is an error.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

# A JPEG of 16 MiB has at most 256 full segments; phones write fewer than 40, PNG writers a few hundred chunks.
MAX_STEPS: Final = 512
_MAX_EXIF_BYTES: Final = 64 * 1024  # what a JPEG segment can hold
_HEAD_BYTES: Final = 1024
_ORIENTATION_TAG: Final = 0x0112


class Source(Protocol):
    """Bytes that can be read at any place; fewer than `size` at the end, none beyond it."""

    def read(self, start: int, size: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Header:
    """`orientation` is EXIF's 1..8 (CIPA DC-008, tag 274), 1 where nothing usable is said."""

    media_type: str
    width: int
    height: int
    orientation: int


class HeaderUnusable(Exception):
    """`str()` is a Chinese clause on what the file is, or what is wrong with it; `remedy` a sentence on what to do."""

    def __init__(self, found: str, remedy: str) -> None:
        super().__init__(found)
        self.remedy = remedy


CONVERT: Final = "请先转换为 JPEG、PNG 或 WebP。"
_CONVERT_HEIC: Final = "请先转换为 JPEG、PNG 或 WebP（iPhone 可在“设置 › 相机 › 格式”中选“兼容性最佳”）。"
_EXPORT: Final = "请改为提交其中的图片（JPEG、PNG 或 WebP）。"
_SEND_AGAIN: Final = "请检查文件能否正常打开，或重新导出后提交。"
_SEND_PICTURE: Final = "请提交图片文件本身（JPEG、PNG 或 WebP）的内容。"

# Media types and brands that people do send, and the name to call them by.
_BRANDS: Final = (
    (re.compile(rb"hei[cxmsf]|hev[cxms]|mif1|msf1"), "HEIC/HEIF 图片", _CONVERT_HEIC),
    (re.compile(rb"avi[fs]"), "AVIF 图片", CONVERT),
    (re.compile(rb"cr[x3]\s"), "相机 RAW 文件", CONVERT),
)
_SIGNATURES: Final[tuple[tuple[bytes, str, str], ...]] = (
    (b"GIF87a", "GIF 图片", CONVERT),
    (b"GIF89a", "GIF 图片", CONVERT),
    (b"BM", "BMP 图片", CONVERT),
    (b"II*\0", "TIFF 图片", CONVERT),
    (b"MM\0*", "TIFF 图片", CONVERT),
    (b"II+\0", "TIFF 图片", CONVERT),
    (b"MM\0+", "TIFF 图片", CONVERT),
    (b"\xff\x0a", "JPEG XL 图片", CONVERT),
    (b"\0\0\0\x0cJXL ", "JPEG XL 图片", CONVERT),
    (b"\0\0\0\x0cjP  ", "JPEG 2000 图片", CONVERT),
    (b"\xff\x4f\xff\x51", "JPEG 2000 图片", CONVERT),
    (b"\0\0\x01\0", "ICO 图标", CONVERT),
    (b"8BPS", "Photoshop 文件", CONVERT),
    (b"%PDF-", "PDF 文件", _EXPORT),
    (b"PK\x03\x04", "ZIP 压缩包或 Office 文件", _EXPORT),
    (b"\x1f\x8b", "gzip 压缩包", _EXPORT),
    (b"\xd0\xcf\x11\xe0", "Office 文件", _EXPORT),
)
_ENCODED_TWICE: Final = re.compile(rb"(?:data:|/9j/|iVBORw0KGgo|UklGR)")
_HTML: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype\s+html|html|head|body|script)\b", re.I)
_SVG: Final = re.compile(rb"<svg\b", re.I)


def read_header(source: Source) -> Header:
    """The header of a JPEG, PNG or WebP. Raises HeaderUnusable for anything else, and for a header without a size."""
    head = source.read(0, _HEAD_BYTES)
    for signature, parse in _PARSERS.items():
        if re.match(signature, head, re.DOTALL):
            header = parse(source)
            if not (header.width and header.height):
                raise HeaderUnusable(
                    f"的文件头写明宽 {header.width}、高 {header.height}，不是有效图片", _SEND_AGAIN
                )
            return header
    raise _refusal(head)


def _refusal(head: bytes) -> HeaderUnusable:
    if head[4:8] == b"ftyp":
        for brand, found, remedy in _BRANDS:
            if brand.match(head, 8):
                return HeaderUnusable(f"是 {found}", remedy)
        return HeaderUnusable("是视频文件", "请截取画面，以 JPEG、PNG 或 WebP 提交。")
    for signature, found, remedy in _SIGNATURES:
        # Two letters are a signature only of what is no text.
        if head.startswith(signature) and not (signature == b"BM" and _is_text(head)):
            return HeaderUnusable(f"是 {found}", remedy)
    if not _is_text(head):
        return HeaderUnusable("不是可识别的图片文件", f"只接受 JPEG、PNG、WebP，{_SEND_AGAIN}")
    if _ENCODED_TWICE.match(head):
        return HeaderUnusable("的内容仍是 base64 文字，被编码了两次", "请只编码一次。")
    if _HTML.match(head):
        return HeaderUnusable("是网页（HTML）", _SEND_PICTURE)
    if _SVG.search(head):
        return HeaderUnusable("是 SVG 图片", CONVERT)
    return HeaderUnusable("是文本", _SEND_PICTURE)


def _is_text(head: bytes) -> bool:
    try:
        text = head.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3:  # more than a character that the end of the head cuts
            return False
        text = head[: error.start].decode("utf-8-sig")
    return all(character.isprintable() or character in "\t\r\n\f\u3000\xa0" for character in text)


def _broken(kind: str) -> HeaderUnusable:
    return HeaderUnusable(f"是 {kind}，但文件头不完整或已损坏，读不出宽高", _SEND_AGAIN)


_SIZES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF0..SOF15; the three others are tables
_BARE: Final = frozenset((0x01, *range(0xD0, 0xD9)))  # TEM, RST0..7, SOI: markers without a length
_END: Final = frozenset((0xD9, 0xDA))  # EOI, SOS: no frame header can follow


def _parse_jpeg(source: Source) -> Header:
    position, orientation = 2, 1
    for _ in range(MAX_STEPS):
        marker, position = _next_marker(source, position)
        if marker in _BARE:
            continue
        head = source.read(position, 7)
        if marker in _END or len(head) < 7:
            break
        length = int.from_bytes(head[:2], "big")
        if marker in _SIZES:
            height, width = struct.unpack(">HH", head[3:7])
            return Header("image/jpeg", width, height, orientation)
        if marker == 0xE1 and orientation == 1:
            orientation = _exif_orientation(source.read(position + 2, length - 2))
        position += max(length, 2)
    raise _broken("JPEG 图片")


def _next_marker(source: Source, position: int) -> tuple[int, int]:
    """The next marker and where it ends. Fill bytes, and rubbish that decoders skip as well, are skipped."""
    block = source.read(position, _HEAD_BYTES)
    match = re.compile(rb"\xff+([^\x00\xff])").search(block)
    if match is None:
        raise _broken("JPEG 图片")
    return match[1][0], position + match.end()


def _parse_png(source: Source) -> Header:
    head = source.read(8, 16)
    if len(head) < 16 or head[:8] != b"\0\0\0\x0dIHDR":
        raise _broken("PNG 图片")
    width, height = struct.unpack(">II", head[8:])
    return Header("image/png", width, height, _chunk_orientation(source, 33, b"eXIf", ">I4s", 4))


def _parse_webp(source: Source) -> Header:
    head = source.read(12, 18)
    kind, body = head[:4], head[8:].ljust(10, b"\0")
    orientation = 1
    if len(head) < 14:
        raise _broken("WebP 图片")
    if kind == b"VP8X":
        width, height = (1 + int.from_bytes(body[at : at + 3], "little") for at in (4, 7))
        if body[0] & 0x08:
            orientation = _chunk_orientation(source, 12, b"EXIF", "<4sI", 0)
    elif kind == b"VP8L" and body[0] == 0x2F:
        bits = int.from_bytes(body[1:5], "little")
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    elif kind == b"VP8 " and body[3:6] == b"\x9d\x01\x2a":
        width, height = (int.from_bytes(body[at : at + 2], "little") & 0x3FFF for at in (6, 8))
    else:
        raise _broken("WebP 图片")
    return Header("image/webp", width, height, orientation)


def _chunk_orientation(source: Source, position: int, wanted: bytes, form: str, num_behind: int) -> int:
    """From the EXIF chunk of a PNG or WebP; `num_behind` are the bytes of a checksum behind each chunk."""
    for _ in range(MAX_STEPS):
        head = source.read(position, 8)
        if len(head) < 8:
            break
        first, second = struct.unpack(form, head)
        length, kind = (first, second) if isinstance(first, int) else (second, first)
        if kind == wanted:
            return _exif_orientation(source.read(position + 8, min(length, _MAX_EXIF_BYTES)))
        padding = 0 if num_behind else length % 2  # RIFF pads its chunks, PNG does not
        position += 8 + length + padding + num_behind
    return 1


def _exif_orientation(exif: bytes) -> int:
    """The orientation in the first directory of `exif`, which may begin with its JPEG label. 1 for anything odd."""
    if exif.startswith(b"Exif\0"):
        exif = exif[6:]
    order = {b"II": "<", b"MM": ">"}.get(exif[:2])
    if order is None:
        return 1
    try:
        (start,) = struct.unpack_from(f"{order}I", exif, 4)
        (num_entries,) = struct.unpack_from(f"{order}H", exif, start)
        for number in range(min(num_entries, MAX_STEPS)):
            tag, kind = struct.unpack_from(f"{order}HH", exif, start + 2 + 12 * number)
            if tag == _ORIENTATION_TAG:
                form = f"{order}I" if kind == 4 else f"{order}H"
                (value,) = struct.unpack_from(form, exif, start + 10 + 12 * number)
                return value if 1 <= value <= 8 else 1
    except struct.error:
        return 1
    return 1


_PARSERS: Final[Mapping[bytes, Callable[[Source], Header]]] = {
    rb"\xff\xd8(?:\xff|\Z)": _parse_jpeg,
    rb"\x89PNG\r\n\x1a\n": _parse_png,
    rb"RIFF....WEBP": _parse_webp,
}
