from __future__ import annotations

from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cg_rag.core.errors import ERRORS, CgError
from cg_rag.core.events import Agent, AnswerReset, Event, Final, Progress, Retrieval, Token, Trace
from cg_rag.core.sse import (
    EVENT_NAMES,
    KEEPALIVE,
    ServerSentEvent,
    SseDecoder,
    SseTooLarge,
    encode,
    encode_error,
)
from tests.sse_checker import StreamChecker

FRAMES = {
    "progress": (
        Progress("retrieval", "正在检索", "running"),
        'event: progress\ndata: {"stage":"retrieval","label":"正在检索","status":"running"}\n\n',
    ),
    "heartbeat": (
        Progress("vision", "正在识别", "running", heartbeat=True),
        'event: progress\ndata: {"stage":"vision","label":"正在识别","status":"running","heartbeat":true}\n\n',
    ),
    "retrieval": (
        Retrieval({"num_docs": 1, "retrieval_docs": [{"law_name": "样例规范"}], "cache": {"hit": False}}),
        'event: retrieval\ndata: {"num_docs":1,"retrieval_docs":[{"law_name":"样例规范"}],"cache":{"hit":false}}\n\n',
    ),
    "token": (
        Token("answer", "脚手架🦺\n1. [cite^2]"),
        'event: token\ndata: {"channel":"answer","text":"脚手架🦺\\n1. [cite^2]"}\n\n',
    ),
    "trace": (
        Trace("图片接收", "done", "已接收并校验 1 张图片。"),
        'event: trace\ndata: {"name":"图片接收","status":"done","summary":"已接收并校验 1 张图片。"}\n\n',
    ),
    "agent": (
        Agent("vision.search.1", "search", "running", "检索"),
        'event: agent\ndata: {"event_id":"vision.search.1","kind":"search","status":"running","label":"检索"}\n\n',
    ),
    "answer_reset": (AnswerReset("level"), 'event: answer_reset\ndata: {"reason":"level"}\n\n'),
    "final": (Final({"ok": True, "answer": "无"}), 'event: final\ndata: {"ok":true,"answer":"无"}\n\n'),
}


@pytest.mark.parametrize(("event", "frame"), FRAMES.values(), ids=FRAMES.keys())
def test_every_kind_of_event_has_its_frame(event: Event, frame: str) -> None:
    assert encode(event).decode() == frame


def test_the_names_are_those_of_the_contract() -> None:
    assert set(EVENT_NAMES.values()) == {
        "progress", "retrieval", "token", "trace", "agent", "answer_reset", "final",
    }  # fmt: skip


def test_an_error_frame_holds_its_content_beside_and_under_error() -> None:
    frame = encode_error(CgError("invalid_request", "字段有误。", {"field": "topk"}), "req_1")
    assert frame.decode() == (
        'event: error\ndata: {"request_id":"req_1","code":"invalid_request","message":"字段有误。",'
        '"details":{"field":"topk"},"error":{"code":"invalid_request","message":"字段有误。",'
        '"details":{"field":"topk"}}}\n\n'
    )


# Everything that some decoder or other takes for the end of a line or of a text.
TROUBLE = (
    "\r\n|\n\n|\r|\x00|\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029|\ufeff|data: x\n\nevent: final\ndata: {}\n\n|: c"
)


@pytest.mark.parametrize("text", [TROUBLE, *TROUBLE.split("|"), "]]>\x7f\x1b[31m", "\U0010ffff\ufffe"])
def test_no_text_of_a_token_can_forge_a_frame_or_split_one(text: str) -> None:
    body = encode(Token("answer", text)) + encode(Final({"answer": text}))
    assert body.count(b"\n\n") == 2
    assert b"\r" not in body
    checked = StreamChecker(body)
    assert checked.answer_text == text


def test_a_lone_surrogate_is_refused_and_not_sent_as_something_else() -> None:
    with pytest.raises(TypeError):
        encode(Token("answer", "\ud83e"))


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(
    [TROUBLE, *TROUBLE.split("|")]
)
JSON_OBJECTS = st.dictionaries(
    TEXTS,
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXTS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
        max_leaves=6,
    ),
    max_size=3,
)
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(Progress, TEXTS, TEXTS, st.sampled_from(["running", "done"]), st.booleans()),
    st.builds(Retrieval, JSON_OBJECTS),
    st.builds(Token, st.sampled_from(["answer", "reasoning"]), TEXTS),
    st.builds(Trace, TEXTS, TEXTS, TEXTS),
    st.builds(Agent, TEXTS, st.sampled_from(["observation", "search", "retry", "final"]), TEXTS, TEXTS),
    st.builds(AnswerReset, TEXTS),
    st.builds(Final, JSON_OBJECTS),
)


def fields_of(event: Event) -> dict[str, Any]:
    if isinstance(event, (Final, Retrieval)):
        return event.payload
    fields = {name: getattr(event, name) for name in event.__dataclass_fields__}
    return fields if fields.get("heartbeat") is not False else {**fields, "heartbeat": None}


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({place % (len(data) + 1) for place in cuts} | {0, len(data)})
    return [data[begin:end] for begin, end in pairwise(places)]


def decode(pieces: list[bytes], **options: int) -> tuple[list[ServerSentEvent], ServerSentEvent | None]:
    decoder = SseDecoder(**options)
    events = [event for piece in pieces for event in decoder.feed(piece)]
    return events, decoder.finish()


@given(st.lists(EVENTS, max_size=6), st.lists(st.integers(0, 10**6), max_size=20), st.booleans())
@settings(max_examples=100)
def test_any_events_come_back_from_their_bytes_however_they_were_cut(
    events: list[Event], cuts: list[int], with_heartbeats: bool
) -> None:
    beat = KEEPALIVE if with_heartbeats else b""
    body = beat + b"".join(encode(event) + beat for event in events)
    decoded, unfinished = decode(cut(body, cuts))
    assert unfinished is None
    assert [event.event for event in decoded] == [EVENT_NAMES[type(event)] for event in events]
    for event, found in zip(events, decoded, strict=True):
        data = orjson.loads(found.data)
        data.setdefault("heartbeat", None) if isinstance(event, Progress) else None
        assert data == fields_of(event)


@given(st.sampled_from(sorted(ERRORS)), TEXTS, JSON_OBJECTS)
@settings(max_examples=50)
def test_any_error_is_one_well_formed_terminal_event(
    code: str, message: str, details: dict[str, Any]
) -> None:
    checked = StreamChecker(encode_error(CgError(code, message or "无", details), "req_1"))
    assert checked.error_code == code
    assert checked.terminal.data["details"] == details


# --- the decoder -------------------------------------------------------------------------------------------------

M = "message"
# id -> (bytes, [(event, data)]). The rules are those of the WHATWG, 9.2.6.
DECODED: dict[str, tuple[bytes, list[tuple[str, str]]]] = {
    "line feeds": (b"event: token\ndata: 1\n\n", [("token", "1")]),
    "CRLF": (b"event: token\r\ndata: 1\r\n\r\n", [("token", "1")]),
    "carriage returns": (b"event: token\rdata: 1\r\rdata: 2\r\r", [("token", "1"), (M, "2")]),
    "all three mixed": (b"data:1\r\ndata:2\rdata:3\n\r\n", [(M, "1\n2\n3")]),
    "CR then LF is one end, LF then CR two": (b"data:1\n\rdata:2\r\n\r\n", [(M, "1"), (M, "2")]),
    "BOM at the beginning": (b"\xef\xbb\xbfdata: 1\n\n", [(M, "1")]),
    "BOM twice": (b"\xef\xbb\xbf\xef\xbb\xbfdata: 1\n\ndata: 2\n\n", [(M, "2")]),
    "BOM later is text": (
        b"data: 1\n\n\xef\xbb\xbfdata: 2\n\ndata: \xef\xbb\xbf3\n\n",
        [(M, "1"), (M, "\ufeff3")],
    ),
    "BOM after a blank line": (b"\n\xef\xbb\xbfdata: 1\n\ndata: 2\n\n", [(M, "2")]),
    "comments between lines": (b":\n: keepalive\n\n:\x00\ndata: 1\n:x\ndata: 2\n\n", [(M, "1\n2")]),
    "a long comment": (b":" + b"x" * 5000 + b"\ndata: 1\n\n", [(M, "1")]),
    "keepalives alone": (KEEPALIVE * 3, []),
    "empty data is an event": (b"data:\n\ndata\n\ndata: \n\n", [(M, "")] * 3),
    "two empty lines of data": (b"data\ndata\n\n", [(M, "\n")]),
    "a name without data is forgotten": (b"event: lost\n\ndata: 1\n\n", [(M, "1")]),
    "an empty name is message": (b"event:\ndata: 1\n\nevent\ndata: 2\n\n", [(M, "1"), (M, "2")]),
    "the last name counts": (b"event: a\nevent: b\ndata: 1\n\n", [("b", "1")]),
    "one space goes and no more": (b"data:  1\ndata:\t2\ndata:3 \n\n", [(M, " 1\n\t2\n3 ")]),
    "only the first colon": (b"data: a:b: c\n\n", [(M, "a:b: c")]),
    "names are exact": (b"Data: 1\ndata : 2\n data: 3\ndataset: 4\ndata: 5\n\n", [(M, "5")]),
    "pretty JSON": (b'data: {\ndata: "a": 1\ndata: }\n\n', [(M, '{\n"a": 1\n}')]),
    "NUL is text": (b"data: \x00\n\n", [(M, "\x00")]),
    "separators of str.splitlines are text": (
        "data: \x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029|\n\n".encode(),
        [(M, "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029|")],
    ),
    "Chinese and astral text": ("event: 事\ndata: 脚手架🦺\n\n".encode(), [("事", "脚手架🦺")]),
    "bytes that are no UTF-8": (b"data: a\xff\xc3(b\xe8\x84\n\n", [(M, "a\ufffd\ufffd(b\ufffd")]),
    "a terminator of OpenAI": (b'data: {"a":1}\n\ndata: [DONE]\n\n', [(M, '{"a":1}'), (M, "[DONE]")]),
    "a line of 300 kB": (b"data: " + b"y" * 300_000 + b"\n\n", [(M, "y" * 300_000)]),
    "nothing": (b"", []),
    "blank lines": (b"\n\r\n\r\r\n", []),
}


@pytest.mark.parametrize(("body", "expected"), DECODED.values(), ids=DECODED.keys())
def test_the_decoder_keeps_the_rules_in_one_piece_byte_by_byte_and_cut_anywhere(
    body: bytes, expected: list[tuple[str, str]]
) -> None:
    halves = [[body[:place], body[place:]] for place in range(min(len(body), 120))]
    single = [[body[place : place + 1] for place in range(len(body))]]
    for pieces in [[body], *single, *halves]:
        events, unfinished = decode(pieces)
        assert [(event.event, event.data) for event in events] == expected
        assert unfinished is None


def test_an_empty_piece_between_cr_and_lf_changes_nothing() -> None:
    events, _ = decode([b"data: 1\r", b"", b"\ndata: 2\r\n\r", b"", b"\n"])
    assert [event.data for event in events] == ["1\n2"]


def test_an_event_ended_by_cr_does_not_wait_for_the_byte_after_it() -> None:
    assert SseDecoder().feed(b"data: 1\r\r") == [ServerSentEvent("message", "1")]


def test_ids_and_retry_times_stay_for_later_events() -> None:
    body = b"id: 7\nretry: 3000\ndata: 1\n\ndata: 2\n\nid\nretry: x\ndata: 3\n\n"
    events, _ = decode([body])
    assert [(event.id, event.retry) for event in events] == [("7", 3000), ("7", 3000), ("", 3000)]


@pytest.mark.parametrize("value", [b"", b"-1", b"1.5", "٣".encode(), b"1 ", b"9" * 5000])
def test_a_retry_that_is_no_plain_number_is_ignored(value: bytes) -> None:
    events, _ = decode([b"retry: 20\ndata: 1\nretry: " + value + b"\n\n"])
    assert [(event.data, event.retry) for event in events] == [("1", 20)]


def test_an_id_with_nul_is_ignored() -> None:
    events, _ = decode([b"id: a\nid: b\x00\ndata: 1\n\n"])
    assert [event.id for event in events] == ["a"]


@pytest.mark.parametrize(
    ("tail", "unfinished"),
    [
        (b"data: lost", ServerSentEvent("message", "lost")),
        (b"event: token\ndata: los\xe8\x84", ServerSentEvent("token", "los\ufffd")),
        (b"data: [DONE]\n", ServerSentEvent("message", "[DONE]")),
        (b"event: token\n", ServerSentEvent("token", "")),
        (b"dat", ServerSentEvent("message", "")),
        (b": keepal", None),
        (b": keepalive\n", None),
        (b"id: 7\n", None),
        (b"", None),
    ],
)
def test_a_stream_cut_inside_an_event_drops_it_and_tells(
    tail: bytes, unfinished: ServerSentEvent | None
) -> None:
    events, found = decode([b"data: 1\n\n" + tail])
    assert [event.data for event in events] == ["1"]
    if found is not None:
        found = ServerSentEvent(found.event, found.data)
    assert found == unfinished


TOO_LARGE = {
    "one line of data": b"data: " + b"x" * 101 + b"\n\n",
    "many lines of data": b"data: xxxxxxxxx\n" * 11 + b"\n",
    "a line that never ends": b"x" * 101,
    "a comment that never ends": b":" + b"x" * 101,
    "a name": b"event: " + b"x" * 101 + b"\n",
}


@pytest.mark.parametrize("large", TOO_LARGE.values(), ids=TOO_LARGE.keys())
@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_an_event_above_the_limit_is_refused_after_those_before_it(large: bytes, step: int) -> None:
    body = b"data: " + b"y" * 90 + b"\n\n" + large + b"data: late\n\n"
    decoder, events = SseDecoder(max_event_bytes=100), []

    def feed_all() -> None:
        for place in range(0, len(body), step):
            events.extend(decoder.feed(body[place : place + step]))
        decoder.finish()

    with pytest.raises(SseTooLarge):
        feed_all()
    assert [event.data for event in events] == ["y" * 90]
    with pytest.raises(SseTooLarge):
        decoder.feed(b"")


def test_a_decoder_keeps_no_more_than_its_limit_of_an_endless_line() -> None:
    decoder = SseDecoder(max_event_bytes=1000)
    decoder.feed(b"x" * 500)
    decoder.feed(b"x" * 500)
    with pytest.raises(SseTooLarge):
        decoder.feed(b"x")
    with pytest.raises(SseTooLarge):
        decoder.feed(b"x" * 500)
    assert len(decoder._line) == 1001


def test_many_events_of_small_data_are_not_counted_together() -> None:
    events, _ = decode([b"data: xxxxxxxxxx\n\n" * 1000], max_event_bytes=20)
    assert len(events) == 1000


BITS = st.sampled_from(
    [b"data", b"event", b"id", b"retry", b":", b" ", b"\n", b"\r", b"\r\n", b"\n\n", b"\xef\xbb\xbf", b"\x00",
     b"\xff", "脚".encode(), b"\xe8", b"7", b"x", b": keepalive\n\n", b"data: y\n\n", "\u2028".encode()]
)  # fmt: skip


@given(st.lists(BITS, max_size=40).map(b"".join), st.lists(st.integers(0, 10**6), max_size=30))
@settings(max_examples=200)
def test_any_bytes_decode_to_the_same_events_however_they_are_cut(body: bytes, cuts: list[int]) -> None:
    assert decode(cut(body, cuts)) == decode([body])


def decode_by_either_way(pieces: list[bytes]) -> list[tuple[str, str]]:
    """As a reader does that asks for the data of plain events first."""
    decoder, events = SseDecoder(), []
    for piece in pieces:
        data = decoder.plain_data(piece)
        if data is not None:
            events.append((M, data.decode("utf-8", "replace")))
        else:
            events += [(event.event, event.data) for event in decoder.feed(piece)]
    return events


def at_event_ends(body: bytes) -> list[bytes]:
    """Cut where a server cuts that sends each event by itself."""
    return [part + b"\n\n" for part in body.split(b"\n\n")[:-1]] + [body.rpartition(b"\n\n")[2]]


@given(st.lists(BITS | st.just(b"data: y\n\n"), max_size=40).map(b"".join))
@settings(max_examples=300)
def test_plain_events_taken_on_their_own_way_are_those_of_the_decoder(body: bytes) -> None:
    expected = [(event.event, event.data) for event in decode([body])[0]]
    assert decode_by_either_way(at_event_ends(body)) == expected


def test_an_event_by_itself_is_plain_and_what_stands_in_another_is_not() -> None:
    decoder = SseDecoder(max_event_bytes=20)
    assert decoder.plain_data(b"data: 1\n\n") is None  # a byte order mark may stand before the first line
    decoder.feed(b": hello\n\n")
    assert decoder.plain_data(b"data: 1\n\n") == b"1"
    for other in (b"data:1\n\n", b"data: 1\n", b"data: 1\r\n\r\n", b"data: 1\rdata: 2\n\n", b"data: 1\n\ndata: 2\n\n",
                  b": 1\n\n", b"\n\n", b"", b"data: " + b"1" * 15 + b"\n\n"):  # fmt: skip
        assert decoder.plain_data(other) is None
    for begun in (b"data: 0\n", b"event: error\n", b"da"):
        decoder.feed(b"\n\n" + begun)
        assert decoder.plain_data(b"data: 1\n\n") is None
    decoder.feed(b"\n\ndata: 1\n\ndata: " + b"x" * 20 + b"\n\n")
    assert decoder.plain_data(b"data: 1\n\n") is None  # `feed` says that one was too large


def naive_decode(body: bytes) -> list[tuple[str, str]]:
    """The rules once more, over the whole text at once."""
    text = body.decode("utf-8", "replace").removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    events, name, data = [], "", ""
    for line in text.split("\n")[:-1]:
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                events.append((name or "message", data.removesuffix("\n")))
            name = data = ""
        elif field == "data":
            data += value + "\n"
        elif field == "event":
            name = value
    return events


@given(st.lists(BITS, max_size=40).map(b"".join))
@settings(max_examples=200)
def test_the_decoder_agrees_with_the_rules_written_down_naively(body: bytes) -> None:
    assert [(event.event, event.data) for event in decode([body])[0]] == naive_decode(body)
