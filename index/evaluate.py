"""`cg-rag eval retrieval FILE`: how good and how fast retrieval is over questions whose answers are known.

0  measured        1  the index cannot be asked, or a report cannot be written
2  wrong arguments, a bad line in FILE, or no question whose articles the index holds
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import orjson

from cg_rag.index.errors import IndexLibraryError, ScopeUnknown, SourceInvalid
from cg_rag.index.evaluation_report import Report, as_json, as_text, draw
from cg_rag.index.library import IndexLibrary, ScopeState
from cg_rag.index.measurement import Stage, measure_scope
from cg_rag.index.os_words import reason_of
from cg_rag.index.progress import Progress, TerminalProgress
from cg_rag.index.questions import DEFAULT_ID_FIELDS, Reader, judge_questions, read_questions
from cg_rag.index.ranking import Method
from cg_rag.index.retriever import Retriever

_MIN_TOPK, _MAX_TOPK = 10, 200

MakeStages = Callable[[Retriever], Sequence[Stage]]


class _Unusable(Exception):
    """What ends the command: the sentence for stderr and the exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def add_eval_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="题目文件", help="JSONL，每行含 query 与 relevant 或 relevant_names")
    parser.add_argument(
        "--scope", metavar="范围", action="append", help="检索范围，可多次给出，缺省为 active_scope"
    )
    parser.add_argument("--topk", metavar="N", type=int, default=50, help="每题检索条数（10..200，缺省 50）")
    parser.add_argument(
        "--stages", metavar="阶段,…", help="只测这些阶段：lexical、dense、fused、rerank 中可用的"
    )
    parser.add_argument("--ids", metavar="字段", help="relevant 对应条文的哪个字段，缺省为 doc_id，没有则 id")
    parser.add_argument("--json", metavar="文件", help="写出全部结果；- 为标准输出，此时不显示表格")
    parser.add_argument("--chart", metavar="文件.svg", help="画出召回率随条数变化的图")


def retrieval_stages(retriever: Retriever) -> list[Stage]:
    """Words alone, vectors alone, both, both reranked: each is the whole search with the other stages left out."""

    def stage(name: Method) -> Stage:
        def search(query: str, scope: str, k: int) -> list[int]:
            return [hit.row for hit in retriever.search(query, scope, k, name).hits]

        return Stage(name, search)

    names: tuple[Method, ...] = ("lexical", "dense", "fused") if retriever.has_vectors else ("lexical",)
    if retriever.has_reranker:
        names += ("rerank",)
    return [stage(name) for name in names]


def run_eval(
    args: argparse.Namespace,
    library: IndexLibrary,
    active_scope: str,
    make_stages: MakeStages = retrieval_stages,
    progress: Progress | None = None,
) -> int:
    """Measure, print the tables, write what was asked for; returns the exit code.

    `make_stages` gives the stages of an open index in the order of the tables, every later one compared with
    every earlier one.
    """
    try:
        report = _measure(args, library, active_scope, make_stages, progress or TerminalProgress())
        _write_reports(args, report)
    except _Unusable as error:
        print(error, file=sys.stderr)
        return error.code
    except (ScopeUnknown, SourceInvalid) as error:
        print(error, file=sys.stderr)
        return 2
    except IndexLibraryError as error:
        print(error, file=sys.stderr)
        return 1
    if any(result.stages for result in report.scopes):
        return 0
    print("没有一道题的相关条文在检索范围内，无法评测。", file=sys.stderr)
    return 2


def _measure(
    args: argparse.Namespace,
    library: IndexLibrary,
    active_scope: str,
    make_stages: MakeStages,
    progress: Progress,
) -> Report:
    if not _MIN_TOPK <= args.topk <= _MAX_TOPK:
        raise _Unusable(f"--topk 须在 {_MIN_TOPK}..{_MAX_TOPK} 之间，收到 {args.topk}。", 2)
    _check_outputs(args)
    questions = read_questions(Path(args.file))
    library.refresh()
    states = [_usable_scope(library, name) for name in dict.fromkeys(args.scope or [active_scope])]
    if fault := library.snapshot.vector_fault or library.snapshot.rerank_fault:
        # Measured without them, the numbers would pass for those of what is configured.
        raise _Unusable(fault, 1)
    reader, retriever = library.snapshot.reader, library.snapshot.retriever
    assert reader is not None
    assert retriever is not None
    stages = _choose(make_stages(retriever), args.stages)
    judged = judge_questions(questions, reader, progress, [args.ids] if args.ids else DEFAULT_ID_FIELDS)
    scopes = [measure_scope(state.scope, judged, stages, args.topk, progress) for state in states]
    return Report(args.file, reader.fingerprint, args.topk, judged, scopes, _naming(reader))


def _check_outputs(args: argparse.Namespace) -> None:
    """Before the work, not after it."""
    if args.chart == "-":
        raise _Unusable("--chart 须为文件。", 2)
    for path in (args.json, args.chart):
        if path not in (None, "-") and not Path(path).absolute().parent.is_dir():
            raise _Unusable(f"{path} 所在的文件夹不存在。", 2)


def _usable_scope(library: IndexLibrary, name: str) -> ScopeState:
    state = library.snapshot.get_scope(name)
    if state.fault or library.snapshot.retriever is None:
        raise _Unusable(library.explain(name), 1)
    return state


def _choose(offered: Sequence[Stage], wanted: str | None) -> list[Stage]:
    """The stages named, in the order offered."""
    if wanted is None:
        return list(offered)
    names = {name.strip() for name in wanted.split(",")} - {""}
    unknown = sorted(names - {stage.name for stage in offered})
    if unknown or not names:
        available = "、".join(stage.name for stage in offered)
        raise _Unusable(f"--stages 中的阶段 {'、'.join(unknown)} 不可用，可用：{available}。", 2)
    return [stage for stage in offered if stage.name in names]


def _naming(reader: Reader) -> Callable[[int], tuple[str, str]]:
    def name_of(row: int) -> tuple[str, str]:
        article = reader.read_articles([row])[0]
        return article.law_name, article.article_number

    return name_of


def _write_reports(args: argparse.Namespace, report: Report) -> None:
    """The table is shown also when a file cannot be written, the files are written also when `| head` hangs up."""
    try:
        if args.json is not None:
            encoded = orjson.dumps(as_json(report), option=orjson.OPT_INDENT_2).decode() + "\n"
            _write(args.json, encoded)
        if args.chart is not None and any(result.stages for result in report.scopes):
            _write(args.chart, draw(report))
    finally:
        if args.json != "-":
            print(as_text(report))


def _write(path: str, text: str) -> None:
    if path == "-":
        sys.stdout.write(text)
        return
    try:
        Path(path).write_text(text, "utf-8")
    except OSError as error:
        raise _Unusable(f"无法写入 {path}：{reason_of(error)}", 1) from error
