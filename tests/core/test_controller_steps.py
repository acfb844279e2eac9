"""The JSON steps of the controller workflow, as models write them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cg_rag.core.controller_steps import (
    OBSERVE_SCHEMA,
    PLAN_SCHEMA,
    REVIEW_SCHEMA,
    StepUnreadable,
    find_uncovered,
    read_observation,
    read_plan,
    read_review,
    with_sole_plate_words,
)

SEEN = '{"scene_status":"assessable","facts":["立杆浸水","立杆浸水"," "],"hazards":["脚手架基础积水"]}'


@pytest.mark.parametrize(
    "text",
    [
        SEEN,
        f"```json\n{SEEN}\n```",
        f"好的。{SEEN} 以上。",
        SEEN.replace("]}", "],}"),
        f'{{"a":1}} {SEEN} {SEEN}',
    ],
)
def test_an_observation_is_found_in_whatever_stands_around_it(text: str) -> None:
    observation = read_observation(text)
    assert (observation.facts, observation.hazards) == (("立杆浸水",), ("脚手架基础积水",))
    assert observation.needs_search
    assert observation.written() == "1. 立杆浸水\n场景：assessable"
    assert read_observation(observation.told()) == observation


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("我看到积水", "没有所要的 JSON 对象"),
        ("[1, 2]", "没有所要的 JSON 对象"),
        ('{"scene_status":"site","facts":["a"],"hazards":[]}', "scene_status 须为"),
        ('{"scene_status":"assessable","facts":[],"hazards":[]}', "facts 须为"),
        ('{"scene_status":"assessable","facts":[1, null],"hazards":{}}', "facts 须为"),
    ],
)
def test_what_cannot_be_read_says_why(text: str, fault: str) -> None:
    with pytest.raises(StepUnreadable, match=fault):
        read_observation(text)


def test_a_scene_that_cannot_be_judged_needs_no_search() -> None:
    text = '{"scene_status":"unsupported_scene","facts":["会议室"],"hazards":["积水"]}'
    assert not read_observation(text).needs_search


def test_a_plan_has_one_to_three_questions() -> None:
    assert read_plan('{"questions":["a","a","b","c","d"]}') == ("a", "b", "c")
    assert read_plan('{"questions":"a\\nb"}') == ("a", "b")
    for text in ('{"questions":[]}', '{"questions":[""]}', "{}"):
        with pytest.raises(StepUnreadable):
            read_plan(text)


def test_a_review_asks_for_more_only_where_it_is_not_enough() -> None:
    assert read_review('{"summary":"够","enough":true,"questions":["a"]}').questions == ()
    assert read_review('{"summary":"不够","enough":false,"questions":["a"]}').questions == ("a",)
    with pytest.raises(StepUnreadable):
        read_review('{"summary":"","enough":true,"questions":[]}')


@given(
    st.text(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.text(max_size=9),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.sampled_from(["questions", "facts", "summary"]), inner)
        ),
    ).map(str)
)
def test_no_answer_raises_anything_else(text: str) -> None:
    for read in (read_observation, read_plan, read_review):
        try:
            read(text)
        except StepUnreadable as fault:
            assert str(fault)


def test_half_of_a_surrogate_pair_becomes_a_character_that_can_be_sent() -> None:
    assert read_plan('{"questions":["a\\ud800"]}') == ("a?",)


@pytest.mark.parametrize("schema", [OBSERVE_SCHEMA, PLAN_SCHEMA, REVIEW_SCHEMA])
def test_schemas_close_their_objects(schema: dict[str, Any]) -> None:
    assert schema["additionalProperties"] is False
    assert schema["required"] == list(schema["properties"])


def test_sole_plate_words_go_to_questions_about_uprights_once() -> None:
    asked = with_sole_plate_words("脚手架立杆基础积水")
    assert asked == "脚手架立杆基础积水 垫板 底座"
    assert with_sole_plate_words(asked) == asked
    assert with_sole_plate_words("配电箱未上锁") == "配电箱未上锁"


def test_hazards_that_no_question_was_about_are_uncovered() -> None:
    asked = ["扣件式钢管脚手架立杆基础积水 排水要求"]
    assert find_uncovered(["脚手架立杆基础积水", "动火作业未配备灭火器"], asked) == ("动火作业未配备灭火器",)
    assert find_uncovered(["甲乙", "丙丁", "戊己", "庚辛"], []) == ("甲乙", "丙丁", "戊己")
