"""Vectors from an OpenAI-compatible embeddings endpoint: an async client, and the same for threads without a loop.

Rule: an answer is taken whole or not at all. Each text has exactly one vector, all have one length, and every number is
finite as float32; whatever else comes is an UpstreamError.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import logging
import math
import random
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from types import TracebackType
from typing import Any, Final, Protocol, Self
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import orjson
from pydantic import SecretStr

from cg_rag.core.exchange import Exchange, Timeouts
from cg_rag.core.json_parts import EncodedBody, encode_body
from cg_rag.core.log import log_event, request_id_var
from cg_rag.core.retry import BACKOFF_SECONDS, wait_seconds
from cg_rag.core.setting_types import is_endpoint
from cg_rag.core.upstream_errors import UpstreamBroken, UpstreamError, UpstreamUnreachable, stream_error

MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
# JSON can take twenty times its bytes once parsed, so few texts get little room: 8192 numbers of 64 bytes a text.
_BYTES_PER_TEXT: Final = 512 * 1024
_SPARE_BYTES: Final = 1024 * 1024
_MAX_FLOAT32: Final = 3.4028234663852886e38  # IEEE 754; beyond it a float32 is infinite
_CLOSE_SECONDS: Final = 5.0  # for saying goodbye on connections that nobody uses any more


@dataclass(frozen=True, slots=True)
class EmbeddingsSettings:
    """Where the model is and how it is called. Times are seconds; `timeout_seconds` bounds a call with all of its
    attempts and the waits between them.

    `endpoint` is the base URL (`…/v1`), or the whole one when it ends in /embeddings. Raises ValueError for an
    endpoint that is none and for a key that no header can carry.
    """

    endpoint: str
    model: str
    api_key: SecretStr = field(default_factory=lambda: SecretStr(""))
    timeout_seconds: float = 30.0
    connect_timeout_seconds: float = 10.0
    max_attempts: int = 3
    backoff_seconds: float = BACKOFF_SECONDS
    proxy_from_environment: bool = False

    def __post_init__(self) -> None:
        if not is_endpoint(self.endpoint):
            raise ValueError("endpoint is no http(s) URL without user, query and fragment")
        key = self.api_key.get_secret_value()
        if not (key.isascii() and key.isprintable()):
            raise ValueError("api_key is not printable ASCII")


def open_embeddings_session(settings: EmbeddingsSettings) -> aiohttp.ClientSession:
    """The session of one endpoint, to be closed by whoever opened it. Certificates are verified; a proxy is taken
    from the environment only with `proxy_from_environment`."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),  # callers bound how much goes on at once
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        # Not aiohttp's trust_env, which reads keys for the host from ~/.netrc as well.
        proxy=_proxy_for(settings.endpoint) if settings.proxy_from_environment else None,
        headers={"User-Agent": "cg-rag"},
    )


class EmbeddingsClient:
    """One model at one endpoint, for use in the loop of `session`."""

    def __init__(self, settings: EmbeddingsSettings, session: aiohttp.ClientSession) -> None:
        self._settings = settings
        self._session = session
        base = settings.endpoint.rstrip("/")
        self._url = base if base.endswith("/embeddings") else f"{base}/embeddings"

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector per text, in their order, as the model made it. No text, no request. Raises UpstreamError.

        A lone surrogate, which JSON cannot carry, is sent as "?".
        """
        if not texts:
            return []
        body = self._encode(texts)
        ends = asyncio.get_running_loop().time() + self._settings.timeout_seconds
        for attempt in count(1):
            try:
                return parse_vectors(await self._ask(body, ends, max_answer_bytes(len(texts))), len(texts))
            except UpstreamError as failure:
                await self._recover(self._blamed(failure, attempt), ends)
        raise AssertionError("attempts end by returning or raising")

    def _encode(self, texts: Sequence[str]) -> EncodedBody:
        sent = [text.encode("utf-8", "replace").decode() for text in texts]
        return encode_body({"model": self._settings.model, "input": sent, "encoding_format": "float"})

    async def _ask(self, body: EncodedBody, ends: float, max_bytes: int) -> bytes:
        answer = bytearray()
        try:
            async with self._exchange(body, ends) as exchange:
                while data := await exchange.read():
                    answer += data
                    if len(answer) > max_bytes:
                        raise UpstreamBroken("too_large")
        except UnicodeError:  # from the look-up of a host with a part above 63 letters
            raise UpstreamUnreachable("connect_failed") from None
        return bytes(answer)

    def _exchange(self, body: EncodedBody, ends: float) -> Exchange:
        left = ends - asyncio.get_running_loop().time()
        # Nothing comes before all of the vectors are made, so the whole is the only wait that has a known length.
        timeouts = Timeouts(
            connect=self._settings.connect_timeout_seconds,
            first_byte=math.inf,
            between_bytes=math.inf,
            total=left,
        )
        return Exchange(self._session, self._url, self._headers(), body, timeouts, math.inf)

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json"}
        key = self._settings.api_key.get_secret_value()
        if key:
            headers["Authorization"] = f"Bearer {key}"
        request_id = request_id_var.get()
        if request_id:
            headers["X-Request-ID"] = request_id
        return headers

    def _blamed(self, failure: UpstreamError, attempts: int) -> UpstreamError:
        failure.attempts = attempts
        # A server may call its failure by the key that it was sent.
        if failure.code and failure.code in self._settings.api_key.get_secret_value():
            failure.code = ""
        # A traceback shows the cause, and aiohttp's quote the host and the bytes that it could not read.
        failure.__cause__ = failure.__context__ = None
        return failure

    async def _recover(self, failure: UpstreamError, ends: float) -> None:
        """Returns when another attempt may begin; raises `failure` when there is to be none."""
        if not failure.may_retry or failure.attempts >= self._settings.max_attempts:
            raise failure
        base = self._settings.backoff_seconds
        wait = wait_seconds(failure.attempts, failure.retry_after_seconds, random.random(), base)
        if asyncio.get_running_loop().time() + wait >= ends:
            raise failure
        log_event(logging.DEBUG, "upstream_retry", reason=failure.reason, status=failure.status)
        await asyncio.sleep(wait)


class Stopper(Protocol):
    """A cancel token: within `watch`, cancelling sets `terminate` of what it was handed."""

    def watch(self, running: Any) -> AbstractContextManager[None]: ...


class _Request:
    """What a cancel token stops: setting `terminate` cancels the call."""

    def __init__(self, call: concurrent.futures.Future[list[list[float]]]) -> None:
        self._call = call

    def __setattr__(self, name: str, value: object) -> None:
        if name == "terminate" and value:
            self._call.cancel()
        else:
            object.__setattr__(self, name, value)


class BlockingEmbeddings:
    """`EmbeddingsClient` as a function for many threads at once, with a loop and a session of its own.

    The loop runs in a daemon thread from the first call on. Never call it from a thread whose own loop has to go on:
    it blocks. `close()`, `with` or the end of the program ends the thread; calls that go on then fail.
    """

    def __init__(self, settings: EmbeddingsSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()  # what is submitted after the end would be waited for for ever
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._session: aiohttp.ClientSession | None = None
        self._is_closed = False

    def __call__(self, texts: list[str], token: Stopper | None = None) -> list[list[float]]:
        """What `EmbeddingsClient.embed` gives and raises; an UpstreamUnreachable once closed.

        The request id of the calling context goes along. KeyboardInterrupt and the like, raised in the waiting
        thread, cancel the request; so does `token`, from any thread.
        """
        if not texts:
            return []
        call = self._submit(texts)
        try:
            with token.watch(_Request(call)) if token is not None else nullcontext():
                return call.result()
        except concurrent.futures.CancelledError:
            raise UpstreamUnreachable("disconnected") from None
        except BaseException:
            call.cancel()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancels what goes on, closes the session, ends the thread. May be called twice and from any thread but
        not from within a call; takes milliseconds, five seconds at most."""
        with self._lock:
            self._is_closed = True
            loop, self._loop = self._loop, None
            if loop is None:
                return
            ending = asyncio.run_coroutine_threadsafe(self._end(), loop)
        atexit.unregister(self.close)
        concurrent.futures.wait([ending], timeout=_CLOSE_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        assert self._thread is not None
        self._thread.join(_CLOSE_SECONDS)
        # Look-ups of names that hang are left behind; waiting for them is what asyncio.run would do here.
        if not self._thread.is_alive():
            loop.close()

    def _submit(self, texts: list[str]) -> concurrent.futures.Future[list[list[float]]]:
        with self._lock:
            if self._is_closed:
                raise UpstreamUnreachable("disconnected")
            if self._loop is None:
                self._loop = self._start()
            return asyncio.run_coroutine_threadsafe(self._embed(texts), self._loop)

    def _start(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="embeddings", daemon=True)
        self._thread.start()
        atexit.register(self.close)
        return loop

    # Below here everything runs in the thread.

    async def _embed(self, texts: list[str]) -> list[list[float]]:
        if self._session is None:
            self._session = open_embeddings_session(self._settings)
        return await EmbeddingsClient(self._settings, self._session).embed(texts)

    async def _end(self) -> None:
        calls = asyncio.all_tasks() - {asyncio.current_task()}
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        if self._session is not None:
            await self._session.close()


def max_answer_bytes(num_texts: int) -> int:
    """How many bytes of an answer to so many texts are read."""
    return min(MAX_ANSWER_BYTES, _SPARE_BYTES + num_texts * _BYTES_PER_TEXT)


def parse_vectors(answer: bytes, num_texts: int) -> list[list[float]]:
    """The vectors of `{"data": [{"index", "embedding"}, …]}` by their index, whatever order they come in.

    Raises UpstreamBroken("malformed") unless there is exactly one for each index below `num_texts`, all of one length
    and of numbers that a float32 can hold, and what `stream_error` says for an error object.
    """
    try:
        told = orjson.loads(answer)
    except orjson.JSONDecodeError:
        raise UpstreamBroken("malformed") from None  # the cause holds the answer
    if not isinstance(told, dict):
        raise UpstreamBroken("malformed")
    if told.get("error"):
        raise stream_error(told["error"])
    vectors = _by_index(told.get("data"), num_texts)
    if len({len(vector) for vector in vectors}) != 1:
        raise UpstreamBroken("malformed")
    return vectors


def _by_index(data: Any, num_texts: int) -> list[list[float]]:
    if not isinstance(data, list) or len(data) != num_texts:
        raise UpstreamBroken("malformed")
    found = dict(_indexed(entry) for entry in data)
    if found.keys() != set(range(num_texts)):
        raise UpstreamBroken("malformed")
    return [found[index] for index in range(num_texts)]


def _indexed(entry: Any) -> tuple[int, list[float]]:
    if not isinstance(entry, dict):
        raise UpstreamBroken("malformed")
    index, numbers = entry.get("index"), entry.get("embedding")
    # `type`, not isinstance: true is no number here.
    if type(index) is not int or not isinstance(numbers, list) or not numbers:
        raise UpstreamBroken("malformed")
    if not set(map(type, numbers)) <= {int, float}:
        raise UpstreamBroken("malformed")
    if not all(map(math.isfinite, numbers)) or max(map(abs, numbers)) > _MAX_FLOAT32:
        raise UpstreamBroken("malformed")
    return index, list(map(float, numbers))


def _proxy_for(endpoint: str) -> str | None:
    url = urlsplit(endpoint)
    proxy = getproxies().get(url.scheme)
    is_http = proxy is not None and proxy.startswith(("http://", "https://"))
    return proxy if is_http and not proxy_bypass(url.hostname or "") else None
