"""Asks a chat model which candidates it picks, and once more when nothing valid came or the answer broke off.

Rule: a line goes out as soon as its pick is certain; when it turns out not to count, `AnswerReset` goes before
whatever is said instead. Thinking that went out stays: joined, it is `thinking`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from cg_rag.core.events import AnswerReset, Token
from cg_rag.core.picks import PickReader
from cg_rag.core.selection import (
    AnswerLines,
    Candidate,
    Message,
    correction_messages,
    fault_words,
    pick_messages,
    pick_schema,
)
from cg_rag.core.upstream import ChatDelta, ChatRequest, ChatUpstream, UpstreamEmpty, UpstreamError

WAS_CUT = "上游应答中断"
WAS_THINKING = "此前的文字是思考过程"

Event = Token | AnswerReset


@dataclass(frozen=True, slots=True)
class Call:
    """One answer of the model, for debugging. `fault` is "" for a valid one."""

    raw: str
    fault: str


class PickConversation:
    """One selection. `run` it once; then either `error` or `fault` tells why there is none, or `picks` hold it."""

    def __init__(
        self,
        upstream: ChatUpstream,
        system_prompt: str,
        query: str,
        candidates: Sequence[Candidate],
        max_items: int,
        *,
        enable_thinking: bool,
        timeout_seconds: float,
    ) -> None:
        """`timeout_seconds` bounds all of it. Without `enable_thinking` what is thought nevertheless is dropped."""
        self.lines = AnswerLines(candidates)
        self.usage: dict[str, int] | None = None  # of all calls
        self.attempts = 0  # requests sent
        self.error: UpstreamError | None = None
        self.fault = ""  # Chinese: why the last answer is no selection
        self.calls: list[Call] = []
        self._upstream = upstream
        self._num_candidates = len(candidates)
        self._max_items = max_items
        self._thinks = enable_thinking
        self._schema = pick_schema(len(candidates), max_items)
        self._messages = pick_messages(system_prompt, query, candidates, max_items)
        self._candidates = candidates
        self._ends_at = time.monotonic() + timeout_seconds
        self._thinking: list[str] = []
        self.structured_output = "none"
        """The constraint of the last answer that came to its end."""
        self._begin()

    @property
    def picks(self) -> tuple[int, ...]:
        return self._reader.picks

    @property
    def raw(self) -> str:
        """What the model said last, without its thinking."""
        return "".join(self._raw)

    @property
    def thinking(self) -> str:
        return "".join(self._thinking)

    async def run(self) -> AsyncGenerator[Event, None]:
        """Yields lines of the answer and thoughts as they come; `lines.finish` is left to the caller."""
        async with aclosing(self._call(self._messages)) as events:
            async for event in events:
                yield event
        if self._is_valid() or not self._may_repeat():
            return
        more = correction_messages(self.raw, self.fault, self._num_candidates)
        async with aclosing(self._call([*self._messages, *more])) as events:
            async for event in events:
                yield event

    async def _call(self, messages: Sequence[Message]) -> AsyncGenerator[Event, None]:
        self._begin()
        request = ChatRequest(messages, enable_thinking=self._thinks, schema=self._schema)
        budget_seconds = self._ends_at - time.monotonic()
        try:
            async with aclosing(self._upstream.stream(request, budget_seconds)) as deltas:
                async for delta in deltas:
                    for event in self._take(delta):
                        yield event
        except UpstreamError as error:
            self.attempts += error.attempts
            if isinstance(error, UpstreamEmpty):
                self.fault = fault_words(None, self._num_candidates)
            else:
                self.error = error
        self.calls.append(Call(self.raw, self.error.reason if self.error else self.fault))
        if not self._is_valid():
            for event in self._void(WAS_CUT):
                yield event

    def _begin(self) -> None:
        self._forget_text()
        self.error, self.fault = None, ""

    def _forget_text(self) -> None:
        self._reader = PickReader(self._num_candidates, self._max_items)
        self._raw: list[str] = []

    def _is_valid(self) -> bool:
        return self.error is None and not self.fault

    def _may_repeat(self) -> bool:
        """An answer that says nothing usable is asked for once more; a call that failed is not: before the first token the
        client has tried again itself, and behind it nobody does."""
        return self.error is None

    def _take(self, delta: ChatDelta) -> Iterator[Event]:
        if delta.result is not None:
            self.structured_output = delta.result.structured_output
        if delta.retracts_text:
            yield from self._void(WAS_THINKING)
            yield from self._think(self.raw)
            self._forget_text()
        yield from self._think(delta.thinking)
        if delta.text:
            self._raw.append(delta.text)
            yield from self._say(self._reader.feed(delta.text))
        if delta.result is not None:
            self.attempts += delta.result.attempts
            self._add_usage(delta.result.usage)
            yield from self._say(self._reader.finish(delta.result.finish_reason == "length"))
            if self._reader.fault is not None:
                self.fault = fault_words(self._reader.fault, self._num_candidates)

    def _think(self, text: str) -> Iterator[Event]:
        if self._thinks and text:
            self._thinking.append(text)
            yield Token("reasoning", text)

    def _say(self, picks: Sequence[int]) -> Iterator[Event]:
        for line in self.lines.take(picks):
            yield Token("answer", line)

    def _void(self, reason: str) -> Iterator[Event]:
        if self.lines.text:
            self.lines = AnswerLines(self._candidates)
            yield AnswerReset(reason)

    def _add_usage(self, usage: Mapping[str, int] | None) -> None:
        if usage:
            known = self.usage or {}
            self.usage = known | {name: known.get(name, 0) + count for name, count in usage.items()}
