"""Who is at work in a service of several processes, kept in a folder that all of them see.

Rule: the process that starts the workers writes who lives, each worker only counts of its own (core/shared_counts.py);
so nobody waits for another, and what a worker counted outlives it.

The folder goes with the service. One that was killed with all its processes leaves it to the next to tidy up: a lock
that a living service holds tells the two apart.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_BASE: Final = "/dev/shm"  # in memory
_PREFIX: Final = "cg-rag-workers-"
_LOCK: Final = "lock"
_YOUNG_SECONDS: Final = 60.0  # between making a folder and locking it
# Where prometheus_client keeps what stands (not what was counted) in the process called {number}: it ends with it.
_STANDING: Final = "gauge_live*_{number}.db"
# Its files, each with more bytes than all that one worker can ever count and note take (tests hold it to that). Left
# to itself it makes them without room: a page that then finds none ends the process that touches it (SIGBUS).
_ROOM: Final[Mapping[str, int]] = {
    "counter": 256 * 1024,
    "histogram": 512 * 1024,
    "gauge_livesum": 64 * 1024,
    "gauge_livemax": 64 * 1024,
    "gauge_livemin": 64 * 1024,
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A worker's number through all its lives; `pid` 0 while it is not running."""

    number: int
    pid: int
    restarts: int


class Roster:
    """`folder` exists, and is for this service alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def make(cls, num_workers: int) -> Roster:
        """In a new folder, which this process and those it forks keep locked. Raises OSError where none can be had."""
        bases = [Path(_BASE), Path(tempfile.gettempdir())]
        for left in (left for base in bases for left in base.glob(_PREFIX + "*")):
            _remove_if_left(left)
        needed = num_workers * sum(_ROOM.values())
        base = next((base for base in bases if _has_room(base, needed)), bases[-1])
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
        # Never closed: the end of the last process that has it open unlocks it.
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return cls(folder)

    def reserve(self, number: int) -> None:
        """For the worker `number`, before it counts: take the room for all it will. Raises OSError where it is not."""
        for kind, size in _ROOM.items():
            file = os.open(self.folder / f"{kind}_{number}.db", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(file, 0, size)
            finally:
                os.close(file)

    def write(self, entry: Entry) -> None:
        """For the process that starts the workers. What an ended worker had standing, slots in use for one, is
        forgotten. Raises OSError."""
        if not entry.pid:
            for path in self.folder.glob(_STANDING.format(number=entry.number)):
                path.unlink(missing_ok=True)
        # Renamed into place: a reader never sees half of it.
        unfinished = self.folder / f"{entry.number}.new"
        unfinished.write_text(f"{entry.pid} {entry.restarts}", "ascii")
        unfinished.replace(self.folder / f"{entry.number}.worker")

    def read(self) -> list[Entry]:
        """All workers that were ever started, by number; empty once the service has ended."""
        entries = []
        for path in self.folder.glob("*.worker"):
            with suppress(FileNotFoundError):
                pid, restarts = path.read_text("ascii").split()
                entries.append(Entry(int(path.stem), int(pid), int(restarts)))
        return sorted(entries, key=lambda entry: entry.number)

    def remove(self) -> None:
        """The service has ended. What cannot be removed is left."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _has_room(base: Path, num_bytes: int) -> bool:
    if not os.access(base, os.W_OK | os.X_OK):
        return False
    free = os.statvfs(base)
    return free.f_bavail * free.f_frsize >= num_bytes


def _remove_if_left(folder: Path) -> None:
    """Remove `folder` unless a service that lives, or has just begun, holds it, or it is another user's."""
    with suppress(OSError):
        if time.time() - folder.stat().st_mtime < _YOUNG_SECONDS:
            return
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
