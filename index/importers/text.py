"""Markdown and plain text, in the encodings that sites use.

Rule: text that is not what its author wrote never becomes law. An encoding is proven, and text that was once read in
the wrong one and saved like that is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from cg_rag.index.corpus import Article
from cg_rag.index.errors import SourceInvalid
from cg_rag.index.importers.canonical import is_canonical
from cg_rag.index.importers.document import find_other_format, read_lines_as_law
from cg_rag.index.importers.input_file import ImportLog, InputFile
from cg_rag.index.importers.law_lines import Line
from cg_rag.index.importers.lines import read_text

MAX_TEXT_BYTES = 32 << 20
MAX_LINE_CHARS = 1 << 20

# U+FFFD stands where another program could not read a byte. One in a thousand is a blemish, more is no text.
_MAX_UNREADABLE_SHARE = 1 / 1000
_SAMPLE_LINES = 300
_WRONG_READINGS = (
    ("gb18030", "utf-8", "UTF-8 文本曾被当作 GBK 打开"),
    ("latin-1", "gb18030", "GBK 文本曾被当作西文打开"),
    ("latin-1", "utf-8", "UTF-8 文本曾被当作西文打开"),
    ("cp1252", "gb18030", "GBK 文本曾被当作西文打开"),
    ("cp1252", "utf-8", "UTF-8 文本曾被当作西文打开"),
)

_ESCAPED = re.compile(r"\\([-.*#+!|])")
_PICTURE = re.compile(r"!\[([^\[\]]{0,200})\]\([^()\s]{1,2000}\)")
_LINK = re.compile(r"\[([^\[\]]{1,300})\]\((?:https?:|/|\.|#)[^()\s]{0,2000}\)")


def read_markdown(file: InputFile, log: ImportLog) -> Iterator[Article]:
    """The articles of a Markdown file. Raises SourceInvalid."""
    lines = _lines(_decode(file, log), file.place)
    if not is_canonical(lines):
        lines = [replace(line, text=_strip_markup(line, file.place, log)) for line in lines]
    yield from read_lines_as_law(file, lines, log)


def read_plain(file: InputFile, log: ImportLog) -> Iterator[Article]:
    """The articles of a text file. Raises SourceInvalid."""
    yield from read_lines_as_law(file, _lines(_decode(file, log), file.place), log)


def find_mojibake(text: str) -> str | None:
    """Why `text` is not what was written, None when it seems to be."""
    unreadable = text.count("\ufffd")
    if unreadable > len(text) * _MAX_UNREADABLE_SHARE and unreadable > 1:
        return f"有 {unreadable} 个无法识别的字符（U+FFFD），原文已在转换编码时损坏"
    lines = [line for line in text[: 1 << 20].split("\n") if sum(not char.isascii() for char in line) >= 4]
    sample = lines[:_SAMPLE_LINES]
    for wrong, right, name in _WRONG_READINGS:
        if sample and sum(_becomes_chinese(line, wrong, right) for line in sample) * 2 > len(sample):
            return f"文字是乱码（{name}，然后另存），请用原文件重新转换"
    return None


def _decode(file: InputFile, log: ImportLog) -> str:
    with file.path.open("rb") as raw:
        head = raw.read(8)
    if other := find_other_format(head):
        raise SourceInvalid(file.place, f"文件不是文本，而是 {other} 文件")
    text = read_text(file, MAX_TEXT_BYTES, wide=True)
    if "\0" in text:
        raise SourceInvalid(file.place, "文件含有空字节，不是文本文件")
    if fault := find_mojibake(text):
        raise SourceInvalid(file.place, fault)
    if "\ufffd" in text:
        number = text.count("\n", 0, text.index("\ufffd")) + 1
        log.warn(f"{file.place}:{number}", "有无法识别的字符（U+FFFD），请对照原文")
    return text


def _becomes_chinese(line: str, wrong: str, right: str) -> bool:
    """Whether most of the line is Chinese once it is read anew; what was lost on the way is passed over."""
    raw = line.encode(wrong, "ignore")
    num_wide = sum(byte >= 0x80 for byte in raw)
    if 2 * num_wide < sum(not char.isascii() for char in line):
        return False
    num_chinese = sum("\u4e00" <= char <= "\u9fff" for char in raw.decode(right, "ignore"))
    # 60% and not all: punctuation, and bytes that no reading keeps.
    return 5 * num_chinese * (3 if right == "utf-8" else 2) > 3 * num_wide


def _lines(text: str, place: str) -> list[Line]:
    # Not splitlines(): what users are told by number are lines as an editor counts them; U+2028 begins none.
    parts = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for number, part in enumerate(parts, 1):
        if len(part) > MAX_LINE_CHARS:
            raise SourceInvalid(f"{place}:{number}", f"一行超过 {MAX_LINE_CHARS} 字")
    return [Line(number, part) for number, part in enumerate(parts, 1)]


def _strip_markup(line: Line, place: str, log: ImportLog) -> str:
    """The Markdown that law_text does not know: pictures, links, and the escapes that converters write (1\\.0)."""
    text = line.text
    for picture in _PICTURE.finditer(text):
        log.leave(f"{place}:{line.number}", picture[0], "图片未导入")
    text = _LINK.sub(r"\1", _PICTURE.sub("", text))
    if "$" in text or text.startswith("\\"):  # a formula has backslashes of its own
        return text
    return _ESCAPED.sub(r"\1", text)
