"""How the cost of a text grows with its length, told without a clock's limit: machines differ, the shape does not."""

from __future__ import annotations

import time
from collections.abc import Callable

# The best of so many; after a slow spell of the machine it is tried again, when that has passed.
NUM_RUNS = 3
NUM_TRIES = 6
PAUSE_SECONDS = 1.0


def assert_linear(work: Callable[[str], object], text: str) -> None:
    """Four times the text may cost four times as much, and some; sixteen times is quadratic."""
    assert_grows_linearly(lambda: work(text[: len(text) // 4]), lambda: work(text), 0.02)


def assert_grows_linearly(
    few: Callable[[], object], many: Callable[[], object], slack_seconds: float
) -> None:
    """`many` is four times the work of `few`. CPU time, the two in turn and the best of each: whatever else the machine
    does only adds."""
    costs: tuple[list[float], list[float]] = ([], [])
    for attempt in range(NUM_TRIES):
        time.sleep(PAUSE_SECONDS if attempt else 0)
        for _ in range(NUM_RUNS):
            for work, spent in zip((few, many), costs, strict=True):
                started = time.process_time()
                work()
                spent.append(time.process_time() - started)
        short, long = map(min, costs)
        if long < 10 * short + slack_seconds:
            return
    raise AssertionError(f"a quarter of the work: {short:.3f} s, the whole: {long:.3f} s")
