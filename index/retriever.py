"""From a question to articles: what it names outright first, then what answers it best.

Rule: three tiers, each wholly before the next.
    exact    articles that the query names by law and number, in the order it names them
    law      articles of a law that the query names by 《》, code or name, best first
    rest     everything else, best first; only here min_score cuts

Best is by fused score where there are vectors, else by lexical score (ranking.py). A score is that score, lifted so
that no tier ends below the start of the next: in the law tier by the best score of the whole scope; exact articles all
get the best score behind them plus 1. Scores order one answer and do not compare answers; `stages` holds what went in.
A reranker moves the best articles of a tier among their places (rerank_stage.py), and the scores stay at the places.

In each tier articles in force come before those of repealed or superseded laws (validity.py); in the tier `exact` all
of them, in the others within windows of fixed size, so that an article's place does not depend on topk. The scores
stay at the places.

What a query names is read from the query alone, not from the law words that site_terms.py adds to it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from cg_rag.index.corpus import Article, LawRun, Scope
from cg_rag.index.errors import ScopeUnknown
from cg_rag.index.fusion import NUM_CANDIDATES
from cg_rag.index.named import Named, NameLookup
from cg_rag.index.ranking import WITHOUT_VECTORS, Candidate, Hit, Method, Question, Ranker
from cg_rag.index.rerank_stage import RerankStage
from cg_rag.index.validity import WINDOW, describe_validity, is_in_force, order_by_validity

Ranges = Sequence[tuple[int, int]]


class Reader(Protocol):
    """What is needed of an open index (`store.IndexReader`)."""

    @property
    def runs(self) -> tuple[LawRun, ...]: ...

    def find_rows(self, run_index: int, key: str) -> list[int]: ...

    def read_articles(self, rows: Sequence[int]) -> list[Article]: ...


@dataclass(frozen=True, slots=True)
class SearchResult:
    """`articles[i]` is the article of `hits[i]`. `query` is what was searched for, normalised.

    `timings_ms`, wall time: exact_ms (names read and resolved), embed_ms, lexical_ms, dense_ms,
    fuse_ms, rerank_ms, read_ms.
    `expansions`: the law words that were searched for besides the query. `reranked`: a reranker had its say. `warnings`
    are Chinese sentences for the caller; `degraded` says that a stage failed, so that the answer is not what it would
    be otherwise; `fault` is the reason, for the log.
    """

    hits: list[Hit]
    articles: list[Article]
    timings_ms: dict[str, float]
    warnings: list[str]
    query: str
    expansions: tuple[str, ...] = ()
    reranked: bool = False
    degraded: bool = False
    fault: str = ""


def normalise_query(query: str) -> str:
    """NFKC and trimmed: what is searched for, and what a cache keys by. Idempotent."""
    return unicodedata.normalize("NFKC", query).strip()


class Retriever:
    """Searches the scopes of one open index. Immutable, so threads share one."""

    def __init__(
        self,
        reader: Reader,
        scopes: Mapping[str, Scope],
        ranker: Ranker,
        by_words: Container[str] = (),
        lacks_vectors: bool = False,
        reranker: RerankStage | None = None,
        holds_old_law: bool = False,
    ) -> None:
        """`by_words` are scopes that are never searched by vectors, nor reranked; `lacks_vectors` says that vectors
        should be there and are not, so that every other answer is degraded; `holds_old_law` that some articles may not
        be in force."""
        self._holds_old_law = holds_old_law
        self._by_words = by_words
        self._lacks_vectors = lacks_vectors
        self._reader = reader
        self._scopes = dict(scopes)
        self._ranker = ranker
        self._names = NameLookup(reader)
        self._reranker = reranker

    @property
    def has_vectors(self) -> bool:
        return self._ranker.has_vectors

    @property
    def has_reranker(self) -> bool:
        return self._reranker is not None

    def search(self, query: str, scope: str, topk: int, method: Method = "rerank") -> SearchResult:
        """At most `topk` articles of `scope`, scores never rising; `method` leaves a stage out, for measuring.

        Raises ScopeUnknown, ValueError for topk < 1, StageFailed, IndexDamaged for an article that cannot be read.
        """
        if topk < 1:
            raise ValueError(f"topk 须不小于 1，收到 {topk}。")
        if scope not in self._scopes:
            raise ScopeUnknown(scope, list(self._scopes))
        ranges = self._scopes[scope].ranges
        if scope in self._by_words:
            method = "lexical"
        question = self._ranker.prepare(normalise_query(query), method)
        if self._lacks_vectors and method != "lexical":
            question.degrade(WITHOUT_VECTORS)
        with question.timed("exact_ms"):
            named = self._names.find(question.text, ranges)
        reranker = self._reranker if method == "rerank" else None
        # The window that the last place is in must be whole; that of the exact articles is all of them.
        wanted = topk + (WINDOW + len(named.rows) if self._holds_old_law else 0)
        hits = self._rank(
            question, ranges, named, max(wanted, reranker.depth(len(named.rows)) if reranker else 0)
        )
        reranked = reranker is not None and reranker.rerank(question, hits, topk, self._reader.read_articles)
        with question.timed("read_ms"):
            hits, articles = self._read(hits, topk)
        return SearchResult(
            hits,
            articles,
            question.timings_ms,
            [*named.warnings, *_old_law_warnings(hits, articles), *question.warnings],
            question.text,
            question.expansions,
            reranked,
            question.degraded,
            "；".join(question.faults),
        )

    def _read(self, hits: list[Hit], topk: int) -> tuple[list[Hit], list[Article]]:
        """The best `topk` and their articles, those in force first."""
        if not self._holds_old_law:
            hits = hits[:topk]
            return hits, self._reader.read_articles([hit.row for hit in hits])
        hits = hits[: _end_of_window(hits, topk)]
        articles = self._reader.read_articles([hit.row for hit in hits])
        in_force = [is_in_force(article.extra) for article in articles]
        order = []
        for start, stop in _tiers(hits):
            window = stop - start if "exact" in hits[start].stages else WINDOW
            order += [start + place for place in order_by_validity(in_force[start:stop], window)]
        del order[topk:]
        moved = [Hit(hits[place].row, hits[to].score, hits[place].stages) for to, place in enumerate(order)]
        return moved, [articles[place] for place in order]

    def _rank(self, question: Question, ranges: Ranges, named: Named, topk: int) -> list[Hit]:
        # Rows of the tiers before are taken out of the lists afterwards, so as many more are asked for.
        exact = set(named.rows)
        law = self._rank_law(question, named, topk + len(exact))
        taken = exact | {one.row for one in law}
        found = self._ranker.rank(question, ranges, topk + len(taken))
        rest = self._ranker.filter(question, [one for one in found if one.row not in taken])
        lift = _lift(law, found)
        hits = [Hit(one.row, one.score + lift, one.stages | {"law": 1.0}) for one in law]
        hits += [Hit(one.row, one.score, one.stages) for one in rest]
        top = hits[0].score if hits else 0.0
        return [*self._exact_hits(question, named.rows[:topk], top + 1.0), *hits][:topk]

    def _rank_law(self, question: Question, named: Named, k: int) -> list[Candidate]:
        if not named.ranges:
            return []
        exact = set(named.rows)
        # Never fewer than are fused: the lift hangs on the last of them, and must not hang on topk.
        found = self._ranker.rank(question, named.ranges, max(k, NUM_CANDIDATES))
        return [one for one in found if one.row not in exact]

    def _exact_hits(self, question: Question, rows: Sequence[int], score: float) -> list[Hit]:
        if not rows:
            return []
        ranges = [(row, row + 1) for row in sorted(rows)]
        stages = {one.row: one.stages for one in self._ranker.rank(question, ranges, len(rows))}
        return [Hit(row, score, stages.get(row, {}) | {"exact": 1.0}) for row in rows]


def _tiers(hits: Sequence[Hit]) -> Iterator[tuple[int, int]]:
    """Where each tier begins and ends."""
    start = 0
    for _, tier in groupby(hits, key=_tier):
        stop = start + sum(1 for _ in tier)
        yield start, stop
        start = stop


def _tier(hit: Hit) -> str:
    return next((name for name in ("exact", "law") if name in hit.stages), "")


def _end_of_window(hits: Sequence[Hit], topk: int) -> int:
    """Where the window ends that place `topk` is in, windows counted from the start of each tier."""
    for start, stop in _tiers(hits):
        if stop >= topk:
            return (
                stop
                if "exact" in hits[start].stages
                else min(stop, start + -(-(topk - start) // WINDOW) * WINDOW)
            )
    return len(hits)


def _old_law_warnings(hits: Sequence[Hit], articles: Sequence[Article]) -> list[str]:
    """For each law that was named by its article and is not in force."""
    found = {
        article.law_name: describe_validity(article.extra)
        for hit, article in zip(hits, articles, strict=True)
        if "exact" in hit.stages and not is_in_force(article.extra)
    }
    return [f"指名的“{name}”{described}，请核对现行规定。" for name, described in found.items()]


def _lift(law: Sequence[Candidate], found: Sequence[Candidate]) -> float:
    """By how much the law tier rises, so that its last is not below the best of the whole scope."""
    return found[0].score - min(0.0, law[-1].score) if law and found else 0.0
