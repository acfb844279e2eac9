"""The shape of /health, as types. docs/http.md.

What is not required is left out for a caller without key on a service that has keys.
"""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from cg_rag.core.answers import Count


class ActiveProfile(TypedDict):
    scope: str
    label: str
    retrieval_method: str
    num_docs: NotRequired[Count]
    fingerprint: NotRequired[str]


class IndexHealth(TypedDict):
    state: Literal["loading", "ready", "degraded", "missing"]
    num_docs: NotRequired[Count]
    fingerprint: NotRequired[str]
    built_at: NotRequired[str]
    embedding_model: NotRequired[str]
    dim: NotRequired[Count]
    dtype: NotRequired[str]
    backend: NotRequired[Literal["numpy", "milvus"]]
    bytes_resident: NotRequired[Count]
    faults: NotRequired[list[str]]


class GenerationHealth(TypedDict):
    configured: bool
    provider: str
    model: str
    enable_thinking: bool
    streaming: bool


class HybridHealth(TypedDict):
    configured: bool
    model: str


class RerankHealth(TypedDict):
    api_enabled: bool
    model: str
    method: Literal["onnx", "api", "fused"]


class VisionHealth(TypedDict):
    configured: bool
    model: NotRequired[str]
    profile: NotRequired[str]
    workflow: NotRequired[str]
    experimental: NotRequired[bool]
    prompt_sha256: NotRequired[str]
    agentic_prompt_sha256: NotRequired[str]
    criteria_sha256: NotRequired[str]
    prompt_pins_ok: NotRequired[bool]
    total_budget_seconds: NotRequired[float]
    sse_heartbeat_seconds: NotRequired[float]
    strict_retrieval_failure: NotRequired[bool]
    max_images: NotRequired[Count]
    max_image_bytes: NotRequired[Count]
    hazard_taxonomy_version: NotRequired[str]


class LimiterHealth(TypedDict):
    max: Count
    in_use: Count
    available: Count
    waiting: Count


class CacheHealth(TypedDict):
    entries: Count
    bytes: Count
    hits: Count
    misses: Count


class MemoryHealth(TypedDict):
    rss_bytes: Count


class WorkerHealth(TypedDict):
    number: Count
    count: Count
    running: Count
    restarts: Count
    pid: Count


class HealthAnswer(TypedDict):
    ok: Literal[True]
    service: Literal["CG_RAG"]
    version: str
    uptime_seconds: NotRequired[float]
    available_scopes: list[str]
    active_scope: str
    profile: ActiveProfile
    index: IndexHealth
    generation: GenerationHealth
    hybrid_generation: HybridHealth
    rerank: RerankHealth
    vision: VisionHealth
    capacity: NotRequired[dict[str, LimiterHealth]]
    cache: NotRequired[CacheHealth]
    memory: NotRequired[MemoryHealth]
    worker: NotRequired[WorkerHealth]
