"""rag inside this process: retrieval first, generation after it, each with a slot of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cg_rag.core.config import load
from cg_rag.core.errors import CgError
from cg_rag.core.events import AnswerReset, Event, Final, Retrieval, Token, drain
from cg_rag.core.requests import parse_request
from cg_rag.modes import rag
from cg_rag.modes.services import Services, make_services
from tests.fake_upstream import Hang, error, fake_upstream, says


@asynccontextmanager
async def serving(url: str, index_dir: Path, tmp_path: Path, **generation: Any) -> AsyncIterator[Services]:
    section = ({"endpoint": url, "model": "m"} if url else {}) | generation
    config = tmp_path / "config.yaml"
    body = {"index": {"dir": str(index_dir)}, "embedding": {"provider": "none"}, "generation": section}
    config.write_text(json.dumps({"cg_rag": body}), "utf-8")
    services = make_services(load(config, {}).settings)
    services.library.refresh()
    try:
        yield services
        assert services.generation_slots.in_use == 0
        assert services.retrieval_slots.in_use == 0
    finally:
        await services.close()
        services.library.close()
        services.threads.shutdown()


def run(services: Services, **fields: Any) -> AsyncIterator[Event]:
    body = {"query": "脚手架搭设后怎么验收", "topk": 2} | fields
    return rag.run(parse_request(rag.Request, body), services, "req_1")


async def test_answer_holds_retrieval_and_generation(small_index: Path, tmp_path: Path) -> None:
    async with (
        fake_upstream(says('{"indices":[1]}')) as upstream,
        serving(upstream.url, small_index, tmp_path) as services,
    ):
        payload = await drain(run(services))
    assert list(payload) == ["ok", "request_id", "query", "scope", "retrieval", "generation", "runtime_stats"]
    assert (payload["ok"], payload["request_id"], payload["scope"]) == (True, "req_1", "full")
    retrieval, generation = payload["retrieval"], payload["generation"]
    assert not {"ok", "request_id", "query", "scope"} & set(retrieval)
    assert retrieval["num_docs"] == len(retrieval["retrieval_docs"]) == 2
    best = retrieval["retrieval_docs"][0]
    assert generation["pred_items"] == [f"{best['law_name']} {best['article_number']}"]
    assert "request_id" not in generation
    assert set(payload["runtime_stats"]) == {"retrieval_ms", "generation_ms", "total_time_ms"}


async def test_events_come_in_the_order_of_the_work(small_index: Path, tmp_path: Path) -> None:
    async with (
        fake_upstream(says('{"indices":[2]}')) as upstream,
        serving(upstream.url, small_index, tmp_path) as services,
    ):
        events = [event async for event in run(services)]
    names = [type(event).__name__ for event in events]
    assert names == ["Progress", "Progress", "Retrieval", "Progress", "Token", "Token", "Progress", "Final"]
    found, final = events[2], events[-1]
    assert isinstance(found, Retrieval)
    assert isinstance(final, Final)
    assert list(found.payload) == ["num_docs", "retrieval_docs", "cache"]
    assert [list(doc) for doc in found.payload["retrieval_docs"]] == [
        ["law_name", "article_number", "contents"]
    ] * 2
    told = "".join(event.text for event in events if isinstance(event, Token))
    assert told == final.payload["generation"]["answer_text"]


@pytest.mark.parametrize(
    ("url_given", "replies", "code"),
    [
        (False, [], "generation_not_configured"),
        (True, [error(400)], "generation_upstream_error"),
        (True, [says("无"), says("无")], "generation_response_invalid"),
    ],
)
async def test_what_was_retrieved_stays_when_generation_fails(
    small_index: Path, tmp_path: Path, url_given: bool, replies: list[Any], code: str
) -> None:
    async with (
        fake_upstream(*replies) as upstream,
        serving(upstream.url if url_given else "", small_index, tmp_path) as services,
    ):
        payload = await drain(run(services))
    assert payload["ok"] is payload["generation"]["ok"] is False
    assert payload["generation"]["error"]["code"] == code
    assert payload["retrieval"]["num_docs"] == 2


async def test_lines_of_a_failed_generation_are_taken_back(small_index: Path, tmp_path: Path) -> None:
    cut = says(['{"indices":[1,', "2]}"], cut_after=2)
    async with (
        fake_upstream(cut, error(400)) as upstream,
        serving(upstream.url, small_index, tmp_path) as services,
    ):
        events = [event async for event in run(services)]
    kinds = [type(event) for event in events if isinstance(event, (Token, AnswerReset))]
    assert kinds == [Token, Token, AnswerReset]
    assert isinstance(events[-1], Final)
    assert events[-1].payload["generation"]["answer_text"] == ""


async def test_nothing_found_asks_no_model(small_index: Path, tmp_path: Path) -> None:
    async with fake_upstream() as upstream, serving(upstream.url, small_index, tmp_path) as services:
        payload = await drain(run(services, query="qqq"))
    assert payload["retrieval"]["num_docs"] == 0
    assert payload["generation"]["answer_text"] == "当前候选条文中未找到与问题直接相关的条文。"
    assert payload["ok"] is True
    assert not upstream.requests


@pytest.mark.parametrize("fields", [{"scope": "nowhere"}, {"scope": ""}])
async def test_wrong_scope_is_an_error(small_index: Path, tmp_path: Path, fields: dict[str, Any]) -> None:
    async with fake_upstream() as upstream, serving(upstream.url, small_index, tmp_path) as services:
        with pytest.raises(CgError) as refused:
            await drain(run(services, **fields))
    assert refused.value.code == "invalid_request"
    assert refused.value.details["available_scopes"] == ["full"]


async def test_waiting_for_a_generation_slot_holds_no_retrieval_slot(
    small_index: Path, tmp_path: Path
) -> None:
    script = says('{"indices":[1]}', cut_after=1, cut_by=[Hang()])
    async with fake_upstream(script) as upstream, serving(upstream.url, small_index, tmp_path) as services:
        limiter = type(services.generation_slots)
        services = replace(services, generation_slots=limiter("generation", 1, 0.2))
        first = asyncio.create_task(drain(run(services)))
        await upstream.until(lambda: len(upstream.requests) == 1)
        second = asyncio.create_task(drain(run(services)))
        async with asyncio.timeout(30):
            while not services.generation_slots.snapshot()["waiting"]:
                await asyncio.sleep(0)
        assert services.retrieval_slots.in_use == 0
        with pytest.raises(CgError) as refused:
            await second
        assert refused.value.details["resource"] == "generation"
        first.cancel()
        await asyncio.wait([first])


async def test_local_provider_answers_from_the_scores_of_retrieval(small_index: Path, tmp_path: Path) -> None:
    async with serving("", small_index, tmp_path, provider="local") as services:
        payload = await drain(run(services))
    assert payload["generation"]["provider"] == "local"
    assert payload["generation"]["pred_indices"][0] == 1
