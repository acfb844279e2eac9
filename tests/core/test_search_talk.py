"""The conversation of the text model: it ends, stays within its bounds, and every message is one that servers take."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cg_rag.core.evidence import Evidence
from cg_rag.core.json_parts import encode_body
from cg_rag.core.search_talk import Again, Draft, Search, SearchTalk
from cg_rag.core.tool_calls import ToolCall
from cg_rag.core.upstream import ChatRequest, ChatResult

ITEMS = ("立杆底部积水。", "未设垫板。")
DESCRIPTION = "## 隐患描述\n1. 立杆底部积水。\n2. 未设垫板。"


def talk(max_rounds: int = 2, **options: Any) -> SearchTalk:
    return SearchTalk("系统", DESCRIPTION, ITEMS, max_rounds=max_rounds, **{"uses_tools": True} | options)


def says(text: str = "", *calls: ToolCall, thinking: str = "") -> ChatResult:
    return ChatResult(text, thinking, calls, None, "stop")


def call(question: str, ident: str = "a", name: str = "search_regulations") -> ToolCall:
    return ToolCall(ident, name, json.dumps({"query": question}, ensure_ascii=False))


def found(step: Search) -> dict[str, list[Evidence] | None]:
    return {
        question: [Evidence(number, "样例规范", f"{number}.0.1", "内容", {})]
        for number, question in enumerate(step.queries, 1)
    }


def check_messages(request: ChatRequest) -> None:
    """What strict servers and templates want of a conversation."""
    messages: Sequence[Any] = request.messages
    assert [message["role"] for message in messages[:2]] == ["system", "user"]
    assert messages[-1]["role"] in ("user", "tool")
    waiting: list[str] = []
    for before, message in pairwise(messages):
        role = message["role"]
        if role == "tool":
            assert message["tool_call_id"] == waiting.pop(0)
            continue
        assert not waiting, "a call without a result"
        assert role != before["role"], "two of one role in a row"
        assert role == "assistant" or before["role"] != "tool", "a user behind a tool"
        if role == "assistant":
            assert message["content"] or message.get("tool_calls")
            waiting = [echoed["id"] for echoed in message.get("tool_calls", ())]
            assert len(set(waiting)) == len(waiting)
            for echoed in message.get("tool_calls", ()):
                assert isinstance(json.loads(echoed["function"]["arguments"]), dict)
                assert echoed["function"]["name"] in ("search_regulations", "unknown_tool")
    assert not waiting
    encode_body({"messages": list(messages)})


CALLS = st.lists(
    st.builds(
        ToolCall,
        st.sampled_from(["a", "b", "", "坏 id", "call_1"]),
        st.sampled_from(["search_regulations", "search_regulations", "web_search", ""]),
        st.sampled_from(["甲", "乙", "丙", "丁", "戊"]).map(lambda text: f'{{"query": "{text}"}}')
        | st.text(max_size=30),
    ),
    max_size=12,
)
ANSWERS = st.builds(
    lambda text, calls: says(text, *calls),
    st.sampled_from(["", "## 隐患判定依据\n1. 甲〔1〕", '{"queries": ["甲", "己"]}', '{"queries": []}'])
    | st.text(max_size=40),
    CALLS,
)


@settings(max_examples=80)
@given(st.lists(ANSWERS, min_size=12, max_size=12), st.integers(1, 3), st.booleans(), st.booleans())
def test_every_conversation_ends_within_its_bounds(
    answers: list[ChatResult], max_rounds: int, uses_tools: bool, finds: bool
) -> None:
    conversation = talk(max_rounds, uses_tools=uses_tools)
    rounds, turns, asked = 0, 0, []
    for answer in answers:
        turns += 1
        request = conversation.request()
        check_messages(request)
        assert not (request.tools and request.schema)
        if conversation.is_writing:
            assert not request.tools
            assert request.schema is None
        step = conversation.take(answer)
        if isinstance(step, Draft):
            break
        if isinstance(step, Search):
            rounds += 1
            assert len(step.queries) <= 3
            asked += step.queries
            conversation.tell(found(step) if finds else dict.fromkeys(step.queries))
    else:
        raise AssertionError("no end")
    assert rounds <= max_rounds
    assert turns <= max_rounds + 3
    assert len(set(asked)) == len(asked) > 0
    check_messages(conversation.correct(answer.text, "改"))


def test_tools_are_offered_until_the_rounds_are_used_up_and_results_carry_the_numbers() -> None:
    conversation = talk(max_rounds=2)
    for question in ("甲", "乙"):
        assert conversation.request().tools
        step = conversation.take(says("", call(question)))
        assert isinstance(step, Search)
        assert step.queries == (question,)
        conversation.tell(found(step))
    request = conversation.request()
    assert not request.tools
    last = request.messages[-1]
    assert last["role"] == "tool"
    assert "〔1〕 样例规范 1.0.1" in last["content"]
    assert "检索到此为止" in last["content"]
    assert conversation.take(says("正文")) == Draft("正文")


def test_a_text_behind_a_search_is_the_draft_and_takes_no_more_calls() -> None:
    conversation = talk()
    conversation.request()
    step = conversation.take(says("", call("甲")))
    assert isinstance(step, Search)
    conversation.tell(found(step))
    assert conversation.request().tools
    assert conversation.take(says("正文")) == Draft("正文")


def test_a_text_in_place_of_the_first_call_is_no_draft_but_the_change_to_a_plan() -> None:
    conversation = talk()
    conversation.request()
    assert conversation.take(says("## 隐患判定依据\n1. 凭记忆")) == Again()
    request = conversation.request()
    assert request.schema is not None
    assert not request.tools
    assert "JSON" in request.messages[-1]["content"]


def test_calls_written_as_text_are_carried_out() -> None:
    conversation = talk()
    conversation.request()
    step = conversation.take(
        says('<tool_call>{"name": "search_regulations", "arguments": {"query": "甲"}}</tool_call>')
    )
    assert step == Search(("甲",))


def test_without_any_usable_question_the_points_of_the_description_are_searched() -> None:
    conversation = talk(uses_tools=False)
    conversation.request()
    assert conversation.take(says("不知道")) == Search(ITEMS, 0, is_servers=True)
    conversation.tell({})
    broken = talk(max_rounds=1)
    broken.request()
    step = broken.take(says("", ToolCall("a", "web_search", "{}")))
    assert step == Search(ITEMS, 1, is_servers=True)
    broken.tell(found(Search(ITEMS)))
    last = broken.request().messages[-1]
    assert "没有名为“web_search”的工具" in last["content"]
    assert "检索“未设垫板。”的结果：\n〔2〕" in last["content"]


def test_of_twenty_calls_three_are_carried_out_and_the_others_counted() -> None:
    conversation = talk()
    conversation.request()
    step = conversation.take(says("", *(call(f"问题{number}", f"c{number}") for number in range(20))))
    assert step == Search(("问题0", "问题1", "问题2"), 17)


def test_a_question_that_was_asked_is_not_searched_again() -> None:
    conversation = talk()
    conversation.request()
    step = conversation.take(says("", call("甲", "a"), call("甲", "b")))
    assert step == Search(("甲",), 1)
    conversation.tell(found(Search(("甲",))))
    conversation.request()
    assert conversation.take(says("", call("甲"))) == Search((), 1)


def test_calls_that_share_an_id_get_ids_of_their_own() -> None:
    conversation = talk()
    conversation.request()
    step = conversation.take(says("", call("甲", "x"), call("乙", "x"), call("丙", "")))
    assert isinstance(step, Search)
    conversation.tell(found(step))
    check_messages(conversation.request())


def test_thoughts_go_back_only_where_the_server_wants_them() -> None:
    for wants in (True, False):
        conversation = talk(returns_thoughts=wants)
        conversation.request()
        step = conversation.take(says("", call("甲"), thinking="想"))
        assert isinstance(step, Search)
        conversation.tell(found(step))
        echoed = next(
            message for message in conversation.request().messages if message["role"] == "assistant"
        )
        assert ("reasoning_content" in echoed) == wants


def test_a_server_without_tools_is_asked_for_a_plan_and_nothing_of_the_tools_is_left() -> None:
    conversation = talk()
    conversation.request()
    conversation.without_tools()
    request = conversation.request()
    assert [message["role"] for message in request.messages] == ["system", "user"]
    assert "search_regulations" not in request.messages[1]["content"]
    assert request.messages[1]["content"].startswith(DESCRIPTION)
    assert request.schema is not None


WAYS: list[tuple[Callable[[], SearchTalk], str]] = [
    (lambda: talk(max_rounds=1), "tool"),
    (lambda: talk(max_rounds=1, uses_tools=False), "user"),
]


@pytest.mark.parametrize(("make", "role"), WAYS)
def test_when_nothing_was_found_the_model_is_told_to_name_no_article(
    make: Callable[[], SearchTalk], role: str
) -> None:
    conversation = make()
    conversation.request()
    answer = says("", call("甲")) if role == "tool" else says('{"queries": ["甲"]}')
    step = conversation.take(answer)
    assert isinstance(step, Search)
    conversation.tell({"甲": []})
    last = conversation.request().messages[-1]
    assert last["role"] == role
    assert "不写任何法规、标准的名称与条号" in last["content"]
