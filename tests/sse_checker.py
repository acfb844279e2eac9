"""What every stream of ours keeps to, whatever the mode: tests hand in the bytes of a whole body."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from cg_rag.core.events import AnswerReset, Event, Token
from cg_rag.core.sse import EVENT_NAMES, SseDecoder
from tests.answer_checker import check_event

EVENTS = {*EVENT_NAMES.values(), "error"}
TERMINAL = {"final", "error"}


@dataclass(frozen=True)
class CheckedEvent:
    name: str
    data: Any
    raw: bytes
    """The JSON as it was sent."""


class StreamChecker:
    """Reads the body of a stream (chunked framing removed) and asserts:

    every frame is `event:`, one `data:` line of compact JSON and a blank line, or a comment; the names are those of
    the contract; one terminal event, nothing after it; an error event holds its content twice; and when an answer
    was streamed, its tokens since the last `answer_reset` join to the answer of `final` (`has_answer`).
    """

    def __init__(self, body: bytes, has_answer: bool = True) -> None:
        assert body.endswith(b"\n\n"), f"the stream was cut: {body[-80:]!r}"
        self.comments: list[bytes] = []
        self.events: list[CheckedEvent] = []
        for block in body[:-2].split(b"\n\n"):
            self._take(block)
        assert self.events, "a stream without events"
        self._check_terminal()
        self._check_other_decoder(body)
        if has_answer:
            self._check_answer()

    def _take(self, block: bytes) -> None:
        if block.startswith(b":"):
            assert b"\n" not in block
            self.comments.append(block)
            return
        lines = block.split(b"\n")
        assert len(lines) == 2, block
        assert lines[0].startswith(b"event: "), block
        assert lines[1].startswith(b"data: {"), block
        assert b"\r" not in block
        raw = lines[1].removeprefix(b"data: ")
        data = orjson.loads(raw)
        assert orjson.dumps(data) == raw, "the JSON is not compact, or has a key twice"
        name = lines[0].removeprefix(b"event: ").decode()
        assert name in EVENTS, name
        check_event(name, data)
        self.events.append(CheckedEvent(name, data, raw))

    def _check_terminal(self) -> None:
        names = [event.name for event in self.events]
        assert set(names) <= EVENTS, names
        assert names[-1] in TERMINAL, names
        assert not TERMINAL & set(names[:-1]), names
        if names[-1] == "error":
            data = self.terminal.data
            assert list(data) == ["request_id", "code", "message", "details", "error"]
            assert data["error"] == {key: data[key] for key in ("code", "message", "details")}

    def _check_other_decoder(self, body: bytes) -> None:
        decoder = SseDecoder()
        decoded = decoder.feed(body)
        assert decoder.finish() is None
        assert [(event.event, event.data.encode()) for event in decoded] == [
            (event.name, event.raw) for event in self.events
        ]

    def _check_answer(self) -> None:
        if self.terminal.name == "final":
            assert self.answer_text == find_answer(self.terminal.data)

    @property
    def terminal(self) -> CheckedEvent:
        return self.events[-1]

    @property
    def names(self) -> list[str]:
        return [event.name for event in self.events]

    @property
    def final(self) -> Any:
        """The payload of `final`; fails when the stream ended with an error."""
        assert self.terminal.name == "final", self.terminal.data
        return self.terminal.data

    @property
    def error_code(self) -> str:
        assert self.terminal.name == "error", self.terminal.data
        return str(self.terminal.data["code"])

    @property
    def answer_text(self) -> str:
        """The answer tokens since the last reset, joined."""
        text = ""
        for event in self.events:
            if event.name == "answer_reset":
                text = ""
            elif event.name == "token" and event.data["channel"] == "answer":
                text += event.data["text"]
        return text

    @property
    def reasoning_text(self) -> str:
        tokens = (event.data for event in self.events if event.name == "token")
        return "".join(data["text"] for data in tokens if data["channel"] == "reasoning")

    def named(self, name: str) -> list[CheckedEvent]:
        return [event for event in self.events if event.name == name]


def find_answer(payload: dict[str, Any]) -> str:
    """Where the contract puts the answer: `answer`, `answer_text`, or the latter inside `generation`; "" for none."""
    for place in (payload, payload.get("generation") or {}):
        for key in ("answer", "answer_text"):
            if key in place:
                return str(place[key])
    return ""


def answer_of(events: Sequence[Event]) -> str:
    """The answer tokens since the last reset, joined, of a mode's own events."""
    text = ""
    for event in events:
        if isinstance(event, AnswerReset):
            text = ""
        elif isinstance(event, Token) and event.channel == "answer":
            text += event.text
    return text
