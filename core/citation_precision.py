"""How good the citations of one answer are: exists, supports, in force. No I/O.

    exists    the number leads to an entry of retrieval_docs
    supports  the item in which the mark stands names no other article of the evidence than this one, and shares at
              least SUPPORT_SHARE of its pairs of characters with the article's text. This is likeness of wording, not
              of meaning: it finds citations of something else, and cannot tell "应设" from "可不设"
    in force  what the article's `status` says

Rule: of a citation that does not exist nothing else is said.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cg_rag.core.criteria import Finder
from cg_rag.core.mark_reader import find_marks
from cg_rag.core.marks import strip_marks

SUPPORT_SHARE: Final = 0.2  # docs/vision-eval.md, 引用
_MIN_PAIRS: Final = 4  # of a shorter item nothing but the name can be said
_NO_WORD: Final = re.compile(r"[^\u3400-\u9fffa-z]+")


@dataclass(frozen=True, slots=True)
class Citation:
    """One mark. `validity` is in_force, amended, repealed, pending, or "" where the source says nothing."""

    number: int
    item: str
    name: str = ""
    exists: bool = False
    supports: bool = False
    share: float = 0.0
    validity: str = ""


def check_citations(
    answer: str,
    documents: Sequence[Mapping[str, Any]],
    make_finder: Callable[[Sequence[tuple[str, str]]], Finder],
    read_validity: Callable[[Any], str],
) -> list[Citation]:
    """Every mark of `answer`, once an item, in order."""
    lines = [line for line in answer.split("\n") if find_marks(line)]
    if not lines:
        return []
    find = make_finder(
        [(str(doc.get("law_name", "")), str(doc.get("article_number", ""))) for doc in documents]
    )
    return [
        _check(number, strip_marks(line).strip(), documents, find, read_validity)
        for line in lines
        for number in dict.fromkeys(number for mark in find_marks(line) for number in mark.numbers)
    ]


def _check(
    number: int,
    item: str,
    documents: Sequence[Mapping[str, Any]],
    find: Finder,
    read_validity: Callable[[Any], str],
) -> Citation:
    if not 1 <= number <= len(documents):
        return Citation(number, item)
    document = documents[number - 1]
    found = find(item)
    named = {row for entry in found for row in (entry.rows if entry.names_article else entry.law_rows)}
    words = item
    for entry in reversed(found):
        words = f"{words[: entry.start]} {words[entry.end :]}"
    pairs = _pairs(words)
    share = len(pairs & _pairs(str(document.get("contents", "")))) / len(pairs) if pairs else 0.0
    alike = share >= SUPPORT_SHARE if len(pairs) >= _MIN_PAIRS else bool(named)
    status = document.get("status")
    return Citation(
        number,
        item,
        f"{document.get('law_name', '')} {document.get('article_number', '')}".strip(),
        exists=True,
        supports=alike and (not named or number - 1 in named),
        share=round(share, 3),
        validity=read_validity(status) if isinstance(status, str) and status.strip() else "",
    )


def _pairs(text: str) -> set[str]:
    runs = _NO_WORD.split(unicodedata.normalize("NFKC", text).casefold())
    return {run[place : place + 2] for run in runs for place in range(len(run) - 1)}
