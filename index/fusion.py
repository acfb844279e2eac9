"""One order from two lists: the best articles by vectors and the best by words.

Rule: both scores of a candidate become z-scores over the union of both lists (score - mean, divided by the
standard deviation) and are mixed by weight. What one list lacks has the lowest score of that list; but a
list shorter than what was asked for ended because nothing else matched, and there a missing score is 0.

Weight, depth and rule were chosen on one half of the STARD train questions and hold on the other half
(docs/retrieval.md); computing the missing scores instead was not better on either.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
Scores = NDArray[np.float64]
Ranked = tuple[Rows, Scores]

DENSE_WEIGHT = 0.6
# How many of each list are fused. More than this for a smaller answer changes nothing measurable; the number
# must not follow topk, or an article's place would.
NUM_CANDIDATES = 100


@dataclass(frozen=True, slots=True)
class Fused:
    """Best first, equal scores by row. `dense` and `lexical` are the scores that went in, NaN where a list
    lacks the row. `scores` order one answer and do not compare answers; they may be negative.
    """

    rows: Rows
    scores: Scores
    dense: Scores
    lexical: Scores


def fuse(
    dense: Ranked,
    lexical: Ranked,
    k: int,
    *,
    dense_weight: float = DENSE_WEIGHT,
    num_candidates: int = NUM_CANDIDATES,
) -> Fused:
    """The best `k` of both lists, each (rows int64, scores float64) without repeats, in any order.

    `num_candidates` is how many were asked for of each. ValueError: k < 1, a weight outside of 0..1, a score
    that is not finite.
    """
    _check(dense, lexical, k, dense_weight)
    rows = _unite(dense[0], lexical[0])
    by_vectors, by_words = _spread(rows, dense), _spread(rows, lexical)
    scores = dense_weight * z_scores(_fill(by_vectors, _floor(dense, num_candidates)))
    scores += (1 - dense_weight) * z_scores(_fill(by_words, _floor(lexical, num_candidates)))
    # Rows ascend, so a stable sort leaves equal scores in the order of their rows.
    best = np.argsort(-scores, kind="stable")[:k]
    return Fused(rows[best], scores[best], by_vectors[best], by_words[best])


def _unite(first: Rows, second: Rows) -> Rows:
    """The rows of both, ascending, each once; np.union1d hashes and takes four times as long for so few."""
    rows: Rows = np.sort(np.concatenate([first, second]).astype(np.int64, copy=False))
    is_new = np.ones(len(rows), np.bool_)
    np.not_equal(rows[1:], rows[:-1], out=is_new[1:])
    return rows[is_new]


def _check(dense: Ranked, lexical: Ranked, k: int, dense_weight: float) -> None:
    if k < 1:
        raise ValueError(f"k 须不小于 1，收到 {k}。")
    if not 0 <= dense_weight <= 1:
        raise ValueError(f"dense_weight 须在 0..1 之间，收到 {dense_weight}。")
    if not (np.isfinite(dense[1]).all() and np.isfinite(lexical[1]).all()):
        raise ValueError("待融合的分数含有非数值。")


def _spread(rows: Rows, ranked: Ranked) -> Scores:
    """float64 [len(rows)], NaN where the list lacks the row."""
    spread = np.full(len(rows), np.nan)
    spread[np.searchsorted(rows, ranked[0])] = ranked[1]
    return spread


def _floor(ranked: Ranked, num_candidates: int) -> float:
    scores = ranked[1]
    return float(scores.min()) if len(scores) >= num_candidates else min(0.0, float(scores.min(initial=0.0)))


def _fill(spread: Scores, floor: float) -> Scores:
    return np.where(np.isnan(spread), floor, spread)


def z_scores(values: Scores) -> Scores:
    """Values that are all equal say nothing: zeros."""
    if not len(values) or values.min() == values.max():
        return np.zeros(len(values))
    scores: Scores = (values - values.mean()) / values.std()
    return scores
