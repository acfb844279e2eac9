"""verify-citations: a text in, each law and article that it cites looked up. docs/http.md, 引用核对."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

from pydantic import Field

from cg_rag.core.account import note_timings
from cg_rag.core.events import Event, Final
from cg_rag.core.requests import Text
from cg_rag.index.verification import Verifier
from cg_rag.modes import retrieve
from cg_rag.modes.services import Services

SUMMARY = "核对文中引用的法规与条文"
CODES = retrieve.CODES


class Request(retrieve.ScopedRequest):
    """Body of POST /cg-rag/verify-citations."""

    text: Text = Field(description="要核对的文字，去除首尾空白后 1..20000 个字符")


async def run(request: Request, services: Services, request_id: str) -> AsyncIterator[Event]:
    """Yields `Final`. Raises CgError: what retrieval raises."""
    started = time.perf_counter()
    scope = request.scope_of(services)
    snapshot = services.library.snapshot
    retrieve.get_usable_scope(scope, snapshot)
    verifier = snapshot.verifier
    assert verifier is not None, "a scope without fault has a verifier"
    async with services.retrieval_slots.slot():
        found = await services.in_thread(lambda: _verify(verifier, request.text, scope))
    note_timings(found["runtime_stats"])
    found["runtime_stats"]["total_time_ms"] = round((time.perf_counter() - started) * 1000, 3)
    yield Final({"ok": True, "request_id": request_id, "scope": scope} | found)


def _verify(verifier: Verifier, text: str, scope: str) -> dict[str, Any]:
    # Thousands of citations take milliseconds to write down too.
    with retrieve.failing_as_retrieval():
        return verifier.verify(text, scope).as_json()
