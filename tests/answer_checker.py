"""Holds real answers to openapi.json, closed: a field that the document does not name fails, as does one it misses.

The document is that of the application of this checkout; every test that asks a real process through
`tests/server_process.py`, or reads a stream with `tests/sse_checker.py`, runs its answers through here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import orjson
from jsonschema import Draft202012Validator

from cg_rag.core.answers import EVENTS
from cg_rag.core.metrics import Metrics
from cg_rag.core.openapi import build_openapi
from cg_rag.core.settings import Settings
from cg_rag.core.sse import SseDecoder
from cg_rag.core.web import BASE_PATH
from cg_rag.modes import MODES, STREAMS
from cg_rag.modes.http_app import Get, make_gets, make_routes
from cg_rag.modes.services import make_services

JSON, EVENT_STREAM = "application/json", "text/event-stream"
SCOPES = ["full", "usual", "usual_plus_law"]
"""Those of tests/conftest.py."""


@cache
def gets() -> list[Get]:
    return make_gets(make_services(Settings()), "0", 0.0, Metrics(tuple))


@cache
def document() -> dict[str, Any]:
    """openapi.json of a service with keys, as a client gets it."""
    routes = make_routes(gets(), MODES, STREAMS)
    made = build_openapi(routes, BASE_PATH, "0", with_keys=True, choices={"scope": SCOPES})
    return orjson.loads(orjson.dumps(made))  # type: ignore[no-any-return]


def closed(node: Any) -> Any:
    """`node` with every object that names its fields refusing others, unless it says that it takes them."""
    if isinstance(node, list):
        return [closed(item) for item in node]
    if not isinstance(node, dict):
        return node
    made = {key: closed(value) for key, value in node.items()}
    if isinstance(node.get("properties"), dict) and node.get("type") == "object":
        made.setdefault("additionalProperties", False)
    return made


@cache
def validator(reference: str) -> Draft202012Validator:
    """Of what a pointer into the document leads to."""
    return Draft202012Validator(closed(document()) | {"$ref": reference})


def check(reference: str, value: Any) -> None:
    errors = [
        f"{error.json_path}: {error.message[:300]}" for error in validator(reference).iter_errors(value)
    ]
    assert not errors, (reference, errors[:3])


def pointer(*parts: str) -> str:
    return "#/" + "/".join(part.replace("~", "~0").replace("/", "~1") for part in parts)


def check_answer(method: str, path: str, status: int, headers: Mapping[str, str], body: bytes) -> None:
    """`path` is below the base path. Routes that the document does not have (MCP, a test's own) pass."""
    operation = document()["paths"].get(BASE_PATH + path.partition("?")[0], {}).get(method.lower())
    if operation is None:
        return
    told = operation["responses"].get(str(status))
    assert told is not None, f"{method} {path} answered {status}, which openapi.json does not know"
    media_type = headers.get("Content-Type", "").partition(";")[0]
    assert media_type in told["content"], (path, status, media_type)
    for name, header in told["headers"].items():
        required = document()["components"]["headers"][header["$ref"].rpartition("/")[2]]["required"]
        assert not required or name in headers, (path, status, name)
    place = ("paths", BASE_PATH + path.partition("?")[0], method.lower(), "responses", str(status))
    if media_type == JSON:
        check(pointer(*place, "content", JSON, "schema"), orjson.loads(body))
    if media_type == EVENT_STREAM:
        events = told["content"][EVENT_STREAM]["x-events"]
        for event in SseDecoder().feed(body):
            assert event.event in events, f"{path} sent {event.event}, which openapi.json does not know"
            check(events[event.event]["$ref"], orjson.loads(event.data))


def check_event(name: str, data: Any) -> None:
    """One event of a stream; `final` is the answer of its route, and which that is nobody says here."""
    if name == "error":
        check(pointer("components", "schemas", "ErrorEvent"), data)
    elif name != "final":
        check(pointer("components", "schemas", EVENTS[name].__name__), data)
