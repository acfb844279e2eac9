"""What every vision mode does with a request before it asks the model, and what all their answers have in common."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from cg_rag.core.budget import Budget
from cg_rag.core.images import Image, ImageLimits, check_images, image_content
from cg_rag.core.vision_calls import VisionCalls
from cg_rag.core.vision_errors import check_vision_configured
from cg_rag.core.vision_request import PhotoRequest, history_messages, history_receipt
from cg_rag.modes.services import Services
from cg_rag.modes.upstreams import Upstream

CODES = (
    "invalid_image",
    "vision_not_configured",
    "vision_upstream_error",
    "vision_response_invalid",
    "vision_budget_exceeded",
)


@dataclass(slots=True)
class Intake:
    """A request whose pictures are checked and whose budget runs. `stats` are milliseconds."""

    request: PhotoRequest
    images: Sequence[Image]
    upstream: Upstream
    calls: VisionCalls
    started: float
    stats: dict[str, float] = field(default_factory=dict)

    def messages(self, system: str) -> list[dict[str, Any]]:
        """The system message, the earlier turns, then the pictures and the question."""
        content = [*image_content(self.images), {"type": "text", "text": self.request.question}]
        return [
            {"role": "system", "content": system},
            *history_messages(self.request.history),
            {"role": "user", "content": content},
        ]

    @asynccontextmanager
    async def slot(self, services: Services) -> AsyncIterator[None]:
        """One vision slot, for all that the request has a model do."""
        waiting = time.perf_counter()
        async with self.calls.budget.slot(services.vision_slots, "排队"):
            asked = time.perf_counter()
            self.stats["wait_ms"] = (asked - waiting) * 1000
            yield
            self.stats["model_ms"] = (time.perf_counter() - asked) * 1000

    def common(self) -> dict[str, Any]:
        """Fields of the answer that every mode has."""
        return {
            "image_count": len(self.images),
            "model": self.upstream.settings.model,
            **history_receipt(self.request.history),
            "usage": self.calls.usage,
        }

    @property
    def elapsed_ms(self) -> float:
        return round((time.perf_counter() - self.started) * 1000, 3)

    def runtime_stats(self) -> dict[str, float]:
        return {name: round(ms, 3) for name, ms in self.stats.items()} | {"total_time_ms": self.elapsed_ms}


def check_configured(services: Services) -> None:
    """Raises vision_not_configured."""
    check_vision_configured(services.vision is not None)


async def take_in(request: PhotoRequest, services: Services, enable_thinking: bool | None = None) -> Intake:
    """Check the pictures and start the budget. Raises CgError: vision_not_configured, invalid_image."""
    started = time.perf_counter()
    check_configured(services)
    upstream = services.vision
    assert upstream is not None, "checked above"
    settings = services.settings.vision
    limits = ImageLimits(settings.max_images, settings.max_image_bytes, settings.max_image_pixels)
    images = await check_images(request.images, limits)
    budget = Budget(services.vision_profile.total_budget_seconds)
    thinks = upstream.settings.enable_thinking if enable_thinking is None else enable_thinking
    return Intake(request, images, upstream, VisionCalls(upstream.chat(), budget, thinks), started)
