"""The mode over real HTTP inside this process, where a thread can be held and an index broken on purpose."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cg_rag.modes.services import Services
from tests.app_in_process import apps_in_process
from tests.conftest import PROFILES


class Held:
    """A thread pool whose threads are all busy until `release` is set."""

    def __init__(self, services: Services) -> None:
        self.release = threading.Event()
        self.services = services
        self._futures = [
            services.threads.submit(self.release.wait, 30)
            for _ in range(services.settings.capacity.retrieval.max)
        ]


@pytest.fixture
async def start(small_index: Path, tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """`services, url = await start("…settings…")`: the application behind a real port, its index loaded."""
    async with apps_in_process(tmp_path / "config.yaml") as begin:

        async def begin_here(settings: str = "", index_dir: Path = small_index) -> tuple[Services, str]:
            services, url = await begin(PROFILES + settings, index_dir)
            return services, f"{url}/retrieve-rerank"

        yield begin_here


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


async def ask(session: aiohttp.ClientSession, url: str, query: str) -> tuple[int, dict[str, Any]]:
    async with session.post(url, json={"query": query}) as response:
        return response.status, await response.json()


async def test_seventeenth_retrieval_waits_and_is_then_refused(start: Callable[..., Any]) -> None:
    services, url = await start("  capacity: {wait_timeout_seconds: 0.2}\n")
    held = Held(services)
    async with aiohttp.ClientSession() as session:
        busy = [asyncio.create_task(ask(session, url, f"脚手架 {number}")) for number in range(16)]
        await until(lambda: services.retrieval_slots.in_use == 16)
        status, body = await ask(session, url, "脚手架 16")
        assert (status, body["error"]["code"]) == (429, "capacity.exceeded")
        assert body["error"]["message"] == "服务当前请求过多，请稍后重试。"
        assert body["error"]["details"] == {"resource": "retrieval", "max": 16, "wait_timeout_seconds": 0.2}
        held.release.set()
        assert {status for status, _ in await asyncio.gather(*busy)} == {200}
    assert services.retrieval_slots.in_use == 0


async def test_identical_questions_in_flight_take_one_slot(start: Callable[..., Any]) -> None:
    services, url = await start()
    held = Held(services)
    async with aiohttp.ClientSession() as session:
        tasks = [asyncio.create_task(ask(session, url, "脚手架验收")) for _ in range(8)]
        # All eight have looked; the one that searches takes its slot a turn of the loop later.
        await until(lambda: services.retrieval_cache.misses == 8 and services.retrieval_slots.in_use > 0)
        assert services.retrieval_slots.in_use == 1
        held.release.set()
        answers = await asyncio.gather(*tasks)
    assert {status for status, _ in answers} == {200}
    assert len({str(body["retrieval_docs"]) for _, body in answers}) == 1


async def test_client_leaving_gives_its_slot_back(start: Callable[..., Any]) -> None:
    services, url = await start()
    held = Held(services)
    async with aiohttp.ClientSession() as session:
        task = asyncio.create_task(ask(session, url, "脚手架验收"))
        await until(lambda: services.retrieval_slots.in_use == 1)
        task.cancel()
        await asyncio.wait([task])
    # The thread cannot be stopped, and the slot is held as long as it works.
    held.release.set()
    await until(lambda: services.retrieval_slots.in_use == 0)
    assert services.retrieval_cache.snapshot()["entries"] == 0


async def test_client_leaving_the_queue_leaves_nothing_there(start: Callable[..., Any]) -> None:
    services, url = await start("  capacity: {retrieval: {max: 1}}\n")
    held = Held(services)
    async with aiohttp.ClientSession() as session:
        first = asyncio.create_task(ask(session, url, "脚手架"))
        await until(lambda: services.retrieval_slots.in_use == 1)
        second = asyncio.create_task(ask(session, url, "动火"))
        await until(lambda: services.retrieval_slots.snapshot()["waiting"] == 1)
        second.cancel()
        await until(lambda: services.retrieval_slots.snapshot()["waiting"] == 0)
        held.release.set()
        assert (await first)[0] == 200
    assert services.retrieval_slots.in_use == 0


async def test_articles_that_cannot_be_read_any_more_are_retrieval_failed(
    start: Callable[..., Any], small_index: Path, tmp_path: Path
) -> None:
    index_dir = tmp_path / "index"
    shutil.copytree(small_index, index_dir)
    services, url = await start(index_dir=index_dir)
    os.truncate(next(index_dir.glob("*/articles.jsonl")), 10)
    async with aiohttp.ClientSession() as session:
        status, body = await ask(session, url, "脚手架")
    assert (status, body["error"]["code"]) == (502, "retrieval.failed")
    assert services.retrieval_slots.in_use == 0
    assert services.retrieval_cache.snapshot()["entries"] == 0


async def test_old_index_answers_while_a_new_one_takes_over(
    start: Callable[..., Any], small_index: Path, tmp_path: Path
) -> None:
    index_dir = tmp_path / "index"
    shutil.copytree(small_index, index_dir)
    _, url = await start(index_dir=index_dir)
    for folder in index_dir.iterdir():
        if folder.is_dir():
            shutil.rmtree(folder)
    async with aiohttp.ClientSession() as session:
        status, body = await ask(session, url, "脚手架")
    assert (status, body["num_docs"]) == (200, 2)


async def test_min_score_makes_nothing_found_a_possible_answer(start: Callable[..., Any]) -> None:
    _, url = await start("  retrieval: {min_score: 1000}\n")
    async with aiohttp.ClientSession() as session:
        assert (await ask(session, url, "脚手架"))[1]["num_docs"] == 0
        # What is named outright is never cut.
        assert (await ask(session, url, "《样例安全法》第二十八条"))[1]["num_docs"] >= 1
