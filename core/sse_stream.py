"""A mode's events as the body of an HTTP answer: headers, heartbeat, one terminal event, and an end for every cause.

Rule: the mode runs in the task of the request, so what cancels the request cancels the work. Nothing is read from
it while the connection has too many unsent bytes, and it is closed before the terminal event goes out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar, cast

from aiohttp import web
from aiohttp.http import HttpVersion11, StreamWriter

from cg_rag.core.account import note_first_token
from cg_rag.core.errors import CgError
from cg_rag.core.events import Event, Final, Progress, Token, close
from cg_rag.core.log import logger
from cg_rag.core.sse import KEEPALIVE, encode, encode_error

Body = TypeVar("Body")

STREAM_CODE: web.RequestKey[str] = web.RequestKey("cg_rag.stream_code", str)
"""How a stream ended, for the log line: "" with `final`, else an error code or CLIENT_GONE. Absent: no stream."""

CLIENT_GONE = "client_gone"
WAITING = Progress("waiting", "正在处理", "running")
# A mode that has all its text at hand would hold the loop until its reader falls behind: with 200 such streams,
# 64 events a turn made /health wait 600 ms, 4 make it wait 40.
EVENTS_PER_TURN = 4
# Between the last moment of a stream that is stopped and that of its connection.
SHUTDOWN_MARGIN_SECONDS = 1.0

SSE_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",
    "X-Content-Type-Options": "nosniff",
}


async def answer_stream(
    request: web.Request,
    *,
    read: Callable[[], Awaitable[Body]],
    start: Callable[[Body], AsyncIterator[Event]],
    heartbeat_seconds: float,
    request_id: str,
) -> web.StreamResponse:
    """One POST on a stream route. docs/http.md, 流式接口.

    A CgError of `read` (key, size, type, time, room) keeps its HTTP status, except that what `read` says of the
    JSON itself, invalid_request, and all that `start` and the mode raise become the stream's `error`.
    """
    try:
        body = await read()
    except CgError as error:
        if error.code != "invalid_request":
            raise
        failure = error
    else:
        return await stream_events(
            request, lambda: start(body), heartbeat_seconds=heartbeat_seconds, request_id=request_id
        )

    def refuse() -> AsyncIterator[Event]:
        raise failure

    return await stream_events(request, refuse, heartbeat_seconds=0, request_id=request_id)


async def stream_events(
    request: web.Request,
    start: Callable[[], AsyncIterator[Event]],
    *,
    heartbeat_seconds: float,
    request_id: str,
) -> web.StreamResponse:
    """Send the headers, then call `start` and send what it yields, up to `Final` or to the `error` made from what
    it raises. Sets STREAM_CODE; raises only CancelledError. The application must have been given to
    `follow_streams`."""
    stream = SseStream(request, heartbeat_seconds, request_id)
    streams = request.app[OPEN_STREAMS]
    streams.add(stream)
    try:
        return await stream.run(start)
    finally:
        streams.remove(stream)


def end_with_connection(response: web.StreamResponse, request: web.Request) -> None:
    """HTTP/1.0 has no chunks: there only the end of the connection is that of a stream, and aiohttp keeps it open for a
    client that asks for keep-alive. Before `prepare`."""
    if request.version < HttpVersion11:
        response.force_close()


class SseStream:
    """One stream. `heartbeat_seconds` 0: no heartbeat."""

    def __init__(self, request: web.Request, heartbeat_seconds: float, request_id: str) -> None:
        self._request = request
        self._response = web.StreamResponse(headers=SSE_HEADERS | {"X-Request-ID": request_id})
        end_with_connection(self._response, request)
        self._connection = request.protocol
        # What aiohttp's abstract type hides is whether it writes chunks.
        self._writer = cast(StreamWriter, request.writer)
        self._request_id = request_id
        self._heartbeat_seconds = heartbeat_seconds
        self._stage = WAITING
        self._loop = asyncio.get_running_loop()
        self._sent_at = self._loop.time()
        self._task = asyncio.current_task()
        self._stopping = False
        self._ending = False

    async def run(self, start: Callable[[], AsyncIterator[Event]]) -> web.StreamResponse:
        """The whole stream. A reader who leaves is no error, and no line in the log."""
        self._request[STREAM_CODE] = CLIENT_GONE
        try:
            await self._open()
            frame, code = await self._work(start)
            await self._end(frame)
        except _ReaderGone:
            return self._response
        self._request[STREAM_CODE] = code
        return self._response

    def stop(self) -> None:
        """The service ends: break off, and say so as the terminal event."""
        if not self._ending and self._task is not None:
            self._stopping = True
            self._task.cancel()

    async def _open(self) -> None:
        try:
            await self._response.prepare(self._request)
        except ConnectionError as error:
            raise _ReaderGone from error

    async def _work(self, start: Callable[[], AsyncIterator[Event]]) -> tuple[bytes, str]:
        """Sends everything but the terminal event; returns that one's frame, and its code for the log."""
        heartbeat = self._loop.create_task(self._beat()) if self._heartbeat_seconds else None
        try:
            return await self._relay(start()), ""
        except CgError as error:
            failure = error
        except _ReaderGone:
            raise
        except asyncio.CancelledError:
            if not self._was_stopped():
                raise
            failure = shutdown_error()
        except Exception:
            logger.exception("internal_error")
            failure = CgError("internal_error")
        finally:
            self._ending = True
            if heartbeat is not None:
                heartbeat.cancel()
        return encode_error(failure, self._request_id), failure.code

    async def _relay(self, events: AsyncIterator[Event]) -> bytes:
        num_sent = 0
        has_token = False
        try:
            async for event in events:
                frame = encode(event)
                if isinstance(event, Final):
                    return frame
                self._write(frame)
                if isinstance(event, Progress):
                    self._stage = event if event.status == "running" else WAITING
                elif not has_token and isinstance(event, Token):
                    has_token = True
                    note_first_token()
                if self._connection.writing_paused:
                    await self._drain()
                num_sent += 1
                if num_sent % EVENTS_PER_TURN == 0:
                    await asyncio.sleep(0)
        finally:
            await close(events)
        raise RuntimeError("a mode ended without Final")

    def _write(self, frame: bytes) -> None:
        """One frame, as one chunk where the connection has chunks. As StreamWriter.write does it, without its
        coroutine and three calls for each token."""
        transport = self._connection.transport
        if transport is None or transport.is_closing():
            raise _ReaderGone
        data = b"%x\r\n%b\r\n" % (len(frame), frame) if self._writer.chunked else frame
        self._writer.output_size += len(data)
        transport.write(data)
        self._sent_at = self._loop.time()

    async def _drain(self) -> None:
        try:
            # All who drain share one future: cancelled here, it would cancel the terminal event's drain too.
            await asyncio.shield(self._writer.drain())
        except ConnectionError as error:
            raise _ReaderGone from error
        self._sent_at = self._loop.time()

    async def _beat(self) -> None:
        """Writes whole frames beside the mode's, so it can fall inside none."""
        while True:
            await asyncio.sleep(self._sent_at + self._heartbeat_seconds - self._loop.time())
            if self._loop.time() < self._sent_at + self._heartbeat_seconds:
                continue
            self._sent_at = self._loop.time()
            if self._connection.writing_paused:
                continue
            stage = Progress(self._stage.stage, self._stage.label, "running", heartbeat=True)
            try:
                self._write(KEEPALIVE + encode(stage))
            except _ReaderGone:
                return

    async def _end(self, frame: bytes) -> None:
        try:
            await self._response.write_eof(frame)
        except ConnectionError as error:
            raise _ReaderGone from error

    def _was_stopped(self) -> bool:
        """Whether a cancellation came from `stop` alone, and not also from a connection that was lost."""
        return self._stopping and self._task is not None and self._task.uncancel() == 0


class _ReaderGone(Exception):
    """The connection is closed. Apart from ConnectionError, because a mode may raise that for its upstream."""


class Stoppable(Protocol):
    def stop(self) -> None: ...


class _Answer:
    """An answer in one piece that is being made: `stop` cancels its task, and says that it was us."""

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self.stopping = False

    def stop(self) -> None:
        self.stopping = True
        if self._task is not None:
            self._task.cancel()

    def was_stopped(self) -> bool:
        """Whether the cancellation came from `stop` alone, and not also from a connection that was lost."""
        return self.stopping and self._task is not None and self._task.uncancel() == 0


@contextmanager
def answering(request: web.Request) -> Iterator[None]:
    """Around the making of an answer in one piece: at the shutdown limit it becomes an error that is still sent."""
    answer = _Answer()
    answers = request.app[OPEN_STREAMS]
    answers.add(answer)
    try:
        yield
    except asyncio.CancelledError:
        if answer.was_stopped():
            raise shutdown_error() from None
        raise
    finally:
        answers.remove(answer)


def shutdown_error() -> CgError:
    return CgError("internal_error", "服务正在停止，本次请求未完成，请稍后重试。", {"reason": "shutdown"})


class OpenStreams:
    """What one application is answering, streams and answers in one piece."""

    def __init__(self) -> None:
        self._streams: set[Stoppable] = set()

    def __len__(self) -> int:
        return len(self._streams)

    def add(self, stream: Stoppable) -> None:
        self._streams.add(stream)

    def remove(self, stream: Stoppable) -> None:
        self._streams.discard(stream)

    def stop(self) -> None:
        for stream in tuple(self._streams):
            stream.stop()


OPEN_STREAMS: web.AppKey[OpenStreams] = web.AppKey("cg_rag.open_streams", OpenStreams)


def follow_streams(app: web.Application, shutdown_timeout_seconds: float) -> None:
    """Let what is still answered shortly before the shutdown time-out end with an error instead of being cut."""
    streams = app[OPEN_STREAMS] = OpenStreams()

    async def stop_in_time(_app: web.Application) -> None:
        margin = min(SHUTDOWN_MARGIN_SECONDS, shutdown_timeout_seconds / 4)
        asyncio.get_running_loop().call_later(shutdown_timeout_seconds - margin, streams.stop)

    app.on_shutdown.append(stop_in_time)
