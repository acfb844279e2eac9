"""openapi.json, made from the models that check the requests and the types of the answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from cg_rag.core.answers import EVENTS
from cg_rag.core.errors import ERRORS
from cg_rag.core.requests import RequestModel

_JSON = "application/json"
_EVENTS = "text/event-stream"
_REF = "#/components/schemas/"


@dataclass(frozen=True, slots=True)
class Route:
    """One path below the base path. `request` is None for GET routes, `codes` are what it can fail with, `answer` is
    the type of its JSON. `media_type` is told where it answers something else."""

    path: str
    method: str
    summary: str
    codes: tuple[str, ...] = ()
    request: type[RequestModel] | None = None
    open: bool = False
    answer: Any = None
    media_type: str = _JSON
    events: tuple[str, ...] | None = None
    """None, or what its stream may hold beside `final` and `error`: then the answer is server-sent events, and what
    fails after the JSON was read is an `error` event under 200."""


def build_openapi(
    routes: list[Route], base_path: str, version: str, with_keys: bool, choices: Mapping[str, list[str]]
) -> dict[str, Any]:
    """An OpenAPI 3.1 document for `routes`. `choices` are the values of fields of requests that are one of few."""
    schemas = _Schemas(choices)
    schemas.add_schema("Error", _ERROR_SCHEMA)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        operation = _operation(route, schemas, with_keys)
        paths.setdefault(base_path + route.path, {})[route.method.lower()] = operation
    components: dict[str, Any] = {
        "schemas": schemas.by_name,
        "parameters": {"RequestId": _REQUEST_ID},
        "headers": _HEADERS,
    }
    if with_keys:
        components["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
        }
    info = {"title": "CG_RAG", "version": version, "description": _DESCRIPTION}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": components}


class _Schemas:
    """`components.schemas`, each name once."""

    def __init__(self, choices: Mapping[str, list[str]]) -> None:
        self._choices = choices
        self.by_name: dict[str, Any] = {}
        self._added: dict[int, dict[str, Any]] = {}

    def add_schema(self, name: str, schema: Mapping[str, Any]) -> dict[str, str]:
        """Raises ValueError when `name` is another schema already."""
        if self.by_name.setdefault(name, schema) != schema:
            raise ValueError(f"two schemas are called {name}")
        return {"$ref": _REF + name}

    def add_answer(self, kind: Any) -> dict[str, Any]:
        """The schema of a type, by reference where it has a name."""
        known = self._added.get(id(kind))
        if known is None:  # making one takes milliseconds, and a stream has the answer of another route
            schema = TypeAdapter(kind).json_schema(ref_template=_REF + "{model}", mode="serialization")
            known = self._added[id(kind)] = self._add(schema.get("title", ""), schema)
        return known

    def add_request(self, name: str, model: type[RequestModel]) -> dict[str, Any]:
        schema = model.model_json_schema(ref_template=_REF + "{model}")
        for definition in (schema, *schema.get("$defs", {}).values()):
            definition.pop("description", None)  # the docstring of a model is not for callers
            for field in definition["properties"].keys() & self._choices:
                definition["properties"][field]["enum"] = self._choices[field]
        return self._add(name, schema)

    def _add(self, name: str, schema: dict[str, Any]) -> dict[str, Any]:
        for inner, definition in schema.pop("$defs", {}).items():
            self.add_schema(inner, definition)
        return self.add_schema(name, schema) if name else schema


def _operation(route: Route, schemas: _Schemas, with_keys: bool) -> dict[str, Any]:
    closed = with_keys and not route.open
    codes = (*route.codes, *(("unauthorized",) if closed else ()), "internal_error")
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": f"{route.method.lower()}{route.path.replace('/', '_').replace('-', '_')}",
        "parameters": [{"$ref": "#/components/parameters/RequestId"}],
        "responses": {"200": _success(route, schemas)} | _error_responses(codes),
    }
    if closed:
        operation["security"] = [{"bearer": []}, {"apiKey": []}]
    if route.request is not None:
        reference = schemas.add_request(_request_name(route), route.request)
        operation["requestBody"] = {"required": True, "content": {_JSON: {"schema": reference}}}
    return operation


def _success(route: Route, schemas: _Schemas) -> dict[str, Any]:
    headers = {"X-Request-ID": {"$ref": "#/components/headers/X-Request-ID"}}
    if route.events is not None:
        return {
            "description": _STREAM_WORDS,
            "headers": headers,
            "content": {_EVENTS: _stream(route, schemas)},
        }
    schema = {"type": "string"} if route.answer is None else schemas.add_answer(route.answer)
    return {"description": "成功", "headers": headers, "content": {route.media_type: {"schema": schema}}}


def _stream(route: Route, schemas: _Schemas) -> dict[str, Any]:
    """OpenAPI 3.1 has no words for the events of a stream; `x-events` names the schema of each one's data."""
    events = {name: schemas.add_answer(EVENTS[name]) for name in route.events or ()}
    events["final"] = schemas.add_answer(route.answer)
    events["error"] = schemas.add_schema("ErrorEvent", _ERROR_EVENT_SCHEMA)
    return {"schema": {"type": "string"}, "x-events": events}


def _request_name(route: Route) -> str:
    words = route.path.removesuffix("/stream").strip("/").replace("/", "-").split("-")
    return "".join(word.capitalize() for word in words) + "Request"


def _error_responses(codes: tuple[str, ...]) -> dict[str, Any]:
    by_status: dict[int, list[str]] = {}
    for code in dict.fromkeys(codes):
        by_status.setdefault(ERRORS[code].status, []).append(code)
    return {str(status): _error_response(status, names) for status, names in sorted(by_status.items())}


def _error_response(status: int, names: list[str]) -> dict[str, Any]:
    of_status = {"properties": {"error": {"properties": {"code": {"enum": names}}}}}
    schema = {"allOf": [{"$ref": _REF + "Error"}, of_status]}
    headers = {name: {"$ref": f"#/components/headers/{name}"} for name in _HEADERS_OF.get(status, ())}
    return {
        "description": "；".join(f"{code}：{ERRORS[code].message}" for code in names),
        "headers": headers | {"X-Request-ID": {"$ref": "#/components/headers/X-Request-ID"}},
        "content": {_JSON: {"schema": schema}},
    }


# A client that was made from this document could not speak the protocol of the MCP endpoint.
_DESCRIPTION = "施工现场安全法规检索服务。MCP 入口 /cg-rag/mcp/ 不在本文档中：它的消息由 MCP 协议规定，工具及其参数由 tools/list 给出。"

_STREAM_WORDS = (
    "事件流：每个事件为 event: 名称、一行 data: JSON、一个空行，以 : 开头的行是注释。恰有一个 final（与非流式接口的响应相同）"
    "或 error，其后别无内容。各事件的 data 见 x-events。"
)

_REQUEST_ID: Mapping[str, Any] = {
    "name": "X-Request-ID",
    "in": "header",
    "description": "请求编号；不合规则的不采用，由服务另给一个",
    "schema": {"type": "string"},
}

_HEADERS: Mapping[str, Any] = {
    "X-Request-ID": {"description": "请求编号", "required": True, "schema": {"type": "string"}},
    "Retry-After": {"description": "多少秒后重试", "required": True, "schema": {"type": "string"}},
    "WWW-Authenticate": {"required": True, "schema": {"type": "string"}},
}

_HEADERS_OF: Mapping[int, tuple[str, ...]] = {401: ("WWW-Authenticate",), 429: ("Retry-After",)}

_ERROR: Mapping[str, Any] = {
    "type": "object",
    "required": ["code", "message", "details"],
    "properties": {
        "code": {"type": "string", "enum": list(ERRORS)},
        "message": {"type": "string"},
        "details": {"type": "object", "additionalProperties": True},
    },
}

_ERROR_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "required": ["request_id", "error"],
    "properties": {"request_id": {"type": "string"}, "error": _ERROR},
}

_ERROR_EVENT_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "required": ["request_id", "error", *_ERROR["required"]],
    "properties": {"request_id": {"type": "string"}, **_ERROR["properties"], "error": _ERROR},
}
