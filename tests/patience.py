"""Limits of time, held on a machine that does other things too."""

from __future__ import annotations

from collections.abc import Callable


def assert_within(seconds: float, attempt: Callable[[], float], tries: int = 5) -> None:
    """`attempt` does all of it anew and tells how long the service took; one that took less than `seconds` is enough.

    Whatever else the machine does only adds, so the least of some tells of the service; one that is too slow by itself
    is so every time.
    """
    taken: list[float] = []
    while not taken or taken[-1] >= seconds:
        assert len(taken) < tries, f"never within {seconds} s: {taken}"
        taken.append(attempt())
