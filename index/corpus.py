"""The values that the retrieval library is about: an article, a run of articles of one law, a scope.

Rule: a row is the position of an article in the index, from 0. Rows of one law are contiguous, laws of one
corpus and one set of tags are contiguous, so that a scope is a few ranges of rows and never a list of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Article:
    """The unit of retrieval and citation.

    `article_number` is kept as the source writes it, "" for text without numbers.
    `extra` holds what else the corpus carries (`chapter`, `effective_date`, `status`, `source`, `doc_id`).
    (law_name, article_number) is not unique in real corpora.
    """

    law_name: str
    article_number: str
    contents: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LawRun:
    """Rows `start` .. `start + count - 1` are the articles of one law, in source order.

    `corpus` is the name the source was built under, `sha256` the digest of the bytes of these rows in
    articles.jsonl: a flipped byte there takes down only the scopes that hold this law.
    """

    law_name: str
    corpus: str
    tags: tuple[str, ...]
    start: int
    count: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Selector:
    """One entry of `profiles.<scope>.include`. Every given field must match; all None selects everything."""

    corpus: str | None = None
    law: str | None = None
    tag: str | None = None

    def matches(self, run: LawRun) -> bool:
        return (
            (self.corpus is None or self.corpus == run.corpus)
            and (self.law is None or self.law == run.law_name)
            and (self.tag is None or self.tag in run.tags)
        )


@dataclass(frozen=True, slots=True)
class Scope:
    """A named subset of the corpus: ascending, disjoint row ranges [start, stop)."""

    name: str
    ranges: tuple[tuple[int, int], ...]

    @property
    def num_docs(self) -> int:
        return sum(stop - start for start, stop in self.ranges)


def resolve_scope(name: str, selectors: Sequence[Selector], runs: Sequence[LawRun]) -> Scope:
    """Turn selectors into merged row ranges over `runs` (in row order)."""
    ranges: list[tuple[int, int]] = []
    for run in runs:
        if not any(selector.matches(run) for selector in selectors):
            continue
        stop = run.start + run.count
        if ranges and ranges[-1][1] == run.start:
            ranges[-1] = (ranges[-1][0], stop)
        else:
            ranges.append((run.start, stop))
    return Scope(name, tuple(ranges))
