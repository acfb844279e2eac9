"""The failures of vision modes as a caller reads them: no URL, no key, no prompt, no picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cg_rag.core.budget import Budget
from cg_rag.core.errors import CgError
from cg_rag.core.upstream_errors import UpstreamEmpty, UpstreamError
from cg_rag.core.upstream_words import REASON_WORDS, upstream_details


def vision_failure(error: UpstreamError, budget: Budget, stage: str) -> CgError:
    """What a failed call of the vision model is: the budget's end, an answer that is none, or the call's failure."""
    if error.reason == "budget_spent":
        return budget.exceeded(stage)
    details = upstream_details(error, error.attempts)
    if isinstance(error, UpstreamEmpty):
        return CgError("vision_response_invalid", "视觉模型的应答为空。", details)
    return CgError("vision_upstream_error", f"视觉模型调用失败：{REASON_WORDS[error.reason]}。", details)


def hybrid_failure(
    error: UpstreamError, budget: Budget, stage: str, more: Mapping[str, Any] | None = None
) -> CgError:
    """What a failed call of the hybrid mode's text model is. `more` goes into the details (`partial_answer`)."""
    if error.reason == "budget_spent":
        return budget.exceeded(stage)
    details = upstream_details(error, error.attempts) | dict(more or {})
    words = REASON_WORDS[error.reason]
    return CgError("hybrid_generation_upstream_error", f"垂域+RAG 的文本模型调用失败：{words}。", details)


def invalid_response(fault: str, attempts: int) -> CgError:
    """The vision model answered, and after its correction still not as it has to; `fault` is a Chinese clause."""
    return CgError(
        "vision_response_invalid",
        f"视觉模型的回答不能使用：{fault}。",
        {"reason": fault, "attempts": attempts},
    )


def check_vision_configured(is_configured: bool) -> None:
    """Raises vision_not_configured."""
    if not is_configured:
        raise CgError("vision_not_configured")


def check_hybrid_configured(is_vision_configured: bool, is_text_configured: bool) -> None:
    """Raises vision_not_configured, then hybrid_generation_not_configured."""
    check_vision_configured(is_vision_configured)
    if not is_text_configured:
        raise CgError("hybrid_generation_not_configured")
