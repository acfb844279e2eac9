"""Files that stay readable whatever happens to their names, held by references and not by bookkeeping.

Rule: a descriptor or a map is closed when the last reference to it goes, so a thread in the middle of a
read never finds its file closed, or worse, its number given to another file.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cg_rag.index.errors import IndexDamaged

BLOCK_BYTES = 1 << 20


class HeldFile:
    """An open file, closed when the last reference goes: a thread in the middle of a read keeps it open."""

    __slots__ = ("descriptor", "name")

    def __init__(self, folder: int, name: str) -> None:
        self.descriptor = -1
        self.name = name
        # Without O_NONBLOCK a pipe under this name would block for ever.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        self.descriptor = os.open(name, flags, dir_fd=folder)
        if not stat.S_ISREG(os.fstat(self.descriptor).st_mode):
            raise IndexDamaged(name, "不是普通文件")

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)

    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    def read(self, offset: int, length: int) -> bytes:
        """Fewer bytes than asked for only at the end of the file."""
        parts = []
        while length > 0 and (part := os.pread(self.descriptor, length, offset)):
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return b"".join(parts)

    def blocks(self) -> Iterator[bytes]:
        offset = 0
        while block := self.read(offset, BLOCK_BYTES):
            offset += len(block)
            yield block


class MappedFile:
    """A mapped array. Empty files cannot be mapped, so `memory` is None for them."""

    __slots__ = ("array", "memory", "name")

    def __init__(self, file: HeldFile, dtype: str, size: int) -> None:
        self.name = file.name
        self.memory = mmap.mmap(file.descriptor, size, access=mmap.ACCESS_READ) if size else None
        self.array: NDArray[Any] = np.frombuffer(self.memory or b"", dtype=dtype)

    def size(self) -> int:
        return self.memory.size() if self.memory else 0

    def blocks(self) -> Iterator[memoryview]:
        memory = self.memory
        if memory is None:
            return
        with memoryview(memory) as view:
            for offset in range(0, len(view), BLOCK_BYTES):
                with view[offset : offset + BLOCK_BYTES] as block:
                    yield block
                # Hashing must not leave the whole file in our resident memory.
                memory.madvise(mmap.MADV_DONTNEED, offset, min(BLOCK_BYTES, len(memory) - offset))


def open_file(folder: int, name: str) -> HeldFile:
    """Open a file of the folder that the descriptor `folder` stands for. Raises IndexDamaged."""
    try:
        return HeldFile(folder, name)
    except FileNotFoundError as error:
        raise IndexDamaged(name, "文件缺失") from error
    except OSError as error:
        raise IndexDamaged(name, f"无法打开：{error.strerror}") from error
