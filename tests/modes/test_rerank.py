"""Reranking in the service: the default, what turns it off, what happens when it fails, who is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cg_rag.core.rerank_settings import RerankSettings
from cg_rag.core.upstream_errors import UpstreamUnreachable
from cg_rag.index.build import SourceSpec, build_index
from cg_rag.index.doctor import check_index
from cg_rag.index.onnx import CancelToken
from tests.conftest import StartServer
from tests.fake_upstream import Hang, Reply, raw, upstream_in_thread
from tests.modes.conftest import SAMPLE, ask, health, leave_while_asked
from tests.reranker_fixtures import make_slow_reranker
from tests.steady_clock import steady_clock

QUESTION = "洞口边上没有装栏杆"
UNAVAILABLE = ["重排暂不可用，本次按检索得分排列。"]
LEXICAL = "  profiles: {full: {label: 全库, include: all}, plain: {label: 字面, include: all, retrieval_method: lexical}}\n"


def ids(body: dict[str, Any]) -> list[str]:
    return [document["doc_id"] for document in body["retrieval_docs"]]


def scores(body: dict[str, Any]) -> list[float]:
    return [document["score"] for document in body["retrieval_docs"]]


def failures_of(library: Any) -> list[str]:
    return [finding.message for finding in check_index(library, "full") if finding.severity == "error"]


async def test_the_bundled_model_reorders_the_first_twenty_and_scores_stay_at_their_places(
    start: Callable[..., Any],
) -> None:
    services, url = await start(rerank="")
    status, body = await ask(url, QUESTION, include_debug=True, topk=50)
    assert (status, body["rerank"]) == (200, {"applied": True, "method": "onnx"})
    assert body["warnings"] == []
    assert "rerank_ms" in body["runtime_stats"]
    stages = [document["debug"]["stages"] for document in body["retrieval_docs"]]
    assert all(0 <= one["rerank"] <= 1 for one in stages[:20])
    assert not any("rerank" in one for one in stages[20:])
    mixed = [one["mixed"] for one in stages[:20]]
    assert mixed == sorted(mixed, reverse=True)
    _, plain = await start()
    unranked = (await ask(plain, QUESTION, topk=50))[1]
    assert unranked["rerank"] == {"applied": False, "method": "fused"}
    assert "rerank_ms" not in unranked["runtime_stats"]
    assert scores(body) == scores(unranked)
    assert ids(body) != ids(unranked)
    assert sorted(ids(body)[:20]) == sorted(ids(unranked)[:20])
    assert ids(body)[20:] == ids(unranked)[20:]
    assert (await health(url))["rerank"] == {"api_enabled": False, "model": "statute-ce-6l", "method": "onnx"}
    assert services.retrieval_cache.snapshot()["entries"] == 1


async def test_depth_does_not_move_an_article_and_named_ones_stay_first(start: Callable[..., Any]) -> None:
    _, url = await start(rerank="")
    for query in (QUESTION, "Q/YANGLI101-2025 脚手架验收"):
        short, long = [(await ask(url, query, topk=topk))[1] for topk in (3, 200)]
        assert ids(long)[:3] == ids(short)
        assert scores(long) == sorted(scores(long), reverse=True)
    named = (await ask(url, "Q/YANGLI101-2025 3.0.1 脚手架", include_debug=True))[1]
    assert named["retrieval_docs"][0]["article_number"].startswith("3.0.1")
    assert "rerank" not in named["retrieval_docs"][0]["debug"]["stages"]
    assert named["rerank"]["applied"]
    only = (await ask(url, "Q/YANGLI101-2025 3.0.1", topk=1))[1]
    assert only["rerank"] == {"applied": False, "method": "fused"}


async def test_same_list_alone_and_together(start: Callable[..., Any]) -> None:
    _, url = await start("  cache: {max_bytes: 0}\n", rerank="")
    queries = [f"第{number}次检查脚手架、配电箱和吊篮" for number in range(2)]
    alone = [(await ask(url, query))[1]["retrieval_docs"] for query in queries]
    together = await asyncio.gather(*(ask(url, query) for query in queries))
    assert [body["retrieval_docs"] for _, body in together] == alone


async def test_words_alone_are_not_reranked_and_need_no_model(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    services, url = await start(LEXICAL, rerank="")
    body = (await ask(url, "脚手架", scope="plain"))[1]
    assert (body["rerank"], body["warnings"]) == ({"applied": False, "method": "fused"}, [])
    index_dir = tmp_path / "words"
    build_index([SourceSpec(SAMPLE / "standards.jsonl", "standards", ())], index_dir, None)
    services, url = await start(index_dir=index_dir, rerank="")
    body = (await ask(url, "脚手架"))[1]
    assert (body["rerank"], body["warnings"]) == ({"applied": False, "method": "fused"}, [])
    assert services.library.reranker is None


@pytest.mark.parametrize("degrade", [True, False])
async def test_missing_model_keeps_the_order_or_fails_as_configured(
    start: Callable[..., Any], tmp_path: Path, degrade: bool
) -> None:
    missing = f"  rerank: {{model_dir: '{tmp_path / 'none'}'}}\n"
    services, url = await start(
        f"{LEXICAL}  retrieval: {{degrade: {str(degrade).lower()}}}\n", rerank=missing
    )
    status, body = await ask(url, QUESTION)
    if degrade:
        assert (status, body["warnings"]) == (200, UNAVAILABLE)
        assert body["rerank"] == {"applied": False, "method": "fused"}
        _, plain = await start()
        assert ids(body) == ids((await ask(plain, QUESTION))[1])
    else:
        assert (status, body["error"]["code"]) == (502, "retrieval.failed")
        assert (await ask(url, QUESTION, scope="plain"))[0] == 200
    assert services.retrieval_cache.snapshot()["entries"] == (0 if degrade else 1)
    described = await health(url)
    assert described["index"]["state"] == "degraded"
    assert "重排模型无法使用" in described["index"]["faults"][0]
    assert described["rerank"]["model"] == "none"
    assert any("重排模型无法使用" in message for message in failures_of(services.library))


async def test_settings_of_the_reranker_are_part_of_the_fingerprint(start: Callable[..., Any]) -> None:
    fingerprints = []
    for line in (
        "",
        "  rerank: {method: fused}\n",
        "  rerank: {weight: 0.3}\n",
        "  rerank: {candidates: 10}\n",
    ):
        services, _ = await start(LEXICAL, rerank=line)
        fingerprints.append(services.library.snapshot.scopes["full"].fingerprint)
    assert len(set(fingerprints)) == 4


class Client:
    """A rerank endpoint's client: scores by the text's length, None for what it leaves out."""

    def __init__(self, leave_out: int = 0, error: Exception | None = None) -> None:
        self.leave_out, self.error = leave_out, error
        self.asked: list[int] = []
        self.closed = False

    def __call__(self, query: str, texts: list[str], token: CancelToken | None) -> list[float | None]:
        self.asked.append(len(texts))
        if self.error is not None:
            raise self.error
        found = [1 / len(text) for text in texts]
        return [None] * self.leave_out + found[self.leave_out :]

    def close(self) -> None:
        self.closed = True


API = "  rerank: {api_enabled: true, endpoint: 'http://127.0.0.1:9/v1', model: far, weight: 0.9, candidates: 8}\n"


async def test_an_endpoint_may_rerank_and_what_it_leaves_out_keeps_its_place(
    start: Callable[..., Any],
) -> None:
    client = Client()
    _, url = await start(rerank=API, make_rerank_client=lambda settings: client)
    body = (await ask(url, QUESTION))[1]
    assert (body["rerank"], body["warnings"]) == ({"applied": True, "method": "api"}, [])
    assert client.asked == [8]
    assert (await health(url))["rerank"] == {"api_enabled": True, "model": "far", "method": "api"}
    client = Client(leave_out=2)
    services, url = await start(rerank=API, make_rerank_client=lambda settings: client)
    body = (await ask(url, QUESTION))[1]
    assert body["rerank"] == {"applied": True, "method": "api"}
    assert body["warnings"] == ["重排没有给出 2 条条文的得分，它们保留原来的位置。"]
    assert services.retrieval_cache.snapshot()["entries"] == 0
    services.library.close()
    assert client.closed


async def test_the_client_of_an_endpoint_sends_the_question_with_its_candidates(
    start: Callable[..., Any],
) -> None:
    results = [{"index": index, "relevance_score": (index + 1) / 10} for index in range(8)]
    with upstream_in_thread(raw(json.dumps({"results": results}).encode()), Reply(before=[Hang()])) as server:
        line = (
            f"  rerank: {{method: api, endpoint: '{server.url}', model: far, weight: 0.9, candidates: 8}}\n"
        )
        services, url = await start(rerank=line)
        body = (await ask(url, QUESTION, include_debug=True))[1]
        assert body["rerank"] == {"applied": True, "method": "api"}
        sent = server.requests[0].json
        assert (sent["model"], sent["query"], len(sent["documents"])) == ("far", QUESTION, 8)
        assert body["retrieval_docs"][0]["contents"] in sent["documents"][7]
        assert body["retrieval_docs"][0]["debug"]["stages"]["rerank"] == 0.8
        await leave_while_asked("配电箱", url, services, server)


@pytest.mark.parametrize(
    ("form", "path", "texts_in", "wrap"),
    [
        ("flat", "/v1/rerank", "documents", lambda found: {"results": found}),
        (
            "dashscope",
            "/v1/services/rerank/text-rerank/text-rerank",
            "input",
            lambda found: {"output": {"results": found}},
        ),
        ("tei", "/v1/rerank", "texts", lambda found: found),
    ],
)
async def test_endpoint_is_asked_in_the_form_that_is_set(
    start: Callable[..., Any], form: str, path: str, texts_in: str, wrap: Callable[[Any], Any]
) -> None:
    name = "score" if form == "tei" else "relevance_score"
    scored = wrap([{"index": place, name: 0.1 * place} for place in range(8)])
    with upstream_in_thread(raw(json.dumps(scored).encode())) as server:
        words = (
            f"method: api, api_form: {form}, endpoint: '{server.url}', model: far, weight: 0.9, candidates: 8"
        )
        _, url = await start(rerank=f"  rerank: {{{words}}}\n")
        body = (await ask(url, QUESTION, include_debug=True))[1]
        assert (body["rerank"], body["warnings"]) == ({"applied": True, "method": "api"}, [])
        assert body["retrieval_docs"][0]["debug"]["stages"]["rerank"] == pytest.approx(0.7)
        (sent,) = server.requests
        assert sent.path == path
        assert texts_in in sent.json


async def test_a_failing_endpoint_degrades_and_is_left_alone_for_a_while(start: Callable[..., Any]) -> None:
    client = Client(error=UpstreamUnreachable("connect_failed"))
    services, url = await start(rerank=API, make_rerank_client=lambda settings: client)
    for _ in range(2):
        status, body = await ask(url, QUESTION)
        assert (status, body["warnings"]) == (200, UNAVAILABLE)
        assert body["rerank"] == {"applied": False, "method": "fused"}
    assert client.asked == [8]
    assert services.retrieval_slots.in_use == services.retrieval_cache.snapshot()["entries"] == 0


async def test_client_leaving_stops_the_computation_and_frees_its_slot(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    folder = make_slow_reranker(tmp_path / "slow")
    services, url = await start(rerank=f"  rerank: {{model_dir: '{folder}'}}\n")
    asking = asyncio.create_task(ask(url, QUESTION))
    async with asyncio.timeout(30):
        while not services.retrieval_slots.in_use:
            await asyncio.sleep(0.01)
    asking.cancel()
    async with steady_clock(), asyncio.timeout(3):
        while services.retrieval_slots.in_use:
            await asyncio.sleep(0.01)


def test_doctor_asks_the_reranker(vector_index: Path, tmp_path: Path) -> None:
    from cg_rag.core.config import load
    from cg_rag.modes.services import make_library

    for line, words in (
        ("", "statute-ce-6l"),
        ("  rerank: {method: fused}\n", "不重排"),
    ):
        config = tmp_path / "config.yaml"
        config.write_text(f"cg_rag:\n  index: {{dir: '{vector_index}'}}\n{line}", "utf-8")
        found = check_index(make_library(load(config, {}).settings), "full")
        (finding,) = [one for one in found if one.subject == "重排"]
        assert finding.severity == "ok"
        assert words in finding.message


@pytest.mark.parametrize(
    ("values", "chosen"),
    [
        ({}, "onnx"),
        ({"method": "fused"}, "fused"),
        ({"api_enabled": True, "endpoint": "http://a/v1", "model": "m"}, "api"),
        ({"method": "api", "endpoint": "http://a/v1", "model": "m"}, "api"),
        ({"method": "api", "api_form": "tei", "endpoint": "http://a"}, "api"),
        ({"method": "fused", "api_enabled": True}, "fused"),
    ],
)
def test_method_in_force(values: dict[str, Any], chosen: str) -> None:
    assert RerankSettings.model_validate(values).chosen == chosen


def test_a_process_with_default_settings_reranks(start_server: StartServer, vector_index: Path) -> None:
    server = start_server(index_dir=vector_index)
    server.wait_ready()
    body = server.post("/retrieve-rerank", {"query": QUESTION, "topk": 3}).json
    assert body["rerank"] == {"applied": True, "method": "onnx"}
    again = server.post("/retrieve-rerank", {"query": QUESTION, "topk": 3}).json
    assert again["cache"] == {"hit": True}
    assert again["rerank"] == body["rerank"]
    answer = server.post("/rag", {"query": QUESTION, "topk": 3}).json
    assert answer["retrieval"]["rerank"]["applied"]
