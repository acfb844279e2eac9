"""The closed vocabularies of hazard reports: levels, categories, labels. The data comes from prompts/, handed in.

Rule: a word that is not in a vocabulary, nor listed there as another way to write one of its words, is no value.
Nothing is matched by likeness: 脚手架 may be one of eight categories, 较大隐患 is no level of this scale, and guessing
would put the server's opinion into an inspector's report.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

NO_HAZARD: Final = "无隐患"
GENERAL: Final = "一般隐患"
SUSPECTED_MAJOR: Final = "疑似重大事故隐患"
MAJOR: Final = "重大事故隐患"
LEVELS: Final = (NO_HAZARD, GENERAL, SUSPECTED_MAJOR, MAJOR)

_NOISE: Final = re.compile(r"[\s*_`#\"'“”‘’「」『』【】〔〕\[\]<>~|\\]+")
# What may stand around a value: 属于一般隐患。, 3.13 高处作业, 高处作业类, 13、高处作业.
_NUMBER: Final = re.compile(r"^(?:\d{1,2}(?:\.\d{1,2})?[.、:)）．]?|[（(]\d{1,2}[)）])(?=[\u3400-\u9fff])")
_REMARK: Final = re.compile(r"\([^()]*\)|[,.;:!。，；：！—–].*$", re.DOTALL)
_HEDGE: Final = re.compile(r"^(?:属于|判定为|定为|初步判定为|综合判定为|建议判定为|为|是)")


@dataclass(frozen=True, slots=True)
class Taxonomy:
    """`spellings` maps every folded way to write a level or a category to it."""

    version: str
    categories: tuple[str, ...]
    none: str
    labels: tuple[str, ...]
    level_spellings: Mapping[str, str]
    category_spellings: Mapping[str, str]

    def find_level(self, written: str) -> str | None:
        """The level that a line names; None when it names none, or more than one.

        一般隐患（尚不构成重大事故隐患） is 一般隐患: a level that is denied is not named.
        """
        text = _DENIED.sub("", fold_value(written))
        named = _named(text, self.level_spellings)
        return next(iter(named)) if len(named) == 1 else None

    def find_category(self, written: str) -> str | None:
        """The category that a line names, `none` included; None when it names none, or more than one."""
        text = fold_value(written)
        if known := _lookup(text, self.category_spellings):
            return known
        parts = [part for part in re.split(r"[/、,;，；+&和及与]|\d[.、]", text) if part]
        found = {_lookup(part, self.category_spellings) for part in parts}
        return found.pop() if len(found) == 1 else None

    def find_label(self, written: str) -> str | None:
        """One of the labels of observe; blanks, brackets and quotation marks around it do not matter."""
        text = fold_value(written)
        for label in self.labels:
            if text in (label, label.removesuffix("问题")):
                return label
        return None


_LEVEL_NAME: Final = re.compile("无隐患|一般隐患|疑似重大(?:事故)?隐患|重大(?:事故)?隐患")
_DENIED: Final = re.compile(
    r"[,，。；;(（]?[^,，。；;(（]{0,12}?(?:未达到?|不构成|未构成|不属于|不是|并非|非|不足以|未见|不符合|未发现|没有|无)[^,，。；;)）]{0,10}?"
    r"(?:疑似)?重大(?:事故)?隐患[^,，。；;)）]{0,8}[)）]?"
)


def _named(text: str, spellings: Mapping[str, str]) -> set[str]:
    """The levels that the value and the remarks behind it name."""
    head = _lookup(text, spellings)
    if head is None:
        return set()
    mentioned = {spellings.get(match[0], "") for match in _LEVEL_NAME.finditer(text)} - {""}
    # 重大事故隐患（疑似） is one value, and the short name in it is not a second one.
    return {head} if text in spellings else {head} | mentioned


def _lookup(text: str, spellings: Mapping[str, str]) -> str | None:
    text = _HEDGE.sub("", text)
    for candidate in (
        text,
        _NUMBER.sub("", text),
        _REMARK.sub("", text),
        _NUMBER.sub("", _REMARK.sub("", text)),
    ):
        for form in (candidate, candidate.removesuffix("类"), candidate.removesuffix("级")):
            if form in spellings:
                return spellings[form]
    return None


def fold_value(written: str) -> str:
    """Full-width letters and brackets to ASCII, no blanks, quotation marks or Markdown, no full stop at the end."""
    text = unicodedata.normalize("NFKC", written)
    return _NOISE.sub("", text).strip("。.;；,，:：-—")


def load_taxonomy(taxonomy: Mapping[str, Any], labels: Mapping[str, Any]) -> Taxonomy:
    """From the parsed prompts/taxonomy.json and prompts/labels.json. Raises ValueError where they contradict the
    levels or each other."""
    if tuple(taxonomy["levels"]) != LEVELS:
        raise ValueError(f"taxonomy.json levels must be {LEVELS}")
    categories = tuple(entry["name"] for entry in taxonomy["categories"])
    none = taxonomy["none"]
    words = {entry["name"]: entry.get("also_written", ()) for entry in taxonomy["categories"]}
    words[none] = taxonomy.get("none_also_written", ())
    names = tuple(entry["label"] for entry in labels["labels"])
    if strange := {entry["category"] for entry in labels["labels"]} - set(categories):
        raise ValueError(f"labels.json names unknown categories: {sorted(strange)}")
    if len(set(names)) != len(names):
        raise ValueError("labels.json names a label twice")
    levels = {level: taxonomy.get("levels_also_written", {}).get(level, ()) for level in LEVELS}
    return Taxonomy(taxonomy["version"], categories, none, names, _spellings(levels), _spellings(words))


def _spellings(words: Mapping[str, Iterable[str]]) -> dict[str, str]:
    spellings: dict[str, str] = {}
    for name, others in words.items():
        for word in (name, *others):
            folded = fold_value(word)
            if spellings.setdefault(folded, name) != name:
                raise ValueError(f"{word} is written for both {spellings[folded]} and {name}")
    return spellings
