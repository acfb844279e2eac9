"""constrained-generate and rag over real sockets: a real process, a scripted model, callers as they are."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import StartServer
from tests.fake_upstream import FakeUpstream, Go, Hang, error, says, upstream_in_thread
from tests.generating import (
    GENERATE,
    NO_VECTORS,
    ONE_SECOND,
    RAG,
    ROUTES,
    capacity,
    read_until,
    seconds_until,
    streaming,
    wait_for,
    without_times,
)
from tests.patience import assert_within
from tests.server_process import ServerProcess
from tests.sse_checker import StreamChecker


@pytest.fixture(scope="module")
def server(start_server: StartServer, upstream: FakeUpstream) -> ServerProcess:
    server = start_server(
        f"  generation: {{endpoint: '{upstream.url}', model: m, api_key: sk-of-the-test}}\n"
        f"  vision: {{sse_heartbeat_seconds: 0.2}}\n{NO_VECTORS}"
    )
    server.wait_ready()
    return server


@pytest.fixture(autouse=True)
def nothing_left_over(upstream: FakeUpstream, server: ServerProcess) -> Iterator[None]:
    yield
    assert upstream.num_left == 0
    wait_for(lambda: capacity(server) == (0, 0))


@pytest.mark.parametrize(("path", "body"), ROUTES)
@pytest.mark.parametrize(
    "replies",
    [
        [says('{"indices":[2,1]}', thinking="想一想")],
        [says('{"indices":[]}')],
        [says("无"), says('```json\n{"indices":["1"]}```')],
        [says(['{"indices":[2,', "1]}"], cut_after=2), says('{"indices":[1]}')],
        [says("无"), says("无")],
        [error(400, "sk-of-the-test")],
        [says(['{"indices":[2,', "1]}"], cut_after=2), error(401)],
    ],
    ids=["plain", "none", "retried", "cut", "invalid", "refused", "cut and refused"],
)
def test_final_is_the_json_answer_and_tokens_join_to_it(
    server: ServerProcess, upstream: FakeUpstream, path: str, body: dict[str, Any], replies: list[Any]
) -> None:
    body = body | {"generation_enable_thinking": True}
    upstream.enqueue(*replies)
    plain = server.post(path, body)
    upstream.enqueue(*replies)
    streamed = server.post(f"{path}/stream", body)
    assert (plain.status, streamed.status) == (200, 200)
    assert streamed.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    checker = StreamChecker(streamed.body)
    assert without_times(checker.final) == without_times(plain.json)
    generation = checker.final.get("generation", checker.final)
    assert checker.answer_text == generation["answer_text"]
    assert checker.reasoning_text == generation["thinking"]
    assert checker.final["ok"] is generation["ok"]
    assert b"sk-of-the-test" not in plain.body + streamed.body
    assert b"127.0.0.1" not in plain.body + streamed.body


def test_answer_has_the_keys_of_the_contract(server: ServerProcess, upstream: FakeUpstream) -> None:
    upstream.enqueue(says('{"indices":[1]}'))
    answer = server.post("/constrained-generate", GENERATE, X_Request_ID="mine").json
    assert answer["ok"] is True
    assert answer["request_id"] == "mine"
    assert answer["answer_text"] == (
        "我根据在线检索与候选筛选结果，整理出以下最相关条文：\n1. GB1样例脚手架规范 6.0.5(1)"
    )
    assert answer["pred_raw"] == '{"indices":[1]}'
    assert upstream.requests[-1].headers["x-request-id"] == "mine"


def test_rag_stream_tells_what_was_found_while_the_model_is_silent(
    server: ServerProcess, upstream: FakeUpstream
) -> None:
    upstream.enqueue(says('{"indices":[1]}', cut_after=0, cut_by=[Hang()]))
    with streaming(server, "/rag", RAG) as response:
        told = read_until(response, b'"heartbeat":true')
    assert b"event: retrieval" in told
    assert b"event: token" not in told


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_first_line_arrives_while_the_model_still_speaks(
    server: ServerProcess, upstream: FakeUpstream, path: str, body: dict[str, Any]
) -> None:
    upstream.enqueue(says(['{"indices":[2,', "1", "]}"], cut_after=2, cut_by=[Hang()]))
    with streaming(server, path, body) as response:
        told = read_until(response, b"\\n1. ")
    assert b"event: final" not in told


@pytest.mark.parametrize(("path", "body"), ROUTES)
@pytest.mark.parametrize("streams", [True, False], ids=["stream", "json"])
@pytest.mark.parametrize("cut_after", [0, 2], ids=["before the first token", "mid-stream"])
def test_client_that_leaves_frees_slot_and_upstream_within_a_second(
    server: ServerProcess,
    upstream: FakeUpstream,
    path: str,
    body: dict[str, Any],
    streams: bool,
    cut_after: int,
) -> None:
    sent = json.dumps(body).encode()
    route = f"/cg-rag{path}{'/stream' if streams else ''}"

    def leave() -> float:
        asked = len(upstream.requests)
        upstream.enqueue(says(['{"indices":[2,', "1]}"], cut_after=cut_after, cut_by=[Hang()]))
        head = (
            f"POST {route} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"X-Request-ID: leaves-{asked}\r\nContent-Length: {len(sent)}\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(head.encode() + sent)
            wait_for(lambda: len(upstream.requests) == asked + 1)
            assert capacity(server) == (0, 1)
        taken = seconds_until(lambda: upstream.was_left(asked))
        taken += seconds_until(lambda: capacity(server) == (0, 0))
        line = server.wait_event("request", path=route, code="client_gone", request_id=f"leaves-{asked}")
        assert line["status"] == (200 if streams else 499)
        return taken

    assert_within(ONE_SECOND, leave)


def test_heartbeat_tells_that_a_silent_model_is_waited_for(
    server: ServerProcess, upstream: FakeUpstream
) -> None:
    upstream.enqueue(says('{"indices":[1]}', cut_after=0, cut_by=[Hang()]))
    with streaming(server, "/constrained-generate", GENERATE) as response:
        told = read_until(response, b'"heartbeat":true')
    assert b": keepalive\n\n" in told
    assert "正在筛选条文".encode() in told


def test_fifth_generation_waits_and_is_then_refused(
    start_server: StartServer, upstream: FakeUpstream
) -> None:
    server = start_server(
        f"  generation: {{endpoint: '{upstream.url}', model: m}}\n"
        f"  capacity: {{generation: {{max: 1}}, wait_timeout_seconds: 0.2}}\n{NO_VECTORS}"
    )
    server.wait_ready()
    asked = len(upstream.requests)
    upstream.enqueue(says('{"indices":[1]}', cut_after=1, cut_by=[Go()]))
    with streaming(server, "/rag", RAG) as response:
        wait_for(lambda: len(upstream.requests) == asked + 1)
        refused = server.post("/rag", RAG)
        assert (refused.status, refused.code) == (429, "capacity.exceeded")
        assert refused.json["error"]["details"]["resource"] == "generation"
        assert StreamChecker(server.post("/rag/stream", RAG).body).error_code == "capacity.exceeded"
        upstream.go()
        assert StreamChecker(response.read()).final["ok"] is True


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_service_without_a_model_says_so_and_keeps_what_it_found(
    start_server: StartServer, path: str, body: dict[str, Any]
) -> None:
    server = start_server(NO_VECTORS)
    server.wait_ready()
    answer = server.post(path, body)
    generation = answer.json.get("generation", answer.json)
    assert (answer.status, answer.json["ok"]) == (200, False)
    assert generation["error"] == {
        "code": "generation_not_configured",
        "message": "CG_RAG 生成接口未配置，请设置 CG_RAG_GENERATION_ENDPOINT 和 CG_RAG_GENERATION_MODEL。",
        "details": {},
    }
    if path == "/rag":
        assert answer.json["retrieval"]["num_docs"] == 2
    checker = StreamChecker(server.post(f"{path}/stream", body).body)
    assert without_times(checker.final) == without_times(answer.json)
    # Fields are looked at first: what is wrong with a request does not depend on how the service is set up.
    assert server.post(path, body | {"max_items": 0}).code == "invalid_request"


def test_local_provider_answers_without_a_model(start_server: StartServer) -> None:
    server = start_server(f"  generation: {{provider: local}}\n{NO_VECTORS}")
    server.wait_ready()
    answer = server.post("/rag", RAG).json
    assert answer["ok"] is True
    assert answer["generation"]["provider"] == "local"
    assert answer["generation"]["pred_items"][0] == "GB99001-2025样例脚手架规范 6.0.5(1)"
    checker = StreamChecker(server.post("/rag/stream", RAG).body)
    assert without_times(checker.final) == without_times(answer)
    health = server.get("/health").json["generation"]
    assert (health["configured"], health["provider"]) == (True, "local")


def test_health_names_the_model(server: ServerProcess) -> None:
    assert server.get("/health").json["generation"] == {
        "configured": True,
        "provider": "openai",
        "model": "m",
        "enable_thinking": False,
        "streaming": True,
    }


WRONG = [
    b"",
    b"[]",
    b"{",
    b"{}",
    b'{"query":1}',
    b'{"query":"x","retrieval_docs":{},"topk":0}',
    b'{"query":"x","retrieval_docs":[{}],"topk":201}',
    b'{"query":"x","retrieval_docs":[[]],"topk":true}',
    b'{"query":"x","retrieval_docs":[{"law_name":"a","article_number":1,"contents":"b"}],"topk":0}',
    b'{"query":"x","max_items":NaN,"topk":NaN}',
    b'{"query":"x","max_items":1e999}',
    b'{"query":"x","max_items":18446744073709551616,"topk":18446744073709551616}',
    b'{"query":"x","max_items":2.0,"topk":2.0}',
    b'{"query":"\\ud800","retrieval_docs":[]}',
    b'{"query":"x","retrieval_docs":' + b"[" * 254 + b"]" * 254 + b',"topk":-1}',
]


@pytest.mark.parametrize("body", WRONG)
@pytest.mark.parametrize("path", ["/constrained-generate", "/rag"])
def test_wrong_bodies_are_invalid_requests_on_both_kinds_of_routes(
    server: ServerProcess, path: str, body: bytes
) -> None:
    answer = server.post(path, body)
    assert (answer.status, answer.code) == (400, "invalid_request")
    streamed = server.post(f"{path}/stream", body)
    assert streamed.status == 200
    checker = StreamChecker(streamed.body)
    assert checker.names == ["error"]
    told = checker.terminal.data
    assert told["error"] == answer.json["error"]


def test_what_is_decided_before_the_json_keeps_its_status_on_streams(server: ServerProcess) -> None:
    assert server.post("/rag/stream", b"{}", Content_Type="text/plain").status == 415
    assert server.get("/rag/stream").status == 405
    assert server.get("/rag/streams").status == 404


def test_openapi_names_the_streams(server: ServerProcess) -> None:
    paths = server.get("/openapi.json").json["paths"]
    for path in ("/constrained-generate", "/rag"):
        operation = paths[f"/cg-rag{path}/stream"]["post"]
        assert "text/event-stream" in operation["responses"]["200"]["content"]
        assert operation["requestBody"]["required"] is True


def test_answer_that_is_not_ready_at_the_shutdown_limit_is_an_error_that_arrives(
    start_server: StartServer,
) -> None:
    with upstream_in_thread(says("x", cut_after=1, cut_by=[Hang()])) as silent:
        server = start_server(
            f"  server: {{shutdown_timeout_seconds: 2}}\n"
            f"  generation: {{endpoint: '{silent.url}', model: m, provider: openai}}\n"
        )
        server.wait_ready()
        with server.connect() as connection:
            body = json.dumps({"query": "脚手架"}).encode()
            connection.sendall(
                b"POST /cg-rag/rag HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
            )
            wait_for(lambda: bool(silent.requests))
            server.signal()
            answer = b""
            while piece := connection.recv(65536):
                answer += piece
        assert answer.startswith(b"HTTP/1.1 500 ")
        assert b'"reason":"shutdown"' in answer
        line = server.wait_event("request", path="/cg-rag/rag")
        assert (line["status"], line["code"]) == (500, "internal_error")
        assert server.wait_exit() == 0
