"""What is in force, and that it comes first without hiding the rest."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cg_rag.index.corpus import Article, LawRun, Scope
from cg_rag.index.lexical import LexicalArrays
from cg_rag.index.numerals import lookup_keys
from cg_rag.index.ranking import Ranker
from cg_rag.index.retriever import Retriever, SearchResult
from cg_rag.index.validity import (
    WINDOW,
    describe_validity,
    find_validity,
    is_in_force,
    is_partly_repealed,
    order_by_validity,
    read_date,
    read_validity,
)


@pytest.mark.parametrize(
    ("status", "validity"),
    [
        ("现行有效", "in_force"),
        ("有效", "in_force"),
        ("现行有效（2021年修订）", "in_force"),
        ("部分失效", "in_force"),
        ("施行中", "in_force"),
        ("已生效", "in_force"),
        ("", None),
        (None, None),
        (3, None),
        ("样例", None),
        ("部分废止", "in_force"),
        ("样例（非现行标准）", "amended"),
        ("已废止", "repealed"),
        ("已 废 止", "repealed"),
        ("失效", "repealed"),
        ("已被修改", "amended"),
        ("已修改", "amended"),
        ("已被替代", "amended"),
        ("旧版", "amended"),
        ("尚未生效", "pending"),
        ("未施行", "pending"),
        ("repealed", "repealed"),
        ("Not yet in force", "pending"),
        ("In force", "in_force"),
        ("invalid", "repealed"),
        ("No longer in force", "repealed"),
        ("未废止", None),
        ("已过期", "repealed"),
        ("停止执行", "repealed"),
        ("征求意见稿", "pending"),
    ],
)
def test_what_sources_write_is_understood(status: object, validity: str | None) -> None:
    assert read_validity(status) == validity


@pytest.mark.parametrize(
    ("fields", "validity"),
    [
        ({"effective_date": "2026-07-02"}, "pending"),
        ({"effective_date": "2026-07-01"}, None),
        ({"status": "现行有效", "effective_date": "2026年7月2日"}, "pending"),
        ({"status": "现行有效", "effective_date": 20260702}, "pending"),
        ({"status": "已废止", "effective_date": "2026-07-02"}, "repealed"),
        ({"status": "已被修改", "effective_date": "2099/1/1 00:00:00"}, "amended"),
        ({"status": "尚未生效", "effective_date": "2002-11-01"}, "pending"),
        ({"status": "样例", "effective_date": "不详"}, None),
        ({}, None),
    ],
)
def test_a_law_whose_day_has_not_come_is_not_in_force_yet(
    fields: dict[str, Any], validity: str | None
) -> None:
    today = date(2026, 7, 1)
    assert find_validity(fields, today) == validity


@pytest.mark.parametrize(
    "text",
    ["", "2026", "2026-13-01", "2026-02-30", "20260001", "2026-7-123", "自2026-07-01", None, 1.5, True, []],
)
def test_what_is_no_day_is_none(text: object) -> None:
    assert read_date(text) is None


@given(st.text() | st.integers() | st.none() | st.dates().map(str))
def test_reading_a_day_never_raises(text: object) -> None:
    assert read_date(text) is None or str(text).strip()


def test_a_law_in_force_of_which_parts_are_repealed_is_told_apart() -> None:
    assert is_in_force({"status": "部分失效"})
    assert is_partly_repealed({"status": "有效（部分条款废止）"})
    assert not is_partly_repealed({"status": "已废止"})
    assert not is_partly_repealed({"status": "现行有效"})
    assert not is_partly_repealed({})


def test_what_is_not_in_force_is_described_by_what_the_source_says() -> None:
    assert describe_validity({"status": "旧版"}) == "标注为“旧版”"
    assert describe_validity({"effective_date": "2099-01-01"}) == "施行日期为 2099-01-01，尚未施行"


@settings(max_examples=100)
@given(st.lists(st.booleans(), max_size=60), st.integers(1, 25))
def test_the_order_is_stable_inside_windows_and_loses_nothing(in_force: list[bool], window: int) -> None:
    order = order_by_validity(in_force, window)
    assert sorted(order) == list(range(len(in_force)))
    for start in range(0, len(order), window):
        part = order[start : start + window]
        assert part == sorted(part, key=lambda place: (not in_force[place], place))
        assert all(start <= place < start + window for place in part)


class Index:
    """Articles in memory; `status` is that of a law."""

    def __init__(self, laws: Sequence[tuple[str, str, Sequence[tuple[str, str]]]]) -> None:
        self.articles: list[Article] = []
        self.rows_read: list[int] = []
        self._rows: dict[tuple[int, str], list[int]] = {}
        runs = []
        for name, status, articles in laws:
            runs.append(LawRun(name, "a", (), len(self.articles), len(articles), ""))
            for number, contents in articles:
                for key in lookup_keys(number):
                    self._rows.setdefault((len(runs) - 1, key), []).append(len(self.articles))
                self.articles.append(Article(name, number, contents, {"status": status} if status else {}))
        self.runs = tuple(runs)
        self.lexical = LexicalArrays.build(f"{one.law_name}\n{one.contents}" for one in self.articles)

    def find_rows(self, run_index: int, key: str) -> list[int]:
        return self._rows.get((run_index, key), [])

    def read_articles(self, rows: Sequence[int]) -> list[Article]:
        self.rows_read += rows
        return [self.articles[row] for row in rows]

    def retriever(self, holds_old_law: bool = True) -> Retriever:
        scopes = {"full": Scope("full", ((0, len(self.articles)),))}
        return Retriever(self, scopes, Ranker(self.lexical, None), holds_old_law=holds_old_law)


BEST = "脚手架验收"
INDEX = Index(
    [
        ("样例脚手架规定", "已废止", [("第一条", f"{BEST}。{BEST}。"), ("第二条", "脚手架应当牢固。")]),
        ("样例安全条例", "已被修改", [("第一条", "旧版：脚手架验收。"), ("第二条", "旧版：塔式起重机。")]),
        (
            "样例安全条例",
            "",
            [("第一条", "新版：脚手架应当由专人验收合格。"), ("第二条", "新版：塔式起重机。")],
        ),
        ("样例施工办法", "现行有效", [("第一条", "脚手架搭设后应当组织验收并记录在案。")]),
        ("样例未来办法", "尚未生效", [("第一条", f"{BEST}。")]),
    ]
)


def places(result: SearchResult) -> list[tuple[str, str]]:
    return [(article.law_name, article.extra.get("status", "")) for article in result.articles]


def test_articles_in_force_come_first_and_the_others_are_kept_and_marked() -> None:
    before = INDEX.retriever(holds_old_law=False).search(BEST, "full", 6)
    after = INDEX.retriever().search(BEST, "full", 6)
    assert {hit.row for hit in before.hits} == {hit.row for hit in after.hits}
    assert before.articles[0].extra["status"] == "已废止"
    assert [status for _, status in places(after)[:2]] == ["", "现行有效"]
    assert all(status not in ("", "现行有效") for _, status in places(after)[2:])
    old = [
        hit.row
        for hit in before.hits
        if INDEX.articles[hit.row].extra.get("status", "现行有效") != "现行有效"
    ]
    assert [hit.row for hit in after.hits[2:]] == old
    # The scores stay at the places, the stages go with the articles.
    assert [hit.score for hit in after.hits] == [hit.score for hit in before.hits]
    assert {hit.row: hit.stages for hit in after.hits} == {hit.row: hit.stages for hit in before.hits}


def test_a_repealed_law_is_found_by_name_first_of_all_with_a_warning() -> None:
    result = INDEX.retriever().search("《样例脚手架规定》第一条", "full", 5)
    assert places(result)[0] == ("样例脚手架规定", "已废止")
    assert result.articles[0].article_number == "第一条"
    assert "指名的“样例脚手架规定”标注为“已废止”，请核对现行规定。" in result.warnings
    by_law = INDEX.retriever().search("《样例脚手架规定》 验收", "full", 5)
    assert [law for law, _ in places(by_law)[:2]] == ["样例脚手架规定"] * 2
    assert [law for law, _ in places(by_law)[2:4]] != ["样例脚手架规定"] * 2


def test_of_two_editions_that_are_named_the_one_in_force_comes_first() -> None:
    result = INDEX.retriever().search("样例安全条例第一条", "full", 4)
    assert [hit.row for hit in result.hits[:2]] == [4, 2]
    assert [hit.stages["exact"] for hit in result.hits[:2]] == [1.0, 1.0]
    assert "指名的“样例安全条例”标注为“已被修改”，请核对现行规定。" in result.warnings
    assert [status for _, status in places(result)[2:]] == [
        "",
        "已被修改",
    ]  # the tier of the law, in its own order


def test_a_law_that_comes_into_force_later_stands_behind_and_is_named_with_a_warning() -> None:
    index = Index(
        [("样例新办法", "", [("第一条", f"{BEST}。")]), ("样例旧办法", "", [("第一条", "应当验收。")])]
    )
    index.articles[0].extra["effective_date"] = "2999-01-01"
    result = index.retriever().search(BEST, "full", 2)
    assert [article.law_name for article in result.articles] == ["样例旧办法", "样例新办法"]
    named = index.retriever().search("样例新办法第一条", "full", 1)
    assert "指名的“样例新办法”施行日期为 2999-01-01，尚未施行，请核对现行规定。" in named.warnings


def test_nothing_more_is_read_where_everything_is_in_force() -> None:
    index = Index([("样例办法", "现行有效", [(f"第{n}条", "脚手架应当验收。") for n in range(1, 60)])])
    index.retriever(holds_old_law=False).search(BEST, "full", 5)
    assert len(index.rows_read) == 5
    index.retriever().search(BEST, "full", 5)
    assert len(index.rows_read) == 5 + WINDOW


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from(["", "现行有效", "已废止", "已被修改"]), min_size=1, max_size=70),
    st.sampled_from(
        [
            BEST,
            "脚手架",
            "《样例三法》 验收",
            "样例三法第一条",
            "样例零法第一条和样例一法第一条 脚手架",
            "和".join(f"样例{one}法第一条" for one in "零一二三四五六七八九"),
        ]
    ),
)
def test_a_place_does_not_depend_on_topk_and_scores_never_rise(statuses: list[str], query: str) -> None:
    names = "零一二三四五六七八九"
    laws = [
        (f"样例{names[number % 10]}法", status, [("第一条", "脚手架应当验收。" + "检查。" * (number % 7))])
        for number, status in enumerate(statuses)
    ]
    retriever = Index(laws).retriever()
    longest = retriever.search(query, "full", 200)
    scores = [hit.score for hit in longest.hits]
    assert scores == sorted(scores, reverse=True)
    for topk in (1, 3, WINDOW - 1, WINDOW, WINDOW + 1, 45):
        assert retriever.search(query, "full", topk).hits == longest.hits[:topk]


def test_among_many_named_editions_those_in_force_come_first_however_few_are_asked_for() -> None:
    statuses = ["已废止"] * 2 * WINDOW + ["现行有效"]
    retriever = Index(
        [("样例法", status, [("第一条", "脚手架应当验收。")]) for status in statuses]
    ).retriever()
    for topk in (1, 5, 200):
        result = retriever.search("样例法第一条", "full", topk)
        assert result.hits[0].row == 2 * WINDOW
        assert result.articles[0].extra["status"] == "现行有效"
