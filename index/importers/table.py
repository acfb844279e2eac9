"""CSV with a header line: columns `law_name`, `contents`, optionally `article_number` and any others."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from cg_rag.index.corpus import Article
from cg_rag.index.errors import SourceInvalid
from cg_rag.index.importers.lines import MAX_LINE_BYTES, detect_encoding, read_lines
from cg_rag.index.importers.record import BadRow, RecordInvalid, RejectRow, clean_text, parse_record

_REQUIRED = ("law_name", "contents")
_DELIMITERS = ",\t;"


def read(path: Path, reject: RejectRow) -> Iterator[Article]:
    """Articles in file order. Raises SourceInvalid for an unknown encoding, a bad header or broken quoting.

    Broken quoting is never skipped: after it nobody knows where the next row begins.
    """
    lines = _decode_lines(path, detect_encoding(path))
    header_line = next(lines, "")
    delimiter = max(_DELIMITERS, key=header_line.count)
    header = _parse_header(path, header_line, delimiter)
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        # The header was one line; line_num counts the lines that `rows` has taken.
        place = f"{path}:{rows.line_num + 2}"
        try:
            cells = next(rows, None)
        except csv.Error as error:
            raise SourceInvalid(place, f"CSV 引号或分隔符有误：{error}") from error
        if cells is None:
            return
        if not any(cell.strip() for cell in cells):
            continue
        try:
            yield _parse_row(header, cells)
        except RecordInvalid as error:
            reject(BadRow(place, str(error)))


def _decode_lines(path: Path, encoding: str) -> Iterator[str]:
    for number, line in read_lines(path):
        if line is None:
            raise SourceInvalid(f"{path}:{number}", f"一行超过 {MAX_LINE_BYTES} 字节")
        yield line.decode(
            "utf-8-sig" if number == 1 and encoding == "utf-8-sig" else encoding.removesuffix("-sig")
        )


def _parse_header(path: Path, line: str, delimiter: str) -> list[str]:
    try:
        cells = next(csv.reader([line], delimiter=delimiter, strict=True), [])
    except csv.Error as error:
        raise SourceInvalid(f"{path}:1", f"表头有误：{error}") from error
    header = [clean_text(cell) for cell in cells]
    missing = [name for name in _REQUIRED if name not in header]
    if missing:
        found = "、".join(header)[:200] or "空"
        raise SourceInvalid(f"{path}:1", f"表头缺少 {'、'.join(missing)}（现有：{found}）")
    if len(set(header)) != len(header):
        raise SourceInvalid(f"{path}:1", "表头有重复的列名")
    return header


def _parse_row(header: Sequence[str], cells: Sequence[str]) -> Article:
    if len(cells) > len(header):
        raise RecordInvalid(f"有 {len(cells)} 列，多于表头的 {len(header)} 列")
    return parse_record(
        {name: cell for name, cell in zip(header, cells, strict=False) if name and cell.strip()}
    )
