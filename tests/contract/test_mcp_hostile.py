"""Clients of the MCP endpoint that mean harm or are broken: each gets an answer of its own form, and nobody else notices.

What is no JSON at all is in test_mcp.py, calls that take their time in test_mcp_long.py.
"""

from __future__ import annotations

import json
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from cg_rag.modes.mcp_tools import ENTRIES
from tests.conftest import StartServer
from tests.contract.test_hostile import read_to_end, wait_until
from tests.mcp_wire import (
    LEGACY,
    MCP,
    PROGRESS,
    call,
    checked_result,
    events,
    message,
    newest,
    open_call,
    post,
    tool_call,
)
from tests.server_process import Answer, ServerProcess

PROGRAM = Path(__file__).resolve().parents[1] / "mcp_process.py"
LONG = "甲" * 30_000  # above 64 KiB: such a string is lifted out of the body
SECONDS = {"seconds": 60}
KEYS = {"one": "the-key-of-the-first-caller", "two": "the-key-of-the-second-caller"}
CHINESE = range(0x4E00, 0xA000)


@pytest.fixture(scope="module")
def server(start_server: StartServer) -> ServerProcess:
    # Nobody listens on the port of the model; no case here gets so far as to ask it.
    server = start_server(
        "  generation: {provider: local}\n  mcp: {enabled: true}\n"
        "  vision: {endpoint: 'http://127.0.0.1:9/v1', model: vlm}\n"
    )
    server.wait_ready()
    return server


def start_process(start_server: StartServer, more: str = "") -> ServerProcess:
    keys = ", ".join(f"{name}: {key}" for name, key in KEYS.items())
    return start_server(
        f"  mcp: {{enabled: true}}\n  server: {{api_keys: {{{keys}}}{more}}}\n", program=PROGRAM
    )


@pytest.fixture(scope="module")
def process(start_server: StartServer) -> ServerProcess:
    return start_process(start_server)


def state(process: ServerProcess) -> dict[str, int]:
    return dict(process.get("/state", X_API_Key=KEYS["one"]).json)


def raw(server: ServerProcess, text: bytes, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return server.request("POST", MCP, text, LEGACY | named)


def is_chinese(text: str) -> bool:
    return any(ord(char) in CHINESE for char in text)


# --- messages ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ("1.5", -32600),
        ("1.0", -32600),
        ("1e2", -32600),
        ("null", -32600),
        ("false", -32600),
        ("[]", -32600),
        ("[1]", -32600),
        (json.dumps(LONG), -32600),
        ("NaN", -32700),
        ("Infinity", -32700),
        ("18446744073709551616", -32700),
        ("1" * 400, -32700),
        ('"\\ud800"', -32700),
    ],
)
def test_id_that_is_none_is_refused(server: ServerProcess, sent: str, code: int) -> None:
    answer = raw(server, f'{{"jsonrpc":"2.0","id":{sent},"method":"ping"}}'.encode())
    assert (answer.status, answer.json["id"], answer.json["error"]["code"]) == (400, None, code)
    assert is_chinese(answer.json["error"]["message"])


@pytest.mark.parametrize(
    "sent", ["-0", "18446744073709551615", "-9223372036854775808", '"\\u0000"', '"\\ud83d\\ude00"']
)
def test_odd_id_comes_back(server: ServerProcess, sent: str) -> None:
    answer = raw(server, f'{{"jsonrpc":"2.0","id":{sent},"method":"ping"}}'.encode())
    assert answer.json == {"jsonrpc": "2.0", "id": json.loads(sent), "result": {}}


def test_of_a_key_that_comes_twice_the_last_counts(server: ServerProcess) -> None:
    answer = raw(server, b'{"jsonrpc":"2.0","id":1,"id":2,"method":"tools/list","method":"ping"}')
    assert answer.json == {"jsonrpc": "2.0", "id": 2, "result": {}}


@pytest.mark.parametrize("sent", ["[]", '[{"jsonrpc":"2.0","id":1,"method":"ping"}]', "[[]]", "[1,2]"])
def test_batch_is_refused_whole(server: ServerProcess, sent: str) -> None:
    answer = raw(server, sent.encode())
    assert (answer.status, answer.json["error"]["code"]) == (400, -32700)


@pytest.mark.parametrize(
    ("method", "params", "place"),
    [
        ("tools/call", None, "params"),
        ("tools/call", {}, "params.name"),
        ("tools/call", {"name": None}, "params.name"),
        ("tools/call", {"name": 5}, "params.name"),
        ("tools/call", {"name": ["cg_rag"]}, "params.name"),
        ("tools/call", {"name": LONG}, "params.name"),
        ("tools/call", {"name": "cg_health", "_meta": []}, "params._meta"),
        ("tools/call", {"name": "cg_health", "_meta": {"progressToken": 1.5}}, "params._meta.progressToken"),
        ("tools/call", {"name": "cg_health", "_meta": {"progressToken": None}}, "params._meta.progressToken"),
        ("tools/call", {"name": "cg_health", "_meta": {"progressToken": {}}}, "params._meta.progressToken"),
        ("tools/call", {"name": "cg_health", "_meta": {"progressToken": LONG}}, "params._meta.progressToken"),
        ("tools/list", {"cursor": 7}, "params.cursor"),
        ("tools/list", {"cursor": LONG}, "params.cursor"),
        ("initialize", None, "params"),
        ("initialize", {"protocolVersion": 7, "capabilities": {}}, "params.protocolVersion"),
        (
            "initialize",
            {"protocolVersion": "1", "capabilities": {}, "clientInfo": {"name": LONG, "version": "0"}},
            "params.clientInfo.name",
        ),
    ],
)
def test_params_that_do_not_fit_are_told_by_their_place(
    server: ServerProcess, method: str, params: Any, place: str
) -> None:
    answer = post(server, message(method, params))
    assert (answer.status, answer.json["id"], answer.json["error"]["code"]) == (200, 1, -32602)
    assert place in answer.json["error"]["message"]
    assert is_chinese(answer.json["error"]["message"])
    assert len(answer.body) < 1000  # nothing of what was sent comes back


@pytest.mark.parametrize("token", [0, -1, 2**63, "", "\u0000", True])
def test_odd_progress_token_harms_nobody(server: ServerProcess, token: Any) -> None:
    body = tool_call("cg_health", {}, meta={"progressToken": token})
    for accept in ("application/json", "text/event-stream"):
        answer = post(server, body, Accept=accept)
        messages = [answer.json] if accept == "application/json" else events(answer.body)[0]
        assert checked_result(messages[-1])["ok"]
        assert all(one["params"]["progressToken"] == token for one in messages[:-1])


@pytest.mark.parametrize(
    "method", ["", "tools/call ", "TOOLS/CALL", "__class__", "ping\u0000", "notifications/cancelled"]
)
def test_method_that_there_is_not_is_not_found(server: ServerProcess, method: str) -> None:
    answer = post(server, message(method, {}))
    assert (answer.status, answer.json["error"]["code"]) == (200, -32601)


@pytest.mark.parametrize(
    "params", [None, {}, {"requestId": 99}, {"requestId": LONG}, {"requestId": {"a": 1}}, {"x": LONG}]
)
@pytest.mark.parametrize(
    "method", ["notifications/cancelled", "notifications/initialized", "notifications/none", "tools/call"]
)
def test_notification_of_any_kind_is_taken_without_a_word(
    server: ServerProcess, method: str, params: Any
) -> None:
    answer = post(server, message(method, params, None), Mcp_Session_Id="s")
    assert (answer.status, answer.body) == (202, b"")


# --- arguments ---------------------------------------------------------------------------------------------------

ODD: list[Any] = [
    None, True, False, 0, -1, 1, 51, 201, 2**63, 1.0, 1.5, 1e308, "", " ", "x", "\u0000", "\u202e", "a" * 2001, LONG, [], [[]],
    [None], [{}], [1], ["x"] * 300, {}, {"data": "x"}, {"": ""},
]  # fmt: skip
PICTURES = [{"data": "AAAA", "mime_type": "image/jpeg"}]  # well formed, and no picture
FITTING: dict[str, Any] = {
    "query": "脚手架地基积水",
    "retrieval_docs": [{"law_name": "样例规范", "article_number": "1", "contents": "脚手架地基不得积水。"}],
    "images": PICTURES,
}
MODE_ENTRIES = [entry for entry in ENTRIES if entry.mode is not None]


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        gone = {"request_id", "runtime_stats", "cache", "details"}
        return {key: without_times(item) for key, item in value.items() if key not in gone}
    return [without_times(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("entry", MODE_ENTRIES, ids=lambda entry: entry.name)
def test_every_odd_value_of_every_argument_gets_what_http_says(server: ServerProcess, entry: Any) -> None:
    required = {name: FITTING[name] for name in entry.parameters if name in FITTING}
    for name in entry.parameters:
        for value in ODD:
            arguments = required | {name: value}
            plain = server.post(entry.mode, json.dumps(arguments).encode())
            envelope = call(server, entry.name, arguments)
            told = f"{entry.name} {name}={str(value)[:40]!r}"
            assert envelope["ok"] is (plain.status == 200), told
            if envelope["ok"]:
                assert without_times(envelope["data"]) == without_times(plain.json), told
                continue
            error = plain.json["error"]
            prefix = f"{entry.name}：" if error["code"] == "invalid_request" else ""
            assert envelope["error"]["code"] == error["code"] != "internal_error", told
            assert envelope["message"] == prefix + error["message"], told
            assert LONG[:1000] not in envelope["message"], told


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_arguments_that_are_no_object_are_an_envelope(server: ServerProcess, entry: Any) -> None:
    for value in (value for value in ODD if value is not None and not isinstance(value, dict)):
        envelope = call(server, entry.name, value)
        assert envelope["error"]["code"] == "invalid_request"
        assert envelope["error"]["details"] == {"tool": entry.name, "field": "arguments"}


@pytest.mark.parametrize(
    "name", ["", " cg_rag", "CG_RAG", "__init__", "../cg_rag", "\u0000", "\u202e", "b" * 60_000]
)
def test_tool_that_there_is_not_is_an_envelope(server: ServerProcess, name: str) -> None:
    envelope = call(server, name, {"query": "a"})
    assert envelope["error"]["code"] == "not_found"
    assert len(envelope["message"]) < 500


# --- headers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accept", "media_type"),
    [
        ("text/event-stream;q=0, application/json", "application/json"),
        ("text/event-stream; Q=0.0, */*;q=0", "application/json"),
        ("text/event-streams, application/jsonx", "application/json"),
        ("text/html", "application/json"),
        ("", "application/json"),
        (";;,,", "application/json"),
        ("application/json;q=0, text/event-stream", "text/event-stream"),
        ("TEXT/Event-Stream;q=0.001", "text/event-stream"),
        ("text/*", "text/event-stream"),
    ],
)
def test_odd_accept_gets_what_it_can_read(server: ServerProcess, accept: str, media_type: str) -> None:
    answer = post(server, tool_call("cg_health", {}, meta=PROGRESS), Accept=accept)
    assert answer.status == 200
    assert answer.headers["Content-Type"].startswith(media_type)


@pytest.mark.parametrize(
    "version", ["", " ", "banana", "2025-11-25, 2025-11-25", "2026-07-28", "9" * 5000, "\xff"]
)
def test_version_that_there_is_not_is_refused_as_json_rpc(server: ServerProcess, version: str) -> None:
    answer = post(server, message("ping"), MCP_Protocol_Version=version)
    assert (answer.status, answer.json["id"]) == (400, 1)
    assert answer.json["error"]["code"] in (-32602, -32022, -32020)


@pytest.mark.parametrize("header", ["Mcp-Method", "Mcp-Name", "MCP-Protocol-Version"])
def test_routing_header_that_comes_twice_is_refused(server: ServerProcess, header: str) -> None:
    body, headers = newest(tool_call("cg_health", {}))
    lines = [f"{name}: {value}" for name, value in [*headers.items(), (header, headers[header])]]
    sent = json.dumps(body).encode()
    head = [
        "POST /cg-rag/mcp HTTP/1.1",
        "Host: x",
        "Connection: close",
        "Content-Type: application/json",
        f"Content-Length: {len(sent)}",
    ]
    with server.connect() as connection:
        connection.sendall("\r\n".join([*head, *lines, "", ""]).encode() + sent)
        answer = read_to_end(connection)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == -32020


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil@localhost", "http://localhost/evil", "http://localhost?evil", "http://evil.example#localhost",
        "//localhost", "localhost", "http://localhost:x", "http://localhost\\.evil.example", "http://127.1", "http://0.0.0.0",
        "http://localhost.", "http://127.0.0.1.evil.example", "http://localhost http://evil.example", "file://", "null", "*", "",
    ],
)  # fmt: skip
def test_origin_that_only_looks_like_ours_is_refused(server: ServerProcess, origin: str) -> None:
    answer = post(server, message("ping"), Origin=origin)
    assert (answer.status, answer.json["error"]["code"]) == (403, -32600)


def test_every_origin_that_is_sent_counts(server: ServerProcess) -> None:
    sent = json.dumps(message("ping")).encode()
    for origins, status in (
        (("http://localhost", "http://[::1]:3000"), b"200"),
        (("http://localhost", "https://evil.example"), b"403"),
        (("https://evil.example", "http://localhost"), b"403"),
    ):
        lines = "".join(f"Origin: {origin}\r\n" for origin in origins)
        head = (
            f"POST /cg-rag/mcp HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{lines}"
            f"Content-Type: application/json\r\nContent-Length: {len(sent)}\r\n\r\n"
        )
        with server.connect() as connection:
            connection.sendall(head.encode() + sent)
            assert read_to_end(connection).split(b" ", 2)[1] == status


def test_nothing_of_all_this_left_a_traceback(server: ServerProcess) -> None:
    assert checked_result(post(server, tool_call("cg_health")).json)["ok"]
    assert not [line for line in server.lines if "traceback" in line or line["event"] == "not_json"]


# --- calls in flight ---------------------------------------------------------------------------------------------


def begin(
    process: ServerProcess, name: str, request_id: Any, key: str = "one", session: str = "s"
) -> socket.socket:
    body = tool_call("test_slow", SECONDS, request_id)
    connection = open_call(process, body, Mcp_Session_Id=session, X_API_Key=KEYS[key], X_Request_ID=name)
    process.wait_event("slow_began", request_id=name)
    return connection


def cancel(process: ServerProcess, request_id: Any, key: str = "one", session: str = "s") -> None:
    body = message("notifications/cancelled", {"requestId": request_id}, None)
    assert post(process, body, Mcp_Session_Id=session, X_API_Key=KEYS[key]).status == 202


def is_cancelled(connection: socket.socket) -> bool:
    answer = b""
    while b'"code":' not in answer and (part := connection.recv(65536)):
        answer += part
    return b'"code":-32800' in answer


def test_nobody_cancels_with_another_key(process: ServerProcess) -> None:
    with begin(process, "of-one", 7) as first, begin(process, "of-two", 7, key="two") as second:
        cancel(process, 7, key="two")
        assert is_cancelled(second)
        assert state(process)["slots"] == 1
        cancel(process, 7)
        assert is_cancelled(first)


def test_number_and_text_are_two_ids(process: ServerProcess) -> None:
    with begin(process, "number", 5) as number, begin(process, "text", "5") as text:
        for other in (5.0, True, "05", [5], {"id": 5}, None, 2**64):
            body = message("notifications/cancelled", {"requestId": other}, None)
            post(process, body, Mcp_Session_Id="s", X_API_Key=KEYS["one"])
        assert state(process)["slots"] == 2
        cancel(process, "5")
        assert is_cancelled(text)
        assert state(process)["slots"] == 1
        cancel(process, 5)
        assert is_cancelled(number)


def test_of_two_calls_with_one_id_both_can_be_cancelled(process: ServerProcess) -> None:
    with begin(process, "twin-1", 8) as first, begin(process, "twin-2", 8) as second:
        cancel(process, 8)
        assert is_cancelled(first)
        assert is_cancelled(second)
    with begin(process, "twin-3", 8) as first:
        with begin(process, "twin-4", 8):
            pass  # one leaves; the other is still known
        process.wait_event("slow_cancelled", request_id="twin-4")
        wait_until(lambda: state(process)["calls"] == 1)
        cancel(process, 8)
        assert is_cancelled(first)
    wait_until(lambda: state(process)["calls"] == 0)


def test_clients_that_reset_in_the_middle_of_anything_leave_nothing(process: ServerProcess) -> None:
    body = json.dumps(tool_call("test_slow", SECONDS)).encode()
    head = (
        "POST /cg-rag/mcp HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"X-API-Key: {KEYS['one']}\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    whole = head + body
    files = process.num_open_files()
    for end in range(1, len(whole) + 1, 7):
        connection = process.connect()
        connection.sendall(whole[:end])
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    wait_until(lambda: process.num_open_files() <= files)
    wait_until(lambda: state(process) | {"tasks": 0} == {"tasks": 0, "slots": 0, "body_bytes": 0, "calls": 0})
    assert not [line for line in process.lines if "traceback" in line or line["event"] == "not_json"]


def test_body_that_stops_coming_is_ended_as_json_rpc(start_server: StartServer) -> None:
    # Of its own: a second is no time for the other cases, whose bodies come after their headers.
    process = start_process(start_server, ", body_idle_timeout_seconds: 1")
    head = (
        "POST /cg-rag/mcp HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"X-API-Key: {KEYS['one']}\r\nContent-Length: 100000\r\n\r\n"
    )
    with process.connect() as connection:
        connection.sendall(head.encode() + b'{"jsonrpc":"2.0","id":1')
        answer = read_to_end(connection)  # to the end: the connection is closed
    assert answer.startswith(b"HTTP/1.1 408 ")
    told = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert (told["jsonrpc"], told["error"]["data"]["code"]) == ("2.0", "request_timeout")
    wait_until(lambda: state(process)["body_bytes"] == 0)


def test_chunked_body_is_read_like_any_other(process: ServerProcess) -> None:
    body = json.dumps(message("ping")).encode()
    head = (
        "POST /cg-rag/mcp HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
        f"X-API-Key: {KEYS['one']}\r\nTransfer-Encoding: chunked\r\n\r\n"
    ).encode()
    for tail, status in ((b"0\r\n\r\n", b"200"), (b"zz\r\n", b"400")):
        with process.connect() as connection:
            chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
            connection.sendall(head + chunks + tail)
            assert read_to_end(connection).split(b" ", 2)[1] == status


@pytest.mark.parametrize(
    "headers", [{}, {"X_API_Key": "wrong"}, {"Authorization": "Basic b25l"}, {"Authorization": "Bearer"}]
)
def test_without_a_right_key_nothing_is_told(process: ServerProcess, headers: dict[str, str]) -> None:
    for body in (message("initialize"), message("tools/list"), tool_call("test_slow", SECONDS)):
        answer = post(process, body, **headers)
        assert (answer.status, answer.code) == (401, "unauthorized")


def test_events_over_http_1_0_end_with_their_connection(server: ServerProcess) -> None:
    body = json.dumps(tool_call("verify_citations", {"text": "《样例安全法》第三条"})).encode()
    head = (
        "POST /cg-rag/mcp/ HTTP/1.0\r\nHost: 127.0.0.1\r\nConnection: keep-alive\r\nContent-Type: application/json\r\n"
        f"Accept: text/event-stream\r\nMCP-Protocol-Version: 2025-11-25\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with server.connect() as connection:
        connection.sendall(head.encode() + body)
        told = read_to_end(connection)  # to the end, which would be a time-out
    assert told.startswith(b"HTTP/1.0 200 OK\r\n")
    assert b"event-stream" in told
    assert told.endswith(b"\n\n")
