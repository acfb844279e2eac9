"""The continuous workflow: one conversation, in which the model that sees decides what is looked up.

Inventory (where the profile has it), then turns of the public protocol: a plan is searched for, an answer is judged.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from cg_rag.core.agentic_case import Case
from cg_rag.core.agentic_messages import (
    BROKEN_PROTOCOL,
    NO_EVIDENCE,
    NO_ROUNDS_LEFT,
    SEARCH_FAILED,
    ask_for_inventory,
    ask_to_begin,
    quote,
    tell_evidence,
    tell_nothing_found,
)
from cg_rag.core.events import Agent, Event
from cg_rag.core.protocol import parse_questions


async def run_continuous(case: Case) -> AsyncGenerator[Event, None]:
    """Ends with `case.verdict`. Raises CgError."""
    begin = ask_to_begin(case.task.question, case.brief.max_rounds)
    if case.brief.profile.inventory and case.task.requires_report:
        async with aclosing(_take_inventory(case)) as events:
            async for event in events:
                yield event
        case.messages.append({"role": "user", "content": begin})
    else:
        case.messages = case.brief.conversation("continuous", begin)
    for event in case.begin_observation():
        yield event
    while case.verdict is None:
        async with aclosing(_take_turn(case)) as events:
            async for event in events:
                yield event


async def _take_inventory(case: Case) -> AsyncGenerator[Event, None]:
    """The visible facts in six sections: for the model itself, and no stage of the answer."""
    label = "正在按六个分区清点画面"
    yield Agent("vision.inventory", "observation", "running", label)
    instruction = ask_for_inventory(case.brief.instructions["inventory"], case.task.question)
    case.messages = case.brief.conversation("continuous", instruction)
    result = await case.means.calls.complete(case.messages, "观察清单")
    case.messages.append({"role": "assistant", "content": quote(result.text)})
    yield Agent("vision.inventory", "observation", "done", label)


async def _take_turn(case: Case) -> AsyncGenerator[Event, None]:
    stage = "成文" if case.rounds else "观察"
    async with aclosing(case.speak(stage)) as events:
        async for event in events:
            yield event
    async with aclosing(_follow(case)) as events:
        async for event in events:
            yield event


async def _follow(case: Case) -> AsyncGenerator[Event, None]:
    """What a turn leads to: its answer is judged, its plan searched for, else it has to be written anew."""
    answer = case.answer
    questions = parse_questions(case.turn.parser.find("SEARCH_PLAN") or "")
    if answer is not None:
        async with aclosing(case.weigh(answer)) as events:
            async for event in events:
                yield event
    elif questions and case.rounds_left:
        async with aclosing(case.search(questions)) as events:
            async for event in events:
                yield event
        case.tell(tell_round(case))
    else:
        await case.keep_unlabelled()
        words = NO_ROUNDS_LEFT if questions else BROKEN_PROTOCOL
        for event in case.ask_again(words, (words,)):
            yield event


def tell_round(case: Case) -> str:
    """What the last round found, for the model."""
    if case.new or case.known:
        return tell_evidence(case.rounds, case.new, case.known, case.rounds_left)
    reason = NO_EVIDENCE if case.has_searched else SEARCH_FAILED
    if len(case.store):
        return tell_evidence(case.rounds, (), (), case.rounds_left)
    return tell_nothing_found(case.rounds, reason, case.rounds_left)
