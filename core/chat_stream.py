"""Reads the answer of an OpenAI-compatible chat completion, streamed or whole, from bytes cut anywhere. No I/O.

Rule: an answer is complete only when a `finish_reason` was seen; an end without one is a cut, however clean. What
comes out does not depend on how the bytes were cut, and whatever they are, nothing but an UpstreamError is raised.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from cg_rag.core.sse import SseDecoder, SseTooLarge
from cg_rag.core.thinking import Piece, ThinkingSplitter
from cg_rag.core.tool_calls import ToolCall, ToolCallAssembler, ToolCallDelta, TooManyToolCalls
from cg_rag.core.upstream_errors import (
    UpstreamBroken,
    UpstreamEmpty,
    UpstreamError,
    UpstreamFailed,
    UpstreamFiltered,
    stream_error,
)

MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024
MAX_EVENT_BYTES: Final = 1024 * 1024
# `{},` is 3 bytes of text and 64 of memory; an answer of text has far fewer brackets and commas than this.
MAX_JSON_MARKS: Final = 200_000

_WHITESPACE: Final = b" \t\r\n"
_BOM: Final = b"\xef\xbb\xbf"
_USAGE: Final = ("prompt_tokens", "completion_tokens", "total_tokens")
_FILTERED: Final = frozenset({"content_filter", "sensitive"})
_FAILED: Final = frozenset({"insufficient_system_resource", "error", "abort", "network_error"})


@dataclass(frozen=True, slots=True)
class ChatResult:
    """A complete answer. `thinking` is kept apart from `text`, also where the server mixed them.

    `finish_reason` "length": the answer was cut at a limit of tokens. `usage` holds prompt_tokens,
    completion_tokens and total_tokens, as far as the server counts them. `structured_output` is the constraint that
    was asked for, `attempts` the number of requests sent.
    """

    text: str
    thinking: str
    tool_calls: tuple[ToolCall, ...]
    usage: Mapping[str, int] | None
    finish_reason: str
    model: str = ""
    attempts: int = 1
    structured_output: str = "none"


@dataclass(frozen=True, slots=True)
class ChatDelta:
    """What came next: text, thinking, or a piece of a tool call.

    `retracts_text`: all text so far was thinking and has to be taken back; the text of this delta follows after it.
    The last delta, and no other, has `finish_reason`, `usage` and `result`, the sum of all.
    """

    text: str = ""
    thinking: str = ""
    retracts_text: bool = False
    tool_call: ToolCallDelta | None = None
    finish_reason: str | None = None
    usage: Mapping[str, int] | None = None
    result: ChatResult | None = None


class ChatParser:
    """Feed the bytes of an answer's body, then `finish`.

    `thinking`: thinking was asked for. `answers_in_thinking`: without it, an answer that came in the field for
    thinking alone is the answer.
    """

    def __init__(self, thinking: bool = False, answers_in_thinking: bool = False) -> None:
        self._splitter = ThinkingSplitter(may_begin_inside=thinking)
        self._promotes_thinking = answers_in_thinking and not thinking
        self._received = 0
        self._head: bytes | None = b""  # until a letter tells JSON from a stream
        self._whole: bytearray | None = None
        self._decoder = SseDecoder(MAX_EVENT_BYTES)
        self._tools = ToolCallAssembler()
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._usage: dict[str, int] | None = None
        self._finish_reason: str | None = None
        self._refused = False
        self._done = False
        self._fault: UpstreamError | None = None

    @property
    def is_finished(self) -> bool:
        """A finish_reason was seen; only usage may still come."""
        return self._finish_reason is not None

    @property
    def is_done(self) -> bool:
        """`[DONE]` was seen; nothing more will come."""
        return self._done

    def feed(self, data: bytes) -> list[ChatDelta]:
        """The deltas that end in `data`. Raises UpstreamError; deltas before the fault are returned first, and the
        next call raises."""
        deltas: list[ChatDelta] = []
        self._guarded(self._feed(data), deltas)
        if self._fault is not None and not deltas:
            raise self._fault
        return deltas

    def finish(self) -> list[ChatDelta]:
        """The deltas that were held back; the last one has the result. Raises UpstreamError: cut above all."""
        deltas: list[ChatDelta] = []
        self._guarded(self._finish(), deltas)
        if self._fault is not None:
            raise self._fault
        return deltas

    def _guarded(self, source: Iterator[ChatDelta], deltas: list[ChatDelta]) -> None:
        if self._fault is not None:
            return
        try:
            deltas.extend(source)
        except UpstreamError as fault:
            self._fault = fault
        except SseTooLarge:
            self._fault = UpstreamBroken("too_large")
        except TooManyToolCalls:
            self._fault = UpstreamBroken("malformed")

    def _feed(self, data: bytes) -> Iterator[ChatDelta]:
        self._received += len(data)
        if self._received > MAX_ANSWER_BYTES:
            raise UpstreamBroken("too_large")
        if self._head is not None:
            data = self._sniff(data)
        if self._whole is not None:
            self._whole += data
        elif data and not self._done:
            yield from self._take_events(data)

    def _sniff(self, data: bytes) -> bytes:
        # By its first letter, because servers and proxies mislabel both kinds. White space keeps a connection alive.
        assert self._head is not None
        head = (self._head + data).lstrip(_WHITESPACE)
        if head.startswith(_BOM):
            head = head[len(_BOM) :].lstrip(_WHITESPACE)
        if _BOM.startswith(head):
            self._head = head
            return b""
        self._head = None
        if head[:1] == b"<":
            raise UpstreamBroken("html")
        if head[:1] in (b"{", b"["):
            self._whole = bytearray()
        return head

    def _take_events(self, data: bytes) -> Iterator[ChatDelta]:
        for event in self._decoder.feed(data):
            if self._done:
                return
            yield from self._take_event(event.data, is_error=event.event == "error")

    def _take_event(self, data: str, is_error: bool = False) -> Iterator[ChatDelta]:
        if data.strip() == "[DONE]":
            self._done = True
            return
        chunk = _loads(data)
        if is_error:
            raise stream_error(chunk.get("error", chunk))
        yield from self._take_chunk(chunk)

    def _take_chunk(self, chunk: dict[str, Any]) -> Iterator[ChatDelta]:
        choices = chunk.get("choices")
        error = chunk.get("error")
        if error or chunk.get("object") == "error" or (choices is None and "code" in chunk):
            raise stream_error(error or chunk)
        self._usage = _usage(chunk.get("usage")) or self._usage
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and choice.get("index") in (0, None):
                yield from self._take_choice(choice)

    def _take_choice(self, choice: dict[str, Any]) -> Iterator[ChatDelta]:
        for key in ("delta", "message"):
            if isinstance(choice.get(key), dict):
                yield from self._take_delta(choice[key])
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason not in ("", "null"):
            self._finish_reason = reason

    def _take_delta(self, delta: dict[str, Any]) -> Iterator[ChatDelta]:
        thinking = delta.get("reasoning_content") or delta.get("reasoning")
        if thinking and isinstance(thinking, str):
            yield from map(self._record, self._splitter.begin_outside())
            yield self._record(Piece(thinking=thinking))
        content = delta.get("content")
        if content:
            yield from self._take_content(content)
        if delta.get("refusal"):
            self._refused = True
        if delta.get("tool_calls"):
            for piece in self._tools.add(delta["tool_calls"]):
                yield ChatDelta(tool_call=piece)

    def _take_content(self, content: Any) -> Iterator[ChatDelta]:
        for part in content if isinstance(content, list) else (content,):
            text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else part
            if isinstance(text, str):
                yield from map(self._record, self._splitter.feed(text))

    def _record(self, piece: Piece) -> ChatDelta:
        if piece.retracts_text:
            self._thinking += self._text
            self._text.clear()
        if piece.text:
            self._text.append(piece.text)
        if piece.thinking:
            self._thinking.append(piece.thinking)
        return ChatDelta(piece.text, piece.thinking, piece.retracts_text)

    def _finish(self) -> Iterator[ChatDelta]:
        yield from self._take_rest()
        self._check_finish_reason()
        yield from map(self._record, self._splitter.finish(truncated=self._finish_reason == "length"))
        text, thinking, calls = "".join(self._text), "".join(self._thinking), self._tools.calls()
        if not text.strip() and not calls:
            text = self._promoted(thinking)
            yield ChatDelta(text=text)
        assert self._finish_reason is not None
        result = ChatResult(text, thinking, calls, self._usage, self._finish_reason)
        yield ChatDelta(finish_reason=self._finish_reason, usage=self._usage, result=result)

    def _take_rest(self) -> Iterator[ChatDelta]:
        if self._whole is not None:
            yield from self._take_chunk(_loads(bytes(self._whole)))
            return
        begun = None if self._done else self._decoder.finish()
        # Some servers end without the last blank line. What broke off inside of its JSON is a cut.
        if begun is not None and _is_json(begun.data):
            yield from self._take_event(begun.data)

    def _check_finish_reason(self) -> None:
        if self._finish_reason is None:
            raise UpstreamBroken("cut", may_retry=True)
        if self._finish_reason in _FILTERED or (self._refused and not self._text):
            raise UpstreamFiltered("content_filter")
        if self._finish_reason in _FAILED:
            raise UpstreamFailed("overloaded", may_retry=True)

    def _promoted(self, thinking: str) -> str:
        if self._promotes_thinking and self._finish_reason == "stop" and thinking.strip():
            return thinking
        raise UpstreamEmpty("empty")


def _loads(data: str | bytes) -> dict[str, Any]:
    text = data.encode() if isinstance(data, str) else data
    if text.count(b"{") + text.count(b"[") + text.count(b",") > MAX_JSON_MARKS:
        raise UpstreamBroken("too_large")
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise UpstreamBroken("malformed") from None
    if not isinstance(value, dict):
        raise UpstreamBroken("malformed")
    return value


def _is_json(data: str) -> bool:
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    return True


def _usage(value: Any) -> dict[str, int] | None:
    if not isinstance(value, dict):
        return None
    counts = {name: value.get(name) for name in _USAGE}
    return {name: n for name, n in counts.items() if type(n) is int and 0 <= n < 2**53} or None
