"""The reader of chat answers and what no server should send: any chunks, any bytes, without end."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cg_rag.core.chat_stream import MAX_ANSWER_BYTES, MAX_EVENT_BYTES, ChatParser
from cg_rag.core.upstream_errors import UpstreamError
from tests.core.test_chat_stream import choice, event_ends, outcome, sse, tool

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from(["stop", "好", "<think>", "</think>", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "delta",
                    "message",
                    "content",
                    "finish_reason",
                    "index",
                    "tool_calls",
                    "function",
                    "name",
                    "arguments",
                    "id",
                    "usage",
                    "error",
                    "reasoning",
                    "code",
                    "prompt_tokens",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
DELTAS = st.dictionaries(
    st.sampled_from(["content", "reasoning_content", "tool_calls", "role", "refusal"]), JSON, max_size=3
)
CHUNKS = JSON | st.builds(
    lambda delta, reason: {"choices": [{"delta": delta, "finish_reason": reason}]},
    DELTAS,
    st.none() | st.sampled_from(["stop", "length", "content_filter", "tool_calls"]),
)


@settings(max_examples=300)
@given(st.lists(CHUNKS, max_size=6), st.data(), st.booleans())
def test_any_chunks_give_an_answer_or_an_upstream_error_however_cut(
    chunks: list[Any], data: st.DataObject, thinking: bool
) -> None:
    stream = sse(*chunks)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8))
    whole = outcome(stream, [], thinking=thinking)
    assert outcome(stream, cuts, thinking=thinking) == whole
    assert outcome(stream, event_ends(stream), thinking=thinking) == whole


@settings(max_examples=300)
@given(
    st.binary(max_size=200)
    | st.lists(
        st.sampled_from(
            [
                b"data:",
                b'data: {"choices":[{"delta":{"content":"a\xff"}}]}\n\n',
                b"data: \xff\n\n",
                b"event: error\n",
                b"\n",
                b"\r",
                b"{",
                b"}",
                b"[DONE]",
                b'"choices"',
                b"\xff",
                b"null",
                b":",
            ]
        ),
        max_size=20,
    ).map(b"".join),
    st.data(),
)
@example(b"data: null\n\n", None)
def test_any_bytes_give_an_answer_or_an_upstream_error(data: bytes, draw: st.DataObject | None) -> None:
    cuts = draw.draw(st.lists(st.integers(0, len(data)), max_size=8)) if draw else []
    whole = outcome(data, [])
    assert outcome(data, cuts) == whole
    assert outcome(data, event_ends(data)) == whole


def fed_until_refused(block: bytes) -> int:
    """How many bytes a parser took of a stream that never ends."""
    parser, fed = ChatParser(), 0
    try:
        while True:
            parser.feed(block)
            fed += len(block)
    except UpstreamError:
        return fed


@pytest.mark.parametrize(
    "event",
    [
        b": keep-alive\n\n",
        b"\n",
        b"data: x",
        sse(choice(content="脚手架验收" * 40)),
        sse(tool(0, "x", "y", "z" * 100)),
        b'{"choices":[',
        b"\xef\xbb\xbf ",
    ],
)
def test_memory_is_bounded_whatever_comes_for_ever(event: bytes) -> None:
    block = event * (64 * 1024 // len(event) + 1)
    tracemalloc.start()
    try:
        fed = fed_until_refused(block)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert fed <= MAX_ANSWER_BYTES
    assert peak < 6 * MAX_ANSWER_BYTES


def test_one_event_is_held_to_its_limit() -> None:
    assert fed_until_refused(b"data: " + b"x" * 65530) <= MAX_EVENT_BYTES
