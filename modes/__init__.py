"""One module per mode. `MODES` is the only registry: routes, streams and openapi.json are made from it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from types import ModuleType
from typing import Any, Protocol, cast

from cg_rag.core.account import keeping_texts
from cg_rag.core.events import Event
from cg_rag.core.requests import RequestModel, parse_request
from cg_rag.core.settings import Settings
from cg_rag.modes import (
    generate,
    rag,
    retrieve,
    verify,
    vision_agentic,
    vision_answer,
    vision_hybrid,
    vision_observe,
)
from cg_rag.modes.services import Services


class Mode(Protocol):
    """What each module of this package offers. `CODES` are the errors beside those that every body can meet.

    A mode may offer more: `check_configured(services)`, which raises `…_not_configured` before any field is looked at,
    `max_body_bytes(settings)`, the largest body it takes where that is not MAX_JSON_BODY_BYTES, and
    `default_scope(services)` where that is not the active scope.
    """

    SUMMARY: str
    CODES: tuple[str, ...]
    Request: type[RequestModel]

    def run(self, request: RequestModel, services: Services, request_id: str) -> AsyncIterator[Event]: ...


MAX_JSON_BODY_BYTES = 2 * 1024 * 1024


def max_body_bytes(mode: Mode, settings: Settings) -> int:
    """The largest body that `mode` takes."""
    limit = getattr(mode, "max_body_bytes", None)
    return MAX_JSON_BODY_BYTES if limit is None else int(limit(settings))


def start(mode: Mode, body: Mapping[str, Any], services: Services, request_id: str) -> AsyncIterator[Event]:
    """The events of one request whose JSON is `body`. Raises CgError for what is not configured, then for fields."""
    check_configured = getattr(mode, "check_configured", None)
    if check_configured is not None:
        check_configured(services)
    request = parse_request(mode.Request, body)
    return keeping_texts(request, mode.run(request, services, request_id))


def _mode(module: ModuleType) -> Mode:
    return cast(Mode, module)


# Route below /cg-rag -> mode.
MODES: Mapping[str, Mode] = {
    "/retrieve-rerank": _mode(retrieve),
    "/constrained-generate": _mode(generate),
    "/rag": _mode(rag),
    "/verify-citations": _mode(verify),
    "/vision/answer": _mode(vision_answer),
    "/vision/agentic": _mode(vision_agentic),
    "/vision/hybrid": _mode(vision_hybrid),
    "/vision/observe": _mode(vision_observe),
}

# Those of them that have a `…/stream` route too.
STREAMS = ("/constrained-generate", "/rag", "/vision/answer", "/vision/agentic", "/vision/hybrid")
