"""Vectors in Milvus beside those of this process, over one index: same answers? how fast? how large?

    python tests/bench/milvus.py --index-dir DIR --questions FILE.jsonl [--uri URI] [--num 200] [--kinds flat,hnsw,ivf_sq8]

--uri   http://host:port of a server; without it milvus-lite in a folder of its own (pip install pymilvus milvus-lite),
        whose size and memory are shown too. Of the collections made here nothing is left.

Each question is embedded once, beforehand. "same top 10" is the share of questions whose ten best articles are the same
in the same order; "overlap" the share of the ten that are among the ten. Times are wall time of one caller, one
question after the other.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cg_rag.index.corpus import Selector
from cg_rag.index.library import IndexLibrary, Profile
from cg_rag.index.milvus import Milvus, MilvusOptions
from cg_rag.index.progress import Silence
from cg_rag.index.push import push_vectors
from cg_rag.index.store import IndexReader
from tests.bench.retrieval import ReplayingEmbedder


@dataclass
class Measured:
    tops: list[list[int]]
    times_ms: list[float]

    def show(self, label: str, first: Measured, more: str = "") -> None:
        same = np.mean([ours == theirs for ours, theirs in zip(self.tops, first.tops, strict=True)])
        pairs = zip(self.tops, first.tops, strict=True)
        overlap = np.mean([len(set(ours) & set(theirs)) / max(1, len(theirs)) for ours, theirs in pairs])
        p50, p95 = np.percentile(self.times_ms, [50, 95]).tolist()
        print(f"| {label} | {same:.4f} | {overlap:.4f} | {p50:.1f} | {p95:.1f} | {more or '—'} |", flush=True)


def measure(
    index_dir: Path, embedder: ReplayingEmbedder, milvus: Milvus | None, questions: Sequence[str], method: str
) -> Measured:
    library = IndexLibrary(
        index_dir, {"full": Profile("", (Selector(),))}, None, lambda: embedder, engines=milvus
    )
    library.refresh()
    retriever = library.snapshot.retriever
    if retriever is None or library.snapshot.faults:
        raise SystemExit(f"{library.snapshot.faults}")
    tops, times = [], []
    for question in questions:
        retriever.search(question, "full", 10, method)  # type: ignore[arg-type]
        started = time.perf_counter()
        found = retriever.search(question, "full", 10, method)  # type: ignore[arg-type]
        times.append((time.perf_counter() - started) * 1000)
        tops.append([hit.row for hit in found.hits])
    return Measured(tops, times)


def megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--index-dir", type=Path, required=True)
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--uri", default="")
    parser.add_argument("--num", type=int, default=200)
    parser.add_argument("--kinds", default="flat,hnsw,ivf_sq8")
    args = parser.parse_args()
    lines = args.questions.read_text("utf-8").splitlines()[: args.num]
    questions = [json.loads(line)["query"] for line in lines]
    reader, embedder = IndexReader.open(args.index_dir), ReplayingEmbedder()
    print(f"{reader.num_docs} articles, {reader.dim} dimensions, {len(questions)} questions")
    print("| vectors | same top 10 | overlap | p50 ms | p95 ms | |\n| --- | --- | --- | --- | --- | --- |")
    here = {name: measure(args.index_dir, embedder, None, questions, name) for name in ("dense", "fused")}
    for name, found in here.items():
        found.show(f"numpy, {name}", found)
    with tempfile.TemporaryDirectory() as home:
        for kind in args.kinds.split(","):
            folder = Path(home) / kind
            folder.mkdir()
            milvus = Milvus(
                MilvusOptions(args.uri or str(folder / "m.db"), prefix="bench", timeout_seconds=60)
            )
            collection = milvus.collection(reader.fingerprint)
            report = push_vectors(reader, collection, kind, Silence(), force=True)
            size = "" if args.uri else f", {megabytes(folder):.0f} MB on disk"
            pushed = f"pushed in {report.seconds:.0f} s ({report.pushed / report.seconds:.0f}/s){size}"
            for name, first in here.items():
                found = measure(args.index_dir, embedder, milvus, questions, name)
                found.show(f"milvus {kind}, {name}", first, pushed)
            collection.drop()
            milvus.close()


if __name__ == "__main__":
    main()
