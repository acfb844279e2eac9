"""The text model's half of a hybrid request: it searches, writes bases and measures, and is corrected once.

Rule: nothing goes out that is not published, unless an `answer_reset` says so: points are released one by one as they
pass their checks. What the description says is never lost: a failure here leaves it in the channel or to the caller.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final

from cg_rag.core.answer_channel import AnswerChannel
from cg_rag.core.errors import CgError
from cg_rag.core.events import Agent, Event, Retrieval, Token, Trace
from cg_rag.core.evidence import Evidence, EvidenceStore
from cg_rag.core.hybrid_report import DraftGate, HybridWriter, Reading, correction
from cg_rag.core.mark_remains import strip_citations
from cg_rag.core.search_calls import ToolSupport, refuses_tools
from cg_rag.core.search_talk import Draft, Search, SearchTalk
from cg_rag.core.upstream import ChatRequest, ChatResult
from cg_rag.core.vision_calls import VisionCalls

DOCUMENTS_A_ROUND: Final = 12  # docs/vision.md: 服务端固定为 12
FINAL_LABEL: Final = "正在生成最终回答"  # docs/vision.md
MAX_DRAFT_CHARACTERS: Final = 16_000
# What a draft of four pictures comes to; a longer one is read in the end, not while it comes.
_MAX_GATED_CHARACTERS: Final = 6_000
_TOO_LONG: Final = f"回答超过 {MAX_DRAFT_CHARACTERS} 个字符，须精简。"
_IS_CUT: Final = "回答达到模型的输出长度上限而中断，须精简后写完整。"
_MAY_LACK: Final = "判定依据与整改措施达到模型的输出长度上限，可能不完整。"
_KEPT: Final = "重写判定依据和整改措施没有完成（{reason}），发布的是重写之前通过校验的部分。"
_FAULTY: Final = "判定依据和整改措施重写后仍不合要求，只保留了通过校验的部分。"
_SERVERS_QUESTIONS: Final = "文本模型没有给出可用的检索问题，已按隐患描述检索。"
_SEARCH_FAILED: Final = "第 {number} 轮有 {failed} 条检索问题检索失败。"

_NOTHING: Final = ChatResult("", "", (), None, "stop")


@dataclass(frozen=True, slots=True)
class Found:
    """What the questions of one round brought: the documents of each, None for one that failed."""

    documents: Mapping[str, Sequence[Mapping[str, Any]] | None]
    is_cached: bool = False
    warnings: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Means:
    """What the half is worked on with. `search` raises nothing but what ends the request; `in_thread` runs reading off
    the event loop. `is_strict`: when all of retrieval fails, nothing is published."""

    calls: VisionCalls
    tools: ToolSupport
    search: Callable[[Sequence[str]], Awaitable[Found]]
    make_writer: Callable[[Sequence[Evidence]], HybridWriter]
    in_thread: Callable[[Callable[[], Any]], Awaitable[Any]]
    is_strict: bool


class TextHalf:
    """`run` it once; then `reading` is what is published. `channel` gets the description with the first release."""

    def __init__(self, means: Means, talk: SearchTalk, store: EvidenceStore, channel: AnswerChannel) -> None:
        self.reading: Reading | None = None
        self.warnings: list[str] = []
        self.stages: list[dict[str, str]] = []
        self._means = means
        self._talk = talk
        self._store = store
        self._channel = channel
        self._writer = means.make_writer(())
        self._is_open = False
        self._held: list[Event] = []
        self._is_final = False
        self._draft = ""
        self._is_cut = False
        self._result = _NOTHING

    async def run(self) -> AsyncGenerator[Event, None]:
        """Raises CgError: hybrid_generation_upstream_error, vision_budget_exceeded, retrieval.failed."""
        if not self._means.is_strict:
            for event in self._open():
                yield event
        async with aclosing(self._converse()) as events:
            async for event in events:
                yield event
        self.reading = await self._judge()
        if self.reading.faults:
            async with aclosing(self._correct(self.reading)) as events:
                async for event in events:
                    yield event
        for event in self._begin_final():
            yield event

    async def _converse(self) -> AsyncGenerator[Event, None]:
        """Questions and searches up to the first draft. Ends, because SearchTalk does."""
        while True:
            request = self._talk.request()
            if self._talk.may_write:
                async with aclosing(self._write(request)) as events:
                    async for event in events:
                        yield event
                result = self._result
            else:
                answered = await self._ask(request)
                if answered is None:
                    continue
                result = answered
            step = self._talk.take(result)
            if isinstance(step, Draft):
                self._draft = step.text
                return
            if isinstance(step, Search):
                self._learn(result, step)
                async with aclosing(self._search(step)) as events:
                    async for event in events:
                        yield event

    async def _ask(self, request: ChatRequest) -> ChatResult | None:
        """A turn that is no draft; None when the upstream knows no tools, and the talk goes on without."""
        try:
            return await self._means.calls.complete(
                request.messages, "生成检索问题", request.schema, request.tools
            )
        except CgError as error:
            is_first = self._means.tools.known is None
            if not request.tools or self._talk.has_begun or not refuses_tools(error.__cause__, is_first):
                raise
        self._talk.without_tools()
        self._means.tools.known = False
        return None

    def _learn(self, result: ChatResult, step: Search) -> None:
        """What the answer shows of the upstream's tools."""
        support = self._means.tools
        if result.tool_calls:
            support.known = True
        elif support.known is None and self._talk.uses_tools and not step.is_servers:
            support.known = False  # offered tools it wrote text, asked for a plan it knew what to search

    async def _search(self, step: Search) -> AsyncGenerator[Event, None]:
        number = self._talk.num_rounds
        event_id, name = f"vision.search.{number}", f"第 {number} 轮法规检索"
        yield Agent(event_id, "search", "running", name)
        if step.is_servers:
            self.warnings.append(_SERVERS_QUESTIONS)
        questions = strip_citations("\n".join(step.queries)) or "没有可以执行的检索问题。"
        for event in self._note("SEARCH_PLAN", questions):
            yield event
        found = await self._means.search(step.queries) if step.queries else Found({})
        results = [documents for documents in found.documents.values() if documents is not None]
        num_failed = len(step.queries) - len(results)
        if step.queries and not results and self._means.is_strict and not self._is_open:
            raise CgError("retrieval.failed")
        self.warnings += found.warnings
        if num_failed:
            self.warnings.append(_SEARCH_FAILED.format(number=number, failed=num_failed))
        kept = self._store.add(results, DOCUMENTS_A_ROUND)
        self._talk.tell(
            {
                question: None if documents is None else self._store.among(documents)
                for question, documents in found.documents.items()
            }
        )
        yield Retrieval(_preview(self._store, found, number))
        summary = f"执行 {len(step.queries)} 条检索问题，累计保留 {len(self._store)} 条证据。"
        if step.num_refused:
            summary += f"另有 {step.num_refused} 次无效、重复或超出上限的检索未执行。"
        yield Trace(name, "done", summary)
        for event in self._note(
            "EVIDENCE_REVIEW", f"本轮检索到 {len(kept)} 条条文，累计 {len(self._store)} 条证据。"
        ):
            yield event
        yield Agent(event_id, "search", "done", name)
        if results:
            for event in self._open():
                yield event

    async def _write(self, request: ChatRequest) -> AsyncGenerator[Event, None]:
        """A turn that may be the draft: what passes goes out while it comes. Leaves `_result`."""
        if self._talk.is_writing:
            for event in self._begin_final():
                yield event
        evidence = self._store.items
        self._writer = await self._means.in_thread(lambda: self._means.make_writer(evidence))
        gate, text = DraftGate(self._writer), ""
        self._is_cut = False
        self._result = _NOTHING
        stream = self._means.calls.stream(request.messages, "撰写依据与措施", request.tools)
        async with aclosing(stream) as deltas:
            async for delta in deltas:
                if delta.retracts_text:
                    gate, text = DraftGate(self._writer), ""
                    for event in self._reopen("thinking"):
                        yield event
                if delta.text:
                    text += delta.text
                    for event in await self._pass(gate, delta.text, len(text)):
                        yield event
                if delta.result is not None:
                    self._result = delta.result
                    self._is_cut = delta.result.finish_reason == "length"
                elif len(text) > MAX_DRAFT_CHARACTERS:
                    self._result = replace(self._result, text=text)
                    break

    async def _pass(self, gate: DraftGate, text: str, length: int) -> list[Event]:
        if length > _MAX_GATED_CHARACTERS or not self._is_open:
            return []
        passed = await self._means.in_thread(lambda: gate.feed(text)) if "\n" in text else gate.feed(text)
        return [*self._begin_final(), *self._channel.release(passed)] if passed else []

    async def _correct(self, first: Reading) -> AsyncGenerator[Event, None]:
        label = "判定依据或整改措施不合要求，正在重写"
        yield Agent("vision.retry.1", "retry", "running", label)
        for event in self._reopen("correction"):
            yield event
        request = self._talk.correct(self._draft, correction(first.faults))
        try:
            async with aclosing(self._write(request)) as events:
                async for event in events:
                    yield event
            self._draft = self._result.text
            second = await self._judge()
            self.reading = _better(first, second)
        except CgError as error:
            if not first.num_points:
                raise  # of this model there is nothing to publish
            self.warnings.append(_KEPT.format(reason=error.message.rstrip("。")))
        yield Agent("vision.retry.1", "retry", "done", label)

    async def _judge(self) -> Reading:
        draft, writer = self._draft, self._writer
        reading: Reading = await self._means.in_thread(lambda: writer.read(draft[:MAX_DRAFT_CHARACTERS]))
        if len(draft) > MAX_DRAFT_CHARACTERS:
            return replace(reading, faults=(_TOO_LONG, *reading.faults))
        if self._is_cut:
            return replace(
                reading, faults=(_IS_CUT, *reading.faults), warnings=(*reading.warnings, _MAY_LACK)
            )
        return reading

    def _open(self) -> Iterator[Event]:
        """The description goes out, and what was held back before it."""
        if self._is_open:
            return
        self._is_open = True
        yield from self._held
        yield from self._channel.release(self._writer.description)

    def _reopen(self, reason: str) -> Iterator[Event]:
        if self._is_open:
            yield from self._channel.reset(reason)
            yield from self._channel.release(self._writer.description)

    def _begin_final(self) -> Iterator[Event]:
        if not self._is_final:
            self._is_final = True
            yield Agent("vision.final", "final", "running", FINAL_LABEL)

    def _note(self, label: str, content: str) -> Iterator[Event]:
        """A public stage; its text goes out once anything may."""
        self.stages.append({"label": label, "content": content})
        token = Token("reasoning", f"{content}\n")
        if self._is_open:
            yield token
        else:
            self._held.append(token)


def _better(first: Reading, second: Reading) -> Reading:
    """The second draft, unless only the first one has bases or measures that passed."""
    if not second.faults:
        return second
    chosen = first if first.num_points > second.num_points else second
    return replace(chosen, warnings=(*chosen.warnings, _FAULTY))


def _preview(store: EvidenceStore, found: Found, number: int) -> dict[str, Any]:
    names = ("law_name", "article_number", "contents")
    documents = [{name: document[name] for name in names} for document in store.documents]
    return {
        "num_docs": len(documents),
        "retrieval_docs": documents,
        "cache": {"hit": found.is_cached},
        "round": number,
    }
