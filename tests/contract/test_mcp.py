"""The MCP endpoint of the service: its tools, its envelopes, its manners as an HTTP server. docs/mcp.md."""

from __future__ import annotations

import http.client
import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cg_rag.core.settings import Settings
from cg_rag.modes.mcp_tools import ENTRIES, INSTRUCTIONS
from tests.conftest import StartServer
from tests.contract.test_hostile import VALUES
from tests.fake_upstream import Hang, Reply, says, upstream_in_thread
from tests.generating import wait_for
from tests.mcp_wire import (
    LEGACY,
    MCP,
    NEWEST,
    call,
    checked_result,
    events,
    message,
    newest,
    open_call,
    post,
    tool_call,
)
from tests.patience import assert_within
from tests.server_process import ServerProcess

QUERY = "脚手架地基积水"
KEY = "correct-horse-battery-staple"
# Of the user's page, in its order.
PARAMETERS = {
    "cg_health": [],
    "cg_list_profiles": [],
    "cg_retrieve_rerank": ["query", "scope", "topk"],
    "cg_constrained_generate": [
        "query", "retrieval_docs", "max_items", "include_debug", "generation_enable_thinking",
    ],
    "cg_rag": ["query", "scope", "topk", "max_items", "include_debug", "generation_enable_thinking"],
    "cg_vision_answer": ["images", "question", "enable_thinking"],
    "cg_vision_observe": ["images", "question"],
    "cg_vision_agentic": ["images", "question", "scope", "max_search_rounds", "topk", "enable_thinking"],
}  # fmt: skip
INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "t", "version": "0"},
}
DOCS = [{"law_name": "样例规范", "article_number": "1.0.1", "contents": "脚手架地基不得积水。"}]


@pytest.fixture(scope="module")
def server(start_server: StartServer) -> ServerProcess:
    server = start_server("  generation: {provider: local}\n  mcp: {enabled: true}\n")
    server.wait_ready()
    return server


@pytest.fixture(scope="module")
def guarded(start_server: StartServer) -> ServerProcess:
    """Without a model, and with origins of its own."""
    server = start_server("  mcp: {allowed_origins: ['https://console.example', 'app://agent']}\n")
    server.wait_ready()
    return server


def list_tools(server: ServerProcess) -> dict[str, Any]:
    return {tool["name"]: tool for tool in post(server, message("tools/list")).json["result"]["tools"]}


# --- what is offered ---------------------------------------------------------------------------------------------


def test_tools_and_their_parameters_are_those_of_the_page(server: ServerProcess) -> None:
    tools = list_tools(server)
    assert {name: list(tool["inputSchema"]["properties"]) for name, tool in tools.items()} == PARAMETERS
    assert tools["cg_rag"]["inputSchema"]["required"] == ["query"]
    assert tools["cg_constrained_generate"]["inputSchema"]["required"] == ["query", "retrieval_docs"]


def test_every_tool_and_every_parameter_is_described_in_chinese(server: ServerProcess) -> None:
    for tool in list_tools(server).values():
        texts = [tool["title"], tool["description"]]
        nodes = [tool["inputSchema"]]
        while nodes:
            node = nodes.pop()
            if isinstance(node, dict):
                texts += [node["description"]] if isinstance(node.get("description"), str) else []
                nodes += node.values()
                for parameter in node.get("properties", {}).values():
                    assert parameter["description"], tool["name"]
        assert all(any("\u4e00" <= char <= "\u9fff" for char in text) for text in texts), texts


def test_scope_is_told_with_the_ranges_there_are(server: ServerProcess) -> None:
    scope = list_tools(server)["cg_rag"]["inputSchema"]["properties"]["scope"]
    assert scope["enum"] == ["full", "usual", "usual_plus_law"]
    assert "usual（常用规范）" in scope["description"]
    assert "缺省 full" in scope["description"]


def test_schemas_are_plain_enough_for_every_client(server: ServerProcess) -> None:
    for tool in list_tools(server).values():
        assert "$ref" not in json.dumps(tool)
        assert tool["inputSchema"]["additionalProperties"] is False
        assert tool["outputSchema"]["required"] == ["ok", "message", "data"]


def test_annotations_say_what_reads_only_and_what_reaches_a_model(server: ServerProcess) -> None:
    hints = {name: tool["annotations"] for name, tool in list_tools(server).items()}
    assert all(hint["readOnlyHint"] and not hint["destructiveHint"] for hint in hints.values())
    assert {name for name, hint in hints.items() if hint["openWorldHint"]} == {
        "cg_constrained_generate",
        "cg_rag",
        "cg_vision_agentic",
        "cg_vision_answer",
        "cg_vision_observe",
    }


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
def test_handshake_agrees_on_each_version_and_hands_out_a_session(
    server: ServerProcess, version: str
) -> None:
    answer = post(server, message("initialize", INITIALIZE | {"protocolVersion": version}))
    assert answer.json["result"]["protocolVersion"] == version
    assert answer.json["result"]["serverInfo"]["name"] == "CG_RAG"
    assert answer.json["result"]["instructions"] == INSTRUCTIONS
    assert len(answer.headers["Mcp-Session-Id"]) == 32
    assert post(server, message("notifications/initialized", request_id=None)).status == 202


def test_newest_protocol_needs_no_handshake(server: ServerProcess) -> None:
    body, headers = newest(message("server/discover"))
    answer = server.request("POST", MCP, body, headers)
    assert answer.json["result"]["supportedVersions"] == [NEWEST]
    assert "Mcp-Session-Id" not in answer.headers
    body, headers = newest(tool_call("cg_rag", {"query": QUERY}))
    assert checked_result(server.request("POST", MCP, body, headers).json)["operation_ok"]


def test_headers_that_contradict_the_body_are_refused_in_the_newest_protocol(server: ServerProcess) -> None:
    body, headers = newest(tool_call("cg_rag", {"query": QUERY}))
    for changed in (
        {"Mcp-Name": "cg_health"},
        {"Mcp-Method": "tools/list"},
        {"MCP-Protocol-Version": "2099-01-01"},
    ):
        answer = server.request("POST", MCP, body, headers | changed)
        assert (answer.status, answer.json["error"]["code"]) == (400, -32020), changed


# --- the tools ---------------------------------------------------------------------------------------------------


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        gone = {"request_id", "runtime_stats", "cache", "uptime_seconds", "memory", "capacity"}
        return {key: without_times(item) for key, item in value.items() if key not in gone}
    return [without_times(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("tool", "path", "arguments"),
    [
        ("cg_retrieve_rerank", "/retrieve-rerank", {"query": QUERY, "scope": "usual", "topk": 1}),
        ("cg_constrained_generate", "/constrained-generate", {"query": QUERY, "retrieval_docs": DOCS}),
        ("cg_rag", "/rag", {"query": QUERY, "topk": 3, "max_items": 2, "include_debug": True}),
    ],
)
def test_data_is_what_http_answers(server: ServerProcess, tool: str, path: str, arguments: Any) -> None:
    envelope = call(server, tool, arguments)
    assert envelope["operation_ok"] is True
    assert envelope["message"] == ""
    assert without_times(envelope["data"]) == without_times(server.post(path, arguments).json)


def test_health_and_profiles_are_what_http_answers(server: ServerProcess) -> None:
    for tool, path in (("cg_health", "/health"), ("cg_list_profiles", "/profiles")):
        assert without_times(call(server, tool)["data"]) == without_times(server.get(path).json)


def test_request_id_of_the_caller_is_in_the_data_and_the_header(server: ServerProcess) -> None:
    answer = post(server, tool_call("cg_rag", {"query": QUERY}), X_Request_ID="from-the-agent")
    assert answer.headers["X-Request-ID"] == "from-the-agent"
    assert checked_result(answer.json)["data"]["request_id"] == "from-the-agent"


def test_identical_question_is_answered_from_the_same_cache(server: ServerProcess) -> None:
    server.post("/retrieve-rerank", {"query": "动火作业 监护"})
    assert call(server, "cg_retrieve_rerank", {"query": "动火作业 监护"})["data"]["cache"] == {"hit": True}


def test_progress_tells_each_stage_when_the_client_asks_for_it(server: ServerProcess) -> None:
    body = tool_call("cg_rag", {"query": QUERY}, meta={"progressToken": 7})
    answer = post(server, body)
    assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    messages, _ = events(answer.body)
    told = [one["params"] for one in messages if one.get("method") == "notifications/progress"]
    assert [one["progress"] for one in told] == sorted({one["progress"] for one in told})
    assert {one["progressToken"] for one in told} == {7}
    assert [one["message"] for one in told] == ["正在检索条文", "正在筛选条文"]
    assert checked_result(messages[-1])["operation_ok"]


def test_generation_that_is_not_configured_is_a_failed_operation_of_a_good_call(
    guarded: ServerProcess,
) -> None:
    envelope = call(guarded, "cg_constrained_generate", {"query": QUERY, "retrieval_docs": DOCS})
    assert (envelope["ok"], envelope["operation_ok"]) == (True, False)
    assert envelope["message"] == "CG_RAG 业务操作失败"
    assert envelope["data"]["error"]["code"] == "generation_not_configured"
    envelope = call(guarded, "cg_rag", {"query": QUERY})
    assert envelope["operation_ok"] is False
    assert envelope["data"]["generation"]["error"]["code"] == "generation_not_configured"
    assert envelope["data"]["retrieval"]["num_docs"] > 0


# --- wrong calls -------------------------------------------------------------------------------------------------

WRONG = [
    ("cg_rag", {"query": ""}, "query", "query 须为 1..2000 个字符"),
    ("cg_rag", {"query": "长" * 2001}, "query", "收到 2001 个字符的字符串"),
    ("cg_rag", {}, "query", "缺少必填字段 query"),
    ("cg_rag", None, "query", "缺少必填字段 query"),
    ("cg_rag", {"query": 5}, "query", "query 须为"),
    ("cg_rag", {"query": QUERY, "topk": 0}, "topk", "topk 须为 1..200 的整数，收到 0"),
    ("cg_rag", {"query": QUERY, "topk": 201}, "topk", "topk 须为 1..200"),
    ("cg_rag", {"query": QUERY, "topk": True}, "topk", "收到布尔值 true"),
    ("cg_rag", {"query": QUERY, "topk": 1.0}, "topk", "topk 须为 1..200"),
    ("cg_rag", {"query": QUERY, "topk": "5"}, "topk", "topk 须为 1..200"),
    ("cg_rag", {"query": QUERY, "max_items": 51}, "max_items", "max_items 须为 1..50"),
    ("cg_rag", {"query": QUERY, "include_debug": 1}, "include_debug", "include_debug 须为布尔值"),
    (
        "cg_rag",
        {"query": QUERY, "scope": "../../etc"},
        "scope",
        "scope 须为 full、usual、usual_plus_law 之一",
    ),
    ("cg_rag", {"query": QUERY, "generation_enable_thinking": "no"}, "generation_enable_thinking", "或 null"),
    ("cg_rag", {"query": QUERY, "top_k": 5}, "top_k", "未知的参数 top_k，是否想写 topk？"),
    ("cg_rag", {"query": QUERY, "zzz": 5}, "zzz", "可用的参数：query、scope、topk"),
    (
        "cg_retrieve_rerank",
        {"query": QUERY, "include_debug": True},
        "include_debug",
        "未知的参数 include_debug",
    ),
    ("cg_health", {"x": 1}, "x", "本工具没有参数"),
    ("cg_rag", [], "arguments", "arguments 须为对象，收到 0 项的数组"),
    ("cg_rag", "脚手架", "arguments", "arguments 须为对象，收到 3 个字符的字符串"),
    ("cg_rag", 7, "arguments", "arguments 须为对象"),
    ("cg_constrained_generate", {"query": QUERY, "retrieval_docs": []}, "retrieval_docs", "1..200 项的数组"),
    (
        "cg_constrained_generate",
        {"query": QUERY, "retrieval_docs": [{"law_name": "x"}]},
        "retrieval_docs[0].article_number",
        "缺少必填字段",
    ),
]


@pytest.mark.parametrize(("tool", "arguments", "field", "words"), WRONG)
def test_wrong_arguments_come_back_as_the_envelope(
    server: ServerProcess, tool: str, arguments: Any, field: str, words: str
) -> None:
    envelope = call(server, tool, arguments)
    assert envelope["ok"] is False
    assert envelope["error"]["code"] == "invalid_request"
    assert envelope["error"]["details"]["tool"] == tool
    assert envelope["error"]["details"]["field"] == field
    assert envelope["message"].startswith(f"{tool}：")
    assert words in envelope["message"]


def test_wrong_arguments_come_back_the_same_in_the_newest_protocol(server: ServerProcess) -> None:
    for tool, arguments, field, _ in WRONG:
        body, headers = newest(tool_call(tool, arguments))
        envelope = checked_result(server.request("POST", MCP, body, headers).json)
        assert envelope["error"]["details"]["field"] == field


def test_unknown_tool_is_not_found_with_the_nearest_name(server: ServerProcess) -> None:
    envelope = call(server, "cg_ragg", {"query": QUERY})
    assert envelope["error"]["code"] == "not_found"
    assert "是否想写 cg_rag？" in envelope["message"]
    assert envelope["error"]["details"]["available_tools"] == list(PARAMETERS)
    assert call(server, "完全不同")["error"]["code"] == "not_found"


def test_arguments_can_name_no_endpoint_key_or_file(server: ServerProcess) -> None:
    for name in ("endpoint", "model", "api_key", "base_url", "headers", "file"):
        assert (
            call(server, "cg_rag", {"query": QUERY, name: "http://x/"})["error"]["code"] == "invalid_request"
        )


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", -32700),
        (b"{", -32700),
        (b"not json", -32700),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":' + b"[" * 300 + b"]" * 300 + b"}", -32700),
        (b"{}", -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1}', -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":5}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}', -32600),
    ],
)
def test_what_is_no_message_is_refused_as_json_rpc(server: ServerProcess, body: bytes, code: int) -> None:
    answer = server.request("POST", MCP, body, LEGACY)
    assert answer.status == 400
    assert answer.json["error"]["code"] == code
    assert answer.json["id"] is None
    assert any("\u4e00" <= char <= "\u9fff" for char in answer.json["error"]["message"])


CALL = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"cg_rag","arguments":'


def test_no_json_text_brings_more_than_a_refusal_and_the_connection_lives_on(server: ServerProcess) -> None:
    places = (
        (b"", b""),
        (CALL, b"}}"),
        (CALL + b'{"query":', b"}}}"),
        (CALL + b'{"query":"a"},"_meta":', b"}}"),
        (CALL + b'{"query":"a"},"_meta":{"progressToken":', b"}}}"),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":', b"}"),
        (b'{"jsonrpc":"2.0","method":"ping","id":', b"}"),
        (b'{"jsonrpc":"2.0","id":1,"method":', b"}"),
        (b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":', b"}"),
    )
    headers = {"Content-Type": "application/json", "Accept": "application/json", "Mcp-Session-Id": "s"}
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)) as connection:
        for head, tail in places:
            for value in VALUES:
                connection.request("POST", "/cg-rag/mcp/", head + value + tail, headers)
                response = connection.getresponse()
                body = response.read()
                assert response.status in (200, 202, 400), head + value[:60]
                if response.status == 400:
                    assert json.loads(body)["error"]["code"] in (-32700, -32600)
                elif response.status == 200 and "result" in json.loads(body):
                    assert json.loads(body)["result"] == {} or checked_result(json.loads(body))
    assert not [line for line in server.lines if "traceback" in line]


def test_unknown_method_is_told_as_the_protocol_has_it(server: ServerProcess) -> None:
    answer = post(server, message("prompts/list"))
    assert (answer.status, answer.json["error"]["code"]) == (200, -32601)
    body, headers = newest(message("prompts/list"))
    answer = server.request("POST", MCP, body, headers)
    assert (answer.status, answer.json["error"]["code"]) == (404, -32601)


def test_answers_to_requests_that_nobody_made_are_taken_without_a_word(server: ServerProcess) -> None:
    answer = post(server, {"jsonrpc": "2.0", "id": 5, "result": {}})
    assert (answer.status, answer.body) == (202, b"")


@pytest.mark.parametrize("request_id", [1, -1, 0, 2**63, "a", "", "5"])
def test_id_of_the_request_comes_back_as_it_was(server: ServerProcess, request_id: Any) -> None:
    assert post(server, message("ping", request_id=request_id)).json["id"] == request_id


# --- manners as an HTTP server: what people complain about in other servers ---------------------------------------


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "PUT", "OPTIONS"])
def test_other_methods_get_405_at_once(server: ServerProcess, method: str) -> None:
    for path in ("/mcp", "/mcp/"):

        def ask(path: str = path) -> float:
            started = time.monotonic()
            answer = server.request(method, path, headers={"Accept": "text/event-stream"})
            assert answer.status == 405
            assert answer.headers["Allow"] == "POST"
            return time.monotonic() - started

        assert_within(2, ask)


def test_both_paths_answer_without_a_redirect(server: ServerProcess) -> None:
    for path in ("/mcp", "/mcp/"):
        assert checked_result(post(server, tool_call("cg_health"), path).json)["ok"]


def test_lan_names_and_proxies_are_no_reason_to_refuse(server: ServerProcess) -> None:
    for host in ("gateway.lan", "192.168.1.7:8864", "cg.example.com", "[fe80::1]:8864"):
        assert post(server, message("ping"), Host=host).status == 200


def test_client_that_takes_json_alone_gets_json(server: ServerProcess) -> None:
    body = tool_call("cg_rag", {"query": QUERY}, meta={"progressToken": 1})
    for accept in ("application/json", "application/json;q=0.9"):
        answer = post(server, body, Accept=accept)
        assert answer.headers["Content-Type"].startswith("application/json")
        assert checked_result(answer.json)["ok"]
    for accept in ("*/*", "application/*, text/*"):
        assert post(server, message("ping"), Accept=accept).json["result"] == {}


def test_client_that_takes_events_alone_gets_events(server: ServerProcess) -> None:
    answer = post(server, tool_call("cg_health"), Accept="text/event-stream")
    messages, _ = events(answer.body)
    assert [checked_result(one)["ok"] for one in messages] == [True]


def test_session_that_this_process_never_made_is_as_good_as_any(server: ServerProcess) -> None:
    for session in ("0123456789abcdef", "of-the-process-before"):
        assert call(server, "cg_health", Mcp_Session_Id=session)["ok"]


def test_call_without_a_handshake_is_answered(server: ServerProcess) -> None:
    answer = server.request(
        "POST", MCP, tool_call("cg_rag", {"query": QUERY}), {"Accept": "application/json"}
    )
    assert answer.status == 200
    assert checked_result(answer.json)["operation_ok"]


def test_call_that_no_client_ends_is_ended_by_the_time_limit_of_the_model(start_server: StartServer) -> None:
    with upstream_in_thread(*[Reply([Hang()])] * 8) as upstream:
        server = start_server(
            f"  generation: {{endpoint: {upstream.url}, model: m, timeout_seconds: 0.3}}\n  mcp: {{enabled: true}}\n"
        )
        server.wait_ready()
        envelope = call(server, "cg_rag", {"query": QUERY})
        assert envelope["operation_ok"] is False
        assert envelope["data"]["generation"]["error"]["code"] == "generation_upstream_error"
        assert envelope["data"]["retrieval"]["num_docs"] > 0
        assert call(server, "cg_health")["data"]["capacity"]["generation"]["in_use"] == 0


def test_full_service_is_told_as_on_http(start_server: StartServer) -> None:
    with upstream_in_thread(Reply([Hang()]), says('{"indices":[1]}')) as upstream:
        server = start_server(
            f"  generation: {{endpoint: {upstream.url}, model: m}}\n  mcp: {{enabled: true}}\n"
            "  capacity: {generation: {max: 1}, wait_timeout_seconds: 0.2}\n"
        )
        server.wait_ready()
        arguments = {"query": QUERY, "retrieval_docs": DOCS}
        with open_call(server, tool_call("cg_constrained_generate", arguments)):
            wait_for(lambda: server.get("/health").json["capacity"]["generation"]["in_use"] == 1)
            envelope = call(server, "cg_constrained_generate", arguments)
            error = server.post("/constrained-generate", arguments).json["error"]
        assert envelope["error"] == error
        assert error["code"] == "capacity.exceeded"
        assert envelope["message"] == "服务当前请求过多，请稍后重试。"
        assert error["details"] == {"resource": "generation", "max": 1, "wait_timeout_seconds": 0.2}


# --- bodies, keys, origins ---------------------------------------------------------------------------------------


def test_body_that_is_not_taken_has_the_status_of_other_routes_and_is_json_rpc(server: ServerProcess) -> None:
    body = json.dumps(message("ping")).encode()
    for headers, status, code in (
        ({"Content-Type": "text/plain"}, 415, "unsupported_media_type"),
        ({"Content-Encoding": "gzip"}, 415, "unsupported_media_type"),
        ({"Content-Length": str(97 * 1024 * 1024)}, 413, "payload_too_large"),
    ):
        answer = server.request("POST", MCP, body, LEGACY | headers)
        assert answer.status == status
        assert answer.json["jsonrpc"] == "2.0"
        assert answer.json["error"]["data"]["code"] == code
        assert answer.json["error"]["data"]["request_id"] == answer.headers["X-Request-ID"]


def test_key_is_asked_for_and_a_missing_index_told_as_on_other_routes(
    start_server: StartServer, tmp_path: Path
) -> None:
    settings = f"  server: {{api_keys: {{agent: {KEY}}}}}\n  mcp: {{enabled: true}}\n"
    server = start_server(settings, index_dir=tmp_path / "none")
    wait_for(lambda: server.get("/health", X_API_Key=KEY).json["index"]["state"] == "missing")
    for path in ("/mcp", "/mcp/"):
        answer = post(server, message("ping"), path)
        assert (answer.status, answer.code) == (401, "unauthorized")
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert post(server, message("ping"), path, Authorization=f"Bearer {KEY}").status == 200
        assert post(server, message("ping"), path, X_API_Key=KEY).status == 200
    assert "capacity" in call(server, "cg_health", X_API_Key=KEY)["data"]
    error = server.post("/retrieve-rerank", {"query": QUERY}, X_API_Key=KEY).json["error"]
    assert error["code"] == "index.not_ready"
    assert call(server, "cg_retrieve_rerank", {"query": QUERY}, X_API_Key=KEY)["error"] == error
    # A name can be made to mean this machine, a key cannot be guessed.
    same = {"Host": "gateway.lan:8864", "Origin": "http://gateway.lan:8864", "X_API_Key": KEY}
    assert post(server, message("ping"), **same).status == 200
    assert post(server, message("ping"), **same | {"Origin": "http://other.lan"}).status == 403


@pytest.mark.parametrize(
    ("origin", "host", "status"),
    [
        (None, "gateway.lan", 200),
        ("http://localhost:3000", None, 200),
        ("http://127.0.0.1:5173", None, 200),
        ("http://[::1]:8864", None, 200),
        ("http://192.168.1.7:8864", "192.168.1.7:8864", 200),
        ("https://console.example", None, 200),
        ("app://agent", None, 200),
        ("https://evil.example", None, 403),
        ("http://evil.example:8864", "evil.example:8864", 403),
        ("http://192.168.1.7:9999", "192.168.1.7:8864", 403),
        ("https://console.example.evil.example", None, 403),
        ("http://localhost.evil.example", None, 403),
        ("null", None, 403),
        ("http://[", None, 403),
        ("", None, 403),
    ],
)
def test_origin_of_a_browser_is_checked(
    guarded: ServerProcess, origin: str | None, host: str | None, status: int
) -> None:
    headers = {name: value for name, value in (("Origin", origin), ("Host", host)) if value is not None}
    assert post(guarded, message("ping"), **headers).status == status


def test_endpoint_can_be_switched_off(start_server: StartServer) -> None:
    server = start_server("  mcp: {enabled: false}\n")
    assert post(server, message("ping")).code == "not_found"


def test_one_line_of_the_log_tells_how_a_call_ended(server: ServerProcess) -> None:
    post(server, tool_call("cg_ragg"), X_Request_ID="line-1")
    assert server.wait_event("request", request_id="line-1")["code"] == "not_found"
    post(server, tool_call("cg_rag", {"query": "敏感的问题"}), X_Request_ID="line-2")
    line = server.wait_event("request", request_id="line-2")
    assert "code" not in line
    assert "敏感" not in server.raw_log.decode()


def test_table_offers_exactly_what_settings_and_modes_have() -> None:
    assert [entry.name for entry in ENTRIES] == list(PARAMETERS)
    assert Settings().mcp.enabled
