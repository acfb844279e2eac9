"""How the cost of a text grows with its length, told without a clock's limit: machines differ, the shape does not."""

from __future__ import annotations

import time
from collections.abc import Callable


def assert_linear(work: Callable[[str], object], text: str) -> None:
    """Four times the text may cost four times as much, and some; sixteen times is quadratic. CPU time, best of three:
    whatever else the machine does only adds."""
    few, many = _cost(work, text[: len(text) // 4]), _cost(work, text)
    assert many < 10 * few + 0.02, f"{len(text) // 4} characters: {few:.3f} s, {len(text)}: {many:.3f} s"


def _cost(work: Callable[[str], object], text: str) -> float:
    spent = []
    for _ in range(3):
        started = time.process_time()
        work(text)
        spent.append(time.process_time() - started)
    return min(spent)
