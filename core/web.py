"""The edge of every HTTP route: request id, key, error body, one log line.

Rule: whatever happens inside a handler, the caller gets JSON with the request id, and the log gets one line.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Any

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from pydantic import SecretStr

from cg_rag.core.access import finish
from cg_rag.core.account import Account, Meter, account_var
from cg_rag.core.errors import CgError, error_body
from cg_rag.core.log import logger, request_id_var
from cg_rag.core.sse_stream import CLIENT_GONE, STREAM_CODE

BASE_PATH = "/cg-rag"
# Open without a key: monitors and browsers reach them before anybody can hand over one.
OPEN_PATHS = frozenset({f"{BASE_PATH}/health", f"{BASE_PATH}/ready", f"{BASE_PATH}/console"})
SLICE_BYTES = 64 * 1024

REQUEST_ID: web.RequestKey[str] = web.RequestKey("cg_rag.request_id", str)
KEY_NAME: web.RequestKey[str] = web.RequestKey("cg_rag.key_name", str)
"""The name of the caller's key; absent without one."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def mint_request_id() -> str:
    return "req_" + secrets.token_hex(10)


def encode_json(body: Mapping[str, Any]) -> bytes:
    """UTF-8 JSON, nothing escaped that need not be."""
    return orjson.dumps(body)


def json_response(body: bytes, status: int = 200) -> web.Response:
    """`body` is JSON already. A large one is sent in slices, so that the transport holds no second copy of it."""
    content = _slices(body) if len(body) > SLICE_BYTES else body
    response = web.Response(body=content, status=status, content_type="application/json")
    response.headers["Content-Length"] = str(len(body))
    response.headers["Cache-Control"] = "no-store"
    return response


async def _slices(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), SLICE_BYTES):
        yield body[start : start + SLICE_BYTES]


def error_response(error: CgError, request_id: str) -> web.Response:
    return dress_error(json_response(encode_json(error_body(error, request_id)), error.status), error)


def dress_error(response: web.Response, error: CgError) -> web.Response:
    """`response` with what its status asks for besides a body."""
    response.headers.update(error.headers)
    if error.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    if error.status == 408:
        # Half of a body is still to come; nothing after it could be told from the next request.
        response.force_close()
    return response


def find_key_name(headers: Mapping[str, str], keys: Mapping[str, SecretStr]) -> str | None:
    """The name of the key that the caller sent, None for none or a wrong one. Takes the same time for both."""
    scheme, _, bearer = headers.get("Authorization", "").partition(" ")
    sent = [headers.get("X-API-Key", ""), bearer.strip() if scheme.lower() == "bearer" else ""]
    found: str | None = None
    for name, key in keys.items():
        expected = key.get_secret_value().encode()
        for value in sent:
            # Header bytes above 0x7f arrive as surrogates; compare_digest takes bytes only.
            if hmac.compare_digest(value.encode("utf-8", "surrogateescape"), expected):
                found = name
    return found


def make_edge(
    keys: Mapping[str, SecretStr], meter: Meter | None = None, keeps_texts: bool = False
) -> Middleware:
    """The one middleware. It sets REQUEST_ID and, when the caller sent a right key, KEY_NAME; `meter` counts, and
    `keeps_texts` puts questions and answers into the log."""

    @web.middleware
    async def edge(request: web.Request, handler: Handler) -> web.StreamResponse:
        account = Account(meter, keeps_texts)
        request_id = _take_request_id(request)
        request[REQUEST_ID] = request_id
        id_token, account_token = request_id_var.set(request_id), account_var.set(account)
        # A stream has told its 200 already; the code says that it was not heard to the end.
        response, code = None, CLIENT_GONE
        try:
            if meter is not None:
                meter.begin()
            try:
                response, code = await _answer(request, handler, keys)
            finally:
                if meter is not None:
                    meter.end()
            response.headers["X-Request-ID"] = request_id
            response.headers["X-Content-Type-Options"] = "nosniff"
            code = code or request.get(STREAM_CODE, "")
            return response
        finally:
            gone = 200 if STREAM_CODE in request else 499
            status = gone if response is None else response.status
            finish(request, response, account, status=status, code=code, key=request.get(KEY_NAME, ""))
            request_id_var.reset(id_token)
            account_var.reset(account_token)

    return edge


async def _answer(
    request: web.Request, handler: Handler, keys: Mapping[str, SecretStr]
) -> tuple[web.StreamResponse, str]:
    request_id = request[REQUEST_ID]
    try:
        key_name = find_key_name(request.headers, keys)
        if key_name is not None:
            request[KEY_NAME] = key_name
        elif keys and request.rel_url.path_safe not in OPEN_PATHS:
            raise CgError("unauthorized")
        return await handler(request), ""
    except CgError as error:
        return error_response(error, request_id), error.code
    except web.HTTPException as error:
        translated = _translate(error)
        return error_response(translated, request_id), translated.code
    except Exception:
        logger.exception("internal_error")
        return error_response(CgError("internal_error"), request_id), "internal_error"


def _translate(error: web.HTTPException) -> CgError:
    """aiohttp's own refusals, in the words of the catalogue."""
    if error.status == 405:
        allow = error.headers.get("Allow", "")
        return CgError("method_not_allowed", f"该接口只支持 {allow}。", {"allow": allow}, {"Allow": allow})
    if error.status == 404:
        return CgError("not_found")
    return CgError("invalid_request", f"请求不合法（HTTP {error.status}）。")


def _take_request_id(request: web.Request) -> str:
    sent = request.headers.get("X-Request-ID", "")
    return sent if _REQUEST_ID.fullmatch(sent) else mint_request_id()
