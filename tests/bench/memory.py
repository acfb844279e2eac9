"""Resident memory of the service over one index, part by part, at rest and after questions.

    python tests/bench/memory.py --index-dir DIR --queries FILE.jsonl [--concurrency 32]

Linux only: reads /proc. `anonymous` is memory of this process alone, `files` are mapped pages that the kernel can drop.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from tests.mcp_wire import LEGACY, message
from tests.server_process import ServerProcess

MEBIBYTE = 1024 * 1024


def memory_of(server: ServerProcess) -> dict[str, float]:
    """MiB: resident, anonymous, files."""
    fields = {}
    for line in Path(f"/proc/{server.process.pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, value, *_ = line.split()
        fields[name.rstrip(":")] = int(value) / 1024
    return {
        "resident": fields["Rss"],
        "anonymous": fields["Anonymous"],
        "files": fields["Rss"] - fields["Anonymous"],
    }


def show(label: str, memory: dict[str, float]) -> None:
    print(
        f"| {label} | "
        + " | ".join(f"{memory[key]:.0f}" for key in ("resident", "anonymous", "files"))
        + " |"
    )


def start(index_dir: str, provider: str, method: str, with_mcp: bool) -> tuple[ServerProcess, float]:
    """A service that has its index, and was asked over MCP once where that is open; the seconds until it had the index."""
    folder = Path(tempfile.mkdtemp())
    config = folder / "config.yaml"
    config.write_text(
        f"cg_rag:\n  index: {{dir: {json.dumps(index_dir)}, poll_seconds: 0.5}}\n"
        f"  embedding: {{provider: {provider}}}\n  rerank: {{method: {method}}}\n"
        f"  capacity: {{wait_timeout_seconds: 120}}\n  mcp: {{enabled: {str(with_mcp).lower()}}}\n"
    )
    began = time.monotonic()
    server = ServerProcess(config)
    server.wait_ready()
    seconds = time.monotonic() - began
    if with_mcp:  # it is in memory from its first request on
        assert server.request("POST", "/mcp/", json.dumps(message("tools/list")), LEGACY).status == 200
    return server, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--index-dir", required=True)
    parser.add_argument("--queries", required=True, type=Path)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    queries = [
        json.loads(line)["query"] for line in args.queries.read_text("utf-8").splitlines() if line.strip()
    ]
    print("| state | resident MiB | anonymous | files |\n| --- | --- | --- | --- |")
    for label, index_dir, provider, method, with_mcp in (
        ("no index", "/nonexistent", "none", "fused", False),
        ("no index, with MCP", "/nonexistent", "none", "fused", True),
        ("index, words only", args.index_dir, "none", "fused", False),
        ("index and embedder", args.index_dir, "onnx", "fused", False),
        ("index, embedder and reranker", args.index_dir, "onnx", "onnx", False),
        ("all of it, with MCP", args.index_dir, "onnx", "onnx", True),
    ):
        server, seconds = start(index_dir, provider, method, with_mcp)
        try:
            time.sleep(2)
            show(f"{label}, ready after {seconds:.1f} s", memory_of(server))
            if provider == "onnx":
                server.post("/retrieve-rerank", {"query": queries[0]})
                show("after one question", memory_of(server))
                load(server, queries, args)
                show("right after the load", memory_of(server))
                time.sleep(3)
                show("at rest again", memory_of(server))
        finally:
            server.stop()


def load(server: ServerProcess, queries: list[str], args: argparse.Namespace) -> None:
    asked = [f"{query} {number}" for number in range(args.rounds) for query in queries]
    with ThreadPoolExecutor(args.concurrency) as pool:
        answers = list(
            pool.map(
                lambda query: (
                    server.request("POST", "/retrieve-rerank", {"query": query}, timeout=120).status
                ),
                asked,
            )
        )
    print(f"<!-- {len(asked)} questions, {args.concurrency} at once: {set(answers)} -->")


if __name__ == "__main__":
    main()
