"""`cg-rag verify FILE`: look up every law and article that a text cites, without a server.

0  all are there    1  some are not    2  wrong arguments or file    3  the index cannot be asked
"""

from __future__ import annotations

import argparse
import codecs
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cg_rag.index.columns import align, cut
from cg_rag.index.errors import IndexLibraryError, ScopeUnknown, SourceInvalid, file_fault
from cg_rag.index.importers.input_file import InputFile
from cg_rag.index.importers.lines import detect_encoding, open_source
from cg_rag.index.library import IndexLibrary
from cg_rag.index.os_words import fault_of
from cg_rag.index.validity import Validity
from cg_rag.index.verification import Status, Verdict, Verification

# A book of 500 pages; what is longer is no report, and is read in parts.
MAX_FILE_BYTES = 4 * 1024 * 1024
_MAX_CELLS = 60
_STATUS_WORDS: dict[Status, str] = {
    "exact": "相符",
    "article_absent": "无此条",
    "law_not_in_corpus": "无法核对",
}
_STANDING_WORDS: dict[Validity, str] = {
    "in_force": "现行",
    "amended": "已修改",
    "repealed": "已废止",
    "pending": "尚未施行",
}


def add_verify_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", metavar="文件", help="文本或 Markdown（UTF-8 或 GB18030）；- 为标准输入（UTF-8）"
    )
    parser.add_argument("--scope", metavar="范围", help="检索范围，缺省为 active_scope")
    parser.add_argument("--json", action="store_true", help="输出 JSON")


def run_verify(args: argparse.Namespace, library: IndexLibrary, active_scope: str) -> int:
    """Prints a table, or JSON; returns the exit code."""
    try:
        text = _read(args.file)
    except (OSError, SourceInvalid) as error:
        print(_told(error, args.file), file=sys.stderr)
        return 2
    scope = args.scope or active_scope
    try:
        library.refresh()
        state, verifier = library.snapshot.get_scope(scope), library.snapshot.verifier
        if state.fault or verifier is None:
            print(library.explain(scope), file=sys.stderr)
            return 3
        found = verifier.verify(text, scope)
    except ScopeUnknown as error:
        print(str(error), file=sys.stderr)
        return 2
    except (IndexLibraryError, OSError) as error:
        print(fault_of(error), file=sys.stderr)
        return 3
    finally:
        library.close()
    for warning in found.warnings:
        print(f"注意：{warning}", file=sys.stderr)
    lines = list(_line_numbers(text, found.verdicts))
    print(_as_json(found, lines, scope) if args.json else _as_table(found.verdicts, lines))
    return 0 if all(verdict.status == "exact" for verdict in found.verdicts) else 1


def _read(name: str) -> str:
    """Raises OSError, SourceInvalid."""
    if name == "-":
        data, encoding = sys.stdin.buffer.read(MAX_FILE_BYTES + 1), "utf-8-sig"
    else:
        source = InputFile(Path(name), name)
        encoding = detect_encoding(source)
        with open_source(source) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise SourceInvalid(name, f"超过 {MAX_FILE_BYTES} 字节，请分成几个文件")
    try:
        return codecs.decode(data, encoding)
    except UnicodeDecodeError as error:
        raise SourceInvalid(name, f"第 {error.start} 字节起不是 UTF-8") from error


def _told(error: OSError | SourceInvalid, name: str) -> str:
    if isinstance(error, SourceInvalid):
        return str(error)
    return f"{name}：{file_fault(error)}"


def _line_numbers(text: str, verdicts: Sequence[Verdict]) -> Iterator[int]:
    line, at = 1, 0
    for verdict in verdicts:
        line += text.count("\n", at, verdict.start)
        at = verdict.start
        yield line


def _as_json(found: Verification, lines: Sequence[int], scope: str) -> str:
    body: dict[str, Any] = {"ok": True, "scope": scope} | found.as_json()
    for citation, line in zip(body["citations"], lines, strict=True):
        citation["line"] = line
    return json.dumps(body, ensure_ascii=False, indent=2)


def _as_table(verdicts: Sequence[Verdict], lines: Sequence[int]) -> str:
    if not verdicts:
        return "没有找到引用。"
    rows = [["行", "结果", "引用", "条文库中"]]
    for verdict, line in zip(verdicts, lines, strict=True):
        rows.append([str(line), *map(_cell, (_STATUS_WORDS[verdict.status], verdict.raw, _meaning(verdict)))])
    counts = Counter(verdict.status for verdict in verdicts)
    summary = "，".join(f"{word} {counts[status]}" for status, word in _STATUS_WORDS.items())
    return "\n".join([*align(rows), "", f"共 {len(verdicts)} 处引用：{summary}。"])


def _cell(text: str) -> str:
    one_line = "".join(character for character in " ".join(text.split()) if character.isprintable())
    return cut(one_line, _MAX_CELLS) if sys.stdout.isatty() else one_line


def _meaning(verdict: Verdict) -> str:
    """What stands in the corpus for it, its standing, and what to mind."""
    found = verdict.articles[0] if verdict.articles else None
    name = f"{found.law_name} {found.article_number}".strip() if found else ""
    more = f" 等 {len(verdict.articles)} 条" if len(verdict.articles) > 1 else ""
    standing = _STANDING_WORDS[verdict.standing] if verdict.standing else ""
    return " ".join(part for part in (f"{name}{more}", standing, verdict.note) if part)
