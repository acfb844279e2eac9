"""The head of a law: its name with code and edition, whether it is in force, and from when.

Rule: only what the text or the file's name says. Where neither tells a status or a date there is none; today's date
is never asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date

from cg_rag.index.importers.headings import is_sentence, squeeze_title
from cg_rag.index.importers.markup import Piece
from cg_rag.index.importers.record import MAX_LAW_NAME_CHARS
from cg_rag.index.law_names import CODE, identify, read_code
from cg_rag.index.numerals import chinese_to_int, fold

IN_FORCE, REPEALED, AMENDED, NOT_YET = "现行有效", "已废止", "已修改", "尚未生效"
UNNAMED = "未命名文件"

# The head of a text is short; what stands deeper is its body.
_MAX_HEAD_LINES = 80

_LAW_WORD = "(?:法典?|条例|规定|办法|规范|标准|规程|细则|规则|通则|导则|准则|决定|决议|解释|通知|意见|公告|批复|章程|制度|预案|方案|指南|手册|要点|安排|公约|纲要)"
_LAW_NAME = re.compile(rf"{_LAW_WORD}(?:[（(《〈][^（）()。]{{1,40}}[）)》〉]|节选|全文){{0,3}}$")
_COVER = re.compile(
    r"(?:中华人民共和国)?(?:国家|行业|地方|团体|企业|推荐性|.{2,5}省|.{2,3}市|工程建设|.{2,6}工程建设){1,2}(?:地方)?标准"
    r"|UDC.*|P|ICS.*|备案号.*|.*CODE FOR.*|.*STANDARD FOR.*|.*SPECIFICATION FOR.*|(?:NATIONAL|PROFESSIONAL) STANDARD.*"
)
_DIGIT = "[0-9〇零一二三四五六七八九十]"
_DATE = rf"(?P<y>{_DIGIT}{{4}}) ?[年.-] ?(?P<m>{_DIGIT}{{1,3}}) ?[月.-] ?(?P<d>{_DIGIT}{{1,3}}) ?日?"
_DATED = re.compile(_DATE)
_KEYED = re.compile(
    r"(?P<key>时效性|法规状态|效力状态|状态|施行日期|实施日期|生效日期|公布日期|发布日期|颁布日期|制定机关|发布机关|发布部门|发布单位|颁布单位"
    r"|发文字号|文号|标准号|法规类别|法律效力位阶|效力级别|来源|出处|链接|网址|作者|责任编辑|编辑) ?[:：|] ?(?P<value>.*)"
)
_STATUS_KEYS = ("时效性", "法规状态", "效力状态", "状态")
_DATE_KEYS = ("施行日期", "实施日期", "生效日期")
_FROM = re.compile(rf"自 ?{_DATE} ?起(?:正式|开始)?(?:施行|实施|执行|生效)")
_COVER_DATE = re.compile(rf"{_DATE} ?(?:实施|施行)$")
_OWN_START = re.compile(
    rf"本[\u3400-\u9fff]{{1,8}}(?:，|,)?自 ?{_DATE} ?起(?:正式|开始)?(?:施行|实施|执行|生效)"
)
_REPEALED = re.compile(
    r"(?:已于?|现已|业经?|已经)[^，。]{0,30}(?:废止|失效|作废)|已被[^，。]{1,60}(?:废止|替代|代替|取代)"
    rf"|自 ?{_DATE} ?起(?:废止|失效|作废|停止执行)"
)
_ABOUT_OTHERS = re.compile("同时废止|予以废止|即行废止|代替的|历次版本")
_STATUSES = (
    (re.compile("尚未|未生效|未施行|即将"), NOT_YET),
    (re.compile("废止|失效|作废|被替代|被代替"), REPEALED),
    (re.compile("修改|修订|修正"), AMENDED),
    (re.compile("有效|现行|生效"), IN_FORCE),
)
_ACT = "(?:通过|公布|发布|颁布|施行|实施|修[订正改]|批准|废止|印发|起执行)"
_PLAIN_DATE = rf"{_DIGIT}{{4}} ?[年.-] ?{_DIGIT}{{1,3}} ?[月.-]"
_NOTE = re.compile(
    rf"[(（]|[(（]?.{{0,120}}?{_PLAIN_DATE}.*{_ACT}.*|[(（].{{0,200}}?(?:{_PLAIN_DATE}|{_ACT}|第[^ ]{{1,12}}号).*"
    r"|.{0,40}(?:令|公告|[〔\[]\d{4}[〕\]])? ?第? ?[0-9一二三四五六七八九十〇零百]{1,8} ?号[)）]?"
)
_ITEM = re.compile(r"[(（][0-9一二三四五六七八九十]{1,3}[)）]")
_ISSUE_DATE = re.compile(rf"{_DATE}[^。]{{0,80}}?(?:公布|发布|颁布|印发)(?!的)")
_ON_ISSUE = re.compile(r"本[\u3400-\u9fff]{1,8}自(?:公布|发布|颁布|印发)之日起?(?:施行|实施|执行|生效)")
_ISSUED = re.compile(
    r".{0,60}(?:印发|发布|公布|颁布)[《〈](?P<name>[^《》]{2,80}(?:《[^《》]{1,60}》[^《》]{0,40})*)[》〉]?的?(?:通知|公告|决定|通告|令)"
)
_STEM_TAIL = re.compile(
    r"(?:[ _-]*(?:clean[ _]text|clean|copy|副本|全文|正式版|word版)|[ _-]*[(（]?(?:19|20)\d\d-?\d\d-?\d\d[)）]?|[ _]*\(\d\))+$",
    re.I,
)
_STEM_HEAD = re.compile(r"^\d{1,3}[ _.、-]+(?=\D)")
_STATUS_IN_NAME = re.compile(
    r"[（(\[【](?P<status>已废止|废止|已失效|失效|现行有效|现行|已修改|尚未生效|尚未施行)[）)\]】]"
)


@dataclass(frozen=True, slots=True)
class Head:
    """`status` and `effective_date` "" where the text tells none; `title_lines` are places of the name's lines."""

    name: str
    code: str
    status: str
    effective_date: str
    title_lines: frozenset[int]


def read_head(pieces: Sequence[Piece], file_stem: str, ending: Iterable[str]) -> Head:
    """From the pieces before the body, the file's name without its suffix, and the articles that may tell the date."""
    pieces = pieces[:_MAX_HEAD_LINES]
    places = _find_title(pieces)
    title = "".join(pieces[place].text for place in places)
    stem = _clean_stem(file_stem)
    name = _complete(title or stem or UNNAMED, pieces, stem)
    status = _find_status(pieces, [title, file_stem])
    return Head(name, code_of(name), status, _find_start(pieces, ending), frozenset(places))


def is_law_name(text: str) -> bool:
    """Whether a line ends as names of laws do and is no sentence."""
    text = _STATUS_IN_NAME.sub("", text.strip())
    return 3 <= len(text) <= 120 and "。" not in text and bool(_LAW_NAME.search(text)) and not _is_cover(text)


def code_of(name: str) -> str:
    """GB55023-2022 of GB55023-2022施工脚手架通用规范, "" where a name has no code."""
    match = CODE.search(fold(name))
    found = read_code(match) if match else None
    return "" if found is None else found.code + (f"-{found.year}" if found.year else "")


def format_name(text: str) -> str:
    """A title as this project writes names of laws: code and edition without blanks before the title, no 《》."""
    text = squeeze_title(_STATUS_IN_NAME.sub("", text).strip())
    if text.startswith("《") and text.endswith("》") and text.count("《") == 1:
        text = text[1:-1].strip()
    code = code_of(text)
    match = CODE.search(fold(text))
    if match is None:
        return text[:MAX_LAW_NAME_CHARS]
    rest = f"{text[: match.start()]} {text[match.end() :]}"
    rest = re.sub(r"[（(\[【][\s_-]*[）)\]】]", " ", rest).strip(" _-—:：,，　")
    if rest.startswith("《") and rest.endswith("》") and rest.count("《") == 1:
        rest = rest[1:-1]
    return (code + squeeze_title(rest))[:MAX_LAW_NAME_CHARS]


def reason_of(text: str) -> str:
    """Why a line of the head is in no article."""
    folded = fold(text)
    if match := _KEYED.match(folded):
        return "来源" if match["key"] in ("来源", "出处", "链接", "网址") else "文首信息"
    if _is_cover(text) or CODE.fullmatch(folded.strip()):
        return "封面"
    if len(text) < 400 and not _ITEM.match(text) and _NOTE.fullmatch(folded):
        return "题注"
    return "首条之前的正文" if is_sentence(text) else "文首信息"


def is_head_line(text: str) -> bool:
    """Whether a line can only be of the head, in a text that has no articles to tell where the head ends."""
    return reason_of(text) in ("来源", "封面", "题注") or bool(_KEYED.match(fold(text)))


def is_source_line(text: str) -> bool:
    """来源：…, 责任编辑：… as web pages add them before and behind a law."""
    match = _KEYED.match(fold(text))
    return (
        match is not None
        and match["key"] in ("来源", "出处", "链接", "网址", "责任编辑", "编辑")
        and len(text) < 200
    )


def _is_cover(text: str) -> bool:
    return bool(_COVER.fullmatch(fold(text[:200]).strip()))


def _clean_stem(stem: str) -> str:
    stem = _STEM_TAIL.sub("", stem.strip().removesuffix(".md").removesuffix(".txt"))
    return _STEM_HEAD.sub("", stem).replace("_", " ").strip()


def _find_title(pieces: Sequence[Piece]) -> list[int]:
    """The places of the line, or of the two lines, that are the title."""
    for place, piece in enumerate(pieces):
        if piece.depth == 1 and not _is_cover(piece.text) and not CODE.fullmatch(fold(piece.text).strip()):
            return _with_second_line(pieces, place) if not is_law_name(piece.text) else [place]
    candidates = [place for place, piece in enumerate(pieces) if _may_be_title(piece)]
    if not candidates:
        return []
    best = candidates[0]
    issued = _ISSUED.fullmatch(pieces[best].text)
    if issued:
        same = [place for place in candidates if identify(pieces[place].text) == identify(issued["name"])]
        best = same[0] if same else best
    if best and _begins_title(pieces[best - 1].text) and not issued:
        return [best - 1, best]
    return [best]


def _may_be_title(piece: Piece) -> bool:
    if (
        piece.table
        or reason_of(piece.text) not in ("文首信息", "首条之前的正文")
        or _KEYED.match(fold(piece.text))
    ):
        return False
    if is_sentence(piece.text):
        return is_law_name(piece.text)
    name = format_name(piece.text)
    return is_law_name(name.removeprefix(code_of(name)))


def _with_second_line(pieces: Sequence[Piece], place: int) -> list[int]:
    """A title of two lines, both marked as title."""
    following = pieces[place + 1] if place + 1 < len(pieces) else None
    if following and following.depth == 1 and is_law_name(pieces[place].text + following.text):
        return [place, place + 1]
    return [place]


def _begins_title(text: str) -> bool:
    return (
        "关于" in text and not is_law_name(text) and not is_sentence(text) and reason_of(text) == "文首信息"
    )


def _complete(title: str, pieces: Sequence[Piece], stem: str) -> str:
    """Add the code that stands on the cover, or in the file's name beside the same title."""
    issued = _ISSUED.fullmatch(title)
    name = format_name(issued["name"] if issued else title)
    if code_of(name):
        return name
    for piece in pieces:
        if found := _code_line(piece.text):
            return (found + name)[:MAX_LAW_NAME_CHARS]
    from_stem = format_name(stem)
    named, filed = identify(name), identify(from_stem)
    same = filed.title == named.title or (filed.title and filed.title in named.title)
    if filed.code and same:
        return (code_of(from_stem) + name)[:MAX_LAW_NAME_CHARS]
    return name


def _code_line(text: str) -> str:
    """The code of a line that holds little else (中华人民共和国国家标准 GB 55023-2022)."""
    folded = fold(text[:80])
    match = CODE.search(folded)
    if match is None or len(text) > 60 or is_sentence(text) or re.search("代替|替代|备案|废止", text):
        return ""
    rest = f"{folded[: match.start()]}{folded[match.end() :]}".strip(" ()[]《》:")
    return code_of(text) if not rest or _is_cover(rest) or "标准" in rest[-4:] else ""


def _find_status(pieces: Sequence[Piece], names: Sequence[str]) -> str:
    for piece in pieces:
        match = _KEYED.match(fold(piece.text))
        if match and match["key"] in _STATUS_KEYS:
            return next((status for pattern, status in _STATUSES if pattern.search(match["value"])), "")
    for name in names:
        if found := _STATUS_IN_NAME.search(name):
            return next(status for pattern, status in _STATUSES if pattern.search(found["status"]))
    lines = (fold(piece.text[:400]) for piece in pieces if not _ABOUT_OTHERS.search(piece.text[:400]))
    return REPEALED if any(_REPEALED.search(line) for line in lines) else ""


def _find_start(pieces: Sequence[Piece], ending: Iterable[str]) -> str:
    for piece in pieces:
        match = _KEYED.match(fold(piece.text))
        if match and match["key"] in _DATE_KEYS and (found := _DATED.search(match["value"])):
            return _iso(found)
    texts = [fold(piece.text[:1000]) for piece in pieces]
    dates = [_iso(match) for text in texts for match in _FROM.finditer(text)]
    dates += [_iso(match) for text in texts if (match := _COVER_DATE.search(text[-40:]))]
    if any(dates):
        return max(dates)
    tail = [fold(text[-2000:]) for text in ending]
    own = [_iso(match) for text in tail for match in _OWN_START.finditer(text)]
    if own or not any(_ON_ISSUE.search(text) for text in tail):
        return own[-1] if own else ""
    return _issue_date(pieces)


def _issue_date(pieces: Sequence[Piece]) -> str:
    """The day of issue, where the head tells one and no other."""
    days: set[str] = set()
    for piece in pieces:
        folded = fold(piece.text[:400])
        match = _KEYED.match(folded)
        if (
            match
            and match["key"] in ("公布日期", "发布日期", "颁布日期")
            and (found := _DATED.search(match["value"]))
        ):
            return _iso(found)
        days |= {_iso(found) for found in _ISSUE_DATE.finditer(folded)}
    return days.pop() if len(days) == 1 else ""


def _iso(match: re.Match[str]) -> str:
    numbers = [_year(match["y"]), chinese_to_int(match["m"]), chinese_to_int(match["d"])]
    try:
        return date(*(number or 0 for number in numbers)).isoformat()
    except ValueError:
        return ""


def _year(text: str) -> int | None:
    return chinese_to_int(text.replace("零", "〇"))
