"""What a model is asked, and the answer that is made of what it picks."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cg_rag.core.selection import (
    FIRST_LINE,
    NOTHING_FOUND,
    AnswerLines,
    Candidate,
    correction_messages,
    pick_messages,
    pick_schema,
)


def candidate(law: str = "样例规范", number: str = "1.1", contents: str = "内容") -> Candidate:
    return Candidate(law, number, contents, None, {})


def test_answer_is_the_text_of_the_contract() -> None:
    lines = AnswerLines([candidate("GB1样例规范", "6.0.5(1)"), candidate("样例手册", "")])
    assert lines.take([2]) == [FIRST_LINE, "\n1. 样例手册"]
    assert lines.take([1]) == ["\n2. GB1样例规范 6.0.5(1)"]
    assert lines.finish() == []
    assert lines.text == (
        "我根据在线检索与候选筛选结果，整理出以下最相关条文：\n1. 样例手册\n2. GB1样例规范 6.0.5(1)"
    )


def test_nothing_picked_is_said_in_the_words_of_the_contract() -> None:
    lines = AnswerLines([candidate()])
    assert lines.take([]) == []
    assert lines.finish() == [NOTHING_FOUND]
    assert lines.text == "当前候选条文中未找到与问题直接相关的条文。"


@given(st.lists(st.permutations(range(1, 6)), min_size=1, max_size=1), st.integers(0, 5))
def test_lines_do_not_depend_on_when_picks_came(orders: list[list[int]], cut: int) -> None:
    candidates = [candidate(number=str(number)) for number in range(1, 6)]
    whole, parts = AnswerLines(candidates), AnswerLines(candidates)
    whole.take(orders[0])
    told = parts.take(orders[0][:cut]) + parts.take(orders[0][cut:]) + parts.finish()
    assert "".join(told) == parts.text == whole.text


@pytest.mark.parametrize("name", ["甲\n2. 乙", "甲\r\n乙", "甲\u2028乙"])
def test_no_name_of_a_law_makes_a_second_line(name: str) -> None:
    assert len(candidate(name, "1").item.splitlines()) == 1


def test_item_is_law_and_number_or_the_law_alone() -> None:
    assert candidate("样例　规范", "第一条").item == "样例　规范 第一条"
    assert candidate("样例规范", "").item == "样例规范"


def candidate_lines(candidates: Sequence[Candidate]) -> list[dict[str, object]]:
    user = pick_messages("S", "问题？", candidates, 3)[1]["content"]
    return [json.loads(line) for line in user.split("\n")[1:-2]]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=4))
def test_no_text_of_an_article_can_look_like_another_candidate(contents: list[str]) -> None:
    lines = candidate_lines([candidate(contents=text) for text in contents])
    assert [line["index"] for line in lines] == list(range(1, len(contents) + 1))
    assert [line["contents"] for line in lines] == contents


def test_system_prompt_goes_out_as_it_is_and_json_is_named_with_an_example() -> None:
    system, user = pick_messages("  原样\n", "脚手架？", [candidate()], 3)
    assert system == {"role": "system", "content": "  原样\n"}
    assert user["content"].endswith(
        '问题：脚手架？\n最多选择 3 条。只输出一个 JSON 对象，形如 {"indices":[编号,…]}。'
    )


def test_schema_names_every_valid_index_and_the_limit() -> None:
    indices = pick_schema(3, 2)["properties"]["indices"]
    assert indices == {
        "type": "array",
        "items": {"type": "integer", "enum": [1, 2, 3]},
        "uniqueItems": True,
        "maxItems": 2,
    }


def test_correction_quotes_what_was_said_and_why_it_is_no_answer() -> None:
    said, ask = correction_messages("x" * 5000, "原因", 7)
    assert said == {"role": "assistant", "content": "x" * 2000}
    assert "原因" in ask["content"]
    assert "1..7" in ask["content"]
    assert correction_messages(" ", "原因", 7)[0]["content"].strip()
