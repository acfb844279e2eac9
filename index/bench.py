"""`cg-rag bench`: how fast this machine searches the index that it has, by one caller and by several at once.

0  measured        1  the index cannot be asked as it is configured        2  wrong arguments        130  interrupted

Rule: it measures what a question costs, so no cache is asked: every search embeds, scans and reranks. Nothing is said
about quality; that is `cg-rag eval retrieval`, which needs questions whose answers are known.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cg_rag.index.corpus import Scope
from cg_rag.index.errors import IndexLibraryError, ScopeUnknown
from cg_rag.index.library import IndexLibrary
from cg_rag.index.progress import Progress, TerminalProgress
from cg_rag.index.retriever import Retriever
from cg_rag.index.search import MAX_QUERY_CHARACTERS, MAX_TOPK
from cg_rag.index.store import IndexReader

MAX_CALLERS = 64
MAX_SECONDS = 600
NUM_QUESTIONS = 200
# About as long as what people ask.
_QUESTION_CHARACTERS = 24
_PERCENTILES = (50, 95, 99)


class _Unusable(Exception):
    """What ends the command: the sentence for stderr and the exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Run:
    """What `callers` at once found: wall milliseconds of every search, and of its stages."""

    callers: int
    seconds: float
    milliseconds: Sequence[float]
    stages: Sequence[dict[str, float]]
    num_degraded: int


def add_bench_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scope", metavar="范围", help="检索范围，缺省为 active_scope")
    parser.add_argument("--topk", metavar="N", type=int, default=20, help="每次检索的条数（1..200，缺省 20）")
    parser.add_argument(
        "--callers",
        metavar="N,…",
        default="1,4",
        help=f"同时检索的人数，各测一次（1..{MAX_CALLERS}，缺省 1,4）",
    )
    parser.add_argument(
        "--seconds", metavar="秒", type=float, default=5.0, help=f"每次测多久（0..{MAX_SECONDS}，缺省 5）"
    )
    parser.add_argument("--questions", metavar="文件", help="每行一个问题；缺省取自索引中的条文")
    parser.add_argument("--json", action="store_true", help="输出 JSON")


def run_bench(
    args: argparse.Namespace, library: IndexLibrary, active_scope: str, progress: Progress | None = None
) -> int:
    """Measure and print; returns the exit code."""
    try:
        report = _measure(args, library, args.scope or active_scope, progress or TerminalProgress())
    except _Unusable as error:
        print(error, file=sys.stderr)
        return error.code
    except ScopeUnknown as error:
        print(error, file=sys.stderr)
        return 2
    except IndexLibraryError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(report, ensure_ascii=False, indent=2) if args.json else _as_text(report))
    return 0


def _measure(
    args: argparse.Namespace, library: IndexLibrary, scope_name: str, progress: Progress
) -> dict[str, Any]:
    callers = _read_callers(args.callers)
    if not 1 <= args.topk <= MAX_TOPK:
        raise _Unusable(f"--topk 须为 1..{MAX_TOPK} 的整数，收到 {args.topk}。", 2)
    if not 0 < args.seconds <= MAX_SECONDS:
        raise _Unusable(f"--seconds 须大于 0，至多 {MAX_SECONDS}，收到 {args.seconds:g}。", 2)
    given = _read_questions(Path(args.questions)) if args.questions else None
    began = time.perf_counter()
    library.refresh()
    snapshot = library.snapshot
    state = snapshot.get_scope(scope_name)
    reader, retriever = _usable(library, scope_name)
    open_ms = (time.perf_counter() - began) * 1000
    questions = given or _sample(reader, state.scope)
    began = time.perf_counter()
    first = retriever.search(questions[0], scope_name, args.topk)
    first_ms = (time.perf_counter() - began) * 1000
    runs = [_run(retriever, questions, scope_name, args.topk, n, args.seconds, progress) for n in callers]
    return {
        "ok": True,
        "scope": scope_name,
        "num_docs": state.scope.num_docs,
        "fingerprint": reader.fingerprint,
        "retrieval_method": state.method,
        "rerank": first.reranked,
        "kernel": snapshot.kernel,
        "cpu_count": len(os.sched_getaffinity(0)),
        "topk": args.topk,
        "num_questions": len(questions),
        "open_ms": round(open_ms, 1),
        "first_ms": round(first_ms, 1),
        "runs": [_summarise(run) for run in runs],
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def _read_callers(text: str) -> list[int]:
    try:
        callers = list(dict.fromkeys(int(word) for word in text.split(",")))
    except ValueError:
        callers = []
    if not callers or not all(1 <= number <= MAX_CALLERS for number in callers):
        raise _Unusable(f"--callers 须为 1..{MAX_CALLERS} 的整数，以逗号分隔，收到 {text}。", 2)
    return callers


def _read_questions(path: Path) -> list[str]:
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _Unusable(f"{path} 无法读取，须为 UTF-8 文本，每行一个问题。", 2) from error
    questions = [line.strip() for line in lines if line.strip()]
    if not questions:
        raise _Unusable(f"{path} 中没有问题。", 2)
    if longest := next((text for text in questions if len(text) > MAX_QUERY_CHARACTERS), None):
        raise _Unusable(f"{path} 中的问题至多 {MAX_QUERY_CHARACTERS} 个字符，有 {len(longest)} 个的。", 2)
    return questions


def _usable(library: IndexLibrary, scope: str) -> tuple[IndexReader, Retriever]:
    snapshot = library.snapshot
    state = snapshot.get_scope(scope)
    if state.fault or snapshot.reader is None or snapshot.retriever is None:
        raise _Unusable(library.explain(scope), 1)
    if fault := snapshot.vector_fault or snapshot.rerank_fault:
        # Measured without them, the numbers would pass for those of what is configured.
        raise _Unusable(fault, 1)
    return snapshot.reader, snapshot.retriever


def _sample(reader: IndexReader, scope: Scope) -> list[str]:
    """The beginnings of articles from all over the scope."""
    rows = np.concatenate([np.arange(start, stop) for start, stop in scope.ranges])
    places = np.linspace(0, len(rows) - 1, min(NUM_QUESTIONS, len(rows))).astype(int)
    articles = reader.read_articles([int(row) for row in rows[places]])
    return ["".join(article.contents.split())[:_QUESTION_CHARACTERS] for article in articles]


def _run(
    retriever: Retriever,
    questions: Sequence[str],
    scope: str,
    topk: int,
    callers: int,
    seconds: float,
    progress: Progress,
) -> Run:
    milliseconds: list[float] = []
    stages: list[dict[str, float]] = []
    degraded: list[bool] = []
    stopping = threading.Event()

    def call(asked: Iterator[str]) -> None:
        for question in asked:
            began = time.perf_counter()
            result = retriever.search(question, scope, topk)
            milliseconds.append((time.perf_counter() - began) * 1000)
            stages.append(result.timings_ms)
            degraded.append(result.degraded)
            if stopping.is_set():
                return

    progress.start(f"{callers} 人同时检索", None)
    with ThreadPoolExecutor(callers, thread_name_prefix="bench") as pool:
        # Each begins elsewhere, so that no two ask the same at the same time.
        starts = [place * len(questions) // callers for place in range(callers)]
        began = time.perf_counter()
        try:
            calls = [
                pool.submit(call, itertools.cycle([*questions[start:], *questions[:start]]))
                for start in starts
            ]
            wait(calls, seconds, return_when=FIRST_EXCEPTION)
        finally:
            stopping.set()
    took = time.perf_counter() - began
    progress.finish()
    for done in calls:
        done.result()
    return Run(callers, took, milliseconds, stages, sum(degraded))


def _summarise(run: Run) -> dict[str, Any]:
    names = dict.fromkeys(name for stages in run.stages for name in stages)
    medians = {name: [stages[name] for stages in run.stages if name in stages] for name in names}
    points = np.percentile(run.milliseconds, _PERCENTILES).tolist()
    return {
        "callers": run.callers,
        "searches": len(run.milliseconds),
        "per_second": round(len(run.milliseconds) / run.seconds, 1),
        **{f"p{point}_ms": round(value, 2) for point, value in zip(_PERCENTILES, points, strict=True)},
        "max_ms": round(max(run.milliseconds), 2),
        "degraded": run.num_degraded,
        "stages_p50_ms": {name: round(float(np.median(values)), 2) for name, values in medians.items()},
    }


def _as_text(report: dict[str, Any]) -> str:
    lines = [
        f"范围 {report['scope']}：{report['num_docs']} 条条文，{report['retrieval_method']}"
        f"{'，重排' if report['rerank'] else ''}；{report['cpu_count']} 核，每次 {report['topk']} 条",
        f"打开索引 {report['open_ms']:.0f} ms，第一次检索 {report['first_ms']:.0f} ms，"
        f"内存峰值 {report['peak_rss_bytes'] / 1e6:.0f} MB",
        "同时    次数   每秒   p50 ms   p95 ms   p99 ms   最长 ms",
    ]
    for run in report["runs"]:
        lines.append(
            f"{run['callers']:>4}  {run['searches']:>6}  {run['per_second']:>5.0f}  {run['p50_ms']:>7.2f}  "
            f"{run['p95_ms']:>7.2f}  {run['p99_ms']:>7.2f}  {run['max_ms']:>8.2f}"
        )
        if run["degraded"]:
            lines.append(f"      其中 {run['degraded']} 次有环节失败，降级作答，不能算数。")
    stages = "，".join(f"{name} {value:.2f}" for name, value in report["runs"][0]["stages_p50_ms"].items())
    return "\n".join([*lines, f"各环节的中位数（{report['runs'][0]['callers']} 人）：{stages}"])
