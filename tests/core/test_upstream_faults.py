"""The chat client against a server that fails: every fault of the wire, and retries."""

from __future__ import annotations

import asyncio
import gzip
import logging
import math
import socket
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cg_rag.core.exchange import Exchange, Timeouts
from cg_rag.core.json_parts import encode_body
from cg_rag.core.log import logger
from cg_rag.core.upstream import (
    ChatRequest,
    ChatResult,
    ChatUpstream,
    UpstreamBroken,
    UpstreamEmpty,
    UpstreamError,
    UpstreamFiltered,
    UpstreamRefused,
    UpstreamSettings,
    UpstreamUnreachable,
    open_session,
)
from tests.core.chat_bench import ASK, bench, failure_of, streamed
from tests.core.raw_http import LogEvents
from tests.core.test_embeddings import find_nobody
from tests.fake_upstream import (
    JSON_HEADERS,
    SSE_HEADERS,
    FakeUpstream,
    FinInChunk,
    Hang,
    Reply,
    Reset,
    Step,
    chunk,
    error,
    fake_upstream,
    raw,
    says,
    sse,
    streams,
)
from tests.steady_clock import loop_seconds, steady_clock

CUTS: dict[str, tuple[Step, ...]] = {"reset": (Reset(),), "FIN in a chunk": (FinInChunk(),), "clean end": ()}


# Before the answer.


async def test_a_refused_connection_is_tried_again_and_then_named() -> None:
    async with bench() as b:
        await b.server.stop()
        _, failure = await failure_of(b.client)
    assert isinstance(failure, UpstreamUnreachable)
    assert str(failure) == "connect_failed, 3 attempts"


async def test_an_unknown_host_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", find_nobody)
    settings_ = UpstreamSettings("http://no-such-host.invalid/v1", "m", max_attempts=1)
    async with open_session(settings_) as session:
        _, failure = await failure_of(ChatUpstream(settings_, session))
    assert failure.reason == "connect_failed"


async def test_a_host_that_no_name_can_be_is_unreachable_too() -> None:
    settings_ = UpstreamSettings("http://127.0.0.1/v1", "m")
    waits = Timeouts(connect=5, first_byte=5, between_bytes=5, total=5)
    async with open_session(settings_) as session:
        exchange = Exchange(session, f"http://{'a' * 64}.invalid/v1", {}, encode_body({}), waits, math.inf)
        with pytest.raises(UpstreamUnreachable, match="connect_failed"):
            async with exchange:
                pass


@pytest.fixture
def debug_log() -> Iterator[LogEvents]:
    events = LogEvents()
    logger.addHandler(events)
    level = logger.level
    logger.setLevel(logging.DEBUG)
    yield events
    logger.setLevel(level)
    logger.removeHandler(events)


async def test_a_server_that_comes_back_is_reached_by_a_retry(debug_log: LogEvents) -> None:
    async with steady_clock(), fake_upstream(says("好")) as server:
        await server.stop()
        settings_ = UpstreamSettings(server.url, "m", backoff_seconds=0.4)
        async with open_session(settings_) as session:
            call = asyncio.create_task(ChatUpstream(settings_, session).complete(ASK))
            await debug_log.wait_for("upstream_retry")
            again = FakeUpstream()
            again.port = server.port
            again.enqueue(says("好"))
            async with again:
                assert (await call).attempts == 2


@pytest.mark.parametrize("before", [(Reset(),), (b"HTTP/1.1 200 O", Reset())])
async def test_a_connection_lost_before_the_answer_is_tried_again(before: tuple[Step, ...]) -> None:
    async with bench(Reply(before=before), Reply(before=before), says("好")) as b:
        assert (await b.client.complete(ASK)).attempts == 3


async def test_bytes_that_are_no_http_are_malformed() -> None:
    async with bench(Reply(before=(b"SSH-2.0-OpenSSH\r\n\r\n", Hang())), max_attempts=1) as b:
        _, failure = await failure_of(b.client)
    assert failure.reason in ("malformed", "disconnected")


async def test_a_server_without_tls_is_not_spoken_to_in_the_clear_nor_asked_again() -> None:
    connections = 0

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async with await asyncio.start_server(plain, "127.0.0.1", 0) as server:
        settings_ = UpstreamSettings(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", "m")
        async with open_session(settings_) as session:
            _, failure = await failure_of(ChatUpstream(settings_, session))
    assert (str(failure), connections) == ("tls_failed, 1 attempts", 1)


# Status codes and retries.


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
@pytest.mark.parametrize("streaming", [True, False])
async def test_what_may_pass_is_tried_again(status: int, streaming: bool) -> None:
    async with bench(error(status), error(status), says("好")) as b:
        if streaming:
            result = (await streamed(b.client))[-1].result
        else:
            result = await b.client.complete(ASK)
        assert result is not None
        assert (result.text, result.attempts) == ("好", 3)


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 405, 413, 415, 422, 451])
async def test_what_will_not_pass_is_never_tried_again(status: int) -> None:
    async with bench(error(status)) as b:
        _, failure = await failure_of(b.client)
        assert len(b.server.requests) == 1
    assert isinstance(failure, UpstreamRefused)
    assert (failure.status, failure.attempts) == (status, 1)


async def test_attempts_are_counted_and_limited() -> None:
    async with bench(*[error(503)] * 5, max_attempts=5) as b:
        _, failure = await failure_of(b.client)
    assert str(failure) == "server_error, status 503, 5 attempts"


async def test_retry_after_is_waited_for_in_full() -> None:
    async with bench(error(429, retry_after="1"), says("好")) as b:
        start = loop_seconds()
        assert (await b.client.complete(ASK)).attempts == 2
        assert 1.0 <= loop_seconds() - start < 1.5


@pytest.mark.parametrize("budget", [2.0, None])
async def test_a_retry_after_beyond_the_budget_is_given_up_at_once(budget: float | None) -> None:
    asked_at = datetime.now(UTC)
    late = format_datetime(asked_at + timedelta(seconds=90), usegmt=True)
    async with bench(error(429, retry_after=late)) as b:
        start = loop_seconds()
        _, failure = await failure_of(b.client, budget_seconds=budget)
        assert loop_seconds() - start < 0.5
    assert failure.reason == "rate_limited"
    assert failure.retry_after_seconds is not None
    passed = (datetime.now(UTC) - asked_at).total_seconds()
    assert 88 - passed < failure.retry_after_seconds <= 90


async def test_a_back_off_that_the_budget_cannot_hold_is_not_begun() -> None:
    async with bench(error(503), backoff_seconds=8.0) as b:
        start = loop_seconds()
        _, failure = await failure_of(b.client, budget_seconds=1.0)
        assert (failure.reason, failure.attempts) == ("server_error", 1)
        assert loop_seconds() - start < 0.5


# In the answer.


@pytest.mark.parametrize("cut", CUTS)
async def test_after_the_first_token_a_stream_is_never_retried(cut: str) -> None:
    async with bench(says("一二三", cut_after=3, cut_by=CUTS[cut])) as b:
        seen, failure = await failure_of(b.client)
        assert (seen, failure.reason, failure.attempts) == ("一二", "cut", 1)
    assert isinstance(failure, UpstreamBroken)


@pytest.mark.parametrize("cut", CUTS)
async def test_before_the_first_token_a_cut_stream_is_retried_and_nothing_doubled(cut: str) -> None:
    async with bench(says("一二三", cut_after=1, cut_by=CUTS[cut]), says("一二三")) as b:
        deltas = await streamed(b.client)
        assert "".join(delta.text for delta in deltas) == "一二三"
        assert deltas[-1].result is not None
        assert deltas[-1].result.attempts == 2


@pytest.mark.parametrize(
    "garbled",
    [
        streams(b"data: {broken\n\n"),
        streams(chunk({"role": "assistant", "content": ""}), b"data: {broken\n\n"),
        streams(b": ping\n\ndata: [1]\n\n"),
        raw(b'{"choices":[{"index":0,"mess'),
    ],
    ids=["first chunk", "after the role", "no object", "a whole answer"],
)
async def test_a_garbled_answer_is_asked_for_again_while_nothing_of_it_went_out(garbled: Reply) -> None:
    async with bench(garbled, says("一二三")) as b:
        deltas = await streamed(b.client)
        assert "".join(delta.text for delta in deltas) == "一二三"
        assert deltas[-1].result is not None
        assert deltas[-1].result.attempts == 2


async def test_a_chunk_that_is_garbled_after_the_first_token_ends_the_call() -> None:
    async with bench(streams(chunk({"content": "一"}), b"data: {broken\n\n")) as b:
        seen, failure = await failure_of(b.client)
        assert (seen, str(failure)) == ("一", "malformed, 1 attempts")


@pytest.mark.parametrize("cut", CUTS)
async def test_complete_may_retry_at_any_point_because_nothing_was_handed_on(cut: str) -> None:
    thinking = ChatRequest(ASK.messages, enable_thinking=True)
    reply = says("一二三", cut_after=3, cut_by=CUTS[cut])
    async with bench(reply, says("一二三"), provider="dashscope") as b:
        result = await b.client.complete(thinking)
        assert (result.text, result.attempts) == ("一二三", 2)


async def test_a_cut_after_the_finish_reason_costs_nothing_but_the_usage() -> None:
    async with bench(says("好", cut_after=3), says("好", cut_after=3, cut_by=[FinInChunk()])) as b:
        for _ in range(2):
            result = (await streamed(b.client))[-1].result
            assert result is not None
            assert (result.text, result.usage, result.attempts) == ("好", None, 1)


async def test_a_whole_answer_that_is_cut_is_retried() -> None:
    short = Reply([b'{"choices":[', Reset()], headers=JSON_HEADERS, length=100)
    async with bench(short, says("好")) as b:
        assert (await b.client.complete(ASK)).attempts == 2


@pytest.mark.parametrize("size", [1, 3, 7])
async def test_an_answer_in_slices_with_cut_letters_is_whole(size: int) -> None:
    async with bench(says("脚手架🦺验收", thinking="想", slice_bytes=size)) as b:
        result = (await streamed(b.client))[-1].result
        assert result is not None
        assert (result.text, result.thinking) == ("脚手架🦺验收", "想")


HTML = b"<!DOCTYPE html><html><body>login</body></html>"


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (raw(HTML, headers={"Content-Type": "text/html; charset=utf-8"}), "html"),
        (raw(HTML, headers={}), "html"),
        (raw(b"OK", headers={"Content-Type": "text/plain"}), "cut"),
        (streams(chunk({}), b"data: {broken\n\n"), "malformed"),
        (streams(b"data: " + b"x" * (2 * 1024 * 1024) + b"\n\n"), "too_large"),
        (streams(*[b": " + b"x" * 65536 + b"\n"] * 140), "too_large"),
        (raw(b"", 307, {"Location": "http://127.0.0.1:1/v1/chat/completions"}), "redirected"),
        (raw(b"", 301, {"Location": "/elsewhere"}), "redirected"),
    ],
)
async def test_what_is_no_answer_fails_once_and_is_named(reply: Reply, reason: str) -> None:
    async with bench(reply, max_attempts=1) as b:
        seen, failure = await failure_of(b.client)
    assert (seen, failure.reason, failure.attempts) == ("", reason, 1)
    assert isinstance(failure, UpstreamBroken)


async def test_a_redirect_is_not_followed() -> None:
    async with fake_upstream() as other:
        target = {"Location": f"{other.url}/chat/completions"}
        async with bench(raw(b"", 307, target), raw(b"", 302, target)) as b:
            for _ in range(2):
                assert (await failure_of(b.client))[1].reason == "redirected"
        assert other.num_connections == 0


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate, gzip", "GZIP"])
async def test_a_compressed_answer_is_refused_unread(encoding: str) -> None:
    bomb = gzip.compress(b" " * (64 * 1024 * 1024), 9)
    async with bench(raw(bomb, headers={**SSE_HEADERS, "Content-Encoding": encoding})) as b:
        tracemalloc.start()
        try:
            _, failure = await failure_of(b.client)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert (failure.reason, failure.attempts) == ("compressed", 1)
    assert peak < 2 * 1024 * 1024


async def test_an_endless_answer_is_stopped_at_its_limit() -> None:
    endless = Reply([sse(chunk({"content": "脚" * 2000}))] * 5000, headers=SSE_HEADERS)
    async with bench(endless) as b:
        seen, failure = await failure_of(b.client)
        assert failure.reason == "too_large"
        assert len(seen.encode()) < 8 * 1024 * 1024
        await b.server.until(lambda: b.server.num_disconnects == 1)


async def test_an_error_in_the_stream_is_retried_only_before_the_first_token() -> None:
    broken = {"error": {"message": "CUDA out of memory", "type": "server_error"}}
    async with bench(streams(broken), streams(chunk({"content": "一"}), broken)) as b:
        seen, failure = await failure_of(b.client)
        assert (seen, failure.reason, failure.attempts) == ("一", "error_in_stream", 2)


async def test_a_withheld_or_empty_answer_is_a_failure_and_not_asked_for_again() -> None:
    for reply, kind in [
        (says(finish_reason="content_filter"), UpstreamFiltered),
        (error(400, "inappropriate content", "data_inspection_failed"), UpstreamFiltered),
        (says(), UpstreamEmpty),
        (says(thinking="想到一半", finish_reason="length"), UpstreamEmpty),
    ]:
        async with bench(reply) as b:
            assert isinstance((await failure_of(b.client))[1], kind)
        async with bench(reply) as b:
            assert isinstance((await failure_of(b.client, streaming=False))[1], kind)


async def test_an_answer_cut_at_a_limit_says_so() -> None:
    async with bench(says("只有一半", finish_reason="length")) as b:
        assert (await b.client.complete(ASK)).finish_reason == "length"


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(
    st.binary(max_size=300)
    | st.lists(
        st.sampled_from([sse(chunk({"content": "一"})), sse(chunk({}, "stop")), b"data: {\n\n", b"\xff\n\n"]),
        max_size=5,
    ).map(b"".join),
    st.sampled_from([200, 201, 204, 302, 400, 418, 500]),
    st.sampled_from([SSE_HEADERS, JSON_HEADERS, {}, {"Content-Type": "application/octet-stream"}]),
    st.booleans(),
)
def test_any_bytes_as_an_answer_give_a_result_or_an_upstream_error(
    body: bytes, status: int, headers: dict[str, str], closes: bool
) -> None:
    async def call() -> None:
        reply = Reply([body], status, headers, closes=closes)
        async with bench(reply, reply, max_attempts=1) as b:
            for streaming in (True, False):
                try:
                    if streaming:
                        result = (await streamed(b.client))[-1].result
                    else:
                        result = await b.client.complete(ASK)
                    assert isinstance(result, ChatResult)
                except UpstreamError as failure:
                    assert failure.attempts == 1

    asyncio.run(call())
