"""What a law or standard is called: codes, titles, editions, and the keys that make two spellings one law.

A name has three parts, each of which a writer may leave out: the title (施工脚手架通用规范), the code
(GB55023) and the edition (2022, from the code, or from a bracket such as （2018年修订）). Two names agree
when the parts that both have agree; nothing is ever matched by likeness.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cg_rag.index.numerals import fold, squeeze

COMMENTARY = "条文说明"

# 《…》 with up to four inner 《…》; possessive, so that an unclosed bracket costs one short pass.
BOOK = re.compile(r"《([^《》\n]{0,120}+(?:《[^《》\n]{0,120}+》[^《》\n]{0,120}+){0,4}+)》")

# Series of building sites: these are codes even without an edition. Any other capitals are a code only where
# an edition or an article follows (XYZ 101-2025), so that C30, HRB400 or PM2.5 are none.
_SERIES = (
    "GBJ|GBZ|GB|JGJ|JG|CJJ|CJ|JTG|JTJ|JTS|JT|SL|DL|AQ|HG|SH|SY|TB|YB|YS|JB|JC|XF|GA|LD|MT|NB|HJ|WS"
    "|CECS|TSG|RFJ"
)
_NUMBER = r"\d{1,6}(?:\.\d{1,2})?"
_EDITED = (
    rf"(?={_NUMBER} ?(?:- ?(?:19|20)\d\d(?!\.?\d)| {{0,2}}(?:第 ?[0-9]|§|[0-9]{{1,2}}\.[0-9]{{1,2}}\.[0-9])))"
)
_CODE = (
    r"(?<![A-Z0-9/])(?:"
    rf"(?P<base>{_SERIES})(?: ?/? ?(?P<kind>[TZ]))?(?P<volume> ?[A-Z](?=\d))?[ -]{{0,2}}"
    r"|(?P<local>DBJ?|DG/TJ|DGJ) ?(?P<place>\d{2})?(?: ?/ ?(?P<mark>[TJZ]{1,2})?)?[ -]{0,2}"
    r"|(?P<group>[TQ] ?/ ?[A-Z]{2,10})[ -]{0,2}"
    rf"|(?P<other>[A-Z]{{2,6}}(?:/[A-Z]{{1,3}})?)[ -]{{0,2}}{_EDITED}"
    rf")(?P<number>{_NUMBER}(?:-\d{{1,3}}(?= ?- ?(?:19|20)\d\d(?!\d)))?)(?![0-9])"
    r"(?: ?- ?(?P<year>(?:19|20)\d\d|[5-9]\d)(?!\.?\d))?"
)
CODE = re.compile(_CODE)

_YEAR = re.compile(r"(?:19|20)\d\d(?!\d)")
_ORDER = re.compile(
    r"令|号|〔|公告|简称|下称|公布|发布|施行|实施|修[订正改]|版|通过|备案|现行|有效|样例|示例"
)
_QUALIFIER = re.compile(r"[一二三四五六七八九十]{1,3}|试行|暂行|征求意见稿|送审稿|报批稿|草案")
_PARENTHESIS = re.compile(r"\(([^()]{0,80}+)\)")
_NOISE = re.compile(r"[-\s_·.,、:;*\"'“”‘’《》]+")
_STATE = "中华人民共和国"


@dataclass(frozen=True, slots=True)
class CodeMatch:
    """A code found at `start` .. `end`: normal form ("GB/T50720") and edition ("2011" or None)."""

    code: str
    year: str | None
    start: int
    end: int


def read_code(match: re.Match[str]) -> CodeMatch:
    """Take a match of CODE (on folded text) apart."""
    part = {key: (value or "").replace(" ", "") for key, value in match.groupdict().items()}
    if part["group"] or part["other"]:
        series = part["group"] or part["other"]
    elif part["local"]:
        slash = "/" if "/" in match[0].replace("DG/TJ", "").split(part["number"])[0] else ""
        series = part["local"] + part["place"] + slash + part["mark"]
    else:
        series = part["base"] + (f"/{part['kind']}" if part["kind"] else "") + part["volume"]
    year = f"19{part['year']}" if len(part["year"]) == 2 else part["year"]
    return CodeMatch(series + part["number"], year or None, match.start(), match.end())


def code_key(code: str) -> str:
    """A code for matching. GB/T 50720 and GB 50720 are one standard: /T says how binding an edition is."""
    return re.sub(r"/[tzj]{0,2}(?=\d)", "", code.casefold())


@dataclass(frozen=True, slots=True)
class Parenthesis:
    """What a bracket behind a name says; all None: an order number or the like, to be skipped."""

    code: CodeMatch | None = None
    year: str | None = None
    qualifier: str | None = None
    commentary: bool = False


def read_parenthesis(content: str) -> Parenthesis | None:
    """Classify the folded text of a bracket: code, edition, part of the title, order. None: other text."""
    content = content.strip()
    if match := CODE.match(content):
        return Parenthesis(code=read_code(match))
    if content == COMMENTARY:
        return Parenthesis(commentary=True)
    if _QUALIFIER.fullmatch(content):
        return Parenthesis(qualifier=content)
    if re.search("令|号|〔|公告", content):
        return Parenthesis()
    if match := _YEAR.match(content):
        return Parenthesis(year=match[0])
    return Parenthesis() if _ORDER.search(content) else None


@dataclass(frozen=True, slots=True)
class Identity:
    """The parts of a name, as keys: `title` "" when it has none, `code` "" when it has none."""

    title: str
    code: str
    years: frozenset[str]
    commentary: bool

    def agrees(self, other: Identity) -> bool:
        """Same code where both have one, same title where both have one, same kind of text.

        With equal codes one title may be a piece of the other (脚手架通用规范), because the code has decided.
        """
        if self.commentary != other.commentary or (self.code and other.code and self.code != other.code):
            return False
        if not self.title or not other.title or self.title == other.title:
            return True
        shorter, longer = sorted((self.title, other.title), key=len)
        return bool(self.code) and self.code == other.code and len(shorter) >= 4 and shorter in longer


def identify(name: str) -> Identity:
    """Take a law's name apart, as a corpus or a writer gives it. Never raises."""
    text = fold(squeeze(name))
    years: set[str] = set()
    code = ""
    if match := CODE.search(text):
        found = read_code(match)
        code = code_key(found.code)
        years |= {found.year} if found.year else set()
        text = f"{text[: found.start]} {text[found.end :]}"

    def drop(match: re.Match[str]) -> str:
        inner = read_parenthesis(match[1]) if match[1] else Parenthesis()
        if inner is None or inner.qualifier:
            return match[0]
        years.update({inner.year} if inner.year else set())
        return COMMENTARY if inner.commentary else ""

    if "(" in text:
        text = _PARENTHESIS.sub(drop, text)
    text = _NOISE.sub("", text)
    commentary = text.endswith(COMMENTARY)
    text = re.sub(f"[及其的]*{COMMENTARY}$", "", text) if commentary else text
    return Identity((text.replace(_STATE, "") or text).casefold(), code, frozenset(years), commentary)


def law_keys(law_name: str) -> list[str]:
    """Every normal form under which this law of a corpus may be named, most complete first, no duplicates.

    "GB55023-2022施工脚手架通用规范" -> that name folded, "施工脚手架通用规范", "gb55023-2022", "gb55023".
    Forms of a commentary end in 条文说明, so that they never equal those of the normative text.
    """
    identity = identify(law_name)
    suffix = COMMENTARY if identity.commentary else ""
    editions = [f"{identity.code}-{year}" for year in sorted(identity.years)] if identity.code else []
    forms = [identity.title, *editions, identity.code]
    keys = [squeeze(law_name), *(form + suffix for form in forms if form)]
    return list(dict.fromkeys(keys))


def spoken_titles(law_name: str) -> set[str]:
    """The title as it may stand in a sentence without 《》, folded: no code, edition or order number.

    Two forms where the name has blanks inside, else one; none where it is all code.
    """

    def drop(match: re.Match[str]) -> str:
        inner = read_parenthesis(match[1])
        return match[0] if inner is None or inner.qualifier else ""

    text = _PARENTHESIS.sub(drop, CODE.sub(" ", fold(law_name))).strip(" -_·.,、:;*")
    if text.startswith("《") and text.endswith("》") and "《" not in text[1:]:
        text = text[1:-1]
    text = text.removeprefix(_STATE) or text
    return {text, text.replace(" ", "")} - {""}
