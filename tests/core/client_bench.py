"""A client of a JSON upstream, its session and the scripted server that it calls, for the tests of each such client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from cg_rag.core.upstream_session import open_session
from tests.fake_upstream import PATIENCE_SECONDS, FakeUpstream, fake_upstream
from tests.steady_clock import steady_clock

Client = TypeVar("Client")


@dataclass
class Bench(Generic[Client]):
    server: FakeUpstream
    client: Client


@asynccontextmanager
async def bench_of(
    make_client: Callable[[Any, Any], Client], make_settings: Callable[[str], Any], *replies: Any
) -> AsyncIterator[Bench[Client]]:
    """`make_settings` is handed the server's base URL. No reply may be left over at the end."""
    async with steady_clock(), fake_upstream(*replies) as server:
        chosen = make_settings(server.url)
        async with open_session(chosen) as session:
            yield Bench(server, make_client(chosen, session))
        assert server.num_left == 0, "a reply that nobody asked for"


def on_loop_of(server: FakeUpstream, condition: Callable[[], bool]) -> None:
    """Waits, in a thread of its own, until `condition` holds for a server that runs in another one."""
    assert server._loop is not None
    asyncio.run_coroutine_threadsafe(server.until(condition), server._loop).result(PATIENCE_SECONDS)
