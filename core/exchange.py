"""One HTTP exchange with an upstream: a body sent, an answer read, every fault an UpstreamError.

Rule: each wait has a name and an end, and what is not read to its end is closed, never put back into the pool. No
redirect is followed (it would carry the body elsewhere) and nothing compressed is read (65 kB can become 64 MiB).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Final, NamedTuple, Self

import aiohttp
from aiohttp import hdrs, payload
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_exceptions import HttpProcessingError

from cg_rag.core.json_parts import EncodedBody
from cg_rag.core.retry import parse_retry_after
from cg_rag.core.upstream_errors import (
    Reason,
    UpstreamBroken,
    UpstreamError,
    UpstreamTimeout,
    UpstreamUnreachable,
    status_error,
)

_WRITE_BYTES: Final = 64 * 1024  # asyncio copies what a socket does not take at once: never more than this
_WRITES_PER_TURN: Final = (
    16  # a peer that takes everything at once would hold the loop for all of a large body
)
_MAX_ERROR_BYTES: Final = 64 * 1024
_ERROR_SECONDS: Final = 2.0  # for the body of an error: the status is known and is what counts
_SETTLE_SECONDS: Final = (
    0.05  # for the last bytes of an answer that is complete, so that its connection is kept
)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds for connecting, for the first byte of the answer once the request is sent, between bytes of the
    answer, and for all of it."""

    connect: float
    first_byte: float
    between_bytes: float
    total: float


class _Limit(NamedTuple):
    at: float
    reason: Reason


class Exchange:
    """`async with Exchange(…) as answer:` sends and waits for the status; then `read` until b"".

    `budget_ends` is a time of the running loop, or infinity. Both raise UpstreamError; a status outside of 2xx is
    one. Leaving before the end, by an exception or by cancellation too, closes the connection at once.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        headers: Mapping[str, str],
        body: EncodedBody,
        timeouts: Timeouts,
        budget_ends: float,
    ) -> None:
        self._session = session
        self._url = url
        self._headers = {**headers, hdrs.ACCEPT_ENCODING: "identity", hdrs.CONTENT_TYPE: "application/json"}
        self._body = body
        self._timeouts = timeouts
        self._loop = asyncio.get_running_loop()
        call_ends = self._loop.time() + timeouts.total
        self._ends = min(_Limit(call_ends, "call_timeout"), _Limit(budget_ends, "budget_spent"))
        self._first_byte_at = math.inf
        self._began = False
        self._response: aiohttp.ClientResponse | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._read_ends: float | None = None  # when the read that goes on has to end
        self._expired: Reason | None = None

    async def __aenter__(self) -> Self:
        self._response = await self._send()
        try:
            await self._check(self._response)
        except BaseException:
            self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        # At its end a response has already given its connection back; before that, this closes it.
        self._stop_watching()
        assert self._response is not None
        self._response.close()

    async def read(self, patience_seconds: float = math.inf) -> bytes:
        """The next bytes of the answer, b"" at its end. `patience_seconds` shortens this wait."""
        assert self._response is not None
        now = self._loop.time()
        byte_ends = now + self._timeouts.between_bytes if self._began else self._first_byte_at
        ends = self._read_ends = min(byte_ends, self._ends.at, now + patience_seconds)
        if self._timer is None or self._timer.when() > ends:
            self._watch(ends)
        try:
            data = await self._response.content.readany()
        except (aiohttp.ClientError, HttpProcessingError, OSError) as error:
            if self._expired is not None:
                raise UpstreamTimeout(self._expired) from None
            raise UpstreamBroken("cut", may_retry=True) from error
        finally:
            self._read_ends = None
        self._began = True
        return data

    # One timer for all reads: asyncio.timeout around each of them costs as much as the reading itself.

    def _watch(self, read_ends: float) -> None:
        self._stop_watching()
        self._timer = self._loop.call_at(read_ends, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._read_ends is None or self._response is None:
            return
        if self._loop.time() < self._read_ends:
            self._watch(self._read_ends)
            return
        self._expired = self._reason_to_stop()
        self._response.close()

    def _reason_to_stop(self) -> Reason:
        if self._loop.time() >= self._ends.at:
            return self._ends.reason
        return "between_bytes_timeout" if self._began else "first_byte_timeout"

    def _stop_watching(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def settle(self) -> None:
        """The answer is complete: take its last bytes if they are there, so that the connection can be kept."""
        try:
            while await self.read(_SETTLE_SECONDS):
                continue
        except UpstreamError:
            return

    async def _send(self) -> aiohttp.ClientResponse:
        content = _SlicesPayload(self._body)
        try:
            async with asyncio.timeout_at(self._ends.at) as waiting:
                content.on_sent = partial(self._wait_for_first_byte, waiting)
                response = await self._post(content)
        except aiohttp.ConnectionTimeoutError as error:
            raise UpstreamTimeout("connect_timeout", may_retry=True) from error
        except TimeoutError:
            raise UpstreamTimeout(self._reason_to_stop()) from None
        # UnicodeError: of the look-up of a host that no name can be; settings refuse those that are known to be none.
        except (aiohttp.ClientError, OSError, UnicodeError) as error:
            raise _translated(error) from error
        finally:
            content.on_sent = None
        self._first_byte_at = min(self._first_byte_at, self._loop.time() + self._timeouts.first_byte)
        return response

    def _wait_for_first_byte(self, waiting: asyncio.Timeout) -> None:
        # The clock starts when the request is out: pictures take their time on a slow line.
        self._first_byte_at = self._loop.time() + self._timeouts.first_byte
        if not waiting.expired():
            waiting.reschedule(min(self._first_byte_at, self._ends.at))

    async def _post(self, content: _SlicesPayload) -> aiohttp.ClientResponse:
        connect = self._timeouts.connect
        return await self._session.post(
            self._url,
            data=content,
            headers=self._headers,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=None, connect=connect, sock_connect=connect),
        )

    async def _check(self, response: aiohttp.ClientResponse) -> None:
        status, headers = response.status, response.headers
        is_plain = all(
            value.strip().lower() in ("", "identity") for value in headers.getall(hdrs.CONTENT_ENCODING, ())
        )
        if not 200 <= status < 300:
            retry_after = parse_retry_after(
                headers.get(hdrs.RETRY_AFTER), headers.get(hdrs.DATE), datetime.now(UTC)
            )
            body = await self._read_error() if is_plain and status >= 400 else b""
            raise status_error(status, body, retry_after)
        if not is_plain:
            raise UpstreamBroken("compressed", status=status)
        if headers.get(hdrs.CONTENT_TYPE, "").lower().startswith(("text/html", "application/xhtml")):
            raise UpstreamBroken("html", status=status)

    async def _read_error(self) -> bytes:
        assert self._response is not None
        body = bytearray()
        ends = self._loop.time() + _ERROR_SECONDS
        try:
            while len(body) < _MAX_ERROR_BYTES and (data := await self.read(ends - self._loop.time())):
                body += data
        except UpstreamError:
            return bytes(body)
        return bytes(body)


class _SlicesPayload(payload.Payload):
    """A body written slice by slice; `on_sent` is called when all of it is out."""

    _autoclose = True

    def __init__(self, body: EncodedBody) -> None:
        super().__init__(body.slices, content_type="application/json")
        self._size = body.length
        self.on_sent: Callable[[], None] | None = None

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return b"".join(self._value).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        await self.write_with_length(writer, None)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        num_writes = 0
        for slice_ in self._value:
            view = memoryview(slice_)
            for start in range(0, len(view), _WRITE_BYTES):
                await writer.write(view[start : start + _WRITE_BYTES])
                num_writes += 1
                if num_writes % _WRITES_PER_TURN == 0:
                    await asyncio.sleep(0)
        if self.on_sent is not None:
            self.on_sent()


def _translated(error: Exception) -> UpstreamError:
    if isinstance(error, (aiohttp.ClientSSLError, aiohttp.ServerFingerprintMismatch)):
        return UpstreamUnreachable("tls_failed")
    if isinstance(error, aiohttp.ClientConnectorError):
        return UpstreamUnreachable("connect_failed", may_retry=True)
    if isinstance(error, UnicodeError):
        return UpstreamUnreachable("connect_failed")
    if isinstance(error, aiohttp.ClientResponseError):
        return UpstreamBroken("malformed")
    return UpstreamUnreachable("disconnected", may_retry=True)
