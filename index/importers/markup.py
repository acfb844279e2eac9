"""From the lines of a container to pieces of plain text: characters nobody can see, Markdown and HTML marks.

What goes, here and nowhere else, and is in no article and no `Left`: invisible and private-use characters and
control characters (each with a warning), the marks of Markdown (# before a heading, ** around words, > before a
quotation, the bars and the ruler of a table) and of HTML (tags). `&gt;` and the like become the character they name.
A comment is `Left`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from cg_rag.index.importers.law_lines import Left, Line

# A cell may claim to span any number of columns; no table of a standard has more than this.
_MAX_SPAN = 50
_MAX_COLUMNS = 100

_INVISIBLE = "\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff"
_PRIVATE = "\ue000-\uf8ff\U000f0000-\U0010ffff"
_CONTROL = "\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f"
_UNWANTED = re.compile(f"[{_INVISIBLE}{_PRIVATE}{_CONTROL}\ud800-\udfff\ufffd]")
# Word writes \v for a line and \f for a page; U+0085, U+2028 and U+2029 come out of databases and web pages.
_BREAK = re.compile(r"\r\n|[\r\n\v\f\x85\u2028\u2029]|<br ?/?>|</(?:p|div|li|h[1-6])>", re.IGNORECASE)
_TAG = re.compile(
    r"</?(?:p|div|span|br|b|strong|font|center|sup|sub|u|a|i|em|img|li|ul|ol|h[1-6])(?:\s[^<>]{0,400})?/?>",
    re.IGNORECASE,
)
_ENTITY = re.compile("&(?:nbsp|ensp|emsp|gt|lt|amp|quot|ldquo|rdquo|middot|times|#[0-9]{2,5});")
_HEADING = re.compile(r"(#{1,6})(?:\s+|$|(?=第))")
_QUOTE = re.compile(r"(?:>\s+)+")
_BOLD = re.compile(r"(\*\*|__)(?=\S)([^*_]{1,200}?)\1")
_TABLE = re.compile("<table", re.IGNORECASE)
_TABLE_END = re.compile("</table>", re.IGNORECASE)
_RULER = frozenset("|:- \t")
_TABLE_MARK = re.compile(
    r"<(?P<close>/?)(?P<tag>table|tr|td|th|thead|tbody|caption)(?P<rest>(?:\s[^<>]{0,400})?)/?>", re.I
)
_SPAN = re.compile(r"""(row|col)span\s*=\s*["']?(\d{1,4})""", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of text on one line. `depth` is that of a heading, 1 for a title, 0 for plain text."""

    line: int
    text: str
    depth: int = 0
    table: bool = False


@dataclass(slots=True)
class Pieces:
    """`header_end` is the place of the first piece behind the mark INFO END, None where there is no such mark."""

    pieces: list[Piece] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    warnings: list[tuple[int, str]] = field(default_factory=list)
    header_end: int | None = None


def read_pieces(lines: Sequence[Line]) -> Pieces:
    """Pieces in the order of the text, none of them blank. Never raises; linear in the text."""
    result = Pieces()
    plain = [Line(line.number, _visible(line, result.warnings), line.style, line.table) for line in lines]
    last_end = max((index for index, line in enumerate(plain) if "</table>" in line.text.lower()), default=-1)
    for line in _with_whole_tables(_without_comments(plain, result), last_end):
        result.pieces += _read_line(line)
    return result


def _visible(line: Line, warnings: list[tuple[int, str]]) -> str:
    if line.text.isascii() and line.text.isprintable():
        return line.text
    found = dict.fromkeys(_UNWANTED.findall(line.text))
    dropped = [char for char in found if char != "\ufffd"]
    for char in dropped:
        kind = "无法显示的私用区字符" if re.match(f"[{_PRIVATE}]", char) else "不可见字符"
        warnings.append((line.number, f"删去{kind} U+{ord(char):04X}，请核对原文"))
    if "\ufffd" in found:
        warnings.append((line.number, "含有替换字符 U+FFFD：原文此处的字已丢失"))
    return _UNWANTED.sub(lambda match: match[0] if match[0] == "\ufffd" else "", line.text)


def _without_comments(lines: Sequence[Line], result: Pieces) -> Iterator[Line]:
    """The lines with their comments moved to `left`. A comment that is never closed is text."""
    last_end = max((index for index, line in enumerate(lines) if "-->" in line.text), default=-1)
    inside = False
    for index, line in enumerate(lines):
        text = line.text
        if inside and "-->" not in text:
            _leave(text, line.number, result)
            text = ""
        elif inside:
            comment, _, text = text.partition("-->")
            _leave(f"{comment}-->", line.number, result)
            inside = False
        if "<!--" in text:
            text = _cut_closed(text, line.number, result)
        if "<!--" in text and index < last_end:
            inside = True
            text, _, comment = text.partition("<!--")
            _leave(f"<!--{comment}", line.number, result)
        yield Line(line.number, text, line.style, line.table)


def _cut_closed(text: str, number: int, result: Pieces) -> str:
    kept, start = [], 0
    while (begin := text.find("<!--", start)) >= 0 and (end := text.find("-->", begin)) >= 0:
        kept.append(text[start:begin])
        start = end + 3
        _leave(text[begin:start], number, result)
    return "".join([*kept, text[start:]])


def _leave(comment: str, number: int, result: Pieces) -> None:
    if comment.strip():
        result.left.append(Left(number, comment.strip(), "注释"))
    if "INFO END" in comment and result.header_end is None:
        result.header_end = len(result.pieces)


def _with_whole_tables(lines: Iterator[Line], last_end: int) -> Iterator[Line]:
    """Each HTML table as one line, whose rows line feeds part. A table that is never closed is text."""
    table: list[str] = []
    first: Line | None = None
    for index, line in enumerate(lines):
        low = line.text.lower()
        if first is None and low.rfind("<table") > low.rfind("</table>") and index < last_end:
            first, table = line, [line.text]
        elif first is not None:
            table.append(line.text)
            if "</table>" in low:
                yield Line(first.number, "\n".join(table), first.style, first.table)
                first = None
        else:
            yield line
    if first is not None:
        yield Line(first.number, "\n".join(table), first.style, first.table)


def _read_line(line: Line) -> Iterator[Piece]:
    text = line.text
    if "<table" not in text.lower():
        yield from _read_text(line, text)
        return
    start = 0
    while (begin := _TABLE.search(text, start)) and (end := _TABLE_END.search(text, begin.end())):
        yield from _read_text(line, text[start : begin.start()])
        start = end.end()
        yield from (
            Piece(line.number, row, table=True) for row in read_html_table(text[begin.start() : start])
        )
    yield from _read_text(line, text[start:])


def _read_text(line: Line, text: str) -> Iterator[Piece]:
    depth = {"title": 1, "heading": 2}.get(line.style, 0)
    for part in _BREAK.split(text):
        part = plain_text(part).strip()
        if line.table or (part.startswith("|") and part.count("|") > 1):
            row = _read_row(part)
            if row:
                yield Piece(line.number, row, table=True)
        elif part:
            yield from _read_paragraph(line.number, part, depth)


def _read_paragraph(number: int, text: str, depth: int) -> Iterator[Piece]:
    if match := _QUOTE.match(text):
        text = text[match.end() :]
    if match := _HEADING.match(text):
        depth, text = len(match[1]), text[match.end() :].rstrip("#").strip()
    if text:
        yield Piece(number, text, depth)


def plain_text(text: str) -> str:
    """`text` without tags, entities and bold marks."""
    if "<" in text:
        text = _TAG.sub("", text)
    if "&" in text:
        text = _ENTITY.sub(lambda match: html.unescape(match[0]), text)
    return _BOLD.sub(r"\2", text) if "**" in text or "__" in text else text


def _read_row(text: str) -> str:
    if "--" in text and _RULER.issuperset(text):
        return ""
    cells = text.removeprefix("|").removesuffix("|").split("|")
    return _join_cells([cell.strip() for cell in cells])


def _join_cells(cells: Sequence[str]) -> str:
    return " | ".join(cells).strip() if any(cells) else ""


def read_html_table(text: str) -> Iterator[str]:
    """The rows of an HTML table. The text of a spanning cell stands once, and the other places it spans are empty."""
    covered: dict[int, int] = {}
    row: list[str] = []
    cell: list[str] | None = None
    width, end = 1, 0
    for match in _TABLE_MARK.finditer(text):
        between = text[end : match.start()]
        end = match.end()
        tag, closes = match["tag"].lower(), bool(match["close"])
        if cell is not None:
            cell.append(between)
        elif between.strip():
            row.append(_cell_text(between))
        if tag in ("td", "th", "tr", "table") and cell is not None:
            row += [_cell_text("".join(cell))] + [""] * (width - 1)
            cell = None
        if tag in ("tr", "table", "caption", "thead", "tbody") and row:
            yield from filter(None, [_join_cells(row)])
            row = []
        if tag in ("td", "th") and not closes:
            _skip_covered(row, covered)
            width = _spans(match["rest"], len(row), covered)
            cell = []
    # What stands behind the last tag, in a table that ends in the middle of one.
    yield from filter(None, [_join_cells([*row, _cell_text(text[end:])])])


def _cell_text(text: str) -> str:
    return " ".join(plain_text(_BREAK.sub(" ", text)).split())


def _skip_covered(row: list[str], covered: dict[int, int]) -> None:
    """Fill the places that a cell of a row above reaches into."""
    while covered.get(len(row), 0) > 0:
        covered[len(row)] -= 1
        row.append("")


def _spans(attributes: str, column: int, covered: dict[int, int]) -> int:
    spans = {match[1].lower(): int(match[2]) for match in _SPAN.finditer(attributes)}
    width = max(1, min(spans.get("col", 1), _MAX_SPAN))
    for place in range(column, min(column + width, _MAX_COLUMNS)):
        covered[place] = max(0, spans.get("row", 1) - 1)
    return width
