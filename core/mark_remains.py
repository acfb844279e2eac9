"""What is left of a citation mark that has no number: `[cite^`, `[cite^]`, `[cite^n]`, 〔n〕. No I/O.

Rule: core/mark_reader.py knows marks with numbers; what only looks like one cites nothing, and goes.
"""

from __future__ import annotations

import re
from typing import Final

from cg_rag.core.mark_reader import find_marks
from cg_rag.core.marks import strip_marks
from cg_rag.core.shown_text import cut_shown, shown

_BRACKETS: Final = r"\[［【〔〖(（{"
# From the first of a row of brackets alone: begun at each of them, a row of 10,000 takes seconds.
_OPEN, _CLOSE = rf"(?<![{_BRACKETS}])[{_BRACKETS}]+", r"[\]］】〕〗)）}]"
_WORD: Final = r"\s?c\s?i\s?t\s?e\s{0,2}[\^＾ˆ˄](?![ \t]{0,3}[0-9０-９])"
# A placeholder that a prompt shows ([cite^编号]) goes with its brackets, not only up to the ^.
_PLACEHOLDER: Final = rf"{_OPEN}{_WORD}[^\[\]［］【】〔〕〖〗()（）{{}}\n]{{1,12}}{_CLOSE}+"
_NUMBERED: Final = r"〔\s?(?:n|编号|序号|[一二三四五六七八九十]{1,3})\s?〕"
_REMAINS: Final = re.compile(rf"{_PLACEHOLDER}|{_NUMBERED}|(?:{_OPEN})?{_WORD}{_CLOSE}*", re.I)
_MAX_PASSES: Final = 8


_KNOWN: Final = re.compile(r"\[cite\^\d{1,9}\]")


def cut_mark_remains(text: str) -> str:
    return cut_shown(text, _REMAINS)


def strip_citations(text: str) -> str:
    """A text without any citation mark and without what is left of one, until nothing changes any more."""
    for _ in range(_MAX_PASSES):
        done = cut_mark_remains(strip_marks(text))
        if done == text:
            break
        text = done
    return text


def has_mark_remains(text: str) -> bool:
    """Of a text whose marks are published ones: whether others are left, be it around them: [ci[cite^1]te^9],
    〔9[cite^1]〕."""
    bare = without_known_marks(text)
    if _num_bare(bare) > _num_bare(text):
        return True
    return bool(_REMAINS.search(shown(bare))) or any(not mark.is_bare for mark in find_marks(bare))


def without_known_marks(text: str) -> str:
    """A text without the marks of the form that is published."""
    return _KNOWN.sub("", text)


def _num_bare(text: str) -> int:
    return sum(mark.is_bare for mark in find_marks(text))
