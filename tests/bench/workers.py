"""Memory of `serve --workers N`, and whether the workers share the index.

    python tests/bench/workers.py --index-dir DIR --small-index-dir DIR --queries FILE.jsonl [--workers 3]

Linux only: reads /proc/PID/smaps_rollup. PSS counts a page that n processes share as 1/n for each, so the sum over all
processes is the memory that the service takes. Every worker answers each question before it is measured. If what one
more worker adds is the same over a large index and over a small one, the index is shared.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from tests.server_process import ServerProcess

FIELDS = ("Pss", "Pss_Anon", "Pss_File")


def processes_of(server: ServerProcess) -> list[int]:
    pid = server.process.pid
    return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def memory_of(pids: Sequence[int]) -> dict[str, float]:
    """MiB, summed over the processes."""
    total = dict.fromkeys(FIELDS, 0.0)
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
            name, value, *_ = line.split()
            if name.rstrip(":") in total:
                total[name.rstrip(":")] += int(value) / 1024
    return total


def ask_every_worker(server: ServerProcess, count: int, queries: Sequence[str]) -> None:
    """A connection stays with its worker: one to each, all questions on it."""
    asked: set[int] = set()
    while len(asked) < count:
        with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)) as connection:
            connection.request("GET", "/cg-rag/health")
            number = json.loads(connection.getresponse().read())["worker"]["number"]
            if number in asked:
                continue
            asked.add(number)
            for query in queries:
                body = json.dumps({"query": query}).encode()
                headers = {"Content-Type": "application/json"}
                connection.request("POST", "/cg-rag/retrieve-rerank", body, headers)
                response = connection.getresponse()
                if response.status != 200:
                    raise SystemExit(f"{response.status} {response.read()[:200]!r}")
                response.read()


def measure(index_dir: Path, workers: int, queries: Sequence[str], method: str) -> dict[str, float]:
    config = Path(tempfile.mkdtemp()) / "config.yaml"
    config.write_text(
        f"cg_rag:\n  index: {{dir: {json.dumps(str(index_dir.resolve()))}}}\n"
        f"  server: {{workers: {workers}}}\n  rerank: {{method: {method}}}\n"
    )
    server = ServerProcess(config)
    try:
        for _ in range(workers):
            server.wait_event("index_loaded", timeout=300)
        ask_every_worker(server, workers, queries)
        return memory_of(processes_of(server))
    finally:
        server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--index-dir", required=True, type=Path)
    parser.add_argument("--small-index-dir", required=True, type=Path)
    parser.add_argument("--queries", required=True, type=Path)
    parser.add_argument("--num-queries", type=int, default=20)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--rerank", default="onnx", choices=["onnx", "fused"])
    args = parser.parse_args()
    lines = args.queries.read_text("utf-8").splitlines()[: args.num_queries]
    queries = [json.loads(line)["query"] for line in lines]
    print(
        "| index | workers | PSS MiB | anonymous | files | one more adds |\n| --- | --- | --- | --- | --- | --- |"
    )
    for label, index_dir in (("large", args.index_dir), ("small", args.small_index_dir)):
        before = 0.0
        for workers in range(1, args.workers + 1):
            found = measure(index_dir, workers, queries, args.rerank)
            more = f"{found['Pss'] - before:.0f}" if workers > 1 else "—"
            before = found["Pss"]
            cells = " | ".join(f"{found[field]:.0f}" for field in FIELDS)
            print(f"| {label} | {workers} | {cells} | {more} |", flush=True)


if __name__ == "__main__":
    main()
