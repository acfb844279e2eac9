from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cg_rag.index.fusion import Fused, Ranked, fuse


def ranked(*pairs: tuple[int, float]) -> Ranked:
    return np.array([row for row, _ in pairs], np.int64), np.array([score for _, score in pairs], np.float64)


def order(fused: Fused) -> list[int]:
    return [int(row) for row in fused.rows]


def slow_fuse(dense: Ranked, lexical: Ranked, weight: float, num_candidates: int) -> dict[int, float]:
    tables = [dict(zip(rows.tolist(), scores.tolist(), strict=True)) for rows, scores in (dense, lexical)]
    union = sorted(set(tables[0]) | set(tables[1]))
    if not union:
        return {}
    mixed = dict.fromkeys(union, 0.0)
    for table, share in zip(tables, (weight, 1 - weight), strict=True):
        full = len(table) >= num_candidates
        floor = min(table.values()) if full else min([0.0, *table.values()])
        values = [table.get(row, floor) for row in union]
        mean = sum(values) / len(values)
        spread = (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5
        for row, value in zip(union, values, strict=True):
            mixed[row] += share * (value - mean) / spread if len(set(values)) > 1 else 0.0
    return mixed


LISTS = st.dictionaries(st.integers(0, 30), st.integers(-8, 8).map(float), max_size=20).map(
    lambda table: ranked(*table.items())
)


@settings(max_examples=200)
@given(LISTS, LISTS, st.sampled_from([0.0, 0.3, 0.6, 1.0]), st.integers(1, 50), st.sampled_from([1, 10, 100]))
def test_fusing_agrees_with_the_slow_twin(
    dense: Ranked, lexical: Ranked, weight: float, k: int, num_candidates: int
) -> None:
    expected = slow_fuse(dense, lexical, weight, num_candidates)
    fused = fuse(dense, lexical, k, dense_weight=weight, num_candidates=num_candidates)
    assert len(fused.rows) == min(k, len(expected))
    assert [expected[row] for row in order(fused)] == pytest.approx(fused.scores.tolist(), abs=1e-9)
    assert fused.scores.tolist() == sorted(fused.scores.tolist(), reverse=True)
    left_out = [score for row, score in expected.items() if row not in set(order(fused))]
    assert not left_out or max(left_out) <= fused.scores[-1] + 1e-9


def test_an_article_that_both_lists_hold_high_comes_before_the_best_of_either() -> None:
    dense = ranked((1, 0.90), (2, 0.89), (3, 0.80), (4, 0.79))
    lexical = ranked((5, 12.0), (2, 11.5), (6, 3.0), (7, 2.0))
    assert order(fuse(dense, lexical, 3, num_candidates=4))[0] == 2


def test_the_weights_at_the_ends_give_the_order_of_one_list_alone() -> None:
    dense, lexical = ranked((3, 0.9), (1, 0.8), (2, 0.7)), ranked((2, 9.0), (1, 8.0), (3, 7.0))
    assert order(fuse(dense, lexical, 3, dense_weight=1.0)) == [3, 1, 2]
    assert order(fuse(dense, lexical, 3, dense_weight=0.0)) == [2, 1, 3]


def test_equal_scores_come_in_the_order_of_their_rows_whatever_the_order_of_the_lists() -> None:
    dense, lexical = ranked((9, 0.5), (4, 0.5), (7, 0.5)), ranked((7, 2.0), (9, 2.0), (4, 2.0))
    fused = fuse(dense, lexical, 3)
    assert order(fused) == [4, 7, 9]
    assert fused.scores.tolist() == [0.0, 0.0, 0.0]


def test_a_list_of_equal_scores_leaves_the_order_to_the_other() -> None:
    dense, lexical = ranked((1, 0.5), (2, 0.5), (3, 0.5)), ranked((3, 4.0), (1, 2.0), (2, 1.0))
    assert order(fuse(dense, lexical, 3)) == [3, 1, 2]


def test_an_empty_list_leaves_the_order_to_the_other_and_two_give_nothing() -> None:
    dense, empty = ranked((2, 0.9), (1, 0.8)), ranked()
    assert order(fuse(dense, empty, 5)) == [2, 1]
    assert order(fuse(empty, dense, 5)) == [2, 1]
    assert order(fuse(empty, empty, 5)) == []


def test_the_only_article_that_shares_a_word_is_lifted_by_it() -> None:
    dense = ranked(*((row, 0.9 - row / 1000) for row in range(100)))
    assert order(fuse(dense, ranked((50, 7.0)), 1)) == [50]


def test_a_row_missing_from_a_full_list_counts_as_that_lists_last() -> None:
    dense = ranked((1, 0.9), (2, 0.8))
    lexical = ranked((3, 9.0), (2, 5.0))
    fused = fuse(dense, lexical, 3, num_candidates=2)
    as_last = fuse(ranked((1, 0.9), (2, 0.8), (3, 0.8)), ranked((3, 9.0), (2, 5.0), (1, 5.0)), 3)
    assert fused.scores.tolist() == as_last.scores.tolist()


def test_the_scores_that_went_in_come_out_beside_the_result() -> None:
    fused = fuse(ranked((1, 0.9), (2, 0.8)), ranked((2, 5.0), (3, 4.0)), 3)
    scores = {row: (fused.dense[place], fused.lexical[place]) for place, row in enumerate(order(fused))}
    assert scores[2] == (0.8, 5.0)
    assert scores[1][0] == 0.9
    assert np.isnan([scores[1][1], scores[3][0]]).all()


def test_an_articles_score_does_not_depend_on_how_many_are_asked_for() -> None:
    dense, lexical = ranked(*((row, 1 / (row + 1)) for row in range(9))), ranked((4, 3.0), (20, 2.0))
    long = fuse(dense, lexical, 10)
    for k in range(1, 10):
        short = fuse(dense, lexical, k)
        assert order(short) == order(long)[:k]
        assert short.scores.tolist() == long.scores[:k].tolist()


@pytest.mark.parametrize(
    ("k", "weight", "score", "message"),
    [
        (0, 0.6, 1.0, "k 须"),
        (1, 1.1, 1.0, "dense_weight"),
        (1, -0.1, 1.0, "dense_weight"),
        (1, 0.6, np.nan, "非数值"),
    ],
)
def test_wrong_arguments_are_refused(k: int, weight: float, score: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fuse(ranked((1, score)), ranked((2, 1.0)), k, dense_weight=weight)
