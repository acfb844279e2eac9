"""The laws and articles that a report names, held against its evidence and the criteria; what has neither is cut. No I/O.

Rule: an article named in a published text is evidence of this request or a clause of the criteria. A name that leads
nowhere takes the claim with it that stands on it: the item of a basis; elsewhere the phrase (按照…的要求，), else the
sentence. Measures survive without the article that a model remembered for them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from cg_rag.core.criteria import Criteria, Finder, Found
from cg_rag.core.evidence import Evidence
from cg_rag.core.report import Block, Report, Section
from cg_rag.core.report_format import number_items
from cg_rag.core.report_parse import reread_items

Verdict = Literal["evidence", "criteria", "unsupported"]

_REFERENCE: Final = "\ufffc"  # stands for what is cut while the phrase around it is looked for
_LEAD: Final = (
    "(?:依据|根据|按照|遵照|依照|参照|参考|违反了?|不符合|不满足|未满足|符合|满足|执行|参见|详见|见|按|依)"
)
_TAIL: Final = "(?:[的中之]?(?:有关|相关|强制性)?(?:规定|要求|条款|条文|标准|规范)(?:要求)?)?"
_ROW: Final = rf"{_REFERENCE}(?:[、，,和及与/ ]*{_REFERENCE})*"
_OPEN, _CLOSE = "[（(【]", "[)）】]"
# The widest first: （…）, 按照…的要求，, …：, ，违反…的规定 at the end of a sentence.
_PHRASES: Final = (
    re.compile(rf" ?{_OPEN}(?:{_LEAD}|依据：|依据:)?[ :：]*{_ROW}{_TAIL}{_CLOSE}"),
    re.compile(
        rf"(?:^|(?<=[。；;！!\n，,、：:] )|(?<=[。；;！!\n，,、：:]))(?:应|须|要|严格|并|必须)?{_LEAD} ?{_ROW}{_TAIL} ?[，,：:]\s?"
    ),
    re.compile(rf"(?:^|(?<=[。；;！!\n] )|(?<=[。；;！!\n]))(?:属于|涉及|见)? ?{_ROW}{_TAIL} ?[：:]\s?"),
    re.compile(rf"[，,；;]\s?(?:不|未|已|涉嫌|属于|严重)?{_LEAD} ?{_ROW}{_TAIL}(?=[。；;！!\n]|$)"),
)
_NUMBER: Final = re.compile(rf"{_OPEN}{_REFERENCE}{_CLOSE}|第?{_REFERENCE}条?")
_MARKER: Final = re.compile(r"\s*(?:[-*]|\d{1,2}[.、])\s*")
_PARENTHESIS: Final = re.compile(r"[（(]([^（）()]+)[）)]")
_LAW: Final = re.compile(
    r"[0-9.]{0,8}(?![该本此其上前])[\u4e00-\u9fff]{1,30}(?:法|条例|规范|标准|规程|规定|办法|规则)"
)
# 安全生产法第28《规范》2.0.1条: an article whose 条 stands behind another name is named all the same.
_BROKEN: Final = re.compile(rf"{_LAW.pattern}第[0-9一二三四五六七八九十百]{{1,6}}\Z")
_OUTER: Final = re.compile(r"《(?=[^《》\n]*《)")
_MAX_PASSES: Final = 20
_SENTENCE: Final = re.compile(r"[^。；;！!？?\n]*[。；;！!？?]?")


@dataclass(frozen=True, slots=True)
class Claim:
    """text[start:end] is `raw`. `evidence` are the numbers (from 1) of the evidence that it names, of all articles of
    the law where it names no article. `is_number`: nothing but a number like 6.0.5, which is cut alone."""

    start: int
    end: int
    raw: str
    verdict: Verdict
    evidence: tuple[int, ...] = ()
    is_number: bool = False


class References:
    """What a report may name: the evidence of its request so far (numbered from 1 without a gap) and the criteria.

    `make_finder` makes the look-up over a list of (law_name, article_number). About 2 ms for 40 articles.
    """

    def __init__(
        self,
        evidence: Sequence[Evidence],
        criteria: Criteria,
        make_finder: Callable[[Sequence[tuple[str, str]]], Finder],
    ) -> None:
        articles = [(entry.law_name, entry.article_number) for entry in evidence]
        self.num_evidence = len(articles)
        self._find = make_finder([*articles, *criteria.articles()])
        self._criteria_letters = _letters(criteria.name)
        self._contents = [_squeeze(entry.contents) for entry in evidence]

    def check(self, text: str) -> list[Claim]:
        """Every law and article that `text` names, ascending, with what it stands on."""
        # 《消防法《建筑法》第三条: the inner one is read, in a text of the same length.
        claims: list[Claim] = []
        for found in self._find(_OUTER.sub(" ", text)):
            claim = self._judge(found)
            begin = claims[-1].end if claims else 0
            # …第二十八条安全生产法第28条, 《规范》2安全生产法第28条: a name that follows at once is part of no claim, and
            # 第28条 alone would stand.
            if (
                claims
                and begin < claim.start
                and not found.names_law
                and _LAW.fullmatch(text[begin : claim.start])
            ):
                claim = Claim(begin, claim.end, text[begin : claim.end], "unsupported")
            elif claim.raw.startswith("《") and (broken := _BROKEN.search(text[begin : claim.start])):
                start = begin + broken.start()
                claim = Claim(start, claim.end, text[start : claim.end], "unsupported")
            claims.append(claim)
        return claims

    def _judge(self, found: Found) -> Claim:
        rows = found.rows if found.names_article else found.law_rows
        evidence = tuple(row + 1 for row in rows if row < self.num_evidence)
        is_number = not found.names_law and "条" not in found.raw
        verdict: Verdict = "unsupported"
        if evidence or (found.names_law and self._is_quoted(found.raw)):
            verdict = "evidence"
        elif rows and not _letters(found.raw) - self._criteria_letters:
            verdict = "criteria"  # with a code like GB 50016 in its name it would be another document
        # 《判定标准（安全生产法第28条2024版）》: the name of a known law may not carry another one along.
        inner = (match[1] for match in _PARENTHESIS.finditer(found.raw))
        if verdict != "unsupported" and any(unsupported(self.check(text)) for text in inner):
            verdict, evidence = "unsupported", ()
        return Claim(found.start, found.end, found.raw, verdict, evidence, is_number)

    def _is_quoted(self, raw: str) -> bool:
        """An article that the evidence names in its text (依照《消防法》第六十条) is no invention of the model's."""
        words = _squeeze(raw)
        return any(words in contents for contents in self._contents)


def _letters(text: str) -> set[str]:
    return {char for char in unicodedata.normalize("NFKC", text).upper() if "A" <= char <= "Z"}


def _squeeze(text: str) -> str:
    return "".join(unicodedata.normalize("NFKC", text).split()).casefold()


def unsupported(claims: Sequence[Claim]) -> list[Claim]:
    return [claim for claim in claims if claim.verdict == "unsupported"]


def cut_claims(text: str, references: References) -> tuple[str, list[str]]:
    """`text` without the claims that stand on nothing, and the names that were cut, in order.

    Repeated until no such name is left: cutting may bring two halves of one together.
    """
    text = text.replace(_REFERENCE, "")
    cut: list[str] = []
    for _ in range(_MAX_PASSES):
        wrong = unsupported(references.check(text))
        if not wrong:
            return text, cut
        cut += [claim.raw for claim in wrong]
        text = _cut(text, wrong)
    return "", cut


def _cut(text: str, wrong: Sequence[Claim]) -> str:
    for claim in reversed(wrong):
        text = text[: claim.start] + _REFERENCE + text[claim.end :]
        if claim.is_number:
            # The claims before this one are not replaced yet, so the first reference is this one.
            text = _NUMBER.sub("", text, count=1)
    for phrase in _PHRASES:
        text = phrase.sub("", text)
    lines = (_cut_sentences(line) if _REFERENCE in line else line for line in text.split("\n"))
    return "\n".join(line for line in lines if line is not None)


def _cut_sentences(line: str) -> str | None:
    """The line without the sentences that hold a reference; None when nothing is left."""
    marker = _MARKER.match(line)
    start = marker.end() if marker else 0
    body = "".join(part for part in _SENTENCE.findall(line[start:]) if _REFERENCE not in part)
    return line[:start] + body if body.strip() else None


def cut_report(report: Report, references: References) -> tuple[Report, list[str]]:
    """A report without the claims that stand on nothing, and the names that were cut."""
    blocks, cut = [], []
    for block in report.blocks:
        done, names = _cut_block(block, references)
        blocks.append(done)
        cut += names
    return replace(report, blocks=tuple(blocks)), cut


def _cut_block(block: Block, references: References) -> tuple[Block, list[str]]:
    kept = [item for item in block.basis.items if not unsupported(references.check(item))]
    cut = [
        claim.raw
        for item in block.basis.items
        if item not in kept
        for claim in unsupported(references.check(item))
    ]
    description, names = _cut_items(block.description, references)
    measures, more = _cut_items(block.measures, references)
    basis = replace(block.basis, items=tuple(kept))
    return replace(block, basis=basis, description=description, measures=measures), [*cut, *names, *more]


def _cut_items(section: Section, references: References) -> tuple[Section, list[str]]:
    items: list[str] = []
    cut: list[str] = []
    for item in section.items:
        text, names = cut_claims(item, references)
        items.append(text)
        cut += names
    if not cut:
        return section, []
    again = [item for item in reread_items(items) if not unsupported(references.check(item))]
    return Section(tuple(again), number_items(again)), cut


def claim_faults(claims: Sequence[Claim]) -> list[str]:
    """What the model is told about names that stand on nothing."""
    names = dict.fromkeys(claim.raw for claim in unsupported(claims))
    return [f"“{name}”不在检索到的条文和判定标准条款之中，须改为检索到的条文，或删去。" for name in names]
