"""The answer of a chat model out of its bytes: recordings in the manner of several servers, cut anywhere."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cg_rag.core.chat_stream import (
    ChatDelta,
    ChatParser,
    ChatResult,
)
from cg_rag.core.tool_calls import ToolCall
from cg_rag.core.upstream_errors import (
    UpstreamBroken,
    UpstreamEmpty,
    UpstreamError,
    UpstreamFailed,
    UpstreamFiltered,
    UpstreamRefused,
)

USAGE = {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}


def sse(*chunks: Any, end: str = "\n\n", space: str = " ") -> bytes:
    texts = [part if isinstance(part, str) else json.dumps(part, ensure_ascii=False) for part in chunks]
    return "".join(f"data:{space}{text}{end}" for text in texts).encode()


def choice(finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


def tool(
    index: int | None = None, id: str | None = None, name: str | None = None, arguments: Any = None
) -> Any:
    function = {"name": name, "arguments": arguments}
    entry: dict[str, Any] = {"index": index, "id": id, "function": function}
    return choice(tool_calls=[{key: value for key, value in entry.items() if value is not None}])


# Written for these tests after the documentation and the issue trackers; no server was called.
RECORDINGS: dict[str, tuple[bytes, ChatResult]] = {
    "deepseek": (
        b": keep-alive\n\n\n: keep-alive\n\n"
        + sse(
            choice(role="assistant", content=None, reasoning_content=""),
            choice(content=None, reasoning_content="先看"),
            choice(content=None, reasoning_content="第二条。"),
            choice(content='{"indices"', reasoning_content=None),
            choice(content=":[2]}", reasoning_content=None),
            {**choice("stop", content="", reasoning_content=None), "usage": USAGE},
            "[DONE]",
        ),
        ChatResult('{"indices":[2]}', "先看第二条。", (), USAGE, "stop"),
    ),
    "dashscope": (
        sse(
            choice(role="assistant", content=""),
            tool(0, "call_9f", "search_regulations", ""),
            tool(0, "", "", '{"query":"脚手'),
            tool(0, "", "", '架验收"}'),
            choice("tool_calls", content=""),
            {"choices": [], "usage": {**USAGE, "prompt_tokens_details": {"cached_tokens": 0}}},
            "[DONE]",
            space="",
        ),
        ChatResult(
            "",
            "",
            (ToolCall("call_9f", "search_regulations", '{"query":"脚手架验收"}'),),
            USAGE,
            "tool_calls",
        ),
    ),
    "vllm": (
        sse(
            choice(role="assistant", content=""),
            choice(reasoning="想"),
            choice(reasoning="一想"),
            choice(content="临边"),
            {**choice(content="防护🦺"), "usage": None},
            choice("stop", content="", stop_reason=None),
            {"choices": [], "usage": USAGE},
            "[DONE]",
        ),
        ChatResult("临边防护🦺", "想一想", (), USAGE, "stop"),
    ),
    "ollama": (
        sse(
            choice(role="assistant", content="", reasoning="嗯"),
            tool(0, "call_a", "look", '{"n":1}'),
            tool(0, "call_b", "look", '{"n":2}'),
            choice("tool_calls", role="assistant", content=""),
            "[DONE]",
        ),
        ChatResult(
            "",
            "嗯",
            (ToolCall("call_a", "look", '{"n":1}'), ToolCall("call_b", "look", '{"n":2}')),
            None,
            "tool_calls",
        ),
    ),
    "llama.cpp with think tags": (
        b"\xef\xbb\xbf"
        + sse(
            choice(role="assistant", content=None),
            choice(content="<thi"),
            choice(content="nk>\n看图"),
            choice(content="</think"),
            choice(content=">\n\n答"),
            choice(content="案\u2028。"),
            {**choice("length"), "usage": USAGE, "timings": {"predicted_ms": 1.5}},
            "[DONE]",
            end="\r\n\r\n",
        ),
        ChatResult("答案\u2028。", "看图", (), USAGE, "length"),
    ),
    "openai": (
        sse(
            {"choices": [], "prompt_filter_results": [{"prompt_index": 0}]},
            choice(role="assistant", content="", refusal=None),
            tool(0, "call_1", "a", ""),
            tool(0, arguments='{"x":'),
            tool(1, "call_2", "b", ""),
            tool(0, arguments="1}"),
            tool(1, arguments="{}"),
            choice("tool_calls"),
            {"choices": [], "usage": USAGE},
            "[DONE]",
            end="\r\r",
        ),
        ChatResult(
            "", "", (ToolCall("call_1", "a", '{"x":1}'), ToolCall("call_2", "b", "{}")), USAGE, "tool_calls"
        ),
    ),
    "no blank line at the end": (
        sse(choice(content="好")) + sse(choice("stop"), end=""),
        ChatResult("好", "", (), None, "stop"),
    ),
    "one piece, after blank lines": (
        b"\n\n\n"
        + json.dumps(
            {
                "choices": [
                    {
                        "index": 0,
                        "message": {"content": "想</think>\n好", "tool_calls": None},
                        "finish_reason": "stop",
                    }
                ],
                "usage": USAGE,
            }
        ).encode(),
        ChatResult("好", "想", (), USAGE, "stop"),
    ),
}


@dataclass
class Follower:
    """Somebody who reads every delta, as a mode does."""

    text: str = ""
    thinking: str = ""
    arguments: dict[int, str] | None = None
    result: ChatResult | None = None

    def follow(self, deltas: Iterable[ChatDelta]) -> None:
        for delta in deltas:
            assert self.result is None, "a delta after the last one"
            if delta.retracts_text:
                self.text, self.thinking = "", self.thinking + self.text
            self.text += delta.text
            self.thinking += delta.thinking
            if delta.tool_call is not None:
                known = self.arguments = self.arguments or {}
                piece = delta.tool_call
                known[piece.index] = known.get(piece.index, "") + piece.arguments
            self.result = delta.result


def read(data: bytes, *cuts: int, **options: bool) -> Follower:
    parser, follower = ChatParser(**options), Follower()
    places = [0, *sorted(cuts), len(data)]
    for start, end in itertools.pairwise(places):
        follower.follow(parser.feed(data[start:end]))
    follower.follow(parser.finish())
    return follower


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_recording_gives_its_answer(name: str) -> None:
    data, expected = RECORDINGS[name]
    assert read(data).result == expected


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_recording_gives_its_answer_byte_by_byte(name: str) -> None:
    data, expected = RECORDINGS[name]
    assert read(data, *range(len(data))).result == expected


def event_ends(data: bytes) -> list[int]:
    """Where a server cuts that sends each token by itself."""
    return [found.end() for found in re.finditer(rb"\n\n|\r\n\r\n", data)]


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_recording_gives_its_answer_event_by_event(name: str) -> None:
    data, expected = RECORDINGS[name]
    assert read(data, *event_ends(data)).result == expected


def deltas_of(data: bytes, cuts: list[int]) -> list[ChatDelta]:
    parser = ChatParser()
    places = [0, *cuts, len(data)]
    pieces = [data[start:end] for start, end in itertools.pairwise(places)]
    return [delta for piece in pieces for delta in parser.feed(piece)] + parser.finish()


def test_tokens_that_come_together_and_one_by_one_are_the_same_deltas() -> None:
    tokens = ["一", " 二", "<", "b", "`", "x", "三\n", "<think>", "四", "</think>", "五", "六"]
    data = sse(*(choice(content=token) for token in tokens), choice("stop", content="七"), "[DONE]")
    by_event = deltas_of(data, event_ends(data))
    assert by_event == deltas_of(data, [])
    assert [delta.text for delta in by_event][:2] == ["一", " 二"]


def test_what_stands_beside_the_text_of_a_token_is_read_too() -> None:
    call = [{"index": 0, "id": "1", "function": {"name": "look", "arguments": "{}"}}]
    data = sse(choice(content="好"), choice(content="的", tool_calls=call), choice("tool_calls"))
    for cuts in ([], event_ends(data)):
        result = read(data, *cuts).result
        assert result is not None
        assert (result.text, [one.name for one in result.tool_calls]) == ("好的", ["look"])
    refused = sse(choice(content="\n"), choice(content="\n", refusal="no"), choice("stop"))
    assert outcome(refused, event_ends(refused)) == outcome(refused, [])


@settings(max_examples=150)
@given(st.sampled_from(sorted(RECORDINGS)), st.data())
def test_for_any_cuts_what_was_streamed_is_the_answer(name: str, data: st.DataObject) -> None:
    recording, expected = RECORDINGS[name]
    follower = read(recording, *data.draw(st.lists(st.integers(0, len(recording)), max_size=12)))
    assert follower.result == expected
    assert (follower.text, follower.thinking) == (expected.text, expected.thinking)
    assert list((follower.arguments or {}).values()) in (
        [call.arguments for call in expected.tool_calls],
        [],
    )


def outcome(data: bytes, cuts: list[int], **options: bool) -> tuple[str, str, object]:
    follower = Follower()
    parser = ChatParser(**options)
    places = [0, *sorted(cuts), len(data)]
    try:
        for start, end in itertools.pairwise(places):
            follower.follow(parser.feed(data[start:end]))
        follower.follow(parser.finish())
    except UpstreamError as error:
        return follower.text, follower.thinking, (type(error), error.reason)
    assert isinstance(follower.result, ChatResult)
    assert (follower.text, follower.thinking) == (follower.result.text, follower.result.thinking)
    return follower.text, follower.thinking, follower.result


def fault(*chunks: Any, **options: bool) -> UpstreamError:
    with pytest.raises(UpstreamError) as raised:
        read(chunks[0] if isinstance(chunks[0], bytes) else sse(*chunks), **options)
    return raised.value


@pytest.mark.parametrize("name", [name for name in RECORDINGS if "piece" not in name])
def test_a_stream_cut_before_its_finish_reason_is_never_an_answer(name: str) -> None:
    data = RECORDINGS[name][0]
    marker = data.rindex(b"finish_reason")
    last_event = data.rindex(b"data:", 0, data.rindex(b'"stop"') if b'"stop"' in data else marker)
    for end in range(0, last_event, 7):
        error = fault(data[:end])
        assert isinstance(error, UpstreamBroken)
        assert error.reason in ("cut", "malformed")


def test_a_clean_end_without_finish_reason_is_a_cut_that_may_be_retried() -> None:
    error = fault(choice(content="只有一半"), "[DONE]")
    assert (error.reason, error.may_retry) == ("cut", True)
    assert fault(b"").reason == "cut"


@pytest.mark.parametrize("reason", ["content_filter", "sensitive"])
def test_a_filtered_answer_is_a_failure_not_an_empty_answer(reason: str) -> None:
    assert isinstance(fault(choice(content=None), choice(reason)), UpstreamFiltered)


def test_a_refusal_is_a_failure() -> None:
    assert isinstance(fault(choice(refusal="I cannot"), choice("stop")), UpstreamFiltered)


def test_an_overloaded_server_may_be_asked_again() -> None:
    error = fault(choice("insufficient_system_resource"))
    assert isinstance(error, UpstreamFailed)
    assert error.may_retry


@pytest.mark.parametrize("content", [None, "", " \n", "<think>想</think>", "<think>没想完"])
@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls"])
def test_an_answer_without_text_is_a_failure(content: str | None, reason: str) -> None:
    assert isinstance(fault(choice(content=content), choice(reason)), UpstreamEmpty)


def test_with_thinking_off_an_answer_in_the_field_for_thinking_is_the_answer() -> None:
    data = sse(choice(reasoning='{"indices":'), choice(reasoning="[1]}"), choice("stop"))
    follower = read(data, answers_in_thinking=True)
    assert follower.result is not None
    assert follower.result.text == follower.text == '{"indices":[1]}'
    for options in ({"answers_in_thinking": True, "thinking": True}, {}):
        assert isinstance(fault(data, **options), UpstreamEmpty)
    cut = sse(choice(reasoning="想到一半"), choice("length"))
    assert isinstance(fault(cut, answers_in_thinking=True), UpstreamEmpty)


@pytest.mark.parametrize(
    ("told", "kind", "may_retry"),
    [
        ({"error": {"message": "overloaded", "type": "server_error", "code": None}}, UpstreamFailed, True),
        ({"error": {"message": "x", "code": 429}}, UpstreamRefused, True),
        ({"error": {"message": "x", "code": "503"}}, UpstreamFailed, True),
        ({"error": {"message": "x", "type": "invalid_request_error"}}, UpstreamFailed, False),
        ({"error": {"code": "data_inspection_failed", "message": "x"}}, UpstreamFiltered, False),
        ({"error": "model crashed"}, UpstreamFailed, True),
        ({"object": "error", "message": "too long", "code": 400}, UpstreamRefused, False),
        ({"code": "InvalidParameter", "message": "x", "request_id": "1"}, UpstreamFailed, False),
    ],
)
def test_an_error_object_inside_of_a_good_stream_is_an_error(
    told: dict[str, Any], kind: type[UpstreamError], may_retry: bool
) -> None:
    for data in (sse(told), b"event: error\n" + sse(told), json.dumps(told).encode()):
        error = fault(data)
        assert (type(error), error.may_retry) == (kind, may_retry)


def test_what_came_before_an_error_is_handed_on_first_however_the_bytes_are_cut() -> None:
    data = sse(choice(content="一"), {"error": {"message": "x"}}, choice(content="二"))
    for cuts in ([], range(len(data))):
        text, _, failure = outcome(data, list(cuts))
        assert (text, failure) == ("一", (UpstreamFailed, "error_in_stream"))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"<!DOCTYPE html><html>login</html>", "html"),
        (b"\n \xef\xbb\xbf <html>", "html"),
        (b"data: {broken\n\n", "malformed"),
        (b"data: [1,2]\n\n", "malformed"),
        (b'{"choices":[', "malformed"),
        (b"[]", "malformed"),
        (b"just words\n\n", "cut"),
        (b"data: " + b"x" * (2 * 1024 * 1024) + b"\n\n", "too_large"),
        (b": " + b"x" * 100 + b"\n\n", "cut"),
        (b'data: {"choices":[' + b"{}," * 150_000 + b"{}]}\n\n", "too_large"),
        (b"data: " + b"[" * 5000 + b"\n\n", "malformed"),
    ],
)
def test_what_is_no_answer_is_named(data: bytes, reason: str) -> None:
    assert fault(data).reason == reason


def test_nothing_after_done_is_read() -> None:
    data = sse(choice(content="好"), choice("stop"), "[DONE]") + b"data: {broken\n\n"
    assert read(data).text == read(data, *range(len(data))).text == "好"


def test_content_in_parts_and_other_choices() -> None:
    parts = [{"type": "text", "text": "好"}, {"type": "image_url"}, 3, "的"]
    other = {"choices": [{"index": 1, "delta": {"content": "别的"}, "finish_reason": None}]}
    assert read(sse(other, choice(content=parts), choice("stop"))).text == "好的"


def test_usage_is_taken_from_where_it_comes_and_only_as_counts() -> None:
    odd = {"prompt_tokens": "9", "completion_tokens": True, "total_tokens": 2**60, "x": 1}
    result = read(sse(choice(content="好"), {**choice("stop"), "usage": odd})).result
    assert result is not None
    assert result.usage is None


@given(
    st.lists(
        st.sampled_from(["sk-canary", "-12", "Bearer ", "<think>", "</think>", "x", "sk-", "canary-12"]),
        max_size=10,
    ),
    st.booleans(),
    st.integers(1, 40),
)
def test_the_key_that_went_along_is_never_handed_on(said: list[str], in_thinking: bool, size: int) -> None:
    secret = "sk-canary-12"
    field = "reasoning_content" if in_thinking else "content"
    parts = [{"choices": [{"index": 0, "delta": {field: part}}]} for part in said]
    call = {"index": 0, "id": "1", "function": {"name": "look", "arguments": f'{{"q":"{secret}"}}'}}
    parts.append({"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": "stop"}]})
    body = "".join(f"data: {json.dumps(part)}\n\n" for part in parts).encode()
    parser = ChatParser(thinking=True, secret=secret)
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    deltas = [delta for piece in pieces for delta in parser.feed(piece)] + parser.finish()
    text, thinking = "", ""
    for delta in deltas:
        if delta.retracts_text:
            thinking, text = thinking + text, ""
        text, thinking = text + delta.text, thinking + delta.thinking
    result = deltas[-1].result
    assert result is not None
    assert (text, thinking) == (result.text, result.thinking)
    assert secret not in result.tool_calls[0].arguments
    # Text that was taken back stands in the thinking as it went out: two halves may meet there that never did before.
    assert any(delta.retracts_text for delta in deltas) or secret not in f"{text}|{thinking}"
