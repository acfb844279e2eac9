"""DOCX as Word, WPS and the national law database write it.

Rule: the text is what a reader of the printed document sees once all tracked changes are accepted. What he does not
see as part of the text (footnotes, comments, headers, deleted and hidden words, pictures, the table of contents) is
left out and told.
"""

from __future__ import annotations

import posixpath
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from cg_rag.index.corpus import Article
from cg_rag.index.errors import SourceInvalid
from cg_rag.index.importers.archive import ZIP_ERRORS, open_zip, read_member
from cg_rag.index.importers.document import find_other_format, read_lines_as_law
from cg_rag.index.importers.docx_numbering import Numbering, is_on, read_numbering, to_int
from cg_rag.index.importers.input_file import ImportLog, InputFile
from cg_rag.index.importers.law_lines import Line
from cg_rag.index.importers.tables import MAX_SPAN, join_cells
from cg_rag.index.importers.xml_tree import Element, XmlInvalid, parse_xml

MAX_PART_BYTES = 64 << 20
_MAX_STYLE_DEPTH = 20

_WORD = "w"
_NAMESPACES = {
    "http://schemas.openxmlformats.org/wordprocessingml/2006/main": _WORD,
    "http://purl.oclc.org/ooxml/wordprocessingml/main": _WORD,
    "http://schemas.openxmlformats.org/markup-compatibility/2006": "mc",
    "http://schemas.openxmlformats.org/officeDocument/2006/math": "m",
    "http://purl.oclc.org/ooxml/officeDocument/math": "m",
    "http://schemas.openxmlformats.org/package/2006/relationships": "r",
    "http://schemas.microsoft.com/office/word/2010/wordprocessingShape": "wps",
    "urn:schemas-microsoft-com:vml": "v",
}
_MARKS = {"w:tab": "\t", "w:br": "\n", "w:cr": "\n", "w:noBreakHyphen": "-", "w:ptab": "\t"}
# Read by what they hold: hyperlinks, fields, content controls, inserted and moved-in text, smart tags.
_UNSEEN = {"w:del": "修订中已删除", "w:moveFrom": "修订中已移走"}
_PICTURES = ("w:drawing", "w:pict", "w:object")
_HEADING_NAME = re.compile(r"(?:heading|标题) ?[1-9]")
_OTHER_PARTS = {
    "footnotes": "脚注",
    "endnotes": "尾注",
    "comments": "批注",
    "header": "页眉",
    "footer": "页脚",
}
_PART_NAME = re.compile(r"(footnotes|endnotes|comments|header|footer)\d*\.xml")


@dataclass(frozen=True, slots=True)
class Style:
    """What a paragraph style says that matters here; `based_on` says the rest."""

    name: str
    based_on: str
    heading: bool
    list_id: str | None
    level: int | None


@dataclass
class _Reader:
    """The state of reading one document; `place` of a paragraph is its number, from 1."""

    place: str
    log: ImportLog
    styles: dict[str, Style]
    numbering: Numbering
    lines: list[Line] = field(default_factory=list)
    number: int = 0
    num_changes: int = 0
    joined: str = ""

    def tell_left(self, text: str, reason: str) -> None:
        if text.strip():
            self.log.leave(f"{self.place}:{self.number}", text.strip(), reason)


def read(file: InputFile, log: ImportLog) -> Iterator[Article]:
    """The articles of one document. A place is file:paragraph. Raises SourceInvalid."""
    yield from read_lines_as_law(file, read_lines(file, log), log)


def read_lines(file: InputFile, log: ImportLog) -> list[Line]:
    """The paragraphs and rows of tables, with their numbers and styles. Raises SourceInvalid."""
    with file.path.open("rb") as raw:
        other = find_other_format(raw.read(8))
    if other and not other.startswith("zip"):
        raise SourceInvalid(file.place, f"文件不是 DOCX，而是 {other} 文件")
    with open_zip(file) as archive:
        try:
            return _read_document(archive, file, log)
        except XmlInvalid as error:
            raise SourceInvalid(file.place, f"DOCX 无法读取：{error}") from error
        except ZIP_ERRORS as error:
            raise SourceInvalid(file.place, f"DOCX 损坏或已加密：{error}") from error


def _read_document(archive: zipfile.ZipFile, file: InputFile, log: ImportLog) -> list[Line]:
    parts = {info.filename.lstrip("/"): info for info in archive.infolist()}

    def load(name: str) -> Element | None:
        if name not in parts:
            return None
        return parse_xml(read_member(archive, parts[name], file.place, MAX_PART_BYTES), _NAMESPACES)

    main = _find_main(load("_rels/.rels"))
    document = load(main)
    body = document.find("w:body") if document else None
    if body is None:
        raise SourceInvalid(file.place, "不是 Word 文档：其中没有 document.xml")
    folder = posixpath.dirname(main)
    reader = _Reader(
        file.place,
        log,
        _read_styles(load(f"{folder}/styles.xml")),
        read_numbering(load(f"{folder}/numbering.xml")),
    )
    _read_blocks(body, reader)
    if reader.joined:
        _add_lines(reader, reader.joined, "")
    if reader.num_changes:
        log.warn(file.place, f"文档带有修订标记，已按接受全部 {reader.num_changes} 处修订读取")
    _tell_other_parts({name: load(name) for name in _other_parts(folder, parts)}, reader)
    return reader.lines


def _find_main(relations: Element | None) -> str:
    for relation in relations.children if relations else ():
        if relation.attributes.get("Type", "").endswith("/officeDocument"):
            return posixpath.normpath(relation.attributes.get("Target", "").lstrip("/"))
    return "word/document.xml"


# --- blocks: paragraphs, tables, and what holds them -----------------------------------------------------------------


def _read_blocks(parent: Element, reader: _Reader) -> None:
    for element in parent.children:
        if element.tag == "w:p":
            _read_paragraph(element, reader)
        elif element.tag == "w:tbl":
            _read_table(element, reader)
        elif element.tag == "w:altChunk":
            reader.log.warn(f"{reader.place}:{reader.number}", "嵌入的其他文档未导入")
        elif element.tag == "w:sdt" and _is_contents(element):
            reader.tell_left(_plain_text(element), "目录")
        elif element.tag in _UNSEEN:
            reader.num_changes += 1
            reader.tell_left(_plain_text(element), _UNSEEN[element.tag])
        elif not element.tag.endswith("Pr"):
            _read_blocks(element, reader)


def _is_contents(element: Element) -> bool:
    gallery = element.get(("w:sdtPr", "w:docPartObj", "w:docPartGallery"), "val")
    return gallery == "Table of Contents"


def _read_paragraph(element: Element, reader: _Reader) -> None:
    reader.number += 1
    properties = element.find("w:pPr") or Element("", {})
    style_id = properties.get(("w:pStyle",), "val") or ""
    text = _read_inline(element, reader)
    if reader.styles.get(style_id, _NO_STYLE).name.startswith("toc "):
        reader.tell_left(text, "目录")
        return
    label = _label(properties, style_id, reader) if text.strip() else ""
    text = f"{label} {text}" if label else text
    if properties.find("w:rPr", "w:del") is not None:
        # The end of the paragraph is deleted: it goes on in the next one.
        reader.joined += text
        return
    _add_lines(reader, reader.joined + text, _style_of(properties, style_id, reader.styles))
    reader.joined = ""


def _add_lines(reader: _Reader, text: str, style: str) -> None:
    for part in text.split("\n"):
        if part.strip():
            reader.lines.append(Line(reader.number, part.strip(" \t"), style))


def _label(properties: Element, style_id: str, reader: _Reader) -> str:
    own = properties.find("w:numPr")
    list_id, level = _list_of_style(style_id, reader.styles)
    if own is not None:
        list_id = own.get(("w:numId",), "val") or list_id
        level = to_int(own.get(("w:ilvl",), "val"), level or 0)
    if list_id is None or list_id == "0":
        return ""
    return reader.numbering.next_label(list_id, level or 0)


def _read_table(table: Element, reader: _Reader) -> None:
    rows = [row for row in table.children if row.tag == "w:tr"]
    cells = [list(_cells_of(row)) for row in rows]
    # A table of one column, or with a table inside, only lays text out: its paragraphs are paragraphs.
    if all(len(row) <= 1 for row in cells) or any(one.find("w:tbl") for row in cells for one in row):
        for cell in chain.from_iterable(cells):
            _read_blocks(cell, reader)
        return
    for row, of_row in zip(rows, cells, strict=True):
        _read_row(row, of_row, reader)


def _cells_of(row: Element) -> Iterator[Element]:
    for element in row.children:
        if element.tag == "w:tc":
            yield element
        elif element.tag in ("w:sdt", "w:sdtContent", "w:ins", "w:customXml"):
            yield from _cells_of(element)


def _read_row(row: Element, cells: list[Element], reader: _Reader) -> None:
    reader.number += 1
    texts: list[str] = []
    for cell in cells:
        # Text that stands in the first of merged cells is there once: the others hold an empty paragraph.
        paragraphs = (_read_inline(part, reader) for part in cell.walk() if part.tag == "w:p")
        texts.append(" ".join(paragraphs))
        texts += [""] * (min(MAX_SPAN, to_int(cell.get(("w:tcPr", "w:gridSpan"), "val"), 1)) - 1)
    text = join_cells(texts)
    if row.find("w:trPr", "w:del") is not None:
        reader.num_changes += 1
        reader.tell_left(text, "修订中已删除")
    elif text:
        reader.lines.append(Line(reader.number, text, table=True))


# --- inside a paragraph ----------------------------------------------------------------------------------------------


def _read_inline(element: Element, reader: _Reader) -> str:
    """The text below `element` that is seen; what is not seen is told."""
    return "".join(_read_inline_part(child, reader) for child in element.children)


def _read_inline_part(element: Element, reader: _Reader) -> str:
    tag = element.tag
    if tag in ("w:t", "m:t"):
        return element.text
    if tag in _MARKS:
        return _MARKS[tag]
    if tag in _UNSEEN:
        reader.num_changes += 1
        reader.tell_left(_plain_text(element), _UNSEEN[tag])
        return ""
    if tag in ("w:ins", "w:moveTo"):
        reader.num_changes += 1
    elif tag == "w:sym":
        return _symbol(element)
    elif tag == "w:r" and is_on(element.find("w:rPr", "w:vanish")):
        reader.tell_left(_plain_text(element), "隐藏文字")
        return ""
    elif tag in _PICTURES:
        return _read_picture(element, reader)
    elif tag == "mc:AlternateContent":
        return _read_alternative(element, reader)
    elif tag == "w:ruby":
        base = element.find("w:rubyBase")
        return _read_inline(base, reader) if base else ""
    elif tag.endswith("Pr") or tag in ("w:instrText", "w:delText", "w:tbl"):
        return ""
    return _read_inline(element, reader)


def _read_alternative(element: Element, reader: _Reader) -> str:
    """One of the forms in which the same thing is written for newer and older programs."""
    chosen = element.find("mc:Choice") or element.find("mc:Fallback")
    return _read_inline(chosen, reader) if chosen else ""


def _read_picture(element: Element, reader: _Reader) -> str:
    paragraphs = [
        part
        for box in element.walk()
        if box.tag == "w:txbxContent"
        for part in box.walk()
        if part.tag == "w:p"
    ]
    if not paragraphs:
        reader.log.warn(f"{reader.place}:{reader.number}", "图片或对象未导入")
        return ""
    return "\n" + "\n".join(_read_inline(part, reader) for part in paragraphs) + "\n"


def _symbol(element: Element) -> str:
    try:
        return chr(int(element.attributes.get("char", ""), 16))
    except (ValueError, OverflowError):
        return ""


def _plain_text(element: Element) -> str:
    return "".join(
        one.text if one.tag in ("w:t", "w:delText") else "\n" if one.tag == "w:p" else ""
        for one in element.walk()
    )


# --- styles and other parts ------------------------------------------------------------------------------------------

_NO_STYLE = Style("", "", False, None, None)


def _read_styles(root: Element | None) -> dict[str, Style]:
    styles = {}
    for element in root.children if root else ():
        if element.tag != "w:style":
            continue
        name = (element.get(("w:name",), "val") or "").strip().lower()
        numbers = element.find("w:pPr", "w:numPr")
        level = numbers.get(("w:ilvl",), "val") if numbers else None
        styles[element.attributes.get("styleId", "")] = Style(
            name,
            element.get(("w:basedOn",), "val") or "",
            bool(_HEADING_NAME.fullmatch(name)) or element.find("w:pPr", "w:outlineLvl") is not None,
            numbers.get(("w:numId",), "val") if numbers else None,
            to_int(level, 0) if level is not None else None,
        )
    return styles


def _lineage(style_id: str, styles: dict[str, Style]) -> Iterator[Style]:
    for _ in range(_MAX_STYLE_DEPTH):
        style = styles.get(style_id)
        if style is None:
            return
        yield style
        style_id = style.based_on


def _style_of(properties: Element, style_id: str, styles: dict[str, Style]) -> str:
    outline = properties.get(("w:outlineLvl",), "val")
    if outline is not None:
        return "heading" if to_int(outline, 9) < 9 else ""  # 9: text of the body
    for style in _lineage(style_id, styles):
        if style.name in ("title", "标题"):
            return "title"
        if style.heading:
            return "heading"
    return ""


def _list_of_style(style_id: str, styles: dict[str, Style]) -> tuple[str | None, int | None]:
    list_id, level = None, None
    for style in _lineage(style_id, styles):
        list_id = list_id or style.list_id
        level = style.level if level is None else level
    return list_id, level


def _other_parts(folder: str, names: dict[str, zipfile.ZipInfo]) -> list[str]:
    return [
        name
        for name in sorted(names)
        if posixpath.dirname(name) == folder and _PART_NAME.fullmatch(posixpath.basename(name))
    ]


def _tell_other_parts(parts: dict[str, Element | None], reader: _Reader) -> None:
    """Footnotes, comments, headers: never part of an article, and never lost without a word."""
    told: set[str] = set()
    for name, root in parts.items():
        reason = next(word for key, word in _OTHER_PARTS.items() if posixpath.basename(name).startswith(key))
        for element in root.children if root else ():
            text = _plain_text(element).strip()
            if text and text not in told:
                told.add(text)
                reader.log.leave(reader.place, text, reason)
