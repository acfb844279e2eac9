"""The articles that a range names without writing them: 第七条至第九条 names 第八条 too. No I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from cg_rag.index.citation_scanner import Citation
from cg_rag.index.numerals import article_key, fold

MAX_RANGE: Final = 50
"""Of a range that is longer only the ends are named."""
_TO: Final = re.compile(r" *(?:至|到|~|-) *第? *")


@dataclass(frozen=True, slots=True)
class ArticleRange:
    """The articles `head`+`first` .. `head`+`last` of one law, `first` < `last`: "6.0." with 5 and 7 is 6.0.5–6.0.7."""

    head: str
    first: int
    last: int

    @property
    def is_too_long(self) -> bool:
        return self.last - self.first > MAX_RANGE


def find_range(text: str, first: Citation, last: Citation) -> ArticleRange | None:
    """The range that two citations, one right behind the other, are the ends of; None where they are none."""
    if (first.law_name or first.code) is None or not _TO.fullmatch(fold(text[first.end : last.start])):
        return None
    same_law = (first.law_name, first.code, first.year) == (last.law_name, last.code, last.year)
    if not same_law or first.paragraph or first.item or not first.article_number or not last.article_number:
        return None
    head, start = _split(article_key(first.article_number))
    other, stop = _split(article_key(last.article_number))
    return ArticleRange(head, start, stop) if head == other and 0 < start < stop else None


def _split(key: str) -> tuple[str, int]:
    """ "6.0.5" -> ("6.0.", 5); a number with an item or 之一 is no end of a range that can be filled."""
    match = re.fullmatch(r"((?:[0-9]+\.|附录[a-z]\.)*)([0-9]{1,6})", key)
    return (match[1], int(match[2])) if match else (key, 0)


def cite_inside(text: str, first: Citation, last: Citation, number: str) -> Citation:
    """An article that stands between the ends; `raw` is the whole range, as no part of it names the article alone."""
    article = f"第{number}条" if "条" in (last.article_number or "") else number
    raw = text[first.start : last.end]
    return replace(first, raw=raw, end=last.end, article_number=article)
