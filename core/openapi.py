"""openapi.json, made from the models that check the requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cg_rag.core.errors import ERRORS
from cg_rag.core.requests import RequestModel

_JSON = "application/json"
_EVENTS = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Route:
    """One path below the base path. `request` is None for GET routes, `codes` are what it can fail with."""

    path: str
    method: str
    summary: str
    codes: tuple[str, ...] = ()
    request: type[RequestModel] | None = None
    open: bool = False
    streams: bool = False
    """The answer is server-sent events; what fails after the JSON was read is an `error` event under 200."""


def build_openapi(routes: list[Route], base_path: str, version: str, with_keys: bool) -> dict[str, Any]:
    """An OpenAPI 3.1 document for `routes`."""
    schemas: dict[str, Any] = {"Error": _ERROR_SCHEMA}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        operation = _operation(route, schemas, with_keys)
        paths.setdefault(base_path + route.path, {})[route.method.lower()] = operation
    components: dict[str, Any] = {"schemas": schemas}
    if with_keys:
        components["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
        }
    info = {"title": "CG_RAG", "version": version, "description": "施工现场安全法规检索服务"}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": components}


def _operation(route: Route, schemas: dict[str, Any], with_keys: bool) -> dict[str, Any]:
    closed = with_keys and not route.open
    codes = (*route.codes, *(("unauthorized",) if closed else ()), "internal_error")
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": f"{route.method.lower()}{route.path.replace('/', '_').replace('-', '_')}",
        "responses": {"200": _success(route.streams)} | _error_responses(codes),
    }
    if closed:
        operation["security"] = [{"bearer": []}, {"apiKey": []}]
    if route.request is not None:
        reference = _add_schema(route, route.request, schemas)
        operation["requestBody"] = {"required": True, "content": {_JSON: {"schema": reference}}}
    return operation


def _success(streams: bool) -> dict[str, Any]:
    if streams:
        return {"description": "事件流", "content": {_EVENTS: {"schema": {"type": "string"}}}}
    return {"description": "成功", "content": {_JSON: {"schema": {"type": "object"}}}}


def _add_schema(route: Route, model: type[RequestModel], schemas: dict[str, Any]) -> dict[str, str]:
    words = route.path.strip("/").replace("/", "-").split("-")
    name = "".join(word.capitalize() for word in words) + "Request"
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(schema.pop("$defs", {}))
    schemas[name] = schema
    return {"$ref": f"#/components/schemas/{name}"}


def _error_responses(codes: tuple[str, ...]) -> dict[str, Any]:
    by_status: dict[str, list[str]] = {}
    for code in codes:
        by_status.setdefault(str(ERRORS[code].status), []).append(code)
    content = {_JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        status: {
            "description": "；".join(f"{code}：{ERRORS[code].message}" for code in names),
            "content": content,
        }
        for status, names in sorted(by_status.items())
    }


_ERROR_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "required": ["request_id", "error"],
    "properties": {
        "request_id": {"type": "string"},
        "error": {
            "type": "object",
            "required": ["code", "message", "details"],
            "properties": {
                "code": {"type": "string", "enum": list(ERRORS)},
                "message": {"type": "string"},
                "details": {"type": "object"},
            },
        },
    },
}
