"""The table of providers, and the request bodies that come of it."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from cg_rag.core.chat_request import ChatRequest, Wording, build_body, refused_feature
from cg_rag.core.providers import (
    PROVIDERS,
    ProviderName,
    StructuredOutput,
    find_provider,
    structured_fields,
    thinking_fields,
    weaker,
    without_keywords,
)

SCHEMA = {
    "type": "object",
    "properties": {
        "indices": {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "maxItems": 2}
    },
}
LEAN = without_keywords(SCHEMA, frozenset({"uniqueItems"}))


@pytest.mark.parametrize(
    ("endpoint", "provider"),
    [
        ("https://api.deepseek.com/v1", "deepseek"),
        ("https://API.DeepSeek.com", "deepseek"),
        ("https://dashscope.aliyuncs.com/compatible-mode/v1", "dashscope"),
        ("https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "dashscope"),
        ("https://api.openai.com/v1", "openai"),
        ("http://10.0.0.7:11434/v1", "ollama"),
        ("http://gpu:30000/v1", "sglang"),
        ("http://gpu:9997/v1", "xinference"),
        ("http://gpu:8000/v1", "openai"),
        ("https://api.deepseek.com.example.org/v1", "openai"),
    ],
)
def test_auto_guesses_by_host_and_port(endpoint: str, provider: str) -> None:
    assert find_provider("auto", endpoint).name == provider


@pytest.mark.parametrize("name", [name for name in get_args(ProviderName) if name != "auto"])
def test_a_named_provider_is_taken_whatever_the_endpoint(name: ProviderName) -> None:
    assert find_provider(name, "https://api.deepseek.com/v1").name == name


def test_every_name_but_auto_has_a_row() -> None:
    assert set(PROVIDERS) == set(get_args(ProviderName)) - {"auto"}


def body_for(name: str, thinking: bool = False, streamed: bool = False, **request: Any) -> dict[str, Any]:
    provider = PROVIDERS[name]
    wording = Wording(
        provider, "m", provider.thinking_control, thinking, streamed, provider.structured_output, True
    )
    body = build_body(ChatRequest([{"role": "user", "content": "好"}], **request), wording)
    assert (body.pop("model"), body.pop("messages")) == ("m", [{"role": "user", "content": "好"}])
    return body


JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": LEAN}}


@pytest.mark.parametrize(
    ("name", "off", "on", "structured"),
    [
        ("openai", {}, {}, {"response_format": JSON_SCHEMA}),
        (
            "deepseek",
            {"thinking": {"type": "disabled"}},
            {"thinking": {"type": "enabled"}},
            {"response_format": {"type": "json_object"}},
        ),
        (
            "dashscope",
            {"enable_thinking": False},
            {"enable_thinking": True},
            {"response_format": JSON_SCHEMA},
        ),
        (
            "vllm",
            {"chat_template_kwargs": {"enable_thinking": False}},
            {"chat_template_kwargs": {"enable_thinking": True}},
            {"response_format": JSON_SCHEMA},
        ),
        ("ollama", {"reasoning_effort": "none"}, {"reasoning_effort": "medium"}, None),
        (
            "xinference",
            {"enable_thinking": False},
            {"enable_thinking": True},
            {"response_format": JSON_SCHEMA},
        ),
    ],
)
def test_a_provider_is_told_in_its_own_words(
    name: str, off: dict[str, Any], on: dict[str, Any], structured: dict[str, Any] | None
) -> None:
    assert body_for(name) == {"stream": False, **off}
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    assert body_for(name, thinking=True, streamed=True) == {**usage, **on}
    if structured is not None:
        assert body_for(name, schema=SCHEMA) == {"stream": False, **off, **structured}


def test_a_request_may_say_the_last_word() -> None:
    tools = [{"type": "function", "function": {"name": "look"}}]
    body = body_for(
        "openai", tools=tools, max_tokens=5, temperature=0.0, extra={"tool_choice": "none", "stream": 1}
    )
    expected = {"stream": 1, "max_tokens": 5, "temperature": 0.0, "tools": tools, "tool_choice": "none"}
    assert body == expected


def test_every_way_to_constrain_ends_at_none() -> None:
    for mode in get_args(StructuredOutput):
        steps, seen = 0, mode
        while (lower := weaker(seen)) is not None:
            seen, steps = lower, steps + 1
        assert seen == "none"
        assert steps <= 3
        assert bool(structured_fields(mode, SCHEMA)) == (mode != "none")


def test_thinking_that_cannot_be_switched_is_not_mentioned() -> None:
    assert thinking_fields("none", True) == thinking_fields("none", False) == {}


@pytest.mark.parametrize(
    ("detail", "feature"),
    [
        ("This response_format type is unavailable now", "structured_output"),
        ("'json_schema' is not supported by this model", "structured_output"),
        ("Unrecognized request argument supplied: guided_json", "structured_output"),
        ("body response_format extra fields not permitted", "structured_output"),
        ("Unknown parameter: 'stream_options'", "stream_options"),
        ("'messages' must contain the word 'json' in some form, to use 'response_format'", None),
        ("maximum context length is 4096 tokens", None),
        ("", None),
    ],
)
def test_a_refusal_is_read_for_what_can_be_left_out(detail: str, feature: str | None) -> None:
    assert refused_feature(detail) == feature
