"""The MCP endpoint beside plain HTTP, in one process each: time of a call, large arguments and results, many callers.

    python tests/bench/mcp.py [--calls 2000] [--at-once 3000]

Needs no data. Prints one table. Linux only: reads /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from cg_rag.index.build import SourceSpec, build_index
from tests.conftest import ARTICLES, write_jsonl
from tests.mcp_wire import LEGACY, PROGRESS, call_at_once, message, open_call, tool_call
from tests.server_process import ServerProcess

MEBIBYTE = 1024 * 1024
PROGRAM = Path(__file__).resolve().parent.parent / "mcp_process.py"
QUESTION = {"query": "脚手架地基积水", "topk": 5}
TIDY_SECONDS = (
    4.0  # some looks of the watcher, which gives memory back between two of them (index.poll_seconds: 0.5)
)


def start(settings: str, program: Path | None = None) -> ServerProcess:
    folder = Path(tempfile.mkdtemp())
    index_dir = folder / "index"
    source = write_jsonl(folder / "articles.jsonl", ARTICLES)
    build_index([SourceSpec(source, "articles", ())], index_dir, None)
    config = folder / "config.yaml"
    config.write_text(
        f"cg_rag:\n  index: {{dir: {json.dumps(str(index_dir))}, poll_seconds: 0.5}}\n"
        f"  embedding: {{provider: none}}\n  generation: {{provider: local}}\n{settings}"
    )
    return ServerProcess(config) if program is None else ServerProcess(config, program=program)


class Caller:
    """One connection that is kept."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def post(self, path: str, body: Any) -> float:
        """Milliseconds until the whole answer was there."""
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        began = time.perf_counter()
        self._connection.request(
            "POST", f"/cg-rag{path}", sent, LEGACY | {"Content-Type": "application/json"}
        )
        response = self._connection.getresponse()
        received = response.read()
        took = (time.perf_counter() - began) * 1000
        assert response.status == 200, received[:500]
        return took


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def row(what: str, found: str) -> None:
    print(f"| {what} | {found} |", flush=True)


def measure_calls(num_calls: int) -> None:
    server = start("")
    try:
        server.wait_ready()
        caller = Caller(server.port)
        mcp_call = tool_call("cg_retrieve_rerank", QUESTION)
        for _ in range(50):
            caller.post("/retrieve-rerank", QUESTION)
            caller.post("/mcp/", mcp_call)
        plain, wrapped = [], []
        for _ in range(num_calls):
            plain.append(caller.post("/retrieve-rerank", QUESTION))
            wrapped.append(caller.post("/mcp/", mcp_call))
        for name, values in (("HTTP /retrieve-rerank", plain), ("MCP cg_retrieve_rerank", wrapped)):
            row(
                f"{name}，缓存命中，p50 / p95",
                f"{quantile(values, 0.5):.2f} / {quantile(values, 0.95):.2f} ms",
            )
    finally:
        server.stop()


def measure_start(settings: str, name: str) -> None:
    began = time.monotonic()
    server = start(settings)
    try:
        server.wait_ready()
        ready = time.monotonic() - began
        time.sleep(3)
        row(f"{name}，启动到就绪；静置内存", f"{ready:.2f} s；{server.resident_bytes() / MEBIBYTE:.0f} MiB")
        if "false" in settings:
            return
        caller = Caller(server.port)
        took = [caller.post("/mcp/", message("tools/list")) for _ in range(2)]
        time.sleep(3)
        row(
            "首个 MCP 请求（导入 SDK）；第二个；其后静置内存",
            f"{took[0] / 1000:.2f} s；{took[1]:.1f} ms；{server.resident_bytes() / MEBIBYTE:.0f} MiB",
        )
    finally:
        server.stop()


def _send(port: int, body: bytes, times: int, done: Callable[[list[float]], None]) -> None:
    caller = Caller(port)
    done([caller.post("/mcp/", body) for _ in range(times)])


def measure_large(process: ServerProcess) -> None:
    body = json.dumps(tool_call("test_pictures", {"images": [{"data": "A" * 20 * MEBIBYTE}]})).encode()
    results: multiprocessing.Queue[list[float]] = multiprocessing.Queue()
    # In a process of its own: in a thread it would hold up the caller that measures.
    sender = multiprocessing.Process(target=_send, args=(process.port, body, 10, results.put))
    caller = Caller(process.port)
    quiet = [caller.post("/mcp/", message("ping")) for _ in range(500)]
    process.get("/busiest")
    sender.start()
    waits = []
    while sender.is_alive() and results.empty():
        waits.append(caller.post("/mcp/", message("ping")))
    sent = results.get(timeout=60)
    sender.join()
    row("20 MiB 的参数，一次调用，p50", f"{quantile(sent, 0.5):.0f} ms")
    held = process.get("/busiest").json["ms"]
    row("其间事件循环一次被占住最久（CPU 时间）", f"{held:.1f} ms")
    row(
        f"其间另一客户端的 ping，最长（共 {len(waits)} 次；平时 p50 {quantile(quiet, 0.5):.2f} ms）",
        f"{max(waits):.1f} ms",
    )
    for name, characters in (("1 MiB", MEBIBYTE // 3), ("8 MiB", 8 * MEBIBYTE // 3)):
        took = [caller.post("/mcp/", tool_call("test_big", {"characters": characters})) for _ in range(10)]
        row(f"{name} 的结果（文本与结构各一份），p50", f"{quantile(took, 0.5):.0f} ms")


def measure_many(process: ServerProcess, num_calls: int, path: str, goes: Sequence[int]) -> None:
    def call(count: int, seconds: float) -> None:
        bodies = [tool_call("test_slow", {"seconds": seconds})] * count
        assert set(asyncio.run(call_at_once(process.port, bodies, path))) == {b"HTTP/1.1 200 OK"}

    call(100, 0)
    process.get("/state")
    before = process.resident_bytes()
    for at_once in goes:
        began = time.monotonic()
        for _ in range(num_calls // at_once):
            call(at_once, 0.5)
        took = time.monotonic() - began
        wait_for_state(process, 10)
        grown = (process.resident_bytes() - before) / MEBIBYTE
        row(
            f"{path}：{num_calls} 次调用，{at_once} 个同时（各 0.5 s）：用时；内存比开始时多",
            f"{took:.1f} s；{grown:+.1f} MiB",
        )


def measure_service(num_calls: int, path: str, body: dict[str, Any]) -> None:
    """As measure_many, of the service itself: searches, their answers, its log, and what it gives back by itself."""
    process = start("")
    try:
        process.wait_ready()

        def call(count: int) -> float:
            answers = asyncio.run(call_at_once(process.port, [body] * count, path))
            assert set(answers) == {b"HTTP/1.1 200 OK"}
            time.sleep(TIDY_SECONDS)
            return process.resident_bytes() / MEBIBYTE

        before = call(100)
        grown = [call(num_calls) - before for _ in range(3)]
        row(
            f"服务本身，{path}：{num_calls} 次检索同时，三轮，各 {TIDY_SECONDS:.0f} s 之后；内存比开始时多",
            "、".join(f"{one:+.1f}" for one in grown) + " MiB",
        )
    finally:
        process.stop()


def wait_for_state(process: ServerProcess, timeout: float, **wanted: int) -> None:
    deadline = time.monotonic() + timeout
    wanted = {"slots": 0, "body_bytes": 0, "calls": 0} | wanted
    while not wanted.items() <= process.get("/state").json.items():
        assert time.monotonic() < deadline, process.get("/state").json
        time.sleep(0.01)


def measure_dropped(process: ServerProcess, num_clients: int) -> None:
    files = process.num_open_files()
    first = len(process.lines)
    slow = {"seconds": 60, "stages": 1}
    connections = [open_call(process, tool_call("test_slow", slow, 1, PROGRESS)) for _ in range(num_clients)]
    while process.get("/state").json["slots"] < num_clients:
        time.sleep(0.01)
    began = time.monotonic()
    for connection in connections:
        connection.close()
    wait_for_state(process, 10)
    took = time.monotonic() - began
    lines = process.lines[first:]
    told = sum(line.get("code") == "client_gone" for line in lines)
    traces = sum("traceback" in line for line in lines)
    row(
        f"{num_clients} 个客户端同时断开：到容量全部归还",
        f"{took:.2f} s，日志 {told} 行，traceback {traces}，多余的描述符 {max(0, process.num_open_files() - files)}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--at-once", type=int, default=3000)
    args = parser.parse_args()
    print(f"<!-- {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]} -->")
    print("| 项目 | 实测 |\n| --- | --- |")
    measure_start("  mcp: {enabled: false}\n", "不开 MCP")
    measure_start("", "开 MCP")
    measure_calls(args.calls)
    process = start("", PROGRAM)
    try:
        measure_large(process)
        measure_dropped(process, 500)
    finally:
        process.stop()
    for path in ("/mcp/", "/plain"):
        process = start("", PROGRAM)
        try:
            measure_many(process, args.at_once, path, (100, 1000, args.at_once, args.at_once))
        finally:
            process.stop()
    measure_service(args.at_once, "/mcp/", tool_call("cg_retrieve_rerank", QUESTION))
    measure_service(args.at_once, "/retrieve-rerank", QUESTION)


if __name__ == "__main__":
    main()
