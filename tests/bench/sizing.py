"""What a site has to provide: disk, memory and time of the whole service over indexes of several sizes.

    python tests/bench/sizing.py --queries FILE.jsonl INDEX_DIR…

Linux only. Each index is served twice, with everything on (embedder, reranker, MCP) and by words alone. Questions are asked
one after another, each for the first time. `CPU` is that of the service's process and hardly depends on what else the
machine does; the wall clock does.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from tests.bench.memory import load, memory_of, start
from tests.server_process import ServerProcess


def cpu_seconds(server: ServerProcess) -> float:
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ask_each(server: ServerProcess, queries: list[str]) -> tuple[float, float, float]:
    """Wall p50 and p95 in milliseconds, and CPU milliseconds a question."""
    began, taken = cpu_seconds(server), []
    for query in queries:
        asked = time.perf_counter()
        assert server.post("/retrieve-rerank", {"query": query}).status == 200
        taken.append((time.perf_counter() - asked) * 1000)
    cuts = statistics.quantiles(taken, n=20)
    return statistics.median(taken), cuts[18], (cpu_seconds(server) - began) * 1000 / len(queries)


def measure(index_dir: str, queries: list[str], args: argparse.Namespace) -> None:
    files = [path for path in Path(index_dir).rglob("*") if path.is_file()]
    disk = sum(path.stat().st_size for path in files if path.suffix != ".journal") / 1e6
    for label, provider, method in (("all", "onnx", "onnx"), ("words", "none", "fused")):
        server, ready = start(index_dir, provider, method, with_mcp=True)
        try:
            index = server.get("/health").json["index"]
            server.post("/retrieve-rerank", {"query": queries[0] + "？"})
            one = memory_of(server)["resident"]
            p50, p95, cpu = ask_each(server, queries)
            load(server, queries, args)
            peak = server.peak_bytes() / 1024**2
            print(
                f"| {index['num_docs']} | {index['dim']} | {label} | {disk:.0f} | {ready:.1f} | {one:.0f} | {peak:.0f} "
                f"| {p50:.0f} | {p95:.0f} | {cpu:.0f} |",
                flush=True,
            )
        finally:
            server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("index_dirs", nargs="+")
    parser.add_argument("--queries", required=True, type=Path)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    lines = args.queries.read_text("utf-8").splitlines()
    queries = [json.loads(line)["query"] for line in lines if line.strip()]
    print(f"load {os.getloadavg()[0]:.1f}, {len(queries)} questions, then {args.concurrency} at once")
    print(
        "| articles | dim | with | disk MB | ready s | MiB after one | MiB peak | p50 ms | p95 ms | CPU ms |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for index_dir in args.index_dirs:
        measure(index_dir, queries, args)


if __name__ == "__main__":
    main()
