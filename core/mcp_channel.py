"""How the answer to one MCP request goes out: in one piece, or as an event stream with pings and progress. No SDK.

Rule: it is JSON when it is ready before anything had to be told, else a stream; who takes JSON alone gets JSON alone. What
nobody reads is not piled up.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Mapping
from typing import Any

import orjson
from aiohttp import web

from cg_rag.core.json_rpc import accepts, frame
from cg_rag.core.sse_stream import CLIENT_GONE, SSE_HEADERS, STREAM_CODE, end_with_connection
from cg_rag.core.web import SLICE_BYTES, json_response

PING_SECONDS = 15.0
PROGRESS_SECONDS = 10.0  # well inside the 60 s after which common clients give up
MAX_UNSENT_MESSAGES = 16
# A callback that asks for none needs no copy of its own.
_NO_CONTEXT = contextvars.Context()
_PING = b": ping\n\n"


class Channel:
    """Of one request. `token` is the progress token that its client gave, None for none."""

    # One per call: what a call keeps while it waits is what thousands at once keep.
    __slots__ = (
        "_headers",
        "_label",
        "_loop",
        "_num_progress",
        "_ping_seconds",
        "_progress_seconds",
        "_request",
        "_sent_at",
        "_stream",
        "_takes_events",
        "_token",
        "_told_at",
        "_turn",
        "_unsent",
    )

    def __init__(
        self,
        request: web.Request,
        token: str | int | None,
        headers: Mapping[str, str],
        ping_seconds: float,
        progress_seconds: float,
    ) -> None:
        self._request = request
        self._headers = headers
        self._ping_seconds = ping_seconds
        self._progress_seconds = progress_seconds
        self._takes_events = accepts(request, "text/event-stream")
        self._token = token if self._takes_events else None
        self._num_progress = 0
        self._label = "正在处理"
        self._unsent: tuple[bytes, ...] = ()
        self._stream: web.StreamResponse | None = None
        self._turn: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._told_at = self._sent_at = self._loop.time()

    def report(self, label: str) -> None:
        """A progress notification, when the client asked for them; of those not sent yet the oldest give way."""
        self._label = label
        self._told_at = self._loop.time()
        if self._token is None:
            return
        self._num_progress += 1
        params = {"progressToken": self._token, "progress": self._num_progress, "message": label}
        self.queue({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})

    def queue(self, message: Mapping[str, Any]) -> None:
        """A message of ours, to be sent before the answer; dropped for a client that takes no stream."""
        if self._takes_events:
            self._unsent = (*self._unsent[1 - MAX_UNSENT_MESSAGES :], frame(orjson.dumps(message)))
            self._wake()

    async def follow(self, work: asyncio.Task[Any]) -> None:
        """Sends what there is to be sent until `work` is done. Raises ConnectionError when nobody is there any more."""
        work.add_done_callback(self._wake, context=_NO_CONTEXT)
        while not work.done():
            # Until there is something to send, or the work is done, or it is time to show that we are alive.
            if not self._unsent:
                self._turn = self._loop.create_future()
                timer = self._set_timer()
                try:
                    await self._turn
                finally:
                    if timer is not None:
                        timer.cancel()
            if not work.done() and self._takes_events:
                await self._tell()

    async def send(self, body: bytes, status: int, code: str) -> web.StreamResponse:
        """The answer itself, which is JSON already; `status` counts where no stream has begun, `code` is for the log
        line. Raises ConnectionError."""
        if self._stream is None and not self._wants_events():
            self._request[STREAM_CODE] = code
            response = json_response(body, status)
            response.headers.update(self._headers)
            return response
        await self._send_unsent()
        await self._send(frame(body))
        assert self._stream is not None
        await self._stream.write_eof()
        self._request[STREAM_CODE] = code
        return self._stream

    def abandoned(self) -> web.StreamResponse:
        """What is left to return when the client has gone."""
        self._request[STREAM_CODE] = CLIENT_GONE
        return self._stream or web.Response(status=499)

    def _set_timer(self) -> asyncio.TimerHandle | None:
        if not self._takes_events:
            return None
        beat = self._sent_at + self._ping_seconds
        if self._token is not None:
            beat = min(beat, self._told_at + self._progress_seconds)
        return self._loop.call_at(beat, self._wake, context=_NO_CONTEXT)

    def _wake(self, _work: object = None) -> None:
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)

    async def _tell(self) -> None:
        if self._token is not None and self._loop.time() >= self._told_at + self._progress_seconds:
            self.report(self._label)
        await self._send_unsent()
        if self._loop.time() >= self._sent_at + self._ping_seconds:
            await self._send(_PING)

    async def _send_unsent(self) -> None:
        while self._unsent:
            first, *rest = self._unsent
            self._unsent = tuple(rest)
            await self._send(first)

    async def _send(self, data: bytes) -> None:
        if self._stream is None:
            self._request[STREAM_CODE] = CLIENT_GONE  # until it has ended well
            self._stream = web.StreamResponse(headers=SSE_HEADERS | dict(self._headers))
            end_with_connection(self._stream, self._request)
            await self._stream.prepare(self._request)
        for start in range(0, len(data), SLICE_BYTES):
            await self._stream.write(data[start : start + SLICE_BYTES])
        self._sent_at = self._loop.time()

    def _wants_events(self) -> bool:
        """Whether the client takes nothing else; one that takes JSON gets JSON where there is a choice."""
        return self._takes_events and not accepts(self._request, "application/json")
