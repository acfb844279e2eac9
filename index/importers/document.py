"""What all documents have in common once their lines are known: they are read as law text, and nothing gets lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from cg_rag.index.corpus import Article
from cg_rag.index.importers.annexes import fit_article
from cg_rag.index.importers.input_file import ImportLog, InputFile
from cg_rag.index.importers.law_lines import Line
from cg_rag.index.importers.law_text import parse_law
from cg_rag.index.importers.record import (
    MAX_ARTICLE_NUMBER_CHARS,
    MAX_LAW_NAME_CHARS,
    RecordInvalid,
    check_length,
    check_value,
)

# The binary reads as no text at all; the user is told what it is.
_MAGIC = {
    b"%PDF": "PDF",
    b"\xd0\xcf\x11\xe0": "旧版 Office（.doc、.xls、.wps）或加密的 Office",
    b"PK\x03\x04": "zip 或 Office（.docx、.xlsx）",
    b"{\\rtf": "RTF",
    b"Rar!": "rar",
    b"7z\xbc\xaf": "7z",
    b"\x89PNG": "PNG 图片",
    b"\xff\xd8\xff": "JPEG 图片",
}


def find_other_format(head: bytes) -> str | None:
    """What a file is by its first bytes, when it is no text."""
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)


def read_lines_as_law(file: InputFile, lines: Sequence[Line], log: ImportLog) -> Iterator[Article]:
    """The articles of one document; each carries the name of its file as `source`."""
    law = parse_law(lines, file.stem)
    for left in law.left:
        log.leave(f"{file.place}:{left.line}", left.text, left.reason)
    for line, reason in law.warnings:
        log.warn(f"{file.place}:{line}", reason)
    if not law.articles:
        log.warn(file.place, "没有得到任何条文")
    for article in law.articles:
        # The line is for reports: stored, a line inserted at the top would make every article another one.
        extra = {key: value for key, value in article.extra.items() if key != "line"}
        place = f"{file.place}:{article.extra.get('line', 1)}"
        try:
            yield from _check(replace(article, extra={"source": file.name, **extra}))
        except RecordInvalid as error:
            log.reject(place, f"“{article.article_number}”{error}"[:300])


def _check(article: Article) -> list[Article]:
    check_value([article.law_name, article.article_number, article.contents, dict(article.extra)])
    check_length("law_name", article.law_name, MAX_LAW_NAME_CHARS)
    check_length("article_number", article.article_number, MAX_ARTICLE_NUMBER_CHARS)
    if not article.law_name.strip() or not article.contents.strip():
        raise RecordInvalid("法规名称或内容为空")
    return fit_article(article)
