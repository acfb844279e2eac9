"""The aiohttp application: routes made from the modes, the edge around them, the index followed in the background.

A request passes from top to bottom: edge (id, key, error body, log line: core/web.py), declared size and type, body,
fields, mode. The order of checks is contract; docs/http.md lists it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from aiohttp import hdrs, web

from cg_rag.core.body import check_declared, read_json_object
from cg_rag.core.console import load_page
from cg_rag.core.events import drain
from cg_rag.core.json_rpc import refuse_entry
from cg_rag.core.log import log_event, logger
from cg_rag.core.memory import give_back, loading
from cg_rag.core.metrics import Metrics
from cg_rag.core.openapi import Route, build_openapi
from cg_rag.core.shared_counts import NOTE_SECONDS
from cg_rag.core.sse_stream import answer_stream, answering, follow_streams
from cg_rag.core.vision_settings import max_photo_body_bytes
from cg_rag.core.web import (
    BASE_PATH,
    KEY_NAME,
    OPEN_PATHS,
    REQUEST_ID,
    encode_json,
    json_response,
    make_edge,
)
from cg_rag.modes import MODES, STREAMS, Mode, max_body_bytes, start
from cg_rag.modes.answers import ANSWERS, STREAM_EVENTS
from cg_rag.modes.health import health, profiles, ready
from cg_rag.modes.mcp_tools import INSTRUCTIONS, make_tools
from cg_rag.modes.metrics import readings
from cg_rag.modes.services import Services

if TYPE_CHECKING:
    from cg_rag.core.mcp_http import McpEndpoint

# Larger answers take room among the bodies in flight; what twenty ordinary articles need stays far below.
LARGE_ANSWER_BYTES = 256 * 1024

# So many bytes of bodies leave memory behind that is worth giving back: pictures, not questions.
LARGE_BODY_BYTES = 1024 * 1024

# What reading and checking a body can fail with, on every POST route.
BODY_CODES = (
    "invalid_request",
    "request_timeout",
    "payload_too_large",
    "unsupported_media_type",
    "capacity.exceeded",
)

# Both answer, and neither sends the caller to the other: clients do not follow a redirect of a POST.
MCP_PATHS = ("/mcp", "/mcp/")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Get(NamedTuple):
    """A route without a body."""

    path: str
    summary: str
    handler: Handler
    codes: tuple[str, ...] = ()
    media_type: str = "application/json"


def build_app(
    services: Services,
    version: str,
    modes: Mapping[str, Mode] = MODES,
    streams: Sequence[str] = STREAMS,
) -> web.Application:
    """The whole application. Opens nothing before it is started."""
    keys = services.settings.server.api_keys
    started_at = time.monotonic()
    metrics = Metrics(lambda: readings(services, version), services.worker)
    gets = make_gets(services, version, started_at, metrics)
    routes = make_routes(gets, modes, streams)

    @cache
    def openapi() -> bytes:
        scopes = {"scope": list(services.settings.profiles)}
        return encode_json(build_openapi(routes, BASE_PATH, version, bool(keys), scopes))

    async def get_openapi(_request: web.Request) -> web.Response:
        # Made when it is first wanted, in a thread: it takes 60 ms, which no start should wait for.
        return json_response(await asyncio.to_thread(openapi))

    app = web.Application(middlewares=[make_edge(keys, metrics, services.settings.log.contents)])
    if services.settings.mcp.enabled:
        _add_mcp(app, services, version, started_at)
    for get in gets:
        app.router.add_get(BASE_PATH + get.path, get.handler, allow_head=False)
    app.router.add_get(f"{BASE_PATH}/openapi.json", get_openapi, allow_head=False)
    for path, mode in modes.items():
        app.router.add_post(BASE_PATH + path, _json_handler(mode, services))
    for path in streams:
        app.router.add_post(f"{BASE_PATH}{path}/stream", _stream_handler(modes[path], services))
    follow_streams(app, services.settings.server.shutdown_timeout_seconds)
    app.cleanup_ctx.append(_following_index(services))
    if metrics.is_shared:
        app.cleanup_ctx.append(_noting(metrics))
    return app


def make_routes(gets: Sequence[Get], modes: Mapping[str, Mode], streams: Sequence[str]) -> list[Route]:
    """What openapi.json describes."""
    routes = [
        Route(
            get.path,
            "GET",
            get.summary,
            get.codes,
            open=BASE_PATH + get.path in OPEN_PATHS,
            answer=ANSWERS.get(get.path),
            media_type=get.media_type,
        )
        for get in gets
    ]
    for path, mode in modes.items():
        codes = BODY_CODES + mode.CODES
        answer = ANSWERS.get(path)
        routes.append(Route(path, "POST", mode.SUMMARY, codes, mode.Request, answer=answer))
        if path in streams:
            events = STREAM_EVENTS[path]
            routes.append(
                Route(
                    f"{path}/stream", "POST", mode.SUMMARY, codes, mode.Request, answer=answer, events=events
                )
            )
    return [*routes, Route("/openapi.json", "GET", "本文档", answer=ANSWERS["/openapi.json"])]


def make_gets(services: Services, version: str, started_at: float, metrics: Metrics) -> list[Get]:
    """The routes without a body, openapi.json aside, which is made from all of them."""
    keys = services.settings.server.api_keys

    def may_count(request: web.Request) -> bool:
        return not keys or KEY_NAME in request

    async def get_health(request: web.Request) -> web.Response:
        return json_response(encode_json(health(services, version, started_at, may_count(request))))

    async def get_ready(request: web.Request) -> web.Response:
        return json_response(encode_json(ready(services, may_count(request))))

    async def get_profiles(_request: web.Request) -> web.Response:
        return json_response(encode_json(profiles(services)))

    async def get_metrics(request: web.Request) -> web.Response:
        accept = request.headers.get(hdrs.ACCEPT, "")
        metrics.note()
        if metrics.is_shared:
            body, content_type = await asyncio.to_thread(metrics.render, accept)
        else:
            body, content_type = metrics.render(accept)
        headers = {hdrs.CONTENT_TYPE: content_type, hdrs.CACHE_CONTROL: "no-store"}
        return web.Response(body=body, headers=headers)

    page = load_page()

    async def get_console(_request: web.Request) -> web.Response:
        return web.Response(body=page.body, content_type="text/html", charset="utf-8", headers=page.headers)

    return [
        Get("/console", "浏览器中的控制台", get_console, media_type="text/html"),
        Get("/health", "运行状态", get_health),
        Get("/ready", "缺省检索范围是否可用", get_ready, ("index.not_ready",)),
        Get("/profiles", "可用检索范围", get_profiles),
        Get("/metrics", "供 Prometheus 抓取的指标", get_metrics, media_type="text/plain"),
    ]


def _add_mcp(app: web.Application, services: Services, version: str, started_at: float) -> None:
    def make_endpoint() -> McpEndpoint:
        from cg_rag.core.mcp_http import McpEndpoint, McpOptions

        tools = make_tools(services, lambda: health(services, version, started_at, with_counts=True))
        options = McpOptions(
            version=version,
            instructions=INSTRUCTIONS,
            allowed_origins=services.settings.mcp.allowed_origins,
            answer_bytes=services.body_bytes,
            large_answer_bytes=LARGE_ANSWER_BYTES,
            link=services.worker.link,
        )
        max_bytes = max_photo_body_bytes(services.settings)
        return McpEndpoint(tools, lambda request: _read_body(request, max_bytes, services), options)

    mcp = _McpOnDemand(make_endpoint, services.settings.mcp.allowed_origins)
    if services.worker.link is not None:
        # A call and its cancellation may reach two workers: each has to know at once whether the call is its own.
        mcp.make()
    for path in MCP_PATHS:
        app.router.add_route("*", BASE_PATH + path, mcp.handle)


class _McpOnDemand:
    """The MCP endpoint, made when it is first asked for: its SDK takes a second to import, and 30 MB, which a service
    that nobody asks over MCP need not pay. Whoever asks meanwhile waits for the same import."""

    def __init__(self, make_endpoint: Callable[[], McpEndpoint], allowed_origins: Collection[str]) -> None:
        self._make_endpoint = make_endpoint
        self._allowed_origins = allowed_origins
        self._endpoint: McpEndpoint | None = None
        self._making: asyncio.Task[McpEndpoint] | None = None

    def make(self) -> McpEndpoint:
        """At once. It blocks for a second."""
        with loading():
            self._endpoint = self._make_endpoint()
        return self._endpoint

    async def handle(self, request: web.Request) -> web.StreamResponse:
        endpoint = self._endpoint
        if endpoint is None:
            # What is refused for these needs no SDK; pages of other sites and scanners do not bring it in.
            refusal = refuse_entry(request, self._allowed_origins)
            if refusal is not None:
                return refusal
            endpoint = await self._made()
        return await endpoint.handle(request)

    async def _made(self) -> McpEndpoint:
        if self._making is None:
            self._making = asyncio.create_task(asyncio.to_thread(self.make))
            self._making.add_done_callback(self._forget_failure)
        # A client that leaves does not end it for those who stay.
        return await asyncio.shield(self._making)

    def _forget_failure(self, making: asyncio.Task[McpEndpoint]) -> None:
        """What failed is tried again by the next one who asks."""
        if making.cancelled() or making.exception() is not None:
            self._making = None


def _json_handler(mode: Mode, services: Services) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        with answering(request):
            body = await _read_body(request, max_body_bytes(mode, services.settings), services)
            answer = encode_json(await drain(start(mode, body, services, request[REQUEST_ID])))
        if len(answer) > LARGE_ANSWER_BYTES:
            # An answer that nobody reads stays in memory until the write deadline, like a body nobody finishes.
            lease = await services.body_bytes.take(min(len(answer), services.body_bytes.max_units))
            lease.release_with_task()
        return json_response(answer)

    return handler


def running_beside(
    work: Callable[[Callable[[], bool]], None],
) -> Callable[[web.Application], AsyncIterator[None]]:
    """Run `work` in a thread while the application serves; what it raises is logged, and the service goes on."""

    def run(should_stop: Callable[[], bool]) -> None:
        try:
            work(should_stop)
        except Exception:
            logger.exception("background_work_failed")

    async def context(_app: web.Application) -> AsyncIterator[None]:
        stopping = threading.Event()
        task = asyncio.create_task(asyncio.to_thread(run, stopping.is_set))
        yield
        stopping.set()
        await task

    return context


def _stream_handler(mode: Mode, services: Services) -> Handler:
    """The same work, event by event; from the JSON on every failure is an `error` event under HTTP 200."""

    async def handler(request: web.Request) -> web.StreamResponse:
        # Judged apart: an unknown Expect is `invalid_request` too, and is decided before any JSON.
        max_bytes = max_body_bytes(mode, services.settings)
        check_declared(request, max_bytes)
        return await answer_stream(
            request,
            read=lambda: _read_body(request, max_bytes, services),
            start=lambda body: start(mode, body, services, request[REQUEST_ID]),
            heartbeat_seconds=services.settings.vision.sse_heartbeat_seconds,
            request_id=request[REQUEST_ID],
        )

    return handler


async def _read_body(request: web.Request, max_bytes: int, services: Services) -> dict[str, Any]:
    return await read_json_object(
        request,
        max_bytes=max_bytes,
        inflight=services.body_bytes,
        idle_timeout_seconds=services.settings.server.body_idle_timeout_seconds,
    )


def _noting(metrics: Metrics) -> Callable[[web.Application], AsyncIterator[None]]:
    """Write down what stands, for the other workers' answers to /metrics."""

    async def note() -> None:
        while True:
            metrics.note()
            await asyncio.sleep(NOTE_SECONDS)

    async def context(_app: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(note())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    return context


def _following_index(services: Services) -> Callable[[web.Application], AsyncIterator[None]]:
    """Open the index in the background, and look again every `index.poll_seconds` for a newer one."""

    async def context(_app: web.Application) -> AsyncIterator[None]:
        stopping = threading.Event()
        task = asyncio.create_task(_follow_index(services, stopping))
        yield
        stopping.set()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await services.close()
        services.library.close()
        services.threads.shutdown(wait=False, cancel_futures=True)

    return context


async def _follow_index(services: Services, stopping: threading.Event) -> None:
    poll_seconds = services.settings.index.poll_seconds
    seen = tidied = (-1, -1)
    while True:
        try:
            refresh = await asyncio.to_thread(services.library.refresh, stopping.is_set)
        except Exception:
            # The watcher must outlive whatever one look meets; the index in use goes on answering.
            logger.exception("index_refresh_failed")
            refresh = None
        if refresh is not None:
            outcome = refresh.outcome
            for fault in outcome.faults:
                log_event(logging.ERROR, "index_fault", fault=fault)
            event = "index_loaded" if refresh.adopted else "index_refused"
            fingerprint = outcome.reader.fingerprint if outcome.reader else ""
            log_event(
                logging.INFO, event, state=outcome.state, fingerprint=fingerprint, kernel=outcome.kernel
            )
        # Nobody searches: quiet enough to tidy up after those before, and once more when nobody has asked between two
        # looks, for then the last answers have been sent. Answers from the cache count, too: what thousands of them at
        # once took lies in the allocator as well.
        cache = services.retrieval_cache
        done = (cache.hits + cache.misses, services.body_bytes.num_returned // LARGE_BODY_BYTES)
        if refresh is not None or (tidied != done and not services.retrieval_slots.in_use):
            await asyncio.to_thread(give_back)
            if done == seen:
                tidied = done
        seen = done
        if not poll_seconds:
            return
        await asyncio.sleep(poll_seconds)
