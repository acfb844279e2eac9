"""One module per mode. `MODES` is the only registry: routes, streams and openapi.json are made from it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from types import ModuleType
from typing import Protocol, cast

from cg_rag.core.events import Event
from cg_rag.core.requests import RequestModel
from cg_rag.modes import generate, rag, retrieve
from cg_rag.modes.services import Services


class Mode(Protocol):
    """What each module of this package offers. `CODES` are the errors beside those that every body can meet."""

    SUMMARY: str
    CODES: tuple[str, ...]
    Request: type[RequestModel]

    def run(self, request: RequestModel, services: Services, request_id: str) -> AsyncIterator[Event]: ...


def _mode(module: ModuleType) -> Mode:
    return cast(Mode, module)


# Route below /cg-rag -> mode.
MODES: Mapping[str, Mode] = {
    "/retrieve-rerank": _mode(retrieve),
    "/constrained-generate": _mode(generate),
    "/rag": _mode(rag),
}

# Those of them that have a `…/stream` route too.
STREAMS = ("/constrained-generate", "/rag")
