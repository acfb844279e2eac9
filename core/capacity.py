"""Named limiters: slots for work, bytes for request bodies. First come, first served, and never for ever.

Rule: whoever waited in vain is told `capacity.exceeded`; whoever is cancelled while waiting leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType

from cg_rag.core.account import note_stage
from cg_rag.core.errors import CgError

# Giving back asks for no context, and a callback that is given none has a copy made of its own.
_NO_CONTEXT = contextvars.Context()


class Lease:
    """What was taken from a limiter. `release()` may be called more than once; `with` releases at its end."""

    __slots__ = ("_amount", "_limiter")

    def __init__(self, limiter: Limiter, amount: int) -> None:
        self._limiter = limiter
        self._amount = amount

    @property
    def amount(self) -> int:
        return self._amount

    async def grow(self, amount: int) -> None:
        """Take more; raises `capacity.exceeded` and keeps what was taken before.

        Goes before all who wait: it holds units already, and only its end gives any back."""
        timeout = self._limiter.wait_timeout_seconds
        await self._limiter._acquire(amount, self._amount + amount, timeout, first=True)
        self._amount += amount

    def release(self) -> None:
        amount, self._amount = self._amount, 0
        if amount:
            self._limiter._give_back(amount)

    def release_with_task(self) -> None:
        """Give everything back when the current task ends; aiohttp gives every request a task of its own, which
        ends when the answer has been sent."""
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(self._release_after, context=_NO_CONTEXT)

    def _release_after(self, _task: asyncio.Task[object]) -> None:
        self.release()

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


class Limiter:
    """At most `max_units` taken at a time; a request for more than that at once is refused without waiting."""

    def __init__(self, resource: str, max_units: int, wait_timeout_seconds: float) -> None:
        self.resource = resource
        self.max_units = max_units
        self.wait_timeout_seconds = wait_timeout_seconds
        self._in_use = 0
        self._num_returned = 0
        self.num_refused = 0
        self._waiters: deque[tuple[asyncio.Future[None], int]] = deque()

    @property
    def in_use(self) -> int:
        return self._in_use

    @property
    def num_returned(self) -> int:
        """All units ever given back: what tells whether work has ended since the last look."""
        return self._num_returned

    def snapshot(self) -> dict[str, int]:
        """The numbers of /health."""
        return {
            "max": self.max_units,
            "in_use": self._in_use,
            "available": self.max_units - self._in_use,
            "waiting": len(self._waiters),
        }

    async def take(self, amount: int = 1, wait_timeout_seconds: float | None = None) -> Lease:
        """Wait for `amount` units; raises `capacity.exceeded` after `wait_timeout_seconds` (None: the limiter's)."""
        timeout = self.wait_timeout_seconds if wait_timeout_seconds is None else wait_timeout_seconds
        await self._acquire(amount, amount, timeout)
        return Lease(self, amount)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """One unit for the time of a `with` block."""
        with await self.take():
            yield

    async def _acquire(self, amount: int, total: int, wait_seconds: float, first: bool = False) -> None:
        if total > self.max_units:
            raise self._exceeded()
        if self._in_use + amount <= self.max_units and (first or not self._waiters):
            self._in_use += amount
            return
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        waiter = (turn, amount)
        (self._waiters.appendleft if first else self._waiters.append)(waiter)
        began = loop.time()
        try:
            async with asyncio.timeout(wait_seconds):
                await turn
        except BaseException as error:
            self._leave(waiter)
            if isinstance(error, TimeoutError):
                raise self._exceeded() from None
            raise
        finally:
            note_stage(f"wait_{self.resource}", loop.time() - began)

    def _leave(self, waiter: tuple[asyncio.Future[None], int]) -> None:
        """A waiter goes away; when its turn had just come the units pass on to the next one."""
        turn, amount = waiter
        if turn.done() and not turn.cancelled():
            self._give_back(amount)
            return
        # Not there when `_wake` met it between the cancellation and now.
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        self._wake()

    def _give_back(self, amount: int) -> None:
        self._in_use -= amount
        self._num_returned += amount
        self._wake()

    def _wake(self) -> None:
        while self._waiters and self._in_use + self._waiters[0][1] <= self.max_units:
            turn, amount = self._waiters.popleft()
            if turn.done():
                continue  # cancelled a moment ago, its task has not run yet
            self._in_use += amount
            turn.set_result(None)

    def _exceeded(self) -> CgError:
        self.num_refused += 1
        return CgError(
            "capacity.exceeded",
            details={
                "resource": self.resource,
                "max": self.max_units,
                "wait_timeout_seconds": self.wait_timeout_seconds,
            },
            headers={"Retry-After": str(max(1, round(self.wait_timeout_seconds)))},
        )
