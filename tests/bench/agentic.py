"""Measures what orchestrating an agentic request costs the service; prints one table.

    python tests/bench/agentic.py --index-dir DIR [--requests 40] [--questions 3] [--chars-per-token 2]

Two processes: the service over the index DIR, and this one as the model, which answers at once, and as the caller, who
reads the stream. A request has the inventory, three rounds of --questions questions that nobody asked before, and a report:
five calls of the model. The embedding model is replaced by vectors made beforehand and nothing is reranked; searching
itself (words, vectors, names, reading articles) is in. Printed is the CPU time of the service's process per request,
all threads, and the same without retrieval: questions that the cache knows.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

# In place of this folder, whose mcp.py would hide the package.
sys.path.remove(str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.agentic_scenarios import PICTURE, REVIEW, SEEN, report
from tests.fake_upstream import FakeUpstream, Script, says

SERVE = "--serve"
TICK = os.sysconf("SC_CLK_TCK")
WORDS = [
    "脚手架",
    "立杆",
    "积水",
    "垫板",
    "连墙件",
    "剪刀撑",
    "临边",
    "洞口",
    "护栏",
    "安全网",
    "配电箱",
    "电缆",
    "漏电",
    "塔吊",
    "吊钩",
    "基坑",
    "支护",
    "模板",
    "支架",
    "动火",
    "气瓶",
    "吊篮",
    "限位",
    "警戒",
]


class NoModel:
    """The index's embedder with vectors that cost nothing."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self._vector = np.random.default_rng(1).standard_normal(real.dim).astype(np.float32)
        self._vector /= np.linalg.norm(self._vector)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def embed_query(self, text: str, cancel: object = None) -> Any:
        return self._vector


def serve(config: str) -> int:
    from cg_rag.core.config import load
    from cg_rag.core.log import setup_logging
    from cg_rag.core.serving import run_app
    from cg_rag.modes.http_app import build_app
    from cg_rag.modes.services import make_embedder, make_services

    settings = load(Path(config), os.environ, flags={"server.port": 0}).settings
    setup_logging("WARNING", "json")
    embedder = make_embedder(settings)
    services = make_services(settings, embedder=NoModel(embedder))  # type: ignore[arg-type]
    return run_app(lambda: build_app(services, "0"), settings.server, "0", lambda url: print(url, flush=True))


def cpu_ms(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / TICK


def turns(number: int, questions: int, size: int) -> list[Script]:
    def said(text: str) -> Script:
        return says([text[place : place + size] for place in range(0, len(text), size)])

    def plan(round_number: int) -> str:
        places = [(number * 7 + round_number * 3 + question) % len(WORDS) for question in range(questions)]
        return "".join(f"- {WORDS[place]}{WORDS[place - 5]} 第{number}处 要求\n" for place in places)

    basis = "\n".join(f"{n}. 应当按条文的要求设置防护并组织验收 [cite^{n}]。" for n in range(1, 5))
    return [
        said("一、人员与防护\n未见\n" * 6),
        said(f"{SEEN}[SEARCH_PLAN]\n{plan(0)}"),
        said(f"[EVIDENCE_REVIEW]\n证据 [cite^1] 对应积水，其余未查到。\n[SEARCH_PLAN]\n{plan(1)}"),
        said(f"[EVIDENCE_REVIEW]\n证据 [cite^2] 对应护栏，其余未查到。\n[SEARCH_PLAN]\n{plan(2)}"),
        said(f"{REVIEW}[ANSWER]\n{report(basis)}\n"),
    ]


async def ask(session: aiohttp.ClientSession, url: str) -> bytes:
    body = {"images": [PICTURE], "max_search_rounds": 3, "topk": 12}
    async with session.post(f"{url}/vision/agentic/stream", json=body) as response:
        return await response.read()


async def measure(
    args: argparse.Namespace,
    session: aiohttp.ClientSession,
    url: str,
    pid: int,
    upstream: FakeUpstream,
    numbers: list[int],
) -> tuple[float, float]:
    """CPU of the service and wall time per request, ms."""
    for number in numbers:
        upstream.enqueue(*turns(number, args.questions, args.chars_per_token))
    walls = []
    before = cpu_ms(pid)
    for _ in numbers:
        started = time.perf_counter()
        told = await ask(session, url)
        walls.append((time.perf_counter() - started) * 1000)
        assert b"event: final" in told, told[-500:].decode()
        assert told.count('轮法规检索","status":"done","summary"'.encode()) >= 3
    return (cpu_ms(pid) - before) / len(numbers), statistics.median(walls)


async def run(args: argparse.Namespace) -> None:
    async with FakeUpstream() as upstream:
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
            config.write(
                f"cg_rag:\n  index: {{dir: {args.index_dir}, poll_seconds: 0}}\n  rerank: {{method: fused}}\n"
                f"  vision: {{endpoint: '{upstream.url}', model: vlm}}\n"
            )
            config.flush()
            command = [sys.executable, __file__, SERVE, config.name]
            server = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
            assert server.stdout is not None
            url = (await server.stdout.readline()).decode().strip()
            try:
                await compare(args, url, server.pid, upstream)
            finally:
                server.terminate()
                await server.wait()


async def compare(args: argparse.Namespace, url: str, pid: int, upstream: FakeUpstream) -> None:
    base = url.rstrip("/")
    async with aiohttp.ClientSession() as session:
        while (health := await (await session.get(f"{base}/health")).json())["index"]["state"] == "loading":
            await asyncio.sleep(0.1)
        index = health["index"]
        print(f"{index['num_docs']} articles, dim {index['dim']}, {health['profile']['retrieval_method']}")
        await measure(args, session, base, pid, upstream, list(range(5)))
        print(f"{'questions':<14}{'CPU ms':>8}{'wall ms':>9}   per request, {args.requests} requests")
        fresh = list(range(1000, 1000 + args.requests))
        for name, numbers in (("new", fresh), ("in the cache", fresh)):
            cpu, wall = await measure(args, session, base, pid, upstream, numbers)
            print(f"{name:<14}{cpu:>8.1f}{wall:>9.1f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--index-dir", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--questions", type=int, default=3, choices=(1, 2, 3))
    parser.add_argument("--chars-per-token", type=int, default=2)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    if SERVE in sys.argv:
        sys.exit(serve(sys.argv[-1]))
    main()
