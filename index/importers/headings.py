"""What a line of a law may be by its own shape: the number of an article, a heading, an annex, a footnote.

Whether it is one is decided by what stands around it (see sequence.py): 第三十一条 at the start of a line may be the
middle of a sentence, and 3.5 a length.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Literal

from cg_rag.index.importers.markup import Piece
from cg_rag.index.numerals import CHINESE_DIGITS, chinese_to_int, fold

Kind = Literal[
    "article",
    "clause",
    "item",
    "chapter",
    "annex",
    "footnote",
    "note",
    "commentary",
    "contents",
    "title",
    "text",
]

# A heading is shorter than this, and no sentence.
MAX_HEADING_CHARS = 60
_MAX_NUMBER_CHARS = 120
_SENTENCE_END = "。；;：:，,！？"

Order = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """`number` as it is written, without blanks and full-width forms; `rest` is the text behind it.

    `order` is the number for comparing: (28,), (133, 2), (6, 0, 5), ("A", 0, 1). `apart`: a blank or bracket stands
    between the number and the rest. `rank` tells how high a chapter is, 10 for 编, 40 for 节. `joined`: a second number
    follows (5.0.6、5.0.7), as in commentaries. `restarts`: here the commentary of a standard begins, without a title.
    """

    kind: Kind
    number: str = ""
    rest: str = ""
    order: Order = ()
    apart: bool = True
    rank: int = 0
    joined: bool = False
    restarts: bool = False


_N = f"[0-9{CHINESE_DIGITS}]{{1,12}}"
_ARTICLE = re.compile(
    rf"第 {{0,2}}(?P<n>{_N}) {{0,2}}条(?: ?之(?!一[般切致])(?P<sub>[0-9{CHINESE_DIGITS}]{{1,4}}))?(?P<apart>$|[ 【\[(:])?"
)
# 第三条的规定, 第三条、第四条: a sentence goes on. Behind a blank it goes on with less, for 第三条 中国公民… begins an
# article.
_GOES_ON = re.compile(
    r"[的、,，。;；)）》〉”\"和与或至到~-]|及(?!时)|款|项(?!目)|之|中(?![华国央])|所(?![有在])|规定|以及|第.{1,8}[款项]"
)
_GOES_ON_APART = re.compile(r"[的、,，。;；)）》〉”]|规定的|第.{1,4}[款项](?!目)|至第|和第|或者?第|与第")
_CLAUSE = re.compile(
    r"(?:附录 ?(?=[A-Z]))?(?P<di>第 ?)?(?P<n>(?:[A-Z]\.|[0-9]{1,3}\.)[0-9]{1,3}(?:\.[0-9]{1,3}){0,3})(?![0-9.])"
    r"(?P<sub> ?\([0-9]{1,2}\))?(?P<tiao> ?条(?![文形件带石纹状幅基]))?(?P<apart>$|[ 【\[(《])?"
)
# 3.3.5-1 is a formula, 3.3.4条 and 3.3.4 的 a reference, 3.5m a length.
_NO_CLAUSE = re.compile(r"[-~,;:)\]%℃°×*/+=<>\"”》、，。；：A-Z0-9条款项的和及与或至到中节章表图式]")
_NO_CLAUSE_APART = re.compile(
    r" *(?:[-~,;:)\]%℃°×*/+=<>\"”》、，。；：]|的|条(?:[的中规、，和第款及与]|$)|第.{1,4}[款项])"
)
_UNIT = re.compile(
    r" *(?:(?:[CKM]?M[23]?|KN|MPA|KPA|KG|T|S|H|MIN|D)(?![A-Z])|[米毫厘公吨倍万元度级个年月日天小%])"
)
_JOINED = re.compile(r" *[、~,和至及] *(?:[A-Z]\.|[0-9]{1,3}\.)[0-9]{1,3}")
_ITEM = re.compile(rf"(?P<n>[{CHINESE_DIGITS}]{{1,4}}) ?、")
# 一、二级工地: a row of grades.
_GRADES = re.compile(rf"(?P<next>[{CHINESE_DIGITS}]{{1,2}})(?:、[{CHINESE_DIGITS}]{{1,2}}){{0,5}}[级类等]")
_BRACKETED = re.compile(rf"\( ?(?P<n>[{CHINESE_DIGITS}]{{1,3}}) ?\)")
_CHAPTER = re.compile(rf"第 {{0,2}}(?P<n>{_N}) {{0,2}}(?P<unit>分编|部分|编|篇|章|节)(?P<apart>$|[ :])?")
_RANKS = {"编": 10, "篇": 10, "部分": 10, "分编": 20, "章": 30, "节": 40}
RANK_CHAPTER, RANK_SECTION, RANK_OTHER, RANK_SUBTITLE = 30, 40, 50, 60
_BARE_CHAPTER = re.compile("总则|附则|序言|引言")
_NUMBERED = re.compile(r"(?P<n>[0-9]{1,2}) {1,4}(?P<title>[^0-9 ].{0,40})")
_ANNEX = re.compile(
    rf"附 {{0,3}}(?P<unit>[件录表图]?) {{0,2}}(?P<n>[A-Z](?![A-Z0-9.])|{_N})?(?P<apart>$| ?[:：] ?| {{1,4}}|(?=\())"
)
_FOOTNOTE = re.compile(r"[①-⑳]|\[\^[0-9a-zA-Z]{1,5}\]:?")
_NOTE = re.compile(
    "(?:附[:：]?)?(?:(?:本|附)?(?:规范|标准|规程|导则)(?:的?用[词语](?:用语)?[和、]?)+的?说明|用词(?:用语)?说明|引用标准名录|规范性引用文件清单"
    "|(?:修订|制定|起草|编制)说明|附加说明|参考文献|前言|公告|FOREWORD|PREFACE)"
)
_FRONT = re.compile("前言|公告|FOREWORD|PREFACE|(?:修订|制定|起草|编制)说明")
_COMMENTARY = re.compile(r"(?P<open>[【\[(]?)(?:附[:：])?条文说明(?P<close>[】\])]?)[:：]?")
_CONTENTS = re.compile(r"目[录次]|CONTENTS")
_PAGE = re.compile(r"[-—]?\(?[0-9IVX]{1,4}\)?[-—]?$")
_LEADERS = ("...", "…", "···", "--", "——", "  ", " (")


def classify(piece: Piece) -> Mark:
    """The most that the shape of this line can mean; `text` when it means nothing."""
    text = piece.text
    if piece.table:
        return Mark("text")
    # No number reaches deeper, and folding a long line is most of the work.
    folded = fold(text[:_MAX_NUMBER_CHARS])
    first = folded[0]
    if first == "第":
        return (
            _read_article(text, folded)
            or _read_chapter(text, folded)
            or _read_clause(text, folded)
            or Mark("text")
        )
    if first in "附序总引":
        return _read_annex(text, folded) or _read_clause(text, folded) or _read_word(text, folded)
    if first in CHINESE_DIGITS or first == "(":
        return _read_item(text, folded) or Mark("text")
    if first.isascii() and first.isalnum():
        return _read_clause(text, folded) or _read_word(text, folded)
    if match := _FOOTNOTE.match(text):
        return Mark("footnote", match[0], text)
    return _read_word(text, folded)


def is_sentence(text: str) -> bool:
    return len(text) > MAX_HEADING_CHARS or text[-1:] in _SENTENCE_END or "。" in text


def squeeze_title(text: str) -> str:
    """总 则 -> 总则: blanks between Chinese characters are layout, others are single."""
    return re.sub(
        r"(?<=[\u3000-\u9fff（）《》〈〉])\s+(?=[\u3000-\u9fff（）《》〈〉])", "", " ".join(text.split())
    )


def without_page(text: str) -> str | None:
    """An entry of a table of contents without its leader and page; None where it has none."""
    tail = fold(text[-80:])
    page = _PAGE.search(tail, max(0, len(tail) - 8))
    if page is None:
        return None
    before = tail[: page.start()]
    entry = before.rstrip(" .…·-—")
    leader = tail[len(entry) : page.start() + 1]
    return (
        (text[:-80] + text[-80:][: len(entry)]).rstrip() if any(mark in leader for mark in _LEADERS) else None
    )


def is_front_matter(mark: Mark) -> bool:
    return mark.kind == "note" and bool(_FRONT.fullmatch(fold(mark.number)))


def is_known_chapter(title: str) -> bool:
    """Chapters of a standard that may have no clause of their own."""
    return title in (
        "范围",
        "规范性引用文件",
        "术语和定义",
        "术语、定义和缩略语",
        "总则",
        "术语",
        "术语和符号",
        "基本规定",
    )


def _number(text: str) -> str:
    return "".join(unicodedata.normalize("NFKC", text).split())


def _read_article(text: str, folded: str) -> Mark | None:
    match = _ARTICLE.match(folded)
    if match is None or (value := chinese_to_int(match["n"])) is None:
        return None
    sub = chinese_to_int(match["sub"]) if match["sub"] else None
    end = match.start("apart") if match["apart"] else match.end()
    apart, rest = match["apart"] is not None, text[end:].strip()
    if (_GOES_ON_APART if apart else _GOES_ON).match(fold(rest[:16])):
        return None
    return Mark("article", _number(text[:end]), rest, (value,) if sub is None else (value, sub), apart)


def _read_clause(text: str, folded: str) -> Mark | None:
    match = _CLAUSE.match(folded)
    if match is None or bool(match["di"]) != bool(match["tiao"]) or text[match.start("n")].islower():
        return None
    end, apart = match.start("apart") if match["apart"] else match.end(), match["apart"] is not None
    joined = not match["di"] and bool(_JOINED.match(folded, end))
    if not joined and (_NO_CLAUSE_APART if apart else _NO_CLAUSE).match(folded, end):
        return None
    if match["n"].count(".") == 1 and not match["tiao"] and _UNIT.match(folded, end):
        return None
    parts = match["n"].split(".")
    order: Order = tuple(int(part) if part.isdigit() else part for part in parts)
    if match["sub"]:
        order += (int(re.sub(r"\D", "", match["sub"])),)
    return Mark("clause", _number(text[:end]), text[end:].strip(), order, apart, len(parts), joined)


def _read_item(text: str, folded: str) -> Mark | None:
    """一、 and, of rank 1, （一）."""
    bracketed = folded[0] == "("
    match = (_BRACKETED if bracketed else _ITEM).match(folded)
    if match is None or (value := chinese_to_int(match["n"])) is None:
        return None
    rest = text[match.end() :].strip()
    grades = _GRADES.match(rest)
    if grades and chinese_to_int(grades["next"]) == value + 1:
        return None
    return Mark("item", _number(text[: match.end()]), rest, (value,), rank=int(bracketed))


def _read_chapter(text: str, folded: str) -> Mark | None:
    match = _CHAPTER.match(folded)
    if match is None or is_sentence(text) or _GOES_ON.match(folded, match.end()):
        return None
    end = match.start("apart") if match["apart"] else match.end()
    title = squeeze_title(text[end:].lstrip(" \t\u3000:："))
    number = _number(text[:end])
    return Mark(
        "chapter",
        number,
        f"{number} {title}".strip(),
        rank=_RANKS[match["unit"]],
        apart=match["apart"] is not None,
    )


def _read_annex(text: str, folded: str) -> Mark | None:
    match = _ANNEX.match(folded)
    if (
        match is None
        or (match["n"] and not match["unit"])
        or _COMMENTARY.fullmatch(text)
        or _NOTE.fullmatch(folded)
    ):
        return None
    rest = text[match.end() :].strip()
    blank = bool(match["apart"]) and not match["apart"].strip()
    if (blank or folded[match.end() : match.end() + 1] == "(") and is_sentence(rest) and not match["n"]:
        return None
    if rest.startswith("则") or (not match["unit"] and not match["apart"].strip() and rest):
        return None
    return Mark(
        "annex", _number(text[: match.start("apart")]) if match["unit"] else "附件", rest, _annex_order(match)
    )


def _annex_order(match: re.Match[str]) -> Order:
    numeral = match["n"] or ""
    return (numeral if numeral.isascii() and numeral.isalpha() else chinese_to_int(numeral) or 0,)


def _read_word(text: str, folded: str) -> Mark:
    squeezed = "".join(folded.split())
    if len(squeezed) <= 30:
        if _BARE_CHAPTER.fullmatch(squeezed):
            return Mark("chapter", "", squeeze_title(text), rank=RANK_CHAPTER)
        if _CONTENTS.fullmatch(squeezed):
            return Mark("contents")
        if _NOTE.fullmatch(squeezed):
            return Mark("note", squeezed, squeeze_title(text))
    match = _COMMENTARY.match(text)
    if match and (match["open"] or match[0][-1] in ":：" or match.end() == len(text)):
        return Mark("commentary", "", text[match.end() :].strip())
    return Mark("text")


def read_numbered_heading(text: str) -> tuple[int, str] | None:
    """(3, "材料") of "3 材料", which may as well be the third item of a list."""
    match = _NUMBERED.fullmatch(fold(text)) if len(text) <= MAX_HEADING_CHARS else None
    if match is None or is_sentence(text):
        return None
    return int(match["n"]), squeeze_title(text[match.start("title") :])
