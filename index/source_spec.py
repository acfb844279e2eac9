"""How a source of a build is named: on the command line, and in the manifest."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cg_rag.index.errors import SourceInvalid
from cg_rag.index.importers import Source
from cg_rag.index.importers.input_file import ColumnMap
from cg_rag.index.importers.record import RecordInvalid, parse_tags

_NAME = re.compile(r"[\w.-]{1,64}")


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """One source of a build, shown as `corpus`.

    `tags` are added to every article. With `only_tags`, articles that have none of these of their own (such as
    `construction` in the statutes) are left out. `columns` says how the columns of tables are called.
    """

    path: Path
    corpus: str
    tags: tuple[str, ...]
    only_tags: tuple[str, ...] = ()
    columns: ColumnMap = field(default_factory=dict)


def parse_source_spec(text: str, columns: ColumnMap | None = None) -> SourceSpec:
    """Parse `[NAME=]PATH[#tag,tag]`; the name defaults to the file's stem without .gz. Raises SourceInvalid.

    A path that exists as it stands is taken as it stands, whatever characters it holds.
    """
    name, path, tags = "", text, ""
    if not Path(text).exists():
        head, separator, rest = text.partition("=")
        if separator and _NAME.fullmatch(head):
            name, path = head, rest
        if not Path(path).exists() and "#" in path:
            path, _, tags = path.rpartition("#")
    if not path:
        raise SourceInvalid(text, "缺少路径，格式为 [名称=]路径[#标签,标签]")
    try:
        return SourceSpec(
            Path(path), name or _default_name(Path(path)), parse_tags(tags), columns=columns or {}
        )
    except RecordInvalid as error:
        raise SourceInvalid(text, str(error)) from error


def check_names(specs: Sequence[SourceSpec]) -> None:
    if not specs:
        raise SourceInvalid("来源", "没有给出任何来源")
    seen: set[str] = set()
    for spec in specs:
        if not _NAME.fullmatch(spec.corpus):
            raise SourceInvalid(
                str(spec.path), f"语料名 {spec.corpus!r} 不合要求，请用 名称=路径 指定（文字、数字、_ . -）"
            )
        if spec.corpus in seen:
            raise SourceInvalid(str(spec.path), f"语料名 {spec.corpus} 重复，请用 名称=路径 区分")
        seen.add(spec.corpus)


def describe_source(spec: SourceSpec, source: Source) -> dict[str, Any]:
    """The source's entry in the manifest, before it was read."""
    return {
        "name": spec.corpus,
        "path": _real_name(spec.path),
        "sha256": source.sha256,
        "num_docs": 0,
        "importer": source.importer,
        "tags": sorted(set(spec.tags)),
        "only_tags": sorted(set(spec.only_tags)),
        "skipped": 0,
        "left": 0,
        "warnings": 0,
        "not_in_force": 0,
    }


def _default_name(path: Path) -> str:
    name = _real_name(path)
    return Path(name[:-3] if name.lower().endswith(".gz") else name).stem


def _real_name(path: Path) -> str:
    """Of what a link leads to; a link to itself keeps its own, and is refused when it is read."""
    return Path(os.path.realpath(path)).name
