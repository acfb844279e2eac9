"""The shape of every answer and of every event, as types: what openapi.json says of them. docs/http.md.

Rule: a field that an answer has must be here; tests hold every answer they see to these types, closed. For callers the
schemas are open, because a newer service may say more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired, Required  # pydantic needs these before Python 3.12

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

Milliseconds = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]


# --- what answers are made of


class ArticleDebug(TypedDict):
    row: int
    stages: dict[str, float]


class Article(TypedDict):
    """一条条文；语料自带的其他字段（chapter、status、source、doc_id、effective_date 等）原样保留。"""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]

    law_name: str
    article_number: Annotated[str, Field(description="没有编号的文本为空字符串")]
    contents: str


class FoundArticle(Article):
    score: Annotated[float, Field(description="只在同一次回答之内可比")]
    debug: NotRequired[ArticleDebug]


class ArticlePreview(TypedDict):
    law_name: str
    article_number: str
    contents: str


class CacheUse(TypedDict):
    hit: bool


class RerankUse(TypedDict):
    applied: bool
    method: Literal["onnx", "api", "fused"]


class RetrievalStats(TypedDict, total=False):
    """各阶段毫秒数；缓存命中时只有 total_time_ms。"""

    exact_ms: Milliseconds
    embed_ms: Milliseconds
    lexical_ms: Milliseconds
    dense_ms: Milliseconds
    fuse_ms: Milliseconds
    rerank_ms: Milliseconds
    read_ms: Milliseconds
    total_time_ms: Required[Milliseconds]


class RetrievalDebug(TypedDict):
    normalised_query: str
    expansions: list[str]
    retrieval_method: str
    fingerprint: str
    timings_ms: dict[str, Milliseconds]


class Retrieved(TypedDict):
    topk: Annotated[int, Field(ge=1, le=200)]
    num_docs: Count
    cache: CacheUse
    retrieval_docs: list[FoundArticle]
    rerank: RerankUse
    warnings: list[str]
    runtime_stats: RetrievalStats
    debug: NotRequired[RetrievalDebug]


class Usage(TypedDict, total=False):
    """上游所报的词元数，各次调用之和。"""

    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count


class GenerationFailure(TypedDict):
    code: Literal["generation_not_configured", "generation_upstream_error", "generation_response_invalid"]
    message: str
    details: dict[str, Any]


class GenerationStats(TypedDict, total=False):
    wait_ms: Milliseconds
    model_ms: Milliseconds
    total_time_ms: Required[Milliseconds]


class GenerationCall(TypedDict):
    raw: str
    fault: str


class GenerationDebug(TypedDict, total=False):
    calls: list[GenerationCall]
    attempts: Count
    structured_output: str
    system_prompt_sha256: str
    pred_docs: Required[list[dict[str, Any]]]


class Generated(TypedDict):
    ok: Annotated[bool, Field(description="false 时另有 error")]
    generation_mode: Literal["constrained"]
    answer_text: str
    pred_indices: list[Annotated[int, Field(ge=1)]]
    pred_items: list[str]
    pred_raw: str
    thinking: str
    generation_enable_thinking: bool
    model: str
    provider: str
    usage: Usage | None
    runtime_stats: GenerationStats
    error: NotRequired[GenerationFailure]
    debug: NotRequired[GenerationDebug]


# --- answers


class RetrieveAnswer(Retrieved):
    ok: Literal[True]
    request_id: str
    query: str
    scope: str


class GenerateAnswer(Generated):
    request_id: str


class RagStats(TypedDict):
    retrieval_ms: Milliseconds
    generation_ms: Milliseconds
    total_time_ms: Milliseconds


class RagAnswer(TypedDict):
    ok: Annotated[bool, Field(description="即 generation.ok")]
    request_id: str
    query: str
    scope: str
    retrieval: Retrieved
    generation: Generated
    runtime_stats: RagStats


class CitedArticle(TypedDict):
    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]

    law_name: str
    article_number: str
    contents: str


class Citation(TypedDict):
    raw: str
    law_name: str
    article_number: str
    status: Literal["exact", "article_absent", "law_not_in_corpus"]
    standing: NotRequired[Literal["in_force", "amended", "repealed", "pending"]]
    note: NotRequired[str]
    doc: NotRequired[CitedArticle]
    more_docs: NotRequired[list[CitedArticle]]


class VerifyStats(TypedDict):
    scan_ms: Milliseconds
    read_ms: Milliseconds
    total_time_ms: Milliseconds


class VerifyAnswer(TypedDict):
    ok: Literal[True]
    request_id: str
    scope: str
    citations: list[Citation]
    warnings: list[str]
    runtime_stats: VerifyStats


class ReadyAnswer(TypedDict):
    ok: Literal[True]
    active_scope: str
    num_docs: NotRequired[Count]


class ScopeInfo(TypedDict):
    label: str
    retrieval_method: str
    num_docs: Count
    fingerprint: str


class ProfilesAnswer(TypedDict):
    ok: Literal[True]
    profiles: dict[str, ScopeInfo]


# --- events of a stream; `final` is the answer, `error` is of the error catalogue


class ProgressEvent(TypedDict):
    stage: str
    label: str
    status: Literal["running", "done"]
    heartbeat: NotRequired[Literal[True]]


class RetrievalEvent(TypedDict):
    num_docs: Count
    retrieval_docs: list[ArticlePreview]
    cache: CacheUse
    round: NotRequired[Annotated[int, Field(ge=1)]]


class TokenEvent(TypedDict):
    channel: Literal["answer", "reasoning"]
    text: str


class TraceEvent(TypedDict):
    name: str
    status: str
    summary: str


class AgentEvent(TypedDict):
    event_id: str
    kind: Literal["observation", "search", "retry", "final"]
    status: str
    label: str


class AnswerResetEvent(TypedDict):
    reason: str


EVENTS: Mapping[str, Any] = {
    "progress": ProgressEvent,
    "retrieval": RetrievalEvent,
    "token": TokenEvent,
    "trace": TraceEvent,
    "agent": AgentEvent,
    "answer_reset": AnswerResetEvent,
}
"""Every event but the terminal ones."""
