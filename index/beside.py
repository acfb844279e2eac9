"""Two pieces of one search at the same time, while there is hardly another one.

Rule: a thread more shortens an answer only where a processor has nothing to do. Who finds others at work does one piece
after the other, so that many searches at once cost what they did, and hold up the event loop no more.
"""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

First = TypeVar("First")
Second = TypeVar("Second")


class Spare:
    """`num_processors` is how many this process may take for its own: with 1 everything is done by the caller."""

    def __init__(self, num_processors: int) -> None:
        self.num_processors = num_processors
        self._lock = threading.Lock()
        self._num_running = 0  # callers, and threads that help them
        self._thread = threading.local()  # `is_counted`: a piece that has pieces itself is one

    def both(self, first: Callable[[], First], second: Callable[[], Second]) -> tuple[First, Second]:
        """What the two return. `second` may run in another thread, in a copy of the caller's context; it has ended when
        this returns or raises. Of two errors that of `first` is raised; a piece that should end when the other fails
        has to be told so by the caller."""
        if getattr(self._thread, "is_counted", False):
            return self._both(first, second)
        with self._lock:
            self._num_running += 1
        self._thread.is_counted = True
        try:
            return self._both(first, second)
        finally:
            self._thread.is_counted = False
            self._leave()

    def _both(self, first: Callable[[], First], second: Callable[[], Second]) -> tuple[First, Second]:
        helper = self._start(second)
        if helper is None:
            return first(), second()
        try:
            done = first()
        finally:
            helper.join()
        return done, helper.result()

    def _start(self, work: Callable[[], Second]) -> _Helper[Second] | None:
        """None where no processor is free, and where the system has no room for a thread."""

        def counted() -> Second:
            self._thread.is_counted = True
            return work()

        with self._lock:
            if self._num_running >= self.num_processors:
                return None
            self._num_running += 1
        helper = _Helper(counted, self._leave)
        try:
            helper.start()
        except BaseException as error:
            self._leave()
            if isinstance(error, RuntimeError):
                return None
            raise
        return helper

    def _leave(self) -> None:
        with self._lock:
            self._num_running -= 1


class _Helper(threading.Thread, Generic[Second]):
    """Starting one takes 0.1 ms, next to pieces of 5 to 100 ms; none is kept."""

    def __init__(self, work: Callable[[], Second], at_end: Callable[[], None]) -> None:
        super().__init__(name="beside")
        self._work = work
        self._at_end = at_end
        self._context = contextvars.copy_context()
        self._found: list[Second] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._found.append(self._context.run(self._work))
        except BaseException as error:
            self._error = error
        finally:
            self._at_end()

    def result(self) -> Second:
        """To be asked for after `join`."""
        if self._error is not None:
            raise self._error
        return self._found[0]


NUM_PROCESSORS = len(os.sched_getaffinity(0))
SPARE = Spare(NUM_PROCESSORS)
"""The one of this process, for the searches of all indexes."""


def share_processors(num_processes: int) -> None:
    """Several processes that serve the same port take the same part each."""
    SPARE.num_processors = max(1, NUM_PROCESSORS // num_processes)
