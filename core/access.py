"""What is said of a request when it is over: one line of the log, which is the audit record too, and its counts.

Rule: the line says who asked (by the name of the key), for what, with which result and at what cost; of what was asked
and answered it says nothing unless `log.contents` is on.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from aiohttp import web

from cg_rag.core.account import Account
from cg_rag.core.log import log_event

MAX_LOGGED_PATH_CHARACTERS = 200
OTHER_ROUTE = "other"
"""Where no route was found: paths are the caller's words and would make series without end."""


def finish(
    request: web.Request,
    response: web.StreamResponse | None,
    account: Account,
    *,
    status: int,
    code: str,
    key: str,
) -> None:
    """Count the request and write its line. `response` is None when nobody is left to hear one, `key` the name of the
    caller's key."""
    seconds = time.perf_counter() - account.started
    code = code or account.code
    received, sent = request.content.total_bytes, _sent_bytes(request, response)
    if account.meter is not None:
        route = route_of(request)
        account.meter.request(route, status, code, seconds)
        account.meter.traffic(route, received, sent)
        if account.first_token_seconds is not None:
            account.meter.first_token(route, account.first_token_seconds)
    fields: dict[str, Any] = {
        "method": request.method,
        "path": request.path[:MAX_LOGGED_PATH_CHARACTERS].encode("utf-8", "backslashreplace").decode(),
        "status": status,
        "ms": round(seconds * 1000, 1),
        "bytes_in": received,
        "bytes_out": sent,
        "peer": request.remote,
    }
    log_event(logging.INFO, "request", **fields, **_details(code, key, account))


def route_of(request: web.Request) -> str:
    """The route as it was declared, not as it was asked for."""
    resource = request.match_info.route.resource
    return resource.canonical.rstrip("/") if resource is not None else OTHER_ROUTE


def _sent_bytes(request: web.Request, response: web.StreamResponse | None) -> int:
    """Of a stream what went out; of an answer in one piece, which goes out after this, its length."""
    if response is None or response.prepared:
        return request.writer.output_size
    return response.content_length or 0


def _details(code: str, key: str, account: Account) -> dict[str, Any]:
    """What only some requests have."""
    first = account.first_token_seconds
    found: dict[str, Any] = {
        "code": code,
        "key": key,
        "tool": account.tool,
        "cache_hit": account.cache_hit,
        "first_token_ms": None if first is None else round(first * 1000, 1),
        "upstreams": {name: calls.as_json() for name, calls in account.upstreams.items()},
        **account.texts,
    }
    return {name: value for name, value in found.items() if value not in ("", None, {})}
