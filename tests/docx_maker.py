"""Small DOCX files, part by part, as Word and the national law database write them."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import escape

_W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_MC = "http://schemas.openxmlformats.org/markup-compatibility/2006"
_V = "urn:schemas-microsoft-com:vml"
_RELATIONS = (
    '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship Id="r1" '
    'Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument" Target="word/document.xml"/>'
    "</Relationships>"
)


def root(tag: str, content: str) -> str:
    return f'<w:{tag} xmlns:w="{_W}" xmlns:mc="{_MC}" xmlns:v="{_V}">{content}</w:{tag}>'


def run(text: str, properties: str = "") -> str:
    marks = f"<w:rPr>{properties}</w:rPr>" if properties else ""
    return f'<w:r>{marks}<w:t xml:space="preserve">{escape(text)}</w:t></w:r>'


def paragraph(text: str = "", style: str = "", properties: str = "", runs: str = "") -> str:
    name = f'<w:pStyle w:val="{style}"/>' if style else ""
    return f"<w:p><w:pPr>{name}{properties}</w:pPr>{run(text) if text else ''}{runs}</w:p>"


def numbered(text: str, list_id: int, level: int = 0) -> str:
    return paragraph(
        text, properties=f'<w:numPr><w:ilvl w:val="{level}"/><w:numId w:val="{list_id}"/></w:numPr>'
    )


def cell(text: str, properties: str = "") -> str:
    return f"<w:tc><w:tcPr>{properties}</w:tcPr>{paragraph(text)}</w:tc>"


def table(*rows: str) -> str:
    return "<w:tbl><w:tblPr/>" + "".join(f"<w:tr>{row}</w:tr>" for row in rows) + "</w:tbl>"


def numbering(levels: Mapping[int, tuple[str, str]], extra: str = "", nums: str = "") -> str:
    """`levels`: level -> (format, text); list 1 uses them."""
    inner = "".join(
        f'<w:lvl w:ilvl="{level}"><w:start w:val="1"/><w:numFmt w:val="{kind}"/><w:lvlText w:val="{text}"/>{extra}</w:lvl>'
        for level, (kind, text) in levels.items()
    )
    return root(
        "numbering",
        f'<w:abstractNum w:abstractNumId="7">{inner}</w:abstractNum>'
        f'<w:num w:numId="1"><w:abstractNumId w:val="7"/></w:num>{nums}',
    )


def styles(*entries: tuple[str, str, str]) -> str:
    """(id, name, properties of the paragraph)."""
    return root(
        "styles",
        "".join(
            f'<w:style w:type="paragraph" w:styleId="{key}"><w:name w:val="{name}"/><w:pPr>{properties}</w:pPr></w:style>'
            for key, name, properties in entries
        ),
    )


def save_docx(path: Path, body: str, parts: Mapping[str, str] | None = None) -> Path:
    """`parts` are further files below word/."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("_rels/.rels", _RELATIONS)
        archive.writestr("word/document.xml", root("document", f"<w:body>{body}</w:body>"))
        for name, content in (parts or {}).items():
            archive.writestr(f"word/{name}", content)
    return path
