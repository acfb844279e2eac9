"""How good and how fast the stages of retrieval are over judged questions, scope by scope.

Rule: all stages of a scope answer the same questions, one after the other within each question, so that their
differences are paired and whatever slows the machine down slows all of them.

A stage is any function from a question to rows: nothing here knows how it searches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from cg_rag.index.corpus import Scope
from cg_rag.index.metrics import (
    Interval,
    Ranks,
    bootstrap_intervals,
    find_ranks,
    hit_at,
    ndcg_at,
    recall_at,
    recall_curve,
    reciprocal_rank,
)
from cg_rag.index.progress import Progress
from cg_rag.index.questions import Item, JudgedQuestion

# A question misses the articles that are not among as many as an answer usually shows.
MISS_RANK = 10
METRICS: Mapping[str, Callable[[Ranks], float]] = {
    **{f"recall@{k}": partial(recall_at, k=k) for k in (1, 5, 10, 20, 50)},
    "hit@10": partial(hit_at, k=10),
    "mrr@10": partial(reciprocal_rank, k=10),
    "ndcg@10": partial(ndcg_at, k=10),
}
PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class Stage:
    """`search(query, scope, k)` returns at most `k` rows of that scope, best first."""

    name: str
    search: Callable[[str, str, int], Sequence[int]]


@dataclass(frozen=True, slots=True)
class StageResult:
    """`ranks` [questions][items]: ranks of the relevant items, None beyond topk. `latency_ms`: p50, p95, p99
    of wall time. `recall` [topk]: mean recall at 1, 2, …"""

    stage: str
    metrics: Mapping[str, Interval]
    latency_ms: Mapping[str, float]
    recall: Sequence[float]
    ranks: Sequence[Ranks]


@dataclass(frozen=True, slots=True)
class Difference:
    """Means of `stage` minus those of `baseline`, with the interval of the paired bootstrap."""

    stage: str
    baseline: str
    metrics: Mapping[str, Interval]


@dataclass(frozen=True, slots=True)
class ScopeResult:
    """`questions` were measured, with their items of this scope; `left_out` have no item in it."""

    scope: Scope
    questions: Sequence[JudgedQuestion]
    left_out: Sequence[JudgedQuestion]
    stages: Sequence[StageResult]
    differences: Sequence[Difference]


def metrics_within(topk: int) -> list[str]:
    """Metrics that `topk` rows are enough for."""
    return [name for name in METRICS if int(name.partition("@")[2]) <= topk]


def measure_scope(
    scope: Scope, questions: Sequence[JudgedQuestion], stages: Sequence[Stage], topk: int, progress: Progress
) -> ScopeResult:
    """Ask every stage every question that has a relevant article in `scope`.

    Relevant articles outside the scope are out of the denominator: they cannot be found. The result has no
    stages when there is no question left. What a stage raises goes through; ValueError when two stages share a
    name.
    """
    if len({stage.name for stage in stages}) < len(stages):
        raise ValueError("two stages share a name")
    inside = [_restrict(question, scope) for question in questions]
    measured = [question for question in inside if question.items]
    left_out = [question for question in inside if not question.items]
    if not measured:
        return ScopeResult(scope, (), left_out, (), ())
    ranks, times = _ask(scope.name, measured, stages, topk, progress)
    scores = {stage.name: _score(ranks[stage.name], topk) for stage in stages}
    results = [_summarise(stage.name, ranks[stage.name], times[stage.name], topk) for stage in stages]
    differences = [
        Difference(later.name, earlier.name, _intervals(scores[later.name] - scores[earlier.name], topk))
        for earlier, later in combinations(stages, 2)
    ]
    return ScopeResult(scope, measured, left_out, results, differences)


def _restrict(question: JudgedQuestion, scope: Scope) -> JudgedQuestion:
    items = []
    for item in question.items:
        rows = tuple(row for row in item.rows if any(start <= row < stop for start, stop in scope.ranges))
        if rows:
            items.append(Item(item.label, rows))
    return JudgedQuestion(question.qid, question.line, question.query, tuple(items), question.missing)


def _ask(
    scope: str, questions: Sequence[JudgedQuestion], stages: Sequence[Stage], topk: int, progress: Progress
) -> tuple[dict[str, list[Ranks]], dict[str, list[float]]]:
    """Ranks and milliseconds of every question, by stage."""
    ranks: dict[str, list[Ranks]] = {stage.name: [] for stage in stages}
    times: dict[str, list[float]] = {stage.name: [] for stage in stages}
    for stage in stages:
        # The first search pays for pages and models that are not in memory yet; no later one does.
        stage.search(questions[0].query, scope, topk)
    progress.start(f"检索 {scope}", len(questions))
    for question in questions:
        for stage in stages:
            started = time.perf_counter()
            rows = stage.search(question.query, scope, topk)
            times[stage.name].append((time.perf_counter() - started) * 1000)
            ranks[stage.name].append(find_ranks(rows[:topk], [item.rows for item in question.items]))
        progress.advance(1)
    progress.finish()
    return ranks, times


def _score(ranks: Sequence[Ranks], topk: int) -> NDArray[np.float64]:
    """[questions, metrics]"""
    names = metrics_within(topk)
    return np.array([[METRICS[name](of_question) for name in names] for of_question in ranks])


def _intervals(scores: NDArray[np.float64], topk: int) -> dict[str, Interval]:
    return dict(zip(metrics_within(topk), bootstrap_intervals(scores), strict=True))


def _summarise(stage: str, ranks: Sequence[Ranks], times: Sequence[float], topk: int) -> StageResult:
    curve = np.mean([recall_curve(of_question, topk) for of_question in ranks], axis=0)
    latency = dict(
        zip((f"p{point}" for point in PERCENTILES), np.percentile(times, PERCENTILES).tolist(), strict=True)
    )
    return StageResult(stage, _intervals(_score(ranks, topk), topk), latency, curve.tolist(), ranks)
