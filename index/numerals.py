"""Numbers as laws and standards write them: Chinese numerals, and the numbers of articles.

`article_key` brings every spelling of one article number to one key:

    28              第二十八条, 第28条, ２８
    133-2           第一百三十三条之二
    6.0.5           第6.0.5条, §6.0.5
    6.0.5(1)        6.0.5（1）, 第6.0.5(1)条, 第6.0.5条第1款: in a standard, 款 is the numbered item
    7:1  7:1(2)     第七条第一款, 第七条第一款第（二）项: in a law, 款 is an unnumbered paragraph
    附录a  附录a.0.1  附录Ａ, A.0.1
    附件1  条目1      附件一; 一、 of a decision that has no 第X条 (never the same as 第一条)
    (1)            （一）, (1): an article that has no other number

What fits none of these is its own key, folded.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

CHINESE_DIGITS = "零〇一二两三四五六七八九十百千万廿卅"

_DIGITS = {"零": 0, "〇": 0, "一": 1, "二": 2, "两": 2} | {
    c: n for n, c in enumerate("三四五六七八九", start=3)
}
_UNITS = {"十": 10, "百": 100, "千": 1000, "万": 10000}


def _fold_table() -> dict[int, str]:
    table = {code: chr(code - 0xFEE0).upper() for code in range(0xFF01, 0xFF5F)}
    table |= {code: chr(code).upper() for code in range(ord("a"), ord("z") + 1)}
    table |= {ord(c): " " for c in "\t\u00a0\u1680\u202f\u205f\u3000\u200b\ufeff"}
    table |= dict.fromkeys(range(0x2000, 0x200B), " ")
    table |= {ord(c): "-" for c in "‐‑‒–—―−─﹣"}
    table |= {ord(a): b for a, b in zip("〈〉○﹙﹚﹝﹞∶﹒", "《》〇()〔〕:.", strict=True)}
    return table | {ord(a): b for a, b in zip(_TRADITIONAL, _SIMPLIFIED, strict=True)}


# The traditional characters of the grammar (第八條第二項), and those that names of site-safety laws are made of.
_TRADITIONAL = "條項規則範標準辦錄編節國華號釋議決試訂廢築產設備機電氣質環護險勞動業衛職業單術實腳梯軌鐵運輸應檢驗證許責罰獎處報調補償懲訴訟關於據與"
_SIMPLIFIED = "条项规则范标准办录编节国华号释议决试订废筑产设备机电气质环护险劳动业卫职业单术实脚梯轨铁运输应检验证许责罚奖处报调补偿惩诉讼关于据与"


_FOLD = _fold_table()


def fold(text: str) -> str:
    """Full-width to ASCII, ASCII letters to capitals, blanks and dashes to one kind.

    One character for one: positions in the result are positions in `text`.
    """
    return text.translate(_FOLD)


def squeeze(text: str) -> str:
    """The form that keys are made of: NFKC, folded, no blanks, small letters. Idempotent."""
    for _ in range(4):
        done = "".join(unicodedata.normalize("NFKC", text).translate(_FOLD).casefold().split())
        if done == text:
            break
        text = done
    return text


def chinese_to_int(text: str) -> int | None:
    """Value of a Chinese numeral or a row of ASCII digits; None when it is neither.

    A row of digits is read by position (一二三 is 123); a digit right after 百, 千 or 万 at the end counts
    the next lower unit (一百一 is 110, as it is spoken; 101 is 一百零一).
    """
    if text.isascii() and text.isdigit():
        return int(text) if len(text) <= 9 else None
    text = text.replace("廿", "二十").replace("卅", "三十")
    if text and all(c in _DIGITS for c in text):
        return int("".join(str(_DIGITS[c]) for c in text)) if len(text) <= 9 else None
    head, wan, tail = text.partition("万")
    if not wan:
        return _below_wan(text)
    high, low = _below_wan(head), _below_wan(tail) if tail else 0
    if high is None or low is None:
        return None
    return high * 10000 + (low * 1000 if len(tail) == 1 and tail in _DIGITS else low)


def _below_wan(text: str) -> int | None:
    if not text:
        return None
    total, digit, unit, last_unit, after_zero = 0, None, 0, 10000, False
    for c in text:
        if c in "零〇":
            if digit is not None:
                return None
            after_zero = True
        elif c in _DIGITS:
            if digit is not None:
                return None
            digit = _DIGITS[c]
        else:
            unit = _UNITS.get(c, 10000)
            if unit >= last_unit:
                return None
            total += (1 if digit is None else digit) * unit
            digit, last_unit, after_zero = None, unit, False
    if digit is None:
        return None if after_zero and total else total
    spoken = last_unit if last_unit in (100, 1000) and not after_zero else 10
    return total + digit * spoken // 10


_N = rf"(?:\d{{1,9}}|[{CHINESE_DIGITS}]{{1,12}})"
_ITEM = re.compile(rf"(?:条目({_N})|({_N})、)")
_BRACKETED = re.compile(rf"\(({_N})\)")
_ANNEX = re.compile(rf"(附件|附录|附表)({_N})")
_APPENDIX = re.compile(
    r"(?:附录([a-z])(?:第?\1(?=\.))?|第?([a-z])(?=\.\d))(\.?\d{1,4}(?:\.\d{1,4}){0,5})?条?"
)
_DOTTED = re.compile(r"§?第?(\d{1,4}(?:\.\d{1,4}){1,5})条?")
_PLAIN = re.compile(rf"§?第?({_N})(?:之({_N})|-(\d{{1,9}}))?条?(?:之({_N}))?")
_SUB = re.compile(
    rf":(\d{{1,9}})|第?({_N})款|第?\(({_N}|[a-z])\)项?|第({_N})项|:?([a-z])\)|第?({_N})目",
)
_ARTICLE_BEHIND_ITEM = re.compile(r"(?<=\))条(?=第|$)")  # 第6.0.5(1)条 is 第6.0.5条(1)
_SUB_TAIL = re.compile(r"(?::\d+|\([^()]+\))$")
_CANONICAL = re.compile(r"(?:\d+(?:-\d+|(?:\.\d+)+)?|附录[a-z](?:\.\d+)*)(?::\d+|\(\w+\))*")


@lru_cache(maxsize=8192)
def article_key(number: str) -> str:
    """Normal form of an article number, for matching only. Idempotent; never raises."""
    text = re.sub("[①-⑳]", lambda m: f"({ord(m[0]) - 0x245F})", number)
    text = _ARTICLE_BEHIND_ITEM.sub("", squeeze(text))
    head, end = _head_key(text)
    tail = _sub_key(text, end, dotted="." in head or head.startswith("附")) if head else None
    return text if tail is None else head + tail


def _head_key(text: str) -> tuple[str, int]:
    """The key of the article itself and where its spelling ends; "" when there is none."""
    if match := _ITEM.match(text):
        return _numbered("条目", match[1] or match[2]), match.end()
    if match := _BRACKETED.match(text):
        value = chinese_to_int(match[1])
        return "" if value is None else f"({value})", match.end()
    if match := _ANNEX.match(text):
        return _numbered(match[1], match[2]), match.end()
    if match := _APPENDIX.match(text):
        clause = ".".join(str(int(part)) for part in (match[3] or "").lstrip(".").split(".") if part)
        return f"附录{match[1] or match[2]}" + (f".{clause}" if clause else ""), match.end()
    if match := _DOTTED.match(text):
        return ".".join(str(int(part)) for part in match[1].split(".")), match.end()
    if match := _PLAIN.match(text):
        numbers = [chinese_to_int(part) for part in match.groups() if part]
        if None not in numbers and len(numbers) <= 2:
            return "-".join(map(str, numbers)), match.end()
    return "", 0


def _numbered(prefix: str, numeral: str) -> str:
    value = chinese_to_int(numeral)
    return "" if value is None else f"{prefix}{value}"


def _sub_key(text: str, pos: int, dotted: bool) -> str | None:
    """Key of the paragraph and items that follow at `pos`; None when something else follows."""
    key = ""
    while pos < len(text):
        match = _SUB.match(text, pos)
        if match is None:
            return None
        numeral = next(group for group in match.groups() if group)
        value = numeral if numeral.isalpha() and numeral.isascii() else chinese_to_int(numeral)
        if value is None:
            return None
        is_paragraph = match[1] or match[2]
        key += f":{value}" if is_paragraph and not dotted else f"({value})"
        pos = match.end()
    return key


def parent_keys(key: str) -> list[str]:
    """Keys of what holds the numbered thing, nearest first: "7:1(2)" -> ["7:1", "7"]."""
    parents = []
    while _CANONICAL.fullmatch(key):
        shorter = _SUB_TAIL.sub("", key)
        if shorter == key and key.startswith("附录"):
            shorter = key[:3]
        if shorter == key:
            break
        parents.append(key := shorter)
    return parents


def parts_key(parent: str) -> str:
    """The key under which every part of `parent` is stored, and `parent` itself is not.

    It tells that 6.0.5 is stored in parts: a citation of 6.0.5(9) may mean 6.0.5 only where it is not.
    """
    return f"{parent}(*)"


def lookup_keys(number: str) -> list[str]:
    """The keys under which an article of this number is stored: its own, then those of its parents.

    "28" -> ["28"]; "6.0.5(1)" -> ["6.0.5(1)", "6.0.5", "6.0.5(*)"].
    """
    key = article_key(number)
    keys = [key]
    for parent in parent_keys(key):
        keys += [parent, parts_key(parent)]
    return keys
