"""`serve --workers N`: several processes behind one port, and the one that looks after them."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartServer
from tests.contract.test_hostile import QUESTION as QUESTION_BYTES
from tests.contract.test_hostile import is_listening, open_half_a_body, read_to_end, status_of
from tests.fake_upstream import Hang, Reply, upstream_in_thread
from tests.generating import wait_for
from tests.mcp_wire import LEGACY, message, open_call, receive_until, tool_call
from tests.server_process import PROGRAM, ServerProcess

TWO = "  server: {workers: 2}\n"
QUESTION = {"query": "脚手架地基积水"}
HALF_QUESTION = QUESTION_BYTES[1:]  # what `open_half_a_body` has not sent


def ready(server: ServerProcess) -> ServerProcess:
    for _ in range(2):
        server.wait_ready()
    return server


@pytest.fixture(scope="module")
def two(start_server: StartServer) -> ServerProcess:
    """Two workers, which tests may end: they are replaced."""
    return ready(start_server(TWO))


def worker_of(server: ServerProcess) -> dict[str, int]:
    """Of whichever answers: every request is on a connection of its own."""
    found: dict[str, int] = server.get("/health").json["worker"]
    return found


def find_worker(server: ServerProcess, number: int) -> dict[str, int]:
    found: dict[str, int] = {}

    def is_the_one() -> bool:
        found.update(worker_of(server))
        return found["number"] == number

    wait_for(is_the_one)
    return found


def is_alive(pid: int) -> bool:
    """Whether it runs: a process that nobody has waited for yet is a zombie, and has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter when it goes between opening and reading
        return False


LATE_SECONDS = 4.0
RESTARTING_LATE = """import sys
sys.path.insert(0, {root!r})
import cg_rag
from cg_rag.core import supervisor
supervisor.FIRST_DELAY_SECONDS = {delay}
sys.exit(cg_rag.main())
"""


def restarting_late(folder: Path) -> Path:
    """The service as a program that starts an ended worker again only after LATE_SECONDS, not half of one: long enough
    to look at what is left meanwhile."""
    program = folder / "restarting_late.py"
    program.write_text(RESTARTING_LATE.format(root=str(PROGRAM.parent), delay=LATE_SECONDS), "utf-8")
    return program


def events(server: ServerProcess, name: str) -> list[dict[str, Any]]:
    return [line for line in server.lines if line["event"] == name]


def test_two_workers_answer_behind_one_port_and_health_says_which(two: ServerProcess) -> None:
    server = two
    first, second = find_worker(server, 1), find_worker(server, 2)
    assert (first["count"], second["count"]) == (2, 2)
    ended = [line["worker"] for line in events(server, "worker_ended")]
    assert (first["restarts"], second["restarts"]) == (ended.count(1), ended.count(2))
    assert len({server.process.pid, first["pid"], second["pid"]}) == 3
    answers = [server.post("/retrieve-rerank", QUESTION).json for _ in range(12)]
    assert all(answer["retrieval_docs"] == answers[0]["retrieval_docs"] for answer in answers)
    (announced,) = events(server, "listening")
    assert (announced["workers"], announced["pid"]) == (2, server.process.pid)
    wait_for(lambda: {line["worker"] for line in events(server, "request")} == {1, 2})


def test_a_service_of_one_process_says_so(server: ServerProcess) -> None:
    pid = server.process.pid
    assert worker_of(server) == {"number": 1, "count": 1, "running": 1, "restarts": 0, "pid": pid}


def test_worker_that_dies_is_started_again_and_the_others_go_on_answering(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = ready(start_server(TWO, program=restarting_late(tmp_path)))
    killed = find_worker(server, 2)
    os.kill(killed["pid"], signal.SIGKILL)
    ended = server.wait_event("worker_ended", worker=2)
    assert (ended["exit"], ended["worker_pid"]) == ("signal SIGKILL", killed["pid"])
    assert ended["restart_in_seconds"] == LATE_SECONDS
    left = worker_of(server)
    assert (left["number"], left["count"], left["running"]) == (1, 2, 1)
    server.wait_event("index_loaded", worker=2)
    again = find_worker(server, 2)
    assert again["restarts"] == killed["restarts"] + 1
    assert again["pid"] != killed["pid"]
    assert again["running"] == 2
    assert server.post("/retrieve-rerank", QUESTION).status == 200


def test_worker_that_is_told_to_end_answers_first_and_is_replaced(two: ServerProcess) -> None:
    server = two
    with open_half_a_body(server) as connection:
        holder = find_worker(server, number_of_holder(server))
        os.kill(holder["pid"], signal.SIGTERM)
        server.wait_event("stopping", worker=holder["number"])
        connection.sendall(HALF_QUESTION)
        answer = read_to_end(connection)
    assert status_of(answer) == 200
    server.wait_event("worker_ended", worker=holder["number"], exit="exit 0")
    server.wait_event("index_loaded", worker=holder["number"])


def number_of_holder(server: ServerProcess) -> int:
    """Which worker is reading a body."""
    found: list[int] = []

    def is_holder() -> bool:
        body = server.get("/health").json
        found.append(body["worker"]["number"])
        return bool(body["capacity"]["request_body"]["in_use"])

    wait_for(is_holder)
    return found[-1]


def test_sigterm_is_passed_on_and_what_is_being_answered_is_answered(start_server: StartServer) -> None:
    server = ready(start_server(TWO))
    pids = [find_worker(server, number)["pid"] for number in (1, 2)]
    with open_half_a_body(server) as connection:
        server.signal()
        for _ in pids:
            server.wait_event("stopping")
        wait_for(lambda: not is_listening(server))
        connection.sendall(HALF_QUESTION)
        assert status_of(read_to_end(connection)) == 200
    assert server.wait_exit() == 0
    assert not any(map(is_alive, pids))
    assert {line["exit"] for line in events(server, "worker_ended")} == {"exit 0"}
    assert not [line for line in server.lines if "traceback" in line]


def test_signal_to_every_process_is_one_and_a_second_one_does_not_wait(start_server: StartServer) -> None:
    # Three times at most: in the best of them the machine did not stand still.
    assert any(seconds_after_a_second_signal(start_server) < 2.5 for _ in range(3))


def seconds_after_a_second_signal(start_server: StartServer) -> float:
    server = ready(start_server(TWO))
    pids = [find_worker(server, number)["pid"] for number in (1, 2)]
    with open_half_a_body(server):
        for pid in [server.process.pid, *pids]:  # as a terminal does, or systemd
            os.kill(pid, signal.SIGTERM)
        server.wait_event("service_stopping")  # a second signal that waits with the first is one with it
        for _ in pids:
            server.wait_event("stopping")
        assert not events(server, "stopped_at_once")
        started = time.monotonic()
        server.signal()
        assert server.wait_exit() == 1
        taken = time.monotonic() - started
    assert not any(map(is_alive, pids))
    return taken


def test_workers_end_with_the_process_that_started_them(start_server: StartServer) -> None:
    server = ready(start_server(TWO))
    pids = [find_worker(server, number)["pid"] for number in (1, 2)]
    server.process.kill()
    wait_for(lambda: not any(map(is_alive, pids)))
    assert not is_listening(server)


def connection_to(server: ServerProcess, number: int) -> http.client.HTTPConnection:
    """One that stays with the worker `number`: the kernel chooses by the caller's port."""
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        connection.request("GET", "/cg-rag/health")
        if json.loads(connection.getresponse().read())["worker"]["number"] == number:
            return connection
        connection.close()


def test_cancelling_over_mcp_reaches_the_worker_that_does_the_work(start_server: StartServer) -> None:
    with upstream_in_thread(*[Reply([Hang()])] * 2) as upstream:
        settings = f"{TWO}  generation: {{endpoint: {upstream.url}, model: m}}\n  mcp: {{enabled: true}}\n"
        server = ready(start_server(settings))
        called = tool_call("cg_rag", QUESTION, request_id=7)
        cancelled = json.dumps(message("notifications/cancelled", {"requestId": 7}, request_id=None))
        for number in (1, 2):
            with (
                open_call(server, called, Mcp_Session_Id="s") as call,
                closing(connection_to(server, number)) as other,
            ):
                wait_for(lambda: len(upstream.requests) == number)  # noqa: B023
                headers = LEGACY | {"Content-Type": "application/json", "Mcp-Session-Id": "s"}
                other.request("POST", "/cg-rag/mcp/", cancelled, headers)
                assert other.getresponse().status == 202
                receive_until(call, lambda received: b"-32800" in received)


def run_serve(config: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), "serve", "--config", str(config), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(("taken_by", "workers"), [("server", "2"), ("two", "1"), ("two", "2")])
def test_port_in_use_is_one_line_also_where_the_other_service_would_share_it(
    server: ServerProcess, two: ServerProcess, tmp_path: Path, taken_by: str, workers: str
) -> None:
    port = {"server": server, "two": two}[taken_by].port
    config = tmp_path / "config.yaml"
    config.write_text("cg_rag: {mcp: {enabled: false}}\n")
    ended = run_serve(config, "--port", str(port), "--workers", workers)
    assert ended.returncode == 1
    assert ended.stderr.count("无法监听") == 1
    assert "端口已被占用" in ended.stderr
    assert "Traceback" not in ended.stderr


# --- what the supervisor does with workers that end, without a service in them ---------------------------------------

SUPERVISED = """
import os, signal, sys
sys.path.insert(0, {root!r})
import cg_rag
from cg_rag.core import supervisor
from cg_rag.core.log import setup_logging
from cg_rag.core.settings import ServerSettings

supervisor.FIRST_DELAY_SECONDS = 0.01
setup_logging("INFO", "json")

def until_told():
    worker_line.setblocking(True)
    return 0 if worker_line.recv(99) == b"stop" else 9

def run(worker, server):
    global worker_line
    worker_line = worker.link._line
    {body}

sys.exit(supervisor.supervise(run, 2, ServerSettings(port=0), "0", print))
"""


def supervise(body: str, tmp_path: Path) -> tuple[int, list[dict[str, Any]]]:
    program = tmp_path / "program.py"
    program.write_text(SUPERVISED.format(root=str(PROGRAM.parent), body=body))
    ended = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=120, check=False
    )
    return ended.returncode, [json.loads(line) for line in ended.stderr.splitlines()]


def test_worker_that_cannot_begin_ends_the_service_with_its_exit_code(tmp_path: Path) -> None:
    code, lines = supervise("return 3 if worker.number == 2 else until_told()", tmp_path)
    assert code == 3
    assert next(line["worker"] for line in lines if line["event"] == "worker_ended") == 2
    assert not [line for line in lines if line["event"] == "listening"]


def test_worker_that_keeps_ending_is_started_again_ever_later(tmp_path: Path) -> None:
    body = """worker.link.say_listening()
    if worker.restarts == 4:
        os.kill(os.getppid(), signal.SIGTERM)
    return 7 if worker.number == 1 and worker.restarts < 4 else until_told()"""
    code, lines = supervise(body, tmp_path)
    ends = [line for line in lines if line["event"] == "worker_ended" and line["exit"] == "exit 7"]
    assert [line["restart_in_seconds"] for line in ends] == [0.01, 0.02, 0.04, 0.08]
    assert code == 0
