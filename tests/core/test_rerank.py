"""The rerank client against a scripted server: each form, batches, faults, secrets, threads.

What every call of a JSON upstream has in common is tried in test_embeddings.py.
"""

from __future__ import annotations

import gzip
import json
import logging
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from pydantic import SecretStr

from cg_rag.core.log import request_id_var
from cg_rag.core.rerank import BlockingReranker, RerankApiSettings, RerankClient
from cg_rag.core.rerank_forms import RerankForm
from cg_rag.core.upstream_errors import UpstreamError, UpstreamRefused, UpstreamTimeout, UpstreamUnreachable
from cg_rag.index.model_errors import Cancelled
from cg_rag.index.onnx import CancelToken
from tests.core.client_bench import Bench, bench_of, on_loop_of
from tests.fake_upstream import (
    JSON_HEADERS,
    PATIENCE_SECONDS,
    FinInChunk,
    Go,
    Hang,
    Received,
    Reply,
    Reset,
    Wait,
    error,
    raw,
    upstream_in_thread,
)
from tests.steady_clock import loop_seconds

KEY = "sk-canary-0123456789"
QUERY = "脚手架何时验收"
TEXTS = ["搭设至设计高度后应验收", "动火作业须办理动火证", "基坑边堆载须经验算"]
FORMS: list[RerankForm] = ["flat", "dashscope", "tei"]


def texts_of(request: Received) -> list[str]:
    body = request.json
    if "texts" in body:
        return list(body["texts"])
    return list(body["input"]["documents"] if "input" in body else body["documents"])


def answers(form: RerankForm, *pairs: tuple[Any, Any]) -> Reply:
    name = "score" if form == "tei" else "relevance_score"
    found = [{"index": index, name: score} for index, score in pairs]
    shapes = {"flat": {"results": found}, "dashscope": {"output": {"results": found}}, "tei": found}
    return raw(json.dumps(shapes[form]).encode())


def score_of(text: str) -> float:
    return len(text) / 64


def computes(
    form: RerankForm = "flat", score: Callable[[str], float] = score_of
) -> Callable[[Received], Reply]:
    """A server that scores each text, the best first."""

    def reply(request: Received) -> Reply:
        pairs = [(index, score(text)) for index, text in enumerate(texts_of(request))]
        return answers(form, *sorted(pairs, key=lambda pair: -pair[1]))

    return reply


def settings_for(url: str, **options: Any) -> RerankApiSettings:
    defaults = {"model": "m", "api_key": SecretStr(KEY), "backoff_seconds": 0.01, "timeout_seconds": 10.0}
    return RerankApiSettings(**{"endpoint": url, **defaults, **options})


def bench(*replies: Any, path: str = "", **options: Any) -> AbstractAsyncContextManager[Bench[RerankClient]]:
    return bench_of(RerankClient, lambda url: settings_for(url + path, **options), *replies)


async def failure_of(client: RerankClient) -> UpstreamError:
    with pytest.raises(UpstreamError) as caught:
        await client.score(QUERY, TEXTS)
    return caught.value


# Each form.


@pytest.mark.parametrize("form", FORMS)
async def test_each_text_gets_its_own_score(form: RerankForm) -> None:
    async with bench(computes(form), form=form) as b:
        assert await b.client.score(QUERY, TEXTS) == [score_of(text) for text in TEXTS]
        assert texts_of(b.server.requests[0]) == TEXTS


@pytest.mark.parametrize(
    ("form", "path", "asked"),
    [
        ("flat", "", "/v1/rerank"),
        ("flat", "/rerank", "/v1/rerank"),
        ("flat", "/reranks", "/v1/reranks"),
        ("dashscope", "", "/v1/services/rerank/text-rerank/text-rerank"),
        ("tei", "", "/v1/rerank"),
    ],
)
async def test_one_post_goes_to_the_path_of_the_form_with_the_key(
    form: RerankForm, path: str, asked: str
) -> None:
    token = request_id_var.set("req-7")
    try:
        async with bench(computes(form), form=form, path=path) as b:
            await b.client.score(QUERY, TEXTS)
            sent = b.server.requests[0]
    finally:
        request_id_var.reset(token)
    assert (sent.method, sent.path) == ("POST", asked)
    assert sent.headers["authorization"] == f"Bearer {KEY}"
    assert sent.headers["x-request-id"] == "req-7"
    assert KEY.encode() not in sent.body


async def test_without_texts_nothing_is_sent() -> None:
    async with bench() as b:
        assert await b.client.score(QUERY, []) == []
        assert b.server.num_connections == 0


async def test_a_lone_surrogate_is_sent_as_a_question_mark() -> None:
    async with bench(computes()) as b:
        await b.client.score("问\ud800", ["文\udfff"])
        assert b.server.requests[0].json == {"model": "m", "query": "问?", "documents": ["文?"], "top_n": 1}


@pytest.mark.parametrize("endpoint", ["ftp://host", "http://user:secret@host", "http://host?key=secret", ""])
def test_what_is_no_endpoint_is_refused_without_being_quoted(endpoint: str) -> None:
    with pytest.raises(ValueError, match="endpoint") as caught:
        settings_for(endpoint)
    assert "secret" not in str(caught.value)


# Batches and scales.


@pytest.mark.parametrize(
    ("form", "options", "sizes"),
    [
        ("tei", {}, [32, 32, 6]),
        ("flat", {}, [70]),
        ("flat", {"max_texts": 30}, [30, 30, 10]),
        # 7 of the question and at most 62 of a text: 20 texts are 1,380 at most.
        ("dashscope", {"max_tokens": 1400}, [20, 20, 20, 10]),
    ],
)
async def test_long_lists_go_out_in_batches_and_come_back_in_order(
    form: RerankForm, options: dict[str, int], sizes: list[int]
) -> None:
    texts = [f"{number:02d}" + "条" * 60 for number in range(70)]
    replies = [computes(form, lambda text: int(text[:2]) / 70)] * len(sizes)
    async with bench(*replies, form=form, **options) as b:
        assert await b.client.score(QUERY, texts) == [number / 70 for number in range(70)]
        assert [len(texts_of(request)) for request in b.server.requests] == sizes
        assert b.server.num_connections == 1


async def test_the_batches_of_one_question_are_rescaled_together() -> None:
    # The first batch alone would pass for probabilities.
    async with bench(answers("tei", (0, 0.9)), answers("tei", (0, 7.0)), form="tei", max_texts=1) as b:
        first, second = await b.client.score(QUERY, TEXTS[:2])
    assert first == pytest.approx(0.7109, abs=1e-4)
    assert second == pytest.approx(0.9991, abs=1e-4)


@pytest.mark.parametrize("form", FORMS)
async def test_a_text_that_the_server_left_out_has_no_score_and_is_logged(
    form: RerankForm, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench(answers(form, (2, 0.5), (0, 0.25)), form=form) as b:
        assert await b.client.score(QUERY, TEXTS) == [0.25, None, 0.5]
    (record,) = [record for record in caplog.records if record.getMessage() == "rerank_incomplete"]
    assert TEXTS[1] not in str(vars(record))


async def test_a_batch_that_fails_fails_the_question() -> None:
    async with bench(computes(), error(400), max_texts=2) as b:
        assert isinstance(await failure_of(b.client), UpstreamRefused)


async def test_the_time_out_bounds_all_batches_together() -> None:
    slow = Reply(before=(Wait(0.2), b""), steps=[b""], headers=JSON_HEADERS)

    def waits(request: Received) -> Reply:
        good = computes()(request)
        return Reply(good.steps, headers=good.headers, length=good.length, before=slow.before)

    async with bench(waits, waits, waits, max_texts=1, timeout_seconds=0.5) as b:
        started = loop_seconds()
        failure = await failure_of(b.client)
        assert isinstance(failure, UpstreamTimeout)
        assert 0.4 < loop_seconds() - started < 0.8


# Faults.

HTML = {"Content-Type": "text/html"}
NEVER_AGAIN: dict[str, tuple[Reply, str]] = {
    "no json": (raw(b"OK"), "malformed"),
    "no list": (raw(b"{}"), "malformed"),
    "no entries": (raw(b"[]"), "empty"),
    "an index twice": (answers("flat", (0, 0.5), (0, 0.5)), "malformed"),
    "an index beyond": (answers("flat", (3, 0.5)), "malformed"),
    "a negative index": (answers("flat", (-1, 0.5)), "malformed"),
    "a text for a score": (answers("flat", (0, "0.5")), "malformed"),
    "no finite score": (answers("flat", (0, float("nan"))), "malformed"),
    "html": (raw(b"<html>login</html>", headers=HTML), "html"),
    "compressed": (
        raw(gzip.compress(b"[]"), headers={**JSON_HEADERS, "Content-Encoding": "gzip"}),
        "compressed",
    ),
    "endless": (Reply([b" " * 65536] * 200, headers=JSON_HEADERS), "too_large"),
    "refused": (error(400), "refused"),
    "no key": (error(401), "unauthorized"),
    "a wrong path": (error(404), "not_found"),
    "too many texts": (error(413), "refused"),
    "an unknown field": (error(422), "refused"),
}


@pytest.mark.parametrize(("reply", "reason"), NEVER_AGAIN.values(), ids=NEVER_AGAIN.keys())
async def test_what_will_not_pass_is_named_and_not_tried_again(reply: Reply, reason: str) -> None:
    async with bench(reply) as b:
        failure = await failure_of(b.client)
    assert (failure.reason, failure.attempts) == (reason, 1)


AGAIN: dict[str, Reply] = {
    "overloaded": error(503),
    "too often": error(429, retry_after="0.01"),
    "lost before the answer": Reply(before=(Reset(),)),
    "lost in the body": Reply([b'{"results":[', Reset()], headers=JSON_HEADERS, length=100),
    "lost in a chunk": Reply([b'{"results":[', FinInChunk()], headers=JSON_HEADERS),
    "a failure under 200": raw(b'{"error":"Model is overloaded","error_type":"Overloaded"}'),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reply", AGAIN.values(), ids=AGAIN.keys())
async def test_what_may_pass_is_tried_again(reply: Reply, form: RerankForm) -> None:
    async with bench(reply, reply, computes(form), form=form) as b:
        assert await b.client.score(QUERY, TEXTS) == [score_of(text) for text in TEXTS]


async def test_three_attempts_are_made_for_a_batch() -> None:
    async with bench(error(500), error(502), error(503)) as b:
        assert str(await failure_of(b.client)) == "server_error, status 503, 3 attempts"


async def test_a_server_that_sends_the_texts_back_escaped_is_read() -> None:
    texts = ["条" * 20_000] * 20
    found = [{"index": i, "relevance_score": 0.5, "document": {"text": text}} for i, text in enumerate(texts)]
    async with bench(*[raw(json.dumps({"results": found[:5]}).encode())] * 4, max_texts=5) as b:
        assert await b.client.score(QUERY, texts) == [0.5] * 20


TELLTALES: dict[str, Reply] = {
    "an error that quotes": raw(
        json.dumps({"error": {"message": KEY, "code": KEY, "param": QUERY}}).encode(), 400
    ),
    "an error in the answer": raw(json.dumps({"error": {"message": TEXTS[0], "code": KEY}}).encode()),
    "no json": raw(f"{KEY} {QUERY}".encode()),
    "a redirect": raw(b"", 302, {"Location": f"http://127.0.0.1/{KEY}"}),
    "no http": Reply(before=(f"{KEY} {TEXTS[0]}\r\n\r\n".encode(), Hang())),
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
        traced = "".join(traceback.format_exception(failure))
    for secret in (KEY, "canary", QUERY, *TEXTS, f":{b.server.port}"):
        assert secret not in told + logged + traced


# From threads.


def test_threads_are_served_at_once_each_with_its_own_scores() -> None:
    with (
        upstream_in_thread(*[computes()] * 8) as server,
        BlockingReranker(settings_for(server.url)) as rerank,
    ):
        lists = [[f"{number}" * (number + 1), "x"] for number in range(8)]
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda texts: rerank(QUERY, texts), lists))
        assert found == [[score_of(text) for text in texts] for texts in lists]
        assert rerank(QUERY, []) == []


def test_cancelling_ends_the_request_at_once() -> None:
    with upstream_in_thread(Reply(before=(Hang(),))) as server:
        token = CancelToken()
        with BlockingReranker(settings_for(server.url)) as rerank, ThreadPoolExecutor(1) as pool:
            call = pool.submit(rerank, QUERY, TEXTS, token)
            on_loop_of(server, lambda: len(server.requests) == 1)
            token.cancel()
            # Cancelled: the thread had sent its request and had not yet begun to wait for the answer.
            with pytest.raises((UpstreamUnreachable, Cancelled)):
                call.result(PATIENCE_SECONDS)
            on_loop_of(server, lambda: server.num_open == 0)


def test_a_token_that_is_cancelled_already_asks_nobody() -> None:
    with upstream_in_thread(Reply(before=(Hang(),))) as server:
        token = CancelToken()
        token.cancel()
        with BlockingReranker(settings_for(server.url)) as rerank, pytest.raises(Cancelled):
            rerank(QUERY, TEXTS, token)


def test_closing_ends_calls_that_go_on_and_refuses_new_ones() -> None:
    with upstream_in_thread(Reply(before=(Go(),))) as server, ThreadPoolExecutor(1) as pool:
        rerank = BlockingReranker(settings_for(server.url))
        call = pool.submit(rerank, QUERY, TEXTS)
        on_loop_of(server, lambda: len(server.requests) == 1)
        rerank.close()
        for attempt in (lambda: call.result(PATIENCE_SECONDS), lambda: rerank(QUERY, TEXTS)):
            with pytest.raises(UpstreamUnreachable):
                attempt()
        assert "rerank" not in {thread.name for thread in threading.enumerate()}
