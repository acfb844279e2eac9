"""Every route, field and error code of this version, through a real process and a real socket."""

from __future__ import annotations

import json
import re
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from cg_rag.modes import MODES, STREAMS
from tests.conftest import StartServer
from tests.generating import wait_for
from tests.server_process import ServerProcess

RETRIEVE = "/retrieve-rerank"
KEY = "correct-horse-battery-staple"


def read_answer(connection: socket.socket) -> bytes:
    """Everything until the server closes."""
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


# --- retrieve-rerank ---------------------------------------------------------------------------------------------


def test_answer_has_every_field_of_the_contract(server: ServerProcess) -> None:
    answer = server.post(
        RETRIEVE, {"query": "  脚手架验收 ", "scope": "full", "topk": 2}, X_Request_ID="req-doc-1"
    )
    body = answer.json
    assert answer.status == 200
    assert list(body) == [
        "ok", "request_id", "query", "scope", "topk", "num_docs", "cache", "retrieval_docs", "rerank", "warnings",
        "runtime_stats",
    ]  # fmt: skip
    assert body["ok"] is True
    assert body["request_id"] == "req-doc-1" == answer.headers["X-Request-ID"]
    assert (body["query"], body["scope"], body["topk"]) == ("脚手架验收", "full", 2)
    assert body["num_docs"] == len(body["retrieval_docs"]) == 2
    assert body["rerank"] == {"applied": False, "method": "fused"}
    assert body["warnings"] == []
    assert body["runtime_stats"]["total_time_ms"] >= 0
    first = body["retrieval_docs"][0]
    assert first["law_name"] == "GB99001-2025样例脚手架规范"
    assert first["article_number"] == "6.0.5(1)"
    assert first["contents"].startswith("脚手架搭设至设计高度后")
    assert first["chapter"] == "6 检查与验收"
    assert first["status"] == "现行有效"
    assert first["score"] >= body["retrieval_docs"][1]["score"]
    assert answer.headers["Content-Type"].startswith("application/json")


def test_chinese_is_not_escaped(server: ServerProcess) -> None:
    assert "脚手架".encode() in server.post(RETRIEVE, {"query": "脚手架"}).body


def test_defaults_are_twenty_articles_of_the_active_scope(server: ServerProcess) -> None:
    body = server.post(RETRIEVE, {"query": "安全"}).json
    assert (body["scope"], body["topk"]) == ("full", 20)


def test_named_article_comes_first(server: ServerProcess) -> None:
    for query in (
        "《样例安全法》第28条",
        "样例安全法第二十八条讲什么",
        "中华人民共和国样例安全法 第二十八条",
    ):
        first = server.post(RETRIEVE, {"query": query}).json["retrieval_docs"][0]
        assert first["article_number"] == "第二十八条", query


def test_named_standard_comes_first(server: ServerProcess) -> None:
    for query in ("GB99001 6.0.5", "GB 99001—2025第6.0.5条", "《样例脚手架规范》６.０.５（１）"):
        first = server.post(RETRIEVE, {"query": query}).json["retrieval_docs"][0]
        assert first["article_number"] == "6.0.5(1)", query


@pytest.mark.parametrize(
    ("query", "scope", "words"),
    [
        ("《样例安全法》第三百条", "full", "没有“《样例安全法》第三百条”所指的条文"),
        ("《建设工程安全生产管理条例》第二十三条", "full", "索引中没有"),
        ("GB 50870-2013 第3.0.1条", "full", "索引中没有"),
        ("样例消防法第三条", "usual", "不在所选检索范围内"),
    ],
)
def test_what_is_named_but_not_there_is_said(
    server: ServerProcess, query: str, scope: str, words: str
) -> None:
    question = {"query": query, "scope": scope}
    body = server.post(RETRIEVE, question).json
    assert len(body["warnings"]) == 1
    assert words in body["warnings"][0]
    again = server.post(RETRIEVE, question).json
    assert (again["cache"]["hit"], again["warnings"]) == (True, body["warnings"])


@pytest.mark.parametrize("query", ["《样例安全法》第二十八条", "脚手架验收", "第三条", "《施工日志》怎么写"])
def test_nothing_is_said_where_nothing_is_missing(server: ServerProcess, query: str) -> None:
    assert server.post(RETRIEVE, {"query": query}).json["warnings"] == []


def test_scope_leaves_the_rest_out(server: ServerProcess) -> None:
    query = "安全教育培训 动火 脚手架"
    usual = server.post(RETRIEVE, {"query": query, "scope": "usual"}).json
    assert {document["law_name"] for document in usual["retrieval_docs"]} == {"GB99001-2025样例脚手架规范"}
    law = server.post(RETRIEVE, {"query": query, "scope": "usual_plus_law"}).json
    assert "中华人民共和国样例消防法" not in {document["law_name"] for document in law["retrieval_docs"]}


def test_nothing_in_common_finds_nothing(server: ServerProcess) -> None:
    body = server.post(RETRIEVE, {"query": "zzzz"}).json
    assert (body["ok"], body["num_docs"], body["retrieval_docs"]) == (True, 0, [])


def test_second_time_is_a_cache_hit_with_the_same_list(server: ServerProcess) -> None:
    question = {"query": "动火作业要办什么证", "topk": 3}
    first = server.post(RETRIEVE, question).json
    second = server.post(RETRIEVE, question).json
    assert (first["cache"], second["cache"]) == ({"hit": False}, {"hit": True})
    assert second["retrieval_docs"] == first["retrieval_docs"]


def test_debug_shows_stages_only_when_asked_for(server: ServerProcess) -> None:
    plain = server.post(RETRIEVE, {"query": "脚手架积水"}).json
    debug = server.post(RETRIEVE, {"query": "脚手架积水", "include_debug": True}).json
    assert "debug" not in plain
    assert "debug" not in plain["retrieval_docs"][0]
    assert debug["debug"]["retrieval_method"] == "lexical"
    assert debug["debug"]["timings_ms"]["lexical_ms"] >= 0
    assert debug["retrieval_docs"][0]["debug"]["stages"]["lexical"] > 0


def test_unknown_fields_are_ignored(server: ServerProcess) -> None:
    body = {
        "query": "脚手架",
        "endpoint": "http://127.0.0.1:1/",
        "api_key": "x",
        "model": "m",
        "file": "/etc/passwd",
    }
    assert server.post(RETRIEVE, body).status == 200


# --- what is refused ---------------------------------------------------------------------------------------------

BAD_FIELDS: list[tuple[dict[str, Any], str, str]] = [
    ({}, "query", "缺少必填字段 query。"),
    ({"query": ""}, "query", "空字符串"),
    ({"query": " \u3000\n"}, "query", "空字符串"),
    ({"query": "字" * 2001}, "query", "2001 个字符"),
    ({"query": "字" * 70000}, "query", "210000 字节"),
    ({"query": None}, "query", "null"),
    ({"query": 5}, "query", "收到 5"),
    ({"query": ["a"]}, "query", "数组"),
    ({"query": {"a": 1}}, "query", "对象"),
    ({"query": "a", "topk": 0}, "topk", "1..200 的整数，收到 0"),
    ({"query": "a", "topk": 201}, "topk", "收到 201"),
    ({"query": "a", "topk": -1}, "topk", "收到 -1"),
    ({"query": "a", "topk": True}, "topk", "布尔值 true"),
    ({"query": "a", "topk": 1.0}, "topk", "收到 1.0"),
    ({"query": "a", "topk": "5"}, "topk", "字符串"),
    ({"query": "a", "topk": None}, "topk", "null"),
    ({"query": "a", "topk": 2**63}, "topk", "收到 9223372036854775808"),
    ({"query": "a", "scope": None}, "scope", "null"),
    ({"query": "a", "scope": 1}, "scope", "收到 1"),
    ({"query": "a", "include_debug": 1}, "include_debug", "收到 1"),
    ({"query": "a", "include_debug": "yes"}, "include_debug", "字符串"),
]


@pytest.mark.parametrize(("body", "field", "words"), BAD_FIELDS, ids=lambda value: str(value)[:40])
def test_bad_field_is_named_with_its_rule_and_the_value(
    server: ServerProcess, body: dict[str, Any], field: str, words: str
) -> None:
    answer = server.post(RETRIEVE, body)
    assert answer.status == 400
    assert list(answer.json) == ["request_id", "error"]
    error = answer.json["error"]
    assert list(error) == ["code", "message", "details"]
    assert error["code"] == "invalid_request"
    assert error["details"]["field"] == field
    assert field in error["message"]
    assert words in error["message"]


@pytest.mark.parametrize("scope", ["", "nope", "../../etc/passwd", "FULL", "full ", "全库"])
def test_unknown_scope_is_refused_with_the_list_of_scopes(server: ServerProcess, scope: str) -> None:
    answer = server.post(RETRIEVE, {"query": "a", "scope": scope})
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert answer.json["error"]["details"]["available_scopes"] == ["full", "usual", "usual_plus_law"]


BAD_JSON = {
    "empty": b"",
    "not json": b"{",
    "array": b"[]",
    "number": b"5",
    "null": b"null",
    "text": '"脚手架"'.encode(),
    "trailing": b'{"query":"a"} x',
    "nan": b'{"query":"a","topk":NaN}',
    "infinity": b'{"query":"a","x":-Infinity}',
    "overflow": b'{"query":"a","x":1e999}',
    "two to the 64": b'{"query":"a","topk":18446744073709551616}',
    "ten to the 400": b'{"query":"a","topk":1' + b"0" * 400 + b"}",
    "lone surrogate": b'{"query":"\\ud800"}',
    "lone surrogate in an ignored field": b'{"query":"a","x":["\\udfff"]}',
    "invalid utf-8": b'{"query":"\xff\xfe"}',
    "utf-16": '{"query":"a"}'.encode("utf-16"),
    "depth 33": b'{"query":' + b"[" * 32 + b"]" * 32 + b"}",
    "depth 1000": b'{"x":' + b"[" * 1000 + b"]" * 1000 + b',"query":"a"}',
    "depth 254 of objects": b'{"query":"a","x":' + b'{"a":' * 254 + b"1" + b"}" * 254 + b"}",
}


@pytest.mark.parametrize("name", BAD_JSON)
def test_body_that_is_no_plain_json_object_is_invalid_request(server: ServerProcess, name: str) -> None:
    answer = server.request("POST", RETRIEVE, BAD_JSON[name])
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert server.process.poll() is None


def test_depth_of_32_is_accepted(server: ServerProcess) -> None:
    body = b'{"query":"a","x":' + b"[" * 31 + b"]" * 31 + b"}"
    assert server.request("POST", RETRIEVE, body).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": ""},
        {"Content-Encoding": "gzip"},
        {"Content-Encoding": "br"},
        {"Content-Encoding": "zstd"},
    ],
    ids=str,
)
def test_other_media_types_and_encodings_are_415(server: ServerProcess, headers: dict[str, str]) -> None:
    answer = server.request("POST", RETRIEVE, b'{"query":"a"}', headers)
    assert (answer.status, answer.code) == (415, "unsupported_media_type")


@pytest.mark.parametrize(
    "media_type", ["application/json", "application/json; charset=utf-8", "APPLICATION/JSON"]
)
def test_json_with_parameters_is_accepted(server: ServerProcess, media_type: str) -> None:
    assert server.request("POST", RETRIEVE, b'{"query":"a"}', {"Content-Type": media_type}).status == 200


def test_identity_encoding_is_accepted(server: ServerProcess) -> None:
    answer = server.request("POST", RETRIEVE, b'{"query":"a"}', {"Content-Encoding": "identity"})
    assert answer.status == 200


def test_body_above_two_mebibytes_is_413_by_its_declared_length(server: ServerProcess) -> None:
    with server.connect() as connection:
        connection.sendall(
            b"POST /cg-rag/retrieve-rerank HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 2097153\r\n\r\n"
        )
        # Not to the end: what was announced is still waited for, and thrown away.
        answer = b""
        while b"payload_too_large" not in answer and (part := connection.recv(65536)):
            answer += part
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"payload_too_large" in answer


def test_unknown_path_is_a_json_404(server: ServerProcess) -> None:
    for path in ("/nope", "/health/", "/..%2f..%2fetc/passwd", "//health", "/retrieve-rerank%00"):
        answer = server.get(path)
        assert (answer.status, answer.code) == (404, "not_found"), path


def test_wrong_method_is_a_json_405_with_allow(server: ServerProcess) -> None:
    for method, path, allow in (
        ("GET", RETRIEVE, "POST"),
        ("PUT", RETRIEVE, "POST"),
        ("POST", "/health", "GET"),
        ("DELETE", "/profiles", "GET"),
        ("OPTIONS", "/ready", "GET"),
    ):
        answer = server.request(method, path)
        assert (answer.status, answer.code) == (405, "method_not_allowed"), (method, path)
        assert answer.headers["Allow"] == allow


def test_body_that_stops_coming_is_408_and_the_connection_ends(start_server: StartServer) -> None:
    server = start_server("  server: {body_idle_timeout_seconds: 0.2}\n")
    with server.connect() as connection:
        connection.sendall(
            b"POST /cg-rag/retrieve-rerank HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 50\r\n\r\n{"
        )
        answer = read_answer(connection)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"request_timeout"' in answer


def test_body_bytes_in_flight_are_bounded(start_server: StartServer) -> None:
    server = start_server(
        "  server: {max_inflight_body_bytes: 2097152}\n  capacity: {wait_timeout_seconds: 0.2}\n"
    )
    server.wait_ready()

    def is_holding() -> bool:
        return server.get("/health").json["capacity"]["request_body"]["in_use"] > 0

    with server.connect() as connection:
        connection.sendall(
            b"POST /cg-rag/retrieve-rerank HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 2097152\r\n\r\n{"
        )
        wait_for(is_holding)
        answer = server.post(RETRIEVE, {"query": "a"})
    assert (answer.status, answer.code) == (429, "capacity.exceeded")
    error = answer.json["error"]
    assert error["message"] == "服务当前请求过多，请稍后重试。"
    assert error["details"] == {"resource": "request_body", "max": 2097152, "wait_timeout_seconds": 0.2}
    assert int(answer.headers["Retry-After"]) >= 1
    # The sender that never finished is gone, and with it what it held.
    wait_for(lambda: not is_holding())
    assert server.post(RETRIEVE, {"query": "a"}).status == 200


# --- request ids, keys, log --------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", ["a", "A-z_0.9:x", "x" * 128])
def test_good_request_id_is_taken_over(server: ServerProcess, sent: str) -> None:
    assert server.get("/ready", X_Request_ID=sent).headers["X-Request-ID"] == sent


@pytest.mark.parametrize("sent", ["", "x" * 129, "a b", "编号", "a/b", "é"])
def test_bad_request_id_is_replaced(server: ServerProcess, sent: str) -> None:
    with server.connect() as connection:
        connection.sendall(
            b"GET /cg-rag/nope HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Request-ID: "
            + sent.encode()
            + b"\r\n\r\n"
        )
        answer = read_answer(connection)
    made = re.search(rb"X-Request-ID: (req_[0-9a-f]{20})\r\n", answer)
    assert made is not None
    assert b'"request_id":"' + made[1] + b'"' in answer


def test_one_log_line_per_request_without_its_contents(start_server: StartServer) -> None:
    server = start_server()
    server.wait_ready()
    server.post(RETRIEVE, {"query": "这句话不得进入日志"}, X_Request_ID="line-1")
    line = server.wait_event("request")
    assert line["request_id"] == "line-1"
    assert (line["method"], line["path"], line["status"]) == ("POST", "/cg-rag/retrieve-rerank", 200)
    assert line["ms"] >= 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d", line["time"])
    server.get("/nope%0a%1b[31m")
    assert server.wait_event("request")["code"] == "not_found"
    server.stop()
    assert "这句话".encode() not in server.raw_log
    assert b"\x1b" not in server.raw_log
    assert [line["event"] for line in server.lines].count("request") == 2


@pytest.fixture(scope="module")
def locked(start_server: StartServer) -> ServerProcess:
    server = start_server(f"  server: {{api_keys: {{phone: {KEY}, console: another-key-of-the-site}}}}\n")
    server.wait_ready()
    return server


def test_either_header_opens(locked: ServerProcess) -> None:
    for headers in (
        {"Authorization": f"Bearer {KEY}"},
        {"authorization": f"bearer {KEY}"},
        {"X-API-Key": KEY},
    ):
        assert locked.request("POST", RETRIEVE, {"query": "a"}, headers).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer "},
        {"Authorization": f"Basic {KEY}"},
        {"Authorization": KEY},
        {"Authorization": f"Bearer {KEY[:-1]}"},
        {"Authorization": f"Bearer {KEY}x"},
        {"X-API-Key": ""},
        {"X-API-Key": "\u00e9" * 20},
        {"X-API-Key": "phone"},
    ],
    ids=str,
)
def test_none_or_a_wrong_key_is_401_on_every_closed_path(
    locked: ServerProcess, headers: dict[str, str]
) -> None:
    for method, path in (
        ("POST", RETRIEVE),
        ("GET", "/profiles"),
        ("GET", "/openapi.json"),
        ("GET", "/nope"),
        ("GET", RETRIEVE),
    ):
        answer = locked.request(method, path, None, headers)
        assert (answer.status, answer.code) == (401, "unauthorized"), path
        assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_key_in_the_query_string_is_no_key(locked: ServerProcess) -> None:
    assert locked.get(f"/profiles?api_key={KEY}&X-API-Key={KEY}").status == 401


def test_health_and_ready_are_open_but_show_no_counts(locked: ServerProcess) -> None:
    assert locked.get("/ready").status == 200
    anonymous = locked.get("/health").json
    assert anonymous["ok"] is True
    assert not {"capacity", "cache", "memory", "uptime_seconds"} & anonymous.keys()
    assert "fingerprint" not in json.dumps(anonymous)
    assert "num_docs" not in json.dumps(anonymous)
    assert "capacity" in locked.get("/health", X_API_Key=KEY).json


def test_log_names_the_key_and_never_shows_it(locked: ServerProcess) -> None:
    locked.get("/profiles", X_API_Key=KEY, X_Request_ID="with-key")
    line = locked.wait_event("request", request_id="with-key")
    assert line["key"] == "phone"
    assert line["path"] == "/cg-rag/profiles"
    assert KEY.encode() not in locked.raw_log


# --- health, ready, profiles, openapi ----------------------------------------------------------------------------


def test_health_has_every_field_of_this_version(server: ServerProcess) -> None:
    body = server.get("/health").json
    assert (body["ok"], body["service"]) == (True, "CG_RAG")
    assert body["available_scopes"] == ["full", "usual", "usual_plus_law"]
    assert body["active_scope"] == "full"
    assert body["uptime_seconds"] >= 0
    assert re.fullmatch(r"\d+\.\d+\.\d+", body["version"])
    profile = body["profile"]
    assert (profile["scope"], profile["label"], profile["retrieval_method"]) == ("full", "全库", "lexical")
    assert profile["num_docs"] == 5
    assert re.fullmatch(r"[0-9a-f]{16}", profile["fingerprint"])
    index = body["index"]
    assert (index["state"], index["num_docs"], index["embedding_model"], index["dim"]) == ("ready", 5, "", 0)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", index["built_at"])
    assert index["bytes_resident"] > 0
    assert index["faults"] == []
    assert set(body["capacity"]["retrieval"]) == {"max", "in_use", "available", "waiting"}
    assert body["capacity"]["retrieval"]["max"] == 16
    assert body["capacity"]["generation"]["max"] == 4
    assert set(body["cache"]) == {"entries", "bytes", "hits", "misses"}
    assert body["memory"]["rss_bytes"] > 1_000_000
    assert body["generation"]["configured"] is False
    assert body["hybrid_generation"]["configured"] is False
    assert body["vision"]["configured"] is False
    assert body["vision"]["prompt_pins_ok"] is True
    assert body["vision"]["hazard_taxonomy_version"] == "construction-hazard-19-v1"
    assert body["rerank"] == {"api_enabled": False, "model": "statute-ce-6l", "method": "onnx"}


def test_profiles_show_what_each_scope_holds(server: ServerProcess) -> None:
    body = server.get("/profiles").json
    assert body["ok"] is True
    assert {name: profile["num_docs"] for name, profile in body["profiles"].items()} == {
        "full": 5,
        "usual": 2,
        "usual_plus_law": 4,
    }
    assert body["profiles"]["usual"]["label"] == "常用规范"
    assert len({profile["fingerprint"] for profile in body["profiles"].values()}) == 3


def test_ready_says_which_scope(server: ServerProcess) -> None:
    assert server.get("/ready").json == {"ok": True, "active_scope": "full", "num_docs": 5}


def test_openapi_describes_every_route_and_its_errors(server: ServerProcess) -> None:
    document = server.get("/openapi.json").json
    assert document["openapi"] == "3.1.0"
    gets = ("/console", "/health", "/ready", "/profiles", "/metrics", "/openapi.json")
    posts = (*MODES, *(f"{path}/stream" for path in STREAMS))
    assert set(document["paths"]) == {f"/cg-rag{path}" for path in (*gets, *posts)}
    operation = document["paths"]["/cg-rag/retrieve-rerank"]["post"]
    assert set(operation["responses"]) == {"200", "400", "408", "413", "415", "429", "500", "502", "503"}
    reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    schema = document["components"]["schemas"][reference.rsplit("/", 1)[1]]
    assert schema["properties"]["topk"]["maximum"] == 200
    assert schema["required"] == ["query"]


# --- the index under the service ---------------------------------------------------------------------------------


def test_without_an_index_health_serves_and_everything_else_says_not_ready(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server(index_dir=tmp_path / "none")
    server.wait_ready()
    assert server.get("/health").json["index"]["state"] == "missing"
    for answer in (server.get("/ready"), server.post(RETRIEVE, {"query": "a"})):
        assert (answer.status, answer.code) == (503, "index.not_ready")
        assert "cg-rag index build" in answer.json["error"]["message"]
        assert answer.json["error"]["details"] == {"scope": "full", "state": "missing"}
    assert server.get("/profiles").json["profiles"]["full"]["num_docs"] == 0


def test_index_built_later_is_picked_up_and_a_rebuilt_one_is_never_answered_from_the_cache(
    start_server: StartServer, tmp_path: Path
) -> None:
    from cg_rag.index.build import SourceSpec, build_index
    from tests.conftest import ARTICLES, write_jsonl

    server = start_server(index_dir=tmp_path / "index")
    server.wait_ready()
    source = write_jsonl(tmp_path / "codes.jsonl", ARTICLES[:1])
    build_index([SourceSpec(source, "codes", ())], tmp_path / "index", None)
    server.wait_event("index_loaded", state="ready")
    before = server.post(RETRIEVE, {"query": "脚手架"}).json
    assert before["num_docs"] == 1
    write_jsonl(tmp_path / "codes.jsonl", ARTICLES[:2])
    build_index([SourceSpec(source, "codes", ())], tmp_path / "index", None)
    server.wait_event("index_loaded")
    after = server.post(RETRIEVE, {"query": "脚手架"}).json
    assert (after["num_docs"], after["cache"]["hit"]) == (2, False)


def flip_byte(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(bytes(data))


def test_damaged_file_takes_its_scope_down_with_its_name_in_the_log(
    start_server: StartServer, small_index: Path, tmp_path: Path
) -> None:
    shutil.copytree(small_index, tmp_path / "index")
    articles = next((tmp_path / "index").glob("*/articles.jsonl"))
    flip_byte(articles, articles.read_bytes().index("动火".encode()))
    server = start_server(index_dir=tmp_path / "index")
    assert "articles.jsonl" in server.wait_event("index_fault")["fault"]
    server.wait_ready()
    health = server.get("/health").json
    assert health["index"]["state"] == "degraded"
    assert "articles.jsonl" in health["index"]["faults"][0]
    broken = server.post(RETRIEVE, {"query": "脚手架", "scope": "full"})
    assert (broken.status, broken.code) == (503, "index.not_ready")
    # The damaged article is of a law that these scopes do not hold.
    for scope in ("usual", "usual_plus_law"):
        assert server.post(RETRIEVE, {"query": "脚手架", "scope": scope}).status == 200


@pytest.mark.parametrize(
    "name", ["lexical.impacts", "lexical.rows", "lookup.keys", "laws.json", "manifest.json"]
)
def test_damaged_shared_file_takes_every_scope_down(
    start_server: StartServer, small_index: Path, tmp_path: Path, name: str
) -> None:
    shutil.copytree(small_index, tmp_path / "index")
    damaged = next((tmp_path / "index").glob(f"*/{name}"))
    flip_byte(damaged, damaged.stat().st_size // 2)
    server = start_server(index_dir=tmp_path / "index")
    assert name in server.wait_event("index_fault")["fault"]
    server.wait_ready()
    for scope in ("full", "usual", "usual_plus_law"):
        answer = server.post(RETRIEVE, {"query": "脚手架", "scope": scope})
        assert (answer.status, answer.code) == (503, "index.not_ready")
    assert server.get("/health").status == 200
    server.stop()


@pytest.mark.parametrize(
    "query",
    [
        "帮我找样例安全法第二十八条",
        "告诉我样例安全法第28条讲了什么",
        "介绍一下《样例安全法》第二十八条",
        "2021年样例安全法第二十八条",
        "样例安全法规定的第二十八条",
        "第二十八条 样例安全法",
        "「样例安全法」第二十八條",
    ],
)
def test_named_article_is_found_in_ordinary_sentences(server: ServerProcess, query: str) -> None:
    body = server.post(RETRIEVE, {"query": query, "include_debug": True}).json
    first = body["retrieval_docs"][0]
    assert (first["article_number"], first["debug"]["stages"].get("exact")) == ("第二十八条", 1.0)
    assert body["warnings"] == []


def test_bare_number_of_a_standard_finds_its_article(server: ServerProcess) -> None:
    first = server.post(RETRIEVE, {"query": "6.0.5(1)"}).json["retrieval_docs"][0]
    assert first["article_number"] == "6.0.5(1)"


def test_several_named_articles_come_in_the_order_they_are_named(server: ServerProcess) -> None:
    query = "样例消防法第三条和样例安全法第二十八条"
    documents = server.post(RETRIEVE, {"query": query, "topk": 2}).json["retrieval_docs"]
    assert [document["article_number"] for document in documents] == ["第三条", "第二十八条"]
