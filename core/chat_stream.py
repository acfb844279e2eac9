"""Reads the answer of an OpenAI-compatible chat completion, streamed or whole, from bytes cut anywhere. No I/O.

Rule: an answer is complete only when a `finish_reason` was seen; an end without one is a cut, however clean. What
comes out does not depend on how the bytes were cut, and whatever they are, nothing but an UpstreamError is raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import orjson

from cg_rag.core.mask import SecretMask, masked
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
_FAULTS: Final = (UpstreamError, SseTooLarge, TooManyToolCalls)
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


# One for each token: a tuple is made in a third of the time of a frozen dataclass.
class ChatDelta(NamedTuple):
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
    thinking alone is the answer. `secret`: the key that went along, which is masked wherever it is said.
    """

    def __init__(self, thinking: bool = False, answers_in_thinking: bool = False, secret: str = "") -> None:
        self._secret = secret
        self._text_mask, self._thinking_mask = SecretMask(secret), SecretMask(secret)
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
        if self._fault is None:
            try:
                self._feed(data, deltas)
            except _FAULTS as fault:
                self._fault = _named_fault(fault)
        if self._fault is not None and not deltas:
            raise self._fault
        return deltas

    def finish(self) -> list[ChatDelta]:
        """The deltas that were held back; the last one has the result. Raises UpstreamError: cut above all."""
        deltas: list[ChatDelta] = []
        if self._fault is None:
            try:
                self._finish(deltas)
            except _FAULTS as fault:
                self._fault = _named_fault(fault)
        if self._fault is not None:
            raise self._fault
        return deltas

    # What follows appends to `deltas` and yields nothing: a chain of generators cost as much as all the rest.

    def _feed(self, data: bytes, deltas: list[ChatDelta]) -> None:
        self._received += len(data)
        if self._received > MAX_ANSWER_BYTES:
            raise UpstreamBroken("too_large")
        if self._head is not None:
            data = self._sniff(data)
        if self._whole is not None:
            self._whole += data
        elif data and not self._done:
            plain = self._decoder.plain_data(data)
            if plain is not None:
                self._take_plain(plain, deltas)
                return
            for event in self._decoder.feed(data):
                self._take_event(event.data, deltas, is_error=event.event == "error")
                if self._done:
                    return

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

    def _take_plain(self, data: bytes, deltas: list[ChatDelta]) -> None:
        """One event without a name."""
        try:
            chunk = orjson.loads(data) if len(data) <= MAX_JSON_MARKS else None
        except orjson.JSONDecodeError:
            chunk = None
        if isinstance(chunk, dict):
            self._take_chunk(chunk, deltas)
        else:
            self._take_event(data.decode("utf-8", "replace"), deltas)

    def _take_event(self, data: str, deltas: list[ChatDelta], is_error: bool = False) -> None:
        if data.strip() == "[DONE]":
            self._done = True
            return
        chunk = _loads(data)
        if is_error:
            raise stream_error(chunk.get("error", chunk))
        self._take_chunk(chunk, deltas)

    def _take_chunk(self, chunk: dict[str, Any], deltas: list[ChatDelta]) -> None:
        choices = chunk.get("choices")
        error = chunk.get("error")
        if error or chunk.get("object") == "error" or (choices is None and "code" in chunk):
            raise stream_error(error or chunk)
        if usage := chunk.get("usage"):
            self._usage = _usage(usage) or self._usage
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and choice.get("index") in (0, None):
                self._take_choice(choice, deltas)

    def _take_choice(self, choice: dict[str, Any], deltas: list[ChatDelta]) -> None:
        for key in ("delta", "message"):
            delta = choice.get(key)
            if isinstance(delta, dict):
                self._take_delta(delta, deltas)
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason not in ("", "null"):
            self._finish_reason = reason

    def _take_delta(self, delta: dict[str, Any], deltas: list[ChatDelta]) -> None:
        thinking = delta.get("reasoning_content") or delta.get("reasoning")
        if thinking and isinstance(thinking, str):
            deltas.extend(map(self._record, self._splitter.begin_outside()))
            deltas.append(self._record(Piece(thinking=thinking)))
        content = delta.get("content")
        if isinstance(content, str) and self._splitter.passes(content):
            text = self._text_mask.feed(content)
            self._text.append(text)
            deltas.append(ChatDelta(text))
        elif content:
            self._take_content(content, deltas)
        if delta.get("refusal"):
            self._refused = True
        if delta.get("tool_calls"):
            for piece in self._tools.add(delta["tool_calls"]):
                deltas.append(ChatDelta(tool_call=piece))

    def _take_content(self, content: Any, deltas: list[ChatDelta]) -> None:
        for part in content if isinstance(content, list) else (content,):
            text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else part
            if isinstance(text, str):
                deltas.extend(map(self._record, self._splitter.feed(text)))

    def _record(self, piece: Piece) -> ChatDelta:
        text, thinking, retracts_text = piece
        held = self._retract() if retracts_text else ""
        if text:
            text = self._text_mask.feed(text)
        if thinking:
            thinking = self._thinking_mask.feed(thinking)
        return self._handed_on(ChatDelta(text, held + thinking, retracts_text))

    def _retract(self) -> str:
        """All text so far becomes thinking; returns what of it was held back."""
        self._thinking += self._text
        self._text.clear()
        return self._text_mask.finish()

    def _handed_on(self, delta: ChatDelta) -> ChatDelta:
        if delta.text:
            self._text.append(delta.text)
        if delta.thinking:
            self._thinking.append(delta.thinking)
        return delta

    def _finish(self, deltas: list[ChatDelta]) -> None:
        self._take_rest(deltas)
        self._check_finish_reason()
        deltas.extend(map(self._record, self._splitter.finish(truncated=self._finish_reason == "length")))
        held = ChatDelta(self._text_mask.finish(), self._thinking_mask.finish())
        if held.text or held.thinking:
            deltas.append(self._handed_on(held))
        text, thinking, calls = "".join(self._text), "".join(self._thinking), self._calls()
        if not text.strip() and not calls:
            text = self._promoted(thinking)
            deltas.append(ChatDelta(text=text))
        assert self._finish_reason is not None
        result = ChatResult(text, thinking, calls, self._usage, self._finish_reason)
        deltas.append(ChatDelta(finish_reason=self._finish_reason, usage=self._usage, result=result))

    def _take_rest(self, deltas: list[ChatDelta]) -> None:
        if self._whole is not None:
            self._take_chunk(_loads(bytes(self._whole)), deltas)
            return
        begun = None if self._done else self._decoder.finish()
        # Some servers end without the last blank line. What broke off inside of its JSON is a cut.
        if begun is not None and _is_json(begun.data):
            self._take_event(begun.data, deltas)

    def _check_finish_reason(self) -> None:
        if self._finish_reason is None:
            raise UpstreamBroken("cut", may_retry=True)
        if self._finish_reason in _FILTERED or (self._refused and not self._text):
            raise UpstreamFiltered("content_filter")
        if self._finish_reason in _FAILED:
            raise UpstreamFailed("overloaded", may_retry=True)

    def _calls(self) -> tuple[ToolCall, ...]:
        return tuple(
            replace(call, arguments=masked(call.arguments, self._secret)) for call in self._tools.calls()
        )

    def _promoted(self, thinking: str) -> str:
        if self._promotes_thinking and self._finish_reason == "stop" and thinking.strip():
            return thinking
        raise UpstreamEmpty("empty")


def _named_fault(fault: UpstreamError | SseTooLarge | TooManyToolCalls) -> UpstreamError:
    if isinstance(fault, UpstreamError):
        return fault
    return UpstreamBroken("too_large" if isinstance(fault, SseTooLarge) else "malformed")


def _loads(data: str | bytes) -> dict[str, Any]:
    text = data.encode() if isinstance(data, str) else data
    if len(text) > MAX_JSON_MARKS and sum(map(text.count, (b"{", b"[", b","))) > MAX_JSON_MARKS:
        raise UpstreamBroken("too_large")
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        # Garbled on the way more often than meant: what is sent again may come whole.
        raise UpstreamBroken("malformed", may_retry=True)
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
