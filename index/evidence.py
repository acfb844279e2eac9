"""Which of a few articles a text names: the laws and articles of a report, looked up in its evidence.

Rule: the same grammar and the same rules as in a whole corpus (`Resolver`), over a list of (law_name, article_number)
that is made for one request. What names no law and no article (《施工日志》) is not found at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from cg_rag.index.citation_scanner import Citation, scan_numbers
from cg_rag.index.citations import Resolver
from cg_rag.index.corpus import LawRun
from cg_rag.index.law_names import KIND, find_unknown_name
from cg_rag.index.numerals import CHINESE_DIGITS, fold, lookup_keys

_IS_LAW = re.compile(rf"{KIND}(?:[(（][^()（）]{{1,12}}[)）])?$")
_BRACKETS = ("(", "（")
# 建筑法47条: what follows another kind may be counted (违反规范3条), and 一条 is no number.
_WITHOUT_DI = re.compile(
    rf"(?<=[法例])[的中]? {{0,3}}(?P<number>[0-9]{{1,4}}|[{CHINESE_DIGITS}]{{2,12}}) {{0,3}}条"
)


@dataclass(frozen=True, slots=True)
class FoundArticle:
    """text[start:end] is `raw`. `rows` are the places in the list of the articles that it names, ascending; empty
    when it names none of them, or no article. `law_rows` are those of every article of the law that it names."""

    start: int
    end: int
    raw: str
    names_law: bool
    names_article: bool
    rows: tuple[int, ...]
    law_rows: tuple[int, ...] = ()


def _rows_of_law(articles: Sequence[tuple[str, str]]) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = {}
    for row, (law_name, _) in enumerate(articles):
        rows.setdefault(law_name, []).append(row)
    return rows


@lru_cache(maxsize=4096)
def _keys_of(number: str) -> tuple[str, ...]:
    """The criteria are listed anew for each request, 900 numbers that are always the same: 3 ms a time."""
    return tuple(lookup_keys(number))


class _Lookup:
    def __init__(self, articles: Sequence[tuple[str, str]]) -> None:
        rows_of_law = _rows_of_law(articles)
        self.runs = [LawRun(name, "", (), rows[0], len(rows), "") for name, rows in rows_of_law.items()]
        self._keys: list[dict[str, list[int]]] = []
        for rows in rows_of_law.values():
            keys: dict[str, list[int]] = {}
            for row in rows:
                for key in _keys_of(articles[row][1]):
                    keys.setdefault(key, []).append(row)
            self._keys.append(keys)

    def find_rows(self, run_index: int, key: str) -> list[int]:
        return self._keys[run_index].get(key, [])


class EvidenceFinder:
    """Finds the laws and articles that a text names, and which entries of `articles` (law_name, article_number) they
    are. Immutable; never raises; linear in the text."""

    def __init__(self, articles: Sequence[tuple[str, str]]) -> None:
        self._resolver = Resolver(_Lookup(articles))
        self._rows_of_law = _rows_of_law(articles)

    def find(self, text: str) -> list[FoundArticle]:
        """Ascending and disjoint. A bare 第三条 or 6.0.5 counts as the article of that number of any law listed."""
        citations = self._resolver.find_citations(text)
        found = [entry for citation in citations if (entry := self._look_up(citation))]
        found += _find_unknown(text, [(citation.start, citation.end) for citation in citations])
        taken = [(citation.start, citation.end) for citation in citations]
        taken += [(entry.start, entry.end) for entry in found]
        found += self._find_numbers(text, taken)
        return sorted(found, key=lambda entry: entry.start)

    def _look_up(self, citation: Citation) -> FoundArticle | None:
        place = (citation.start, citation.end, citation.raw)
        number = citation.article_number
        if citation.law_name is None and citation.code is None:
            return FoundArticle(*place, False, True, self._resolver.find_anywhere(citation))
        resolution = self._resolver.resolve(citation)
        known = resolution.status != "law_not_in_corpus"
        # （一） behind a name may count anything: it is an article only of a law that is known here.
        names_article = number is not None and (known or not number.startswith(_BRACKETS))
        is_law = known or names_article or citation.code or _IS_LAW.search(citation.law_name or "")
        law_rows = {row for name in resolution.law_names for row in self._rows_of_law[name]} if known else ()
        found = FoundArticle(*place, True, names_article, resolution.rows, tuple(sorted(law_rows)))
        return found if is_law else None

    def _find_numbers(self, text: str, taken: Sequence[tuple[int, int]]) -> Iterator[FoundArticle]:
        """6.0.5 without a law."""
        folded, spans = fold(text), list(taken)
        # The longest first: 6.0.5 is also the beginning of 6.0.5(1).
        for number in sorted(scan_numbers(text), key=len, reverse=True):
            rows = self._resolver.find_anywhere(Citation(number, 0, len(number), article_number=number))
            for match in re.finditer(rf"(?<![A-Z0-9.]){re.escape(number)}(?![0-9]|\.[0-9])", folded):
                start, end = match.span()
                if not any(first < end and start < last for first, last in spans):
                    spans.append((start, end))
                    yield FoundArticle(start, end, text[start:end], False, True, rows)


def _find_unknown(text: str, taken: Sequence[tuple[int, int]]) -> Iterator[FoundArticle]:
    """建筑法四十七条, of a law that is not listed: neither 《》 nor 第 says that it is one."""
    folded = fold(text)
    for match in _WITHOUT_DI.finditer(folded):
        before = max((last for _, last in taken if last <= match.start("number")), default=0)
        law = find_unknown_name(folded, before, match.start("number"))
        if law and not any(first < match.end() and law[0] < last for first, last in taken):
            start, end = law[0], match.end()
            yield FoundArticle(start, end, text[start:end], True, True, ())
