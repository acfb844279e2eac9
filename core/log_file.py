"""A log file that may be moved, removed or replaced under a running service: logrotate needs no signal.

Rule: a log that cannot be written never fails a request. It is said on standard error, once in ten seconds.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path
from typing import TextIO

from cg_rag.core.os_words import reason_of

COMPLAINT_SECONDS = 10.0
_MODE = 0o640  # with `log.contents` it holds what people asked
_BUFFER_BYTES = 256 * 1024  # a line is one write, so that those of several processes do not mix


class LogFile(logging.Handler):
    """Appends lines to `path`. Raises OSError when it cannot be opened at first."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._file: TextIO | None = _open(path)
        self._silent_until = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record) + "\n"
            file = self._current()
            file.write(line)
            file.flush()
        except Exception as error:
            # A full disk: what is left in the buffer would fail again in front of the next line.
            self._close_quietly()
            self._complain(error)

    def _current(self) -> TextIO:
        """The file that has the name now."""
        if self._file is not None and not _is_at(self._file, self._path):
            self._close_quietly()
        if self._file is None:
            self._file = _open(self._path)
        return self._file

    def _close_quietly(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        try:
            file.close()
        except OSError:
            return

    def _complain(self, error: Exception) -> None:
        now = time.monotonic()
        if now < self._silent_until:
            return
        self._silent_until = now + COMPLAINT_SECONDS
        reason = reason_of(error) if isinstance(error, OSError) else type(error).__name__
        try:
            print(f"日志文件 {self._path} 无法写入：{reason}", file=sys.stderr, flush=True)
        except (OSError, ValueError):
            return

    def close(self) -> None:
        self.acquire()
        try:
            self._close_quietly()
        finally:
            self.release()
        super().close()


def _open(path: Path) -> TextIO:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)
    return os.fdopen(descriptor, "w", _BUFFER_BYTES, encoding="utf-8", errors="backslashreplace")


def _is_at(file: TextIO, path: Path) -> bool:
    try:
        there = os.stat(path)
    except OSError:
        return False
    return os.path.samestat(there, os.fstat(file.fileno()))
