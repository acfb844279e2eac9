"""The free-form conversation against a scripted client: whatever the model writes, however it is cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cg_rag.core.budget import Budget
from cg_rag.core.errors import CgError
from cg_rag.core.events import AnswerReset
from cg_rag.core.free_form import MAX_ANSWER_CHARACTERS, FreeForm, Task, Verdict, judge
from cg_rag.core.upstream import ChatDelta, ChatRequest, ChatResult, ChatUpstream, UpstreamEmpty
from cg_rag.core.vision_calls import VisionCalls
from cg_rag.modes.vision_rules import load_vision_texts
from tests.core.test_report import ANY_WRITTEN, hold_to_contract
from tests.seeing import PLAIN_QUESTION, REPORT
from tests.sse_checker import answer_of

TEXTS = load_vision_texts(None)
CATEGORIES = {*TEXTS.rules.taxonomy.categories, TEXTS.rules.taxonomy.none, None}
HAZARD_QUESTION = "请检测图中的安全隐患"


class ScriptedChat:
    """Says the next text on each call, in pieces; "" is an answer without text."""

    def __init__(self, texts: Sequence[str], size: int) -> None:
        self.requests: list[ChatRequest] = []
        self._texts: Iterator[str] = iter(texts)
        self._size = size

    async def stream(
        self, request: ChatRequest, budget_seconds: float | None = None
    ) -> AsyncGenerator[ChatDelta, None]:
        self.requests.append(request)
        text = next(self._texts)
        if not text.strip():
            failure = UpstreamEmpty("empty")
            failure.attempts = 1
            raise failure
        for start in range(0, len(text), self._size):
            yield ChatDelta(text=text[start : start + self._size])
        yield ChatDelta(finish_reason="stop", result=ChatResult(text, "", (), {"total_tokens": 5}, "stop"))


async def at_once(function: Callable[[], Verdict]) -> Verdict:
    return function()


def make(texts: Sequence[str], num_images: int, question: str, size: int) -> tuple[FreeForm, ScriptedChat]:
    chat = ScriptedChat(texts, size)
    calls = VisionCalls(cast(ChatUpstream, chat), Budget(60), thinks=False)
    task = Task(question, num_images, TEXTS.rules, TEXTS.criteria_alone)
    return FreeForm(calls, [{"role": "user", "content": question}], task, at_once), chat


def play(
    texts: Sequence[str], num_images: int = 1, question: str = HAZARD_QUESTION, size: int = 3
) -> tuple[FreeForm, list[Any], CgError | None]:
    """The conversation at its end, its events, and what it ended with."""
    conversation, _ = make(texts, num_images, question, size)
    events: list[Any] = []

    async def run() -> None:
        async for event in conversation.run():
            events.append(event)

    try:
        asyncio.run(run())
    except CgError as error:
        return conversation, events, error
    return conversation, events, None


@settings(max_examples=120)
@given(ANY_WRITTEN, ANY_WRITTEN, st.sampled_from([HAZARD_QUESTION, PLAIN_QUESTION]), st.integers(1, 40))
def test_whatever_the_model_writes_a_report_a_plain_answer_or_an_error_comes_of_it(
    first: tuple[str, int], second: tuple[str, int], question: str, size: int
) -> None:
    num_images = first[1]
    conversation, events, error = play([first[0], second[0]], num_images, question, size)
    if error is not None:
        assert error.code == "vision_response_invalid"
        assert error.details["attempts"] == 2
        return
    verdict = conversation.verdict
    assert answer_of(events) == verdict.text != ""
    assert "cite^" not in verdict.text
    if verdict.report is None:
        assert question == PLAIN_QUESTION
        assert verdict.categories == []
    else:
        hold_to_contract(verdict.text, num_images)
        assert len(verdict.categories) == num_images
        assert set(verdict.categories) <= CATEGORIES


def test_no_more_than_one_correction_is_asked_for() -> None:
    conversation, events, error = play(["隐患等级：很高", "隐患等级：很高", REPORT])
    assert error is not None
    assert [type(event) for event in events].count(AnswerReset) == 1
    assert conversation.verdict.text == ""


def test_a_statement_that_would_go_with_a_law_is_asked_about_and_cut_only_then() -> None:
    lawful = REPORT.replace("未采取", "《建筑法》第三条规定这里须排水。未采取")
    conversation, chat = make([lawful, REPORT], 1, HAZARD_QUESTION, 9)

    async def run() -> None:
        async for _ in conversation.run():
            pass

    asyncio.run(run())
    assert (conversation.verdict.text, conversation.verdict.warnings) == (REPORT, ())
    assert "《建筑法》第三条" in chat.requests[1].messages[-1]["content"]
    stubborn, _, _ = play([lawful, lawful])
    assert "建筑法" not in stubborn.verdict.text
    assert any("建筑法" in warning for warning in stubborn.verdict.warnings)


@pytest.mark.parametrize(
    "rubbish", ["[cite^", "第七条", "1. 《甲法》第三条。\n", "隐患等级：", "图1\n", "（【[〔"]
)
def test_what_is_too_long_is_not_read_at_all(rubbish: str) -> None:
    text = rubbish * (MAX_ANSWER_CHARACTERS // len(rubbish) + 2)
    task = Task(HAZARD_QUESTION, 1, TEXTS.rules, TEXTS.criteria_alone)
    assert judge(text, task).faults == ("回答超过 16000 个字符，须精简。",)


def test_the_channel_is_not_reset_when_nothing_differs() -> None:
    _, events, _ = play([REPORT])
    assert not [event for event in events if isinstance(event, AnswerReset)]
