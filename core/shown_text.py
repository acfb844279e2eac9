"""What a reader of a text sees: entities, escapes and tags undone, what nobody sees left out. No I/O.

Rule: the page that shows an answer may read it as HTML or Markdown, so `&#91;cite^1&#93;`, `\\[cite^1\\]` and
`[ci<b></b>te^1]` look like `[cite^1]` there, and are looked for as that. Nothing else of them is changed: what is
published keeps its entities, a `&lt;script&gt;` among them.
"""

from __future__ import annotations

import html
import re
import unicodedata
from functools import lru_cache
from typing import Final

_TAG_NAMES: Final = (
    "a|abbr|b|bdi|bdo|big|br|center|code|dd|del|dfn|div|dl|dt|em|font|i|ins|kbd|label|li|mark|nobr|ol|p|pre|q|rp|rt|ruby"
    "|s|samp|small|span|strike|strong|sub|sup|table|tbody|td|th|thead|time|tr|tt|u|ul|var|wbr"
)
# The longest thing that stands for one character or for none.
_MAX_CODED: Final = 96
# <cite^1> is a mark, so only the tags that text is marked up with are tags. Of \1 the backslash is no escape.
_CODED: Final = re.compile(
    r"&(?:amp;){0,4}(?:\#\d{1,7}|\#x[0-9a-f]{1,6}|[a-z][a-z0-9]{1,31});?"
    r"|\\[!-/:-@\[-`{-~]"
    rf"|</?(?:{_TAG_NAMES})(?:[\s/][^<>\n]{{0,80}})?>"
    r"|<!--[^<>\n]{0,80}-->",
    re.I,
)
# Of such a thing, its beginning: & and what may be the name of an entity, a backslash, the beginning of a tag.
_BEGUN: Final = re.compile(
    rf"&[#;a-z0-9]{{0,56}}|\\|<(?:/?[a-z]{{0,6}}|/?(?:{_TAG_NAMES})[\s/][^<>\n]{{0,80}}|!-{{0,2}}|!--[^<>\n]{{0,80}}-{{0,2}})",
    re.I,
)
_CODES: Final = frozenset("&\\<")
# Letters of other scripts that look like those of the words that are looked for.
_LOOKALIKES: Final = str.maketrans("аіеторѕсԁһѵοανι", "aietopscdhvoavi")
_WIDTHLESS: Final = frozenset(("Cf", "Cc", "Mn", "Me", "Co", "Cn"))
_BLANK: Final = frozenset(("Zs", "Zl", "Zp"))


class Undecided(Exception):
    """The text ends where only more of it can tell."""


@lru_cache(maxsize=4096)
def fold(char: str) -> str:
    """The character that counts: small, half-width; " " for white space, "" for what nobody sees."""
    category = unicodedata.category(char)
    if category in _BLANK or char.isspace():
        return " "
    if category in _WIDTHLESS:
        return ""
    folded = unicodedata.normalize("NFKC", char).casefold().translate(_LOOKALIKES)
    return folded if len(folded) == 1 else char


def read_character(text: str, pos: int, is_final: bool) -> tuple[str, int]:
    """What stands at `pos`, folded, "" when it shows nothing, and where it ends. Raises Undecided."""
    if text[pos] not in _CODES:
        return fold(text[pos]), pos + 1
    end = min(len(text), pos + _MAX_CODED)
    if not is_final and end == len(text) and _BEGUN.fullmatch(text, pos, end):
        raise Undecided
    coded = _CODED.match(text, pos, end)
    undone = _undo(coded) if coded else None
    if coded is None or undone is None or len(undone) > 1:
        return fold(text[pos]), pos + 1
    return (fold(undone) if undone else ""), coded.end()


def _undo(coded: re.Match[str]) -> str | None:
    """None for what only looks like an entity."""
    written = coded[0]
    if written[0] == "<":
        return ""
    if written[0] == "\\":
        return written[1]
    bare = "&" + re.sub(r"^&(?:amp;)*", "", written, flags=re.I)
    undone = html.unescape(bare)
    return None if undone == bare else undone


def undo_codes(text: str) -> str:
    """A whole text with its entities, escapes and tags undone, its letters as they are."""
    if _CODES.isdisjoint(text):
        return text
    return _CODED.sub(lambda coded: coded[0] if (undone := _undo(coded)) is None else undone, text)


class _Folds(dict[int, str]):
    """For str.translate; ends of lines stay."""

    def __missing__(self, code: int) -> str:
        seen = "\n" if code == 0x0A else fold(chr(code))
        if len(self) < 4096:
            self[code] = seen
        return seen


_FOLDS: Final = _Folds()


def shown(text: str) -> str:
    """A whole text as it looks, folded; ends of lines stay."""
    return undo_codes(text).translate(_FOLDS)


def cut_shown(text: str, pattern: re.Pattern[str]) -> str:
    """`text` without what matches `pattern` as it looks. The rest is untouched."""
    if not pattern.search(shown(text)):
        return text
    seen: list[str] = []
    places: list[tuple[int, int]] = []
    pos = 0
    while pos < len(text):
        char, end = read_character(text, pos, is_final=True)
        char = "\n" if text[pos] == "\n" else char
        if char:
            seen.append(char)
            places.append((pos, end))
        pos = end
    kept, pos = [], 0
    for match in pattern.finditer("".join(seen)):
        if match.end() > match.start():
            kept.append(text[pos : places[match.start()][0]])
            pos = places[match.end() - 1][1]
    return "".join((*kept, text[pos:]))
