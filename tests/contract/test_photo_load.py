"""Four pictures of 16 MiB: memory, the loop, and what happens when eight come at once. `make test-long`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import StartServer
from tests.fake_upstream import FakeUpstream, Hang, Reply, says, upstream_in_thread
from tests.pictures import jpeg, text_of
from tests.seeing import PICTURE, PLAIN_QUESTION
from tests.server_process import ServerProcess

pytestmark = pytest.mark.slow

INFLIGHT_BYTES = 128 << 20

# Senders and the one who asks for health are processes of their own: in one with the test they would wait for it.
SENDER = """
import http.client, sys
port, path, route = sys.argv[1:]
connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=120)
connection.request("POST", route, open(path, "rb"), {"Content-Type": "application/json", "Content-Length": SIZE})
answer = connection.getresponse()
print(answer.status, answer.read().decode())
"""
ASKER = """
import http.client, sys, time
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=120)
times = []
print("ready", flush=True)
while True:
    began = time.perf_counter()
    connection.request("GET", "/cg-rag/health")
    connection.getresponse().read()
    times.append((time.perf_counter() - began) * 1000)
    print(max(times), flush=True)
    time.sleep(0.005)
"""


@pytest.fixture(scope="module", params=["one line", "lines of 76"])
def body(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A request of about 85 MiB."""
    text = text_of(jpeg(size=16 << 20))
    if request.param != "one line":
        text = "\n".join(text[start : start + 76] for start in range(0, len(text), 76))
    path = tmp_path_factory.mktemp("bodies") / "body.json"
    path.write_text(json.dumps({"images": [{"data": text}] * 4, "question": PLAIN_QUESTION}), "ascii")
    return path


@pytest.fixture
def upstream() -> Iterator[FakeUpstream]:
    with upstream_in_thread() as upstream:
        yield upstream


@pytest.fixture
def server(start_server: StartServer, upstream: FakeUpstream) -> Iterator[ServerProcess]:
    server = start_server(
        f"  embedding: {{provider: none}}\n  vision: {{endpoint: '{upstream.url}', model: vlm}}\n"
        f"  server: {{max_inflight_body_bytes: {INFLIGHT_BYTES}}}\n  capacity: {{wait_timeout_seconds: 1}}\n",
    )
    server.wait_ready()
    upstream.enqueue(says("看到了"))
    assert server.post("/vision/answer", {"images": [PICTURE], "question": PLAIN_QUESTION}).status == 200
    yield server
    server.stop()


def send(server: ServerProcess, body: Path) -> subprocess.Popen[str]:
    program = SENDER.replace("SIZE", f"'{body.stat().st_size}'")
    command = [sys.executable, "-c", program, str(server.port), str(body), "/cg-rag/vision/answer"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def answer_of(sender: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = sender.communicate(timeout=120)
    status, _, text = output.partition(" ")
    return int(status), text


def number_of_ended(senders: list[subprocess.Popen[str]]) -> int:
    """Which of them has ended, waiting for the first that does."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for number, sender in enumerate(senders):
            if sender.poll() is not None:
                return number
        time.sleep(0.01)
    raise AssertionError("no sender has ended")


def test_a_request_of_four_large_pictures_costs_little_more_than_its_bytes_and_holds_up_nobody(
    server: ServerProcess, upstream: FakeUpstream, body: Path
) -> None:
    upstream.enqueue(says("看到了"))
    idle = server.resident_bytes()
    server.peak_bytes(restart=True)
    asker = subprocess.Popen(
        [sys.executable, "-c", ASKER, str(server.port)], stdout=subprocess.PIPE, text=True
    )
    assert asker.stdout is not None
    assert asker.stdout.readline() == "ready\n"
    status, text = answer_of(send(server, body))
    asker.terminate()
    lines = asker.communicate()[0].split()
    ratio = (server.peak_bytes() - idle) / body.stat().st_size
    worst = max(map(float, lines[:-1]))
    print(f"\npeak {ratio:.3f} of the body above idle, health at worst {worst:.0f} ms of {len(lines)}")
    assert (status, json.loads(text)["answer"]) == (200, "看到了")
    assert len(upstream.requests[-1].body) == int(upstream.requests[-1].headers["content-length"])
    assert ratio <= 1.3
    assert len(lines) > 10
    assert worst < 100


def test_of_eight_at_once_as_many_are_read_as_there_is_room_for_and_the_rest_are_told_so(
    server: ServerProcess, upstream: FakeUpstream, body: Path
) -> None:
    upstream.enqueue(*[Reply([Hang()])] * 8)
    idle = server.resident_bytes()
    server.peak_bytes(restart=True)
    senders = [send(server, body) for _ in range(8)]
    try:
        # Whoever is let in hangs at the model; the others wait for a second, are refused, and see it.
        refused = [answer_of(senders.pop(number_of_ended(senders))) for _ in range(7)]
        used = server.get("/health").json["capacity"]["request_body"]
    finally:
        for sender in senders:
            sender.kill()
            sender.communicate()
    assert used["in_use"] == body.stat().st_size <= used["max"]
    for status, text in refused:
        assert status == 429
        assert json.loads(text)["error"]["details"]["resource"] == "request_body"
    peak = server.peak_bytes() - idle
    print(f"\neight at once: peak {peak / 2**20:.0f} MiB above idle, {len(refused)} refused")
    assert peak <= INFLIGHT_BYTES * 1.3


def test_what_large_requests_leave_behind_is_given_back(
    server: ServerProcess, upstream: FakeUpstream, body: Path
) -> None:
    idle = server.resident_bytes()
    for _ in range(3):
        upstream.enqueue(says("看到了"))
        assert answer_of(send(server, body))[0] == 200
    deadline = time.monotonic() + 10
    while server.resident_bytes() - idle > 16 << 20:
        assert time.monotonic() < deadline, server.resident_bytes() - idle
        server.get("/health")
