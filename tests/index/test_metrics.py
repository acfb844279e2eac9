"""Each metric against its definition in three lines, worked examples, and what an interval must be."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from cg_rag.index.metrics import (
    SEED,
    Interval,
    Ranks,
    bootstrap_intervals,
    find_ranks,
    hit_at,
    ndcg_at,
    ratio_interval,
    recall_at,
    recall_curve,
    reciprocal_rank,
)


@st.composite
def all_ranks(draw: st.DrawFn) -> list[int | None]:
    """Ranks of the items of one question: different numbers, and some not found."""
    found: list[int | None] = [*draw(st.lists(st.integers(1, 60), unique=True, max_size=15))]
    return draw(st.permutations([*found, *[None] * draw(st.integers(0 if found else 1, 5))]))


RANKS = all_ranks()
K = st.integers(1, 55)


# --- slow twins: straight from the list of gains ---


def gains(ranks: Ranks, k: int) -> list[int]:
    return [int(place in ranks) for place in range(1, k + 1)]


def slow_recall(ranks: Ranks, k: int) -> float:
    return sum(gains(ranks, k)) / len(ranks)


def slow_reciprocal_rank(ranks: Ranks, k: int) -> float:
    for place, gain in enumerate(gains(ranks, k), 1):
        if gain:
            return 1 / place
    return 0.0


def slow_ndcg(ranks: Ranks, k: int) -> float:
    ideal = ([1] * len(ranks) + [0] * k)[:k]
    discounts = [1 / math.log2(place + 1) for place in range(1, k + 1)]
    return float(np.dot(gains(ranks, k), discounts) / np.dot(ideal, discounts))


@settings(max_examples=150)
@given(RANKS, K)
def test_metrics_equal_their_definitions(ranks: Ranks, k: int) -> None:
    assert recall_at(ranks, k) == pytest.approx(slow_recall(ranks, k))
    assert hit_at(ranks, k) == max(gains(ranks, k))
    assert reciprocal_rank(ranks, k) == pytest.approx(slow_reciprocal_rank(ranks, k))
    assert ndcg_at(ranks, k) == pytest.approx(slow_ndcg(ranks, k))


@settings(max_examples=100)
@given(RANKS, K)
def test_metrics_lie_between_0_and_1_and_grow_with_k(ranks: Ranks, k: int) -> None:
    for metric in (recall_at, hit_at, reciprocal_rank, ndcg_at):
        assert 0 <= metric(ranks, k) <= 1 + 1e-12
    for metric in (recall_at, hit_at, reciprocal_rank):
        assert metric(ranks, k) <= metric(ranks, k + 1)


@settings(max_examples=100)
@given(RANKS, K)
def test_the_curve_is_recall_at_every_k(ranks: Ranks, topk: int) -> None:
    assert recall_curve(ranks, topk).tolist() == pytest.approx(
        [recall_at(ranks, k) for k in range(1, topk + 1)]
    )


def test_worked_example_of_two_articles_one_of_them_third() -> None:
    ranks = [3, None]
    assert recall_at(ranks, 2) == 0
    assert recall_at(ranks, 3) == 0.5
    assert hit_at(ranks, 2) == 0
    assert hit_at(ranks, 3) == 1
    assert reciprocal_rank(ranks, 10) == pytest.approx(1 / 3)
    # DCG = 1/log2(4) = 0.5; the best order has 1/log2(2) + 1/log2(3) = 1.63093.
    assert ndcg_at(ranks, 10) == pytest.approx(0.5 / 1.6309297535714575)


def test_a_perfect_order_scores_1_and_nothing_found_scores_0() -> None:
    assert [ndcg_at([2, 1, 3], 10), reciprocal_rank([2, 1, 3], 10), recall_at([2, 1, 3], 3)] == [1, 1, 1]
    for metric in (recall_at, hit_at, reciprocal_rank, ndcg_at):
        assert metric([None, None], 10) == 0


def test_more_articles_than_places_keep_recall_below_1_and_not_ndcg() -> None:
    ranks = list(range(1, 21))
    assert recall_at(ranks, 10) == 0.5
    assert ndcg_at(ranks, 10) == pytest.approx(1)


def test_what_stands_just_below_the_cut_does_not_count() -> None:
    assert reciprocal_rank([11], 10) == ndcg_at([11], 10) == hit_at([11], 10) == recall_at([11], 10) == 0
    assert reciprocal_rank([10], 10) == pytest.approx(0.1)


@pytest.mark.parametrize("metric", [recall_at, hit_at, reciprocal_rank, ndcg_at, recall_curve])
def test_no_items_or_no_places_are_refused(metric) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match="a metric needs"):
        metric([], 10)
    with pytest.raises(ValueError, match="a metric needs"):
        metric([1], 0)


def test_an_item_is_found_where_the_first_of_its_rows_stands() -> None:
    assert find_ranks([7, 4, 9, 4], [(9, 4), (7,), (1, 2)]) == [2, 1, None]
    assert find_ranks([], [(1,)]) == [None]


@settings(max_examples=60)
@given(st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0]), min_size=1, max_size=40))
def test_the_interval_covers_the_mean_and_stays_in_range(values: list[float]) -> None:
    (interval,) = bootstrap_intervals(np.array(values)[:, None], resamples=500)
    assert interval.mean == pytest.approx(sum(values) / len(values))
    assert min(values) - 1e-9 <= interval.low <= interval.mean + 1e-9
    assert interval.mean - 1e-9 <= interval.high <= max(values) + 1e-9


def test_intervals_repeat_with_the_seed_and_differ_without_it() -> None:
    scores = np.random.default_rng(1).random((50, 3))
    assert bootstrap_intervals(scores) == bootstrap_intervals(scores, seed=SEED)
    assert bootstrap_intervals(scores) != bootstrap_intervals(scores, seed=SEED + 1)


def test_the_interval_of_many_questions_is_that_of_the_normal_distribution() -> None:
    scores = np.random.default_rng(2).random((1000, 1))
    (interval,) = bootstrap_intervals(scores)
    half = 1.96 * scores.std() / math.sqrt(1000)
    assert interval.low == pytest.approx(interval.mean - half, abs=0.003)
    assert interval.high == pytest.approx(interval.mean + half, abs=0.003)


def test_resampling_equals_drawing_questions_one_by_one() -> None:
    scores = np.random.default_rng(3).random((7, 2))
    drawn = np.random.default_rng(SEED).integers(0, 7, size=(400, 7))
    means = scores[drawn].mean(axis=1)
    found = bootstrap_intervals(scores, resamples=400)
    assert [one.low for one in found] == pytest.approx(np.quantile(means, 0.025, axis=0).tolist())
    assert [one.high for one in found] == pytest.approx(np.quantile(means, 0.975, axis=0).tolist())


def test_blocks_do_not_change_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = np.random.default_rng(4).random((30, 2))
    whole = bootstrap_intervals(scores)
    monkeypatch.setattr("cg_rag.index.metrics._BLOCK_CELLS", 30 * 7)
    cut = bootstrap_intervals(scores)
    assert [one.low for one in cut] == pytest.approx([one.low for one in whole])
    assert [one.high for one in cut] == pytest.approx([one.high for one in whole])


def test_a_paired_difference_sees_what_two_intervals_do_not() -> None:
    first = np.random.default_rng(5).random((40, 1))
    second = first + 0.02
    low, high = bootstrap_intervals(first)[0], bootstrap_intervals(second)[0]
    assert low.high > high.low
    difference = bootstrap_intervals(second - first)[0]
    assert difference.excludes_zero
    assert difference.mean == pytest.approx(0.02)


def test_an_interval_that_touches_zero_is_not_significant() -> None:
    assert not Interval(0.1, 0.0, 0.2).excludes_zero
    assert Interval(-0.1, -0.2, -0.01).excludes_zero


def test_no_questions_have_no_mean() -> None:
    with pytest.raises(ValueError, match="no questions"):
        bootstrap_intervals(np.empty((0, 3)))


def test_the_interval_of_a_ratio_holds_the_ratio_and_a_pair_of_equals_differs_by_nothing() -> None:
    rows = np.array([[1, 1]] * 48 + [[0, 1]] * 52 + [[0, 0]] * 20, dtype=np.float64)
    found = ratio_interval(rows)
    assert found is not None
    assert found.mean == pytest.approx(0.48)
    # Normal approximation of a binomial share: 0.48 +- 1.96 * 0.05.
    assert (found.low, found.high) == (pytest.approx(0.382, abs=0.02), pytest.approx(0.578, abs=0.02))
    same = ratio_interval(np.hstack([rows, rows]))
    assert same is not None
    assert (same.mean, same.low, same.high) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("rows", [np.zeros((0, 2)), np.array([[0.0, 0.0]]), np.array([[1.0, 1.0, 0.0, 0.0]])])
def test_a_ratio_over_nothing_has_no_interval(rows: NDArray[np.float64]) -> None:
    assert ratio_interval(rows) is None
