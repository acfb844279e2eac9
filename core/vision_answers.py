"""The shapes of the vision modes' answers, as types. docs/vision.md."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, Required

from pydantic import Field
from typing_extensions import TypedDict

from cg_rag.core.answers import Article, Milliseconds, Usage

SceneStatus = Literal["assessable", "unsupported_scene", "insufficient_visual_evidence", "not_assessed"]


class VisionStats(TypedDict, total=False):
    wait_ms: Milliseconds
    retrieval_ms: Milliseconds
    model_ms: Milliseconds
    text_ms: Milliseconds
    total_time_ms: Required[Milliseconds]


class ReasoningStage(TypedDict):
    label: str
    content: str


class TraceNode(TypedDict):
    name: str
    status: str
    summary: str


class PhotoAnswer(TypedDict):
    """What all vision answers have."""

    ok: Literal[True]
    request_id: str
    image_count: Annotated[int, Field(ge=1)]
    model: str
    history_turn_count: NotRequired[Annotated[int, Field(ge=1, description="请求带有 history 时")]]
    usage: Usage | None


class ReportAnswer(PhotoAnswer):
    """What the reports have beside it."""

    question: str
    answer: str
    thinking_enabled: bool
    citations: list[Annotated[int, Field(ge=1)]]
    retrieval_docs: Annotated[list[Article], Field(description="证据：citations 中的 n 指第 n 项，从 1 起")]
    hazard_categories: Annotated[
        list[str | None],
        Field(description="按图片次序，每张一项；不是施工现场或画面不足时为 null；非隐患类问题为空数组"),
    ]
    hazard_taxonomy_version: str
    warnings: list[str]
    runtime_stats: VisionStats


class FreeFormAnswer(ReportAnswer):
    mode: Literal["free_form"]
    reasoning: str


class EvidenceAnswer(ReportAnswer):
    """What rests on retrieved articles."""

    scope: str
    reasoning_stages: list[ReasoningStage]
    pipeline_trace: list[TraceNode]
    evidence_status: Literal["cited", "uncited", "none"]
    scene_status: SceneStatus


class AgenticAnswer(EvidenceAnswer):
    mode: Literal["agentic"]
    profile: NotRequired[str]


class HybridAnswer(EvidenceAnswer):
    mode: Literal["hybrid"]
    description: Annotated[str, Field(description="视觉模型的描述")]
    generation_model: str
    match_type: Literal["hybrid_vision_agentic"]


class ObserveAnswer(PhotoAnswer):
    mode: Literal["observe"]
    text: str
    hazard_label: str
    hazard_description: str
    is_non_scene: bool
    parse_status: Literal["succeeded", "failed"]
    parse_error: str
    profile_id: Literal["construction-hazard-inspection-v1"]
    system_prompt_sha256: str
    elapsed_ms: Milliseconds
