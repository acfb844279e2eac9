"""From a question to ranked articles: lexical search, and look-up of what the question names outright.

Rule: three tiers, each wholly before the next.
    exact    articles that the query names by law and number, in the order it names them
    law      articles of a law that the query names by 《》, code or name, best lexical score first
    lexical  everything else that shares a term, best lexical score first; only here min_score cuts

A score is the lexical one, lifted so that no tier ends below the start of the next: in the law tier by the
best lexical score of the whole scope; exact articles all get the best score behind them plus 1. Scores do not
depend on topk; they order one answer and do not compare answers. `stages` holds the lexical score itself.

The lexical score counts the query and, with less weight, the law words for its site words (site_terms.py).
What a query names is read from the query alone.
"""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from cg_rag.index.corpus import Article, LawRun, Scope
from cg_rag.index.errors import ScopeUnknown
from cg_rag.index.lexical import LexicalArrays, LexicalSearcher
from cg_rag.index.named import Named, NameLookup
from cg_rag.index.site_terms import SiteTerms

Ranges = Sequence[tuple[int, int]]


class Reader(Protocol):
    """What is needed of an open index (`store.IndexReader`)."""

    @property
    def runs(self) -> tuple[LawRun, ...]: ...

    @property
    def lexical(self) -> LexicalArrays: ...

    def find_rows(self, run_index: int, key: str) -> list[int]: ...

    def read_articles(self, rows: Sequence[int]) -> list[Article]: ...


@dataclass(frozen=True, slots=True)
class Hit:
    """`stages`: "lexical" where terms are shared, and 1.0 for the tier "exact" or "law"."""

    row: int
    score: float
    stages: dict[str, float]


@dataclass(frozen=True, slots=True)
class SearchResult:
    """`articles[i]` is the article of `hits[i]`. `query` is what was searched for, normalised.

    `timings_ms`: exact_ms (names read and resolved), lexical_ms, read_ms, wall time. `expansions`: the law words
    that were searched for besides the query. `warnings` are Chinese sentences for the caller; `degraded` says that a
    stage failed, so that the answer is not what it would be otherwise.
    """

    hits: list[Hit]
    articles: list[Article]
    timings_ms: dict[str, float]
    warnings: list[str]
    query: str
    expansions: tuple[str, ...] = ()
    degraded: bool = False


@dataclass(frozen=True, slots=True)
class _Query:
    text: str
    expansions: tuple[str, ...]


def normalise_query(query: str) -> str:
    """NFKC and trimmed: what is searched for, and what a cache keys by. Idempotent."""
    return unicodedata.normalize("NFKC", query).strip()


class Retriever:
    """Searches the scopes of one open index. Immutable, so threads share one."""

    retrieval_method: ClassVar[str] = "lexical"

    def __init__(
        self, reader: Reader, scopes: Mapping[str, Scope], *, min_score: float | None = None
    ) -> None:
        """`min_score` is a lexical score, None cuts nothing."""
        self._reader = reader
        self._scopes = dict(scopes)
        self._min_score = min_score
        self._searcher = LexicalSearcher(reader.lexical)
        self._names = NameLookup(reader)
        self._site_terms = SiteTerms.load()

    def search(self, query: str, scope: str, topk: int) -> SearchResult:
        """At most `topk` articles of `scope`, scores never rising. ScopeUnknown, ValueError for topk < 1."""
        if topk < 1:
            raise ValueError(f"topk 须不小于 1，收到 {topk}。")
        if scope not in self._scopes:
            raise ScopeUnknown(scope, list(self._scopes))
        query = normalise_query(query)
        ranges = self._scopes[scope].ranges
        started = time.perf_counter()
        named = self._names.find(query, ranges)
        resolved = time.perf_counter()
        expansions = self._site_terms.expand(query)
        hits = self._rank(_Query(query, expansions), ranges, named, topk)
        ranked = time.perf_counter()
        articles = self._reader.read_articles([hit.row for hit in hits])
        read = time.perf_counter()
        timings = {
            "exact_ms": (resolved - started) * 1000,
            "lexical_ms": (ranked - resolved) * 1000,
            "read_ms": (read - ranked) * 1000,
        }
        return SearchResult(hits, articles, timings, list(named.warnings), query, expansions)

    def _rank(self, query: _Query, ranges: Ranges, named: Named, topk: int) -> list[Hit]:
        # Rows of the tiers before are taken out of the lists afterwards, so as many more are asked for.
        law = self._search_law(query, named, topk)
        taken = {*named.rows, *(row for row, _ in law)}
        found = self._lexical(query, ranges, topk + len(taken))
        lift = found[0][1] if found else 0.0
        hits = [Hit(row, score + lift, {"lexical": score, "law": 1.0}) for row, score in law]
        for row, score in found:
            if row not in taken and (self._min_score is None or score >= self._min_score):
                hits.append(Hit(row, score, {"lexical": score}))
        top = hits[0].score if hits else 0.0
        return [*self._exact_hits(query, named.rows[:topk], top + 1.0), *hits][:topk]

    def _search_law(self, query: _Query, named: Named, topk: int) -> list[tuple[int, float]]:
        if not named.ranges:
            return []
        exact = set(named.rows)
        found = self._lexical(query, named.ranges, topk + len(exact))
        return [(row, score) for row, score in found if row not in exact]

    def _exact_hits(self, query: _Query, rows: Sequence[int], score: float) -> list[Hit]:
        if not rows:
            return []
        lexical = dict(self._lexical(query, [(row, row + 1) for row in sorted(rows)], len(rows)))
        return [
            Hit(row, score, ({"lexical": lexical[row]} if row in lexical else {}) | {"exact": 1.0})
            for row in rows
        ]

    def _lexical(self, query: _Query, ranges: Ranges, k: int) -> list[tuple[int, float]]:
        rows, scores = self._searcher.search(query.text, ranges, k, query.expansions)
        return list(zip(rows.tolist(), scores.tolist(), strict=True))
