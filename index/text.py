"""How text becomes terms, the same way for articles and for queries.

Rule: a term depends on the spelling a reader sees, not on the code points behind it. Full and half width
letters, kinds of dashes, upper and lower case and invisible characters make no difference.

Terms of a text:
    Han runs            every character and every pair of neighbours
    letters             whole: "hrb", "pm", "φ"
    numbers             whole, dotted ones too: "28", "6.0.5"; "6.0.5(1)" gives "6.0.5" and "6.0.5(1)"
    letters + number    also joined over one dash, slash or space: "gb55023", "jgj46", "c30"
A standard's code is thus found with or without its year, its "/T", its letters or its spaces.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

# Recorded in the manifest of an index: change it whenever terms() answers differently for any text.
TOKENISER_VERSION = "han12-words-1"

# CJK unified ideographs with their extensions, compatibility ideographs without a decomposition, 々 and 〇.
HAN_RANGES = (
    (0x3005, 0x3005),
    (0x3007, 0x3007),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)
# No letter and no digit is here, so find_words never begins here: controls and signs of ASCII, punctuation of
# Latin and of Chinese text.
NEVER_IN_WORDS = (
    (0x00, 0x2F),
    (0x3A, 0x40),
    (0x5B, 0x60),
    (0x7B, 0x7F),
    (0x2010, 0x2027),
    (0x3001, 0x3003),
    (0x3008, 0x3020),
)
_HAN = "".join(f"{chr(first)}-{chr(last)}" for first, last in HAN_RANGES)
_HAN_RUN = re.compile(f"[{_HAN}]+")
_LETTER = rf"[^\W\d_{_HAN}]"
_NUMBER = r"\d+(?:\.\d+)*"
_WORD = re.compile(
    rf"(?P<letters>{_LETTER}+(?:/{_LETTER}+)*)(?:[ ]{{0,2}}[-/]?[ ]{{0,2}}(?P<joined>{_NUMBER}))?"
    rf"|(?P<number>{_NUMBER})"
    rf"|(?<=\d)\((?P<item>\d{{1,2}})\)"
)

# Soft hyphen, zero-width and directional marks, variation selectors: not seen, so not compared.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\U000e0100-\U000e01ef]"
)
_DASHES = re.compile("[\u2010-\u2015\u2212\u2500\u2e3a\u2e3b]")
_SLASHES = re.compile("[\u2044\u2215]")

# These few are most of what NFKC changes in Chinese text. Replaced beforehand they leave text that NFKC only
# has to look at: 45 ms instead of 250 ms for 2.9 million characters. The result is the same, since NFKC maps
# each of them to exactly this character.
_COMMON_WIDE = (("，", ","), ("；", ";"), ("：", ":"), ("（", "("), ("）", ")"), ("\u3000", " "))

# GBT 50720 is written for GB/T 50720: after these the T says "recommended" and is no part of the name.
_STANDARD_PREFIXES = frozenset(
    ["gb", "gbj", "gbz", "jgj", "jg", "cjj", "cj", "cecs", "db", "dbj", "dg", "dl", "sl", "sy", "hg", "jc"]
)


def normalise(text: str) -> str:
    """NFKC, case folded, every dash as "-", no invisible characters. Applied to both sides of matching."""
    text = _INVISIBLE.sub("", text)
    for wide, narrow in _COMMON_WIDE:
        text = text.replace(wide, narrow)
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return _SLASHES.sub("/", _DASHES.sub("-", text))


def terms(text: str) -> list[str]:
    """All terms of any text, repeated as often as they occur, in no promised order. Never raises."""
    text = normalise(text)
    found: list[str] = []
    for run in _HAN_RUN.findall(text):
        found += run
        found += [run[i : i + 2] for i in range(len(run) - 1)]
    found += find_words(text)
    return found


def find_words(normalised: str) -> Iterator[str]:
    """The terms of normalised text that are not made of Han characters."""
    before = ""
    for match in _WORD.finditer(normalised):
        letters, joined, number, item = match.groups()
        if letters:
            yield from _letter_terms(letters, joined)
        elif number:
            yield number
        else:
            yield f"{before}({item})" if "." in before else item
        before = joined or number or ""
        if joined:
            yield joined


def _letter_terms(letters: str, number: str | None) -> Iterator[str]:
    parts = [_without_t(part) for part in letters.split("/") if part != "t"] or ["t"]
    yield from parts
    if number is None:
        return
    # GB/T 50720 is one code; of kN/m2 both kNm2 and m2 may be asked for.
    prefixes = {"".join(parts), parts[-1]}
    numbers = {number, number.partition(".")[0]}
    yield from sorted(prefix + digits for prefix in prefixes for digits in numbers)


def _without_t(letters: str) -> str:
    return letters[:-1] if letters.endswith("t") and letters[:-1] in _STANDARD_PREFIXES else letters
