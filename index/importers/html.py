"""HTML pages of laws, and HTML tables inside Markdown.

Rule: only what a reader sees in the page is text. Scripts and styles are dropped as what they are; what surrounds the
text in a page (navigation, forms, head and foot) is left out and told.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

from cg_rag.index.corpus import Article
from cg_rag.index.errors import SourceInvalid
from cg_rag.index.importers.document import find_other_format, read_lines_as_law
from cg_rag.index.importers.input_file import ImportLog, InputFile
from cg_rag.index.importers.law_lines import Line
from cg_rag.index.importers.lines import detect_encoding
from cg_rag.index.importers.tables import Cell, TableTooLarge, spread_rows

MAX_HTML_BYTES = 16 << 20
_META_CHARSET = re.compile(rb"<meta[^<>]{0,200}?charset\s*=\s*[\"']?\s*([\w-]{1,20})", re.IGNORECASE)
_MAX_TABLE_DEPTH = 20

_UNSEEN = frozenset(
    {"script", "style", "template", "noscript", "svg", "math", "object", "iframe", "textarea", "select"}
)
_AROUND = {
    "nav": "导航",
    "header": "页首",
    "footer": "页脚",
    "aside": "侧栏",
    "button": "按钮",
    "title": "网页标题",
}
_HEADINGS = {
    "h1": "title",
    "h2": "heading",
    "h3": "heading",
    "h4": "heading",
    "h5": "heading",
    "h6": "heading",
}
_BLOCKS = frozenset(
    [
        "address",
        "article",
        "blockquote",
        "body",
        "br",
        "caption",
        "center",
        "dd",
        "div",
        "dl",
        "dt",
        "fieldset",
        "figcaption",
        "figure",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "head",
        "hr",
        "html",
        "legend",
        "li",
        "main",
        "ol",
        "p",
        "pre",
        "section",
        "table",
        "tbody",
        "td",
        "tfoot",
        "th",
        "thead",
        "tr",
        "ul",
    ]
)
# Elements that have no end; and those whose end is often left out never count here.
_VOID = frozenset(
    ["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"]
)


@dataclass
class _Table:
    """Rows of cells as they are read. A cell's lines are kept, since a table may turn out to be mere layout."""

    rows: list[list[tuple[list[Line], int, int]]] = field(default_factory=list)
    number: int = 0
    nested: bool = False
    loose: list[Line] = field(default_factory=list)

    def open_cell(self, rows: int, columns: int) -> None:
        if not self.rows:
            self.rows.append([])
        self.rows[-1].append(([], rows, columns))

    @property
    def sink(self) -> list[Line]:
        """Where text goes: the open cell, or beside the cells (a caption)."""
        return self.rows[-1][-1][0] if self.rows and self.rows[-1] else self.loose

    def lines(self) -> list[Line]:
        """Rows as rows; text that was merely laid out in a table as text. Raises TableTooLarge."""
        cells = [cell for row in self.rows for cell in row]
        if self.nested or all(len(row) <= 1 for row in self.rows):
            return [*self.loose, *(line for content, _, _ in cells for line in content)]
        rows = [
            [Cell(" ".join(line.text for line in content), rows, columns) for content, rows, columns in row]
            for row in self.rows
        ]
        return [*self.loose, *(Line(self.number, text, table=True) for text in spread_rows(rows))]


class _Page(HTMLParser):
    def __init__(self, place: str, log: ImportLog, first_line: int) -> None:
        super().__init__(convert_charrefs=True)
        self._place = place
        self._log = log
        self._offset = first_line - 1
        self._text: list[str] = []
        self._number = 0
        self._style = ""
        self._unseen = ""
        self._unseen_from = 0
        self._around: list[str] = []
        self._around_lines: list[Line] = []
        self._tables: list[_Table] = []
        self._lines: list[Line] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if self._unseen:
            return
        if tag in _UNSEEN:
            self._unseen, self._unseen_from = tag, self._here()
            return
        if tag in _BLOCKS or tag in _AROUND:
            self._end_line()
        if tag in _AROUND:
            self._around.append(tag)
        if tag in _HEADINGS:
            self._style = _HEADINGS[tag]
        elif tag == "img":
            self._log.warn(f"{self._place}:{self._here()}", "图片未导入")
        elif tag in ("table", "tr", "td", "th"):
            self._open_table_part(tag, dict(attributes))

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        # <script/> opens a script in HTML; <br/> and <p/> only end a line.
        self.handle_starttag(tag, attributes)

    def handle_endtag(self, tag: str) -> None:
        if self._unseen:
            self._unseen = "" if tag == self._unseen else self._unseen
            return
        if tag in _BLOCKS or tag in _AROUND:
            self._end_line()
        if tag in _HEADINGS:
            self._style = ""
        elif tag in self._around:
            while self._around and self._around.pop() != tag:
                pass
            self._tell_around(tag)
        elif tag == "table" and self._tables:
            self._close_table()

    def handle_data(self, data: str) -> None:
        if self._unseen:
            return
        if not self._text:
            self._number = self._here() + data[: len(data) - len(data.lstrip())].count("\n")
        self._text.append(data)

    def finish(self) -> list[Line]:
        """The lines of the page. What is left of a tag that never ends is told, not guessed."""
        rest, self.rawdata = self.rawdata, ""
        if rest.startswith("<"):
            if rest.strip():
                self._log.leave(f"{self._place}:{self._here()}", rest, "HTML 结尾的标签不完整")
        elif rest:
            self.handle_data(html.unescape(rest))
        self._end_line()
        while self._tables:
            self._close_table()
        if self._around:
            tag = self._around[0]
            self._around.clear()
            self._tell_around(tag)
        if self._unseen:
            self._log.warn(
                f"{self._place}:{self._unseen_from}", f"<{self._unseen}> 没有结尾，其后的内容未读取"
            )
        return self._lines

    def _here(self) -> int:
        return self.getpos()[0] + self._offset

    def _end_line(self) -> None:
        text = " ".join("".join(self._text).split())
        self._text.clear()
        if text:
            self._sink().append(Line(self._number, text, self._style))

    def _sink(self) -> list[Line]:
        if self._around:
            return self._around_lines
        return self._tables[-1].sink if self._tables else self._lines

    def _tell_around(self, tag: str) -> None:
        if self._around:
            return
        titles = [line for line in self._around_lines if line.style] if tag == "header" else []
        self._sink().extend(titles)  # the head of an article holds its title
        for line in self._around_lines:
            if line in titles:
                continue
            self._log.leave(f"{self._place}:{line.number}", line.text, _AROUND[tag])
        self._around_lines.clear()

    def _open_table_part(self, tag: str, attributes: dict[str, str | None]) -> None:
        if tag == "table":
            if len(self._tables) >= _MAX_TABLE_DEPTH:
                raise TableTooLarge(f"表格嵌套超过 {_MAX_TABLE_DEPTH} 层")
            self._tables.append(_Table(number=self._here()))
        elif not self._tables:
            return
        elif tag == "tr":
            self._tables[-1].rows.append([])
        else:
            self._tables[-1].open_cell(_span(attributes.get("rowspan")), _span(attributes.get("colspan")))

    def _close_table(self) -> None:
        table = self._tables.pop()
        lines = table.lines()
        if self._tables:
            self._tables[-1].nested = True
        self._sink().extend(lines)


def read(file: InputFile, log: ImportLog) -> Iterator[Article]:
    """The articles of one page. Raises SourceInvalid."""
    with file.path.open("rb") as raw:
        head = raw.read(4096)
        size = file.path.stat().st_size
    if other := find_other_format(head):
        raise SourceInvalid(file.place, f"文件不是网页，而是 {other} 文件")
    if size > MAX_HTML_BYTES:
        raise SourceInvalid(file.place, f"文件为 {size} 字节，超过上限 {MAX_HTML_BYTES} 字节")
    yield from read_lines_as_law(file, read_markup(_decode(file, head), file.place, log), log)


def read_markup(text: str, place: str, log: ImportLog, first_line: int = 1) -> list[Line]:
    """The lines that a reader of the page sees, tables row by row. Raises SourceInvalid."""
    page = _Page(place, log, first_line)
    try:
        page.feed(text)
        # close() of the standard parser takes quadratic time over tags that never end; finish() does not call it.
        return page.finish()
    except TableTooLarge as error:
        raise SourceInvalid(f"{place}:{page.getpos()[0] + first_line - 1}", str(error)) from error
    except AssertionError as error:  # how html.parser says that a declaration is broken
        raise SourceInvalid(
            f"{place}:{page.getpos()[0] + first_line - 1}", f"HTML 声明有误：{error}"
        ) from error


def _decode(file: InputFile, head: bytes) -> str:
    """By the mark, by what the page declares, or else proven as any text; what it declares must hold."""
    raw = file.path.read_bytes()
    declared = _META_CHARSET.search(head)
    name = declared[1].decode().lower() if declared else ""
    if name.startswith("gb") and not head.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        try:
            return raw.decode("gb18030")
        except UnicodeDecodeError:
            pass  # pages that were saved anew as UTF-8 keep the old declaration
    return raw.decode(detect_encoding(file, wide=True))


def _span(text: str | None) -> int:
    digits = (text or "").strip()
    return max(1, int(digits)) if digits.isascii() and digits.isdigit() and len(digits) < 9 else 1
