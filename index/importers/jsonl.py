"""JSON: one article a line, or an array of them, `{"law_name", "article_number", "contents", …}`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from cg_rag.index.corpus import Article
from cg_rag.index.errors import SourceInvalid
from cg_rag.index.importers.annexes import cut_records
from cg_rag.index.importers.columns import rename_fields
from cg_rag.index.importers.input_file import ColumnMap, ImportLog, InputFile
from cg_rag.index.importers.lines import MAX_LINE_BYTES, detect_encoding, read_lines, read_text
from cg_rag.index.importers.record import RecordInvalid, parse_record

# An array is read as a whole; a larger one is better written a record a line.
MAX_ARRAY_BYTES = 64 << 20


def read(file: InputFile, log: ImportLog) -> Iterator[Article]:
    """Articles in file order; empty lines are passed over. Raises SourceInvalid for an unknown encoding."""
    return cut_records(_read_lines(file, log), log)


def read_array(file: InputFile, log: ImportLog) -> Iterator[Article]:
    """Articles of an array of records, or of one record. Places are file[n], n from 1. Raises SourceInvalid."""
    return cut_records(_read_array(file, log), log)


def _read_lines(file: InputFile, log: ImportLog) -> Iterator[tuple[str, Article]]:
    encoding = detect_encoding(file)
    for number, line in read_lines(file):
        if line is not None and not line.strip():
            continue
        place = f"{file.place}:{number}"
        try:
            yield place, _parse(_parse_line(line, encoding, first=number == 1), file.columns)
        except RecordInvalid as error:
            log.reject(place, str(error))


def _read_array(file: InputFile, log: ImportLog) -> Iterator[tuple[str, Article]]:
    text = read_text(file, MAX_ARRAY_BYTES)
    try:
        value = _load(text)
    except RecordInvalid as error:
        raise SourceInvalid(file.place, f"{error}；每行一个对象的文件请命名为 .jsonl") from error
    if not isinstance(value, list | dict):
        raise SourceInvalid(file.place, "须为由对象组成的数组，或一个对象")
    for number, record in enumerate(value if isinstance(value, list) else [value], 1):
        place = f"{file.place}[{number}]"
        try:
            yield place, _parse(record, file.columns)
        except RecordInvalid as error:
            log.reject(place, str(error))


def _parse_line(line: bytes | None, encoding: str, first: bool) -> Any:
    if line is None:
        raise RecordInvalid(f"一行超过 {MAX_LINE_BYTES} 字节")
    return _load(
        line.decode("utf-8-sig" if first and encoding == "utf-8-sig" else encoding.removesuffix("-sig"))
    )


def _load(text: str) -> Any:
    try:
        # orjson refuses lone surrogates, infinities and nesting that would exhaust the stack.
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise RecordInvalid(f"不是有效的 JSON（第 {error.pos + 1} 个字符附近）") from error


def _parse(record: Any, columns: ColumnMap) -> Article:
    if not isinstance(record, dict):
        raise RecordInvalid("不是 JSON 对象")
    return parse_record(rename_fields(record, columns), bounded=False)
