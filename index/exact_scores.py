"""Exact cosines of a few rows, from int16; they decide, whoever picked the candidates (dense.py, remote_vectors.py)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from cg_rag.index.scan import Floats
from cg_rag.index.vectors import encode_queries

Rows = NDArray[np.int64]
Answer = tuple[Rows, NDArray[np.float64]]

CANDIDATES_PER_RESULT = 4
# 20 more than k held the whole answer for each of 309 questions over 58,626 articles (k 10 .. 100), 50 more
# at k 200; each costs one small read of full.i16.
MIN_CANDIDATES = 100
MAX_SPARE = 100


def num_candidates(k: int) -> int:
    """How many rows get an exact score where `k` are asked for."""
    return max(MIN_CANDIDATES, min(CANDIDATES_PER_RESULT * k, k + MAX_SPARE))


class ExactScores:
    """Holds no scratch, so threads share one."""

    def __init__(
        self, full_scales: NDArray[np.float32], dim: int, read_full: Callable[[Rows], NDArray[np.int16]]
    ) -> None:
        """`full_scales` float32 [N]; `read_full`: ascending rows -> int16 [len(rows), dim]."""
        self._full_scales = full_scales
        self._dim = dim
        self._read_full = read_full

    def best(self, query: NDArray[np.float64], unit: float, rows: Rows, k: int) -> Answer:
        """The best `k` of `rows` (ascending) with their cosines, equal ones by row. `query` and `unit` are one of
        `EncodedQueries`."""
        sums = self._sums(query, rows)
        order = np.argsort(-sums, kind="stable")[:k]
        return rows[order], sums[order] * unit

    def best_of(self, query: Floats, rows: Rows, k: int) -> Answer:
        """`best` for a query that is float32 [dim]."""
        encoded = encode_queries(query[None])
        return self.best(encoded.exact[0], float(encoded.units[0]), rows, k)

    def score(self, query: Floats, rows: Rows) -> NDArray[np.float64]:
        """Cosines float64 [len(rows)] of rows in any order."""
        order = np.argsort(rows, kind="stable")
        cosines = np.empty(len(rows), np.float64)
        encoded = encode_queries(query[None])
        cosines[order] = self._sums(encoded.exact[0], rows[order]) * encoded.units[0]
        return cosines

    def _sums(self, query: NDArray[np.float64], rows: Rows) -> NDArray[np.float64]:
        """float64 [len(rows)]: exact whole numbers, times the scale of the row."""
        full = self._read_full(rows)
        if full.shape != (len(rows), self._dim):
            raise ValueError(f"完整向量的形状应为 {(len(rows), self._dim)}，实为 {full.shape}。")
        sums: NDArray[np.float64] = full.astype(np.float64) @ query
        return sums * self._full_scales[rows]
