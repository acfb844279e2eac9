"""Which files below a folder this process holds open; what else it has open comes and goes with other tests' threads."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

DESCRIPTORS = Path("/proc/self/fd")


def open_below(folder: Path) -> list[str]:
    found = []
    for descriptor in os.listdir(DESCRIPTORS):
        with suppress(FileNotFoundError):  # it was closed since it was listed
            target = os.readlink(DESCRIPTORS / descriptor)
            if Path(target).is_relative_to(folder.resolve()):
                found.append(target)
    return sorted(found)
