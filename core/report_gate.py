"""Lets a report out line by line while it is still being written: what is checked, in canonical shape. No I/O.

Rule: nothing goes out that cites what is no evidence or names what has none, also not in two lines that only together
do. From the first such line on nothing goes out: the model is asked again, or rules repair the whole.
"""

from __future__ import annotations

import re
from typing import Final

from cg_rag.core.answer_channel import LineGate
from cg_rag.core.citation_alignment import align_citations
from cg_rag.core.claims import References, unsupported
from cg_rag.core.mark_reader import MAX_MARK_CHARS, find_marks
from cg_rag.core.mark_remains import cut_mark_remains, has_mark_remains, without_known_marks
from cg_rag.core.protocol import holds_label
from cg_rag.core.report_publish import release_line

_HEAD: Final = re.compile(r"#{1,6}\s*(?:图\d|隐患|整改)|场景[:：]")
_ITEM: Final = re.compile(r"(\d{1,2})[.．、)）]\s*(?=\D)")


class ReportGate:
    """`feed` what the model writes, then `finish`. What comes out is what the published report begins with, as long
    as the model keeps to the format; a text that is no report keeps its blank lines."""

    def __init__(self, references: References, aligns: bool) -> None:
        self._references = references
        self._aligns = aligns
        self._gate = LineGate(self._check)
        self._before = ""  # the line before, as the model wrote it
        self._released = ""  # the line before, as it went out
        self._begun = False
        self._is_report = False
        self._is_after_scene = False
        self._num_blank = 0

    def feed(self, text: str) -> str:
        return "".join(map(self._shape, self._gate.feed(text).split("\n")[:-1]))

    def finish(self) -> str:
        return self._shape(self._gate.finish())

    def _check(self, line: str) -> str | None:
        before, self._before = self._before, line or self._before
        if before and line and spans_lines(before, line, self._references):
            return None
        if holds_label(line):
            return None
        if self._aligns:
            line = align_citations(line, self._references)[0]
        released = release_line(line, "cite", self._references)
        if released is None or not self._is_clean(line, released):
            return None
        last, self._released = self._released, released or self._released
        is_changed = (last, released) != (before, line)
        if is_changed and last and released and spans_lines(last, released, self._references):
            return None
        return released

    def _is_clean(self, line: str, released: str) -> bool:
        """Labels and names may come about when the mark inside of them is cut or written anew."""
        if has_mark_remains(released) or holds_label(released):
            return False
        return released == line or not unsupported(self._references.check(released))

    def _shape(self, line: str) -> str:
        line = line.rstrip()
        if not line:
            self._num_blank += self._begun
            return ""
        if not self._begun:
            self._is_report = bool(_HEAD.match(line.lstrip()))
        if not self._is_report:
            gap = "\n" * (1 + self._num_blank)
        else:
            line = _ITEM.sub(r"\1. ", line.strip(), count=1) if line.strip()[0].isdigit() else line.strip()
            gap = "\n\n" if self._is_after_scene or _HEAD.match(line) else "\n"
            self._is_after_scene = line.startswith("场景")
        shaped = (gap if self._begun else "") + line
        self._begun, self._num_blank = True, 0
        return shaped


def spans_lines(before: str, line: str, references: References) -> bool:
    """Whether a mark goes from one line into the next, or both together name what has no evidence."""
    tail, head = before[-MAX_MARK_CHARS:], line[:MAX_MARK_CHARS]
    bare = without_known_marks(tail), without_known_marks(head)
    return _span(tail, head, references) or (bare != (tail, head) and _span(*bare, references))


def _span(tail: str, head: str, references: References) -> bool:
    joined, border = f"{tail}\n{head}", len(tail)
    # Either line alone is clean, so what is found in both goes over the border.
    if holds_label(joined) or cut_mark_remains(joined) != joined:
        return True
    if any(mark.start < border < mark.end for mark in find_marks(joined)):
        return True
    # A name is read as one where it is broken over the end of a line: 《安全生 / 产法》第九条.
    claims = unsupported(references.check(tail + head))
    return any(claim.start < border < claim.end for claim in claims)
