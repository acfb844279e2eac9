from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace

import pytest

from cg_rag.core import account
from cg_rag.core.account import Account, account_var, keeping_texts, noting_call
from cg_rag.core.events import Event, Final, Token, drain


@pytest.fixture
def opened() -> Iterator[Account]:
    made = Account(keeps_texts=True)
    token = account_var.set(made)
    yield made
    account_var.reset(token)


def test_notes_outside_of_a_request_go_nowhere() -> None:
    with noting_call("vision") as note:
        note.done({"prompt_tokens": 1})
    for name in ("rerank", "vision"):
        account.note_retry(name)
        account.note_upstream_error(name, "cut")
    account.note_stage("read", 1.0)
    account.note_cache(True)
    account.note_code("x")
    account.note_tool("cg_rag", "", 1.0)
    account.note_first_token()
    account.note_degraded()
    assert account.business_code() == ""
    assert account_var.get() is None


def test_calls_of_one_upstream_add_up_and_zeros_are_left_out(opened: Account) -> None:
    for usage in ({"prompt_tokens": 10, "completion_tokens": 2}, {"prompt_tokens": 5}, None):
        with noting_call("vision") as note:
            note.done(usage)
    account.note_retry("vision")
    assert opened.of("vision").as_json() == {
        "calls": 3,
        "retries": 1,
        "prompt_tokens": 15,
        "completion_tokens": 2,
    }
    assert Account().of("rerank").as_json() == {"calls": 0}


@pytest.mark.parametrize(
    ("error", "outcome"), [(None, "ok"), (ValueError(), "failed"), (asyncio.CancelledError(), "left")]
)
def test_call_ends_as_answered_failed_or_left(error: BaseException | None, outcome: str) -> None:
    seen = []

    def run() -> None:
        with noting_call("vision") as note:
            seen.append(note)
            if error is not None:
                raise error
            note.done()

    if error is None:
        run()
    else:
        with pytest.raises(type(error)):
            run()
    assert seen[0].outcome == outcome


def test_several_look_ups_are_a_hit_when_all_are(opened: Account) -> None:
    assert opened.cache_hit is None
    account.note_cache(True)
    assert opened.cache_hit is True
    account.note_cache(False)
    account.note_cache(True)
    assert opened.cache_hit is False


@pytest.mark.parametrize(
    ("payload", "answer"),
    [
        ({"answer": "甲"}, "甲"),
        ({"answer_text": "乙"}, "乙"),
        ({"generation": {"answer_text": "丙"}}, "丙"),
        ({"text": "丁"}, "丁"),
        ({"retrieval_docs": []}, ""),
    ],
)
async def test_question_and_answer_are_kept_and_cut(
    opened: Account, payload: dict[str, object], answer: str
) -> None:
    async def mode() -> AsyncIterator[Event]:
        yield Token("answer", "x")
        yield Final(payload)

    request = SimpleNamespace(question="问" * 5000, images=["secret"])
    assert await drain(keeping_texts(request, mode())) == payload
    assert opened.texts == {"question": "问" * account.MAX_KEPT_CHARACTERS, "answer": answer}


async def test_nothing_is_kept_where_nobody_asked_for_it(opened: Account) -> None:
    opened.keeps_texts = False

    async def mode() -> AsyncIterator[Event]:
        yield Final({"answer": "甲"})

    events = mode()
    assert keeping_texts(SimpleNamespace(query="q"), events) is events
    await drain(events)
    assert opened.texts == {}
