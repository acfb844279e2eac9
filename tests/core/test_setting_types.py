"""The types of settings one by one; test_config.py has them on their way through a configuration."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from cg_rag.core.setting_types import ArticleTemplate, QueryTemplate, is_endpoint
from cg_rag.index.embedder import Templates


@pytest.mark.parametrize(
    "text",
    [
        "http://127.0.0.1:8000/v1",
        "https://api.example.com/v1/embeddings",
        "http://embedding",
        "http://a_b-c.example./",
        "http://" + "a" * 63 + ".example",
        "HTTP://Example.org:443",
        "http://[::1]:8080/v1",
        "http://h/v1/%E4%B8%AD/x:y,z;a=b&c",
    ],
)
def test_endpoint_is_the_address_of_a_service(text: str) -> None:
    assert is_endpoint(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "h",
        "h:8000",
        "//h/v1",
        "http:h",
        "http://",
        "http://:8000/v1",
        "http:///v1",
        "ws://h",
        "file:///etc/passwd",
        "http://u@h",
        "http://u:p@h",
        "http://h/v1?a=b",
        "http://h/v1?",
        "http://h/v1#a",
        "http://h\\v1",
        "http://h:0x50",
        "http://h:65536",
        "http://[::1",
        "http://[x]/",
        "http://a..b/",
        "http://.a/",
        "http://a%20b/",
        "http://模型/v1",
        "http://h/模型",
        " http://h",
        "http://h\n",
        "http://h/\x00",
        "http://h/\ud800",
        "http://" + "a" * 254,
        "http://" + "a" * 64 + ".example",
        "http://example." + "a" * 64,
        "http://h/" + "a" * 2000,
    ],
)
def test_anything_else_is_no_endpoint(text: str) -> None:
    assert not is_endpoint(text)


def is_accepted(kind: Any, text: str) -> bool:
    try:
        TypeAdapter(kind).validate_python(text)
    except ValidationError:
        return False
    return True


def is_parsed(query: str, article: str) -> bool:
    try:
        Templates.parse(query, article)
    except ValueError:
        return False
    return True


HOLES = ["{text}", "{contents}", "{law_name}", "{short_law_name}", "{article_number}"]
ODD = ["{}", "{0}", "{text!r}", "{text:>9}", "{text.x}", "{contents[0]}", "{text:{contents}}", "{ text}"]
PIECES = st.sampled_from([*HOLES, *ODD, "{{", "}}", "{", "}", "问", "\n"])
TEXTS = st.lists(PIECES, max_size=5).map("".join)


@settings(max_examples=150)
@given(text=TEXTS)
def test_templates_are_those_that_the_embedder_takes(text: str) -> None:
    assert is_accepted(QueryTemplate, text) == is_parsed(text, "{contents}")
    assert is_accepted(ArticleTemplate, text) == is_parsed("{text}", text)


def test_hole_for_an_instruction_is_refused_because_no_setting_fills_it() -> None:
    assert is_parsed("{instruction}{text}", "{contents}")
    assert not is_accepted(QueryTemplate, "{instruction}{text}")


@pytest.mark.parametrize(
    "text", ["{text}" + "a" * 1995, "{text}\x00", "{text}\r", "{text}\u202e", "{text}\ud800"]
)
def test_template_is_short_and_visible(text: str) -> None:
    assert not is_accepted(QueryTemplate, text)
