"""A chat client with its session and the scripted server that it calls, for the tests of the client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from pydantic import SecretStr

from cg_rag.core.upstream import (
    ChatDelta,
    ChatRequest,
    ChatUpstream,
    UpstreamError,
    UpstreamSettings,
    open_session,
)
from tests.fake_upstream import FakeUpstream, fake_upstream
from tests.steady_clock import steady_clock

KEY = "sk-canary-0123456789"
ASK = ChatRequest([{"role": "user", "content": "脚手架何时验收？请用 JSON 回答。"}])


@dataclass
class Bench:
    server: FakeUpstream
    client: ChatUpstream


@asynccontextmanager
async def bench(*replies: Any, **options: Any) -> AsyncIterator[Bench]:
    """A client, its session, and the server that it calls; nothing may be left over at the end."""
    async with steady_clock(), fake_upstream(*replies) as server:
        defaults = {"model": "m", "api_key": SecretStr(KEY), "backoff_seconds": 0.01, "timeout_seconds": 10.0}
        settings = UpstreamSettings(**{"endpoint": server.url, **defaults, **options})
        async with open_session(settings) as session:
            yield Bench(server, ChatUpstream(settings, session))
        assert server.num_left == 0, "a reply that nobody asked for"


async def streamed(client: ChatUpstream, request: ChatRequest = ASK, **options: Any) -> list[ChatDelta]:
    async with aclosing(client.stream(request, **options)) as deltas:
        return [delta async for delta in deltas]


async def failure_of(
    client: ChatUpstream, streaming: bool = True, **options: Any
) -> tuple[str, UpstreamError]:
    """(text that was handed on, the error)."""
    seen = ""
    try:
        if not streaming:
            await client.complete(ASK, **options)
        async with aclosing(client.stream(ASK, **options)) as deltas:
            async for delta in deltas:
                seen += delta.text
    except UpstreamError as failure:
        return seen, failure
    raise AssertionError("no failure")
