"""/metrics of several workers: one answer for all of them, whoever gives it, also across the death of one."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cg_rag.core.roster import Roster
from tests.conftest import StartServer
from tests.contract.test_hostile import open_half_a_body
from tests.contract.test_workers import (
    QUESTION,
    TWO,
    connection_to,
    find_worker,
    is_alive,
    number_of_holder,
    ready,
    restarting_late,
)
from tests.generating import wait_for
from tests.server_process import PROGRAM, ServerProcess

Found = dict[tuple[str, ...], float]
ASKED = ("cg_rag_requests_total", "", "/cg-rag/retrieve-rerank", "200")


def read(text: str, kinds: tuple[str, ...] = ("counter", "histogram", "gauge")) -> Found:
    """(name, label values in the order of their names) -> value."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        if family.type in kinds
        for sample in family.samples
    }


def scrape(server: ServerProcess) -> Found:
    """Of whichever answers."""
    return read(server.get("/metrics").body.decode())


def scrape_of(server: ServerProcess, number: int) -> Found:
    with closing(connection_to(server, number)) as connection:
        connection.request("GET", "/cg-rag/metrics")
        return read(connection.getresponse().read().decode())


def ask(server: ServerProcess, number: int, path: str, body: dict[str, object]) -> None:
    """Of the worker `number`."""
    with closing(connection_to(server, number)) as connection:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", f"/cg-rag{path}", json.dumps(body), headers)
        assert connection.getresponse().status == 200


def folder_of(server: ServerProcess) -> Path:
    """Where the workers count: the one place with a lock that the service holds open."""
    targets = []
    for link in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            targets.append(link.readlink())
    return next(
        path.parent for path in targets if path.name == "lock" and "cg-rag-workers" in path.parent.name
    )


def test_every_worker_answers_for_all_of_them(start_server: StartServer) -> None:
    server = ready(start_server(TWO))
    for number in (1, 2, 1, 2, 1):
        ask(server, number, "/verify-citations", {"text": "《样例安全法》第二十八条"})
    for number in (1, 2):
        found = scrape_of(server, number)
        assert found["cg_rag_requests_total", "", "/cg-rag/verify-citations", "200"] == 5
        assert found["cg_rag_request_seconds_count", "/cg-rag/verify-citations"] == 5
        assert found["cg_rag_request_seconds_bucket", "+Inf", "/cg-rag/verify-citations"] == 5
        assert found["cg_rag_stage_seconds_count", "scan"] == 5


def test_what_stands_is_summed_up_where_each_has_its_own_and_not_where_it_is_one(
    start_server: StartServer, server: ServerProcess
) -> None:
    two = ready(start_server(TWO))
    one = scrape(server)
    index = (
        ("cg_rag_index_usable", "full"),
        ("cg_rag_index_articles", "full"),
        ("cg_rag_index_state", "ready"),
    )

    def tells_of_the_index(number: int) -> bool:
        found = scrape_of(two, number)
        return all(found[series] == one[series] > 0 for series in index)

    for number in (1, 2):
        wait_for(lambda: tells_of_the_index(number))  # noqa: B023
        found = scrape_of(two, number)
        for resource in ("retrieval", "generation", "request_body"):
            series = ("cg_rag_capacity_max", resource)
            assert found[series] == 2 * one[series]
        for worker in ("1", "2"):
            assert found["process_resident_memory_bytes", worker] > 10e6
            assert found["cg_rag_worker_up", worker] == 1
        assert found["process_start_time_seconds", "1"] <= found["process_start_time_seconds", "2"]


def test_look_ups_of_both_caches_add_up(start_server: StartServer) -> None:
    server = ready(start_server(TWO))
    for number in (1, 2, 1, 2, 2):
        ask(server, number, "/retrieve-rerank", QUESTION)

    def told() -> tuple[float, float]:
        found = scrape(server)
        return found["cg_rag_cache_hits_total",], found["cg_rag_cache_misses_total",]

    wait_for(lambda: told() == (3, 2))


def test_killing_a_worker_loses_no_count_and_none_ever_goes_back(start_server: StartServer) -> None:
    server = ready(start_server(TWO))
    went_back: list[tuple[tuple[str, ...], float, float]] = []
    seen: Found = {}
    scrapes = 0
    is_over = threading.Event()

    def look() -> None:
        """Connections to a worker that has just been killed may break: that is no answer."""
        nonlocal scrapes
        while not is_over.is_set():
            try:
                body = server.get("/metrics").body.decode()
            except (OSError, http.client.HTTPException):
                continue
            scrapes += 1
            for series, value in read(body, ("counter", "histogram")).items():
                if not series[0].startswith("process_") and not series[0].endswith("_sum"):
                    if value < seen.get(series, 0.0):
                        went_back.append((series, seen[series], value))
                    seen[series] = value

    watching = threading.Thread(target=look)
    watching.start()
    try:
        for life in range(3):
            for _ in range(10):
                assert server.post("/retrieve-rerank", QUESTION | {"topk": life + 1}).status == 200
            # Of what has been answered everything was counted.
            wait_for(lambda: scrape(server)[ASKED] == 10 * (life + 1))  # noqa: B023
            number = life % 2 + 1
            os.kill(find_worker(server, number)["pid"], signal.SIGKILL)
            server.wait_event("worker_ended", worker=number)
            wait_for(lambda: find_worker(server, number)["restarts"] == life // 2 + 1)  # noqa: B023
            server.wait_event("index_loaded", worker=number)
    finally:
        is_over.set()
        watching.join()
    assert went_back == []
    assert scrapes > 10
    found = scrape(server)
    assert found[ASKED] == 30
    assert found["cg_rag_worker_restarts_total", "1"] == 2
    assert found["cg_rag_worker_restarts_total", "2"] == 1


def test_what_a_killed_worker_held_is_not_held_any_more(start_server: StartServer, tmp_path: Path) -> None:
    server = ready(start_server(TWO, program=restarting_late(tmp_path)))
    with open_half_a_body(server):
        holder = number_of_holder(server)
        other = 3 - holder

        # Noted by the other once a second, one number after the other.
        def told() -> tuple[bool, float]:
            found = scrape_of(server, other)
            return found["cg_rag_capacity_in_use", "request_body"] > 0, found["cg_rag_requests_in_progress",]

        wait_for(lambda: told() == (True, 2))  # that one, and the scrape
        os.kill(find_worker(server, holder)["pid"], signal.SIGKILL)
        server.wait_event("worker_ended", worker=holder)
        found = scrape_of(server, other)
    assert found["cg_rag_worker_up", str(holder)] == 0
    assert found["cg_rag_capacity_in_use", "request_body"] == 0
    assert found["cg_rag_requests_in_progress",] == 1
    assert ("process_resident_memory_bytes", str(holder)) not in found


def test_folder_of_the_counts_goes_with_the_service(start_server: StartServer) -> None:
    server = ready(start_server(TWO))
    folder = folder_of(server)
    assert len(list(folder.glob("*.worker"))) == 2
    server.signal()
    assert server.wait_exit() == 0
    assert not folder.exists()


def test_folder_that_a_killed_service_left_is_removed_by_the_next_and_a_living_ones_is_not(
    start_server: StartServer,
) -> None:
    living, killed = (ready(start_server(TWO)) for _ in range(2))
    kept, left = folder_of(living), folder_of(killed)
    pids = [find_worker(killed, number)["pid"] for number in (1, 2)]
    killed.process.kill()
    killed.wait_exit()
    wait_for(lambda: not any(map(is_alive, pids)))
    for folder in (kept, left):
        os.utime(folder, (1, 1))  # as if made long ago
    Roster.make(1).remove()
    assert not left.exists()
    assert kept.exists()
    assert scrape(living)["cg_rag_worker_up", "1"] == 1


# A full disk.

IN_A_SMALL_SHM = """import os, sys
mount = 'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"'
os.execvp("unshare", ["unshare", "-rm", "sh", "-c", mount, "sh", sys.executable, {program!r}, *sys.argv[1:]])
"""
needs_own_mounts = pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"]).returncode != 0,
    reason="needs a mount namespace of its own",
)


def in_a_small_shm(folder: Path, size: str, service: Path = PROGRAM) -> Path:
    """A program that is the service where /dev/shm has room for `size`."""
    program = folder / "small_shm.py"
    program.write_text(IN_A_SMALL_SHM.format(size=size, program=str(service)), "utf-8")
    return program


def fill_up(server: ServerProcess) -> None:
    with contextlib.suppress(OSError), open(f"/proc/{server.process.pid}/root/dev/shm/full", "ab", 0) as full:
        while full.write(bytes(4096)):
            pass


@needs_own_mounts
def test_workers_count_elsewhere_where_the_memory_file_system_has_no_room(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = ready(start_server(TWO, program=in_a_small_shm(tmp_path, "64k")))
    for number in (1, 2):
        ask(server, number, "/verify-citations", {"text": "第二十八条"})
    assert scrape(server)["cg_rag_requests_total", "", "/cg-rag/verify-citations", "200"] == 2
    assert folder_of(server).parent != Path("/dev/shm")
    server.signal()
    assert server.wait_exit() == 0


@needs_own_mounts
def test_disk_that_fills_up_ends_no_worker_and_one_started_again_counts_for_itself(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = ready(start_server(TWO, program=in_a_small_shm(tmp_path, "4m", restarting_late(tmp_path))))
    fill_up(server)
    first = {number: find_worker(server, number)["pid"] for number in (1, 2)}
    # Counts that were not there when the disk was not full yet.
    for number in (1, 2):
        ask(server, number, "/verify-citations", {"text": "第二十八条"})
        assert scrape_of(server, number)["cg_rag_request_seconds_count", "/cg-rag/verify-citations"] == number
    assert {number: find_worker(server, number)["pid"] for number in (1, 2)} == first
    os.kill(first[1], signal.SIGKILL)
    server.wait_event("worker_ended")
    fill_up(server)  # with what the dead one had standing its room is free again, and somebody else is faster
    server.wait_event("counts_not_shared", worker=1)
    wait_for(lambda: find_worker(server, 1)["pid"] != first[1])
    ask(server, 1, "/verify-citations", {"text": "第二十八条"})
    assert scrape_of(server, 1)["cg_rag_request_seconds_count", "/cg-rag/verify-citations"] == 1
    assert scrape_of(server, 2)["cg_rag_request_seconds_count", "/cg-rag/verify-citations"] == 2


COUNT_ALL_THERE_IS = """
import sys
sys.path.insert(0, sys.argv[1])
from cg_rag.core.errors import ERRORS
from cg_rag.core.metrics import Metrics
from cg_rag.core.roster import Roster
from cg_rag.core.worker import Worker
roster = Roster.make(1)
metrics = Metrics(tuple, Worker(roster=roster))
routes = ["/cg-rag/constrained-generate/stream" + str(number) for number in range(24)]
codes = [*ERRORS, "", "client_gone", *("generation_response_invalid" + str(number) for number in range(3))]
for route in routes:
    metrics.traffic(route, 1, 1)
    metrics.first_token(route, 1)
    for code in codes:
        metrics.request(route, 200, code, 1)
for number in range(24):
    metrics.stage("wait_request_body" + str(number), 1)
for upstream in ["hybrid_generation" + str(number) for number in range(5)]:
    metrics.retry(upstream)
    for number in range(24):
        metrics.upstream_error(upstream, "a_reason_of_some_words" + str(number))
    for kind in ("prompt", "completion"):
        metrics.tokens(upstream, kind, 1)
    for outcome in ("ok", "failed", "left"):
        metrics.call(upstream, outcome, 1)
for tool in ["cg_constrained_generate" + str(number) for number in range(9)]:
    for code in codes:
        metrics.tool(tool, code, 1)
for kind in ("counter", "histogram"):
    file = roster.folder / (kind + "_1.db")
    used = int.from_bytes(file.read_bytes()[:4], sys.byteorder)
    print(kind, used, file.stat().st_size)
roster.remove()
"""


def test_room_of_a_worker_is_enough_for_all_there_is_to_count() -> None:
    words = [sys.executable, "-c", COUNT_ALL_THERE_IS, str(PROGRAM.parent)]
    out = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    found = {kind: (int(used), int(room)) for kind, used, room in map(str.split, out.splitlines())}
    assert found["counter"][0] > 50_000
    assert found["histogram"][0] > 50_000
    for used, room in found.values():
        assert used < 0.8 * room, found


def test_folder_of_the_counts_that_somebody_removes_is_missed_by_no_request(
    start_server: StartServer,
) -> None:
    server = start_server(TWO)
    # In one go: a worker that writes there meanwhile would keep a folder that is emptied file by file.
    folder = folder_of(server)
    gone = folder.rename(folder.with_name(f"removed-{folder.name}"))
    shutil.rmtree(gone, ignore_errors=True)
    ready(server)  # both: /ready is the word of the one worker that answers it
    for path, body in (("/retrieve-rerank", QUESTION), ("/verify-citations", {"text": "第二十八条"})) * 4:
        assert server.post(path, body).status == 200
        assert (server.get("/metrics").status, server.get("/health").status) == (200, 200)
    os.kill(find_worker(server, 1)["pid"], signal.SIGKILL)
    server.wait_event("counts_not_shared", worker=1)
    wait_for(lambda: find_worker(server, 1)["restarts"] == 1)
    assert server.get("/metrics").status == 200
    server.signal()
    assert server.wait_exit() == 0
