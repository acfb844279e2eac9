"""What a text counts by: 第X条, clauses N.N.N, 一、 or nothing; and which number comes behind which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from cg_rag.index.importers.headings import Mark, Order
from cg_rag.index.importers.markup import Piece

Mode = Literal["article", "clause", "item", "none"]


def follows(last: Order | None, order: Order) -> bool:
    """第五条 or 第四条之一 behind 第四条, 第四条之二 or 第五条 behind 第四条之一, 第一条 behind nothing."""
    if last is None:
        return order == (1,)
    return order in ((value_of(last[0]) + 1,), (*last, 1)) or (
        len(last) == 2 and order == (last[0], value_of(last[1]) + 1)
    )


def value_of(part: int | str) -> int:
    """A part of a number for adding; the letters of appendices follow each other too."""
    return part if isinstance(part, int) else ord(part)


@dataclass(slots=True)
class _Counts:
    """What a text counts by. `first_item` is -1 where no 一、 is there; so is `first_article`."""

    articles: int = 0
    clauses: int = 0
    pairs: int = 0
    first_article: int = -1
    first_item: int = -1
    # 一、 and （一）.
    items: list[int] = field(default_factory=lambda: [0, 0])
    annex_between: bool = False
    last_article: Order | None = None
    last_pair: Order = (0, 0)

    def add(self, place: int, mark: Mark, introduced: bool) -> None:
        if mark.kind == "article" and (mark.apart or follows(self.last_article, mark.order)):
            self.articles, self.last_article = self.articles + 1, mark.order
            self.first_article = place if self.first_article < 0 else self.first_article
        elif mark.kind == "clause" and not mark.joined:
            self.clauses += mark.rank >= 3
            if mark.rank == 2 and is_near(self.last_pair, mark.order[:2]):
                self.pairs, self.last_pair = self.pairs + 1, mark.order[:2]
        elif mark.kind == "item" and mark.order == (self.items[mark.rank] + 1,) and not introduced:
            self.items[mark.rank] += 1
            self.first_item = place if not mark.rank and self.first_item < 0 else self.first_item
        self.annex_between |= mark.kind == "annex" and self.first_article < 0 <= self.first_item


def choose_mode(pieces: Sequence[Piece], marks: Sequence[Mark]) -> tuple[Mode, int]:
    """The mode, and the rank of the items that count in mode "item"."""
    counts = _Counts()
    for place, mark in enumerate(marks):
        # A list that a colon introduces is no row of articles.
        introduced = (
            mark.rank == 1 and mark.order == (1,) and place > 0 and pieces[place - 1].text[-1] in "：:"
        )
        counts.add(place, mark, introduced)
    if counts.articles and counts.articles >= counts.clauses:
        starts_anew = marks[counts.first_article].order == (1,) and not counts.annex_between
        # The articles that a decision inserts into another law, or the law printed behind it.
        own = counts.items[0] < 2 or counts.first_article < counts.first_item or starts_anew
        return ("article" if own else "item"), 0
    if counts.clauses or counts.pairs >= 3:
        return "clause", 0
    for rank in (0, 1):
        if counts.items[rank] >= 2:
            return "item", rank
    return "none", 0


def is_near(last: Order, order: Order) -> bool:
    """3.4 behind 3.2, 3.3 or 3.4.2, and 4.1 behind any of 3: with a gap for a line that was lost."""
    if isinstance(last[0], str) or isinstance(order[0], str):
        return (last[0] == order[0] and 0 < value_of(order[1]) - value_of(last[1]) <= 3) or order[1] == 1
    if order[0] == last[0]:
        return 0 < value_of(order[1]) - value_of(last[1]) <= 3
    return order[0] == last[0] + 1 and order[1] in (0, 1)
