"""Pictures of a request: Base64 or data URLs checked by their bytes, then sent on as the same slices.

Rule: nothing is decoded but headers, nothing is copied but what line breaks force, nothing is fetched, and no text of
the caller's but checked Base64 goes upstream. Every fault here is `invalid_image` and names its picture.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from cg_rag.core.base64_text import Base64Checker, Base64Invalid, Base64Reader, Base64Text
from cg_rag.core.errors import CgError
from cg_rag.core.image_headers import CONVERT, HeaderUnusable, read_header
from cg_rag.core.json_parts import Slices
from cg_rag.core.json_text import LongString

MEDIA_TYPES: Final = ("image/jpeg", "image/png", "image/webp")
DEFAULT_MEDIA_TYPE: Final = "image/jpeg"
_ALIASES: Final = {"image/jpg": "image/jpeg", "image/pjpeg": "image/jpeg", "image/x-png": "image/png"}

_PIECE_CHARACTERS: Final = 1024 * 1024  # of a plain str at a time; less than 1 ms
_TURN_BYTES: Final = 1024 * 1024  # what is checked before the loop has its turn: about 0.5 ms
_MAX_DATA_URL_HEAD: Final = 1024
_SCHEME: Final = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]{0,30}:")
_MEDIA_TYPE: Final = re.compile(r"[a-z0-9.+-]{1,60}/[a-z0-9.+-]{1,60}")

# EXIF tag 274 -> what has to be done to see the picture upright.
_TURNS: Final = {
    2: "需左右翻转",
    3: "需旋转 180°",
    4: "需上下翻转",
    5: "需左右翻转后顺时针旋转 270°",
    6: "需顺时针旋转 90°",
    7: "需左右翻转后顺时针旋转 90°",
    8: "需顺时针旋转 270°",
}


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """Settings `vision.max_images`, `max_image_bytes` (decoded), `max_image_pixels`."""

    max_images: int
    max_image_bytes: int
    max_image_pixels: int


class ImageInput(Protocol):
    """One entry of a request's `images`; `source_turn_index` counts from 0."""

    @property
    def data(self) -> str | LongString: ...

    @property
    def mime_type(self) -> str | LongString | None: ...

    @property
    def source_turn_index(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Image:
    """One checked picture. `media_type` is what the bytes are, `num_bytes` what the Base64 in `data_url` decodes to;
    width, height and EXIF orientation (1..8) are what its header says."""

    media_type: str
    data_url: Slices
    num_bytes: int
    width: int
    height: int
    orientation: int
    source_turn_index: int | None


async def check_images(items: Sequence[ImageInput], limits: ImageLimits) -> tuple[Image, ...]:
    """The pictures of a request, each checked; raises CgError("invalid_image") for the first that is not as
    contract section 6 wants it. Takes a `LongString` away from its item, so it can be called once per request."""
    if len(items) > limits.max_images:
        raise CgError(
            "invalid_image",
            f"共 {len(items)} 张图片，超过上限 {limits.max_images} 张。",
            {"num_images": len(items), "max_images": limits.max_images},
        )
    return tuple([await _check(number, item, limits) for number, item in enumerate(items, start=1)])


def image_content(images: Sequence[Image]) -> list[dict[str, Any]]:
    """The parts of a user message: each picture as a data URL, with `图N：` before it when there are several, and
    with notes on the turn it comes from and on how it has to be turned."""
    parts: list[dict[str, Any]] = []
    for number, image in enumerate(images, start=1):
        texts = [f"图{number}："] if len(images) > 1 else []
        parts += [{"type": "text", "text": text} for text in (*texts, *_notes(image))]
        parts.append({"type": "image_url", "image_url": {"url": image.data_url}})
    return parts


def _notes(image: Image) -> Iterator[str]:
    if image.source_turn_index is not None:
        yield f"（来自第 {image.source_turn_index + 1} 轮）"
    # Common servers show a model the pixels as they are stored, sideways.
    if image.orientation in _TURNS:
        yield f"（照片方向：{_TURNS[image.orientation]}）"


async def _check(number: int, item: ImageInput, limits: ImageLimits) -> Image:
    payload = _open(number, item.data)
    _check_declared(number, _declared(payload.media_type, item.mime_type))
    text = await _check_text(number, payload.pieces)
    if text.num_bytes > limits.max_image_bytes:
        problem = f"为 {text.num_bytes} 字节，超过上限 {limits.max_image_bytes} 字节。"
        raise _refused(number, problem, max_image_bytes=limits.max_image_bytes)
    try:
        header = read_header(Base64Reader(text))
    except HeaderUnusable as error:
        raise _refused(number, f"{error}。{error.remedy}") from None
    num_pixels = header.width * header.height
    if num_pixels > limits.max_image_pixels:
        size = f"为 {header.width} × {header.height} = {num_pixels} 像素"
        problem = f"{size}，超过上限 {limits.max_image_pixels} 像素，请先缩小。"
        raise _refused(number, problem, max_image_pixels=limits.max_image_pixels)
    await asyncio.sleep(0)  # Slices looks through the whole picture once more: 4 ms for 16 MiB
    return Image(
        header.media_type,
        Slices((f"data:{header.media_type};base64,".encode(), *text.parts)),
        text.num_bytes,
        header.width,
        header.height,
        header.orientation,
        item.source_turn_index,
    )


class _Payload(NamedTuple):
    """`media_type` is what a data URL says of itself, "" where it says nothing; `pieces` are used up by reading."""

    media_type: str
    pieces: deque[bytes]


def _open(number: int, data: str | LongString) -> _Payload:
    pieces = deque(data.take()) if isinstance(data, LongString) else _encoded(number, data)
    head = _peek(pieces)
    if head[:5].lower() == b"data:":
        return _open_data_url(number, head, pieces)
    if _SCHEME.match(head):
        raise _refused(number, "的 data 是网址或文件地址。须为 base64 数据或 data URL，服务不会去下载图片。")
    return _Payload("", pieces)


def _encoded(number: int, data: str) -> deque[bytes]:
    if not data.isascii():
        raise _refused(number, "的 data 含有非 ASCII 字符，须为 base64 数据或 data URL。")
    starts = range(0, len(data), _PIECE_CHARACTERS)
    return deque(data[start : start + _PIECE_CHARACTERS].encode() for start in starts)


def _peek(pieces: Sequence[bytes]) -> bytes:
    head = b""
    for piece in pieces:
        head += piece[: _MAX_DATA_URL_HEAD - len(head)]
        if len(head) >= _MAX_DATA_URL_HEAD:
            break
    return head


def _open_data_url(number: int, head: bytes, pieces: deque[bytes]) -> _Payload:
    # RFC 2397: data:[<media type>][;parameter=value]*[;base64],<data>
    about, comma, _ = head.partition(b",")
    media_type, *parameters = about[len("data:") :].decode("ascii", "replace").lower().split(";")
    if not comma or not parameters or parameters[-1].strip() != "base64":
        raise _refused(number, "的 data URL 须为 data:<媒体类型>;base64,<数据> 的形式。")
    num_left = len(about) + 1
    while num_left:
        piece = pieces.popleft()
        if len(piece) > num_left:
            pieces.appendleft(piece[num_left:])
        num_left -= min(num_left, len(piece))
    return _Payload(media_type.strip(), pieces)


def _declared(own: str, mime_type: str | LongString | None) -> str:
    if own:
        return own
    if isinstance(mime_type, LongString):
        return "?"
    # Browsers call a file that they do not know ""; nothing is declared then.
    return (mime_type or DEFAULT_MEDIA_TYPE).lower()


def _check_declared(number: int, declared: str) -> None:
    if _ALIASES.get(declared, declared) in MEDIA_TYPES:
        return
    named = f"为 {declared}" if _MEDIA_TYPE.fullmatch(declared) else "不合法"
    raise _refused(number, f"声明的媒体类型{named}，只接受 {'、'.join(MEDIA_TYPES)}。{CONVERT}")


async def _check_text(number: int, pieces: deque[bytes]) -> Base64Text:
    checker = Base64Checker()
    num_checked = 0
    try:
        # Taken from the left, so that a piece whose line breaks were removed is not held twice.
        while pieces:
            piece = pieces.popleft()
            checker.feed(piece)
            num_checked += len(piece)
            if num_checked >= _TURN_BYTES:
                num_checked = 0
                await asyncio.sleep(0)
        return checker.finish()
    except Base64Invalid as error:
        raise _refused(number, f"{error}。") from None


def _refused(number: int, problem: str, **details: int) -> CgError:
    return CgError("invalid_image", f"第 {number} 张图片{problem}", {"image_number": number} | details)
