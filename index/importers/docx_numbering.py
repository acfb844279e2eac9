"""The numbers that Word writes in front of paragraphs and stores nowhere: 第一条, 1.0.1, （一）.

Rule of ECMA-376 part 1, 17.9: a paragraph points at a list (`num`) and a level; the list points at its abstract
definition and may override its levels; a level counts on, and begins anew when a higher level counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cg_rag.index.importers.xml_tree import Element

MAX_LEVELS = 9
_DIGITS = "零一二三四五六七八九"
_LEGAL_DIGITS = "零壹贰叁肆伍陆柒捌玖"
_ROMAN = ((1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l"), (40, "xl"))
_ROMAN_ONES = ((10, "x"), (9, "ix"), (5, "v"), (4, "iv"), (1, "i"))
_CHINESE = frozenset(
    {
        "chineseCounting",
        "chineseCountingThousand",
        "taiwaneseCounting",
        "taiwaneseCountingThousand",
        "japaneseCounting",
        "koreanCounting",
    }
)
_LEGAL = frozenset({"chineseLegalSimplified", "ideographLegalTraditional", "japaneseLegal"})
_DIGITAL = frozenset({"ideographDigital", "japaneseDigitalTenThousand", "taiwaneseDigital"})


@dataclass(frozen=True, slots=True)
class Level:
    """`text` holds %1 .. %9 for the counts of the levels; `legal` writes the higher ones in ASCII digits."""

    format: str = "decimal"
    text: str = ""
    start: int = 1
    legal: bool = False
    restart: int | None = None


@dataclass
class Numbering:
    """The lists of one document and how far each has counted. Used once, paragraph by paragraph, in order."""

    levels: dict[str, dict[int, Level]] = field(default_factory=dict)
    abstract_of: dict[str, str] = field(default_factory=dict)
    starts: dict[tuple[str, int], int] = field(default_factory=dict)
    overrides: dict[str, dict[int, Level]] = field(default_factory=dict)
    _counts: dict[str, dict[int, int]] = field(default_factory=dict)
    _begun: set[tuple[str, int]] = field(default_factory=set)

    def next_label(self, list_id: str, level: int) -> str:
        """The number of the next paragraph of this list and level; "" for bullets and unknown lists."""
        abstract = self.abstract_of.get(list_id)
        if abstract is None or not 0 <= level < MAX_LEVELS:
            return ""
        levels = {**self.levels.get(abstract, {}), **self.overrides.get(list_id, {})}
        own = levels.get(level)
        if own is None:
            return ""
        counts = self._counts.setdefault(abstract, {})
        self._count(list_id, level, levels, counts)
        return _render(own, levels, counts)

    def _count(self, list_id: str, level: int, levels: dict[int, Level], counts: dict[int, int]) -> None:
        start = self.starts.get((list_id, level))
        if start is not None and (list_id, level) not in self._begun:
            counts[level] = start
        elif level in counts:
            counts[level] += 1
        else:
            counts[level] = start if start is not None else levels[level].start
        self._begun.add((list_id, level))
        for deeper in [one for one in counts if one > level]:
            restart = levels[deeper].restart if deeper in levels else None
            # 0: never begins anew; n: only when level n, counted from 1, or a higher one counts.
            if restart is None or level < restart:
                del counts[deeper]


def read_numbering(root: Element | None) -> Numbering:
    """From the root of numbering.xml."""
    numbering = Numbering()
    for element in root.children if root else ():
        if element.tag == "w:abstractNum":
            key = element.attributes.get("abstractNumId", "")
            numbering.levels[key] = _read_levels(element)
        elif element.tag == "w:num":
            _read_list(element, numbering)
    return numbering


def _read_list(element: Element, numbering: Numbering) -> None:
    list_id = element.attributes.get("numId", "")
    numbering.abstract_of[list_id] = element.get(("w:abstractNumId",), "val") or ""
    for override in element.children:
        if override.tag != "w:lvlOverride":
            continue
        level = to_int(override.attributes.get("ilvl"), 0)
        start = override.get(("w:startOverride",), "val")
        if start is not None:
            numbering.starts[list_id, level] = to_int(start, 1)
        if own := _read_levels(override):
            numbering.overrides.setdefault(list_id, {}).update(own)


def _read_levels(element: Element) -> dict[int, Level]:
    return {
        to_int(level.attributes.get("ilvl"), 0): Level(
            level.get(("w:numFmt",), "val") or "decimal",
            level.get(("w:lvlText",), "val") or "",
            to_int(level.get(("w:start",), "val"), 1),
            is_on(level.find("w:isLgl")),
            None if level.find("w:lvlRestart") is None else to_int(level.get(("w:lvlRestart",), "val"), 0),
        )
        for level in element.children
        if level.tag == "w:lvl"
    }


def is_on(element: Element | None) -> bool:
    """Whether a switch such as <w:vanish/> is there and not turned off."""
    return element is not None and element.attributes.get("val", "1") not in ("0", "false", "off")


def to_int(text: str | None, default: int) -> int:
    """A small number of an attribute; `default` for anything else."""
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 9:
        return default
    return int(text)


def _render(own: Level, levels: dict[int, Level], counts: dict[int, int]) -> str:
    if own.format in ("bullet", "none"):
        return ""
    label = own.text
    for level in range(MAX_LEVELS):
        if f"%{level + 1}" not in label:
            continue
        shown = levels.get(level, Level())
        count = counts.get(level, shown.start)
        label = label.replace(f"%{level + 1}", format_count(count, "decimal" if own.legal else shown.format))
    return label.strip()


def format_count(count: int, kind: str) -> str:
    """A count as ECMA-376 17.18.59 names its ways of writing; in ASCII digits where the way is not known."""
    if kind in _CHINESE:
        return to_chinese(count, _DIGITS, "十百千")
    if kind in _LEGAL:
        return to_chinese(count, _LEGAL_DIGITS, "拾佰仟")
    if kind in _DIGITAL:
        return "".join("〇一二三四五六七八九"[int(digit)] for digit in str(count))
    if kind in ("upperLetter", "lowerLetter") and 0 < count <= 780:
        letter = chr(ord("A") + (count - 1) % 26) * ((count - 1) // 26 + 1)
        return letter if kind == "upperLetter" else letter.lower()
    if kind in ("upperRoman", "lowerRoman") and 0 < count < 4000:
        roman = _to_roman(count)
        return roman.upper() if kind == "upperRoman" else roman
    if kind.startswith("decimalEnclosedCircle") and 0 < count <= 20:
        return chr(0x2460 + count - 1)
    if kind == "decimalZero":
        return f"{count:02}"
    return str(count)


def to_chinese(count: int, digits: str = _DIGITS, units: str = "十百千") -> str:
    """1234 -> 一千二百三十四; 10 -> 十, 110 -> 一百一十. ASCII digits from 10000 on."""
    if not 0 <= count < 10000:
        return str(count)
    if count < 10:
        return digits[count]
    text = ""
    places = [(count // 10**power % 10, power) for power in (3, 2, 1, 0)]
    for digit, power in places:
        if digit:
            text += digits[digit] + (units[power - 1] if power else "")
        elif text and not text.endswith(digits[0]):
            text += digits[0]
    text = text.rstrip(digits[0])
    one_ten = digits[1] + units[0]
    return text[1:] if text.startswith(one_ten) and digits is _DIGITS else text


def _to_roman(count: int) -> str:
    text = ""
    for value, letters in (*_ROMAN, *_ROMAN_ONES):
        text += letters * (count // value)
        count %= value
    return text
