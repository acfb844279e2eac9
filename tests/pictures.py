"""Pictures made byte by byte: as small as a format allows, as large as a test wants, whole or broken."""

from __future__ import annotations

import base64
import struct
import zlib

GARBAGE = bytes(range(256))


def tiff_orientation(value: int, order: str = ">", kind: int = 3) -> bytes:
    """EXIF's directory with the one entry for the orientation; `kind` 3 is SHORT, 4 LONG."""
    mark = b"MM\0*" if order == ">" else b"II*\0"
    number = struct.pack(f"{order}HH", value, 0) if kind == 3 else struct.pack(f"{order}I", value)
    entry = struct.pack(f"{order}HHI", 0x0112, kind, 1) + number
    return mark + struct.pack(f"{order}IH", 8, 1) + entry + bytes(4)


def segment(marker: int, body: bytes) -> bytes:
    return b"\xff" + bytes([marker]) + struct.pack(">H", len(body) + 2) + body


def jpeg(
    width: int = 640, height: int = 480, *, exif: bytes | None = None, before: bytes = b"", size: int = 0
) -> bytes:
    """The head of a JPEG and rubbish where the pixels would be; `size` is what it is filled up to."""
    head = b"\xff\xd8" + segment(0xE0, b"JFIF\0\x01\x01\0\0\x01\0\x01\0\0")
    if exif is not None:
        head += segment(0xE1, b"Exif\0\0" + exif)
    frame = b"\x08" + struct.pack(">HH", height, width) + b"\x03\x01\x22\0\x02\x11\x01\x03\x11\x01"
    head += before + segment(0xC0, frame) + segment(0xDA, b"\x03\x01\0\x02\x11\x03\x11\0\x3f\0")
    filling = max(size - len(head) - 2, 4)
    return head + (GARBAGE * (filling // 256 + 1))[:filling] + b"\xff\xd9"


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int = 640, height: int = 480, *, exif: bytes | None = None) -> bytes:
    head = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    more = chunk(b"eXIf", exif) if exif is not None else b""
    return head + chunk(b"IDAT", b"rubbish") + more + chunk(b"IEND", b"")


def riff(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("<I", len(body)) + body + b"\0" * (len(body) % 2)


def webp(width: int = 640, height: int = 480, *, kind: bytes = b"VP8 ", exif: bytes | None = None) -> bytes:
    if kind == b"VP8 ":
        chunks = riff(b"VP8 ", b"\x10\x02\0\x9d\x01\x2a" + struct.pack("<HH", width, height) + b"odd")
    elif kind == b"VP8L":
        chunks = riff(b"VP8L", b"\x2f" + struct.pack("<I", (width - 1) | (height - 1) << 14) + b"rubbish")
    else:
        flags = bytes([0x08 if exif is not None else 0, 0, 0, 0])
        sizes = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
        chunks = riff(b"VP8X", flags + sizes) + riff(b"ALPH", b"odd") + riff(b"VP8 ", b"rubbish")
        chunks += riff(b"EXIF", exif) if exif is not None else b""
    return b"RIFF" + struct.pack("<I", len(chunks) + 4) + b"WEBP" + chunks


def text_of(picture: bytes) -> str:
    return base64.b64encode(picture).decode()
