"""The chat client and time: time-outs, the caller's budget, and callers that leave."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from cg_rag.core.upstream import (
    ChatRequest,
    ChatUpstream,
    Slices,
    UpstreamSettings,
    UpstreamTimeout,
    open_session,
)
from tests.core.chat_bench import ASK, bench, failure_of, streamed
from tests.core.test_upstream_faults import CUTS, HTML
from tests.fake_upstream import SSE_HEADERS, Hang, Reply, Wait, chunk, error, raw, says, sse, streams
from tests.steady_clock import loop_seconds, steady_clock

# Time-outs.


async def test_no_first_byte_is_a_timeout_that_is_not_retried() -> None:
    async with bench(Reply(before=[Hang()]), first_byte_timeout_seconds=0.1) as b:
        _, failure = await failure_of(b.client)
        await b.server.until(lambda: b.server.num_disconnects == 1)
    assert isinstance(failure, UpstreamTimeout)
    assert str(failure) == "first_byte_timeout, 1 attempts"


async def test_a_head_alone_is_no_first_byte() -> None:
    async with bench(Reply([Hang()], headers=SSE_HEADERS), first_byte_timeout_seconds=0.1) as b:
        assert (await failure_of(b.client))[1].reason == "first_byte_timeout"


async def test_a_stall_after_tokens_is_a_timeout_and_closes_the_connection() -> None:
    async with bench(says("一二", cut_after=2, cut_by=[Hang()]), between_bytes_timeout_seconds=0.1) as b:
        seen, failure = await failure_of(b.client)
        assert (seen, failure.reason) == ("一", "between_bytes_timeout")
        await b.server.until(lambda: b.server.num_disconnects == 1)


async def test_an_answer_in_one_piece_may_take_longer_than_a_first_byte() -> None:
    def slow(request: Any) -> Reply:
        reply = says("好")(request)  # type: ignore[operator]
        return Reply(reply.steps, headers=reply.headers, length=reply.length, before=[Wait(0.2)])

    async with bench(slow, first_byte_timeout_seconds=0.05) as b:
        assert (await b.client.complete(ASK)).text == "好"


async def test_one_attempt_is_bounded_even_while_bytes_arrive() -> None:
    drip = [step for _ in range(100) for step in (b": keep-alive\n\n", Wait(0.02))]
    async with bench(Reply(drip, headers=SSE_HEADERS), timeout_seconds=0.2) as b:
        assert (await failure_of(b.client))[1].reason == "call_timeout"


@pytest.mark.parametrize("streaming", [True, False])
async def test_the_budget_ends_everything_on_time(streaming: bool) -> None:
    async with bench(Reply(before=[Hang()])) as b:
        start = loop_seconds()
        _, failure = await failure_of(b.client, streaming, budget_seconds=0.2)
        assert 0.2 <= loop_seconds() - start < 0.5
    assert isinstance(failure, UpstreamTimeout)
    assert failure.reason == "budget_spent"


async def test_a_spent_budget_sends_nothing() -> None:
    async with bench() as b:
        _, failure = await failure_of(b.client, budget_seconds=0.0)
        assert (failure.reason, failure.attempts, b.server.requests) == ("budget_spent", 0, [])


async def test_an_upload_is_not_counted_as_waiting_for_the_first_byte() -> None:
    # More than the system's buffers hold, and nobody reads it for longer than a first byte may take.
    body_bytes, first_byte_seconds = 32 * 1024 * 1024, 0.5

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.wait([asyncio.create_task(asyncio.sleep(2 * first_byte_seconds))])
        received = 0
        while received < body_bytes and (data := await reader.read(1024 * 1024)):
            received += len(data)
        answer = sse(chunk({"content": "好"}, "stop"))
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + answer)
        writer.close()
        await writer.wait_closed()

    async with (
        steady_clock(),
        await asyncio.start_server(late, "127.0.0.1", 0, limit=1024 * 1024) as server,
    ):
        endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        settings_ = UpstreamSettings(endpoint, "m", first_byte_timeout_seconds=first_byte_seconds)
        picture = Slices((b"A" * body_bytes,))
        async with open_session(settings_) as session:
            client = ChatUpstream(settings_, session)
            deltas = await streamed(client, ChatRequest([{"role": "user", "content": picture}]))
            assert deltas[-1].result is not None


# Leaving.


async def test_leaving_a_stream_closes_its_connection_at_once() -> None:
    async with bench(says("一二三", cut_after=2, cut_by=[Hang()]), says("好")) as b:
        async with aclosing(b.client.stream(ASK)) as deltas:
            assert (await anext(deltas)).text == "一"
        start = loop_seconds()
        await b.server.until(lambda: b.server.num_disconnects == 1)
        assert loop_seconds() - start < 0.5
        await b.client.complete(ASK)
        assert b.server.num_connections == 2


@pytest.mark.parametrize("where", ["head", "first byte", "middle"])
async def test_cancelling_closes_the_connection_at_once(where: str) -> None:
    replies = {
        "head": Reply(before=[Hang()]),
        "first byte": Reply([Hang()], headers=SSE_HEADERS),
        "middle": says("一二三", cut_after=2, cut_by=[Hang()]),
    }
    async with bench(replies[where]) as b:
        call = asyncio.create_task(streamed(b.client))
        await b.server.until(lambda: len(b.server.requests) == 1)
        await asyncio.wait([call], timeout=0.05)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await b.server.until(lambda: b.server.num_disconnects == 1)


async def test_cancelling_a_wait_between_attempts_sends_nothing_more() -> None:
    async with bench(error(503), backoff_seconds=8.0) as b:
        call = asyncio.create_task(b.client.complete(ASK))
        await b.server.until(lambda: len(b.server.requests) == 1)
        await asyncio.wait([call], timeout=0.05)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert len(b.server.requests) == 1


async def test_no_connection_is_left_open_after_failures_of_every_kind() -> None:
    faults = [says("一二", cut_after=2, cut_by=cut) for cut in CUTS.values()]
    faults += [raw(HTML, headers={"Content-Type": "text/html"}), error(404), raw(b"", 307)]
    faults += [streams(b"data: {\n\n", Hang()), Reply([b"x"], 503, before=[], length=100)]
    async with bench(*faults, max_attempts=1) as b:
        for _ in faults:
            await failure_of(b.client)
        await b.server.until(lambda: b.server.num_open <= 1)  # the one that is kept for the next request
