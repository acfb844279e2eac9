"""Text in columns on a terminal, where a Chinese character takes two."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with two blanks between columns; every row has as many cells."""
    widths = [max(map(num_cells, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell + " " * (width - num_cells(cell)) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def num_cells(text: str) -> int:
    """Columns on a terminal."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def cut(text: str, max_cells: int) -> str:
    """`text`, or its beginning and … where it is wider."""
    while num_cells(text) > max_cells:
        text = text[:-2] + "…"
    return text
