"""Which lines begin an article: the shapes of headings.py judged by their order and by what stands around them.

Rule: a law counts its articles in one way. 第X条 make the lines 3.1.2 and 一、 text of their article, clauses N.N.N
make the lines 一、 text, and only where there are neither is 一、 a number. A number that does not follow the one
before begins an article only where the line before has ended.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cg_rag.index.importers.counting import Mode, choose_mode, follows, is_near, value_of
from cg_rag.index.importers.headings import (
    MAX_HEADING_CHARS,
    RANK_CHAPTER,
    RANK_OTHER,
    RANK_SECTION,
    RANK_SUBTITLE,
    Mark,
    Order,
    classify,
    is_known_chapter,
    is_sentence,
    read_numbered_heading,
    squeeze_title,
    without_page,
)
from cg_rag.index.importers.law_head import is_law_name
from cg_rag.index.importers.markup import Piece
from cg_rag.index.numerals import fold

# A table of contents longer than this is none.
_MAX_CONTENTS = 600
# Between the clauses of two chapters that are both there; excerpts leave chapters out where a sentence has ended.
_MAX_CHAPTER_JUMP = 3
# A standard has more chapters than this before its numbers may start again.
_MIN_CHAPTERS = 3
_RANK_ITEM = 25
_TEXT = Mark("text")
_CLOSING = re.compile(r"本(?:决定|意见|通知|办法|规定|解释|通告|公告|批复)自.{2,24}(?:施行|实施|执行|生效)")


@dataclass(slots=True)
class Structure:
    """`marks` stand beside the pieces. `body` is the place of the first piece that is not the head of the law."""

    mode: Mode
    marks: list[Mark]
    body: int
    warnings: list[tuple[int, str]]


def find_structure(pieces: Sequence[Piece], header_end: int | None) -> Structure:
    """Judge every line. Never raises; linear in the text."""
    raw = [classify(piece) for piece in pieces]
    _mark_contents(pieces, raw, header_end or 0)
    judge = _Judge(pieces, raw, header_end or 0)
    return judge.run()


def _key(order: Order) -> tuple[tuple[bool, int | str], ...]:
    """Chapters before appendices, numbers by value."""
    return tuple((isinstance(part, str), part) for part in order)


def _breaks_off(text: str) -> bool:
    """A long line that ends inside a sentence."""
    return len(text) >= 15 and (text[-1] in "、，（《“及和与或第" or "\u3400" <= text[-1] <= "\u9fff")


def _mark_contents(pieces: Sequence[Piece], marks: list[Mark], header_end: int) -> None:
    index = 0
    while index < len(marks):
        stop = index + 1
        if marks[index].kind == "contents":
            stop = _contents_end(pieces, marks, stop, header_end)
        elif not _has_leader(pieces[index]):
            index = stop
            continue
        marks[index:stop] = [Mark("contents")] * (stop - index)
        index = stop


def _has_leader(piece: Piece) -> bool:
    tail = piece.text[-80:]
    dotted = "..." in tail or "…" in tail or "···" in tail
    return dotted and not piece.table and without_page(piece.text) is not None


def _contents_end(pieces: Sequence[Piece], marks: Sequence[Mark], start: int, header_end: int) -> int:
    """The place behind the last entry: the body begins where the first entry comes again, or with its first article."""
    first = ""
    for index in range(start, min(len(pieces), start + _MAX_CONTENTS)):
        mark, text = marks[index], pieces[index].text
        entry = without_page(text)
        key = _entry_key(mark, entry or text)
        long = is_sentence(entry or text) and not entry
        numbered = (mark.kind == "clause" and mark.rank >= 3) or (mark.kind == "article" and bool(mark.rest))
        if (
            (index == header_end and index)
            or long
            or pieces[index].table
            or (numbered and not entry)
            or key == first
        ):
            return index
        first = first or key
    return min(len(pieces), start + _MAX_CONTENTS)


def _entry_key(mark: Mark, text: str) -> str:
    if mark.kind in ("chapter", "article", "clause", "annex") and mark.number:
        return mark.number
    numbered = read_numbered_heading(text)
    return str(numbered[0]) if numbered else "".join(fold(text).split())


class _Judge:
    def __init__(self, pieces: Sequence[Piece], raw: list[Mark], header_end: int) -> None:
        self.pieces, self.raw, self.header_end = pieces, raw, header_end
        self.mode, self.item_rank = choose_mode(pieces[header_end:], raw[header_end:])
        self.commentary = False
        self.seen: set[Order] = set()
        self.marks: list[Mark] = []
        self.warnings: list[tuple[int, str]] = []
        self.last: Order | None = None
        self.annex = False
        self.annex_last: Order | None = None
        self.chapter = 0
        self.next_clause = self._find_next_clauses()

    def run(self) -> Structure:
        for index in range(len(self.pieces)):
            mark = self._judge(index)
            self.marks.append(mark)
            self._remember(mark)
        body = next((index for index, mark in enumerate(self.marks) if self._begins_body(index, mark)), None)
        return Structure(self.mode, self.marks, len(self.marks) if body is None else body, self.warnings)

    def _begins_body(self, index: int, mark: Mark) -> bool:
        return index >= self.header_end and mark.kind in (
            "article",
            "clause",
            "item",
            "chapter",
            "annex",
            "note",
        )

    def _find_next_clauses(self) -> list[Order | None]:
        """For each piece the number of the next clause behind it."""
        found: list[Order | None] = [None] * len(self.raw)
        upcoming: Order | None = None
        for index in range(len(self.raw) - 1, -1, -1):
            found[index] = upcoming
            if self.raw[index].kind == "clause" and not self.raw[index].joined:
                upcoming = self.raw[index].order
        return found

    def _judge(self, index: int) -> Mark:
        mark, piece = self.raw[index], self.pieces[index]
        if piece.table or mark.kind in ("contents", "footnote"):
            return mark
        if index < self.header_end:
            return _TEXT
        judged = self._judge_number(index, mark)
        if judged is not None:
            return judged
        if mark.kind == "note":
            return mark
        if mark.kind == "chapter":
            return self._judge_chapter(index, mark)
        if mark.kind == "annex":
            return self._judge_annex(mark)
        if mark.kind == "commentary":
            return self._judge_commentary(index, mark)
        if self.mode == "item" and self.last and not self.annex and _CLOSING.match(piece.text):
            return Mark("note", "", "")
        return self._judge_heading(index, piece)

    def _judge_number(self, index: int, mark: Mark) -> Mark | None:
        """The mark as it counts here, None where it does not begin an article."""
        if mark.kind == "article":
            return self._judge_article(index, mark)
        if self.mode == "clause":
            return self._judge_clause(index, mark) if mark.kind == "clause" else self._judge_numbered(index)
        if mark.kind == "item" and self.mode == "item" and not self.annex:
            follows = mark.order == (value_of(self.last[0]) + 1 if self.last else 1,)
            return mark if follows and mark.rank == self.item_rank else None
        return self._judge_part(index, mark) if mark.kind == "item" and not mark.rank else None

    def _judge_article(self, index: int, mark: Mark) -> Mark | None:
        if self.annex:
            return self._judge_annex_article(mark)
        if self.mode != "article":
            return None
        if follows(self.last, mark.order) or (self.last is None and mark.apart):
            return mark
        if not mark.apart or (_key(mark.order) <= _key(self.last or ()) and self._line_goes_on(index)):
            return None
        self._warn_of_order(index, mark)
        return mark

    def _judge_annex_article(self, mark: Mark) -> Mark | None:
        """A law printed in an annex has articles of its own; or the annex has ended and the law goes on."""
        if (
            self.mode == "article"
            and self.last
            and follows(self.last, mark.order)
            and self.annex_last is None
        ):
            self.annex = False
            return mark
        if mark.apart and (mark.order == (1,) or (self.annex_last and follows(self.annex_last, mark.order))):
            return mark
        return None

    def _line_goes_on(self, index: int) -> bool:
        return index > 0 and self.marks[index - 1].kind == "text" and _breaks_off(self.pieces[index - 1].text)

    def _warn_of_order(self, index: int, mark: Mark) -> None:
        if self.last and _key(mark.order) <= _key(self.last):
            self.warnings.append((self.pieces[index].line, f"{mark.number} 的编号没有接着上一条，请核对"))

    def _judge_clause(self, index: int, mark: Mark) -> Mark | None:
        if self._begins_commentary(index, mark):
            return replace(mark, restarts=True)
        if mark.joined and not self.commentary:
            return None
        if self.annex and isinstance(mark.order[0], int) and not self._is_close(mark.order):
            return None
        if not mark.joined and (mark.rank == 2 or not is_sentence(mark.rest)):
            following = self.next_clause[index]
            if following and len(following) > len(mark.order) and following[: len(mark.order)] == mark.order:
                return self._chapter(mark, RANK_SECTION + mark.rank - 2)
        if mark.rank == 2 and not (self._is_pair(mark) or mark.number.startswith("第")):
            return None
        if self.last is None or self._is_close(mark.order):
            return mark
        if not mark.apart or self._line_goes_on(index):
            return None
        self._warn_of_order(index, mark)
        return mark

    def _begins_commentary(self, index: int, mark: Mark) -> bool:
        """A standard that starts its numbers again explains them: its commentary, whose title is lost."""
        if self.last is None or mark.order not in self.seen or mark.order[0] != 1 or self.commentary:
            return False
        if not mark.apart or value_of(self.last[0]) < _MIN_CHAPTERS or self._line_goes_on(index):
            return False
        last = ".".join(map(str, self.last))
        self.warnings.append(
            (self.pieces[index].line, f"编号从 {last} 回到 {mark.number}：其后按条文说明（非规范正文）导入")
        )
        return True

    def _chapter(self, mark: Mark, rank: int) -> Mark:
        title = f"{mark.number} {squeeze_title(mark.rest)}".strip()
        return Mark("chapter", mark.number, title, mark.order, rank=rank)

    def _is_pair(self, mark: Mark) -> bool:
        last = self.last if self.last and value_of(self.last[0]) >= self.chapter else (self.chapter, 0)
        return is_near(last, mark.order) and bool(re.search(r"[\u3400-\u9fff]", mark.rest) or not mark.rest)

    def _is_close(self, order: Order) -> bool:
        if self.last is None or _key(order) <= _key(self.last):
            return False
        if isinstance(order[0], str) or isinstance(self.last[0], str):
            return True
        return order[0] - self.last[0] <= _MAX_CHAPTER_JUMP

    def _judge_numbered(self, index: int) -> Mark | None:
        """3 材料, when the next clause is the first of chapter 3 or, before all clauses, when no clause need follow."""
        piece = self.pieces[index]
        heading = read_numbered_heading(piece.text)
        if heading is None or self.annex:
            return None
        number, title = heading
        following = self.next_clause[index] or ()
        opens = (
            following[:1] == (number,)
            and len(following) > 1
            and following[1] in (0, 1)
            and number > self.chapter
        )
        known = is_known_chapter(title) and number == self.chapter + 1
        if not (opens or known or (piece.depth and number == self.chapter + 1)):
            return None
        self.chapter = number
        return Mark("chapter", str(number), f"{number} {title}", (number,), rank=RANK_CHAPTER)

    def _judge_part(self, index: int, mark: Mark) -> Mark | None:
        """一、一般规定 over articles."""
        piece = self.pieces[index]
        if self.mode == "item" or self.annex or is_sentence(piece.text):
            return None
        following = self.raw[index + 1].kind if index + 1 < len(self.raw) else "text"
        if not piece.depth and following not in ("article", "clause", "chapter"):
            return None
        return Mark("chapter", mark.number, squeeze_title(piece.text), rank=_RANK_ITEM)

    def _judge_chapter(self, index: int, mark: Mark) -> Mark:
        if self.annex and self.annex_last is None:
            return _TEXT
        if not mark.number and self._is_subtitle(index, self.pieces[index]):
            return replace(mark, rank=RANK_SUBTITLE)
        return mark

    def _judge_annex(self, mark: Mark) -> Mark:
        """Before the first article it is a line of the head or of the contents."""
        return mark if self.last is not None or self.mode == "none" else _TEXT

    def _judge_commentary(self, index: int, mark: Mark) -> Mark:
        """`number` says how far it reaches: "part" to the end, "next" the next clause, "here" up to that."""
        following = self.next_clause[index]
        if mark.rest or self.last is None or following is None or _key(following) > _key(self.last):
            return replace(mark, number="here") if self.last else _TEXT
        return replace(mark, number="next" if following == self.last else "part")

    def _judge_heading(self, index: int, piece: Piece) -> Mark:
        if self._is_subtitle(index, piece):
            return Mark("chapter", "", squeeze_title(piece.text), rank=RANK_SUBTITLE)
        if not piece.depth or len(piece.text) > MAX_HEADING_CHARS or piece.text[-1] in "。；;":
            return _TEXT
        if piece.depth > 1:
            return Mark("chapter", "", squeeze_title(piece.text), rank=RANK_OTHER)
        if self.last is None:
            return _TEXT
        law = is_law_name(piece.text)
        return (
            Mark("title", "", piece.text)
            if law
            else Mark("chapter", "", squeeze_title(piece.text), rank=RANK_OTHER)
        )

    def _is_subtitle(self, index: int, piece: Piece) -> bool:
        """The second line of a chapter's title, or a heading of its own, between the chapter and its first article."""
        above = self.marks[index - 1] if index else _TEXT
        if above.kind != "chapter" or is_sentence(piece.text) or len(piece.text) > 40:
            return False
        return index + 1 < len(self.raw) and self.raw[index + 1].kind in ("article", "clause", "chapter")

    def _remember(self, mark: Mark) -> None:
        if mark.kind == "article" and self.annex:
            self.annex_last = mark.order
        elif mark.kind in ("article", "clause", "item"):
            self.last = mark.order
            self.seen.add(mark.order)
            self.commentary |= mark.restarts
            if isinstance(mark.order[0], int) and mark.kind == "clause":
                self.chapter = mark.order[0]
            self.annex = False
        elif mark.kind == "annex":
            self.annex, self.annex_last = True, None
        elif mark.kind == "title" or (mark.kind == "commentary" and mark.number == "part"):
            self.last, self.annex, self.chapter = None, False, 0
            self.commentary = mark.kind == "commentary"
        elif mark.kind in ("chapter", "note") and self.annex_last is None:
            self.annex = self.annex and mark.kind == "chapter"
