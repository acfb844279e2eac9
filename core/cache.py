"""LRU cache with a byte bound and a lifetime; identical computations in flight are done once.

Rule: a computation belongs to everybody who waits for it. It runs in a task of its own, one waiter that leaves does
not disturb the others, and when the last one has left it is cancelled.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Computed(Generic[Value]):
    """`num_bytes` is what the value costs in memory; a degraded answer is not `cacheable`."""

    value: Value
    num_bytes: int
    cacheable: bool = True


@dataclass(slots=True)
class _Entry(Generic[Value]):
    value: Value
    num_bytes: int
    expires_at: float


@dataclass(slots=True)
class _Flight(Generic[Value]):
    task: asyncio.Task[Computed[Value]]
    waiters: int = 0


class Cache(Generic[Value]):
    """`max_bytes` 0 switches storing off; computations in flight are shared all the same."""

    def __init__(
        self, max_bytes: int, ttl_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_bytes = max_bytes
        self._ttl_seconds = ttl_seconds
        self._clock = clock
        self._entries: OrderedDict[Hashable, _Entry[Value]] = OrderedDict()
        self._flights: dict[Hashable, _Flight[Value]] = {}
        self._num_bytes = 0
        self.hits = 0
        self.misses = 0

    def snapshot(self) -> dict[str, int]:
        """The numbers of /health."""
        return {
            "entries": len(self._entries),
            "bytes": self._num_bytes,
            "hits": self.hits,
            "misses": self.misses,
        }

    async def get_or_compute(
        self, key: Hashable, compute: Callable[[], Awaitable[Computed[Value]]]
    ) -> tuple[Value, bool]:
        """Return (value, hit). Raises what `compute` raises; a failure is never stored."""
        entry = self._find(key)
        if entry is not None:
            self.hits += 1
            return entry.value, True
        self.misses += 1
        return await self._join(key, compute), False

    async def _join(self, key: Hashable, compute: Callable[[], Awaitable[Computed[Value]]]) -> Value:
        flight = self._flights.get(key)
        if flight is None:
            flight = _Flight(asyncio.ensure_future(self._run(key, compute)))
            self._flights[key] = flight
        flight.waiters += 1
        try:
            return (await asyncio.shield(flight.task)).value
        finally:
            flight.waiters -= 1
            if flight.waiters == 0 and not flight.task.done():
                self._forget(key, flight)
                flight.task.cancel()
                # Nobody is told before the work has really ended, so that its slot is free by then.
                await asyncio.wait([flight.task])

    async def _run(self, key: Hashable, compute: Callable[[], Awaitable[Computed[Value]]]) -> Computed[Value]:
        try:
            computed = await compute()
        finally:
            flight = self._flights.get(key)
            if flight is not None and flight.task is asyncio.current_task():
                self._forget(key, flight)
        if computed.cacheable:
            self._store(key, computed)
        return computed

    def _forget(self, key: Hashable, flight: _Flight[Value]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]

    def _find(self, key: Hashable) -> _Entry[Value] | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.expires_at <= self._clock():
            self._remove(key)
            return None
        self._entries.move_to_end(key)
        return entry

    def _store(self, key: Hashable, computed: Computed[Value]) -> None:
        if computed.num_bytes > self._max_bytes:
            return
        if key in self._entries:
            self._remove(key)
        self._entries[key] = _Entry(computed.value, computed.num_bytes, self._clock() + self._ttl_seconds)
        self._num_bytes += computed.num_bytes
        while self._num_bytes > self._max_bytes:
            self._remove(next(iter(self._entries)))

    def _remove(self, key: Hashable) -> None:
        self._num_bytes -= self._entries.pop(key).num_bytes
