"""Counts that keep their place in memory, for a service of one process.

Rule: counting allocates nothing that stays. prometheus_client keeps a count as a Python float, a new one each time; at
the height of a burst each of those lies in a megabyte that was allocated for the burst, and holds it ever after. After
3,000 MCP calls at the same instant eleven counts lay in 6 of some 20 such megabytes (docs/benchmarks.md, MCP 入口).
"""

from __future__ import annotations

from array import array
from threading import Lock
from typing import Any

from prometheus_client import values


class SteadyValue:
    """What prometheus_client asks of a value (`values.MutexValue`); exemplars, which nobody here uses, are dropped."""

    _multiprocess = False

    def __init__(self, *_description: Any, **_more: Any) -> None:
        self._cell = array("d", (0.0,))
        self._lock = Lock()

    def inc(self, amount: float) -> None:
        with self._lock:
            self._cell[0] += amount

    def set(self, value: float, timestamp: float | None = None) -> None:
        with self._lock:
            self._cell[0] = value

    def get(self) -> float:
        return self._cell[0]

    def set_exemplar(self, exemplar: Any) -> None:
        pass

    def get_exemplar(self) -> None:
        return None


def count_in_place() -> None:
    """Make it before any metric: from then on all metrics of this process are `SteadyValue`s."""
    values.ValueClass = SteadyValue
