"""The long forms of test_hostile.py: hundreds of hostile callers, thousands of requests, memory and descriptors counted."""

from __future__ import annotations

import http.client
import json
import random
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.conftest import StartServer
from tests.contract.test_hostile import (
    CLOSE,
    GET,
    HEAD,
    LARGE_ANSWER,
    RETRIEVE,
    CarriedBuilds,
    TwoBuilds,
    abort_at_random_points,
    ask_all,
    ask_bytes,
    connect_with_small_window,
    health_watch,
    large_index,
    mixed_queries,
    post_bytes,
    read_to_end,
    status_of,
    swap_under_load,
    wait_for_closed,
)
from tests.server_process import ServerProcess

__all__ = ["large_index"]  # the fixture

MEBIBYTE = 1024 * 1024


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def drip_until_closed(connections: Sequence[socket.socket], timeout: float) -> list[tuple[float, bytes]]:
    """A byte per connection every half second; (seconds until it was closed, what came) of each."""
    started = time.monotonic()
    ended: dict[int, tuple[float, bytes]] = {}
    got = [b""] * len(connections)
    for connection in connections:
        connection.setblocking(False)
    next_drip = started
    while len(ended) < len(connections):
        now = time.monotonic()
        assert now - started < timeout, f"{len(connections) - len(ended)} connections are still open"
        drip = now >= next_drip
        next_drip += 0.5 * drip
        for number in set(range(len(connections))) - ended.keys():
            try:
                if drip:
                    connections[number].send(b"a")
                if part := connections[number].recv(65536):
                    got[number] += part
                    continue
            except BlockingIOError:
                continue
            except ConnectionError:
                pass
            ended[number] = (now - started, got[number])
        threading.Event().wait(0.02)
    return list(ended.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("opening", "answered"),
    [(GET + b"X-A: ", False), (HEAD + b"Content-Length: 50000\r\n\r\n{", True)],
    ids=["headers", "bodies"],
)
def test_200_dripping_callers_are_all_closed_in_time_and_health_stays_quick(
    start_server: StartServer, opening: bytes, answered: bool
) -> None:
    server = start_server("  server: {header_timeout_seconds: 3, body_idle_timeout_seconds: 3}\n")
    server.wait_ready()
    base, memory = server.num_open_files(), server.resident_bytes()
    connections = [server.connect() for _ in range(200)]
    for connection in connections:
        connection.sendall(opening)
    with health_watch(server) as taken:
        ended = drip_until_closed(connections, timeout=12)
    assert max(seconds for seconds, _ in ended) < 3 * 1.5 + 1
    assert {status_of(answer) if answer else 0 for _, answer in ended} == {408 if answered else 0}
    assert percentile(taken, 0.5) < 20
    assert percentile(taken, 0.99) < 100
    assert server.resident_bytes() - memory < 16 * MEBIBYTE
    for connection in connections:
        connection.close()
    wait_for_closed(server, base)


@pytest.mark.slow
def test_100_readers_that_take_nothing_are_dropped_and_health_stays_quick(
    start_server: StartServer, large_index: Path
) -> None:
    server = start_server(
        "  server: {write_timeout_seconds: 3, max_inflight_body_bytes: 1073741824}\n", index_dir=large_index
    )
    server.wait_ready()
    base = server.num_open_files()
    readers = [connect_with_small_window(server) for _ in range(100)]
    for reader in readers:
        reader.sendall(ask_bytes("脚手架验收", LARGE_ANSWER))
    with health_watch(server) as taken:
        for _ in readers:
            server.wait_event("reader_dropped", timeout=30)
    assert server.get("/health").json["capacity"]["retrieval"]["in_use"] == 0
    assert percentile(taken, 0.5) < 100
    wait_for_closed(server, base)
    for reader in readers:
        reader.close()


@pytest.mark.slow
def test_answers_that_nobody_reads_take_a_bounded_amount_of_memory(
    start_server: StartServer, large_index: Path
) -> None:
    server = start_server(
        "  server: {max_inflight_body_bytes: 33554432}\n  capacity: {wait_timeout_seconds: 0.2}\n",
        index_dir=large_index,
    )
    server.wait_ready()
    server.post(RETRIEVE, {"query": "脚手架验收", "topk": LARGE_ANSWER})
    memory = server.resident_bytes()
    readers = [connect_with_small_window(server) for _ in range(100)]
    for reader in readers:
        reader.sendall(ask_bytes("脚手架验收", LARGE_ANSWER))
    for _ in readers:
        server.wait_event("request", timeout=30, path="/cg-rag" + RETRIEVE)
    grown = server.resident_bytes() - memory
    for reader in readers:
        reader.close()
    # A hundred answers are 400 MB; the budget is 32 MiB, and each byte of it may be there twice.
    assert grown < 128 * MEBIBYTE


@pytest.mark.slow
def test_500_clients_that_go_leave_nothing_but_at_most_one_line_each(
    start_server: StartServer, large_index: Path
) -> None:
    server = start_server(index_dir=large_index)
    server.wait_ready()
    requests = [ask_bytes("脚手架", 5), ask_bytes("说明", LARGE_ANSWER), GET + b"\r\n", post_bytes(b"{" + b" " * 9000)]  # fmt: skip
    assert abort_at_random_points(server, 500, requests) <= 500
    assert not any("traceback" in line or line["event"] == "not_json" for line in server.lines)


@pytest.mark.slow
def test_pipelining_caller_that_never_reads_is_stopped_and_costs_nothing(start_server: StartServer) -> None:
    server = start_server("  server: {write_timeout_seconds: 3}\n")
    server.wait_ready()
    memory = server.resident_bytes()
    flood = ask_bytes("脚手架", 5) * 500  # 100 kB
    with connect_with_small_window(server) as connection:
        connection.settimeout(1)
        with pytest.raises(TimeoutError):
            connection.sendall(flood * 200)
        assert server.resident_bytes() - memory < 4 * MEBIBYTE
        assert server.get("/ready").status == 200
        server.wait_event("reader_dropped")


def ask_mixed(server: ServerProcess, number: int, seed: int) -> dict[int, int]:
    """`number` requests of every kind on one connection; how many had which status."""
    chance = random.Random(seed)
    as_json = {"Content-Type": "application/json"}
    long_string = b'{"query":"a","x":"' + b"y" * 100_000 + b'"}'
    counts: dict[int, int] = {}
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
        for _ in range(number):
            question = {"query": f"脚手架验收 {chance.randint(0, 200)}", "topk": chance.randint(1, 5)}
            kinds: list[tuple[str, str, bytes | None, dict[str, str]]] = [
                ("POST", RETRIEVE, json.dumps(question).encode(), as_json),
                ("POST", RETRIEVE, json.dumps(question | {"include_debug": True}).encode(), as_json),
                (
                    "POST",
                    RETRIEVE,
                    json.dumps(question | {"scope": f"no{question['topk']}"}).encode(),
                    as_json,
                ),
                ("POST", RETRIEVE, b'{"query":', as_json),
                ("POST", RETRIEVE, long_string, as_json),
                ("POST", RETRIEVE, b"x" * 3000, {"Content-Type": "text/plain"}),
                ("GET", "/health", None, {}),
                ("GET", "/openapi.json", None, {}),
                ("GET", f"/no{chance.randint(0, 10**9)}", None, {}),
                ("PUT", "/ready", None, {}),
            ]
            method, path, body, headers = chance.choice(kinds)
            connection.request(method, "/cg-rag" + path, body, headers)
            response = connection.getresponse()
            response.read()
            counts[response.status] = counts.get(response.status, 0) + 1
    return counts


@pytest.mark.soak
def test_10_000_mixed_requests_leave_memory_and_descriptors_as_they_were(start_server: StartServer) -> None:
    # A cache that is full after the warm-up, so that what grows is a leak.
    server = start_server("  cache: {max_bytes: 1048576}\n")
    server.wait_ready()
    base = server.num_open_files()
    ask_mixed(server, 2000, seed=1)
    memory = server.resident_bytes()
    counts = ask_mixed(server, 10_000, seed=2)
    assert set(counts) == {200, 400, 404, 405, 415}
    assert server.resident_bytes() - memory <= MEBIBYTE
    wait_for_closed(server, base)


@pytest.mark.soak
def test_64_callers_at_once_get_what_each_would_get_alone_and_health_stays_quick(
    start_server: StartServer,
) -> None:
    queries = mixed_queries(400) * 4
    settings = "  cache: {max_bytes: 0}\n"
    crowded, quiet = start_server(settings), start_server(settings)
    crowded.wait_ready()
    quiet.wait_ready()
    with health_watch(crowded) as taken:
        together = ask_all(crowded, queries, 64)
    assert together == ask_all(quiet, queries, 1)
    assert {status for status, _ in together} == {200}
    assert percentile(taken, 0.5) < 100


@pytest.mark.soak
def test_100_swaps_of_the_index_under_load_are_never_an_error_a_mixture_or_a_stale_answer(
    start_server: StartServer, tmp_path: Path
) -> None:
    builds = TwoBuilds(tmp_path)
    server = start_server(index_dir=builds.index_dir)
    server.wait_ready()
    base = server.num_open_files()
    assert swap_under_load(server, builds, 100) >= 1000
    wait_for_closed(server, base)


@pytest.mark.soak
def test_200_installed_and_rolled_back_archives_under_load_are_never_an_error_or_a_mixture(
    start_server: StartServer, tmp_path: Path
) -> None:
    builds = CarriedBuilds(tmp_path)
    server = start_server(index_dir=builds.index_dir)
    server.wait_ready()
    base = server.num_open_files()
    assert swap_under_load(server, builds, 200) > 1000
    wait_for_closed(server, base)


@pytest.mark.slow
def test_413_reaches_a_sender_of_half_a_gigabyte_and_nothing_of_it_is_kept(start_server: StartServer) -> None:
    server = start_server()
    server.wait_ready()
    memory = peak = server.resident_bytes()
    piece = b"x" * MEBIBYTE
    with server.connect(30) as connection:
        connection.sendall(HEAD + CLOSE + b"Content-Length: %d\r\n\r\n" % (500 * MEBIBYTE))
        with suppress(ConnectionError):
            for _ in range(500):
                connection.sendall(piece)
                peak = max(peak, server.resident_bytes())
        assert status_of(read_to_end(connection)) == 413
    assert peak - memory < 4 * MEBIBYTE
