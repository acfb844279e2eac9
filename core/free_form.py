"""The free-form conversation: the model describes the pictures, its report is checked and, once, corrected.

Rule: text goes out as it comes, without citation marks; what is published in the end is a checked report in canonical
form, or the plain answer to a question that asks for none. Whatever differs from what went out is sent anew.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final, Literal

from cg_rag.core.answer_channel import AnswerChannel
from cg_rag.core.claims import References, unsupported
from cg_rag.core.errors import CgError
from cg_rag.core.events import AnswerReset, Progress, Token
from cg_rag.core.mark_remains import strip_citations
from cg_rag.core.marks import MarkFilter
from cg_rag.core.report import Block, Report, hazard_categories, requires_report
from cg_rag.core.report_check import check, correction
from cg_rag.core.report_parse import is_report, parse, read_section
from cg_rag.core.report_publish import Rules, read_free_form
from cg_rag.core.upstream import ChatDelta
from cg_rag.core.vision_calls import Message, VisionCalls
from cg_rag.core.vision_errors import invalid_response

Event = Progress | Token | AnswerReset
ResetReason = Literal["format", "level"]

# Four pictures with twenty points each are 7,000. Reading a text takes up to 60 ms for a thousand characters of rubbish.
MAX_ANSWER_CHARACTERS: Final = 16_000
MAX_QUOTED_CHARACTERS: Final = 4_000  # of a broken answer: enough for a model to see what it did
_TOO_LONG: Final = f"回答超过 {MAX_ANSWER_CHARACTERS} 个字符，须精简。"
_IS_CUT: Final = "回答达到模型的输出长度上限而中断，须精简后写完整。"
_MAY_LACK: Final = "回答达到模型的输出长度上限，可能不完整。"
_UNCHECKED: Final = "回答提到的法规与条文未经检索核对。"
# Only a draft with faults is written anew. What rules could repair in it is repaired; one that was cut short is as it was.
_DRAFT_KEPT: Final = "重写没有完成（{reason}），发布的是按规则修正后的草稿。"
_CUT_KEPT: Final = "重写没有完成（{reason}），发布的是重写之前的草稿。"


@dataclass(frozen=True, slots=True)
class Task:
    """What is asked. `references` are the criteria alone: whatever else a report names was looked up by nobody.

    `verbatim`: a report is published as the model wrote it, but for citation marks; its level stays too (hybrid).
    """

    question: str
    num_images: int
    rules: Rules
    references: References
    verbatim: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """`text` is what may be published, "" when nothing may; `faults` are what to ask the model again about, in Chinese.

    `report` is None for the plain answer to a question that asks for no report. `reason` is why text that went out
    before is sent anew.
    """

    text: str = ""
    report: Report | None = None
    faults: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    reason: ResetReason = "format"

    @property
    def categories(self) -> list[str | None]:
        """`hazard_categories` of an answer."""
        return hazard_categories(self.report) if self.report else []


def judge(text: str, task: Task, is_cut: bool = False) -> Verdict:
    """What an answer is worth. `is_cut`: it ended at the model's limit of tokens. Takes up to a second of CPU."""
    if len(text) > MAX_ANSWER_CHARACTERS:
        return Verdict(faults=(_TOO_LONG,))
    may_lack = (_MAY_LACK,) if is_cut else ()
    said = strip_citations(text)  # which also bounds runs of white space, on which patterns would take long
    if not requires_report(task.question) and not is_report(said, task.rules.taxonomy):
        return _judge_plain(said, task, may_lack)
    if task.verbatim:
        return _judge_words(said, task, is_cut)
    reading = read_free_form(said, task.num_images, task.rules, task.references)
    if reading.faults:
        return Verdict(report=reading.report, faults=reading.faults)
    return Verdict(
        reading.text,
        reading.report,
        (*reading.repairs, *((_IS_CUT,) if is_cut else ())),
        (*reading.warnings, *may_lack),
        "level" if reading.is_downgraded else "format",
    )


def _judge_words(said: str, task: Task, is_cut: bool) -> Verdict:
    report = parse(said, task.rules.taxonomy)
    # Lines that are no text (***) may have kept the halves of a mark apart.
    report = replace(report, blocks=tuple(map(_without_marks, report.blocks)))
    if faults := check(report, task.num_images, "free_form", task.rules.taxonomy):
        return Verdict(report=report, faults=tuple(faults))
    return Verdict(said, report, (_IS_CUT,) if is_cut else (), (_MAY_LACK,) if is_cut else ())


def _without_marks(block: Block) -> Block:
    raw = strip_citations(block.description.raw)
    is_same = raw == block.description.raw
    return block if is_same else replace(block, description=read_section(raw))


def _judge_plain(said: str, task: Task, may_lack: tuple[str, ...]) -> Verdict:
    if not said:
        return Verdict(faults=("回答为空。",))
    names_laws = bool(unsupported(task.references.check(said)))
    return Verdict(said, None, (), (*may_lack, *((_UNCHECKED,) if names_laws else ())))


class FreeForm:
    """One description of the pictures of one request. `run` it once; then `verdict` is what is published.

    `in_thread` runs the reading of an answer off the event loop.
    """

    def __init__(
        self,
        calls: VisionCalls,
        messages: Sequence[Message],
        task: Task,
        in_thread: Callable[[Callable[[], Verdict]], Awaitable[Verdict]],
    ) -> None:
        self.verdict = Verdict()
        self._calls = calls
        self._messages = messages
        self._task = task
        self._in_thread = in_thread
        self._channel = AnswerChannel()
        self._thinking: list[str] = []
        self._begin()

    @property
    def reasoning(self) -> str:
        """The `reasoning` tokens so far, joined."""
        return "".join(self._thinking)

    async def run(self) -> AsyncGenerator[Event, None]:
        """Yields the answer and, where it was asked for, the thinking as they come. Raises CgError: what VisionCalls
        raises, vision_response_invalid."""
        async with aclosing(self._ask(self._messages, "看图")) as events:
            async for event in events:
                yield event
        if self.verdict.faults:
            async with aclosing(self._correct(self.verdict)) as events:
                async for event in events:
                    yield event
        if not self.verdict.text:
            raise invalid_response(
                "；".join(fault.rstrip("。") for fault in self.verdict.faults), self._calls.attempts
            )
        for piece in self._channel.settle(self.verdict.text, self.verdict.reason):
            yield piece

    async def _correct(self, first: Verdict) -> AsyncGenerator[Event, None]:
        said = "".join(self._said)[:MAX_QUOTED_CHARACTERS].strip() or "（空）"
        ask = correction(first.faults) if self._asks_report(first) else "上面的回答为空或过长，请重新回答。"
        more = [{"role": "assistant", "content": said}, {"role": "user", "content": ask}]
        yield Progress("correction", "回答不合要求，正在重写", "running")
        for reset in self._channel.reset("correction"):
            yield reset
        try:
            async with aclosing(self._ask([*self._messages, *more], "纠正")) as events:
                async for event in events:
                    yield event
        except CgError as error:
            if not first.text:
                raise
            self.verdict = _kept(first, error.message)
        if not self.verdict.text and first.text:
            self.verdict = _kept(first, "重写的仍不合要求")
        yield Progress("correction", "重写结束", "done")

    def _asks_report(self, first: Verdict) -> bool:
        return first.report is not None or requires_report(self._task.question)

    async def _ask(self, messages: Sequence[Message], stage: str) -> AsyncGenerator[Event, None]:
        self._begin()
        is_cut = False
        async with aclosing(self._calls.stream(messages, stage)) as deltas:
            async for delta in deltas:
                for event in self._take(delta):
                    yield event
                is_cut = delta.finish_reason == "length"
                if self._num_characters > MAX_ANSWER_CHARACTERS:
                    break
        for event in self._channel.release(self._marks.finish()):
            yield event
        text = "".join(self._said)
        self.verdict = await self._in_thread(lambda: judge(text, self._task, is_cut))

    def _begin(self) -> None:
        self._said: list[str] = []
        self._num_characters = 0
        self._marks = MarkFilter("none", lambda number: None)

    def _take(self, delta: ChatDelta) -> Iterator[Event]:
        if delta.retracts_text:
            yield from self._channel.reset("thinking") if self._channel.text else ()
            yield from self._think("".join(self._said))
            self._begin()
        yield from self._think(delta.thinking)
        if delta.text:
            self._said.append(delta.text)
            self._num_characters += len(delta.text)
            yield from self._channel.release(self._marks.feed(delta.text))

    def _think(self, text: str) -> Iterator[Event]:
        if self._calls.thinks and text:
            self._thinking.append(text)
            yield Token("reasoning", text)


def _kept(first: Verdict, reason: str) -> Verdict:
    words = _CUT_KEPT if first.faults == (_IS_CUT,) else _DRAFT_KEPT
    warning = words.format(reason=reason.rstrip("。"))
    return replace(first, warnings=(*first.warnings, warning))
