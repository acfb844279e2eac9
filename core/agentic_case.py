"""One agentic request while it is worked on: what both workflows do with turns, evidence, answers and corrections.

Rule: an answer becomes the verdict when it passes its checks. What does not is corrected by the model, at most twice in
a request; then what rules could repair is published where the profile publishes, else it is vision_response_invalid.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from cg_rag.core.agentic_messages import ANSWER_AGAIN, SEARCH_FIRST, quote
from cg_rag.core.agentic_report import Answer, Task, Verdict, judge
from cg_rag.core.answer_channel import AnswerChannel
from cg_rag.core.claims import References
from cg_rag.core.errors import CgError
from cg_rag.core.events import Agent, Event, Token, Trace
from cg_rag.core.evidence import Evidence, EvidenceStore
from cg_rag.core.profile import VisionProfile
from cg_rag.core.protocol import Label, SceneStatus, find_scene
from cg_rag.core.public_turn import PublicTurn, Stage
from cg_rag.core.report_check import correction
from cg_rag.core.report_parse import is_report
from cg_rag.core.vision_calls import VisionCalls
from cg_rag.core.vision_errors import invalid_response

MAX_CORRECTIONS: Final = 2  # docs/vision.md: 至多纠正两次
FINAL_LABEL: Final = "正在生成最终回答"
_OUT_OF_TIME: Final = "整单时限已用完"
_UNFINISHED: Final = "重写没有完成（{reason}）"
_STILL_FAULTY: Final = "模型重写后仍不合要求"
_CHECKED: Final = "{why}，发布的是此前通过校验的回答。"
_REPAIRED: Final = "{why}，发布的是按规则修正后的草稿。"
_NOT_SEARCHED: Final = "本次没有检索法规，判定依据未经条文核对。"
_PUBLISHABLE_AFTER: Final = ("vision_budget_exceeded", "vision_upstream_error")

Result = TypeVar("Result")
Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Found:
    """What the questions of one round brought, a list of documents for each that could be asked."""

    results: Sequence[Sequence[Mapping[str, Any]]]
    num_failed: int
    warnings: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Brief:
    """What a request brings along. `systems` are the system messages by the name of their step, `instructions` the
    pinned texts that go into user messages."""

    task: Task
    profile: VisionProfile
    pictures: Sequence[Mapping[str, Any]]
    history: Sequence[Message]
    systems: Mapping[str, str]
    instructions: Mapping[str, str]
    max_rounds: int
    topk: int

    def user(self, *texts: str, with_pictures: bool = True) -> dict[str, Any]:
        parts = [*self.pictures] if with_pictures else []
        return {"role": "user", "content": [*parts, *({"type": "text", "text": text} for text in texts)]}

    def conversation(self, step: str, *texts: str) -> list[Message]:
        """System message, earlier turns, then the pictures and `texts`."""
        system = {"role": "system", "content": self.systems[step]}
        return [system, *self.history, self.user(*texts)]


@dataclass(frozen=True, slots=True)
class Means:
    """What a request is worked on with. `search` raises nothing but what ends the request; `in_thread` runs reading
    off the event loop."""

    calls: VisionCalls
    search: Callable[[Sequence[str]], Awaitable[Found]]
    make_references: Callable[[Sequence[Evidence]], References]
    in_thread: Callable[[Callable[[], Any]], Awaitable[Any]]


@dataclass(slots=True)
class Case:
    """`verdict` is None until the work is done. `messages` is the conversation that `speak` goes on with."""

    brief: Brief
    means: Means
    references: References
    store: EvidenceStore
    channel: AnswerChannel = field(default_factory=AnswerChannel)
    messages: list[Message] = field(default_factory=list)
    stages: list[dict[str, str]] = field(default_factory=list)
    trace: list[dict[str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    rounds: int = 0
    asked: list[str] = field(default_factory=list)
    new: Sequence[Evidence] = ()
    known: Sequence[Evidence] = ()
    scene: SceneStatus | None = None
    verdict: Verdict | None = None
    has_searched: bool = False
    """Whether any question was answered, with or without documents."""
    _turn: PublicTurn | None = None
    _fallback: Verdict | None = None
    _num_corrections: int = 0
    _open_retry: str = ""
    _was_told_to_search: bool = False
    _agents: set[str] = field(default_factory=set)

    @property
    def task(self) -> Task:
        return self.brief.task

    @property
    def turn(self) -> PublicTurn:
        assert self._turn is not None, "nothing was said yet"
        return self._turn

    @property
    def rounds_left(self) -> int:
        return self.brief.max_rounds - self.rounds

    # --- what is told on the way ---------------------------------------------------------------------------------

    def note(self, name: str, status: str, summary: str) -> Trace:
        """A node of the pipeline, kept for the answer."""
        self.trace.append({"name": name, "status": status, "summary": summary})
        return Trace(name, status, summary)

    def warn(self, *warnings: str) -> None:
        self.warnings += [warning for warning in warnings if warning not in self.warnings]

    def begin_observation(self) -> Iterator[Event]:
        yield from self._agent("vision.observation", "running")

    def end_observation(self) -> Iterator[Event]:
        if "vision.observation:running" in self._agents:
            yield from self._agent("vision.observation", "done")

    def begin_final(self) -> Iterator[Event]:
        yield from self.end_observation()
        yield from self._agent("vision.final", "running")

    def end_final(self) -> Iterator[Event]:
        yield from self._agent("vision.final", "done")

    def _agent(self, event_id: str, status: str) -> Iterator[Event]:
        """Each once."""
        if f"{event_id}:{status}" in self._agents:
            return
        self._agents.add(f"{event_id}:{status}")
        if event_id == "vision.final":
            yield Agent(event_id, "final", status, FINAL_LABEL)
        else:
            yield Agent(event_id, "observation", status, "正在观察图片")

    # --- turns ---------------------------------------------------------------------------------------------------

    async def speak(self, stage: str) -> AsyncGenerator[Event, None]:
        """One turn of the model on `messages`, streamed; then `turn` holds it."""
        turn = PublicTurn(
            self.channel,
            self.references,
            aligns=self.brief.profile.aligns_citations,
            # A hazard that nobody searched for may have to be searched for first.
            releases_answer=self.has_searched or not self.task.requires_report,
            begin_answer=self.begin_final,
            has_spoken=any(entry["content"] for entry in self.stages),
        )
        async with aclosing(self.means.calls.stream(self.messages, stage)) as deltas:
            async for delta in deltas:
                for event in turn.take(delta):
                    yield event
                if turn.is_too_long:
                    break
        for event in (*turn.finish(), *self.end_retry()):
            yield event
        self._turn = turn
        self._keep(turn)

    def _keep(self, turn: PublicTurn) -> None:
        self.stages += [{"label": stage.label, "content": stage.content} for stage in turn.stages]
        observation = turn.parser.find("OBSERVATION")
        if observation is not None:
            self.scene = find_scene(observation) or self.scene

    def tell(self, text: str) -> None:
        """Go on with the conversation after the last turn."""
        self.messages += [
            {"role": "assistant", "content": quote(self.turn.text)},
            {"role": "user", "content": text},
        ]

    def state(self, label: Label, text: str) -> Iterator[Event]:
        """A stage that the model wrote as JSON."""
        stage = Stage(label, self.references)
        shown = stage.feed(text) + stage.finish()
        gap = "\n\n" if any(entry["content"] for entry in self.stages) else ""
        self.stages.append({"label": label, "content": stage.content})
        if shown:
            yield Token("reasoning", gap + shown)

    # --- evidence ------------------------------------------------------------------------------------------------

    async def search(self, questions: Sequence[str]) -> AsyncGenerator[Event, None]:
        """One round. Then `new` and `known` are what it found. Raises retrieval.failed where the profile is strict
        and nothing could be asked so far."""
        self.rounds += 1
        name, event_id = f"第 {self.rounds} 轮法规检索", f"vision.search.{self.rounds}"
        for event in self.end_observation():
            yield event
        yield Agent(event_id, "search", "running", name)
        self.means.calls.budget.check(name)
        found = await self.means.search(questions)
        self.asked += questions
        num_before = len(self.store)
        items = self.store.add(found.results, self.brief.topk)
        self.new = [item for item in items if item.number > num_before]
        self.known = [item for item in items if item.number <= num_before]
        if self.new:
            evidence = self.store.items
            self.references = await self.means.in_thread(lambda: self.means.make_references(evidence))
        yield self._note_round(name, len(questions), found)
        yield Agent(event_id, "search", "done", name)
        if not self.has_searched and self.brief.profile.strict_retrieval_failure:
            raise CgError("retrieval.failed", details={"round": self.rounds})

    def _note_round(self, name: str, num_questions: int, found: Found) -> Trace:
        self.warn(*found.warnings)
        if found.num_failed == num_questions:
            self.warn(f"{name}失败，没有取得结果。")
            return self.note(name, "failed", f"执行 {num_questions} 条检索问题，检索全部失败。")
        self.has_searched = True
        if found.num_failed:
            self.warn(f"{name}有 {found.num_failed} 条检索问题失败。")
        return self.note(
            name, "done", f"执行 {num_questions} 条检索问题，累计保留 {len(self.store)} 条证据。"
        )

    # --- answers -------------------------------------------------------------------------------------------------

    @property
    def answer(self) -> str | None:
        """What the last turn gives as the answer. A report that was asked for again may come without labels."""
        text = self.turn.parser.find("ANSWER")
        is_bare = text is None and self._num_corrections > 0 and not self.turn.parser.blocks
        return self.turn.text if is_bare and self._is_report(self.turn.text) else text

    def _is_report(self, text: str) -> bool:
        return is_report(text, self.task.rules.taxonomy)

    async def weigh(self, text: str) -> AsyncGenerator[Event, None]:
        """Judge an answer: it becomes the verdict, or the model is told what is wrong with it."""
        verdict = await self._judge(text)
        must_search = verdict.passes and verdict.names_hazard and not self.rounds
        if must_search:
            verdict = verdict.with_warnings(_NOT_SEARCHED)
        if verdict.passes and (not must_search or self._was_told_to_search or not self.may_search_first):
            self.verdict = verdict
            return
        self.keep(verdict)
        self._was_told_to_search |= must_search
        faults = (*verdict.faults, *verdict.repairs)
        words = SEARCH_FIRST if must_search else correction(faults) + ANSWER_AGAIN
        for event in self.ask_again(words, faults, voids=True):
            yield event

    @property
    def may_search_first(self) -> bool:
        """Whether the model itself can still ask for a search."""
        return self.brief.profile.workflow == "continuous" and self.task.requires_report

    async def _judge(self, text: str) -> Verdict:
        turn = self.turn
        answer = Answer(text, self.scene, turn.parser.has_leaked, turn.is_cut)
        task, references = self.task, self.references
        verdict: Verdict = await self.means.in_thread(lambda: judge(answer, task, references))
        return verdict

    def keep(self, verdict: Verdict) -> None:
        """What is published when no better one comes."""
        if verdict.text and (verdict.passes or self.brief.profile.publishes):
            self._fallback = verdict

    async def keep_unlabelled(self) -> None:
        """A report that stands outside of the protocol, where rules may repair that."""
        if self.brief.profile.publishes and self._is_report(self.turn.text):
            self.keep(await self._judge(self.turn.text))

    def ask_again(self, words: str, faults: Sequence[str], *, voids: bool = False) -> Iterator[Event]:
        """Tell the model to write its last turn anew; from the third time on, take what there is instead.
        Raises vision_response_invalid."""
        if self._num_corrections == MAX_CORRECTIONS:
            self.verdict = self._salvaged(faults)
            return
        self.tell(words)
        yield from self.begin_retry()
        if voids:
            yield from self.channel.reset("correction")

    def begin_retry(self) -> Iterator[Event]:
        self._num_corrections += 1
        self._open_retry = f"vision.retry.{self._num_corrections}"
        yield Agent(self._open_retry, "retry", "running", "回答未通过校验，正在要求模型更正")

    def end_retry(self, label: str = "更正已完成") -> Iterator[Event]:
        if self._open_retry:
            yield Agent(self._open_retry, "retry", "done", label)
            self._open_retry = ""

    @property
    def may_ask_again(self) -> bool:
        return self._num_corrections < MAX_CORRECTIONS

    def _salvaged(self, faults: Sequence[str]) -> Verdict:
        if self._fallback is None:
            raise self.invalid(faults)
        if self._fallback.passes:
            return self._fallback
        return replace(self._fallback.with_warnings(_REPAIRED.format(why=_STILL_FAULTY)), reason="salvage")

    def invalid(self, faults: Sequence[str]) -> CgError:
        error = invalid_response("；".join(fault.rstrip("。") for fault in faults), self.means.calls.attempts)
        error.details["faults"] = list(faults)
        return error

    def rescue(self, error: CgError) -> None:
        """What could be published already is published when the work on a better one ends early; else `error`."""
        if self._fallback is None or error.code not in _PUBLISHABLE_AFTER:
            raise error
        is_late = error.code == "vision_budget_exceeded"
        why = _OUT_OF_TIME if is_late else _UNFINISHED.format(reason=error.message.rstrip("。"))
        words = _CHECKED if self._fallback.passes else _REPAIRED
        self.verdict = replace(self._fallback.with_warnings(words.format(why=why)), reason="salvage")
