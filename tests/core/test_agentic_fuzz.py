"""Whatever the model writes: nothing is published, or sent on the way, that has no evidence."""

from __future__ import annotations

import asyncio

import pytest

from cg_rag.core.events import AnswerReset, Token
from cg_rag.modes.vision_rules import load_rules
from tests.agentic_fuzz import Fuzzer
from tests.agentic_invariants import check_text, check_verdict

SHORT_REQUESTS = 700  # about 2,000 outputs
LONG_REQUESTS = 36_000  # more than 100,000


async def check_requests(fuzzer: Fuzzer, seeds: range) -> None:
    for seed in seeds:
        events, case, texts = await fuzzer.run(seed)
        references = fuzzer.references_of(case.store.items)
        try:
            answers = [""]
            for event in events:
                if isinstance(event, AnswerReset):
                    answers.append("")
                elif isinstance(event, Token) and event.channel == "answer":
                    answers[-1] += event.text
            for text in answers:
                check_text(text, references)
            if case.verdict is not None:
                assert answers[-1] == case.verdict.text
                check_verdict(case.verdict, case.store.documents, references, case.task.num_images)
            for stage in case.stages:
                check_text(stage["content"], references, is_question=stage["label"] == "SEARCH_PLAN")
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}\n" + "\n———\n".join(texts)) from error


def test_nothing_without_evidence_is_published_or_sent_whatever_the_model_writes() -> None:
    fuzzer = Fuzzer(load_rules(None))
    asyncio.run(check_requests(fuzzer, range(SHORT_REQUESTS)))
    assert fuzzer.num_outputs >= 2000
    # Were nearly all refused, nothing would be shown.
    assert fuzzer.num_published > SHORT_REQUESTS / 4


@pytest.mark.slow
def test_nothing_without_evidence_is_published_or_sent_in_a_hundred_thousand_outputs() -> None:
    fuzzer = Fuzzer(load_rules(None))
    asyncio.run(check_requests(fuzzer, range(1_000_000, 1_000_000 + LONG_REQUESTS)))
    print(f"{fuzzer.num_outputs} outputs, {fuzzer.num_published} published, {fuzzer.num_refused} refused")
    assert fuzzer.num_outputs >= 100_000
