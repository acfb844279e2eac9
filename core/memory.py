"""Resident memory of this process: how much it is, and giving back what the allocator keeps.

Rule: glibc keeps freed memory for the next time. On a box with tight memory the next process needs it more, so what a
model load or a burst of questions left behind goes back to the kernel when things are quiet (about 2 ms).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache

_M_ARENA_MAX = -8  # from malloc.h
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """What the kernel counts as resident."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES


def give_back() -> None:
    """Return freed memory to the kernel; nothing where the C library has no malloc_trim (musl)."""
    trim = _find_trim()
    if trim is not None:
        trim(0)


def share_arenas() -> None:
    """Let all threads allocate from two arenas. By default glibc gives each thread one of its own, and each keeps what
    one search needed: after 32 questions at once 184 MiB stayed, so 172. To be called before threads are started."""
    try:
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)
    except (OSError, AttributeError):
        return


@cache
def _find_trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
