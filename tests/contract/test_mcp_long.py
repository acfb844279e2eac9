"""Calls that take their time, are large, or are left: over tools made for tests, in a process of their own."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartServer
from tests.generating import ONE_SECOND, wait_for
from tests.mcp_wire import (
    MCP,
    PROGRESS,
    call,
    call_at_once,
    checked_result,
    events,
    message,
    newest,
    open_call,
    post,
    receive_until,
    tool_call,
)
from tests.patience import assert_within
from tests.server_process import ServerProcess

PROGRAM = Path(__file__).resolve().parents[1] / "mcp_process.py"
MEBIBYTE = 1024 * 1024
PING_SECONDS, PROGRESS_SECONDS = 0.3, 0.2
SHORT_BEATS = {
    "CG_RAG_TEST_PING_SECONDS": str(PING_SECONDS),
    "CG_RAG_TEST_PROGRESS_SECONDS": str(PROGRESS_SECONDS),
}
SECONDS = {"seconds": 60}


@pytest.fixture(scope="module")
def process(start_server: StartServer) -> ServerProcess:
    return start_server("  mcp: {enabled: true}\n", environ=SHORT_BEATS, program=PROGRAM)


@pytest.fixture(autouse=True)
def everything_is_given_back(process: ServerProcess) -> Iterator[None]:
    """No test leaves a task, a slot or a byte behind."""
    base = state(process)["tasks"]
    yield
    wait_for(lambda: state(process) == {"tasks": base, "slots": 0, "body_bytes": 0, "calls": 0})


def state(process: ServerProcess) -> dict[str, int]:
    return dict(process.get("/state").json)


def progress_of(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one["params"] for one in messages if one.get("method") == "notifications/progress"]


# --- time --------------------------------------------------------------------------------------------------------


def test_answer_that_is_ready_at_once_is_json(process: ServerProcess) -> None:
    answer = post(process, tool_call("test_slow", {"seconds": 0}, meta=PROGRESS))
    assert answer.headers["Content-Type"].startswith("application/json")
    assert checked_result(answer.json)["ok"]


def test_silent_work_is_kept_alive_by_pings(process: ServerProcess) -> None:
    def wait_for_three() -> float:
        started = time.monotonic()
        with begin(process, "silent", tool_call("test_slow", SECONDS, 5), Mcp_Session_Id="s-1") as connection:
            receive_until(connection, lambda received: received.count(b": ping\n\n") >= 3)
            taken = time.monotonic() - started
            assert taken > 3 * PING_SECONDS - 0.05
            cancel(process, 5, Mcp_Session_Id="s-1")
            receive_until(connection, lambda received: b'"code":-32800' in received)
        wait_for(lambda: state(process)["slots"] == 0)
        return taken

    # Sooner than if one of them were left out.
    assert_within(4 * PING_SECONDS, wait_for_three)


def test_answer_comes_behind_the_pings(process: ServerProcess) -> None:
    started = time.monotonic()
    answer = post(process, tool_call("test_slow", {"seconds": 1.1}))
    messages, pings = events(answer.body)
    # Three, unless the machine stood still.
    assert 1 <= pings <= (time.monotonic() - started) / PING_SECONDS
    assert [checked_result(one)["ok"] for one in messages] == [True]


def test_silence_is_broken_by_progress(process: ServerProcess) -> None:
    def wait_for_three() -> float:
        started = time.monotonic()
        body = tool_call("test_slow", SECONDS | {"stages": 2}, meta=PROGRESS)
        with open_call(process, body) as connection:
            receive_until(connection, lambda received: received.count("第 2 步".encode()) >= 4)
            taken = time.monotonic() - started
        assert taken > 3 * PROGRESS_SECONDS - 0.05
        wait_for(lambda: state(process)["slots"] == 0)
        return taken

    assert_within(4 * PROGRESS_SECONDS, wait_for_three)


def test_every_stage_is_told_then_the_last_again_and_then_the_answer(process: ServerProcess) -> None:
    started = time.monotonic()
    answer = post(process, tool_call("test_slow", {"seconds": 0.7, "stages": 2}, meta=PROGRESS))
    messages, _ = events(answer.body)
    told = progress_of(messages)
    assert [one["progress"] for one in told] == list(range(1, len(told) + 1))
    first, *others = [one["message"] for one in told]
    assert (first, set(others)) == ("第 1 步", {"第 2 步"})
    # Three times again, unless the machine stood still.
    assert 1 <= len(others) - 1 <= (time.monotonic() - started) / PROGRESS_SECONDS
    assert checked_result(messages[-1])["ok"]


def test_no_progress_is_sent_to_who_asked_for_none(process: ServerProcess) -> None:
    answer = post(process, tool_call("test_slow", {"seconds": 0.4, "stages": 3}))
    messages, pings = events(answer.body)
    assert len(messages) == 1
    assert pings >= 1


def test_client_of_json_alone_waits_for_its_json(process: ServerProcess) -> None:
    body = tool_call("test_slow", {"seconds": 0.5, "stages": 3}, meta=PROGRESS)
    answer = post(process, body, Accept="application/json")
    assert checked_result(answer.json)["ok"]


def test_newest_protocol_tells_progress_too(process: ServerProcess) -> None:
    body, headers = newest(tool_call("test_slow", {"seconds": 0.3, "stages": 1}, meta=PROGRESS))
    messages, _ = events(process.request("POST", MCP, body, headers).body)
    assert len(progress_of(messages)) >= 2
    assert checked_result(messages[-1])["ok"]


def test_call_outlives_the_patience_of_a_client_that_is_reset_by_progress(process: ServerProcess) -> None:
    # The client gives up when nothing came for 3 s; the call takes 3.5 s.
    with open_call(process, tool_call("test_slow", {"seconds": 3.5}, meta=PROGRESS)) as connection:
        connection.settimeout(3)
        received = read_to_the_end(connection)
    assert b'"isError":false' in received


@pytest.mark.slow
def test_call_of_70_seconds_outlives_the_60_seconds_of_a_client(start_server: StartServer) -> None:
    process = start_server("  mcp: {enabled: true}\n", program=PROGRAM)
    with open_call(process, tool_call("test_slow", {"seconds": 70}, meta=PROGRESS)) as connection:
        connection.settimeout(60 / 5)  # progress comes every 10 s
        received = read_to_the_end(connection)
    assert received.count(b"notifications/progress") == 6
    assert b'"isError":false' in received


def read_to_the_end(connection: socket.socket) -> bytes:
    """Up to the last chunk of an answer."""
    return receive_until(connection, lambda received: received.endswith(b"0\r\n\r\n"))


# --- ends --------------------------------------------------------------------------------------------------------


def begin(process: ServerProcess, name: str, body: dict[str, Any], **headers: str) -> socket.socket:
    """A slow call that is under way; `name` is its X-Request-ID."""
    connection = open_call(process, body, **headers | {"X-Request-ID": name})
    process.wait_event("slow_began", request_id=name)
    return connection


def cancel(process: ServerProcess, request_id: Any, **headers: str) -> int:
    params = {"requestId": request_id, "reason": "test"}
    return post(process, message("notifications/cancelled", params, None), **headers).status


def test_cancelling_ends_the_work(process: ServerProcess) -> None:
    tries = itertools.count()

    def end() -> float:
        name = f"cancelled-{next(tries)}"
        with begin(process, name, tool_call("test_slow", SECONDS, 5), Mcp_Session_Id="s-1") as connection:
            started = time.monotonic()
            assert cancel(process, 5, Mcp_Session_Id="s-1") == 202
            process.wait_event("slow_cancelled", request_id=name)
            wait_for(lambda: state(process)["slots"] == 0)
            receive_until(connection, lambda received: b'"code":-32800' in received)
            return time.monotonic() - started

    assert_within(ONE_SECOND, end)


def test_nobody_cancels_the_call_of_another(process: ServerProcess) -> None:
    with begin(process, "mine", tool_call("test_slow", SECONDS, 5), Mcp_Session_Id="s-1"):
        for request_id, session in ((5, "s-2"), (6, "s-1"), (5, ""), ([], "s-1"), (None, "s-1")):
            headers = {"Mcp_Session_Id": session} if session else {}
            assert cancel(process, request_id, **headers) == 202
        assert state(process)["slots"] == 1
    wait_for(lambda: state(process)["slots"] == 0)
    with begin(process, "nameless", tool_call("test_slow", SECONDS, 5)):
        cancel(process, 5)
        assert state(process)["slots"] == 1


@pytest.mark.parametrize("protocol", ["handshake", "newest"])
@pytest.mark.parametrize("after", ["at once", "in the stream"])
def test_client_that_leaves_ends_the_work(process: ServerProcess, protocol: str, after: str) -> None:
    body, headers = tool_call("test_slow", SECONDS, meta=PROGRESS), {}
    if protocol == "newest":
        body, headers = newest(body)
    tries = itertools.count()

    def leave() -> float:
        name = f"left-{protocol}-{after.replace(' ', '-')}-{next(tries)}"
        with begin(process, name, body, **headers) as connection:
            if after == "in the stream":
                receive_until(connection, lambda received: b"text/event-stream" in received)
        started = time.monotonic()
        process.wait_event("slow_cancelled", request_id=name)
        wait_for(lambda: state(process)["slots"] == 0)
        taken = time.monotonic() - started
        assert process.wait_event("request", request_id=name)["code"] == "client_gone"
        return taken

    assert_within(ONE_SECOND, leave)


def test_service_that_stops_answers_what_it_will_not_finish(start_server: StartServer) -> None:
    server = start_server(
        "  server: {shutdown_timeout_seconds: 4}\n  mcp: {enabled: true}\n",
        environ=SHORT_BEATS,
        program=PROGRAM,
    )
    with begin(server, "stopped", tool_call("test_slow", SECONDS), Accept="application/json") as connection:
        server.signal()
        received = connection.recv(65536)
        while part := connection.recv(65536):
            received += part
    assert server.wait_exit() == 0
    envelope = checked_result(json.loads(received.partition(b"\r\n\r\n")[2]))
    assert envelope["error"]["details"] == {"reason": "shutdown"}


# --- failures ----------------------------------------------------------------------------------------------------


def test_exception_is_an_envelope_without_its_text(process: ServerProcess) -> None:
    answer = post(process, tool_call("test_fail", {"code": "none"}), X_Request_ID="broken-1")
    envelope = checked_result(answer.json)
    assert envelope["error"] == {
        "code": "internal_error",
        "message": "服务内部错误，请凭 request_id 联系管理员。",
        "details": {"request_id": "broken-1"},
    }
    assert "secret" not in answer.body.decode()
    assert (
        "a secret of the inside" in process.wait_event("internal_error", request_id="broken-1")["traceback"]
    )


def test_failure_with_a_status_on_http_keeps_its_code_and_message(process: ServerProcess) -> None:
    envelope = call(process, "test_fail", {"code": "capacity.exceeded"})
    assert envelope == {
        "ok": False,
        "message": "服务当前请求过多，请稍后重试。",
        "data": {},
        "error": {
            "code": "capacity.exceeded",
            "message": "服务当前请求过多，请稍后重试。",
            "details": {"resource": "retrieval", "max": 16, "wait_timeout_seconds": 5.0},
        },
    }


def test_failure_under_http_200_is_a_failed_operation(process: ServerProcess) -> None:
    envelope = call(process, "test_fail", {"code": "business"})
    assert (envelope["ok"], envelope["operation_ok"], envelope["message"]) == (
        True,
        False,
        "CG_RAG 业务操作失败",
    )
    assert envelope["data"]["error"]["code"] == "generation_not_configured"


# --- size --------------------------------------------------------------------------------------------------------


def picture_call(num_bytes: int) -> dict[str, Any]:
    return tool_call("test_pictures", {"images": [{"data": "A" * num_bytes, "mime_type": "image/jpeg"}]})


def test_pictures_of_20_mib_arrive_while_others_are_served(start_server: StartServer) -> None:
    process = start_server("  mcp: {enabled: true}\n", program=PROGRAM)
    size = 20 * MEBIBYTE
    body = json.dumps(picture_call(size)).encode()
    process.get("/busiest")
    for _ in range(3):
        answer = process.request("POST", MCP, body, {"Accept": "application/json"}).json
        assert checked_result(answer)["data"]["num_bytes"] == [size]
    # What others wait for: the longest that the loop was held, in CPU time.
    assert process.get("/busiest").json["ms"] < 50


def test_more_than_there_is_room_for_is_refused_as_json_rpc(
    start_server: StartServer, process: ServerProcess
) -> None:
    big = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"' + b"A" * 97 * MEBIBYTE
    with process.connect() as connection:
        head = f"POST /cg-rag/mcp HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(big)}\r\n\r\n"
        connection.sendall(head.encode())
        answer = receive_until(connection, lambda received: b"payload_too_large" in received)
    assert b"413" in answer.split(b"\r\n")[0]
    assert b'"jsonrpc":"2.0"' in answer


@pytest.mark.parametrize("stages", [0, 1])
def test_answers_of_many_mebibytes_arrive(process: ServerProcess, stages: int) -> None:
    characters = 2 * MEBIBYTE
    body = tool_call("test_big", {"characters": characters})
    answer = post(process, body, **({"Accept": "text/event-stream"} if stages else {}))
    result = events(answer.body)[0][-1] if stages else answer.json
    assert checked_result(result)["data"]["text"] == "字" * characters


def test_progress_that_nobody_reads_is_not_piled_up(process: ServerProcess) -> None:
    before = process.resident_bytes()
    body = tool_call("test_busy", {"reports": 100_000}, meta=PROGRESS)
    with open_call(process, body, Mcp_Session_Id="reads-nothing", X_Request_ID="reads-nothing"):
        process.wait_event("busy_ended", request_id="reads-nothing")
        assert state(process)["calls"] == 1
        assert process.resident_bytes() - before < 4 * MEBIBYTE


# --- many --------------------------------------------------------------------------------------------------------


def check_calls_leave_nothing(
    process: ServerProcess, num_calls: int, limit_bytes: int, rounds: int = 1
) -> None:
    initialize = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "0"},
    }

    def call_many(count: int, body: dict[str, Any]) -> None:
        lines = asyncio.run(call_at_once(process.port, [body | {"id": number} for number in range(count)]))
        assert set(lines) == {b"HTTP/1.1 200 OK"}

    call_many(100, tool_call("test_slow", {"seconds": 0}))
    before = state(process), process.num_open_files(), process.resident_bytes()
    for _ in range(rounds):
        call_many(num_calls, tool_call("test_slow", {"seconds": 0.5}))
        call_many(num_calls, message("initialize", initialize))
    wait_for(lambda: process.num_open_files() <= before[1])
    assert state(process) == before[0]
    assert process.resident_bytes() - before[2] < limit_bytes


def test_neither_calls_nor_handshakes_leave_anything_behind(process: ServerProcess) -> None:
    check_calls_leave_nothing(process, 200, 8 * MEBIBYTE)


@pytest.mark.slow
def test_thousands_of_calls_leave_nothing_behind(process: ServerProcess) -> None:
    check_calls_leave_nothing(process, 1000, 30 * MEBIBYTE, rounds=3)


def check_dropped_clients(process: ServerProcess, num_clients: int) -> None:
    num_files = process.num_open_files()
    first_line = len(process.lines)
    connections = []
    for number in range(num_clients):
        body = tool_call("test_slow", SECONDS | {"stages": 1}, number, meta=PROGRESS if number % 2 else None)
        connections.append(open_call(process, body, X_Request_ID=f"dropped-{num_clients}-{number}"))
    wait_for(lambda: state(process)["slots"] == num_clients, 60)
    for connection in connections:
        connection.close()
    taken = wait_for(lambda: state(process)["slots"] == 0)
    taken += wait_for(lambda: process.num_open_files() <= num_files)
    assert taken < 5

    def told() -> list[Any]:
        ids = (line.get("request_id", "") for line in process.lines if line.get("code") == "client_gone")
        return [one for one in ids if one.startswith(f"dropped-{num_clients}-")]

    wait_for(lambda: len(told()) == num_clients)  # the lines are read by a thread that may be late
    assert len(set(told())) == num_clients
    lines = process.lines[first_line:]
    assert not [line for line in lines if "traceback" in line or line["event"] == "not_json"]


def test_dropped_clients_free_their_slots_and_leave_no_traceback(process: ServerProcess) -> None:
    check_dropped_clients(process, 60)


@pytest.mark.slow
def test_500_dropped_clients_free_their_slots_and_leave_no_traceback(process: ServerProcess) -> None:
    check_dropped_clients(process, 500)
