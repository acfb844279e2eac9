"""Choosing by scores alone: what holds whatever the numbers are calibrated to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cg_rag.core.local_picks import choose_locally

SCORES = st.lists(st.floats(-1e6, 1e6), max_size=30)


@given(SCORES, st.integers(1, 50))
def test_choice_is_the_best_few_in_their_order(scores: list[float], max_items: int) -> None:
    chosen = choose_locally(scores, max_items)
    best_first = sorted(range(1, len(scores) + 1), key=lambda number: -scores[number - 1])
    assert chosen == best_first[: len(chosen)]
    assert len(chosen) <= max_items
    assert bool(chosen) == bool(scores)


@given(SCORES, st.integers(1, 50), st.integers(-64, 64), st.sampled_from([0.5, 2.0, 8.0]))
def test_neither_unit_nor_zero_of_the_scores_matters(
    scores: list[float], max_items: int, shift: int, unit: float
) -> None:
    whole = [float(round(score)) for score in scores]
    moved = [score * unit + shift for score in whole]
    assert choose_locally(moved, max_items) == choose_locally(whole, max_items)


def test_what_falls_far_behind_the_best_is_left_out() -> None:
    assert choose_locally([10.0, 9.5, 2.0, 1.0, 0.0], 5) == [1, 2]
    assert choose_locally([0.0, 10.0, 9.5, 1.0], 5) == [2, 3]
