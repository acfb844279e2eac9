"""JSON Lines: one article a line, `{"law_name", "article_number", "contents", …}`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import orjson

from cg_rag.index.corpus import Article
from cg_rag.index.importers.lines import MAX_LINE_BYTES, detect_encoding, read_lines
from cg_rag.index.importers.record import BadRow, RecordInvalid, RejectRow, parse_record


def read(path: Path, reject: RejectRow) -> Iterator[Article]:
    """Articles in file order; empty lines are passed over. Raises SourceInvalid for an unknown encoding."""
    encoding = detect_encoding(path)
    for number, line in read_lines(path):
        if line is not None and not line.strip():
            continue
        try:
            yield _parse_line(line, encoding, first=number == 1)
        except RecordInvalid as error:
            reject(BadRow(f"{path}:{number}", str(error)))


def _parse_line(line: bytes | None, encoding: str, first: bool) -> Article:
    if line is None:
        raise RecordInvalid(f"一行超过 {MAX_LINE_BYTES} 字节")
    text = line.decode("utf-8-sig" if first and encoding == "utf-8-sig" else encoding.removesuffix("-sig"))
    try:
        # orjson refuses lone surrogates, infinities and nesting that would exhaust the stack.
        record = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise RecordInvalid(f"不是有效的 JSON（第 {error.pos + 1} 个字符附近）") from error
    if not isinstance(record, dict):
        raise RecordInvalid("不是 JSON 对象")
    return parse_record(record)
