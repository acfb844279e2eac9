"""Rows of tables from cells that reach over several rows or columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MAX_SPAN = 50  # a cell may claim to reach over any number; no table of a standard has more columns than this
MAX_CELLS = 500_000  # of one table, empty ones counted


class TableTooLarge(ValueError):
    """The reason in Chinese."""


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    rows: int = 1
    columns: int = 1


def spread_rows(rows: Iterable[Sequence[Cell]]) -> list[str]:
    """One text a row, `| a | b |`; rows without text are left out.

    The text of a cell that reaches over others stands once, and the places it reaches over are empty, so that columns
    stay columns and nothing is said twice. Raises TableTooLarge.
    """
    covered: dict[int, int] = {}  # column -> how many more rows a cell above reaches into
    texts, num_cells = [], 0
    for row in rows:
        cells = _spread_row(row, covered)
        num_cells += len(cells)
        if num_cells > MAX_CELLS:
            raise TableTooLarge(f"表格超过 {MAX_CELLS} 个单元格")
        if joined := join_cells(cells):
            texts.append(joined)
    return texts


def join_cells(texts: Iterable[str]) -> str:
    """The row as Markdown writes it, so that empty cells at its ends are kept; empty for a row without text."""
    cells = [" ".join(text.split()) for text in texts]
    return f"| {' | '.join(cells)} |" if any(cells) else ""


def _spread_row(row: Sequence[Cell], covered: dict[int, int]) -> list[str]:
    """Updates `covered`."""
    texts: list[str] = []
    for cell in row:
        while covered.get(len(texts), 0) > 0:
            covered[len(texts)] -= 1
            texts.append("")
        width = max(1, min(cell.columns, MAX_SPAN))
        for column in range(len(texts), len(texts) + width):
            covered[column] = max(0, cell.rows - 1)
        texts += [cell.text, *[""] * (width - 1)]
    for column in [one for one in covered if one >= len(texts) and covered[one] > 0]:
        covered[column] -= 1
    return texts
