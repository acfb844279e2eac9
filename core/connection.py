"""The HTTP edge: the deadlines of a connection, malformed HTTP answered in JSON, the runner for both.

Rule: nobody holds a connection for ever. Headers have a deadline, a reader that takes nothing has one, a
closing connection has one; bodies have theirs in core/body.py, idle keep-alive is aiohttp's own.

aiohttp offers no hook for these, so `Connection` touches private names of its RequestHandler; the tests name
each of them and fail when one goes. A request line or a header above aiohttp's 8190 bytes, or more than 128
headers, is malformed.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import hdrs, web
from aiohttp.http import HttpVersion10, HttpVersion11
from aiohttp.http_exceptions import BadStatusLine, HttpProcessingError, InvalidURLError, LineTooLong
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler, _ErrInfo
from multidict import CIMultiDict, CIMultiDictProxy

from cg_rag.core.body import EXPECT
from cg_rag.core.errors import CgError
from cg_rag.core.log import log_event, logger, request_id_var
from cg_rag.core.web import error_response, mint_request_id

KEEPALIVE_SECONDS = 75.0  # longer than the 60 s for which common reverse proxies keep theirs
LINGERING_SECONDS = 10.0  # docs/http.md: what a refused caller still sends is discarded for so long
FORCED_SHUTDOWN_SECONDS = 0.1  # aiohttp waits twice for this once the handlers have had their time
# Where a writer that drains has to wait: 200 streams that nobody reads cost 31 KiB each, with asyncio's 64 KiB 82.
MAX_UNSENT_BYTES = 16 * 1024
# A timer that asks for none needs no copy of its own.
_NO_CONTEXT = contextvars.Context()
_WRITE_CHECKS = 4  # looks per write deadline: a reader is dropped within 1.25 of it
_REQUEST_LINE = re.compile(rb"[A-Z]{3,8}(?: |$)")  # how a request begins that stands behind a whole one
_ACCEPT_ERROR = "socket.accept() out of system resource"
_ACCEPT_LOG_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What a `Connection` is held to, and who is told of malformed requests."""

    header_timeout_seconds: float
    write_timeout_seconds: float
    on_bad_request: Callable[[str], None]


class Connection(RequestHandler):
    """aiohttp's protocol of one connection, with deadlines for headers, for readers and for closing."""

    __slots__ = (
        "_body",
        "_header_timer",
        "_last",
        "_limits",
        "_lowest_buffer",
        "_partial",
        "_socket",
        "_taken_at",
        "_write_timer",
    )

    def __init__(self, manager: web.Server, *, limits: Limits, **kwargs: Any) -> None:
        super().__init__(manager, **kwargs)
        self._limits = limits
        self._header_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        # aiohttp forgets its transport when it closes, unsent bytes or not; this one is kept to the end.
        self._socket: asyncio.Transport | None = None
        self._lowest_buffer = 0
        self._taken_at = 0.0
        self._body: StreamReader | None = None  # of the request that was parsed last
        self._last = False
        self._partial = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._socket = self.transport
        if self._socket is not None:
            self._socket.set_write_buffer_limits(high=MAX_UNSENT_BYTES)
        self._arm_header_timer()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._disarm_header_timer()
        self._disarm_write_timer()
        self._socket = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._messages:
            self._note_body(*self._messages[-1])
            _, end, tail = data.rpartition(b"\r\n\r\n")
            self._partial = bool(end) and _REQUEST_LINE.match(tail) is not None
        if not self._awaits_request():
            self._disarm_header_timer()
        elif data:
            self._arm_header_timer()

    def _note_body(self, message: object, body: StreamReader) -> None:
        # Without this a body whose chunks turn malformed halfway would be awaited until its time-out.
        if not isinstance(message, _ErrInfo):
            self._body = body
        elif self._body is not None and not self._body.is_eof():
            self._body.set_exception(web.RequestPayloadError("malformed body"))

    def _awaits_request(self) -> bool:
        return self._waiter is not None and not self._waiter.done()

    def _arm_header_timer(self) -> None:
        # Armed once per request and not moved by further bytes: a header that drips is late all the same.
        if self._header_timer is None:
            self._header_timer = self._loop.call_later(
                self._limits.header_timeout_seconds, self.force_close, context=_NO_CONTEXT
            )

    def _disarm_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_writes()

    def resume_writing(self) -> None:
        if not self._closes_unsent():
            self._disarm_write_timer()
        super().resume_writing()

    def _closes_unsent(self) -> bool:
        # A closed transport waits without end for its last bytes to be read.
        socket = self._socket
        return socket is not None and socket.is_closing() and socket.get_write_buffer_size() > 0

    def _watch_writes(self) -> None:
        """From here on the transport must get rid of some byte within every write deadline."""
        if self._socket is None or self._write_timer is not None:
            return
        self._lowest_buffer = self._socket.get_write_buffer_size()
        self._taken_at = self._loop.time()
        self._arm_write_timer()

    def _arm_write_timer(self) -> None:
        seconds = self._limits.write_timeout_seconds / _WRITE_CHECKS
        self._write_timer = self._loop.call_later(seconds, self._check_writes)

    def _disarm_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _check_writes(self) -> None:
        self._write_timer = None
        if self._socket is None:
            return
        now, size = self._loop.time(), self._socket.get_write_buffer_size()
        if size < self._lowest_buffer:
            self._lowest_buffer, self._taken_at = size, now
        if now - self._taken_at < self._limits.write_timeout_seconds:
            self._arm_write_timer()
            return
        log_event(logging.WARNING, "reader_dropped", peer=_peer(self._socket), unsent_bytes=size)
        self._socket.abort()

    async def start(self) -> None:
        try:
            await super().start()
        finally:
            if self._closes_unsent():
                self._watch_writes()

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        late = getattr(resp, "status", None) == web.HTTPRequestTimeout.status_code
        # After 408 nothing more is waited for; after a broken chunk nobody knows where the next one begins.
        if late or request.content.exception() is not None:
            self._lingering_time = 0.0
            if isinstance(resp, web.StreamResponse) and not resp.prepared:
                resp.force_close()
            self.close()
        if self._last and isinstance(resp, web.StreamResponse) and not resp.prepared:
            resp.force_close()
        answer = await super().finish_response(request, resp, start_time)
        if self._partial and not self._messages:
            self._arm_header_timer()
        return answer

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The JSON answer for what no middleware saw: malformed HTTP, or an exception that came through."""
        request_id = mint_request_id()
        if isinstance(exc, HttpProcessingError):
            self._report(exc, request_id)
        elif not isinstance(exc, CgError):
            logger.error("internal_error", exc_info=exc or True, extra={"fields": {"request_id": request_id}})
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun, no other can follow it")
        response = error_response(_as_cg_error(exc), request_id)
        response.headers["X-Request-ID"] = request_id
        # aiohttp answers as HTTP/1.0 here, where closing goes without saying; callers read it better than that.
        response.headers["Connection"] = "close"
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kw: Any) -> None:
        # What is still read after an answer can be malformed too; that is the caller's fault, not ours.
        exc = kw.get("exc_info")
        if isinstance(exc, (HttpProcessingError, web.RequestPayloadError, ConnectionError)):
            self._report(exc)
        else:
            logger.error(*args, **kw)

    def _report(self, exc: BaseException, request_id: str = "") -> None:
        # aiohttp's message quotes the bytes it refused; only the name of the fault is safe to log.
        token = request_id_var.set(request_id)
        self._limits.on_bad_request(f"malformed HTTP from {_peer(self._socket)}: {type(exc).__name__}")
        request_id_var.reset(token)

    def end_after_answer(self) -> None:
        """Take no further request; one that is being read or answered is answered to its end."""
        self._last = True
        if self._awaits_request():
            self.close()


class EdgeServer(web.Server):
    """Hands out `Connection`s. `**kwargs` go to every one of them."""

    def __init__(self, inner: web.Server, *, limits: Limits, **kwargs: Any) -> None:
        super().__init__(
            _refuse_other_versions(inner.request_handler),
            request_factory=_hide_expect(inner.request_factory),
            handler_cancellation=True,
            **kwargs,
        )
        self._limits = limits

    def __call__(self) -> RequestHandler:
        return Connection(self, limits=self._limits, loop=self._loop, **self._kwargs)

    def pre_shutdown(self) -> None:
        # aiohttp closes here, and what is left of a body that is under way would never be read.
        for connection in self.connections:
            if isinstance(connection, Connection):
                connection.end_after_answer()

    async def shutdown(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 (aiohttp's signature)
        """Waits once `timeout` seconds for what is being answered; aiohttp alone would wait twice."""
        tasks = [task for connection in self.connections if (task := connection._task_handler) is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)
        await super().shutdown(FORCED_SHUTDOWN_SECONDS)


class EdgeRunner(web.AppRunner):
    """An AppRunner whose server is an `EdgeServer`; made by `make_runner`."""

    def __init__(
        self, app: web.Application, *, limits: Limits, shutdown_timeout: float, **kwargs: Any
    ) -> None:
        super().__init__(app, shutdown_timeout=shutdown_timeout)
        self._limits = limits
        self._connection_kwargs = kwargs

    async def _make_server(self) -> web.Server:
        return EdgeServer(await super()._make_server(), limits=self._limits, **self._connection_kwargs)


def make_runner(
    app: web.Application,
    *,
    header_timeout_seconds: float,
    write_timeout_seconds: float,
    on_bad_request: Callable[[str], None] | None = None,
    shutdown_timeout_seconds: float = 60.0,
    lingering_seconds: float = LINGERING_SECONDS,
) -> web.AppRunner:
    """A runner for `web.TCPSite` (whose backlog of 128 bounds what waits to be accepted).

    Bodies are not decompressed, a handler is cancelled when its caller leaves, and of requests only malformed
    ones are reported: one printable English line each to `on_bad_request`, by default to the log.
    """
    return EdgeRunner(
        app,
        limits=Limits(header_timeout_seconds, write_timeout_seconds, on_bad_request or _log_bad_request),
        shutdown_timeout=shutdown_timeout_seconds,
        access_log=None,
        auto_decompress=False,
        keepalive_timeout=KEEPALIVE_SECONDS,
        lingering_time=lingering_seconds,
    )


def quiet_accept_errors(loop: asyncio.AbstractEventLoop) -> None:
    """Out of file descriptors, asyncio pauses a second but reports once per place in the backlog.

    From here on it is one line in ten seconds; every other report stays as it is.
    """
    silent_until = -math.inf

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal silent_until
        if context.get("message") != _ACCEPT_ERROR:
            loop.default_exception_handler(context)
        elif loop.time() >= silent_until:
            silent_until = loop.time() + _ACCEPT_LOG_SECONDS
            log_event(logging.ERROR, "accept_failed", reason=str(context.get("exception")))

    loop.set_exception_handler(handle)


def _hide_expect(factory: Callable[..., web.BaseRequest]) -> Callable[..., web.BaseRequest]:
    # aiohttp answers `100 Continue` before any middleware has asked for a key, and an unknown Expect with
    # plain text. Hidden from it, the header is judged and answered by core/body.py.
    def make(message: Any, *args: Any) -> web.BaseRequest:
        expect = message.headers.get(hdrs.EXPECT)
        if expect is None:
            return factory(message, *args)
        headers = CIMultiDict(message.headers)
        headers.popall(hdrs.EXPECT)
        request = factory(message._replace(headers=CIMultiDictProxy(headers)), *args)
        request[EXPECT] = expect
        return request

    return make


def _refuse_other_versions(
    handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
) -> Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]:
    # aiohttp answers HTTP/0.9 and HTTP/2.0 request lines as if they were HTTP/1.1.
    def handle(request: web.BaseRequest) -> Awaitable[web.StreamResponse]:
        if request.version not in (HttpVersion10, HttpVersion11):
            raise BadStatusLine
        return handler(request)

    return handle


def _as_cg_error(exc: BaseException | None) -> CgError:
    if isinstance(exc, CgError):
        return exc
    if isinstance(exc, LineTooLong):
        return CgError("invalid_request", "请求行或请求头过长，每行不得超过 8190 字节。")
    if isinstance(exc, InvalidURLError):
        return CgError("invalid_request", "请求的 URL 不合法。")
    if isinstance(exc, HttpProcessingError):
        return CgError("invalid_request", "请求不是合法的 HTTP/1.1 报文。")
    return CgError("internal_error")


def _log_bad_request(line: str) -> None:
    log_event(logging.INFO, "bad_request", reason=line)


def _peer(transport: asyncio.BaseTransport | None) -> str:
    name = transport.get_extra_info("peername") if transport is not None else None
    return str(name[0]) if isinstance(name, tuple) else "unknown"
