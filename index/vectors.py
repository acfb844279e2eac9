"""The numbers that stand for a vector: int16 for exact scores, int8 for the scan, and how each is made.

Rule: everything follows from the int16 rows and their scales. A row's int16 form depends on that vector
alone, the mean is a quotient of integer sums, and the scan is made row by row; so the files depend on the
vectors and their order, not on how they arrived, and an article that did not change keeps its row.

The scan is of  x - mean : vectors of one model share a large common part, which would use up most of the 8
bits and changes no order (query . mean is the same for every row).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

MEAN = "vectors.mean"
SCAN = "scan.i8"
SCALES = "scan.scales"
FULL = "full.i16"
FULL_SCALES = "full.scales"

SCAN_LEVELS = 127
# A scale per row and not one for all (1 / 32767): components of unit vectors are far below 1. Recall@10
# against float64 over 23,000 statutes: 0.9987 with one scale for all, 0.9997 so; @50 0.9992, 0.9999.
FULL_LEVELS = 32767
# int16 times this, 8192 products, stays below 2**53: float64 adds it exactly.
QUERY_LEVELS = 1 << 22
# float32 holds every integer up to here, so a sum of integers that stays below is exact in any order.
EXACT_FLOAT32 = 1 << 24
BLOCK_ROWS = 1024  # 1.5 MB of float32 at 384 dimensions
MAX_COMPONENT = 1024
_MEAN_UNIT = 1 << 30  # fixed point of the sums: 2**22 rows of the highest component stay below 2**63


@dataclass(frozen=True, slots=True)
class VectorArrays:
    """N rows of D values.

    mean         float32 [D], of the int16 rows
    scan         int8 [N, D], -127 .. 127: (x - mean) / scale of its row, rounded
    scales       float32 [N], 0 for a row that equals the mean
    full_scales  float32 [N]; x = full row x full scale, 0 for zeros
    full         int16 [N, D], -32767 .. 32767; None where it stays on disk
    """

    mean: NDArray[np.float32]
    scan: NDArray[np.int8]
    scales: NDArray[np.float32]
    full_scales: NDArray[np.float32]
    full: NDArray[np.int16] | None = None


class FullEncoder:
    """Turns a stream of vectors into int16 blocks, and keeps what the mean needs."""

    def __init__(self, dim: int) -> None:
        self.num_rows = 0
        self._sums = np.zeros(dim, np.int64)

    def blocks(
        self, vectors: Iterable[NDArray[np.float32]]
    ) -> Iterator[tuple[NDArray[np.int16], NDArray[np.float32]]]:
        """`vectors` float32 [D] each -> (int16 [<= 1024, D], scales float32). ValueError: see `encode_full`."""
        stream = iter(vectors)
        while rows := list(islice(stream, BLOCK_ROWS)):
            full, scales = encode_full(np.stack(rows))
            self.add(full, scales)
            yield full, scales

    def add(self, full: NDArray[np.int16], scales: NDArray[np.float32]) -> None:
        """Count rows that are int16 already: those of unchanged articles. ValueError for another width."""
        if full.shape != (len(scales), len(self._sums)):
            raise ValueError(f"向量形状应为 {(len(scales), len(self._sums))}，实为 {full.shape}。")
        fixed = np.rint(full * (scales.astype(np.float64) * _MEAN_UNIT)[:, None])
        self._sums += fixed.astype(np.int64).sum(axis=0)
        self.num_rows += len(full)

    def mean(self) -> NDArray[np.float32]:
        """float32 [D] of all rows so far, zeros without any."""
        return (self._sums / (_MEAN_UNIT * max(1, self.num_rows))).astype(np.float32)


def encode_full(vectors: NDArray[np.float32]) -> tuple[NDArray[np.int16], NDArray[np.float32]]:
    """float32 [n, D] -> (int16 [n, D], scales float32 [n]). ValueError: not finite, or above 1024."""
    vectors = np.asarray(vectors, np.float32)
    peak = np.abs(vectors).max(initial=0.0)
    if not peak <= MAX_COMPONENT:  # true for NaN too
        raise ValueError(f"向量的分量须为有限值，绝对值不超过 {MAX_COMPONENT}，实为 {peak}。")
    return _by_row(vectors, FULL_LEVELS, np.int16)


def encode_scan(
    full: NDArray[np.int16], full_scales: NDArray[np.float32], mean: NDArray[np.float32]
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """int16 [n, D] -> (int8 [n, D], scales float32 [n])."""
    return _by_row(full * full_scales[:, None] - mean, SCAN_LEVELS, np.int8)


def scan_blocks(
    full: NDArray[np.int16], full_scales: NDArray[np.float32], mean: NDArray[np.float32]
) -> Iterator[tuple[NDArray[np.int8], NDArray[np.float32]]]:
    """The scan of all rows, 1024 at a time; `full` may be a map of the file."""
    for start in range(0, len(full), BLOCK_ROWS):
        stop = start + BLOCK_ROWS
        yield encode_scan(full[start:stop], full_scales[start:stop], mean)


def quantise(vectors: Iterable[NDArray[np.float32]], dim: int) -> VectorArrays:
    """All arrays of vectors float32 [dim] each, in memory; what is written to files goes block by block
    through `FullEncoder` and `scan_blocks`. ValueError as in `encode_full`.
    """
    encoder = FullEncoder(dim)
    full, full_scales = _join(encoder.blocks(vectors), np.empty((0, dim), np.int16))
    mean = encoder.mean()
    scan, scales = _join(scan_blocks(full, full_scales, mean), np.empty((0, dim), np.int8))
    return VectorArrays(mean, scan, scales, full_scales, full)


@dataclass(frozen=True, slots=True)
class EncodedQueries:
    """Q queries as whole numbers; each row depends on its query alone, and zeros give zeros.

    levels  float32 [Q, D], at most 127, for the scan
    exact   float64 [Q, D], at most 2**22, for the scores; times `units` they are the query
    units   float64 [Q]
    """

    levels: NDArray[np.float32]
    exact: NDArray[np.float64]
    units: NDArray[np.float64]


def encode_queries(queries: NDArray[np.float32]) -> EncodedQueries:
    """`queries` float32 [Q, D], finite. No dot product of `levels` with int8 rows leaves the range where
    float32 adds integers exactly: above 1,040 dimensions fewer levels are used where a query needs it.
    """
    values = np.asarray(queries, np.float64)
    peaks = np.abs(values).max(axis=1, initial=0.0)
    parts = values / np.where(peaks > 0, peaks, 1.0)[:, None]
    levels = np.rint(parts * _num_levels(parts)).astype(np.float32)
    return EncodedQueries(levels, np.rint(parts * QUERY_LEVELS), peaks / QUERY_LEVELS)


def _num_levels(parts: NDArray[np.float64]) -> NDArray[np.float64] | int:
    """float64 [Q, 1], or one number where all levels fit whatever the query is."""
    dim = parts.shape[1]
    if dim * SCAN_LEVELS**2 <= EXACT_FLOAT32:
        return SCAN_LEVELS
    most = EXACT_FLOAT32 // SCAN_LEVELS - (dim + 1) // 2  # rounding adds at most a half to each value
    # Row by row: the sum of a query must not depend on how many there are.
    sums = np.array([[max(1.0, float(np.abs(row).sum()))] for row in parts])
    levels: NDArray[np.float64] = np.minimum(SCAN_LEVELS, most / sums)
    return levels


def _by_row(
    values: NDArray[np.float32], levels: int, dtype: type[np.generic]
) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """float32 [n, D] -> (whole numbers up to `levels`, scales float32 [n])."""
    scales = np.abs(values).max(axis=1, initial=0.0) / np.float32(levels)
    whole = np.rint(values / np.where(scales > 0, scales, np.float32(1))[:, None])
    return np.clip(whole, -levels, levels).astype(dtype), scales


def _join(
    blocks: Iterable[tuple[NDArray[Any], NDArray[np.float32]]], nothing: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[np.float32]]:
    pairs = [(nothing, np.empty(0, np.float32)), *blocks]
    return np.concatenate([rows for rows, _ in pairs]), np.concatenate([scales for _, scales in pairs])
