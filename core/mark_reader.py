"""Reads one citation mark, in whatever way a model wrote it. No I/O.

Rule: a mark is read as it looks (core/shown_text.py). What looks like one but is none (the year in 建质规〔2024〕5号, a
［注］, the ² of m²) is text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from cg_rag.core.shown_text import Undecided, fold, read_character, undo_codes

# Whether a mark begins at a character is decided within so many; where it is not, that character is dropped.
MAX_MARK_CHARS: Final = 200
_MAX_RANGE: Final = 20
_MAX_BRACKETS: Final = 4  # [[cite^1]] is one mark; of a longer row the last ones begin it

_SQUARE: Final = frozenset("[【〔〖⟦〚")
_OPEN: Final = _SQUARE | frozenset("{(<「『")
_CLOSE: Final = frozenset("]】〕〗⟧〛})>」』")
_SEPARATORS: Final = frozenset("^:_-.#ˆ˄∧\\=")
_JOIN: Final = frozenset(",、;/&|+和与及·^")
_RANGE: Final = frozenset("-~至到–—")
# The first ones are marks without brackets too, before a ^.
_BARE_WORDS: Final = ("citations", "citation", "cites", "cite")
_WORDS: Final = (
    *_BARE_WORDS,
    "reference",
    "refs",
    "ref",
    "evidence",
    "source",
    "引用",
    "证据",
    "引文",
    "来源",
)
_YEAR: Final = re.compile(r"(?:19|20)\d\d")

_UP: Final = "⁰¹²³⁴-⁹"
_JOINED: Final = "[,，、;；·˒⸴⁻~–至 ]{1,2}"
# A number above the line: ¹ ⁽²⁾ ¹,³ and <sup>1</sup>, <sup>[1]</sup>.
_RAISED: Final = re.compile(rf"⁽?[{_UP}]+(?:{_JOINED}[{_UP}]+)*⁾?")
_SUP: Final = re.compile(
    rf"<sup(?:\s[^<>\n]{{0,40}})?>\s{{0,4}}(?P<open>[\[［【〔(（])?\s{{0,4}}"
    rf"(?P<numbers>\d{{1,4}}(?:{_JOINED}\d{{1,4}}){{0,10}})\s{{0,4}}[\]］】〕)）]?(?:\s{{0,4}}</sup\s{{0,4}}>?)?",
    re.I,
)
_SUP_ENDS: Final = re.compile(r"</sup\s{0,4}\S", re.I)
_MAX_SUP: Final = 160
# It cites behind a word or a sentence; behind a unit or a sign (m², 10², x²) it is a power, and so is that of 米².
_CITES_BEHIND: Final = re.compile(
    r"(?:\A|[\n\u3001-\u303f\u3400-\u9fff\uff01-\uff65”’…\]!?;]|[A-Za-z]{4}|[A-Za-z]\.)[ \t\u3000]*\Z"
)
_POWER: Final = re.compile(r"[米里][ \t]*\Z")


def _find_starts() -> str:
    blocks = (
        (0x20, 0x7F),
        (0x2070, 0x20A0),
        (0x249C, 0x24EA),
        (0x27E6, 0x27EF),
        (0x3000, 0x3040),
        (0x1D400, 0x1D800),
    )
    codes = (
        code for first, last in (*blocks, (0xFE30, 0xFE70), (0xFF00, 0xFFEF)) for code in range(first, last)
    )
    starts = "".join(char for char in map(chr, codes) if fold(char) in _OPEN | {"c"})
    return rf"[{re.escape(starts)}сС{_UP}&\\]"


START: Final = re.compile(_find_starts())
"""Where a mark may begin."""


@dataclass(frozen=True, slots=True)
class Mark:
    """text[start:end]; `numbers` in the order written, each once. `is_bare`: nothing but numbers in brackets, or
    above the line."""

    start: int
    end: int
    numbers: tuple[int, ...]
    is_bare: bool


def read_mark(text: str, pos: int, is_final: bool, before: str = "") -> Mark | None:
    """The mark that begins at `pos`, read from no more than MAX_MARK_CHARS characters. `before` is what stands before
    it, a few characters or more. Raises Undecided where only a text that goes on can tell."""
    window = text[pos : pos + MAX_MARK_CHARS]
    mark = _read_raised(window, is_final, before) or _Reader(window, is_final).read()
    return mark and Mark(mark.start + pos, mark.end + pos, mark.numbers, mark.is_bare)


def find_marks(text: str) -> list[Mark]:
    """Every mark of any spelling in a whole text, ascending and disjoint."""
    found: list[Mark] = []
    pos = 0
    while start := START.search(text, pos):
        place = start.start()
        mark = read_mark(text, place, True, text[max(0, place - MAX_MARK_CHARS) : place])
        if mark:
            found.append(mark)
        pos = mark.end if mark else start.end()
    return found


def _read_raised(text: str, is_final: bool, before: str) -> Mark | None:
    if text[0] == "<":
        is_begun = text[:4].lower() == "<sup"[: len(text)] and not _SUP_ENDS.search(text)
        if is_begun and not is_final and len(text) < _MAX_SUP:
            raise Undecided
        match = _SUP.match(text)
        if match and (match["open"] or _is_cited(match["numbers"], before)):
            return Mark(0, match.end(), _numbers_of(match["numbers"]), True)
        return None
    match = _RAISED.match(text)
    if match is None:
        return None
    if not is_final and len(text) < match.end() + 3:
        raise Undecided
    if not _is_cited(match[0], before):
        return None
    return Mark(0, match.end(), _numbers_of(match[0]), True)


def _is_cited(written: str, before: str) -> bool:
    behind = undo_codes(before)
    behind = "".join(char for char in behind[-2 * _MAX_BRACKETS :] if fold(char) or char == "\n")
    if _POWER.search(behind) and unicodedata.normalize("NFKC", written) in ("2", "3"):
        return False
    return bool(_CITES_BEHIND.search(behind))


def _numbers_of(written: str) -> tuple[int, ...]:
    plain = unicodedata.normalize("NFKC", written).replace("\u2212", "-")
    digits = [part if part.isdigit() else "-" for part in re.findall(r"\d+|[-~–至]", plain)]
    return tuple(dict.fromkeys(_values(digits)))


class _Reader:
    """Reads the mark at the beginning of a text. Raises Undecided at the end of a text that is not final."""

    def __init__(self, text: str, is_final: bool) -> None:
        self._text = text
        self._is_final = is_final
        self._pos = 0
        self._next = 0  # where the character that was peeked at ends
        self._end = 0  # where the last one that was taken ends

    def read(self) -> Mark | None:
        first, _ = read_character(self._text, 0, self._is_final)
        if first not in _OPEN and first != "c":
            return None
        brackets = self._take_all(_OPEN)
        if len(brackets) > _MAX_BRACKETS:
            return None
        caret = bool(brackets) and self._peek() == "^" and bool(self._take_all(_SEPARATORS))
        word = self._take_word()
        separators = self._take_separators(bool(brackets)) if word else []
        if separators is None:
            return None
        if not brackets and (word not in _BARE_WORDS or "^" not in separators):
            return None
        if not word and not caret and not _SQUARE.issuperset(brackets):
            return None
        inner = self._take_all(_OPEN) if word else []
        is_bare = not word and not caret
        # （来源：2号楼） and （证据1张） are text; what is written like one of our own marks may lack its end.
        is_prose = word not in _BARE_WORDS and not caret and _SQUARE.isdisjoint(brackets)
        return self._read_numbers(len(brackets) + len(inner), is_bare, is_bare or is_prose)

    def _read_numbers(self, num_brackets: int, is_bare: bool, needs_end: bool) -> Mark | None:
        first = self._take_number()
        if first is None:
            return None
        end = self._end
        digits = [first]
        if num_brackets:
            digits += self._take_more_numbers()
            self._skip_source()
            if self._take_closing(num_brackets):
                end = self._end
            elif needs_end and self._peek() != "《":  # （引用：8《消防法》）
                return None
            else:
                digits = [first]
        # 建质〔2018〕31号, and 〔2021-2022〕: of evidence nobody has as much.
        if is_bare and all(_YEAR.fullmatch(number) for number in digits if number != "-"):
            return None
        return Mark(0, end, tuple(dict.fromkeys(_values(digits))), is_bare)

    def _peek(self, skip_blanks: bool = True) -> str:
        while self._pos < len(self._text):
            if self._skip_emphasis():
                continue
            char, self._next = read_character(self._text, self._pos, self._is_final)
            if char and (char != " " or not skip_blanks):
                return char
            self._pos = self._next
        if self._is_final:
            return ""
        raise Undecided

    def _skip_emphasis(self) -> bool:
        """Of [**9**] and [`9`] a page shows [9]; the single one of [3*4] multiplies."""
        if self._text[self._pos] == "`":
            self._pos += 1
            return True
        if self._text[self._pos] != "*":
            return False
        if self._pos + 1 == len(self._text) and not self._is_final:
            raise Undecided
        is_strong = self._text.startswith("**", self._pos)
        self._pos += 2 * is_strong
        return is_strong

    def _advance(self) -> None:
        self._pos = self._end = self._next

    def _take_all(self, chars: frozenset[str]) -> list[str]:
        found: list[str] = []
        while len(found) <= _MAX_BRACKETS and (char := self._peek()) and char in chars:
            found.append(char)
            self._advance()
        return found

    def _take_separators(self, has_brackets: bool) -> list[str] | None:
        """What stands between a word and its number; None when the word is closed off from it."""
        found = self._take_all(_SEPARATORS)
        if has_brackets and self._take_all(_CLOSE):
            found = self._take_all(_SEPARATORS)
            return found if "^" in found else None  # [cite]^1
        return found

    def _take_word(self) -> str | None:
        """The longest of the words here."""
        place = self._pos, self._end
        candidates, read, found = list(_WORDS), "", None
        while candidates:
            char = self._peek()
            candidates = [word for word in candidates if word.startswith(read + char)] if char else []
            if not candidates:
                break
            read += char
            self._advance()
            if read in candidates:
                found, place = read, (self._pos, self._end)
                candidates.remove(read)
        self._pos, self._end = place
        return found

    def _take_number(self) -> str | None:
        digits = ""
        self._peek()
        while (char := self._peek(skip_blanks=False)) and char in "0123456789":
            digits += char
            self._advance()
        return digits or None

    def _take_more_numbers(self) -> list[str]:
        """[cite^1, cite^2], 1-3: a range is given by a "-" between its ends."""
        found: list[str] = []
        while True:
            join = self._peek()
            if join in _RANGE:
                self._take_all(_RANGE)
            elif join in _JOIN:
                self._take_all(_JOIN)
            if self._take_word():
                self._take_all(_SEPARATORS)
            number = self._take_number()
            if number is None:
                return found
            found += ["-", number] if join in _RANGE else [number]

    def _skip_source(self) -> None:
        """【9†source】, as other services mark what they found."""
        if self._peek() == "†":
            while (char := self._peek()) and char not in _CLOSE:
                self._advance()

    def _take_closing(self, most: int) -> bool:
        for taken in range(most):
            char = self._peek()
            if not char or char not in _CLOSE:
                return taken > 0
            self._advance()
        return True


def _values(digits: list[str]) -> Iterator[int]:
    """Numbers of "1", "3", "-", "5". What is too large to be evidence stays a number that nothing has."""
    last = 0
    for place, number in enumerate(digits):
        if number == "-":
            continue
        value = int(number[:9])
        is_range = place > 0 and digits[place - 1] == "-" and 0 < value - last <= _MAX_RANGE
        yield from range(last + 1, value) if is_range else ()
        yield value
        last = value
