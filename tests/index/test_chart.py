"""The picture is read back as XML: what stands in it, where, and that it needs nothing else."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cg_rag.index.chart import Line, draw_recall

SVG = "{http://www.w3.org/2000/svg}"
RISING = [k / 50 for k in range(1, 51)]


def read(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in read(svg).iter(f"{SVG}text")]


def polylines(svg: str) -> list[ElementTree.Element]:
    return list(read(svg).iter(f"{SVG}polyline"))


def points(line: ElementTree.Element) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in line.attrib["points"].split())]


def test_title_legend_axes_and_ticks_are_there() -> None:
    found = texts(draw_recall("召回率", [Line("字面", RISING), Line("融合", RISING)]))
    assert {"召回率", "字面", "融合", "返回条数 k", "召回率 Recall@k"} <= set(found)
    assert {"1", "5", "10", "20", "50", "0.00", "0.50", "1.00"} <= set(found)


def test_a_line_has_a_point_for_every_k_and_rises_on_the_page() -> None:
    (line,) = polylines(draw_recall("t", [Line("a", RISING)]))
    places = points(line)
    assert len(places) == 50
    assert [x for x, _ in places] == sorted(x for x, _ in places)
    assert [y for _, y in places] == sorted((y for _, y in places), reverse=True)


def test_recall_of_1_lies_on_the_top_grid_line_and_equal_values_at_equal_heights() -> None:
    svg = draw_recall("t", [Line("a", [0.5, 1.0]), Line("b", [0.25, 0.5])])
    (_, top), (_, half) = points(polylines(svg)[0])[1], points(polylines(svg)[1])[1]
    grid = [float(line.attrib["y1"]) for line in read(svg).iter(f"{SVG}line")]
    assert top == min(grid)
    assert half == points(polylines(svg)[0])[0][1]


def test_lines_differ_without_their_colour() -> None:
    elements = list(read(draw_recall("t", [Line(str(number), RISING) for number in range(12)])))
    looks = set()
    for line, marker in pairwise(elements):
        if line.tag == f"{SVG}polyline":
            round_shape = "ring" if marker.get("fill") == "#ffffff" else "disc"
            shape = re.sub(r"^M[\d.]+ [\d.]+", "", marker.get("d", round_shape))
            looks.add((line.get("stroke-dasharray"), shape))
    assert len(looks) == 12


def test_high_lines_get_the_whole_height() -> None:
    assert "0.00" not in texts(draw_recall("t", [Line("a", [0.93, 0.99])]))
    assert "0.80" in texts(draw_recall("t", [Line("a", [0.93, 0.99])]))


@pytest.mark.parametrize("values", [[1.0] * 50, [0.0] * 50, [0.4], [0.6, 0.8], [0.2] * 200])
def test_every_shape_stays_inside_the_picture(values: list[float]) -> None:
    svg = draw_recall("t", [Line("a", values)])
    width, height = (float(read(svg).attrib[name]) for name in ("width", "height"))
    assert all(0 <= x <= width and 0 <= y <= height for line in polylines(svg) for x, y in points(line))
    assert list(read(svg).iter(f"{SVG}circle"))


def test_many_lines_make_the_picture_taller() -> None:
    one, many = (draw_recall("t", [Line("a", RISING)] * count) for count in (1, 30))
    assert float(read(many).attrib["height"]) > float(read(one).attrib["height"])


@settings(max_examples=100)
@given(st.text(max_size=80), st.text(max_size=80))
def test_any_label_gives_a_picture_that_needs_nothing_else(title: str, label: str) -> None:
    svg = draw_recall(title, [Line(label, RISING)])
    root = read(svg.encode("utf-8").decode("utf-8"))
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {
        "svg", "title", "desc", "rect", "text", "line", "path", "polyline", "circle",
    }  # fmt: skip
    assert not any(
        "href" in name or name.startswith("on") for element in root.iter() for name in element.attrib
    )


def test_a_long_label_is_cut() -> None:
    svg = draw_recall("t", [Line("检" * 100, RISING)])
    assert any(text.endswith("…") for text in texts(svg))
    assert float(read(svg).attrib["width"]) < 1200


@pytest.mark.parametrize("lines", [[], [Line("a", [])], [Line("a", [1.2])], [Line("a", [float("nan")])]])
def test_what_cannot_be_drawn_is_refused(lines: list[Line]) -> None:
    with pytest.raises(ValueError, match="a line needs values"):
        draw_recall("t", lines)


def test_the_same_lines_give_the_same_bytes() -> None:
    assert draw_recall("t", [Line("a", RISING)]) == draw_recall("t", [Line("a", RISING)])
