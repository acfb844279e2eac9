"""From the text of a law, a rule or a standard to its articles.

    第X条, 第X条之一        laws and rules; 编, 分编, 章, 节 over them become `chapter`
    N.N.N, N.N.N(k), A.0.1  clauses of standards, with 1), (1), 一) below them as part of the clause
    一、                    decisions that count in no other way
    附件一, 附录A           records of their own, never part of the last article
    条文说明                not normative: another law, whose name says so
    anything else           sections with `citable` false, 全文 where there is but one

Rule: every character of the text is in one article or in one `Left` (markup.py lists what goes), and nothing is
cited that the text does not number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from cg_rag.index.corpus import Article
from cg_rag.index.importers.canonical import is_canonical, read_canonical, write_law
from cg_rag.index.importers.headings import (
    MAX_HEADING_CHARS,
    RANK_CHAPTER,
    RANK_SUBTITLE,
    Mark,
    Order,
    is_front_matter,
    is_sentence,
)
from cg_rag.index.importers.inline import split_inline
from cg_rag.index.importers.law_head import (
    Head,
    code_of,
    format_name,
    is_head_line,
    is_source_line,
    read_head,
    reason_of,
)
from cg_rag.index.importers.law_lines import WHOLE, Left, Line, ParsedLaw, build_article
from cg_rag.index.importers.markup import Piece, read_pieces
from cg_rag.index.importers.record import MAX_CONTENTS_CHARS
from cg_rag.index.importers.sequence import Structure, find_structure
from cg_rag.index.law_names import COMMENTARY
from cg_rag.index.numerals import fold

__all__ = ["Left", "Line", "ParsedLaw", "parse_law", "write_law"]

# Text without numbers and annexes are cut between their lines: a longer piece says too many things to be found by any.
_MAX_SECTION_CHARS = 2000
# A title that goes on in the next line: 第五章 主席、 | 副主席的选举.
_TITLE_GOES_ON = ("、", "，", "和", "及", "与", "的")
_UNTITLED = re.compile(r"第[^ ]{1,8}(?:编|章|节|篇|部分)")
# The last articles tell when a law comes into force.
_ENDING = 3


def parse_law(lines: Sequence[Line], file_stem: str) -> ParsedLaw:
    """The articles of one text and all that is in none of them. Never raises; linear in the text.

    What `write_law` wrote gives the same articles again, but for their `line`.
    """
    if is_canonical(lines):
        return read_canonical(lines)
    found = read_pieces(lines)
    header = found.pieces[: found.header_end or 0]
    found.pieces = [*header, *split_inline(found.pieces[len(header) :], found.warnings)]
    structure = find_structure(found.pieces, found.header_end)
    reader = _Reader(found.pieces, structure, found.header_end)
    reader.run()
    head = read_head(found.pieces[: reader.body], file_stem, reader.ending())
    left = [*found.left, *reader.left, *_head_lines(found.pieces[: reader.body], structure, head)]
    articles = tuple(_finish(reader.drafts, head, reader.warnings))
    warnings = sorted([*found.warnings, *structure.warnings, *reader.warnings])
    return ParsedLaw(head.name, articles, tuple(sorted(left, key=lambda entry: entry.line)), tuple(warnings))


def _head_lines(pieces: Sequence[Piece], structure: Structure, head: Head) -> Iterator[Left]:
    names = {_squeezed(head.name), _squeezed(head.name.removeprefix(head.code))}
    for place, piece in enumerate(pieces):
        contents = structure.marks[place].kind == "contents"
        title = place in head.title_lines or _squeezed(piece.text) in names
        reason = "标题" if title else "目录" if contents else reason_of(piece.text)
        yield Left(piece.line, piece.text, reason)


@dataclass(slots=True)
class _Draft:
    """An article while its lines are read. `law` is the title of another law of the same text, "" for the first."""

    line: int
    number: str
    chapter: str
    law: str = ""
    commentary: bool = False
    annex: bool = False
    source: str = ""
    texts: list[tuple[int, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Heading:
    """`depth` is that of Markdown, 0 for none; `order` the number of a heading of a standard."""

    rank: int
    title: str
    depth: int = 0
    order: Order = ()


class _Reader:
    """Walks over the body and gives each line to a draft or to `left`."""

    def __init__(self, pieces: Sequence[Piece], structure: Structure, header_end: int | None) -> None:
        self.pieces, self.structure = pieces, structure
        self.drafts: list[_Draft] = []
        self.left: list[Left] = []
        self.warnings: list[tuple[int, str]] = []
        self.current: _Draft | None = None
        self.path: list[_Heading] = []
        self.commentary = ""
        self.law = ""
        self.annex = ""
        self.front = False
        self.listing = False
        self.body = structure.body if structure.mode != "none" else self._find_body(header_end or 0)
        self.repeated = self._repeated()

    def run(self) -> None:
        for index in range(self.body, len(self.pieces)):
            self._read(index, self.pieces[index], self.structure.marks[index])
        self._close()

    def ending(self) -> list[str]:
        """The texts that may tell when the law comes into force."""
        drafts = [
            draft for draft in self.drafts if not draft.annex and not draft.commentary and not draft.law
        ]
        return [text for draft in drafts[-_ENDING:] for _, text in draft.texts]

    def _find_body(self, header_end: int) -> int:
        """In a text without numbers the head is its title and the lines that can only be of a head."""
        place, titled = header_end, header_end > 0
        while place < len(self.pieces):
            piece, mark = self.pieces[place], self.structure.marks[place]
            title = (
                not titled
                and place < 3
                and (piece.depth == 1 or not is_sentence(piece.text))
                and not piece.table
            )
            if not (mark.kind == "contents" or is_head_line(piece.text) or (title and mark.kind == "text")):
                break
            titled |= title
            place += 1
        return place

    def _repeated(self) -> frozenset[str]:
        """The lines of the head that come again as running heads of pages."""
        head = (piece.text for piece in self.pieces[: self.body] if not is_sentence(piece.text))
        return frozenset(_squeezed(text) for text in head if len(text) >= 4)

    def _read(self, index: int, piece: Piece, mark: Mark) -> None:
        match mark.kind:
            case "article" | "clause" | "item":
                self._open(piece, mark)
            case "chapter" | "title":
                self._turn(piece, mark)
            case "annex":
                self._open_annex(piece, mark)
            case "note":
                self._open_note(piece, mark)
            case "commentary":
                self._comment(piece, mark)
            case "contents":
                self._leave(piece, "目录")
            case "footnote" if self._is_footnote():
                self._leave(piece, "脚注")
            case _:
                self._add(piece)

    def _open(self, piece: Piece, mark: Mark) -> None:
        if self.commentary in ("here", "after"):
            self.commentary = ""
        if mark.restarts:
            self.commentary, self.path = "part", []
        commentary = bool(self.commentary)
        if self.commentary == "next":
            self.commentary = "after"
        of_annex = mark.kind == "article" and self.annex and mark.apart and self._in_annex(mark)
        if not of_annex:
            self.annex = ""
        if mark.kind == "clause" and self.current and self.current.annex and len(self.current.texts) <= 1:
            self._drop(self.current)
        if mark.kind == "clause":
            self._leave_chapters(mark.order)
        self._begin(
            _Draft(
                piece.line,
                f"{self.annex}{mark.number}",
                self._chapter(),
                self.law,
                commentary,
                source=piece.text,
            )
        )
        self._say(piece.line, mark.rest)

    def _in_annex(self, mark: Mark) -> bool:
        return self.structure.mode != "clause" and (
            mark.order == (1,) or bool(self.drafts and self.drafts[-1].annex)
        )

    def _turn(self, piece: Piece, mark: Mark) -> None:
        """A chapter, or the title of another law behind this one."""
        self._close()
        self._leave(piece, "标题" if mark.kind == "title" else "章节标题")
        self.front = False
        if mark.kind == "title":
            self.law, self.path, self.commentary, self.annex = format_name(mark.rest), [], "", ""
            return
        self._descend(mark, piece.depth)

    def _descend(self, mark: Mark, depth: int) -> None:
        above = self.path[-1] if self.path else _Heading(0, "")
        goes_on = above.title.endswith(_TITLE_GOES_ON)
        if mark.rank == RANK_SUBTITLE and (goes_on or _UNTITLED.fullmatch(above.title)):
            title = f"{above.title}{'' if goes_on else ' '}{mark.rest}"
            self.path[-1] = replace(above, title=title)
            return
        while self.path and (self.path[-1].rank >= mark.rank or 0 < depth <= self.path[-1].depth):
            self.path.pop()
        self.path.append(_Heading(mark.rank, mark.rest, depth, mark.order))

    def _leave_chapters(self, order: Order) -> None:
        """Of the headings with a number keep those that the clause's own number goes on from."""
        self.path = [above for above in self.path if above.order == order[: len(above.order)]]

    def _chapter(self) -> str:
        return " / ".join(heading.title for heading in self.path)

    def _open_annex(self, piece: Piece, mark: Mark) -> None:
        """An annex is a record. Where clauses A.0.1 follow it is a chapter, and its name stands over them."""
        self._close()
        self.annex = mark.number
        title = f"{mark.number} {mark.rest}".strip()
        self.path = [_Heading(RANK_CHAPTER, title, 0, mark.order)] if self.structure.mode == "clause" else []
        chapter = "" if self.structure.mode == "clause" else self._chapter()
        self._begin(
            _Draft(piece.line, mark.number, chapter, self.law, bool(self.commentary), True, piece.text)
        )
        self._say(piece.line, mark.rest)

    def _open_note(self, piece: Piece, mark: Mark) -> None:
        """用词说明 and the like, or a sentence that belongs to no number."""
        self._close()
        self.annex = ""
        if not mark.number:
            self._begin(_Draft(piece.line, "", "", self.law))
            self._add(piece)
            return
        self._leave(piece, "章节标题")
        self.front = is_front_matter(mark) and not self.drafts
        self.path = [_Heading(RANK_CHAPTER, mark.rest, piece.depth)]

    def _comment(self, piece: Piece, mark: Mark) -> None:
        number = self.current.number if self.current else self.drafts[-1].number if self.drafts else ""
        self._close()
        self.commentary = mark.number
        label = piece.text[: len(piece.text) - len(mark.rest)].strip() if mark.rest else piece.text
        self.left.append(Left(piece.line, label, "条文说明标题"))
        if mark.number == "part":
            self.path = []
            return
        if mark.number == "here":
            self._begin(_Draft(piece.line, number, self._chapter(), self.law, commentary=True))
            self._say(piece.line, mark.rest)

    def _add(self, piece: Piece) -> None:
        if (
            len(piece.text) <= MAX_HEADING_CHARS
            and not piece.table
            and _squeezed(piece.text) in self.repeated
        ):
            self._leave(piece, "页眉")
        elif is_source_line(piece.text):
            self._leave(piece, "来源")
        elif self.front:
            self._leave(piece, "前言")
        elif _is_page_number(piece.text) and not piece.table:
            self._leave(piece, "页码")
        else:
            if self.current is None:
                self._begin(_Draft(piece.line, "", self._chapter(), self.law, self.commentary == "part"))
            self._say(piece.line, piece.text)

    def _is_footnote(self) -> bool:
        """①…, unless it is an item of a list: that has a colon or another item before it, and standards have no others."""
        if self.structure.mode in ("clause", "none") or not self.current or not self.current.texts:
            return False
        last = self.current.texts[-1][1]
        return last[-1] in "。”》）)" and not "①" <= last[0] <= "⑳"

    def _begin(self, draft: _Draft) -> None:
        self._close()
        self.current = draft

    def _say(self, line: int, text: str) -> None:
        if text and self.current is not None:
            self.current.texts.append((line, text))

    def _close(self) -> None:
        draft, self.current = self.current, None
        if draft is None:
            return
        if draft.texts:
            self.drafts.append(draft)
            return
        self.left.append(Left(draft.line, draft.source, "条号下无正文"))
        self.warnings.append((draft.line, f"{draft.number} 之下没有正文，未导入"))

    def _drop(self, draft: _Draft) -> None:
        """The title of an appendix whose clauses follow."""
        self.current = None
        self.left.append(Left(draft.line, draft.source, "章节标题"))

    def _leave(self, piece: Piece, reason: str) -> None:
        self.left.append(Left(piece.line, piece.text, reason))


def _squeezed(text: str) -> str:
    return "".join(fold(text).split())


def _is_page_number(text: str) -> bool:
    """— 3 —, 第 3 页 共 20 页."""
    squeezed = _squeezed(text[:30])
    return len(text) < 30 and bool(
        re.fullmatch(r"[-·]+[0-9]{1,4}[-·]+|第[0-9]{1,4}页(?:[,/]?共[0-9]{1,4}页)?", squeezed)
    )


def _finish(drafts: Sequence[_Draft], head: Head, warnings: list[tuple[int, str]]) -> Iterator[Article]:
    parts = [(draft, part) for draft in drafts for part in _cut(draft, warnings)]
    whole = len(parts) == 1
    section = 0
    for draft, texts in parts:
        number = draft.number or (WHOLE if whole else "")
        section += not draft.number
        name = (draft.law or head.name) + (f" {COMMENTARY}" if draft.commentary else "")
        own = not draft.law
        about = {
            "chapter": draft.chapter,
            "status": head.status if own else "",
            "effective_date": head.effective_date if own else "",
            "code": code_of(name),
        }
        yield build_article(name, number, "\n".join(text for _, text in texts), texts[0][0], section, about)


def _cut(draft: _Draft, warnings: list[tuple[int, str]]) -> list[list[tuple[int, str]]]:
    """The texts of a draft in pieces of bounded length, cut between lines where it can be."""
    small = draft.annex or not draft.number
    limit = _MAX_SECTION_CHARS if small else MAX_CONTENTS_CHARS
    parts: list[list[tuple[int, str]]] = [[]]
    size = 0
    for line, text in _short_texts(draft.texts):
        if parts[-1] and size + len(text) > limit:
            parts.append([])
            size = 0
        parts[-1].append((line, text))
        size += len(text) + 1
    if len(parts) > 1 and not small:
        warnings.append((draft.line, f"{draft.number} 的正文超过 {limit} 字，分为 {len(parts)} 条"))
    return parts


def _short_texts(texts: Sequence[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    for line, text in texts:
        for start in range(0, len(text), MAX_CONTENTS_CHARS):
            if part := text[start : start + MAX_CONTENTS_CHARS].strip():
                yield line, part
