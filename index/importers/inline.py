"""Articles that a converter has put into one line: 第一条 甲。第二条 乙。

Rule: a line is cut only where it begins with an article and, behind the end of a sentence, goes on with the very next
number and a blank, and no line of the text begins with that number. A reference to an article never looks like that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from cg_rag.index.importers.counting import follows
from cg_rag.index.importers.headings import Mark, Order, classify
from cg_rag.index.importers.markup import Piece
from cg_rag.index.numerals import CHINESE_DIGITS

_NEXT = re.compile(rf"(?<=[。！？])[ \t\u3000]{{0,8}}(?=第[0-9０-９{CHINESE_DIGITS}]{{1,12}}条)")
# Enough of a line to tell what it begins with.
_HEAD_CHARS = 60


def split_inline(pieces: Sequence[Piece], warnings: list[tuple[int, str]]) -> list[Piece]:
    """`pieces` with such lines cut; each cut is told in `warnings`."""
    begun = {mark.order for piece in pieces if (mark := _article_of(piece, piece.text))}
    return [part for piece in pieces for part in _split(piece, begun, warnings)]


def _split(piece: Piece, begun: set[Order], warnings: list[tuple[int, str]]) -> Iterator[Piece]:
    last, start = _article_of(piece, piece.text), 0
    if last is None:
        yield piece
        return
    for match in _NEXT.finditer(piece.text):
        mark = _article_of(piece, piece.text[match.end() : match.end() + _HEAD_CHARS])
        if not mark or not mark.apart or mark.order in begun or not follows(last.order, mark.order):
            continue
        yield replace(piece, text=piece.text[start : match.start()])
        warnings.append((piece.line, f"同一行里接着的{mark.number}另成一条，请核对原文"))
        last, start = mark, match.end()
    yield replace(piece, text=piece.text[start:]) if start else piece


def _article_of(piece: Piece, text: str) -> Mark | None:
    """That of the article that `text` begins with."""
    if piece.table or not text.startswith("第"):
        return None
    mark = classify(replace(piece, text=text))
    return mark if mark.kind == "article" else None
