"""The embeddings client against a scripted server: what it sends, what it takes, every fault, and threads."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from cg_rag.core.embeddings import (
    MAX_ANSWER_BYTES,
    BlockingEmbeddings,
    EmbeddingsClient,
    EmbeddingsSettings,
    max_answer_bytes,
    parse_vectors,
)
from cg_rag.core.json_call import decode
from cg_rag.core.log import request_id_var
from cg_rag.core.upstream_errors import (
    UpstreamBroken,
    UpstreamError,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from cg_rag.core.upstream_session import open_session
from tests.core.client_bench import Bench, bench_of, on_loop_of
from tests.fake_upstream import (
    JSON_HEADERS,
    FinInChunk,
    Go,
    Hang,
    Received,
    Reply,
    Reset,
    Step,
    Wait,
    error,
    fake_upstream,
    raw,
    upstream_in_thread,
)
from tests.steady_clock import loop_seconds

ROOT = Path(__file__).resolve().parent.parent.parent
KEY = "sk-canary-0123456789"
TEXTS = ["脚手架何时验收", "动火作业须办理什么"]
VECTORS = [[0.25, -1.0, 3.0], [1.0, 0.0, 0.5]]


def entry(index: Any, embedding: Any) -> dict[str, Any]:
    return {"object": "embedding", "index": index, "embedding": embedding}


def answer_of(*entries: Any) -> dict[str, Any]:
    usage = {"prompt_tokens": 9, "total_tokens": 9}
    return {"object": "list", "data": list(entries), "model": "m", "usage": usage}


def answer(*entries: Any) -> Reply:
    return raw(json.dumps(answer_of(*entries)).encode())


def good() -> Reply:
    return answer(entry(0, VECTORS[0]), entry(1, VECTORS[1]))


def vector_of(text: str) -> list[float]:
    return [float(len(text)), float(ord(text[0])), float(ord(text[-1]))]


def computes(*before: Step) -> Callable[[Received], Reply]:
    """A server that gives each text its own vector, the last text first."""

    def reply(request: Received) -> Reply:
        entries = [entry(index, vector_of(text)) for index, text in enumerate(request.json["input"])]
        body = json.dumps(answer_of(*reversed(entries))).encode()
        return Reply([body], headers=JSON_HEADERS, length=len(body), before=before)

    return reply


def settings_for(url: str, **options: Any) -> EmbeddingsSettings:
    defaults = {"model": "m", "api_key": SecretStr(KEY), "backoff_seconds": 0.01, "timeout_seconds": 10.0}
    return EmbeddingsSettings(**{"endpoint": url, **defaults, **options})


def bench(
    *replies: Any, path: str = "", **options: Any
) -> AbstractAsyncContextManager[Bench[EmbeddingsClient]]:
    return bench_of(EmbeddingsClient, lambda url: settings_for(url + path, **options), *replies)


async def failure_of(client: EmbeddingsClient, texts: list[str] = TEXTS) -> UpstreamError:
    with pytest.raises(UpstreamError) as caught:
        await client.embed(texts)
    return caught.value


# What is sent.


async def test_a_call_is_one_post_with_the_texts_the_key_and_the_request_id() -> None:
    token = request_id_var.set("req-7")
    try:
        async with bench(good()) as b:
            assert await b.client.embed(TEXTS) == VECTORS
            sent = b.server.requests[0]
    finally:
        request_id_var.reset(token)
    assert (sent.method, sent.path) == ("POST", "/v1/embeddings")
    assert sent.json == {"model": "m", "input": TEXTS, "encoding_format": "float"}
    assert sent.headers["authorization"] == f"Bearer {KEY}"
    assert sent.headers["x-request-id"] == "req-7"
    assert sent.headers["accept-encoding"] == "identity"


async def test_without_a_key_and_outside_of_a_request_no_such_header_is_sent() -> None:
    async with bench(good(), api_key=SecretStr("")) as b:
        await b.client.embed(TEXTS)
        assert not {"authorization", "x-request-id"} & b.server.requests[0].headers.keys()


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/", "/v1/embeddings"),
        ("/embeddings", "/v1/embeddings"),
        ("/a/embeddings", "/v1/a/embeddings"),
        ("/my-embeddings", "/v1/my-embeddings/embeddings"),
    ],
)
async def test_an_endpoint_that_names_the_call_is_used_as_it_is(path: str, asked: str) -> None:
    async with bench(good(), path=path) as b:
        await b.client.embed(TEXTS)
        assert b.server.requests[0].path == asked


async def test_no_text_is_no_request() -> None:
    async with bench() as b:
        assert await b.client.embed([]) == []
        assert b.server.num_connections == 0


async def test_a_lone_surrogate_does_not_break_the_call() -> None:
    async with bench(answer(entry(0, [1.0]))) as b:
        assert await b.client.embed(["安全\ud800网"]) == [[1.0]]
        assert b.server.requests[0].json["input"] == ["安全?网"]


async def test_one_connection_serves_call_after_call() -> None:
    async with bench(good(), good(), good()) as b:
        for _ in range(3):
            await b.client.embed(TEXTS)
        assert b.server.num_connections == 1


@pytest.mark.parametrize("endpoint", ["", "ftp://h/v1", "http://user:pw@h/v1", "http://h/v1?key=1"])
def test_what_is_no_endpoint_is_refused_without_being_quoted(endpoint: str) -> None:
    with pytest.raises(ValueError, match="endpoint") as caught:
        settings_for(endpoint)
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize("key", ["sk\r\nX-Evil: 1", "密钥"])
def test_a_key_that_no_header_can_carry_is_refused_without_being_quoted(key: str) -> None:
    with pytest.raises(ValueError, match="api_key") as caught:
        settings_for("http://h/v1", api_key=SecretStr(key))
    assert key not in str(caught.value)
    assert KEY not in repr(settings_for("http://h/v1"))


# What is taken.


async def test_vectors_are_put_in_order_by_their_index() -> None:
    texts = [f"第{number}条" for number in range(50)]
    async with bench(computes()) as b:
        assert await b.client.embed(texts) == [vector_of(text) for text in texts]


def test_integers_become_floats_and_unknown_fields_are_passed_over() -> None:
    (vector,) = parse_vectors({"data": [{"index": 0, "embedding": [1, -2, 0], "x": 1}], "y": 2}, 1)
    assert vector == [1.0, -2.0, 0.0]
    assert {type(number) for number in vector} == {float}


ONE = [0.5, 0.25]
BROKEN: dict[str, Any] = {
    "no object": [],
    "no data": {"object": "list"},
    "data of another kind": {"data": {"0": ONE}},
    "too few": answer_of(entry(0, ONE)),
    "too many": answer_of(entry(0, ONE), entry(1, ONE), entry(2, ONE)),
    "too many with an index twice": answer_of(entry(0, ONE), entry(1, ONE), entry(1, ONE)),
    "an index twice": answer_of(entry(0, ONE), entry(0, ONE)),
    "an index beyond": answer_of(entry(0, ONE), entry(2, ONE)),
    "a negative index": answer_of(entry(0, ONE), entry(-1, ONE)),
    "indices from one": answer_of(entry(1, ONE), entry(2, ONE)),
    "no index": answer_of(entry(0, ONE), {"embedding": ONE}),
    "true for an index": answer_of(entry(0, ONE), entry(True, ONE)),
    "a float for an index": answer_of(entry(0, ONE), entry(1.0, ONE)),
    "a text for an index": answer_of(entry(0, ONE), entry("1", ONE)),
    "an entry of another kind": answer_of(entry(0, ONE), ONE),
    "no vector": answer_of(entry(0, ONE), {"index": 1}),
    "null for a vector": answer_of(entry(0, ONE), entry(1, None)),
    "base64 for a vector": answer_of(entry(0, ONE), entry(1, "AAAAPwAAgD4=")),
    "an empty vector": answer_of(entry(0, ONE), entry(1, [])),
    "only empty vectors": answer_of(entry(0, []), entry(1, [])),
    "a vector of vectors": answer_of(entry(0, ONE), entry(1, [ONE, ONE])),
    "another length": answer_of(entry(0, ONE), entry(1, [*ONE, 1.0])),
    "null for a number": answer_of(entry(0, ONE), entry(1, [0.5, None])),
    "true for a number": answer_of(entry(0, ONE), entry(1, [0.5, True])),
    "a text for a number": answer_of(entry(0, ONE), entry(1, [0.5, "0.25"])),
    "no finite number": answer_of(entry(0, ONE), entry(1, [0.5, float("nan")])),
    "an infinite number": answer_of(entry(0, ONE), entry(1, [0.5, float("-inf")])),
    "a number beyond float32": answer_of(entry(0, ONE), entry(1, [0.5, -3.5e38])),
}


@pytest.mark.parametrize("told", BROKEN.values(), ids=BROKEN.keys())
def test_an_answer_that_is_not_whole_is_refused_whole(told: Any) -> None:
    with pytest.raises(UpstreamBroken) as caught:
        parse_vectors(decode(json.dumps(told).encode()), 2)
    assert caught.value.reason == "malformed"


@pytest.mark.parametrize("body", [b"", b"\xff\xfe", b"{", b"null", b'{"data":' + b"[" * 5000, b"1e400"])
def test_what_is_no_json_is_malformed(body: bytes) -> None:
    with pytest.raises(UpstreamBroken, match="malformed"):
        parse_vectors(decode(body), 2)


async def test_a_malformed_answer_is_not_asked_for_again() -> None:
    async with bench(answer(entry(0, ONE))) as b:
        assert str(await failure_of(b.client)) == "malformed, 1 attempts"


async def test_an_error_object_under_status_200_is_a_failure_that_may_be_tried_again() -> None:
    failed = raw(json.dumps({"error": {"message": "CUDA out of memory", "type": "server_error"}}).encode())
    invalid = raw(json.dumps({"error": {"message": "x", "type": "invalid_request_error"}}).encode())
    async with bench(failed, good()) as b:
        assert await b.client.embed(TEXTS) == VECTORS
    async with bench(invalid) as b:
        assert (await failure_of(b.client)).attempts == 1


def test_few_texts_get_little_room_and_many_no_more_than_the_cap() -> None:
    widest = len(json.dumps(answer_of(entry(0, [-1.2345678901234567e-308] * 8192)), indent=8))
    assert widest <= max_answer_bytes(1) < 2 * 1024 * 1024
    assert max_answer_bytes(10_000) == MAX_ANSWER_BYTES == 64 * 1024 * 1024


async def test_an_endless_answer_is_stopped_at_its_limit() -> None:
    async with bench(Reply([b" " * 65536] * 2000, headers=JSON_HEADERS)) as b:
        failure = await failure_of(b.client)
        assert (failure.reason, failure.attempts) == ("too_large", 1)
        await b.server.until(lambda: b.server.num_disconnects == 1)


# Faults of the wire.


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
async def test_what_may_pass_is_tried_again(status: int) -> None:
    async with bench(error(status), error(status), good()) as b:
        assert await b.client.embed(TEXTS) == VECTORS
        assert len(b.server.requests) == 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 413, 422])
async def test_what_will_not_pass_is_never_tried_again(status: int) -> None:
    async with bench(error(status)) as b:
        failure = await failure_of(b.client)
    assert isinstance(failure, UpstreamRefused)
    assert (failure.status, failure.attempts) == (status, 1)


def find_nobody(*_wanted: Any, **_options: Any) -> Any:
    """What a resolver says; a real one may first look for a network for as long as the call may last."""
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 63 + ".invalid", "1.2.3.4.5"])
async def test_a_host_that_cannot_be_found_is_unreachable(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", find_nobody)
    chosen = settings_for(f"http://{host}/v1", max_attempts=1)
    async with open_session(chosen) as session:
        failure = await failure_of(EmbeddingsClient(chosen, session))
    assert isinstance(failure, UpstreamUnreachable)


async def test_three_attempts_are_made_and_the_last_failure_is_told() -> None:
    async with bench(error(500), error(502), error(503)) as b:
        assert str(await failure_of(b.client)) == "server_error, status 503, 3 attempts"


async def test_a_refused_connection_is_tried_again_and_then_named() -> None:
    async with bench() as b:
        await b.server.stop()
        failure = await failure_of(b.client)
    assert isinstance(failure, UpstreamUnreachable)
    assert str(failure) == "connect_failed, 3 attempts"


CUT: dict[str, Reply] = {
    "before the answer": Reply(before=(Reset(),)),
    "in the head": Reply(before=(b"HTTP/1.1 200 O", Reset())),
    "in the body": Reply([b'{"data":[', Reset()], headers=JSON_HEADERS, length=100),
    "in a chunk": Reply([b'{"data":[', FinInChunk()], headers=JSON_HEADERS),
}


@pytest.mark.parametrize("cut", CUT.values(), ids=CUT.keys())
async def test_a_connection_lost_anywhere_is_tried_again(cut: Reply) -> None:
    async with bench(cut, cut, good()) as b:
        assert await b.client.embed(TEXTS) == VECTORS


HTML = {"Content-Type": "text/html"}


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (raw(b"<html>login</html>", headers=HTML), "html"),
        (raw(gzip.compress(b"{}"), headers={**JSON_HEADERS, "Content-Encoding": "gzip"}), "compressed"),
        (raw(b"", 204), "malformed"),
        (raw(b"OK", headers={"Content-Type": "text/plain"}), "malformed"),
    ],
)
async def test_what_is_no_answer_is_named(reply: Reply, reason: str) -> None:
    async with bench(reply) as b:
        failure = await failure_of(b.client)
    assert (failure.reason, failure.attempts) == (reason, 1)


async def test_a_redirect_is_not_followed() -> None:
    async with fake_upstream() as other:
        async with bench(raw(b"", 307, {"Location": f"{other.url}/embeddings"})) as b:
            assert (await failure_of(b.client)).reason == "redirected"
        assert other.num_connections == 0


async def test_retry_after_is_waited_for_in_full() -> None:
    async with bench(error(429, retry_after="0.3"), good()) as b:
        start = loop_seconds()
        assert await b.client.embed(TEXTS) == VECTORS
        assert loop_seconds() - start >= 0.3


async def test_a_wait_that_the_time_out_cannot_hold_is_not_begun() -> None:
    async with bench(error(429, retry_after="11")) as b:
        start = loop_seconds()
        assert (await failure_of(b.client)).reason == "rate_limited"
        assert loop_seconds() - start < 2.0


SLOW: dict[str, Reply] = {
    "silent": Reply(before=(Hang(),)),
    "silent after the head": Reply([b"{", Hang()], headers=JSON_HEADERS),
    "trickling": Reply([b" ", Wait(0.05)] * 400, headers=JSON_HEADERS),
}


@pytest.mark.parametrize("slow", SLOW.values(), ids=SLOW.keys())
async def test_the_time_out_bounds_the_call_with_all_of_its_attempts(slow: Reply) -> None:
    async with bench(error(503, retry_after="0.4"), slow, timeout_seconds=0.6) as b:
        start = loop_seconds()
        failure = await failure_of(b.client)
        assert isinstance(failure, UpstreamTimeout)
        assert str(failure) == "call_timeout, 2 attempts"
        assert 0.5 < loop_seconds() - start < 0.95
        await b.server.until(lambda: b.server.num_disconnects == 1)


async def test_a_cancelled_call_closes_its_connection_and_the_client_goes_on() -> None:
    async with bench(Reply(before=(Hang(),)), good()) as b:
        call = asyncio.create_task(b.client.embed(TEXTS))
        await b.server.until(lambda: len(b.server.requests) == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await b.server.until(lambda: b.server.num_open == 0)
        assert await b.client.embed(TEXTS) == VECTORS


async def test_a_call_cancelled_in_its_back_off_sends_nothing_more() -> None:
    async with bench(error(503), backoff_seconds=8.0) as b:
        call = asyncio.create_task(b.client.embed(TEXTS))
        await b.server.until(lambda: len(b.server.requests) == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert len(b.server.requests) == 1


# Secrets.

ECHO = {"error": {"message": f"{KEY} {TEXTS[0]}", "type": "sk-canary", "code": KEY, "param": TEXTS[1]}}
TELLTALES: dict[str, Reply] = {
    "an error that quotes": raw(json.dumps(ECHO, ensure_ascii=False).encode(), 400),
    "a failure that quotes": raw(json.dumps(ECHO, ensure_ascii=False).encode(), 500),
    "an error in the answer": raw(json.dumps(ECHO, ensure_ascii=False).encode()),
    "no json": raw(f"{KEY} {TEXTS[0]}".encode()),
    "no http": Reply(before=(f"{KEY} {TEXTS[0]}\r\n\r\n".encode(), Hang())),
    "a broken header": Reply(headers={KEY: "x", "Content-Length": "nine"}),
    "a redirect": raw(b"", 302, {"Location": f"http://127.0.0.1/{KEY}"}),
    "a broken chunk": Reply(
        before=(f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{KEY}\r\n".encode(), Hang())
    ),
    "a cut": Reply([TEXTS[0].encode(), Reset()], headers=JSON_HEADERS, length=1000),
}


@pytest.mark.parametrize("reply", TELLTALES.values(), ids=TELLTALES.keys())
async def test_no_url_key_or_text_gets_into_errors_or_logs(
    reply: Reply, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with bench(*[reply] * 3, timeout_seconds=2.0) as b:
        failure = await failure_of(b.client)
        b.server._script.clear()
        told = f"{failure} {failure!r} {failure.code}"
        logged = "".join(f"{record.getMessage()} {vars(record)}" for record in caplog.records)
    for secret in (KEY, "canary", *TEXTS, "127.0.0.1", "/v1"):
        assert secret not in told
    traced = "".join(traceback.format_exception(failure))
    for secret in (KEY, "canary", *TEXTS, f":{b.server.port}"):
        assert secret not in logged + traced


async def test_a_code_that_is_part_of_the_key_is_dropped() -> None:
    async with bench(error(401, code="canary"), api_key=SecretStr("sk.canary.key")) as b:
        assert (await failure_of(b.client)).code == ""


# From threads.


def threads_named(name: str) -> int:
    return sum(thread.name == name for thread in threading.enumerate())


def test_a_program_without_a_loop_gets_vectors() -> None:
    with upstream_in_thread(computes(), computes()) as server:
        with BlockingEmbeddings(settings_for(server.url)) as embed:
            assert threads_named("embeddings") == 0
            assert embed([]) == []
            assert threads_named("embeddings") == 0
            for _ in range(2):
                assert embed(TEXTS) == [vector_of(text) for text in TEXTS]
            assert threads_named("embeddings") == 1
        assert threads_named("embeddings") == 0
        assert server.num_connections == 1
        on_loop_of(server, lambda: server.num_open == 0)


async def test_sixteen_threads_are_served_at_once_each_with_its_own() -> None:
    async with fake_upstream(*[computes(Go())] * 16, *[computes()] * 16 * 4) as server:
        with BlockingEmbeddings(settings_for(server.url)) as embed, ThreadPoolExecutor(16) as pool:

            def call(number: int) -> bool:
                texts = [f"{number} 号作业面", "·" * (number + 1)]
                return all(embed(texts) == [vector_of(text) for text in texts] for _ in range(5))

            loop = asyncio.get_running_loop()
            calls = [loop.run_in_executor(pool, call, number) for number in range(16)]
            await server.until(lambda: len(server.requests) == 16)
            assert threads_named("embeddings") == 1
            server.go()
            assert await asyncio.gather(*calls) == [True] * 16
            await asyncio.to_thread(embed.close)
        assert server.num_connections == 16
        assert server.num_left == 0


async def test_inside_of_a_server_the_request_id_goes_along_and_the_loop_goes_on() -> None:
    async with fake_upstream(computes(Go()), computes()) as server:
        embed = BlockingEmbeddings(settings_for(server.url))
        token = request_id_var.set("req-9")
        call = asyncio.create_task(asyncio.to_thread(embed, TEXTS))
        request_id_var.reset(token)
        await server.until(lambda: len(server.requests) == 1)
        server.go()
        assert await call == [vector_of(text) for text in TEXTS]
        await asyncio.to_thread(embed, TEXTS)
        await asyncio.to_thread(embed.close)
        assert [request.headers.get("x-request-id") for request in server.requests] == ["req-9", None]


def test_an_interrupt_of_the_waiting_thread_cancels_the_request() -> None:
    waiting = threading.main_thread().ident or 0

    def interrupts(request: Received) -> Reply:
        # The request can be here before the thread that asked has got so far as to wait for its answer.
        for _ in range(5000):
            if sys._current_frames()[waiting].f_code is threading.Condition.wait.__code__:
                break
            time.sleep(0.001)
        signal.pthread_kill(waiting, signal.SIGINT)
        return Reply(before=(Hang(),))

    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with (
            upstream_in_thread(interrupts, computes()) as server,
            BlockingEmbeddings(settings_for(server.url)) as embed,
        ):
            with pytest.raises(KeyboardInterrupt):
                embed(TEXTS)
            on_loop_of(server, lambda: server.num_disconnects == 1)
            assert embed(["好"]) == [vector_of("好")]
    finally:
        signal.signal(signal.SIGINT, usual)


async def test_closing_ends_calls_that_go_on_and_refuses_new_ones() -> None:
    async with fake_upstream(Reply(before=(Hang(),)), error(503)) as server:
        embed = BlockingEmbeddings(settings_for(server.url, backoff_seconds=8.0))
        calls = [asyncio.create_task(asyncio.to_thread(embed, TEXTS)) for _ in range(2)]
        await server.until(lambda: len(server.requests) == 2)
        start = time.monotonic()
        await asyncio.gather(*(asyncio.to_thread(embed.close) for _ in range(3)))
        assert time.monotonic() - start < 5.0  # what close() promises; it takes milliseconds
        for failure in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(failure, UpstreamUnreachable)
        with pytest.raises(UpstreamUnreachable):
            embed(TEXTS)
        await server.until(lambda: server.num_open == 0)
    assert threads_named("embeddings") == 0


def test_closing_what_was_never_used_starts_nothing() -> None:
    embed = BlockingEmbeddings(settings_for("http://127.0.0.1:9/v1"))
    embed.close()
    embed.close()
    with pytest.raises(UpstreamUnreachable):
        embed(TEXTS)
    assert threads_named("embeddings") == 0


def test_failures_reach_the_calling_thread_as_they_are() -> None:
    with (
        upstream_in_thread(error(401)) as server,
        BlockingEmbeddings(settings_for(server.url)) as embed,
        pytest.raises(UpstreamRefused, match="unauthorized, status 401, 1 attempts"),
    ):
        embed(TEXTS)


FORGETFUL = """
import sys
from cg_rag.core.embeddings import BlockingEmbeddings, EmbeddingsSettings
embed = BlockingEmbeddings(EmbeddingsSettings(sys.argv[1], "m"))
print(len(embed(["a", "b"])), "numpy" in sys.modules)
"""


def test_a_program_that_forgets_to_close_ends_all_the_same_and_quietly() -> None:
    with upstream_in_thread(computes()) as server:
        ended = subprocess.run(
            [sys.executable, "-c", FORGETFUL, server.url],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "2 False\n", "")


# Whatever comes.

NUMBERS = st.integers(-(2**70), 2**70) | st.floats(width=32) | st.sampled_from([1e39, 1e308, 0, True, None])
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["data", "index", "embedding", "error", "code"]) | st.text(max_size=4),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
ENTRIES = st.builds(
    entry, st.integers(-1, 3) | JSON, st.lists(st.floats(-2, 2), min_size=2, max_size=2) | JSON
)
ANSWERS = JSON | st.lists(ENTRIES | JSON, max_size=3).map(lambda entries: answer_of(*entries))


def is_vectors(vectors: list[list[float]], num_texts: int) -> bool:
    numbers = [number for vector in vectors for number in vector]
    widths = {len(vector) for vector in vectors}
    finite = all(type(number) is float and abs(number) < 3.5e38 for number in numbers)
    return len(vectors) == num_texts and len(widths) == 1 and 0 not in widths and finite


@settings(max_examples=300)
@given(ANSWERS, st.integers(1, 3))
def test_any_json_is_vectors_or_an_upstream_error(told: Any, num_texts: int) -> None:
    try:
        assert is_vectors(parse_vectors(decode(json.dumps(told).encode()), num_texts), num_texts)
    except UpstreamError as failure:
        assert len(str(failure)) < 80


@settings(max_examples=40)
@given(
    ANSWERS.map(lambda told: json.dumps(told).encode()) | st.binary(max_size=200),
    st.sampled_from([200, 200, 201, 302, 400, 500]),
    st.booleans(),
)
def test_any_bytes_over_a_socket_are_vectors_or_an_upstream_error(
    body: bytes, status: int, closes: bool
) -> None:
    async def call() -> None:
        reply = Reply([body], status, JSON_HEADERS, closes=closes)
        async with bench(reply, max_attempts=1) as b:
            try:
                assert is_vectors(await b.client.embed(TEXTS), 2)
            except UpstreamError as failure:
                assert failure.attempts == 1

    asyncio.run(call())


@settings(max_examples=100)
@given(st.permutations(range(5)), st.integers(1, 6))
def test_whole_answers_are_taken_in_any_order(order: list[int], width: int) -> None:
    told = answer_of(*(entry(index, [index + 0.5] * width) for index in order))
    vectors = parse_vectors(told, 5)
    assert vectors == [[index + 0.5] * width for index in range(5)]
