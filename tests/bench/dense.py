"""Measures the dense search beside other engines over real vectors; prints two tables and what was lost.

    OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 python tests/bench/dense.py --vectors FILE.npy --queries FILE.npy
    OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 python tests/bench/dense.py --index-dir DIR --questions FILE.jsonl

--vectors    float32 [N, D], each of length 1; the first --rows of them (24000) are searched
--queries    float32 [Q, D], at least 400; recall is against all of them, times are medians over 400
--index-dir  instead of --vectors: the int16 vectors of an index, as float32. They are what the index keeps, so
             R@10 and R@50 then show what the scan loses and not what int16 loses (0.0001 of R@50)
--questions  instead of --queries: JSONL with `query`, embedded by the model that comes with the package
--memory     NAME: print the resident MB of one engine, before and after; the tables call this for each

Peers are shown where they are installed: faiss-cpu, usearch, sqlite-vec (and pysqlite3-binary where Python
cannot load extensions). Times are CPU time of the process,
all engines take turns. "warm" is twenty searches one after the other; "evicted" walks through 64 MB of other
memory before each search, as the embedding model does between two questions.
"batch of 16" is the time per query of one call with 16 queries, "16 threads" that of 16 threads which ask one
question after the other: ours gathers what waits, so such threads get batches of 1 and 15 in turn.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cg_rag.index.dense import DenseSearcher, MicroBatcher
from cg_rag.index.embedder import OnnxEmbedder
from cg_rag.index.models import E5_SMALL_ZH
from cg_rag.index.onnx import load_runtime
from cg_rag.index.store import IndexReader
from cg_rag.index.vectors import VectorArrays, quantise

Floats = NDArray[np.float32]
Search = Callable[[Floats, int], Any]  # ([Q, D], k) -> int64 [Q, k]

NUM_TIMED = 400
ROUND = 20
NUM_TOGETHER = 16
EVICTED_BYTES = 64 << 20


class FullFile:
    """full.i16 as the service has it: in no memory, one small read for each row."""

    def __init__(self, full: NDArray[np.int16], folder: Path) -> None:
        path = folder / "full.i16"
        full.tofile(path)
        self._file = path.open("rb", buffering=0)
        self._dim = full.shape[1]

    def __call__(self, rows: NDArray[np.int64]) -> NDArray[np.int16]:
        file, size = self._file.fileno(), self._dim * 2
        parts = [os.pread(file, size, offset) for offset in (rows * size).tolist()]
        return np.frombuffer(b"".join(parts), np.int16).reshape(len(rows), self._dim)


def open_ours(vectors: Floats, kernel: Any, folder: Path) -> Search:
    built = quantise(vectors, vectors.shape[1])
    assert built.full is not None
    built.scan.tofile(folder / "scan.i8")
    scan = np.memmap(folder / "scan.i8", np.int8, "r", shape=built.scan.shape)
    arrays = VectorArrays(built.mean, scan, built.scales, built.full_scales)
    searcher = DenseSearcher(arrays, FullFile(built.full, folder), kernel)
    batcher = MicroBatcher(searcher)
    ranges = [(0, len(vectors))]

    def search(queries: Floats, k: int) -> list[NDArray[np.int64]]:
        if len(queries) == 1:
            return [batcher.search(queries[0], ranges, k)[0]]
        return [rows for rows, _ in searcher.search_many(queries, [(ranges, k)] * len(queries))]

    return search


def open_faiss(vectors: Floats, is_flat: bool) -> Search:
    faiss = importlib.import_module("faiss")
    faiss.omp_set_num_threads(1)
    dim, product = vectors.shape[1], faiss.METRIC_INNER_PRODUCT
    if is_flat:
        index = faiss.IndexFlatIP(dim)
    else:
        index = faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_8bit, product)
    index.train(vectors)
    index.add(vectors)
    return lambda queries, k: index.search(queries, k)[1]


def open_usearch(vectors: Floats) -> Search:
    usearch = importlib.import_module("usearch.index")
    vectors = vectors.copy()
    return lambda query, k: (
        usearch.search(vectors, query, k, usearch.MetricKind.IP, exact=True, threads=1).keys
    )


def open_sqlite_vec(vectors: Floats) -> Search:
    extension = importlib.import_module("sqlite_vec")
    if not hasattr(sqlite3.Connection, "enable_load_extension"):  # left out of some builds of Python
        base = importlib.import_module("pysqlite3").connect(":memory:", check_same_thread=False)
    else:
        base = sqlite3.connect(":memory:", check_same_thread=False)
    base.enable_load_extension(True)
    extension.load(base)
    base.execute(f"CREATE VIRTUAL TABLE v USING vec0(x float[{vectors.shape[1]}] distance_metric=cosine)")
    rows = ((row, vector.tobytes()) for row, vector in enumerate(vectors))
    base.executemany("INSERT INTO v (rowid, x) VALUES (?, ?)", rows)
    lock = threading.Lock()

    def search(query: Floats, k: int) -> NDArray[np.int64]:
        with lock:
            found = base.execute(
                "SELECT rowid FROM v WHERE x MATCH ? AND k = ? ORDER BY distance", (query.tobytes(), k)
            )
            return np.array([row for (row,) in found], np.int64)

    return lambda queries, k: [search(query, k) for query in queries]


ENGINES: dict[str, Callable[[Floats, Path], Search]] = {
    "numpy int8 + int16": lambda vectors, folder: open_ours(vectors, "numpy", folder),
    "onnx int8 + int16": lambda vectors, folder: open_ours(vectors, "onnx", folder),
    "faiss IndexFlatIP": lambda vectors, folder: open_faiss(vectors, is_flat=True),
    "faiss SQ8": lambda vectors, folder: open_faiss(vectors, is_flat=False),
    "usearch exact f32": lambda vectors, folder: open_usearch(vectors),
    "sqlite-vec f32": lambda vectors, folder: open_sqlite_vec(vectors),
}


def open_engines(vectors: Floats, folder: Path) -> Iterator[tuple[str, Search]]:
    for place, (name, opener) in enumerate(ENGINES.items()):
        home = folder / str(place)
        home.mkdir()
        try:
            yield name, opener(vectors, home)
        except ImportError:
            print(f"{name}: not installed", file=sys.stderr)


def timed(action: Callable[[], object]) -> float:
    """Milliseconds of CPU time."""
    started = time.process_time()
    action()
    return (time.process_time() - started) * 1000


def measure_alone(
    engines: dict[str, Search], queries: Floats, between: Callable[[], object]
) -> dict[str, float]:
    """Median ms per search, k = 10; engines take turns after every 20 queries."""
    times: dict[str, list[float]] = {name: [] for name in engines}
    for start in range(0, NUM_TIMED, ROUND):
        for name, search in engines.items():
            search(queries[start : start + 1], 10)
            for place in range(start, start + ROUND):
                one = queries[place : place + 1]
                between()
                times[name].append(timed(partial(search, one, 10)))
    return {name: float(np.median(values)) for name, values in times.items()}


def measure_batch(engines: dict[str, Search], queries: Floats) -> dict[str, float]:
    """Median ms per query of calls with 16 queries."""
    times: dict[str, list[float]] = {name: [] for name in engines}
    for start in range(0, NUM_TIMED, NUM_TOGETHER):
        batch = queries[start : start + NUM_TOGETHER]
        for name, search in engines.items():
            search(batch, 10)
            times[name].append(timed(partial(search, batch, 10)) / len(batch))
    return {name: float(np.median(values)) for name, values in times.items()}


def measure_threads(engines: dict[str, Search], queries: Floats) -> dict[str, float]:
    """ms of CPU time per query with 16 threads, the best of five rounds that take turns."""
    best: dict[str, float] = {}
    asked = [queries[place : place + 1] for place in range(NUM_TIMED)]
    with ThreadPoolExecutor(NUM_TOGETHER) as pool:
        for _ in range(5):
            for name, search in engines.items():
                spent = timed(lambda search=search: list(pool.map(lambda one: search(one, 10), asked)))
                best[name] = min(spent / len(asked), best.get(name, spent))
    return best


def measure_recall(search: Search, queries: Floats, vectors: Floats, k: int) -> float:
    """Share of the exact k best that are found; a row within 1e-7 of the k-th counts as one of them."""
    hits = 0.0
    for start in range(0, len(queries), 64):
        block = queries[start : start + 64].astype(np.float64)
        cosines = block @ vectors.T.astype(np.float64)
        bounds = np.partition(cosines, -k, axis=1)[:, -k] - 1e-7
        for query, exact, bound in zip(queries[start : start + 64], cosines, bounds, strict=True):
            hits += float(np.mean(exact[search(query[None], k)[0]] >= bound))
    return hits / len(queries)


def resident_mb() -> float:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


def print_memory(name: str, vectors: Floats, queries: Floats, folder: Path) -> None:
    """The input stays in a file: what is left afterwards is the engine's own."""
    if name.startswith("onnx"):
        load_runtime()  # the embedding model has loaded it already
    before = resident_mb()
    search = ENGINES[name](vectors, folder)
    for query in queries[:20]:
        search(query[None], 10)
    print(f"{resident_mb() - before:.1f}")


def ask_memory(name: str, vectors: Path, queries: Path, rows: int) -> float | None:
    """Resident MB of one engine in a process of its own; None where that fails."""
    command = [sys.executable, __file__, "--memory", name, "--rows", str(rows)]
    command += ["--vectors", str(vectors), "--queries", str(queries)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return float(done.stdout) if done.stdout.strip() else None


def read_index(index_dir: Path) -> Floats:
    """float32 [N, D], each of length 1: the vectors that an index keeps."""
    reader = IndexReader.open(index_dir)
    if reader.vectors is None:
        raise SystemExit(f"{index_dir} holds no vectors")
    full = reader.read_full(np.arange(reader.num_docs))
    vectors = full * np.asarray(reader.vectors.full_scales)[:, None]
    found: Floats = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return found


def read_questions(path: Path) -> list[str]:
    return [json.loads(line)["query"] for line in path.read_text("utf-8").splitlines() if line.strip()]


def embed_questions(texts: Sequence[str]) -> Floats:
    embedder = OnnxEmbedder(E5_SMALL_ZH)
    return np.stack([embedder.embed_query(text) for text in texts])


@dataclass(frozen=True)
class Measured:
    """`times`: column -> engine -> ms of CPU time per query. `recall`: engine -> (R@10, R@50). `memory`: MB."""

    num_rows: int
    dim: int
    num_queries: int
    times: dict[str, dict[str, float]]
    recall: dict[str, tuple[float, float]]
    memory: dict[str, float | None]


def measure(vectors_file: Path, queries_file: Path, rows: int, folder: Path) -> Measured:
    vectors: Floats = np.load(vectors_file)[:rows]
    queries: Floats = np.load(queries_file)
    engines = dict(open_engines(vectors, folder))
    walk = np.zeros(EVICTED_BYTES, np.uint8)
    times = {
        "warm": measure_alone(engines, queries, lambda: None),
        "evicted": measure_alone(engines, queries, walk.sum),
        "batch of 16": measure_batch(engines, queries),
        "16 threads": measure_threads(engines, queries),
    }
    recall = {
        name: (measure_recall(search, queries, vectors, 10), measure_recall(search, queries, vectors, 50))
        for name, search in engines.items()
    }
    memory = {name: ask_memory(name, vectors_file, queries_file, rows) for name in engines}
    return Measured(*vectors.shape, len(queries), times, recall, memory)


def print_tables(found: Measured) -> None:
    titles, rule = " | ".join(found.times), " | ".join(["---"] * len(found.times))
    engines = list(found.recall)
    print(f"{found.num_rows} x {found.dim}, {found.num_queries} queries, k = 10, ms of CPU time per query\n")
    print(f"| engine | {titles} | R@10 | R@50 | MB |\n| --- | {rule} | --- | --- | --- |")
    for name in engines:
        times = [f"{column[name]:.2f}" for column in found.times.values()]
        recalls = [f"{value:.4f}" for value in found.recall[name]]
        memory = found.memory[name]
        print(f"| {' | '.join([name, *times, *recalls, '—' if memory is None else f'{memory:.1f}'])} |")
    print("\ntimes as fast as each peer (above 1: ours is faster)\n")
    print(f"| ours | peer | {titles} |\n| --- | --- | {rule} |")
    for own in engines[:2]:
        for peer in engines[2:]:
            ratios = [f"{column[peer] / column[own]:.2f}" for column in found.times.values()]
            print(f"| {own} | {peer} | {' | '.join(ratios)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    articles = parser.add_mutually_exclusive_group(required=True)
    articles.add_argument("--vectors", type=Path)
    articles.add_argument("--index-dir", type=Path)
    questions = parser.add_mutually_exclusive_group(required=True)
    questions.add_argument("--queries", type=Path)
    questions.add_argument("--questions", type=Path)
    parser.add_argument("--rows", type=int, default=24000)
    parser.add_argument("--memory")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        if args.memory:
            print_memory(args.memory, np.load(args.vectors)[: args.rows], np.load(args.queries), folder)
            return
        if args.index_dir:
            args.vectors = folder / "vectors.npy"
            np.save(args.vectors, read_index(args.index_dir))
        if args.questions:
            args.queries = folder / "queries.npy"
            np.save(args.queries, embed_questions(read_questions(args.questions)))
        print_tables(measure(args.vectors, args.queries, args.rows, folder))


if __name__ == "__main__":
    main()
