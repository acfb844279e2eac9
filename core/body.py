"""Reads one JSON object from a request: size, media type, room in memory, then the bytes as they come.

Rule: nothing of a body is kept before its size, type and room are settled, and nobody may send for ever.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import Any

from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from cg_rag.core.capacity import Limiter
from cg_rag.core.errors import CgError
from cg_rag.core.json_text import BodyLexer, LongString, ParsedBody

__all__ = [
    "EXPECT",
    "BodyLexer",
    "LongString",
    "ParsedBody",
    "check_declared",
    "read_json_object",
]

EXPECT: web.RequestKey[str] = web.RequestKey("cg_rag.expect", str)
"""The caller's `Expect` header, put here by core/connection.py, so that nobody answers it early."""

MIN_BYTES_PER_SECOND = 8 * 1024  # below the slowest mobile uplink that can send a photo at all
# A body keeps its room from its first byte on, and 96 MiB at that rate would keep it for hours: whatever its size, it
# has so long, and one that falls behind the pace for its size is refused as soon as that shows. 1.2 Mbit/s are enough
# for four photos of 16 MiB.
MAX_BODY_SECONDS = 600.0
# At most 4 ms of lexing for the worst text that we found, then the loop has its turn.
_PIECE_BYTES = 64 * 1024
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9.+-]{1,60}/[A-Za-z0-9.+-]{1,60}")


def check_declared(request: web.Request, max_bytes: int) -> None:
    """Judges the headers alone, nothing is read.

    Raises CgError: payload_too_large (Content-Length above `max_bytes`), unsupported_media_type (not
    application/json in UTF-8, or any Content-Encoding but identity), invalid_request (an unknown Expect).
    """
    declared = request.content_length
    if declared is not None and declared > max_bytes:
        raise _too_large(f"请求体为 {declared} 字节", max_bytes)
    _check_media_type(", ".join(request.headers.getall(hdrs.CONTENT_TYPE, ())))
    for value in request.headers.getall(hdrs.CONTENT_ENCODING, ()):
        if value.strip().lower() != "identity":
            raise CgError("unsupported_media_type", "请求体不得压缩，请去掉 Content-Encoding。")
    if request.get(EXPECT, "100-continue").lower() != "100-continue":
        raise CgError("invalid_request", "不支持此 Expect 头，只接受 100-continue。")


async def read_json_object(
    request: web.Request, *, max_bytes: int, inflight: Limiter, idle_timeout_seconds: float
) -> dict[str, Any]:
    """The body as a dict, strings of more than 64 KiB as `LongString`.

    The bytes stay taken from `inflight` until the task that called ends. Raises CgError: what
    `check_declared` raises, capacity.exceeded, request_timeout (no byte for `idle_timeout_seconds`, or once that
    time has passed slower than `_pace`), payload_too_large, invalid_request. A disconnect is raised as it comes
    from aiohttp.
    """
    check_declared(request, max_bytes)
    declared = request.content_length
    lease = await inflight.take(min(_PIECE_BYTES, max_bytes) if declared is None else declared)
    lease.release_with_task()
    await _send_continue(request)
    lexer = BodyLexer()
    received = 0
    grace_ends = asyncio.get_running_loop().time() + idle_timeout_seconds
    while chunk := await _next_chunk(
        request, idle_timeout_seconds, grace_ends + received / _pace(declared or received)
    ):
        received += len(chunk)
        if received > max_bytes:
            raise _too_large("请求体", max_bytes)
        if received > lease.amount:
            await lease.grow(received - lease.amount)
        await _feed(lexer, chunk)
    return lexer.finish().value


def _pace(num_bytes: int) -> float:
    """The bytes a second that a body of so many must keep to, counted from its beginning."""
    return max(MIN_BYTES_PER_SECOND, num_bytes / MAX_BODY_SECONDS)


def _check_media_type(header: str) -> None:
    media_type, *parameters = header.split(";")
    if media_type.strip().lower() != "application/json":
        told = media_type.strip()
        found = f"，收到 {told}" if _MEDIA_TYPE.fullmatch(told) else ""
        raise CgError("unsupported_media_type", f"Content-Type 须为 application/json{found}。")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset" and value.strip().strip('"').lower() not in ("utf-8", "utf8"):
            raise CgError("unsupported_media_type", "请求体须为 UTF-8 编码的 application/json。")


async def _send_continue(request: web.Request) -> None:
    if EXPECT not in request:
        return
    with suppress(ConnectionError):  # who has gone is found by reading, as without Expect
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # as aiohttp does: an interim answer is not the beginning of the answer


async def _next_chunk(request: web.Request, idle_timeout_seconds: float, deadline: float) -> bytes:
    try:
        if request.content.is_eof():
            # All of it is here, as with most questions: no timer, which would stay in memory until it is due.
            return request.content.read_nowait()
        idle_ends = asyncio.get_running_loop().time() + idle_timeout_seconds
        async with asyncio.timeout_at(min(idle_ends, deadline)):
            return await request.content.readany()
    except TimeoutError:
        raise CgError(
            "request_timeout",
            "请求体未在规定时间内送达，连接已关闭，请检查网络后重试。",
            {
                "idle_timeout_seconds": idle_timeout_seconds,
                "min_bytes_per_second": MIN_BYTES_PER_SECOND,
                "max_seconds": MAX_BODY_SECONDS,
            },
        ) from None
    except (web.RequestPayloadError, HttpProcessingError) as error:
        raise CgError("invalid_request", "请求体的传输编码有误（chunked 或 Content-Length）。") from error


async def _feed(lexer: BodyLexer, chunk: bytes) -> None:
    # The inside of a picture is cheap and is kept as it came; anything else goes in by pieces.
    whole = lexer.in_long_string and b'"' not in chunk and b"\\" not in chunk
    size = len(chunk) if whole else _PIECE_BYTES
    for start in range(0, len(chunk), size):
        lexer.feed(chunk[start : start + size])
        await asyncio.sleep(0)


def _too_large(what: str, max_bytes: int) -> CgError:
    return CgError("payload_too_large", f"{what}，超过上限 {max_bytes} 字节。", {"max_bytes": max_bytes})
