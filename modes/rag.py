"""rag: retrieve, then choose among what was found. docs/http.md, 检索并生成.

Rule: what retrieval found is never lost to a generation that failed; a retrieval that failed is an error.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from pydantic import Field

from cg_rag.core.events import Event, Final, Progress, Retrieval
from cg_rag.modes import generate, retrieve
from cg_rag.modes.services import Services

SUMMARY = "检索条文，并选出与问题直接相关的条文"
CODES = retrieve.CODES + generate.CODES


class Request(retrieve.Request):
    """Body of POST /cg-rag/rag."""

    max_items: generate.MaxItems = Field(generate.DEFAULT_MAX_ITEMS, description="至多选出多少条，1..50")
    include_debug: bool = Field(False, description="附带检索与生成的调试信息")
    generation_enable_thinking: bool | None = Field(None, description="是否让模型思考；null 为按服务设置")


async def run(request: Request, services: Services, request_id: str) -> AsyncGenerator[Event, None]:
    """Yields Progress, Retrieval, Token, AnswerReset and Final. Raises CgError: what retrieval raises, and
    capacity.exceeded."""
    started = time.perf_counter()
    scope = request.scope_of(services)
    yield Progress("retrieval", "正在检索条文", "running")
    # Its slot is given back before a generation slot is asked for: who waits for one holds none.
    retrieval = await retrieve.retrieve(request.query, scope, request.topk, request.include_debug, services)
    yield Progress("retrieval", "检索完成", "done")
    yield Retrieval(_found(retrieval))
    task = generate.Task(
        request.query,
        [generate.make_candidate(document) for document in retrieval["retrieval_docs"]],
        request.max_items,
        request.generation_enable_thinking,
        request.include_debug,
    )
    async with aclosing(generate.generate(task, services)) as events:
        async for event in events:
            if isinstance(event, Final):
                stats = {
                    "retrieval_ms": retrieval["runtime_stats"]["total_time_ms"],
                    "generation_ms": event.payload["runtime_stats"]["total_time_ms"],
                    "total_time_ms": round((time.perf_counter() - started) * 1000, 3),
                }
                head = {"ok": event.payload["ok"], "request_id": request_id, "query": request.query}
                body = {"scope": scope, "retrieval": retrieval, "generation": event.payload}
                event = Final(head | body | {"runtime_stats": stats})
            yield event


def _found(retrieval: dict[str, Any]) -> dict[str, Any]:
    names = ("law_name", "article_number", "contents")
    documents = [{name: document[name] for name in names} for document in retrieval["retrieval_docs"]]
    return {"num_docs": retrieval["num_docs"], "retrieval_docs": documents, "cache": retrieval["cache"]}
