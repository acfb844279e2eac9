"""What long work tells about itself, and how a terminal shows it."""

from __future__ import annotations

import sys
import time
from typing import Protocol, TextIO

_MIN_INTERVAL_SECONDS = 0.1
_BAR_CELLS = 24


class Progress(Protocol):
    """`start` opens a step of `total` units (None: unknown), `advance` adds to it, `finish` closes it."""

    def start(self, label: str, total: int | None) -> None: ...
    def advance(self, count: int) -> None: ...
    def finish(self) -> None: ...


class Silence:
    """Progress that nobody watches."""

    def start(self, label: str, total: int | None) -> None:
        pass

    def advance(self, count: int) -> None:
        pass

    def finish(self) -> None:
        pass


class TerminalProgress:
    """One line on `stream`, redrawn at most ten times a second; nothing at all when it is not a terminal."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._shown = self._stream.isatty()
        self._label = ""
        self._total: int | None = None
        self._done = 0
        self._drawn_at = 0.0

    def start(self, label: str, total: int | None) -> None:
        self._label, self._total, self._done = label, total, 0
        self._draw()

    def advance(self, count: int) -> None:
        self._done += count
        if time.monotonic() - self._drawn_at >= _MIN_INTERVAL_SECONDS:
            self._draw()

    def finish(self) -> None:
        self._draw()
        if self._shown:
            self._stream.write("\n")
            self._stream.flush()

    def _draw(self) -> None:
        self._drawn_at = time.monotonic()
        if self._shown:
            self._stream.write(f"\r\x1b[K{self._line()}")
            self._stream.flush()

    def _line(self) -> str:
        if not self._total:
            return f"{self._label} {self._done}"
        share = min(1.0, self._done / self._total)
        filled = round(share * _BAR_CELLS)
        bar = "█" * filled + "░" * (_BAR_CELLS - filled)
        return f"{self._label} {bar} {self._done}/{self._total} {share:.0%}"
