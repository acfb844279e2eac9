from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from cg_rag.core.body import LongString
from cg_rag.core.errors import ERRORS, CgError, error_body
from cg_rag.core.requests import Query, RequestModel, TopK, parse_request


class Image(RequestModel):
    data: str
    turn: int | None = Field(None, ge=0)


class Sample(RequestModel):
    query: Query
    topk: TopK = 20
    images: list[Image] = Field(default_factory=list, max_length=2)


def message_of(body: dict[str, Any]) -> str:
    with pytest.raises(CgError) as caught:
        parse_request(Sample, body)
    assert caught.value.code == "invalid_request"
    return caught.value.message


def test_message_names_field_rule_and_value() -> None:
    assert message_of({"query": "a", "topk": 0}) == "topk 须为 1..200 的整数，收到 0。"
    assert message_of({"topk": 1}) == "缺少必填字段 query。"
    assert message_of({"query": "a" * 2001}) == (
        "query 须为 1..2000 个字符（去除首尾空白后）的字符串，收到 2001 个字符的字符串。"
    )


def test_nested_field_is_named_by_its_path() -> None:
    assert (
        message_of({"query": "a", "images": [{"data": "x"}, {"data": 5}]})
        == "images[1].data 须为字符串，收到 5。"
    )
    assert message_of({"query": "a", "images": [{}]}) == "缺少必填字段 images[0].data。"
    assert message_of({"query": "a", "images": ["x"]}) == "images[0] 须为对象，收到 1 个字符的字符串。"
    assert message_of({"query": "a", "images": {}}) == "images 须为 0..2 项的数组，收到对象。"


def test_optional_field_says_that_null_is_fine() -> None:
    text = message_of({"query": "a", "images": [{"data": "x", "turn": "1"}]})
    assert text == "images[0].turn 须为不小于 0 的整数或 null，收到 1 个字符的字符串。"


def test_value_of_the_caller_is_never_quoted_at_length() -> None:
    assert "secret" not in message_of({"query": "a", "topk": "secret" * 10})


def test_text_lifted_out_of_the_body_is_reported_by_its_size() -> None:
    long = LongString((b"a" * 70000,), 70000)
    assert "收到 70000 字节的字符串" in message_of({"query": long})


def test_query_is_trimmed_and_counted_in_characters() -> None:
    assert parse_request(Sample, {"query": "　脚手架 \n"}).query == "脚手架"
    assert len(parse_request(Sample, {"query": "𠀀" * 2000}).query) == 2000


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200)
@given(st.fixed_dictionaries({}, optional={"query": json_values, "topk": json_values, "images": json_values}))
def test_any_json_object_is_a_request_or_one_chinese_sentence(body: dict[str, Any]) -> None:
    try:
        request = parse_request(Sample, body)
    except CgError as error:
        assert error.code == "invalid_request"
        assert error.message.endswith("。")
        assert len(error.message) < 300
        return
    assert 1 <= request.topk <= 200
    assert type(request.topk) is int
    assert 1 <= len(request.query) <= 2000


def test_code_that_the_catalogue_lacks_cannot_be_constructed() -> None:
    with pytest.raises(KeyError):
        CgError("no_such_code")


def test_error_body_has_always_the_same_keys() -> None:
    for code in ERRORS:
        body = error_body(CgError(code), "req_1")
        assert list(body) == ["request_id", "error"]
        assert body["error"]["code"] == code
        assert body["error"]["message"]
        assert body["error"]["details"] == {}
