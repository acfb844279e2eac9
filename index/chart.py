"""A picture of recall over k: one SVG file, drawn by hand, that needs nothing beside it.

Rule: a line is told from the others by its dashes and its markers as well as by its colour, and every line
stands in the legend in the order of drawing.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from cg_rag.index.columns import cut, num_cells

# Okabe and Ito's palette without its yellow, which is too pale on white; told apart by most colour-blind eyes.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#333333")
_DASHES = ("", "9 4", "2 4", "10 4 2 4", "16 5")
_MARKERS = ("circle", "square", "triangle", "diamond", "cross", "ring")
_FONTS = "'Noto Sans CJK SC', 'Source Han Sans SC', 'Microsoft YaHei', 'PingFang SC', 'WenQuanYi Micro Hei', sans-serif"
_WIDTH_OF_PLOT, _HEIGHT_OF_PLOT = 620, 380
_LEFT, _TOP, _BOTTOM = 74, 56, 62
_LEGEND_GAP, _LEGEND_LINE, _SAMPLE = 26, 25, 44
_CELL = 6.6  # width of a Latin character at 13 px; a Chinese one takes two
_MAX_LABEL_CELLS = 44


@dataclass(frozen=True, slots=True)
class Line:
    """`values[i]` is the recall at k = i + 1, between 0 and 1."""

    label: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where values lie on the picture: k from 1 to `last`, recall from `floor` to 1."""

    last: int
    floor: float

    def x(self, k: float) -> float:
        return _LEFT + _WIDTH_OF_PLOT * (k - 1) / max(1, self.last - 1)

    def y(self, value: float) -> float:
        return _TOP + _HEIGHT_OF_PLOT * (1 - (value - self.floor) / (1 - self.floor))


def draw_recall(title: str, lines: Sequence[Line]) -> str:
    """An SVG document. ValueError when there is no line, or one that is empty or leaves 0..1."""
    values = [value for line in lines for value in line.values]
    if not all(line.values for line in lines) or not values or not all(0 <= value <= 1 for value in values):
        raise ValueError("a line needs values between 0 and 1")
    frame = _Frame(max(len(line.values) for line in lines), _floor(min(values)))
    labels = [_shorten(line.label) for line in lines]
    legend = _SAMPLE + 10 + max(map(num_cells, labels)) * _CELL
    width = math.ceil(_LEFT + _WIDTH_OF_PLOT + _LEGEND_GAP + legend + 16)
    height = _TOP + max(_HEIGHT_OF_PLOT, _LEGEND_LINE * len(lines)) + _BOTTOM
    body = [*_draw_axes(frame), *_draw_legend(labels)]
    for number, line in enumerate(lines):
        body += _draw_line(frame, line.values, number)
    return "\n".join([*_head(_clean(title), labels, width, height), *body, "</svg>\n"])


def _floor(lowest: float) -> float:
    """The lowest tick: lines that all lie high up would otherwise share a tenth of the picture."""
    return max(0.0, min(0.8, math.floor(lowest * 5 - 0.1) / 5))


def _head(title: str, labels: Sequence[str], width: int, height: int) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" font-family="{_FONTS}" font-size="13" fill="#222222">',
        f"<title>{escape(title)}</title>",
        f"<desc>{escape('；'.join(labels))}</desc>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _text(_LEFT, 32, title, 'font-size="17" font-weight="bold"'),
    ]


def _draw_axes(frame: _Frame) -> list[str]:
    left, right, bottom = _LEFT, _LEFT + _WIDTH_OF_PLOT, _TOP + _HEIGHT_OF_PLOT
    parts = []
    for value in _recall_ticks(frame.floor):
        y = frame.y(value)
        parts.append(_stroke(left, y, right, y, "#dddddd"))
        parts.append(_text(left - 9, y + 4.5, f"{value:.2f}", 'text-anchor="end"'))
    for k in _k_ticks(frame.last):
        x = frame.x(k)
        parts.append(_stroke(x, _TOP, x, bottom, "#eeeeee"))
        parts.append(_stroke(x, bottom, x, bottom + 5, "#222222"))
        parts.append(_text(x, bottom + 21, str(k), 'text-anchor="middle"'))
    parts.append(_stroke(left, bottom, right, bottom, "#222222"))
    parts.append(_stroke(left, _TOP, left, bottom, "#222222"))
    middle = _TOP + _HEIGHT_OF_PLOT / 2
    parts.append(_text(left + _WIDTH_OF_PLOT / 2, bottom + 46, "返回条数 k", 'text-anchor="middle"'))
    turned = f'text-anchor="middle" transform="rotate(-90 22 {_number(middle)})"'
    return [*parts, _text(22, middle, "召回率 Recall@k", turned)]


def _recall_ticks(floor: float) -> list[float]:
    step = 0.05 if floor >= 0.6 else 0.1
    return [floor + step * number for number in range(round((1 - floor) / step) + 1)]


def _k_ticks(last: int) -> list[int]:
    step = next(step for step in (1, 5, 10, 20, 50, 100, last) if last <= 10 * step or step == last)
    return sorted({1, *range(step, last + 1, step)} | ({5} if last >= 20 and step > 5 else set()))


def _draw_line(frame: _Frame, values: Sequence[float], number: int) -> list[str]:
    points = [(frame.x(k), frame.y(value)) for k, value in enumerate(values, 1)]
    # Each line has its markers at other places, so that lines that lie on each other still show.
    step = max(1, frame.last // 10)
    marked = points[number % step :: step] or points[-1:]
    path = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
    return [
        f'<polyline points="{path}" fill="none" {_line_style(number)}/>',
        *(_draw_marker(x, y, number) for x, y in marked),
    ]


def _draw_legend(labels: Sequence[str]) -> list[str]:
    left = _LEFT + _WIDTH_OF_PLOT + _LEGEND_GAP
    parts = []
    for number, label in enumerate(labels):
        y = _TOP + 10 + _LEGEND_LINE * number
        parts.append(f'<path d="M{left} {y}h{_SAMPLE}" fill="none" {_line_style(number)}/>')
        parts.append(_draw_marker(left + _SAMPLE / 2, y, number))
        parts.append(_text(left + _SAMPLE + 10, y + 4.5, label))
    return parts


def _line_style(number: int) -> str:
    dashes = _DASHES[number % len(_DASHES)]
    more = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'stroke="{_COLOURS[number % len(_COLOURS)]}" stroke-width="2.2" stroke-linejoin="round"{more}'


def _draw_marker(x: float, y: float, number: int) -> str:
    colour = _COLOURS[number % len(_COLOURS)]
    kind = _MARKERS[number % len(_MARKERS)]
    if kind in ("circle", "ring"):
        fill = colour if kind == "circle" else "#ffffff"
        return f'<circle cx="{_number(x)}" cy="{_number(y)}" r="4.2" fill="{fill}" stroke="{colour}" stroke-width="2"/>'
    shape = {
        "square": "m-4-4h8v8h-8z",
        "triangle": "m0-5.5l5.2 9.5h-10.4z",
        "diamond": "m0-6l5.5 6l-5.5 6l-5.5-6z",
        "cross": "m-4.5-4.5l9 9m0-9l-9 9",
    }[kind]
    return f'<path d="M{_number(x)} {_number(y)}{shape}" fill="{colour}" stroke="{colour}" stroke-width="2"/>'


def _stroke(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    ends = f'x1="{_number(x1)}" y1="{_number(y1)}" x2="{_number(x2)}" y2="{_number(y2)}"'
    return f'<line {ends} stroke="{colour}"/>'


def _text(x: float, y: float, text: str, attributes: str = "") -> str:
    return f'<text x="{_number(x)}" y="{_number(y)}" {attributes}>{escape(text)}</text>'


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _clean(text: str) -> str:
    """Characters that XML 1.0 does not allow, and all other controls, become spaces."""
    kept = (" " if unicodedata.category(char) in ("Cc", "Cs", "Cn") else char for char in text)
    return "".join(kept)


def _shorten(label: str) -> str:
    return cut(_clean(label), _MAX_LABEL_CELLS)
