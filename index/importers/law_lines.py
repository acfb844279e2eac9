"""The values that reading a law's text starts from and ends with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cg_rag.index.corpus import Article


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a source as its container gives it.

    `number` counts lines of a text file, paragraphs of DOCX or HTML, from 1. `style` is "title" or "heading" where
    the container knows. A row of a table, its cells joined by " | ", belongs to the article before it.
    """

    number: int
    text: str
    style: str = ""
    table: bool = False


@dataclass(frozen=True, slots=True)
class Left:
    """Text that is in no article; `reason` in a few Chinese words."""

    line: int
    text: str
    reason: str


@dataclass(frozen=True, slots=True)
class ParsedLaw:
    """`articles` in the order of the text; `warnings` are (line, Chinese sentence).

    An article's `extra` holds `line`, and where known `chapter` (第二章 施工安全 / 第一节 …), `status`,
    `effective_date` (ISO), `code` (GB55023-2022). Text without a number has `citable` false and its place among such
    texts as `section`.
    """

    law_name: str
    articles: tuple[Article, ...]
    left: tuple[Left, ...]
    warnings: tuple[tuple[int, str], ...]


# The number of a text that has no numbers inside; an article without a number of its own has "".
WHOLE = "全文"


def build_article(
    law_name: str, number: str, contents: str, line: int, section: int, about: dict[str, str]
) -> Article:
    """An article whose `extra` leaves out what is not known; `section` counts the texts without a number."""
    extra: dict[str, Any] = {key: value for key, value in about.items() if value}
    extra["line"] = line
    if number in ("", WHOLE):
        extra |= {"citable": False, "section": section}
    return Article(law_name, number, contents, extra)
