"""JSON-RPC in the body of a POST: what counts as a message, who may send it, how one is refused. No SDK, no work.

Rule: a refusal is JSON-RPC too, with the HTTP status that other routes give it, so that clients show its message.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping
from typing import Any

import orjson
from aiohttp import hdrs, web
from pydantic import ValidationError

from cg_rag.core.errors import CgError
from cg_rag.core.settings import is_loopback
from cg_rag.core.web import KEY_NAME, dress_error, json_response

# JSON-RPC 2.0, 5.1
PARSE_ERROR = -32700
INVALID_REQUEST = -32600
INVALID_PARAMS = -32602
REQUEST_CANCELLED = -32800  # the Language Server Protocol's; MCP wants no answer, HTTP must have one

# What browsers send (RFC 6454, 6.2): no user, no path.
_ORIGIN = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*://(?P<place>(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?)"
)
_NO_WEIGHT = re.compile(r"q\s*=\s*0(?:\.0{0,3})?")


def shape_fault(body: dict[str, Any]) -> str:
    """What keeps `body` from being a JSON-RPC message; "" when it is one."""
    if body.get("jsonrpc") != "2.0":
        return '请求体须为一条 JSON-RPC 消息，"jsonrpc" 为 "2.0"。'
    if "method" not in body and ("result" in body or "error" in body):
        return ""  # an answer; nobody asked, and nobody minds
    request_id, params = body.get("id", 0), body.get("params")
    if not isinstance(body.get("method"), str):
        return "method 须为字符串（不超过 64 KiB）。"
    if isinstance(request_id, bool) or not isinstance(request_id, (str, int)):
        return "id 须为字符串（不超过 64 KiB）或整数。"
    if params is not None and not isinstance(params, dict):
        return "params 须为对象。"
    return ""


def refuse_entry(request: web.Request, allowed_origins: Collection[str]) -> web.Response | None:
    """The answer to a caller who is not to enter, before anything of his is read. Raises CgError for a method that is
    not POST."""
    if not origin_allowed(request, allowed_origins):
        return error_response(None, INVALID_REQUEST, "Origin 不在允许之列，见 mcp.allowed_origins。", 403)
    if request.method != hdrs.METH_POST:
        raise CgError("method_not_allowed", "MCP 入口只支持 POST。", {"allow": "POST"}, {hdrs.ALLOW: "POST"})
    return None


def origin_allowed(request: web.Request, allowed: Collection[str]) -> bool:
    """Only browsers send Origin. A page of another site can have its own name resolve to this machine, and then Origin
    and Host are the same name: so a name counts only when the caller has a key as well, an address always."""
    origins = request.headers.getall(hdrs.ORIGIN, ())
    return all(origin in allowed or _is_own_origin(request, origin) for origin in origins)


def _is_own_origin(request: web.Request, origin: str) -> bool:
    form = _ORIGIN.fullmatch(origin)
    if form is None:
        return False
    place, host = form["place"], form["host"].strip("[]")
    if is_loopback(host.lower()):
        return True
    return place == request.headers.get(hdrs.HOST, "") and (KEY_NAME in request or _is_address(host))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def call_key(request: web.Request, request_id: object) -> tuple[str, str, str] | None:
    """Whose call it is: with another key or in another session nobody can cancel it, without a session nobody can."""
    session = request.headers.get("Mcp-Session-Id")
    if not session or isinstance(request_id, bool) or not isinstance(request_id, (str, int)):
        return None
    # 5 and "5" are two requests.
    return request.get(KEY_NAME, ""), session, orjson.dumps(request_id).decode()


def without_arguments(params: dict[str, Any] | None) -> tuple[dict[str, Any] | None, object]:
    if params is None or "arguments" not in params:
        return params, None
    return {name: value for name, value in params.items() if name != "arguments"}, params["arguments"]


def accepts(request: web.Request, media_type: str) -> bool:
    accept = ",".join(request.headers.getall(hdrs.ACCEPT, ())).lower()
    wanted = ("*/*", media_type, media_type.partition("/")[0] + "/*")
    kinds = [kind for kind in accept.split(",") if kind.strip()]
    return not kinds or any(_kind_accepted(kind) in wanted for kind in kinds)


def _kind_accepted(kind: str) -> str:
    """The media type of one element of an Accept header; "" when it is there to be excluded (`q=0`)."""
    media_type, *parameters = (part.strip() for part in kind.split(";"))
    return "" if any(_NO_WEIGHT.fullmatch(parameter) for parameter in parameters) else media_type


def frame(message: bytes) -> bytes:
    return b"event: message\ndata: " + message + b"\n\n"


def error_response(request_id: Any, code: int, message: str, status: int, data: Any = None) -> web.Response:
    error = {"code": code, "message": message} | ({"data": data} if data is not None else {})
    return json_response(orjson.dumps({"jsonrpc": "2.0", "id": request_id, "error": error}), status)


def params_fault(method: str, params: Mapping[str, Any] | None, error: ValidationError) -> str:
    """What is wrong with the `params` of a request, by place; of their values nothing is repeated."""
    faults = error.errors(include_input=False, include_context=False, include_url=False)
    places = dict.fromkeys(_place(params, fault["loc"]) for fault in faults)
    return f"{method} 的参数不合法：{'、'.join(list(places)[:3])}。"


def _place(params: object, location: tuple[int | str, ...]) -> str:
    # Behind a value that is there and is no object, pydantic names the types that it tried.
    place, value = "params", params
    for part in location[location[:1] == ("params",) :]:
        if not isinstance(value, dict):
            break
        place, value = f"{place}.{part}", value.get(part)
    return place


def cancelled(request_id: Any) -> dict[str, Any]:
    error = {"code": REQUEST_CANCELLED, "message": "调用已取消。"}
    return {"jsonrpc": "2.0", "id": request_id, "error": error}


def refused(error: CgError, request_id: str) -> web.Response:
    """A body that was not taken: the status that other routes give it, told as JSON-RPC so that clients show it."""
    code = PARSE_ERROR if error.code == "invalid_request" else INVALID_REQUEST
    data = {"code": error.code, "details": error.details, "request_id": request_id}
    return dress_error(error_response(None, code, error.message, error.status, data), error)
