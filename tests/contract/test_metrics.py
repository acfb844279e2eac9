"""/metrics, the log as an audit record and its file, over real sockets."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cg_rag.core.config import load
from cg_rag.index.build import SourceSpec, build_index
from cg_rag.modes.services import make_embedder
from tests.conftest import StartServer
from tests.fake_upstream import FakeUpstream, Hang, Received, Reply, error, raw, says, upstream_in_thread
from tests.generating import GENERATE, NO_VECTORS, RAG, read_until, streaming, wait_for
from tests.mcp_wire import post, tool_call
from tests.server_process import PROGRAM, ServerProcess

ROOT = Path(__file__).resolve().parents[2]
KEY, SCRAPER_KEY = "key-of-the-site-0001", "key-of-the-scraper-1"
UPSTREAM_KEY = "sk-upstream-canary-77"


@pytest.fixture(scope="module")
def server(start_server: StartServer, upstream: FakeUpstream) -> ServerProcess:
    server = start_server(
        f"  server: {{api_keys: {{site-a: {KEY}, scraper: {SCRAPER_KEY}}}}}\n"
        f"  generation: {{endpoint: '{upstream.url}', model: m, api_key: {UPSTREAM_KEY}}}\n"
        f"  mcp: {{enabled: true}}\n  capacity: {{generation: {{max: 1}}, wait_timeout_seconds: 0.1}}\n{NO_VECTORS}"
    )
    server.wait_ready()
    return server


def scrape(server: ServerProcess) -> dict[tuple[str, ...], float]:
    """(name, label values in the order of their names) -> value."""
    answer = server.get("/metrics", X_API_Key=SCRAPER_KEY)
    assert answer.status == 200
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
    }


class Growth:
    """What has grown since it was made."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._before = scrape(server)

    def of(self, *series: str) -> float:
        return scrape(self._server).get(series, 0) - self._before.get(series, 0)


def test_metrics_need_a_key_like_everything_that_counts(server: ServerProcess) -> None:
    assert server.get("/metrics").code == "unauthorized"
    assert server.get("/metrics", Authorization=f"Bearer {SCRAPER_KEY}").status == 200


def test_each_outcome_of_a_route_is_counted(server: ServerProcess, upstream: FakeUpstream) -> None:
    grown = Growth(server)
    upstream.enqueue(says('{"indices":[1]}'), error(401))
    assert server.post("/rag", RAG, X_API_Key=KEY).json["ok"] is True
    assert server.post("/rag", RAG, X_API_Key=KEY).json["ok"] is False
    server.post("/rag", {}, X_API_Key=KEY)
    server.post("/rag", RAG)
    for path in ("/nope", "/nope/2?x=1", "/rag"):
        server.get(path, X_API_Key=KEY)
    name, route = "cg_rag_requests_total", "/cg-rag/rag"
    assert grown.of(name, "", route, "200") == 1
    assert grown.of(name, "generation_upstream_error", route, "200") == 1
    assert grown.of(name, "invalid_request", route, "400") == 1
    assert grown.of(name, "unauthorized", route, "401") == 1
    assert grown.of(name, "not_found", "other", "404") == 2
    assert grown.of(name, "method_not_allowed", "other", "405") == 1
    assert grown.of("cg_rag_request_seconds_count", route) == 4
    assert grown.of("cg_rag_received_bytes_total", route) > 3 * 2
    assert grown.of("cg_rag_requests_in_progress") == 0


def test_calls_retries_errors_and_tokens_of_the_model_are_counted_and_in_the_audit_line(
    server: ServerProcess, upstream: FakeUpstream
) -> None:
    grown = Growth(server)
    upstream.enqueue(error(503), says('{"indices":[1]}'))
    body = server.post("/constrained-generate", GENERATE, X_API_Key=KEY, X_Request_ID="audited").json
    usage = body["usage"]
    assert grown.of("cg_rag_upstream_calls_total", "ok", "generation") == 1
    assert grown.of("cg_rag_upstream_errors_total", "server_error", "generation") == 1
    assert grown.of("cg_rag_upstream_retries_total", "generation") == 1
    assert grown.of("cg_rag_upstream_tokens_total", "prompt", "generation") == usage["prompt_tokens"]
    assert grown.of("cg_rag_upstream_tokens_total", "completion", "generation") == usage["completion_tokens"]
    line = server.wait_event("request", request_id="audited")
    assert line["key"] == "site-a"
    assert line["upstreams"] == {
        "generation": {
            "calls": 1,
            "retries": 1,
            "errors": 1,
            "prompt_tokens": usage["prompt_tokens"],
            "completion_tokens": usage["completion_tokens"],
        }
    }
    assert line["bytes_in"] == len(json.dumps(GENERATE).encode())
    assert line["bytes_out"] > 500
    assert line["peer"] == "127.0.0.1"


def test_stream_tells_its_first_token_and_who_left_is_counted_as_gone(
    server: ServerProcess, upstream: FakeUpstream
) -> None:
    grown = Growth(server)
    route = "/cg-rag/constrained-generate/stream"
    upstream.enqueue(says('{"indices":[1]}'))
    headers = {"X_API_Key": KEY, "X_Request_ID": "streamed"}
    streamed = server.post("/constrained-generate/stream", GENERATE, **headers)
    line = server.wait_event("request", request_id="streamed")
    assert 0 < line["first_token_ms"] <= line["ms"]
    assert line["bytes_out"] > len(streamed.body)
    assert grown.of("cg_rag_first_token_seconds_count", route) == 1
    asked = len(upstream.requests)
    upstream.enqueue(says('{"indices":[1]}', cut_after=0, cut_by=[Hang()]))
    with streaming(server, "/constrained-generate", GENERATE, {"X-API-Key": KEY}) as response:
        read_until(response, b"event: progress")
        wait_for(lambda: len(upstream.requests) == asked + 1)
        assert grown.of("cg_rag_requests_in_progress") == 1
        assert scrape(server)["cg_rag_capacity_in_use", "generation"] == 1
    server.wait_event("request", path=route, code="client_gone")
    assert grown.of("cg_rag_requests_total", "client_gone", route, "200") == 1
    assert grown.of("cg_rag_upstream_calls_total", "left", "generation") == 1
    assert grown.of("cg_rag_upstream_calls_total", "ok", "generation") == 1


def test_waits_and_refusals_of_capacity_are_counted(server: ServerProcess, upstream: FakeUpstream) -> None:
    grown = Growth(server)
    asked = len(upstream.requests)
    upstream.enqueue(says('{"indices":[1]}', cut_after=0, cut_by=[Hang()]))
    with streaming(server, "/constrained-generate", GENERATE, {"X-API-Key": KEY}):
        wait_for(lambda: len(upstream.requests) == asked + 1)
        assert server.post("/constrained-generate", GENERATE, X_API_Key=KEY).status == 429
    assert grown.of("cg_rag_capacity_refused_total", "generation") == 1
    assert grown.of("cg_rag_stage_seconds_count", "wait_generation") == 1
    wait_for(lambda: scrape(server)["cg_rag_capacity_in_use", "generation"] == 0)


def test_stages_are_those_of_a_search_and_a_cached_answer_has_none(
    server: ServerProcess, upstream: FakeUpstream
) -> None:
    grown = Growth(server)
    question = {"query": "动火作业要办什么手续", "topk": 3}
    for hit in (False, True):
        server.post("/retrieve-rerank", question, X_API_Key=KEY, X_Request_ID=f"hit-{hit}")
        assert server.wait_event("request", request_id=f"hit-{hit}")["cache_hit"] is hit
    assert grown.of("cg_rag_stage_seconds_count", "lexical") == 1
    assert grown.of("cg_rag_cache_hits_total") == 1
    server.post("/verify-citations", {"text": "《样例安全法》第二十八条"}, X_API_Key=KEY)
    assert grown.of("cg_rag_stage_seconds_count", "scan") == 1


def counting_endpoint(request: Received) -> Reply:
    """Embeds and scores whatever it is sent, and counts ten tokens for an embedded text, a hundred for a scored one."""
    asked = request.json
    if "input" in asked:
        vectors = [
            {"index": index, "embedding": [1.0, len(text), 0.5]} for index, text in enumerate(asked["input"])
        ]
        return raw(json.dumps({"data": vectors, "usage": {"prompt_tokens": 10 * len(vectors)}}).encode())
    scores = [{"index": index, "relevance_score": 0.5} for index in range(len(asked["documents"]))]
    return raw(
        json.dumps({"results": scores, "meta": {"tokens": {"input_tokens": 100 * len(scores)}}}).encode()
    )


def test_calls_and_tokens_of_embedding_and_rerank_endpoints_are_counted_and_fusion_has_its_time(
    start_server: StartServer, tmp_path: Path
) -> None:
    articles = [
        {"law_name": "样例", "article_number": f"第{n}条", "contents": f"脚手架应验收 {n}"} for n in "一二三"
    ]
    source = tmp_path / "three.jsonl"
    source.write_text("\n".join(json.dumps(article, ensure_ascii=False) for article in articles), "utf-8")
    with upstream_in_thread(*[counting_endpoint] * 4) as endpoint:
        settings = (
            f"  embedding: {{provider: http, endpoint: '{endpoint.url}', model: m, dim: 3}}\n"
            f"  rerank: {{method: api, endpoint: '{endpoint.url}', model: far}}\n"
        )
        config = tmp_path / "config.yaml"
        config.write_text(f"cg_rag:\n{settings}", "utf-8")
        embedder = make_embedder(load(config, {}).settings)
        assert embedder is not None
        build_index([SourceSpec(source, "three", ())], tmp_path / "index", None, embedder=embedder)
        embedder.close()
        server = start_server(settings, index_dir=tmp_path / "index")
        server.wait_ready()
        grown = Growth(server)
        answer = server.post("/retrieve-rerank", {"query": "脚手架"}, X_Request_ID="endpoints").json
    assert answer["rerank"] == {"applied": True, "method": "api"}
    for upstream, tokens in (("embedding", 10), ("rerank", 300)):
        assert grown.of("cg_rag_upstream_calls_total", "ok", upstream) == 1
        assert grown.of("cg_rag_upstream_call_seconds_count", upstream) == 1
        assert grown.of("cg_rag_upstream_tokens_total", "prompt", upstream) == tokens
    for stage in ("exact", "embed", "lexical", "dense", "fuse", "rerank", "read"):
        assert grown.of("cg_rag_stage_seconds_count", stage) == 1
        assert answer["runtime_stats"][f"{stage}_ms"] >= 0
    line = server.wait_event("request", request_id="endpoints")
    assert line["upstreams"] == {
        "embedding": {"calls": 1, "prompt_tokens": 10},
        "rerank": {"calls": 1, "prompt_tokens": 300},
    }


def test_mcp_calls_are_counted_by_tool_and_code(server: ServerProcess, upstream: FakeUpstream) -> None:
    grown = Growth(server)
    upstream.enqueue(error(401))
    call = {"query": "脚手架", "topk": 2}
    post(server, tool_call("cg_rag", call), X_API_Key=KEY, X_Request_ID="called")
    post(server, tool_call("cg_rag", {"topk": 0}), X_API_Key=KEY)
    post(server, tool_call("cg_unknown"), X_API_Key=KEY)
    name = "cg_rag_mcp_calls_total"
    assert grown.of(name, "generation_upstream_error", "cg_rag") == 1
    assert grown.of(name, "invalid_request", "cg_rag") == 1
    assert grown.of(name, "not_found", "other") == 1
    assert grown.of("cg_rag_mcp_call_seconds_count", "cg_rag") == 2
    assert grown.of("cg_rag_requests_total", "", "/cg-rag/mcp", "200") == 0
    line = server.wait_event("request", request_id="called")
    assert (line["tool"], line["code"], line["key"]) == ("cg_rag", "generation_upstream_error", "site-a")


def test_what_stands_is_told(server: ServerProcess) -> None:
    found = scrape(server)
    assert found["cg_rag_index_state", "ready"] == 1
    assert found["cg_rag_index_state", "degraded"] == 0
    assert found["cg_rag_index_articles", "full"] == 5
    assert found["cg_rag_index_usable", "usual"] == 1
    assert found["cg_rag_index_built_timestamp_seconds",] > 1.7e9
    assert found["cg_rag_capacity_max", "generation"] == 1
    assert found["process_open_fds",] > 3


def test_metrics_are_those_of_the_document_and_no_other(server: ServerProcess) -> None:
    text = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    rows = "\n".join(re.findall(r"^\| (`cg_rag_[^|]*) \|", text, re.MULTILINE))
    body = server.get("/metrics", X_API_Key=SCRAPER_KEY).body.decode()
    told = set(re.findall(r"^# TYPE (cg_rag_\w+)", body, re.MULTILINE))
    assert told == set(re.findall(r"`(cg_rag_\w+)`", rows))


def test_labels_and_log_hold_no_words_of_callers_and_no_keys(
    server: ServerProcess, upstream: FakeUpstream
) -> None:
    word = "秘密词组"
    upstream.enqueue(says('{"indices":[1]}'))
    server.post("/rag", {"query": word, "topk": 1}, X_API_Key=KEY, X_Request_ID=f"words-{UPSTREAM_KEY}")
    server.get(f"/{UPSTREAM_KEY}-is-a-path?key={KEY}", X_API_Key=KEY)
    post(server, tool_call(f"cg_{UPSTREAM_KEY}"), X_API_Key=KEY)
    body = server.get("/metrics", X_API_Key=SCRAPER_KEY).body
    assert UPSTREAM_KEY.encode() not in body
    assert word.encode() not in body + server.raw_log
    assert KEY.encode() not in body + server.raw_log


def test_contents_are_in_the_log_only_where_that_is_set_and_times_have_the_zone_that_is_set(
    start_server: StartServer,
) -> None:
    server = start_server(
        "  generation: {provider: local}\n" + NO_VECTORS,
        environ={"CG_RAG_LOG_CONTENTS": "1", "CG_RAG_LOG_UTC_OFFSET": "+08:00", "TZ": "America/Lima"},
    )
    server.wait_ready()
    answer = server.post("/rag", RAG).json
    line = server.wait_event("request", path="/cg-rag/rag")
    assert line["question"] == RAG["query"]
    assert line["answer"] == answer["generation"]["answer_text"]
    assert line["time"].endswith("+08:00")
    server.post("/verify-citations", {"text": "见《样例安全法》"})
    assert server.wait_event("request", path="/cg-rag/verify-citations")["question"] == "见《样例安全法》"


@pytest.fixture
def logging_to(tmp_path: Path, small_index: Path) -> Iterator[Callable[[Path], subprocess.Popen[str]]]:
    """`logging_to(path)` starts a service with `log.file`."""
    started = []

    def start(path: Path) -> subprocess.Popen[str]:
        config = tmp_path / "config.yaml"
        config.write_text(
            f"cg_rag:\n  index: {{dir: {json.dumps(str(small_index))}}}\n  mcp: {{enabled: false}}\n{NO_VECTORS}"
            f"  log: {{file: {json.dumps(str(path))}}}\n"
        )
        clean = {key: value for key, value in os.environ.items() if not key.startswith("CG_RAG_")}
        words = [sys.executable, str(PROGRAM), "serve", "--config", str(config), "--port", "0"]
        process = subprocess.Popen(words, env=clean, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.terminate()
        process.communicate(timeout=60)


def lines(path: Path, event: str) -> list[dict[str, Any]]:
    # Without an unfinished last one, which is being written.
    told = path.read_text("utf-8").split("\n")[:-1] if path.exists() else []
    return [line for line in map(json.loads, told) if line["event"] == event]


def test_log_file_that_is_rotated_away_is_followed(
    tmp_path: Path, logging_to: Callable[[Path], subprocess.Popen[str]]
) -> None:
    path = tmp_path / "cg-rag.log"
    process = logging_to(path)
    wait_for(lambda: bool(lines(path, "listening")), 30)
    url = lines(path, "listening")[0]["url"]
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    direct.open(f"{url}/health").close()
    wait_for(lambda: len(lines(path, "request")) == 1)
    path.rename(tmp_path / "cg-rag.log.1")
    direct.open(f"{url}/health").close()
    wait_for(lambda: len(lines(path, "request")) == 1)
    process.terminate()
    assert process.communicate(timeout=60)[1] == ""
    assert lines(path, "stopped")


def test_log_file_that_cannot_be_opened_stops_the_start_with_one_line(
    tmp_path: Path, logging_to: Callable[[Path], subprocess.Popen[str]]
) -> None:
    process = logging_to(tmp_path / "none" / "cg-rag.log")
    told = process.communicate(timeout=60)[1]
    assert process.returncode == 1
    assert told.count("\n") == 1
    assert "log.file" in told
