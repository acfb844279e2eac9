"""The scan: one approximate score for every int8 row of some ranges, by NumPy or by ONNX Runtime.

Rule: a score is a product of two floats, the scale of its row and a whole number. Query levels are such that
the whole number is exact (vectors.encode_queries), so neither the kernel, nor the CPU, nor what else is
computed beside it changes a score by one bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from cg_rag.index.onnx import IntegerMatMul
from cg_rag.index.vectors import SCAN_LEVELS

Floats = NDArray[np.float32]
Ranges = Sequence[tuple[int, int]]
KernelName = Literal["numpy", "onnx"]

# One block of float32 rows is written and read while it lies in the second-level cache.
BLOCK_BYTES = 512 << 10
# Rows of one constant of the onnx kernel; a scan computes only the slabs that its ranges touch. 24,000 rows
# in slabs of 4096 take 0.17 ms, in two 0.13 ms.
SLAB_ROWS = 16384
_ROWS_MULTIPLE = 64  # of the matrix kernels of BLAS; other heights cost up to a tenth more
_MAX_VECTORS = 4  # so many products with a vector cost less than one with a matrix
_LINE_BYTES = 64
_COLUMNS_MULTIPLE = 8  # six queries cost 3.4 ms, filled up to eight with zeros 2.7 ms (24,000 x 384)


class Kernel(Protocol):
    """Safe to use from several threads."""

    name: KernelName

    def score(self, levels: Floats, ranges: Ranges) -> Floats:
        """`levels` float32 [Q, D], whole -> float32 [Q, rows of all `ranges` in order]."""
        ...


class NumpyKernel:
    """Blocks of int8 rows become float32 in one buffer of 512 KiB, which BLAS multiplies."""

    name: KernelName = "numpy"

    def __init__(self, scan: NDArray[np.int8], scales: Floats, block_bytes: int = BLOCK_BYTES) -> None:
        self._scan = scan
        self._scales = scales
        rows = block_bytes // (4 * max(1, scan.shape[1]))
        self._block_rows = max(_ROWS_MULTIPLE, rows // _ROWS_MULTIPLE * _ROWS_MULTIPLE)
        # At most one, taken out while in use: memory that is new each time costs a tenth of a scan.
        self._spare: list[Floats] = []

    def score(self, levels: Floats, ranges: Ranges) -> Floats:
        scores = np.empty((len(levels), count_rows(ranges)), np.float32)
        multiply, columns = _plan(levels)
        buffer = self._take_buffer()
        at = 0
        for spans in _blocks(ranges, self._block_rows):
            block = self._fill(buffer, spans)
            multiply(block, columns, scores[:, at : at + len(block)])
            at += len(block)
        self._spare[:] = [buffer]
        # Once for all rows: for each block it would cost more calls than work.
        scores *= _join(self._scales, ranges)
        return scores

    def _take_buffer(self) -> Floats:
        try:
            return self._spare.pop()
        except IndexError:
            return _aligned(self._block_rows, self._scan.shape[1])

    def _fill(self, buffer: Floats, spans: Ranges) -> Floats:
        end = 0
        for start, stop in spans:
            begin, end = end, end + stop - start
            buffer[begin:end] = self._scan[start:stop]
        return buffer[:end]


def _aligned(rows: int, columns: int) -> Floats:
    """float32 [rows, columns] that begins with a line of the cache: stores across two of them cost a tenth more."""
    raw = np.empty(rows * columns * 4 + _LINE_BYTES, np.uint8)
    start = -raw.ctypes.data % _LINE_BYTES
    return raw[start : start + rows * columns * 4].view(np.float32).reshape(rows, columns)


def _join(values: Floats, ranges: Ranges) -> Floats:
    """What `ranges` hold of `values`, in order."""
    if len(ranges) == 1:
        return values[ranges[0][0] : ranges[0][1]]
    return np.concatenate([np.empty(0, np.float32), *(values[start:stop] for start, stop in ranges)])


def _plan(levels: Floats) -> tuple[Callable[[Floats, Floats, Floats], None], Floats]:
    """(how to multiply a block, the queries as columns float32 [D, Q or more])"""
    if len(levels) <= _MAX_VECTORS:
        return _by_vector, levels.T
    columns = np.zeros(
        (levels.shape[1], -(-len(levels) // _COLUMNS_MULTIPLE) * _COLUMNS_MULTIPLE), np.float32
    )
    columns[:, : len(levels)] = levels.T
    return _by_matrix, columns


def _by_vector(block: Floats, columns: Floats, out: Floats) -> None:
    for place, row in enumerate(out):
        np.dot(block, columns[:, place], out=row)


def _by_matrix(block: Floats, columns: Floats, out: Floats) -> None:
    # The block on the left: with the queries there, BLAS takes longer than it takes to turn the result.
    out[:] = np.dot(block, columns).T[: len(out)]


class OnnxKernel:
    """The scan as constants of integer matrix products: one more copy in memory, in the runtime's layout."""

    name: KernelName = "onnx"

    def __init__(self, scan: NDArray[np.int8], scales: Floats) -> None:
        """Raises ModelInvalid where the runtime cannot work."""
        self._scales = scales
        self._slabs = [
            IntegerMatMul(scan[start : start + SLAB_ROWS]) for start in range(0, len(scan), SLAB_ROWS)
        ]
        worst = np.full((1, scan.shape[1]), SCAN_LEVELS, np.int8)
        self.is_exact = adds_exactly(scan, [slab(worst)[0] for slab in self._slabs])

    def score(self, levels: Floats, ranges: Ranges) -> Floats:
        scores = np.empty((len(levels), count_rows(ranges)), np.float32)
        whole = levels.astype(np.int8)
        at = 0
        for slab, spans in _by_slab(ranges):
            dots = self._slabs[slab](whole)
            for start, stop in spans:
                part = scores[:, at : at + stop - start]
                part[:] = dots[:, start:stop]
                part *= self._scales[slab * SLAB_ROWS + start : slab * SLAB_ROWS + stop]
                at += stop - start
        return scores


def adds_exactly(scan: NDArray[np.int8], found: Sequence[NDArray[np.int32]]) -> bool:
    """Whether `found`, the products of all rows with a query of nothing but 127, were cut off nowhere.

    CPUs before VNNI add pairs of products in 16 bits. The runtime shifts the query to 1 .. 255: all factors are
    positive, and the highest ones give every pair its largest sum, so no other query does worse.
    """
    expected = scan.sum(axis=1, dtype=np.int64) * SCAN_LEVELS
    return bool(np.array_equal(np.concatenate([np.empty(0, np.int32), *found]), expected))


def count_rows(ranges: Ranges) -> int:
    """How many rows `ranges` hold."""
    return sum(stop - start for start, stop in ranges)


def _blocks(ranges: Ranges, size: int) -> Iterator[list[tuple[int, int]]]:
    """Cut `ranges` into lists of spans that have `size` rows together, the last one fewer."""
    block: list[tuple[int, int]] = []
    free = size
    for start, stop in ranges:
        while start < stop:
            end = min(stop, start + free)
            block.append((start, end))
            free -= end - start
            start = end
            if not free:
                yield block
                block, free = [], size
    if block:
        yield block


def _by_slab(ranges: Ranges) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """(slab, what of `ranges` lies in it, counted from its first row), in order."""
    slabs: dict[int, list[tuple[int, int]]] = {}
    for start, stop in ranges:
        for slab in range(start // SLAB_ROWS, -(-stop // SLAB_ROWS)):
            base = slab * SLAB_ROWS
            slabs.setdefault(slab, []).append((max(start - base, 0), min(stop - base, SLAB_ROWS)))
    yield from slabs.items()
