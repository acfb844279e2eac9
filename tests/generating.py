"""What tests of text generation over sockets have in common: requests, slots, streams read as they come."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.server_process import ServerProcess

DOCS = [
    {"law_name": "GB1样例脚手架规范", "article_number": "6.0.5(1)", "contents": "搭设完毕应组织验收。"},
    {"law_name": "样例手册", "article_number": "", "contents": "动火须办证。"},
]
GENERATE: dict[str, Any] = {"query": "脚手架怎么验收？", "retrieval_docs": DOCS}
RAG: dict[str, Any] = {"query": "脚手架搭设后怎么验收", "topk": 2}
ROUTES = [("/constrained-generate", GENERATE), ("/rag", RAG)]
NO_VECTORS = "  embedding: {provider: none}\n"
# What a departure may take, as `wait_for` tells it.
ONE_SECOND = 1.0
# A look that takes longer has waited for the machine.
LONGEST_LOOK_SECONDS = 0.1


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> float:
    """How long it took: the looks in vain and the pauses behind them, without what either took beyond
    LONGEST_LOOK_SECONDS. A process that stands still for a moment, ours or the service, so adds next to nothing;
    a service that answers each look, and is not there yet, adds all of it. `seconds` are those of the wall."""
    started = time.monotonic()
    taken = 0.0
    while True:
        began = time.monotonic()
        if condition():
            return taken
        assert time.monotonic() - started < seconds, "it never came about"
        time.sleep(0.01)
        taken += min(time.monotonic() - began, LONGEST_LOOK_SECONDS)


def seconds_until(condition: Callable[[], bool]) -> float:
    """How long it took by the wall, for `assert_within`, which forgives a machine that stood still. `wait_for` does not
    count a service that stood still either."""
    started = time.monotonic()
    wait_for(condition)
    return time.monotonic() - started


def capacity(server: ServerProcess) -> tuple[int, int]:
    numbers = server.get("/health").json["capacity"]
    return numbers["retrieval"]["in_use"], numbers["generation"]["in_use"]


def without_times(payload: Any) -> Any:
    """An answer without what is of this one request: its id, its times, and whether the cache had it."""
    own = {"request_id", "runtime_stats", "cache"}
    if isinstance(payload, dict):
        return {key: without_times(value) for key, value in payload.items() if key not in own}
    return payload


@contextmanager
def streaming(
    server: ServerProcess, path: str, body: Any, headers: Mapping[str, str] | None = None
) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        sent = {"Content-Type": "application/json", **(headers or {})}
        connection.request("POST", f"/cg-rag{path}/stream", json.dumps(body), sent)
        yield connection.getresponse()
    finally:
        connection.close()


def read_until(response: http.client.HTTPResponse, words: bytes) -> bytes:
    told = b""
    while words not in told:
        piece = response.read1()
        assert piece, told
        told += piece
    return told
