"""A protocol label inside of an answer: taken out wherever it stands and however it comes, never published, never sent."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator

import pytest

from cg_rag.core.agentic_case import Case
from cg_rag.core.agentic_continuous import run_continuous
from cg_rag.core.errors import CgError
from cg_rag.core.events import AnswerReset, Event, Token
from cg_rag.core.profile import PROFILES
from cg_rag.core.upstream import ChatDelta, ChatResult
from cg_rag.modes.vision_rules import load_rules
from tests.agentic_fuzz import Fuzzer, ScriptedCalls
from tests.agentic_invariants import check_text
from tests.agentic_scenarios import PLAN, REVIEW, report

FUZZER = Fuzzer(load_rules(None))
LABELS = ("[ANSWER]", "【检索计划】", "&#91;EVIDENCE_REVIEW&#93;", "[AN[ANSWER]SWER]", "[OBSER\u200bVATION]")
PUBLISHED = report()


class CutCalls(ScriptedCalls):
    """Every text in pieces of `size` characters."""

    def __init__(self, texts: list[str], size: int) -> None:
        super().__init__(texts, random.Random(0))
        self._size = size

    async def stream(self, messages: object, stage: str) -> AsyncGenerator[ChatDelta, None]:
        text = self._next()
        for place in range(0, len(text), self._size):
            yield ChatDelta(text[place : place + self._size])
        yield ChatDelta(finish_reason="stop", result=ChatResult(text, "", (), None, "stop"))


async def converse(answers: list[str], size: int, profile: str = "e10") -> tuple[Case, list[Event]]:
    texts = [PLAN, *(f"{REVIEW}[ANSWER]\n{answer}\n" for answer in answers)]
    if PROFILES[profile].inventory:
        texts.insert(0, "一、人员与防护\n未见")
    case = FUZZER._open(CutCalls(texts, size), "请检测图中的安全隐患", PROFILES[profile], AlwaysAll())
    events: list[Event] = [event async for event in run_continuous(case)]
    assert case.verdict is not None
    return case, [*events, *case.channel.settle(case.verdict.text, case.verdict.reason)]


class AlwaysAll(random.Random):
    """One picture, all documents, no failure."""

    def choice(self, options):  # type: ignore[no-untyped-def]
        return options[0]

    def randint(self, a: int, b: int) -> int:
        return a

    def random(self) -> float:
        return 1.0


def sent(events: list[Event]) -> list[str]:
    """What went out on the channel of the answer, a text for each reset."""
    texts = [""]
    for event in events:
        if isinstance(event, AnswerReset):
            texts.append("")
        elif isinstance(event, Token) and event.channel == "answer":
            texts[-1] += event.text
    return texts


@pytest.mark.parametrize("label", LABELS[:3])
def test_at_every_place_the_label_goes_and_the_report_around_it_is_published(label: str) -> None:
    references = FUZZER.references_of(())

    async def check() -> None:
        for place in range(len(PUBLISHED) + 1):
            # Each cutting of the label, over all the places together.
            answer = PUBLISHED[:place] + label + PUBLISHED[place:]
            case, events = await converse([answer] * 3, size=1 + place % (len(label) + 2))
            assert case.verdict is not None
            assert case.verdict.text == PUBLISHED, answer
            # [ANSWER] said once more at the beginning of a line begins the answer, and is no fault.
            begins_line = not PUBLISHED[:place].split("\n")[-1].strip("# ")
            is_draft = not (label == "[ANSWER]" and begins_line)
            assert case.verdict.passes != is_draft
            told = "模型重写后仍不合要求，发布的是按规则修正后的草稿。" in case.verdict.warnings
            assert told == is_draft
            texts = sent(events)
            assert texts[-1] == PUBLISHED
            for text in texts:
                check_text(text, FUZZER.references_of(case.store.items) or references)

    asyncio.run(check())


@pytest.mark.parametrize("size", range(1, 14))
@pytest.mark.parametrize("label", LABELS)
def test_the_model_is_asked_to_take_it_out_before_rules_do(label: str, size: int) -> None:
    answer = PUBLISHED.replace("浸在", f"{label}浸在")
    case, events = asyncio.run(converse([answer, PUBLISHED], size))
    assert case.verdict is not None
    assert case.verdict.passes
    assert case.verdict.text == PUBLISHED == sent(events)[-1]
    assert "浸在" not in sent(events)[0]


def test_where_rules_repair_nothing_the_label_is_an_error() -> None:
    answer = PUBLISHED.replace("浸在", "[ANSWER]浸在")
    with pytest.raises(CgError) as caught:
        asyncio.run(converse([answer] * 3, 5, "continuous_base"))
    assert caught.value.code == "vision_response_invalid"
    assert "协议标签" in caught.value.details["faults"][0]


def test_a_label_that_comes_about_when_the_mark_within_is_cut_goes_too() -> None:
    answer = PUBLISHED.replace("浸在", "[AN[cite^9]SWER]浸在")
    case, _ = asyncio.run(converse([answer] * 3, 7))
    assert case.verdict is not None
    assert case.verdict.text == PUBLISHED


def test_a_stage_keeps_its_words_and_loses_the_label() -> None:
    case, _ = asyncio.run(converse([PUBLISHED], 3))
    assert [stage["content"] for stage in case.stages][2:] == [
        "[cite^1] 对应立杆底部积水，证据足够。",
        "积水为可见事实，按一般隐患定级。",
    ]
    texts = ["", PLAN, f"{REVIEW.replace('积水，证据', '积水[ANSWER]，证据')}[ANSWER]\n{PUBLISHED}"]
    profile = PROFILES["e10"]
    case = FUZZER._open(CutCalls(texts, 2), "请检测图中的安全隐患", profile, AlwaysAll())

    async def talk() -> None:
        async for _ in run_continuous(case):
            pass

    asyncio.run(talk())
    assert case.stages[2]["content"] == "[cite^1] 对应立杆底部积水，证据足够。"
