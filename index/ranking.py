"""Which articles of some rows answer a question best: by words, by vectors, or by both.

Rule: what fails is said. Without its vector a question is answered by words alone, with a warning, or not at all when
`degrade` is off.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from cg_rag.index.errors import IndexLibraryError
from cg_rag.index.fusion import DENSE_WEIGHT, NUM_CANDIDATES, Fused, fuse
from cg_rag.index.lexical import LexicalArrays, LexicalSearcher
from cg_rag.index.model_errors import Cancelled
from cg_rag.index.os_words import fault_of
from cg_rag.index.scan import Floats
from cg_rag.index.site_terms import SiteTerms
from cg_rag.index.vector_stage import VectorStage

Ranges = Sequence[tuple[int, int]]
Method = Literal["rerank", "fused", "dense", "lexical"]

# What a model, an endpoint or a disk may do to one stage; anything else is a fault of ours and is not hidden.
FAILURES = (IndexLibraryError, OSError, ValueError)
WITHOUT_VECTORS = "向量检索暂不可用，本次只按字面检索。"


class StageFailed(IndexLibraryError):
    """A stage failed and `degrade` is off, or no stage is left."""


class Candidate(NamedTuple):  # a frozen dataclass takes three times as long to make
    """`stages`: "lexical" and "dense" where the article was found by them, "fused" for the mix of both."""

    row: int
    score: float
    stages: dict[str, float]


class Hit(NamedTuple):
    """`stages`: the scores that went in ("lexical", "dense", "fused", "rerank", "mixed"), and 1.0 for the tier "exact"
    or "law"."""

    row: int
    score: float
    stages: dict[str, float]


@dataclass(slots=True)
class Question:
    """`text` is normalised. `vector` is None where only words are searched. `timings_ms` sums up stage by stage.
    `warnings` are for the caller, `faults` for the log; `degraded` says that the answer would be another one had
    nothing failed."""

    text: str
    expansions: tuple[str, ...]
    vector: Floats | None = None
    by_words: bool = True
    degraded: bool = False
    warnings: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    timings_ms: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            spent = (time.perf_counter() - started) * 1000
            self.timings_ms[stage] = self.timings_ms.get(stage, 0.0) + spent

    def degrade(self, warning: str, fault: str = "") -> None:
        self.degraded = True
        self.warnings += [warning] if warning not in self.warnings else []
        self.faults += [fault] if fault else []


class Ranker:
    """Ranks rows of one open index. Immutable, so threads share one."""

    def __init__(
        self,
        lexical: LexicalArrays,
        vectors: VectorStage | None,
        *,
        min_score: float | None = None,
        degrade: bool = True,
        dense_weight: float = DENSE_WEIGHT,
    ) -> None:
        """`min_score` is a cosine where there are vectors, else a lexical score."""
        self._searcher = LexicalSearcher(lexical)
        self._vectors = vectors
        self._min_score = min_score
        self._degrade = degrade
        self._dense_weight = dense_weight
        self._site_terms = SiteTerms.load()

    @property
    def has_vectors(self) -> bool:
        return self._vectors is not None

    def prepare(self, text: str, method: Method = "rerank") -> Question:
        """Raises StageFailed when the question cannot be embedded and `degrade` is off."""
        question = Question(text, self._site_terms.expand(text), by_words=method != "dense")
        if self._vectors is None or method == "lexical":
            return question
        try:
            with question.timed("embed_ms"):
                question.vector = self._vectors.embed(text, question.expansions)
        except Cancelled:
            raise
        except FAILURES as error:
            self._degrade_to_words(question, "问题无法转为向量", error)
        return question

    def _degrade_to_words(self, question: Question, what: str, error: Exception) -> None:
        """From here on the question is answered by words; raises StageFailed where that is not allowed."""
        if not self._degrade or not question.by_words:
            raise StageFailed(f"{what}：{fault_of(error)}") from error
        question.vector = None
        question.degrade(WITHOUT_VECTORS, f"{what}：{fault_of(error)}")

    def rank(self, question: Question, ranges: Ranges, k: int) -> list[Candidate]:
        """At most `k` candidates of `ranges`, best first, equal ones by row."""
        if question.vector is None:
            return self._rank_by_words(question, ranges, k)
        if not question.by_words:
            return self._rank_by_vectors(question, ranges, k)
        best = self._fuse(question, ranges, NUM_CANDIDATES, k)
        if question.vector is None:  # it failed just now
            return self._rank_by_words(question, ranges, k)
        depth = NUM_CANDIDATES
        while len(best) < k and depth < k:
            # The depth of fusion moves an article's place: it grows in fixed steps, and what comes from further down
            # is only appended.
            depth *= 2
            best += _append(best, self._fuse(question, ranges, depth, 2 * depth))
        return best[:k]

    def filter(self, question: Question, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Those that reach `min_score`."""
        if self._min_score is None or not candidates:
            return list(candidates)
        scores = self._absolute_scores(question, candidates)
        return [one for one, score in zip(candidates, scores, strict=True) if score >= self._min_score]

    def _absolute_scores(self, question: Question, candidates: Sequence[Candidate]) -> Sequence[float]:
        if question.vector is None or self._vectors is None:
            return [one.stages.get("lexical", 0.0) for one in candidates]
        rows = np.array([one.row for one in candidates], dtype=np.int64)
        cosines: list[float] = self._vectors.score_rows(question.vector, rows).tolist()
        return cosines

    def _rank_by_words(self, question: Question, ranges: Ranges, k: int) -> list[Candidate]:
        with question.timed("lexical_ms"):
            rows, scores = self._searcher.search(question.text, ranges, k, question.expansions)
        pairs = zip(rows.tolist(), scores.tolist(), strict=True)
        return [Candidate(row, score, {"lexical": score}) for row, score in pairs]

    def _rank_by_vectors(self, question: Question, ranges: Ranges, k: int) -> list[Candidate]:
        rows, scores = self._search_vectors(question, ranges, k)
        pairs = zip(rows.tolist(), scores.tolist(), strict=True)
        return [Candidate(row, score, {"dense": score}) for row, score in pairs]

    def _search_vectors(
        self, question: Question, ranges: Ranges, k: int
    ) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], np.ndarray[tuple[int], np.dtype[np.float64]]]:
        assert self._vectors is not None
        assert question.vector is not None
        with question.timed("dense_ms"):
            return self._vectors.search(question.vector, ranges, k)

    def _fuse(self, question: Question, ranges: Ranges, depth: int, k: int) -> list[Candidate]:
        """The best `k` of the best `depth` by words and as many by vectors."""
        with question.timed("lexical_ms"):
            words = self._searcher.search(question.text, ranges, depth, question.expansions)
        try:
            vectors = self._search_vectors(question, ranges, depth)
        except Cancelled:
            raise
        except FAILURES as error:
            self._degrade_to_words(question, "向量无法检索", error)
            return self._rank_by_words(question, ranges, depth)
        with question.timed("fuse_ms"):
            fused = fuse(
                vectors, words, min(k, 2 * depth), dense_weight=self._dense_weight, num_candidates=depth
            )
            return _candidates(fused)


def _candidates(fused: Fused) -> list[Candidate]:
    found = []
    columns = (fused.rows.tolist(), fused.scores.tolist(), fused.dense.tolist(), fused.lexical.tolist())
    for row, score, dense, lexical in zip(*columns, strict=True):
        stages = {"fused": score, "dense": dense, "lexical": lexical}
        found.append(Candidate(row, score, {name: value for name, value in stages.items() if value == value}))
    return found


def _append(best: Sequence[Candidate], deeper: Sequence[Candidate]) -> list[Candidate]:
    """What `deeper` holds besides `best`, its scores moved down so that they go on where `best` ends."""
    known = {one.row for one in best}
    rest = [one for one in deeper if one.row not in known]
    if not rest or not best:
        return rest
    last = best[-1].score
    down = min(0.0, last - rest[0].score)
    return [Candidate(one.row, min(last, one.score + down), one.stages) for one in rest]
