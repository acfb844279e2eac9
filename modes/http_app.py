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
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

from aiohttp import web

from cg_rag.core.body import check_declared, read_json_object
from cg_rag.core.events import drain
from cg_rag.core.log import log_event, logger
from cg_rag.core.memory import give_back
from cg_rag.core.openapi import Route, build_openapi
from cg_rag.core.requests import parse_request
from cg_rag.core.sse_stream import answer_stream, answering, follow_streams
from cg_rag.core.web import (
    BASE_PATH,
    KEY_NAME,
    OPEN_PATHS,
    REQUEST_ID,
    encode_json,
    json_response,
    make_edge,
)
from cg_rag.modes import MODES, STREAMS, Mode
from cg_rag.modes.health import health, profiles, ready
from cg_rag.modes.services import Services

MAX_JSON_BODY_BYTES = 2 * 1024 * 1024
# Larger answers take room among the bodies in flight; what twenty ordinary articles need stays far below.
LARGE_ANSWER_BYTES = 256 * 1024

# What reading and checking a body can fail with, on every POST route.
BODY_CODES = (
    "invalid_request",
    "request_timeout",
    "payload_too_large",
    "unsupported_media_type",
    "capacity.exceeded",
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Get(NamedTuple):
    """A route without a body."""

    path: str
    summary: str
    handler: Handler
    codes: tuple[str, ...] = ()


def build_app(services: Services, version: str) -> web.Application:
    """The whole application. Opens nothing before it is started."""
    keys = services.settings.server.api_keys
    gets = _gets(services, version)
    routes = [
        Route(get.path, "GET", get.summary, get.codes, open=BASE_PATH + get.path in OPEN_PATHS)
        for get in gets
    ]
    routes += [
        Route(path, "POST", mode.SUMMARY, BODY_CODES + mode.CODES, mode.Request)
        for path, mode in MODES.items()
    ]
    routes += [
        Route(
            f"{path}/stream",
            "POST",
            MODES[path].SUMMARY,
            BODY_CODES + MODES[path].CODES,
            MODES[path].Request,
            streams=True,
        )
        for path in STREAMS
    ]
    routes.append(Route("/openapi.json", "GET", "本文档"))
    openapi = encode_json(build_openapi(routes, BASE_PATH, version, with_keys=bool(keys)))

    async def get_openapi(_request: web.Request) -> web.Response:
        return json_response(openapi)

    app = web.Application(middlewares=[make_edge(keys)])
    for get in gets:
        app.router.add_get(BASE_PATH + get.path, get.handler, allow_head=False)
    app.router.add_get(f"{BASE_PATH}/openapi.json", get_openapi, allow_head=False)
    for path, mode in MODES.items():
        app.router.add_post(BASE_PATH + path, _json_handler(mode, services))
    for path in STREAMS:
        app.router.add_post(f"{BASE_PATH}{path}/stream", _stream_handler(MODES[path], services))
    follow_streams(app, services.settings.server.shutdown_timeout_seconds)
    app.cleanup_ctx.append(_following_index(services))
    return app


def _gets(services: Services, version: str) -> list[Get]:
    keys = services.settings.server.api_keys
    started_at = time.monotonic()

    def may_count(request: web.Request) -> bool:
        return not keys or KEY_NAME in request

    async def get_health(request: web.Request) -> web.Response:
        return json_response(encode_json(health(services, version, started_at, may_count(request))))

    async def get_ready(request: web.Request) -> web.Response:
        return json_response(encode_json(ready(services, may_count(request))))

    async def get_profiles(_request: web.Request) -> web.Response:
        return json_response(encode_json(profiles(services)))

    return [
        Get("/health", "运行状态", get_health),
        Get("/ready", "缺省检索范围是否可用", get_ready, ("index.not_ready",)),
        Get("/profiles", "可用检索范围", get_profiles),
    ]


def _json_handler(mode: Mode, services: Services) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        with answering(request):
            fields = parse_request(mode.Request, await _read_body(request, services))
            answer = encode_json(await drain(mode.run(fields, services, request[REQUEST_ID])))
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
        check_declared(request, MAX_JSON_BODY_BYTES)
        return await answer_stream(
            request,
            read=lambda: _read_body(request, services),
            start=lambda body: mode.run(parse_request(mode.Request, body), services, request[REQUEST_ID]),
            heartbeat_seconds=services.settings.vision.sse_heartbeat_seconds,
            request_id=request[REQUEST_ID],
        )

    return handler


async def _read_body(request: web.Request, services: Services) -> dict[str, Any]:
    return await read_json_object(
        request,
        max_bytes=MAX_JSON_BODY_BYTES,
        inflight=services.body_bytes,
        idle_timeout_seconds=services.settings.server.body_idle_timeout_seconds,
    )


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
    searches = -1
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
        # Between two looks nobody asked anything new: quiet enough to tidy up after those before.
        if refresh is not None or (
            searches != services.retrieval_cache.misses and not services.retrieval_slots.in_use
        ):
            searches = services.retrieval_cache.misses
            await asyncio.to_thread(give_back)
        if not poll_seconds:
            return
        await asyncio.sleep(poll_seconds)
