from __future__ import annotations

import json
from typing import Any

import pytest

from cg_rag.core.body import BodyLexer
from cg_rag.core.errors import CgError
from cg_rag.core.json_text import LongString
from cg_rag.core.requests import RequestModel, parse_request
from cg_rag.core.vision_request import (
    AnswerRequest,
    PhotoRequest,
    SearchingRequest,
    history_messages,
    history_receipt,
)

IMAGES = [{"data": "QUJD"}]
TURN = {"query": "问", "answer": "答", "turn_index": 0}
MODELS = [PhotoRequest, AnswerRequest, SearchingRequest]


def body(**fields: Any) -> dict[str, Any]:
    return {"images": IMAGES} | fields


def refusal(model: type[RequestModel], fields: dict[str, Any]) -> CgError:
    with pytest.raises(CgError) as caught:
        parse_request(model, fields)
    assert caught.value.code == "invalid_request"
    return caught.value


def test_only_pictures_are_needed() -> None:
    request = parse_request(SearchingRequest, body())
    assert request.question == "请检测图中的安全隐患"
    assert (request.history, request.enable_thinking) == ([], None)
    assert (request.max_search_rounds, request.topk) == (None, None)
    assert "scope" not in request.model_fields_set
    assert (request.images[0].mime_type, request.images[0].source_turn_index) == (None, None)


@pytest.mark.parametrize("question", ["", "  \n"])
def test_an_empty_question_is_the_default_one(question: str) -> None:
    assert parse_request(PhotoRequest, body(question=question)).question == "请检测图中的安全隐患"


def test_a_question_is_trimmed_and_may_have_2000_characters() -> None:
    assert parse_request(PhotoRequest, body(question=" " + "问" * 2000 + "\n")).question == "问" * 2000
    assert "0..2000 个字符" in refusal(PhotoRequest, body(question="问" * 2001)).message


def test_everything_that_may_be_null_may() -> None:
    fields = {"enable_thinking": None, "max_search_rounds": None, "topk": None}
    images = [{"data": "QUJD", "mime_type": None, "source_turn_index": None}]
    assert parse_request(SearchingRequest, {"images": images} | fields)


def test_unknown_fields_are_ignored_at_every_depth() -> None:
    fields = body(
        images=[{"data": "QUJD", "url": "http://x"}], history=[TURN | {"id": 1}], model="gpt", endpoint="x"
    )
    request = parse_request(AnswerRequest, fields)
    assert not hasattr(request, "model")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "缺少必填字段 images"),
        ({"images": None}, "images 须为至少 1 项的数组，收到 null"),
        ({"images": []}, "images 须为至少 1 项的数组，收到 0 项的数组"),
        ({"images": "QUJD"}, "images 须为至少 1 项的数组"),
        ({"images": {"data": "QUJD"}}, "images 须为"),
        ({"images": ["QUJD"]}, "images[0] 须为对象"),
        ({"images": [None]}, "images[0] 须为对象"),
        ({"images": [{}]}, "缺少必填字段 images[0].data"),
        ({"images": [{"data": None}]}, "images[0].data 须为字符串，收到 null"),
        ({"images": [{"data": 1}]}, "images[0].data 须为字符串，收到 1"),
        ({"images": [{"data": ["QUJD"]}]}, "images[0].data 须为字符串"),
        ({"images": [*IMAGES, {"data": "A", "mime_type": 1}]}, "images[1].mime_type 须为字符串或 null"),
        (
            {"images": [{"data": "A", "source_turn_index": -1}]},
            "source_turn_index 须为不小于 0 的整数或 null，收到 -1",
        ),
        ({"images": [{"data": "A", "source_turn_index": True}]}, "source_turn_index 须为"),
        ({"images": [{"data": "A", "source_turn_index": 1.0}]}, "source_turn_index 须为"),
        ({"question": None}, "question 须为"),
        ({"question": 5}, "question 须为"),
        ({"enable_thinking": "yes"}, "enable_thinking 须为布尔值 true 或 false 或 null"),
        ({"enable_thinking": 1}, "enable_thinking 须为"),
        ({"history": None}, "history 须为 0..6 项的数组"),
        ({"history": [TURN] * 7}, "history 须为 0..6 项的数组，收到 7 项的数组"),
        ({"history": [{"query": "问", "answer": "答"}]}, "缺少必填字段 history[0].turn_index"),
        ({"history": [{"query": "问", "turn_index": 0}]}, "缺少必填字段 history[0].answer"),
        ({"history": [TURN | {"turn_index": -1}]}, "history[0].turn_index 须为不小于 0 的整数，收到 -1"),
        ({"history": [TURN | {"query": "问" * 20_001}]}, "history[0].query 须为 0..20000 个字符"),
        ({"history": [TURN | {"answer": None}]}, "history[0].answer 须为"),
        ({"scope": None}, "scope 须为字符串"),
        ({"max_search_rounds": 0}, "max_search_rounds 须为 1..3 的整数或 null，收到 0"),
        ({"max_search_rounds": 4}, "max_search_rounds 须为 1..3"),
        ({"max_search_rounds": True}, "max_search_rounds 须为 1..3"),
        ({"topk": 0}, "topk 须为 1..200 的整数或 null"),
        ({"topk": 201}, "topk 须为 1..200"),
        ({"topk": 12.0}, "topk 须为 1..200"),
    ],
)
def test_wrong_types_and_ranges_name_the_field_the_rule_and_the_value(
    fields: dict[str, Any], words: str
) -> None:
    given = fields if "images" in fields or not fields else body(**fields)
    assert words in refusal(SearchingRequest, given).message


@pytest.mark.parametrize("model", MODELS)
def test_too_many_pictures_are_left_to_the_check_of_pictures(model: type[PhotoRequest]) -> None:
    assert len(parse_request(model, {"images": IMAGES * 9}).images) == 9


def test_long_texts_that_were_lifted_out_are_texts_again_and_pictures_stay_lifted() -> None:
    escaped = "\\u95ee" * 20_000
    text = (
        '{"images":[{"data":"%s","mime_type":"%s"}],"history":[{"query":"%s","answer":"%s","turn_index":3}]}'
    )
    lexer = BodyLexer()
    lexer.feed((text % ("A" * 70_000, "b" * 70_000, escaped, escaped)).encode())
    request = parse_request(AnswerRequest, lexer.finish().value)
    assert isinstance(request.images[0].data, LongString)
    assert isinstance(request.images[0].mime_type, LongString)
    assert request.history[0].query == request.history[0].answer == "问" * 20_000


def test_a_lifted_text_that_is_too_long_is_refused_by_its_size() -> None:
    lexer = BodyLexer()
    lexer.feed(json.dumps(body(history=[TURN | {"query": "a" * 90_000}])).encode())
    assert "收到 90000 字节的字符串" in refusal(AnswerRequest, lexer.finish().value).message


def test_turns_become_alternating_messages_in_the_order_given() -> None:
    history = [
        {"query": "一", "answer": "二 [cite^1]", "turn_index": 4},
        {"query": "", "answer": "", "turn_index": 1},
    ]
    request = parse_request(AnswerRequest, body(history=history))
    messages = history_messages(request.history)
    assert [message["role"] for message in messages] == ["user", "assistant"] * 2
    assert [message["content"] for message in messages] == ["一", "二 [cite^1]", "（无）", "（无）"]


def test_the_receipt_counts_turns_and_is_absent_without_any() -> None:
    request = parse_request(AnswerRequest, body(history=[TURN, TURN]))
    assert history_receipt(request.history) == {"history_turn_count": 2}
    assert history_receipt([]) == {}


@pytest.mark.parametrize("model", MODELS)
def test_every_field_is_described_in_chinese_and_pictures_are_strings_in_the_schema(
    model: type[RequestModel],
) -> None:
    schema = model.model_json_schema()
    for node in (schema, *schema["$defs"].values()):
        for name, field in node["properties"].items():
            assert any("\u4e00" <= character <= "\u9fff" for character in field["description"]), name
    item = schema["$defs"]["ImageItem"]["properties"]
    assert item["data"]["type"] == "string"
    assert {option["type"] for option in item["mime_type"]["anyOf"]} == {"string", "null"}
