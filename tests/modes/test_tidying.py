"""When the service gives memory back: after answers from the cache, too, and not for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from cg_rag.modes import http_app
from tests.modes.conftest import ask

POLL_SECONDS = 0.1


async def test_memory_goes_back_after_answers_from_the_cache_and_then_rests(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[None] = []
    monkeypatch.setattr(http_app, "give_back", lambda: times.append(None))

    async def rest(more_than: int) -> int:
        """How often, once it is more and nothing further comes for ten looks."""
        async with asyncio.timeout(60):
            while len(times) <= more_than:
                await asyncio.sleep(POLL_SECONDS)
            before = -1
            while before != len(times):
                before = len(times)
                await asyncio.sleep(10 * POLL_SECONDS)
        return before

    _, url = await start(poll_seconds=POLL_SECONDS)
    assert (await ask(url, "脚手架"))[0] == 200
    after_search = await rest(0)
    status, answer = await ask(url, "脚手架")
    assert (status, answer["cache"]["hit"]) == (200, True)
    assert await rest(after_search) > after_search
