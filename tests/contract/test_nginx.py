"""The delivered nginx example in front of the service, run by a real nginx."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import StartServer
from tests.fake_upstream import FakeUpstream, Go, Hang, says
from tests.generating import (
    NO_VECTORS,
    ONE_SECOND,
    RAG,
    capacity,
    read_until,
    seconds_until,
    streaming,
    wait_for,
)
from tests.patience import assert_within
from tests.server_process import ServerProcess
from tests.sse_checker import StreamChecker

EXAMPLE = Path(__file__).resolve().parents[2] / "core" / "delivery" / "files" / "nginx.conf"
FRAME = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
    server {{ listen 127.0.0.1:{port}; {example} }}
}}
"""

pytestmark = pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")


class Proxied:
    """`server` seen through nginx: what sends requests to a `ServerProcess` sends them to the proxy."""

    def __init__(self, server: ServerProcess, port: int) -> None:
        self.server = server
        self.port = port

    request = ServerProcess.request
    post = ServerProcess.post


@pytest.fixture(scope="module")
def proxy(
    start_server: StartServer, upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Proxied]:
    server = start_server(f"  generation: {{endpoint: '{upstream.url}', model: m}}\n{NO_VECTORS}")
    server.wait_ready()
    folder = tmp_path_factory.mktemp("nginx")
    # Kept until nginx has it: a port that is only looked up may be another's by then. Both may bind it, since both allow
    # that and this one never listens.
    placeholder = socket.socket()
    placeholder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    placeholder.bind(("127.0.0.1", 0))
    port = placeholder.getsockname()[1]
    example, changed = re.subn(r"127\.0\.0\.1:8864", f"127.0.0.1:{server.port}", EXAMPLE.read_text("utf-8"))
    assert changed == 1
    config = folder / "nginx.conf"
    config.write_text(FRAME.format(folder=folder, port=port, example=example), "utf-8")
    with placeholder:
        process = subprocess.Popen(["nginx", "-c", str(config), "-e", str(folder / "error.log")])
        try:
            wait_for(lambda: is_open(port))
            yield Proxied(server, port)
        finally:
            process.terminate()
            process.wait(60)


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_an_event_passes_while_the_model_is_still_writing(proxy: Proxied, upstream: FakeUpstream) -> None:
    upstream.enqueue(says(['{"indices":[2,', "1]}"], cut_after=2, cut_by=[Go()]))
    with streaming(proxy, "/rag", RAG) as response:  # type: ignore[arg-type]
        assert response.getheader("Server", "").startswith("nginx")
        # The model waits until it is told to go on: nothing of this could arrive from a buffer that is filled first.
        told = read_until(response, b"event: token")
        assert b"event: final" not in told
        upstream.go()
        assert StreamChecker(told + response.read()).final["ok"] is True


def test_a_caller_that_leaves_through_the_proxy_gives_the_slot_back(
    proxy: Proxied, upstream: FakeUpstream
) -> None:
    def leave() -> float:
        upstream.enqueue(says(['{"indices":[2,', "1]}"], cut_after=2, cut_by=[Hang()]))
        with streaming(proxy, "/rag", RAG) as response:  # type: ignore[arg-type]
            read_until(response, b"event: token")
        return seconds_until(lambda: capacity(proxy.server) == (0, 0))

    assert_within(ONE_SECOND, leave)


def test_a_body_larger_than_what_nginx_takes_by_itself_reaches_the_service(
    proxy: Proxied, upstream: FakeUpstream
) -> None:
    upstream.enqueue(says('{"indices":[1]}'))
    answer = proxy.post("/rag", RAG | {"x": "y" * 1_900_000})  # type: ignore[misc]
    assert (answer.status, answer.json["ok"], upstream.num_left) == (200, True, 0)
    refused = proxy.post("/rag", {"query": "a", "x": "y" * 5_000_000})  # type: ignore[misc]
    assert (refused.status, refused.code) == (413, "payload_too_large")
