"""What people on site say, in the words of laws and standards: 塔吊 is 塔式起重机 there, 工人 is 从业人员.

Rule: words are only ever added to a query, never to an article, and nothing the user wrote is replaced. Which
law or article a query names is decided before, by what the user wrote alone.

The table is site_terms.json. A site word is found where it stands, the longest one from the left: 建筑工人 is
one word, not 工人. A guard is an ordinary word that adds nothing and takes its characters out of the search:
without 人员 the words 管理人员工作 would speak of 员工.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cg_rag.index.text import normalise

TABLE = Path(__file__).with_name("site_terms.json")
# A question of two sentences adds about ten words; a page of site words must not become a page of postings.
MAX_EXPANSIONS = 48


@dataclass(frozen=True, slots=True)
class SiteTerms:
    """`law_words`: site word -> law words, empty for a guard. `by_first`: first character -> words, longest first."""

    law_words: Mapping[str, tuple[str, ...]]
    by_first: Mapping[str, tuple[str, ...]]

    @classmethod
    def load(cls, path: Path = TABLE) -> SiteTerms:
        """OSError or ValueError where the table is missing, broken or gives a word twice."""
        return cls.of(_pairs(json.loads(path.read_text(encoding="utf-8"))))

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, tuple[str, ...]]]) -> SiteTerms:
        """From (site word, law words). ValueError for a word given twice or of a single character."""
        law_words: dict[str, tuple[str, ...]] = {}
        by_first: dict[str, list[str]] = {}
        for word, laws in pairs:
            if len(word) < 2 or word in law_words:
                raise ValueError(f"现场用语表：“{word}”重复，或不足两个字。")
            law_words[word] = laws
            by_first.setdefault(word[0], []).append(word)
        ordered = {first: tuple(sorted(words, key=len, reverse=True)) for first, words in by_first.items()}
        return cls(law_words, ordered)

    def expand(self, query: str) -> tuple[str, ...]:
        """Law words for the site words of `query`, in their order, each once, at most MAX_EXPANSIONS.

        Not among them: what the query says already.
        """
        text = normalise(query)
        found: dict[str, None] = {}
        for word in self.find_words(text):
            found.update((law, None) for law in self.law_words[word] if law not in text)
            if len(found) >= MAX_EXPANSIONS:
                break
        return tuple(found)[:MAX_EXPANSIONS]

    def find_words(self, normalised: str) -> Iterator[str]:
        """Words of the table in normalised text, guards too: from the left, the longest one, never overlapping."""
        at = 0
        while at < len(normalised):
            word = self._longest_at(normalised, at)
            if word is not None:
                yield word
            at += len(word or " ")

    def _longest_at(self, text: str, at: int) -> str | None:
        words = self.by_first.get(text[at], ())
        return next((word for word in words if text.startswith(word, at)), None)


def _pairs(table: dict[str, Any]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for section in table["sections"]:
        for site, law in section["entries"]:
            for word in site.split():
                yield word, tuple(law.split())
    for word in table["guards"].split():
        yield word, ()
