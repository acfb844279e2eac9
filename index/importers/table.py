"""CSV with a header line: columns `law_name`, `contents`, optionally `article_number` and any others."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence

from cg_rag.index.corpus import Article
from cg_rag.index.errors import SourceInvalid
from cg_rag.index.importers.annexes import cut_records
from cg_rag.index.importers.columns import rename_columns
from cg_rag.index.importers.input_file import ImportLog, InputFile
from cg_rag.index.importers.lines import MAX_LINE_BYTES, detect_encoding, read_lines
from cg_rag.index.importers.record import RecordInvalid, clean_text, parse_record

_REQUIRED = ("law_name", "contents")
_DELIMITERS = ",\t;"


def read(file: InputFile, log: ImportLog) -> Iterator[Article]:
    """Articles in file order. Raises SourceInvalid for an unknown encoding, a bad header or broken quoting.

    Broken quoting is never skipped: after it nobody knows where the next row begins.
    """
    return cut_records(_read_rows(file, log), log)


def _read_rows(file: InputFile, log: ImportLog) -> Iterator[tuple[str, Article]]:
    lines = _decode_lines(file, detect_encoding(file))
    header_line = next(lines, "")
    delimiter = max(_DELIMITERS, key=header_line.count)
    header = _parse_header(file, header_line, delimiter)
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        # The header was one line; line_num counts the lines that `rows` has taken.
        place = f"{file.place}:{rows.line_num + 2}"
        try:
            cells = next(rows, None)
        except csv.Error as error:
            raise SourceInvalid(place, f"CSV 引号或分隔符有误：{error}") from error
        if cells is None:
            return
        if not any(cell.strip() for cell in cells):
            continue
        try:
            article = _parse_row(header, cells)
        except RecordInvalid as error:
            log.reject(place, str(error))
            continue
        for name, cell in zip(header, cells, strict=False):
            if not name and cell.strip():
                log.leave(place, cell.strip(), "所在的列没有列名")
        yield place, article


def _decode_lines(file: InputFile, encoding: str) -> Iterator[str]:
    for number, line in read_lines(file):
        if line is None:
            raise SourceInvalid(f"{file.place}:{number}", f"一行超过 {MAX_LINE_BYTES} 字节")
        yield line.decode(
            "utf-8-sig" if number == 1 and encoding == "utf-8-sig" else encoding.removesuffix("-sig")
        )


def _parse_header(file: InputFile, line: str, delimiter: str) -> list[str]:
    try:
        cells = next(csv.reader([line], delimiter=delimiter, strict=True), [])
    except csv.Error as error:
        raise SourceInvalid(f"{file.place}:1", f"表头有误：{error}") from error
    try:
        header = rename_columns([clean_text(cell) for cell in cells], file.columns)
    except RecordInvalid as error:
        raise SourceInvalid(f"{file.place}:1", f"表头有误：{error}") from error
    missing = [name for name in _REQUIRED if name not in header]
    if missing:
        found = "、".join(header)[:200] or "空"
        raise SourceInvalid(
            f"{file.place}:1",
            f"表头缺少 {'、'.join(missing)}（现有：{found}）；列名不同时用 --map law_name=列名,contents=列名 指明",
        )
    return header


def _parse_row(header: Sequence[str], cells: Sequence[str]) -> Article:
    if len(cells) > len(header):
        raise RecordInvalid(f"有 {len(cells)} 列，多于表头的 {len(header)} 列")
    record = {name: cell for name, cell in zip(header, cells, strict=False) if name and cell.strip()}
    return parse_record(record, bounded=False)
