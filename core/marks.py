"""Citation marks: `[cite^n]`, `〔n〕`, and whatever models write instead of them. No I/O.

Rule: a mark that leaves this module is in the one form of its style and has a number that `keep` gave; every other
mark is cut, however it is written and however it was split over tokens. core/mark_reader.py says what is a mark.

    cite       [cite^1,2] -> [cite^1][cite^2]; 〔1〕, 【1】, [1] and ¹ are cut       (agentic)
    numbered   [cite^1], 【1】, 〔1、2〕, ¹˒² -> 〔1〕〔2〕                             (hybrid)
    none       all of them are cut                                                   (free form)

Where they are cut anyway, a [1] or 【1】 that begins a line numbers it, and becomes `1. `. Code fences change nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, Literal

from cg_rag.core.mark_reader import MAX_MARK_CHARS, START, Mark, find_marks, read_mark
from cg_rag.core.shown_text import Undecided

Style = Literal["cite", "numbered", "none"]
# Gives the number that a mark is published with, None for one that names no evidence.
Keep = Callable[[int], int | None]

_MAX_BLANKS: Final = 64  # a longer run of white space is cut to this
_LONG_BLANKS: Final = re.compile(rf"\s{{{_MAX_BLANKS + 1},}}")
_LINE_BEGINS: Final = re.compile(r"(?:\A|\n)[ \t\u3000>#*-]*\Z")


class MarkFilter:
    """Feed a text as it comes, then `finish`; what comes out, joined, does not depend on how the text was cut.

    White space at the ends of the text is dropped, and so are blanks before a mark that is cut. At most
    MAX_MARK_CHARS characters and a run of white space are held back.
    """

    def __init__(self, style: Style, keep: Keep) -> None:
        self._style: Style = style
        self._keep = keep
        self._pending = ""
        self._pos = 0  # what stands before it in the pending text is done
        self._tail = (
            ""  # the end of what was let go, for marks that come about when one between their parts is cut
        )
        self._joins = False  # the tail has to be read again together with what follows it
        self._blanks = ""
        self._has_text = False
        self._is_numbered = False  # the line's number has just been written, with its blank

    def feed(self, text: str) -> str:
        """What is certain now."""
        self._pending += text
        return "".join(self._run(is_final=False))

    def finish(self) -> str:
        """What was held back."""
        released = "".join(self._run(is_final=True))
        self._blanks = ""
        return released

    def _run(self, is_final: bool) -> Iterator[str]:
        try:
            while self._pos < len(self._pending):
                yield self._step(is_final)
        except Undecided:
            pass
        self._pending, self._pos = self._pending[self._pos :], 0

    def _step(self, is_final: bool) -> str:
        """Take the text up to the next place where a mark may begin, or what stands there."""
        if self._joins:
            self._cut_joined(is_final)
        start = START.search(self._pending, self._pos)
        place = start.start() if start else len(self._pending)
        if place > self._pos:
            return self._release(place - self._pos)
        if not start:
            return ""
        before = self._tail + self._blanks
        mark, is_dropped = self._read(self._pending, self._pos, is_final, before)
        if mark:
            self._pos = mark.end
            return self._take_mark(mark)
        if is_dropped:
            self._pos += 1
            return ""
        return self._release(1)

    def _read(self, text: str, pos: int, is_final: bool, before: str) -> tuple[Mark | None, bool]:
        """The mark at `pos`, and whether the character there has to go because nothing tells what it begins."""
        is_full = pos + MAX_MARK_CHARS <= len(text)
        try:
            return read_mark(text, pos, is_final and not is_full, before), False
        except Undecided:
            if not is_full:
                raise
            mark = read_mark(text, pos, True, before)
            return mark, mark is None

    def _cut_joined(self, is_final: bool) -> None:
        """Cut what completes a mark that began in the tail. Raises Undecided when only more text can tell."""
        size = len(self._tail)
        while self._pos < len(self._pending):
            text = self._tail + self._pending[self._pos : self._pos + MAX_MARK_CHARS]
            places = (start.start() for start in START.finditer(self._tail))
            marks = (self._read(text, place, is_final, text[:place])[0] for place in places)
            end = next((mark.end for mark in marks if mark and mark.end > size), size)
            if end == size:
                self._joins = False
                return
            self._pos += end - size

    def _take_mark(self, mark: Mark) -> str:
        known = [number for old in mark.numbers if (number := self._keep(old)) is not None]
        if self._style != "numbered" and mark.is_bare:
            begins_line = _LINE_BEGINS.search(self._tail + self._blanks)
            if begins_line and len(mark.numbers) == 1 and 0 < mark.numbers[0] < 100:
                numbered = self._put(f"{mark.numbers[0]}.")
                self._blanks, self._is_numbered = " ", True
                return numbered
            known = []
        if known and self._style != "none":
            form = "[cite^%d]" if self._style == "cite" else "〔%d〕"
            return self._put("".join(form % number for number in dict.fromkeys(known)))
        self._blanks = self._blanks.rstrip(" \t\u3000")
        self._joins = True
        return ""

    def _release(self, length: int) -> str:
        self._pos += length
        return self._put(self._pending[self._pos - length : self._pos])

    def _put(self, text: str) -> str:
        """Text without the white space at its end, which goes out before the next text if there is one."""
        if self._is_numbered:
            text = text.lstrip(" \t\u3000")
            self._is_numbered = not text
        whole = self._blanks + text
        if not self._has_text:
            whole = whole.lstrip()
        kept = whole.rstrip()
        self._blanks = whole[len(kept) :][:_MAX_BLANKS] if self._has_text or kept else ""
        self._has_text = self._has_text or bool(kept)
        kept = _LONG_BLANKS.sub(lambda match: match[0][:_MAX_BLANKS], kept)
        self._tail = (self._tail + kept)[-MAX_MARK_CHARS:]
        return kept


def rewrite_marks(text: str, style: Style, keep: Keep) -> str:
    """A whole text through MarkFilter, until nothing changes any more."""
    for _ in range(8):
        marks = MarkFilter(style, keep)
        done = marks.feed(text) + marks.finish()
        if done == text:
            break
        # Numbers were moved by the first pass.
        keep = _same(style, done, keep)
        text = done
    return text


def _same(style: Style, text: str, keep: Keep) -> Keep:
    known = {number for mark in find_marks(text) for number in mark.numbers}
    return lambda number: number if number in known else None


def strip_marks(text: str) -> str:
    """A text without any citation mark, white space at its ends dropped."""
    return rewrite_marks(text, "none", lambda _: None)


def cited_numbers(text: str) -> list[int]:
    """The numbers cited in a text that holds nothing but published marks, ascending, each once."""
    return sorted({number for mark in find_marks(text) for number in mark.numbers})


def known_up_to(num_evidence: int) -> Keep:
    """Keeps the numbers 1 .. num_evidence as they are."""
    return lambda number: number if 1 <= number <= num_evidence else None
