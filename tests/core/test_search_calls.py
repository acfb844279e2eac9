"""Questions from tool calls and plans, as models and servers write them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cg_rag.core.evidence import Evidence
from cg_rag.core.search_calls import (
    MAX_QUESTION_CHARACTERS,
    MAX_TOLD_CHARACTERS,
    evidence_text,
    read_call,
    read_queries,
    refuses_tools,
)
from cg_rag.core.tool_calls import ToolCall
from cg_rag.core.upstream_errors import UpstreamError, UpstreamFailed, UpstreamRefused, UpstreamTimeout
from tests.growth import assert_linear

SEARCH = "search_regulations"
PLANS = [
    ('{"queries": ["甲", "乙"]}', ["甲", "乙"]),
    ('```json\n{"queries":["甲"]}\n```', ["甲"]),
    ('好的，我来检索：{"queries": ["甲"]}。以上。', ["甲"]),
    ('["甲", "乙", "甲"]', ["甲", "乙"]),
    ('{"query": "甲"}\n{"query": "乙"}', ["甲", "乙"]),
    ('{"queries": [{"query": "甲"}, "乙", 3, null]}', ["甲", "乙"]),
    ('<tool_call>\n{"name": "search_regulations", "arguments": {"query": "甲"}}\n</tool_call>', ["甲"]),
    ('{"name": "search_regulations", "arguments": "{\\"query\\": \\"甲\\"}"}', ["甲"]),
    ('{"tool_calls": [{"function": {"name": "x", "arguments": {"query": "甲"}}}]}', ["甲"]),
    ('{"检索问题": ["甲"]}', ["甲"]),
    ('{"queries": []}', []),
    ('{"queries": "  甲\\n乙 "}', ["甲 乙"]),
    ("脚手架积水应当检索排水要求。", []),
    ('{"queries": ["甲', []),
    ("{" * 500, []),
    ("[" * 5000, []),
    ('{"queries": ["\\ud83d甲"]}', ["甲"]),
]


@pytest.mark.parametrize(("text", "queries"), PLANS)
def test_a_plan_is_read_however_it_is_written(text: str, queries: list[str]) -> None:
    assert read_queries(text) == queries


ARGUMENTS = [
    ('{"query": "立杆 积水"}', "立杆 积水"),
    ('{"query": "立杆 积水"} ', "立杆 积水"),
    ('{"query": "立杆 积水"}}', "立杆 积水"),
    ('{"query": "立杆 积水"', "立杆 积水"),
    ('{"question":"立杆 积水"}', "立杆 积水"),
    ('"立杆 积水"', "立杆 积水"),
    ("立杆 积水", "立杆 积水"),
    ('```json\n{"query": "立杆 积水"}\n```', "立杆 积水"),
]


@pytest.mark.parametrize(("arguments", "question"), ARGUMENTS)
def test_arguments_that_can_be_understood_are(arguments: str, question: str) -> None:
    assert read_call(ToolCall("1", SEARCH, arguments)) == (question, "")


@pytest.mark.parametrize(
    "arguments", ["", "{}", '{"query": ""}', '{"query": 5}', '{"query', "[]", "null}", "{'query'"]
)
def test_arguments_that_cannot_are_answered_with_how_to_ask(arguments: str) -> None:
    question, refusal = read_call(ToolCall("1", SEARCH, arguments))
    assert (question, '{"query": "一个检索问题"}' in refusal) == ("", True)


@pytest.mark.parametrize("name", ["web_search", "", "search", "x" * 500])
def test_an_unknown_tool_is_named_and_not_called(name: str) -> None:
    question, refusal = read_call(ToolCall("1", name, '{"query": "甲"}'))
    assert question == ""
    assert f"“{name[:40]}”" in refusal


@given(
    st.text()
    | st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(st.text() | st.sampled_from(["query", "queries", "arguments"]), inner)
        ),
    ).map(json.dumps)
)
def test_no_text_breaks_the_reader_and_no_question_is_too_long(text: str) -> None:
    for question in [*read_queries(text), read_call(ToolCall("1", SEARCH, text))[0]]:
        assert len(question) <= MAX_QUESTION_CHARACTERS
        assert "\n" not in question
        question.encode()


REFUSALS = [
    ("registry.ollama.ai/library/x does not support tools", 400, UpstreamRefused),
    (
        '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
        400,
        UpstreamRefused,
    ),
    ("No endpoints found that support tool use.", 404, UpstreamRefused),
    ("extra fields not permitted tools", 422, UpstreamRefused),
    ("tools param requires --jinja flag", 500, UpstreamFailed),
    ("function calling is not enabled for this model", 400, UpstreamRefused),
]


@pytest.mark.parametrize(("detail", "status", "kind"), REFUSALS)
def test_servers_without_tools_are_told_by_their_words(
    detail: str, status: int, kind: type[UpstreamError]
) -> None:
    assert refuses_tools(kind("refused", status=status, detail=detail), is_first=False)


def test_a_refusal_that_names_nothing_may_mean_tools_only_while_nobody_knows() -> None:
    terse = UpstreamRefused("refused", status=400)
    assert refuses_tools(terse, is_first=True)
    assert not refuses_tools(terse, is_first=False)


@pytest.mark.parametrize(
    "error",
    [
        UpstreamRefused("unauthorized", status=401, detail="tools"),
        UpstreamRefused("refused", status=400, detail="maximum context length exceeded"),
        UpstreamRefused("not_found", status=404),
        UpstreamFailed("server_error", status=503, detail="tools"),
        UpstreamTimeout("call_timeout"),
        None,
    ],
)
def test_other_failures_do_not_mean_tools(error: UpstreamError | None) -> None:
    assert not refuses_tools(error, is_first=True)


def test_an_article_is_written_out_once_and_bounded() -> None:
    long = Evidence(1, "样例规范", "2.0.1", "长" * (MAX_TOLD_CHARACTERS + 5), {})
    bare = Evidence(2, "样例手册", "", "短", {})
    told: set[int] = set()
    first = evidence_text([long, bare], told)
    assert first == f"〔1〕 样例规范 2.0.1\n{'长' * MAX_TOLD_CHARACTERS}……（节略）\n\n〔2〕 样例手册\n短"
    assert evidence_text([long], told) == "〔1〕 样例规范 2.0.1（内容见前）"
    assert evidence_text([], told) == "没有检索到相关条文。"


def test_arguments_that_are_no_object_are_read_in_linear_time() -> None:
    assert_linear(lambda text: read_call(ToolCall("1", SEARCH, text + ">")), "字" * 20_000)
