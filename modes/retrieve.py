"""retrieve-rerank: a question in, the articles that answer it out. docs/http.md, 检索."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import Field

from cg_rag.core.account import note_cache, note_degraded, note_timings
from cg_rag.core.cache import Computed
from cg_rag.core.errors import CgError
from cg_rag.core.events import Event, Final
from cg_rag.core.log import log_event, logger
from cg_rag.core.requests import Query, RequestModel, TopK, without_default
from cg_rag.index.errors import IndexLibraryError, ScopeUnknown
from cg_rag.index.library import ScopeState, Snapshot
from cg_rag.index.model_errors import Cancelled
from cg_rag.index.ranking import Hit
from cg_rag.index.retriever import Retriever, SearchResult, normalise_query
from cg_rag.modes.services import Services

SUMMARY = "检索条文"
CODES = ("retrieval.failed", "index.not_ready")
DEFAULT_TOPK = 20
# Beside the strings of a document: its dict, its Hit and the objects in them, measured with sys.getsizeof.
DOCUMENT_OVERHEAD_BYTES = 1200


class ScopedRequest(RequestModel):
    """A request about the articles of one scope."""

    scope: str = Field(
        "",
        description="检索范围，须为已配置的范围之一；缺省为服务的 active_scope",
        json_schema_extra=without_default,
    )

    def scope_of(self, services: Services) -> str:
        """The scope asked for; "" is one that does not exist, not the default."""
        return self.scope if "scope" in self.model_fields_set else services.settings.active_scope


class Request(ScopedRequest):
    """Body of POST /cg-rag/retrieve-rerank."""

    query: Query = Field(description="检索问题，去除首尾空白后 1..2000 个字符")
    topk: TopK = Field(DEFAULT_TOPK, description="返回条文数上限，1..200")
    include_debug: bool = Field(False, description="附带各阶段得分与耗时，仅供调试")


async def run(request: Request, services: Services, request_id: str) -> AsyncIterator[Event]:
    """Yields `Final`. Raises CgError: invalid_request (unknown scope), index.not_ready, capacity.exceeded,
    retrieval.failed."""
    scope = request.scope_of(services)
    head = {"ok": True, "request_id": request_id, "query": request.query, "scope": scope}
    yield Final(head | await retrieve(request.query, scope, request.topk, request.include_debug, services))


async def retrieve(
    query: str,
    scope: str,
    topk: int,
    include_debug: bool,
    services: Services,
    slot_wait_seconds: float | None = None,
) -> dict[str, Any]:
    """The answer without its head: what `rag` carries under `retrieval`. `slot_wait_seconds`: how long to wait for a
    slot; None is the limiter's own time."""
    started = time.perf_counter()
    # One look: state and retriever of one build, so that nothing is cached under the fingerprint of another.
    snapshot = services.library.snapshot
    state = get_usable_scope(scope, snapshot)
    retriever = snapshot.retriever
    assert retriever is not None, "a scope without fault has a retriever"
    normalised = normalise_query(query)

    async def compute() -> Computed[SearchResult]:
        with await services.retrieval_slots.take(wait_timeout_seconds=slot_wait_seconds):
            result = await services.in_thread(lambda: _search(retriever, normalised, scope, topk))
        note_timings(result.timings_ms)
        if result.degraded:
            note_degraded()
        if result.fault:
            log_event(logging.WARNING, "retrieval_degraded", reason=result.fault)
        return Computed(result, _num_bytes(result), cacheable=not result.degraded)

    result, hit = await services.retrieval_cache.get_or_compute(
        (state.fingerprint, normalised, topk), compute
    )
    note_cache(hit)
    stats = {} if hit else {name: round(value, 3) for name, value in result.timings_ms.items()}
    stats["total_time_ms"] = round((time.perf_counter() - started) * 1000, 3)
    body: dict[str, Any] = {
        "topk": topk,
        "num_docs": len(result.hits),
        "cache": {"hit": hit},
        "retrieval_docs": _documents(result, include_debug),
        "rerank": _rerank(result, services),
        "warnings": list(result.warnings),
        "runtime_stats": stats,
    }
    if include_debug:
        body["debug"] = {
            "normalised_query": result.query,
            "expansions": list(result.expansions),
            "retrieval_method": state.method,
            "fingerprint": state.fingerprint,
            "timings_ms": result.timings_ms,
        }
    return body


def _rerank(result: SearchResult, services: Services) -> dict[str, Any]:
    """`method` is what gave the order: without a reranker that is retrieval itself."""
    method = services.settings.rerank.chosen if result.reranked else "fused"
    return {"applied": result.reranked, "method": method}


def get_usable_scope(scope: str, snapshot: Snapshot) -> ScopeState:
    """Raises invalid_request for a scope that no profile names, index.not_ready for one without usable index."""
    try:
        state = snapshot.get_scope(scope)
    except ScopeUnknown as error:
        raise CgError(
            "invalid_request",
            f"scope 须为 {'、'.join(error.available)} 之一，收到的范围不存在。",
            {"field": "scope", "available_scopes": list(error.available)},
        ) from error
    if state.fault:
        raise CgError(
            "index.not_ready",
            f"检索范围 {scope} 的索引尚不可用：{state.fault}",
            {"scope": scope, "state": snapshot.state},
        )
    return state


def _search(retriever: Retriever, query: str, scope: str, topk: int) -> SearchResult:
    with failing_as_retrieval():
        return retriever.search(query, scope, topk)


@contextmanager
def failing_as_retrieval() -> Iterator[None]:
    """What the index meets, within, as retrieval.failed and a line of the log."""
    try:
        yield
    except Cancelled:
        raise
    except (IndexLibraryError, OSError) as error:
        log_event(logging.ERROR, "retrieval_failed", error=str(error))
        logger.debug("retrieval_failed", exc_info=error)
        raise CgError("retrieval.failed") from error


def _documents(result: SearchResult, include_debug: bool) -> list[dict[str, Any]]:
    pairs = zip(result.hits, result.articles, strict=True)
    documents = []
    for hit, article in pairs:
        document = {
            **article.extra,
            "law_name": article.law_name,
            "article_number": article.article_number,
            "contents": article.contents,
            "score": round(hit.score, 6),
        }
        documents.append(document | _debug(hit) if include_debug else document)
    return documents


def _debug(hit: Hit) -> dict[str, Any]:
    return {"debug": {"row": hit.row, "stages": hit.stages}}


def _num_bytes(result: SearchResult) -> int:
    """Two bytes a character (CPython's width for Chinese) and a flat charge per document."""
    texts = sum(len(article.contents) + len(article.law_name) for article in result.articles)
    extras = sum(len(str(value)) for article in result.articles for value in article.extra.values())
    return 2 * (texts + extras) + DOCUMENT_OVERHEAD_BYTES * (len(result.articles) + 1)
