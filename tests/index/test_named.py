"""What a question names: rows in the order of mention, and a word to the caller where a name leads nowhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cg_rag.index.corpus import LawRun
from cg_rag.index.named import Named, NameLookup
from cg_rag.index.numerals import lookup_keys
from tests.growth import assert_linear

SAFETY = "中华人民共和国安全生产法"
BUILDING = "中华人民共和国建筑法"
FIRE = "中华人民共和国消防法"
SCAFFOLD = "GB55023-2022施工脚手架通用规范"
HANDBOOK = "Q/HT001-2024某某公司施工现场安全手册"
LAWS: dict[str, list[str]] = {
    SAFETY: [f"第{n}条" for n in range(1, 120)],
    BUILDING: ["第七条", "第八条", "第八条之一", "第九条", "第十条"],
    FIRE: [f"第{n}条" for n in range(1, 75)],
    SCAFFOLD: ["3.0.1(2)", "6.0.5(1)", "6.0.5(2)", "6.0.6", "6.0.7", "9.2", "附录A", "附录B.0.1"],
    HANDBOOK: ["3.0.1(2)", "3.5"],
    "某条例（2018年修订）": ["第一条"],
}


class FakeLookup:
    """The look-up as the index offers it, over a table of laws."""

    def __init__(self, laws: Mapping[str, Sequence[str]]) -> None:
        self.runs: list[LawRun] = []
        self.places: list[tuple[str, str]] = []
        self._rows: dict[tuple[int, str], list[int]] = {}
        for index, (name, numbers) in enumerate(laws.items()):
            self.runs.append(LawRun(name, "test", (), len(self.places), len(numbers), ""))
            for number in numbers:
                for key in lookup_keys(number):
                    self._rows.setdefault((index, key), []).append(len(self.places))
                self.places.append((name, number))

    def find_rows(self, run_index: int, key: str) -> list[int]:
        return self._rows.get((run_index, key), [])


LOOKUP = FakeLookup(LAWS)
NAMES = NameLookup(LOOKUP)
NUM_ROWS = len(LOOKUP.places)


def find(query: str, ranges: Sequence[tuple[int, int]] = ((0, NUM_ROWS),)) -> Named:
    return NAMES.find(query, ranges)


def numbers(query: str) -> list[str]:
    return [LOOKUP.places[row][1] for row in find(query).rows]


def span(law: str) -> tuple[int, int]:
    run = next(run for run in LOOKUP.runs if run.law_name == law)
    return run.start, run.start + run.count


def test_several_articles_come_in_the_order_they_are_named() -> None:
    named = find("消防法第10条、安全生产法第28条，还有建筑法第八条，再说消防法第10条")
    expected = [(FIRE, "第10条"), (SAFETY, "第28条"), (BUILDING, "第八条")]
    assert [LOOKUP.places[row] for row in named.rows] == expected
    assert named.ranges == [span(SAFETY), span(BUILDING), span(FIRE)]
    assert named.warnings == ()


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("《建筑法》第七条至第十条", ["第七条", "第八条", "第八条之一", "第九条", "第十条"]),
        ("建筑法第8-10条", ["第八条", "第八条之一", "第九条", "第十条"]),
        ("消防法第五条到第八条", ["第5条", "第6条", "第7条", "第8条"]),
        ("GB55023 6.0.5~6.0.7", ["6.0.5(1)", "6.0.5(2)", "6.0.6", "6.0.7"]),
        ("建筑法第七条、第十条", ["第七条", "第十条"]),
        ("消防法第1条至第60条", ["第1条", "第60条"]),
        ("消防法第八条至第五条", ["第8条", "第5条"]),
        ("建筑法第7条-消防法第10条", ["第七条", "第10条"]),
    ],
)
def test_a_range_names_what_lies_between_its_ends(query: str, expected: list[str]) -> None:
    assert numbers(query) == expected
    assert find(query).warnings == ()


def test_a_question_fills_in_no_more_than_one_long_range() -> None:
    assert len(numbers("安全生产法第1条至第50条，消防法第1条至第50条")) <= 50 + 4


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("6.0.5(1)", ["6.0.5(1)"]),
        ("6.0.5", ["6.0.5(1)", "6.0.5(2)"]),
        ("第6.0.5条怎么规定", ["6.0.5(1)", "6.0.5(2)"]),
        ("6.0.6是什么内容", ["6.0.6"]),
        ("3.0.1(2)", ["3.0.1(2)", "3.0.1(2)"]),
        ("附录A", ["附录A"]),
        ("附录 b 的内容", ["附录B.0.1"]),
        ("9.2", ["9.2"]),
        ("第9.2条", ["9.2"]),
    ],
)
def test_a_number_without_a_law_is_looked_up_in_every_law(query: str, expected: list[str]) -> None:
    named = find(query)
    assert [LOOKUP.places[row][1] for row in named.rows] == expected
    assert (named.ranges, named.warnings) == ([], ())


@pytest.mark.parametrize(
    "query",
    [
        *(
            "3.5米",
            "脚手板宽度3.5",
            "高度9.2m以上",
            "6.0.6kN",
            "表6.0.6",
            "2024.6.0.6",
            "16.0.6",
            "V6.0.6",
            "版本6.0.6",
        ),
        *("6.0.6.1", "附录AB", "附录A.0.2", "6.0.5(9)", "7.7.7", "6.0.6mm"),
    ],
)
def test_lengths_and_unknown_numbers_name_nothing(query: str) -> None:
    assert find(query) == Named([], [], ())


def test_a_number_beside_a_law_is_looked_up_in_that_law_alone() -> None:
    assert numbers("安全生产法 脚手架 3.0.1(2)") == []
    assert numbers("GB 50009-2012 3.0.1(2)") == []


def test_a_number_without_a_law_stays_inside_the_scope() -> None:
    start, stop = span(HANDBOOK)
    assert find("3.0.1(2)", [(start, stop)]).rows == [start]
    assert find("3.0.1(2)", []).rows == []


def test_a_number_that_many_laws_have_names_none_of_them() -> None:
    for num_laws, found in ((20, 20), (21, 0)):
        names = NameLookup(FakeLookup({f"规范{n}": ["3.0.1"] for n in range(num_laws)}))
        assert len(names.find("3.0.1", [(0, num_laws)]).rows) == found


def test_a_number_is_not_looked_up_in_more_laws_than_it_may_cost() -> None:
    names = NameLookup(FakeLookup({f"规范{n}": ["3.0.1" if n == 7 else "1.0.1"] for n in range(2001)}))
    assert names.find("3.0.1", [(0, 2001)]).rows == []
    assert names.find("3.0.1", [(0, 2000)]).rows == [7]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("《安全生产法》第三百条", "没有“《安全生产法》第三百条”所指的条文"),
        ("GB55023 6.0.5(9)", "没有“GB55023 6.0.5(9)”所指的条文"),
        ("GB55023附录A.0.2", "没有“GB55023附录A.0.2”所指的条文"),
        ("刑法第一百三十四条之一", "索引中没有“刑法第一百三十四条之一”"),
        ("根据刑法第三十条", "索引中没有“刑法第三十条”"),
        ("GB 50870-2013 第3.0.1条", "索引中没有“GB 50870-2013 第3.0.1条”"),
        ("GB 50009有什么要求", "索引中没有“GB 50009”"),
        ("北京市消防法第三条", "名称相近的有“中华人民共和国消防法”"),
        ("帮俺瞅瞅安全生产法第28条", "名称相近的有“中华人民共和国安全生产法”，所指若是它，请用书名号写明"),
        ("海上交通安全法第三条", "索引中没有“海上交通安全法第三条”"),
    ],
)
def test_what_is_named_in_vain_is_said_once_and_named_to_nobody(query: str, words: str) -> None:
    named = find(f"{query}。{query}")
    assert named.rows == []
    (warning,) = named.warnings
    assert words in warning
    assert warning.endswith("以下条文只按内容检索得到。")


@pytest.mark.parametrize(
    "query",
    [
        *("SY 75 挖掘机", "DB25开关箱", "JB 100 型号", "SL 20 吊索", "MT 5 矿灯", "TB 50 钢管", "NB 30 电缆"),
        *(
            "《施工日志》",
            "《施工日志》（一）",
            "第三条",
            "违反有关规定第三条",
            "本规定第三条",
            "操作规程第三条怎么写",
        ),
        *("安全生产法", "塔吊司机没有操作证能不能上岗", "", "　"),
    ],
)
def test_nothing_is_missed_where_nothing_was_asked_for(query: str) -> None:
    assert find(query).warnings == ()


def test_an_article_outside_the_scope_is_not_found_and_said_to_be_outside() -> None:
    named = find("安全生产法第28条", [span(BUILDING)])
    assert (named.rows, named.ranges) == ([], [])
    assert named.warnings == ("“安全生产法第28条”不在所选检索范围内，以下条文只按内容检索得到。",)


@pytest.mark.parametrize(
    "query", ["《消防法》（1998）第10条", "1998版消防法第10条", "《消防法（1998年修订）》第10条"]
)
def test_an_edition_that_the_index_cannot_confirm_is_found_with_a_warning(query: str) -> None:
    named = find(query)
    assert [LOOKUP.places[row] for row in named.rows] == [(FIRE, "第10条")]
    (warning,) = named.warnings
    assert "写明 1998 版" in warning


@pytest.mark.parametrize(
    "query", ["《某条例》（2018）第一条", "GB55023-2022 6.0.6", "2021年消防法第10条", "《消防法》第10条"]
)
def test_an_edition_that_agrees_needs_no_warning(query: str) -> None:
    named = find(query)
    assert (len(named.rows), named.warnings) == (1, ())


PIECES = [
    *"《》第条款（）之、和一十28. 的我看省法",
    "安全生产法",
    "建筑法第8条",
    "至第50条",
    "GB55023",
    "6.0.5",
    "附录A",
    "同法",
    "刑法第3条",
]


@settings(max_examples=300)
@given(
    st.one_of(st.text(max_size=60), st.lists(st.sampled_from(PIECES), max_size=30).map("".join)),
    st.sampled_from([((0, NUM_ROWS),), ((0, 50), (119, 130)), ()]),
)
def test_any_question_names_rows_and_ranges_of_the_scope(
    query: str, ranges: Sequence[tuple[int, int]]
) -> None:
    named = find(query, ranges)
    inside = {row for start, stop in ranges for row in range(start, stop)}
    assert set(named.rows) <= inside
    assert len(named.rows) == len(set(named.rows))
    assert {row for start, stop in named.ranges for row in range(start, stop)} <= inside
    assert named.ranges == sorted(named.ranges)


@pytest.mark.parametrize(
    "piece",
    [
        "建筑法第1至50条 ",
        "安全生产法第1条至第50条",
        "的",
        "刑法第三条",
        "6.0.5 GB55023",
        "3.0.1(2)",
        "附录A",
        "9.9.9 ",
    ],
)
def test_the_longest_hostile_question_costs_little(piece: str) -> None:
    assert_linear(find, (piece * 2000)[:2000])
