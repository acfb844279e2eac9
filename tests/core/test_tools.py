"""Tools without a server: schemas, arguments, envelopes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from cg_rag.core.body import LongString
from cg_rag.core.errors import ERRORS, CgError
from cg_rag.core.requests import RequestModel
from cg_rag.core.tools import Tool, call_tool, failed, make_input_schema, succeeded

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


class Inner(RequestModel):
    """Not for callers."""

    title: str = Field(description="题目")


class Request(RequestModel):
    query: str = Field(min_length=1, description="of HTTP")
    scope: str = Field("", description="of HTTP")
    items: list[Inner] = Field(default_factory=list, description="of HTTP")
    unoffered: int = 3


SCHEMA = make_input_schema(
    Request, {"query": "问题", "scope": "范围", "items": "各项"}, {"scope": ["full", "usual"]}
)


def test_schema_has_the_fields_named_with_their_own_words_and_the_bounds_of_the_model() -> None:
    assert list(SCHEMA["properties"]) == ["query", "scope", "items"]
    assert SCHEMA["properties"]["query"] == {"type": "string", "minLength": 1, "description": "问题"}
    assert SCHEMA["properties"]["scope"]["enum"] == ["full", "usual"]
    assert SCHEMA["required"] == ["query"]
    assert SCHEMA["additionalProperties"] is False


def test_schema_follows_references_and_keeps_a_field_that_is_called_title() -> None:
    assert SCHEMA["properties"]["items"]["items"] == {
        "type": "object",
        "properties": {"title": {"type": "string", "description": "题目"}},
        "required": ["title"],
    }


def test_schema_of_a_tool_without_arguments_is_an_empty_object() -> None:
    assert make_input_schema(None, {}, {}) == {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }


def test_field_that_the_model_lacks_is_a_mistake_of_the_table() -> None:
    with pytest.raises(KeyError):
        make_input_schema(Request, {"topk": "条数"}, {})


def call(name: str, arguments: object) -> dict[str, Any]:
    async def run(given: dict[str, Any], _request_id: str, report: Any) -> dict[str, Any]:
        report("在做")
        return {"ok": True, "given": sorted(given)}

    tool = Tool("echo", "回声", "原样返回", SCHEMA, run)
    return asyncio.run(call_tool({"echo": tool}, name, arguments, "req-1", lambda label: None))


@given(name=st.text(), arguments=JSON)
def test_whatever_is_called_with_whatever_gets_an_envelope(name: str, arguments: Any) -> None:
    for called in (name, "echo"):
        envelope = call(called, arguments)
        json.dumps(envelope)
        assert {"ok", "message", "data"} <= set(envelope)
        assert envelope["ok"] is ("error" not in envelope) is ("operation_ok" in envelope)
        if not envelope["ok"]:
            assert envelope["error"]["code"] == ("invalid_request" if called == "echo" else "not_found")
            assert envelope["message"] == envelope["error"]["message"]
            assert len(envelope["message"]) < 400


def test_picture_in_place_of_arguments_is_told_by_its_size() -> None:
    assert "收到 70000 字节的字符串" in call("echo", LongString((b"A" * 70_000,), 70_000))["message"]


def test_operation_failed_is_what_its_payload_says() -> None:
    assert succeeded({"ok": False})["operation_ok"] is False
    assert succeeded({"answer": 1})["operation_ok"] is True


@pytest.mark.parametrize("code", ERRORS)
def test_every_code_has_an_envelope_and_only_wrong_arguments_name_the_tool(code: str) -> None:
    error = CgError(code, "不行", {"field": "x"})
    envelope = failed("echo", error)
    is_argument = code == "invalid_request"
    assert envelope["message"] == ("echo：不行" if is_argument else "不行")
    assert envelope["error"]["details"] == ({"tool": "echo"} if is_argument else {}) | {"field": "x"}
    assert error.details == {"field": "x"}
