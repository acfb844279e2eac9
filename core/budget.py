"""The wall clock of one request: how much is left, what may still begin, and an end for every wait.

Rule: one budget is made when the request has been checked, every phase asks it before it begins, and no wait for a
slot or an upstream is longer than what is left of it. Monotonic: a stepped clock changes nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from cg_rag.core.capacity import Limiter
from cg_rag.core.errors import CgError


class Budget:
    """`total_seconds` from now on. `clock` is for tests."""

    def __init__(self, total_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.total_seconds = total_seconds
        self._clock = clock
        self._ends_at = clock() + total_seconds

    def remaining(self) -> float:
        """Seconds left, never below 0: what an upstream call is given as `budget_seconds`."""
        return max(0.0, self._ends_at - self._clock())

    @property
    def is_spent(self) -> bool:
        return self.remaining() <= 0

    def check(self, stage: str) -> None:
        """Raises vision_budget_exceeded when nothing is left for `stage` (Chinese, for the message)."""
        if self.is_spent:
            raise self.exceeded(stage)

    def exceeded(self, stage: str) -> CgError:
        return CgError(
            "vision_budget_exceeded",
            f"整单时限 {self.total_seconds:g} 秒已在“{stage}”阶段用完，没有可以发布的结果；"
            "可减少图片、缩小图片，或调大 vision.total_budget_seconds。",
            {"stage": stage, "total_budget_seconds": self.total_seconds},
        )

    @asynccontextmanager
    async def bounding(self, stage: str) -> AsyncIterator[None]:
        """A `with` block that may take what is left and no more; raises vision_budget_exceeded beyond that."""
        self.check(stage)
        try:
            async with asyncio.timeout(self.remaining()) as limit:
                yield
        except TimeoutError:
            # A time-out of something inside is not ours to rename.
            if limit.expired():
                raise self.exceeded(stage) from None
            raise

    @asynccontextmanager
    async def slot(self, limiter: Limiter, stage: str, patient: bool = False) -> AsyncIterator[None]:
        """One slot of `limiter` for a `with` block that itself is not bounded.

        The wait ends with capacity.exceeded after the limiter's own time, or with vision_budget_exceeded; `patient`
        (a retrieval inside a request that has a generation slot) leaves it the budget alone.
        """
        async with self.bounding(stage):
            lease = await limiter.take(wait_timeout_seconds=self.remaining() + 1 if patient else None)
        with lease:
            yield
