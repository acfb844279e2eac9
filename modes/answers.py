"""Which answer each route gives, and which events its stream may have: one table, for openapi.json.

A route below /cg-rag that answers JSON must be here; tests hold the table to the routes and real answers to the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cg_rag.core.answers import (
    GenerateAnswer,
    ProfilesAnswer,
    RagAnswer,
    ReadyAnswer,
    RetrieveAnswer,
    VerifyAnswer,
)
from cg_rag.core.health_answer import HealthAnswer
from cg_rag.core.vision_answers import AgenticAnswer, FreeFormAnswer, HybridAnswer, ObserveAnswer

ANSWERS: Mapping[str, Any] = {
    "/health": HealthAnswer,
    "/ready": ReadyAnswer,
    "/profiles": ProfilesAnswer,
    "/openapi.json": dict[str, Any],
    "/retrieve-rerank": RetrieveAnswer,
    "/constrained-generate": GenerateAnswer,
    "/rag": RagAnswer,
    "/verify-citations": VerifyAnswer,
    "/vision/answer": FreeFormAnswer,
    "/vision/observe": ObserveAnswer,
    "/vision/agentic": AgenticAnswer,
    "/vision/hybrid": HybridAnswer,
}

_TEXT = ("progress", "token", "answer_reset")
STREAM_EVENTS: Mapping[str, tuple[str, ...]] = {
    "/constrained-generate": _TEXT,
    "/rag": (*_TEXT, "retrieval"),
    "/vision/answer": _TEXT,
    "/vision/agentic": (*_TEXT, "trace", "agent"),
    "/vision/hybrid": (*_TEXT, "trace", "agent", "retrieval"),
}
"""Beside `final`, which is the answer, and `error`."""
