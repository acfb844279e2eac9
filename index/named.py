"""What a question names outright: articles, laws, standards; and what it names in vain.

Rule: whoever names an article is told when it is not there. The list below it answers the words of the question, and
must not pass for the article that was asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cg_rag.index.citations import ArticleLookup, Citation, Resolution, Resolver

Ranges = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Named:
    """Inside one scope: `rows` of named articles, ascending; `ranges` of named laws, ascending and disjoint.

    `warnings` are Chinese sentences, one for each citation that leads nowhere.
    """

    rows: list[int]
    ranges: list[tuple[int, int]]
    warnings: tuple[str, ...]


class NameLookup:
    """Reads questions against the laws of one index. Immutable, so threads share one."""

    def __init__(self, lookup: ArticleLookup) -> None:
        self._resolver = Resolver(lookup)
        self._ranges_of_law: dict[str, list[tuple[int, int]]] = {}
        for run in lookup.runs:
            self._ranges_of_law.setdefault(run.law_name, []).append((run.start, run.start + run.count))

    def find(self, query: str, ranges: Ranges) -> Named:
        """`query` is normalised (NFKC), `ranges` are the scope's rows."""
        rows: set[int] = set()
        laws: set[str] = set()
        warnings: dict[str, None] = {}
        for citation in self._resolver.find_citations(query):
            resolution = self._resolver.resolve(citation)
            inside = [row for row in resolution.rows if _holds(ranges, row)]
            warning = _warning(citation, resolution, inside)
            if warning:
                warnings[warning] = None
            if resolution.status != "law_not_in_corpus":
                rows.update(inside)
                laws.update(resolution.law_names)
        law_ranges = sorted(span for law in laws for span in self._ranges_of_law[law])
        return Named(sorted(rows), list(_intersect(law_ranges, ranges)), tuple(warnings))


def _warning(citation: Citation, resolution: Resolution, inside: Sequence[int]) -> str:
    if citation.law_name is None and citation.code is None:
        return ""  # a bare 第三条 names no law, so nothing can be missing
    if resolution.status == "law_not_in_corpus":
        # 《施工日志》 is no law: without a code or an article nobody asked for one.
        named = citation.code is not None or citation.article_number is not None
        return f"索引中没有“{citation.raw}”所指的法规或标准，以下条文只按内容检索得到。" if named else ""
    law = "、".join(resolution.law_names[:3])
    if resolution.status == "article_absent":
        return f"索引中的“{law}”没有“{citation.raw}”所指的条文，以下条文只按内容检索得到。"
    if resolution.rows and not inside:
        return f"“{citation.raw}”不在所选检索范围内，以下条文只按内容检索得到。"
    return ""


def _holds(ranges: Ranges, row: int) -> bool:
    return any(start <= row < stop for start, stop in ranges)


def _intersect(left: Ranges, right: Ranges) -> Iterator[tuple[int, int]]:
    """Both ascending and disjoint, and so is what they have in common."""
    at = 0
    for start, stop in left:
        while at < len(right) and right[at][1] <= start:
            at += 1
        for first, last in right[at:]:
            if first >= stop:
                break
            yield max(start, first), min(stop, last)
