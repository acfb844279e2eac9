"""What a question names outright: articles, laws, standards; and what it names in vain.

Rule: whoever names an article is told when it is not there. The list below it answers the words of the question, and
must not pass for the article that was asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cg_rag.index.citation_ranges import MAX_RANGE, find_range
from cg_rag.index.citation_scanner import Citation, scan_numbers
from cg_rag.index.citations import ArticleLookup, Resolution, Resolver
from cg_rag.index.numerals import article_key

Ranges = Sequence[tuple[int, int]]

# 3.0.1 without a law is looked up in every law of the scope: 6 µs a law. Beyond these bounds the number says
# too little, or costs too much.
_MAX_LAWS = 2000
_MAX_NUMBERS = 3
_MAX_ROWS = 20


@dataclass(frozen=True, slots=True)
class Named:
    """Inside one scope: `rows` of named articles in the order they were named, no repetitions; `ranges` of named
    laws, ascending and disjoint.

    `warnings` are Chinese sentences, one for each citation that leads nowhere or to an edition that may be another.
    """

    rows: list[int]
    ranges: list[tuple[int, int]]
    warnings: tuple[str, ...]


class NameLookup:
    """Reads questions against the laws of one index. Immutable, so threads share one."""

    def __init__(self, lookup: ArticleLookup) -> None:
        self._lookup = lookup
        self._resolver = Resolver(lookup)
        self._ranges_of_law: dict[str, list[tuple[int, int]]] = {}
        for run in lookup.runs:
            self._ranges_of_law.setdefault(run.law_name, []).append((run.start, run.start + run.count))

    def find(self, query: str, ranges: Ranges) -> Named:
        """`query` is normalised (NFKC), `ranges` are the scope's rows."""
        rows: dict[int, None] = {}
        laws: set[str] = set()
        warnings: dict[str, None] = {}
        citations = self._resolver.find_citations(query)
        budget = MAX_RANGE  # one question gets no more filled in, all in all
        for place, citation in enumerate(citations):
            between = _find_between(query, citations[place - 1], citation)[:budget] if place else []
            budget -= len(between)
            rows.update(dict.fromkeys(row for number in between for row in self._find_rows(number, ranges)))
            resolution = self._resolver.resolve(citation)
            inside = [row for row in resolution.rows if _holds(ranges, row)]
            warnings.update(dict.fromkeys(_warnings(citation, resolution, inside)))
            if resolution.status != "law_not_in_corpus":
                rows.update(dict.fromkeys(inside))
                laws.update(resolution.law_names)
        if all(_names_no_law(citation) for citation in citations):
            rows.update(dict.fromkeys(self._find_numbers(query, ranges)))
        law_ranges = sorted(span for law in laws for span in self._ranges_of_law[law])
        return Named(list(rows), list(_intersect(law_ranges, ranges)), tuple(warnings))

    def _find_rows(self, citation: Citation, ranges: Ranges) -> Iterator[int]:
        """Rows of an article inside a range, and of the one inserted behind it (第七条之一)."""
        for number in (f"{citation.article_number}", f"{citation.article_number}-1"):
            resolution = self._resolver.resolve(replace(citation, article_number=number))
            yield from (row for row in resolution.rows if _holds(ranges, row))

    def _find_numbers(self, query: str, ranges: Ranges) -> Iterator[int]:
        """Rows of the numbers that stand without any law, where few articles of the scope have them."""
        numbers = scan_numbers(query)[:_MAX_NUMBERS]
        if not numbers:
            return
        runs = [
            index
            for index, run in enumerate(self._lookup.runs)
            if any(True for _ in _intersect([(run.start, run.start + run.count)], ranges))
        ]
        if len(runs) > _MAX_LAWS:
            return
        for number in numbers:
            yield from self._find_number(article_key(number), runs)

    def _find_number(self, key: str, runs: Sequence[int]) -> list[int]:
        rows: list[int] = []
        for run in runs:
            rows += self._lookup.find_rows(run, key)
            if len(rows) > _MAX_ROWS:
                return []
        return rows


def _names_no_law(citation: Citation) -> bool:
    return citation.law_name is None and citation.code is None


def _find_between(query: str, first: Citation, last: Citation) -> list[Citation]:
    """The articles between the two ends of a range."""
    span = find_range(query, first, last)
    if span is None or span.is_too_long:
        return []
    return [replace(first, article_number=f"{span.head}{number}") for number in range(span.first, span.last)]


def _warnings(citation: Citation, resolution: Resolution, inside: Sequence[int]) -> Iterator[str]:
    if _names_no_law(citation):
        return  # a bare 第三条 names no law, so nothing can be missing
    law = "、".join(resolution.law_names[:3])
    if resolution.status == "law_not_in_corpus":
        # 《施工日志》 or 《施工日志》（一） is no law: without a code or an article nobody asked for one.
        number = citation.article_number or "("
        if citation.code or not number.startswith(("(", "（")):
            near = f"（名称相近的有“{law}”，所指若是它，请用书名号写明）" if law else ""
            yield f"索引中没有“{citation.raw}”所指的法规或标准{near}，以下条文只按内容检索得到。"
    elif resolution.status == "article_absent":
        yield f"索引中的“{law}”没有“{citation.raw}”所指的条文，以下条文只按内容检索得到。"
    elif resolution.rows and not inside:
        yield f"“{citation.raw}”不在所选检索范围内，以下条文只按内容检索得到。"
    elif resolution.unchecked_year:
        yield (
            f"“{citation.raw}”写明 {resolution.unchecked_year} 版，索引中的法规名称未注明版本，请以条文所带日期为准。"
        )


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
