"""Who gets which place: windows by tier, the mixture against a slow twin, scores that stay at their places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cg_rag.core.local_picks import choose_locally
from cg_rag.index.corpus import Article
from cg_rag.index.model_errors import Cancelled, ModelFailed
from cg_rag.index.onnx import CURRENT_TOKEN, CancelToken
from cg_rag.index.ranking import Hit, Question, StageFailed
from cg_rag.index.rerank_stage import RerankStage, find_windows, reorder
from cg_rag.index.reranker import PairScore


class Scripted:
    """Scores by row, None for one that is left out; remembers what it was asked."""

    name, fingerprint = "scripted", "scripted"

    def __init__(self, scores: dict[int, float | None], is_remote: bool = False, error: Any = None) -> None:
        self.scores, self.is_remote, self.error = scores, is_remote, error
        self.asked: list[tuple[str, list[str]]] = []

    def score(
        self, query: str, articles: Sequence[Article], cancel: CancelToken | None = None
    ) -> list[PairScore | None]:
        self.asked.append((query, [article.contents for article in articles]))
        if self.error is not None:
            raise self.error
        found = (self.scores.get(int(article.contents)) for article in articles)
        return [None if value is None else PairScore(0.5, value) for value in found]

    def close(self) -> None:
        pass


def read(rows: Sequence[int]) -> list[Article]:
    return [Article("法", "", str(row)) for row in rows]


def make_hits(scores: Sequence[float], law: int = 0, exact: int = 0) -> list[Hit]:
    """Rows 0, 1, …: first `exact`, then `law` of the law tier, then the rest."""
    tiers = [{"exact": 1.0}] * exact + [{"law": 1.0}] * law + [{}] * len(scores)
    return [
        Hit(row, score, dict(stages)) for row, (score, stages) in enumerate(zip(scores, tiers, strict=False))
    ]


def asked(vector: bool = True) -> Question:
    return Question("问题", (), vector=object() if vector else None)  # type: ignore[arg-type]


def slow_order(first: Sequence[float], second: Sequence[float], weight: float) -> list[int]:
    def z(values: Sequence[float]) -> list[float]:
        mean = sum(values) / len(values)
        spread = (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5
        return [(value - mean) / spread if len(set(values)) > 1 else 0.0 for value in values]

    mixed = [(1 - weight) * one + weight * other for one, other in zip(z(first), z(second), strict=True)]
    return sorted(range(len(mixed)), key=lambda place: (-round(mixed[place], 9), place))


SCORES = st.lists(st.integers(-40, 40).map(lambda value: value / 4), min_size=1, max_size=12)


@given(SCORES, st.data())
def test_places_follow_the_mixture_and_scores_stay_at_their_places(first: list[float], data: Any) -> None:
    first.sort(reverse=True)
    hits = make_hits(first)
    second: list[float | None] = data.draw(
        st.lists(
            st.one_of(st.none(), st.integers(-20, 20).map(float)), min_size=len(first), max_size=len(first)
        )
    )
    weight = data.draw(st.sampled_from([0.0, 0.4, 0.9]))
    before = list(hits)
    window = list(range(len(hits)))
    reorder(hits, window, [None if value is None else PairScore(0.5, value) for value in second], weight)
    assert [hit.score for hit in hits] == first
    assert sorted(hit.row for hit in hits) == window
    kept = [place for place in window if second[place] is None]
    assert [hits[place] for place in kept] == [before[place] for place in kept]
    scored = [place for place in window if second[place] is not None]
    if scored:
        order = slow_order(
            [first[place] for place in scored],
            [value for value in second if value is not None],
            weight,
        )
        mixed = [round(hits[place].stages["mixed"], 9) for place in scored]
        assert mixed == sorted(mixed, reverse=True)
        # Equal up to rounding may stand in any order; all else is as the twin says.
        if len(set(mixed)) == len(mixed):
            assert [hits[place].row for place in scored] == [scored[number] for number in order]
    assert choose_locally([hit.score for hit in hits], 5) == choose_locally(first, 5)


def test_weight_zero_changes_nothing_and_equal_logits_neither() -> None:
    for weight, values in ((0.0, [1.0, 9.0, 5.0]), (0.4, [2.0, 2.0, 2.0])):
        hits = make_hits([3.0, 2.0, 1.0])
        reorder(hits, [0, 1, 2], [PairScore(0.5, value) for value in values], weight)
        assert [hit.row for hit in hits] == [0, 1, 2]


@pytest.mark.parametrize(
    ("exact", "law", "rest", "candidates", "windows"),
    [
        (0, 0, 5, 3, [[0, 1, 2]]),
        (2, 0, 3, 20, [[2, 3, 4]]),
        (1, 2, 3, 20, [[1, 2], [3, 4, 5]]),
        (0, 2, 3, 4, [[0, 1], [2, 3]]),
        (0, 3, 3, 2, [[0, 1]]),
        (0, 3, 3, 4, [[0, 1, 2]]),
        (3, 1, 1, 20, []),
        (0, 0, 0, 20, []),
    ],
)
def test_windows_stay_inside_their_tier(
    exact: int, law: int, rest: int, candidates: int, windows: list[list[int]]
) -> None:
    hits = make_hits([float(-place) for place in range(exact + law + rest)], law, exact)
    assert find_windows(hits, candidates) == windows


def test_exact_hits_stay_first_and_are_not_read() -> None:
    model = Scripted({1: 1.0, 2: 9.0})
    hits = make_hits([3.0, 1.0, 0.5], exact=1)
    assert RerankStage(model, weight=0.9).rerank(asked(), hits, 3, read)
    assert [hit.row for hit in hits] == [0, 2, 1]
    assert model.asked == [("问题", ["1", "2"])]


def test_nothing_is_asked_where_only_exact_hits_are_shown_or_words_alone_answered() -> None:
    model = Scripted({})
    assert not RerankStage(model).rerank(asked(), make_hits([3.0, 1.0, 0.5], exact=1), 1, read)
    assert not RerankStage(model).rerank(asked(vector=False), make_hits([3.0, 1.0]), 5, read)
    assert not RerankStage(model).rerank(asked(), make_hits([3.0]), 5, read)
    assert model.asked == []


def test_an_endpoint_reorders_what_words_alone_found() -> None:
    hits = make_hits([3.0, 1.0])
    assert RerankStage(Scripted({0: 0.1, 1: 0.9}, is_remote=True), weight=0.9).rerank(
        asked(False), hits, 5, read
    )
    assert [(hit.row, hit.score) for hit in hits] == [(1, 3.0), (0, 1.0)]


def test_an_article_without_a_score_keeps_its_place_and_is_told() -> None:
    question, hits = asked(), make_hits([4.0, 3.0, 2.0, 1.0])
    assert RerankStage(Scripted({0: 1.0, 1: None, 2: 2.0, 3: 9.0}), weight=0.9).rerank(
        question, hits, 4, read
    )
    assert [hit.row for hit in hits] == [3, 1, 2, 0]
    assert question.warnings == ["重排没有给出 1 条条文的得分，它们保留原来的位置。"]
    assert question.degraded
    assert "rerank" not in hits[1].stages


@pytest.mark.parametrize("scores", [{}, {0: None}])
@pytest.mark.parametrize("error", [ModelFailed("m", "kaputt"), OSError("gone"), ValueError("shape"), None])
def test_a_failure_keeps_the_order_or_is_raised(scores: dict[int, float | None], error: Any) -> None:
    question, hits = asked(), make_hits([3.0, 1.0])
    before = list(hits)
    assert not RerankStage(Scripted(scores, error=error)).rerank(question, hits, 5, read)
    assert hits == before
    assert question.degraded
    assert question.warnings == ["重排暂不可用，本次按检索得分排列。"]
    with pytest.raises(StageFailed, match="无法重排"):
        RerankStage(Scripted(scores, error=error), degrade=False).rerank(asked(), hits, 5, read)


def test_a_caller_who_left_is_no_failure() -> None:
    question = asked()
    with pytest.raises(Cancelled):
        RerankStage(Scripted({}, error=Cancelled())).rerank(question, make_hits([3.0, 1.0]), 5, read)
    assert not question.degraded


def test_an_endpoint_that_failed_is_left_alone_for_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cg_rag.index.endpoint_pause.PAUSE_SECONDS", 3600.0)
    model = Scripted({}, is_remote=True, error=ModelFailed("m", "time-out"))
    stage = RerankStage(model)
    for _ in range(3):
        assert not stage.rerank(asked(), make_hits([3.0, 1.0]), 5, read)
    assert len(model.asked) == 1


def test_waiting_for_a_processor_ends_when_the_caller_leaves() -> None:
    stage = RerankStage(Scripted({0: 1.0, 1: 2.0}))
    while stage._computing.acquire(blocking=False):
        pass
    token = CancelToken()
    reset = CURRENT_TOKEN.set(token)
    token.cancel()
    try:
        with pytest.raises(Cancelled):
            stage.rerank(asked(), make_hits([3.0, 1.0]), 5, read)
    finally:
        CURRENT_TOKEN.reset(reset)
