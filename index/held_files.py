"""Files that stay readable whatever happens to their names, held by references and not by bookkeeping.

Rule: a descriptor or a map is closed when the last reference to it goes, so a thread in the middle of a
read never finds its file closed, or worse, its number given to another file.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cg_rag.index.errors import IndexDamaged
from cg_rag.index.os_words import reason_of

BLOCK_BYTES = 1 << 20
MAX_BYTES = 1 << 62


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

    def read_rows(self, rows: NDArray[np.int64], row_bytes: int, first: int = 0) -> NDArray[np.uint8]:
        """uint8 [len(rows), row_bytes]: rows of equal length that begin at byte `first`, in any order.

        Only these rows are read; a map would pull their neighbours into memory. Raises IndexDamaged.
        """
        found = np.empty((len(rows), row_bytes), np.uint8)
        if (rows[1:] >= rows[:-1]).all():
            self._read_ascending(rows, found, first)
            return found
        order = np.argsort(rows, kind="stable")
        self._read_ascending(rows[order], ascending := np.empty_like(found), first)
        found[order] = ascending
        return found

    def _read_ascending(self, rows: NDArray[np.int64], found: NDArray[np.uint8], first: int) -> None:
        row_bytes = found.shape[1]
        # A new read begins where a row does not follow the one before it.
        starts = [0, *(np.flatnonzero(np.diff(rows) != 1) + 1).tolist(), len(rows)]
        for start, stop in pairwise(starts):
            if start < stop:
                self._read_into(found[start:stop].data.cast("B"), first + int(rows[start]) * row_bytes)

    def _read_into(self, target: memoryview, offset: int) -> None:
        while target:
            try:
                count = os.preadv(self.descriptor, [target], offset)
            except OSError as error:
                raise IndexDamaged(self.name, f"无法读取：{reason_of(error)}") from error
            if not count:
                raise IndexDamaged(self.name, "文件在读取时变短", f"第 {offset} 字节之后还有内容", "没有")
            target, offset = target[count:], offset + count

    def blocks(self, start: int = 0, stop: int = MAX_BYTES) -> Iterator[bytes]:
        """The bytes `start` .. `stop`, or to the end of the file."""
        while block := self.read(start, min(BLOCK_BYTES, stop - start)):
            start += len(block)
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

    def blocks(self, start: int = 0, stop: int = MAX_BYTES) -> Iterator[memoryview]:
        """The bytes `start` .. `stop`, or to the end of the file."""
        memory = self.memory
        if memory is None:
            return
        stop = min(stop, len(memory))
        with memoryview(memory) as view:
            for offset in range(start, stop, BLOCK_BYTES):
                with view[offset : min(offset + BLOCK_BYTES, stop)] as block:
                    size = len(block)
                    yield block
                # Hashing must not leave the whole file in our resident memory.
                page = offset % mmap.PAGESIZE
                memory.madvise(mmap.MADV_DONTNEED, offset - page, size + page)


def open_file(folder: int, name: str) -> HeldFile:
    """Open a file of the folder that the descriptor `folder` stands for. Raises IndexDamaged."""
    try:
        return HeldFile(folder, name)
    except FileNotFoundError as error:
        raise IndexDamaged(name, "文件缺失") from error
    except OSError as error:
        raise IndexDamaged(name, f"无法打开：{reason_of(error)}") from error
