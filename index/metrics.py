"""Quality of ranked answers as numbers: recall, hit, reciprocal rank, nDCG, and how sure their means are.

Rule: every metric is a function of the ranks of a question's relevant items and of nothing else. A rank counts
from 1, None stands for "not among the rows that came back". Items of one question share no row, so that their
ranks differ. Gains are binary.

Conventions are those of TREC's trec_eval, which BEIR measures with: recall.k, success.k, recip_rank cut at k,
ndcg_cut.k.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ranks = Sequence[int | None]

RESAMPLES = 2000
SEED = 20240501
LEVEL = 0.95
# Resamples drawn at a time: their weights over 100,000 questions take 50 MB.
_BLOCK_CELLS = 6_250_000


def find_ranks(rows: Sequence[int], items: Sequence[Collection[int]]) -> list[int | None]:
    """The rank of each item in `rows`, best first: an item is found where the first of its rows stands."""
    place_of: dict[int, int] = {}
    for place, row in enumerate(rows, 1):
        place_of.setdefault(row, place)
    return [min((place_of[row] for row in item if row in place_of), default=None) for item in items]


def recall_at(ranks: Ranks, k: int) -> float:
    """Items found in the top `k` / items of the question: below 1 by itself when there are more than `k`."""
    return sum(_is_within(rank, k) for rank in ranks) / _count(ranks, k)


def hit_at(ranks: Ranks, k: int) -> float:
    """1.0 when any item is in the top `k`, else 0.0 (trec_eval: success)."""
    _count(ranks, k)
    return float(any(_is_within(rank, k) for rank in ranks))


def reciprocal_rank(ranks: Ranks, k: int) -> float:
    """1 / rank of the best item, 0.0 when that is below `k`. Its mean is MRR@k."""
    _count(ranks, k)
    return max((1.0 / rank for rank in ranks if rank is not None and rank <= k), default=0.0)


def ndcg_at(ranks: Ranks, k: int) -> float:
    """Normalised discounted cumulative gain: gain 1, discount log2(rank + 1), over the best possible order.

    Järvelin and Kekäläinen, "Cumulated gain-based evaluation of IR techniques", TOIS 20 (2002), in the form
    with log2(rank + 1) that trec_eval computes.
    """
    best = sum(_gain(place) for place in range(1, min(_count(ranks, k), k) + 1))
    return sum(_gain(rank) for rank in ranks if rank is not None and rank <= k) / best


def recall_curve(ranks: Ranks, topk: int) -> NDArray[np.float64]:
    """[topk] recall at 1, 2, … `topk`."""
    num_items = _count(ranks, topk)
    found = [rank - 1 for rank in ranks if rank is not None and rank <= topk]
    return np.bincount(found, minlength=topk).cumsum() / num_items


@dataclass(frozen=True, slots=True)
class Interval:
    """The mean of the questions measured, and the bounds that 95 % of the resampled means lie in."""

    mean: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """For a difference: whether it is significant at the 5 % level."""
        return self.low > 0 or self.high < 0


def bootstrap_intervals(
    scores: NDArray[np.float64], resamples: int = RESAMPLES, seed: int = SEED
) -> list[Interval]:
    """One interval for each column of `scores` [questions, metrics]; ValueError without questions.

    Percentile bootstrap over questions (Efron 1979): questions are drawn with replacement, as many as there
    are. The draws depend on `seed` and the number of questions alone; so the interval of a difference is
    `bootstrap_intervals(a - b)`, the paired bootstrap of Sakai, "Evaluating evaluation metrics based on the
    bootstrap", SIGIR 2006.
    """
    if not len(scores):
        raise ValueError("no questions to average over")
    means = _resampled_means(scores, resamples, seed)
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(means, [tail, 1 - tail], axis=0)
    columns = zip(scores.mean(axis=0).tolist(), low.tolist(), high.tolist(), strict=True)
    return [Interval(*column) for column in columns]


def ratio_interval(
    parts: NDArray[np.float64], resamples: int = RESAMPLES, seed: int = SEED
) -> Interval | None:
    """The interval of sum(column 0) / sum(column 1) over the rows of `parts` [items, 2]: items are drawn, so that the
    denominator varies as it does in a new sample. With four columns: of the first ratio less the second (paired).

    None where a denominator is 0; resamples in which one is are left out.
    """
    if not len(parts) or not parts[:, 1::2].sum(axis=0).all():
        return None
    means = _resampled_means(parts, resamples, seed)
    means = means[(means[:, 1::2] > 0).all(axis=1)]
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(_ratio(means), [tail, 1 - tail])
    return Interval(float(_ratio(parts.sum(axis=0)[None, :])[0]), float(low), float(high))


def _ratio(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    ratios = sums[:, 0::2] / sums[:, 1::2]
    difference: NDArray[np.float64] = ratios[:, 0] if ratios.shape[1] == 1 else ratios[:, 0] - ratios[:, 1]
    return difference


def _resampled_means(scores: NDArray[np.float64], resamples: int, seed: int) -> NDArray[np.float64]:
    """[resamples, metrics]: how often each question was drawn, times its scores: one matrix product a block."""
    count = len(scores)
    generator = np.random.default_rng(seed)
    block = max(1, _BLOCK_CELLS // count)
    means = []
    for start in range(0, resamples, block):
        size = min(block, resamples - start)
        drawn = generator.integers(0, count, size=(size, count))
        drawn += np.arange(size)[:, None] * count
        weights = np.bincount(drawn.ravel(), minlength=size * count).reshape(size, count)
        means.append(weights @ scores / count)
    return np.concatenate(means)


def _is_within(rank: int | None, k: int) -> bool:
    return rank is not None and rank <= k


def _gain(rank: int) -> float:
    return 1.0 / math.log2(rank + 1)


def _count(ranks: Ranks, k: int) -> int:
    if not ranks or k < 1:
        raise ValueError(f"a metric needs a relevant item and k >= 1, got {len(ranks)} items and k = {k}")
    return len(ranks)
