"""`cg-rag index push`: the vectors of a built index go to where services search them.

0  done            1  the engine, or an index without vectors          3  no index          130  interrupted
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cg_rag.index.commands import fail, print_json
from cg_rag.index.errors import EngineLacksIndex, IndexLibraryError, IndexMissing
from cg_rag.index.generation import generations
from cg_rag.index.milvus import KINDS, Milvus
from cg_rag.index.progress import Progress, Silence, TerminalProgress
from cg_rag.index.store import IndexReader

BATCH_BYTES = 4 << 20
_INTERRUPTED = "推送已中断，再次运行同一命令即可继续。"


class Target(Protocol):
    """What `push_vectors` fills (`milvus.MilvusCollection`)."""

    collection: str

    def count(self) -> int | None: ...

    def create(self, dim: int, num_rows: int, kind: str) -> None: ...

    def put(self, first_row: int, vectors: NDArray[np.float32]) -> None: ...

    def finish(self) -> None: ...

    def drop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class PushReport:
    collection: str
    num_docs: int
    pushed: int
    seconds: float


class NoVectors(IndexLibraryError):
    def __init__(self) -> None:
        super().__init__("索引没有向量，无可推送：请不带 --no-vectors 重新运行 cg-rag index build。")


def push_vectors(
    reader: IndexReader, target: Target, kind: str, progress: Progress, force: bool = False
) -> PushReport:
    """Fill `target` with the vectors of `reader`, row by row. Goes on where an interrupted push ended; `force` begins
    again. Raises NoVectors, EngineFailed, EngineLacksIndex when rows are missing in the end."""
    if reader.vectors is None:
        raise NoVectors
    started = time.monotonic()
    held = target.count()
    if force and held is not None:
        target.drop()
        held = None
    if held is None:
        target.create(reader.dim, reader.num_docs, kind)
    batch = max(1, BATCH_BYTES // (4 * reader.dim))
    # Rows go in ascending order, so what is missing is at the end; the last batch may have arrived in part.
    first = 0 if held is None else held // batch * batch
    if held != reader.num_docs:
        progress.start("推送向量", reader.num_docs - first)
        for start in range(first, reader.num_docs, batch):
            stop = min(start + batch, reader.num_docs)
            target.put(start, _vectors(reader, start, stop))
            progress.advance(stop - start)
        progress.finish()
        target.finish()
    found = target.count()
    if found != reader.num_docs:
        raise EngineLacksIndex(target.collection, found, reader.num_docs)
    pushed = 0 if held == reader.num_docs else reader.num_docs - first
    return PushReport(target.collection, reader.num_docs, pushed, time.monotonic() - started)


def _vectors(reader: IndexReader, start: int, stop: int) -> NDArray[np.float32]:
    assert reader.vectors is not None
    full = reader.read_full(np.arange(start, stop, dtype=np.int64))
    vectors: NDArray[np.float32] = full * reader.vectors.full_scales[start:stop, None]
    return vectors


def prune(milvus: Milvus, index_dir: Path) -> list[str]:
    """Drop the collections under the prefix whose build is no longer in `index_dir`; returns their names."""
    kept = {milvus.collection(name).collection for name in generations(index_dir)}
    dropped = [name for name in milvus.collections() if name not in kept]
    for name in dropped:
        milvus.drop(name)
    return dropped


def add_push_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--index-type",
        choices=list(KINDS),
        default="flat",
        help="Milvus 中的索引类型：flat 精确，其余近似而省内存或更快；缺省 flat",
    )
    parser.add_argument("--force", action="store_true", help="删去已推送的，从头推送")
    parser.add_argument(
        "--prune", action="store_true", help="推送之后删去本目录已没有的各代索引的集合（前缀相同的）"
    )
    parser.add_argument("--json", action="store_true", help="输出 JSON")


def run_push(args: argparse.Namespace, index_dir: Path, milvus: Milvus) -> int:
    """Push the current index of `index_dir`; returns the exit code."""
    try:
        reader = IndexReader.open(index_dir)
        report = push_vectors(
            reader,
            milvus.collection(reader.fingerprint),
            args.index_type,
            Silence() if args.json else TerminalProgress(),
            args.force,
        )
        dropped = prune(milvus, index_dir) if args.prune else []
    except KeyboardInterrupt:
        return fail(_INTERRUPTED, 130, args.json)
    except IndexLibraryError as error:
        return fail(error, 3 if isinstance(error, IndexMissing) else 1, args.json)
    finally:
        milvus.close()
    if args.json:
        print_json({"ok": True, **_as_json(report, dropped)})
    else:
        print(_as_text(report, dropped))
    return 0


def _as_json(report: PushReport, dropped: Sequence[str]) -> Mapping[str, Any]:
    return {
        "collection": report.collection,
        "num_docs": report.num_docs,
        "pushed": report.pushed,
        "seconds": round(report.seconds, 1),
        "dropped": list(dropped),
    }


def _as_text(report: PushReport, dropped: Sequence[str]) -> str:
    done = f"推送 {report.pushed} 条，用时 {report.seconds:.1f} 秒" if report.pushed else "已在其中，没有变化"
    lines = [f"集合 {report.collection}：{report.num_docs} 条，{done}。"]
    lines += [f"已删去集合 {name}。" for name in dropped]
    return "\n".join(lines)
