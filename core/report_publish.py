"""From a model's text to the report that may be published, or to what is wrong with it. No I/O.

Rule: what comes out as `text` has been read back: it has no fault, no citation mark but known ones, and names no law or
article without evidence. Otherwise `text` is "" and `faults` says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cg_rag.core.claims import References, claim_faults, cut_report
from cg_rag.core.criteria import Criteria, Finder
from cg_rag.core.mark_reader import find_marks
from cg_rag.core.mark_remains import strip_citations
from cg_rag.core.marks import Style, cited_numbers, known_up_to, rewrite_marks
from cg_rag.core.report import Report, downgrade
from cg_rag.core.report_check import check
from cg_rag.core.report_format import adopt_clauses, fill_bases, format_free_form, format_sectioned
from cg_rag.core.report_parse import parse
from cg_rag.core.taxonomy import Taxonomy

# Taking Markdown out of a line may bring the halves of a mark together, so what was written is read again.
_MAX_PASSES: Final = 6
_STOPS: Final = "。；;！!？?"
_UNSTABLE: Final = "报告里夹杂的符号过多，无法确认引用标记，须用纯文字重写。"


@dataclass(frozen=True, slots=True)
class Rules:
    """What reports are held to. `find_clause` looks up in `criteria.articles()`."""

    taxonomy: Taxonomy
    criteria: Criteria
    find_clause: Finder


@dataclass(frozen=True, slots=True)
class Reading:
    """`text` is what may be published, "" where there are `faults`.

    `repairs` are the faults that rules have repaired in `text` (unknown citations, articles without evidence): a mode
    may ask the model first. `is_downgraded`: a level was changed. `citations` are the numbers cited, ascending.
    """

    text: str
    report: Report
    faults: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    is_downgraded: bool = False
    citations: tuple[int, ...] = ()


def read_free_form(text: str, num_images: int, rules: Rules, references: References | None = None) -> Reading:
    """Read one free-form report: marks cut, clauses of a basis moved into the description, level made 疑似 without
    one, canonical form.

    `references`: the criteria alone, where names of laws that nobody looked up are to be cut; where a statement went
    with them, `repairs` says so.
    """
    report = Report((), False)
    warnings: list[str] = []
    cut: list[str] = []
    repairs: tuple[str, ...] = ()
    for _ in range(_MAX_PASSES):
        whole = report = adopt_clauses(parse(strip_citations(text), rules.taxonomy), rules.find_clause)
        if references:
            report, names = cut_report(whole, references)
            cut += names
            repairs = repairs or _lossy_cuts(whole, report, references, text)
        if faults := check(report, num_images, "free_form", rules.taxonomy):
            return Reading("", report, (*faults, *repairs))
        report, more = downgrade(report, "free_form", rules.find_clause, rules.criteria.name)
        warnings += more
        text = format_free_form(report, num_images)
        if strip_citations(text) == text and not (references and claim_faults(references.check(text))):
            told = (*warnings, *_cut_warning(cut))
            return Reading(text, report, (), repairs, told, bool(warnings))
    return Reading("", report, (_UNSTABLE,))


def _lossy_cuts(whole: Report, cut: Report, references: References, text: str) -> tuple[str, ...]:
    """What to tell the model where more went with a name than the words that lead to it: sentences, whole items."""
    if _num_sentences(whole) == _num_sentences(cut):
        return ()
    return tuple(claim_faults(references.check(text)))


def _num_sentences(report: Report) -> int:
    sections = [section for block in report.blocks for section in (block.description, block.measures)]
    items = [item for section in sections for item in section.items]
    return len(items) + sum(item.rstrip(_STOPS).count(stop) for item in items for stop in _STOPS)


def _cut_warning(names: Sequence[str]) -> tuple[str, ...]:
    if not names:
        return ()
    told = "、".join(f"“{name[:40]}”" for name in list(dict.fromkeys(names))[:5])
    return (f"已删去未经检索核对的法规引用：{told}。",)


def read_sectioned(
    text: str,
    num_images: int,
    rules: Rules,
    style: Style,
    references: References,
    *,
    may_downgrade: bool = True,
    needs_basis: bool | None = None,
) -> Reading:
    """Read one report with citations: marks brought to `style`, unknown ones cut, articles without evidence cut,
    sections in order, canonical form. `needs_basis` False where nothing was found: an empty basis then says so."""
    repairs = [*mark_faults(text, references.num_evidence), *claim_faults(references.check(text))]
    keep = known_up_to(references.num_evidence)
    warnings: list[str] = []
    report = Report((), False)
    for _ in range(_MAX_PASSES):
        report = parse(rewrite_marks(text, style, keep), rules.taxonomy)
        report, _cut = cut_report(report, references)
        if faults := check(report, num_images, "sectioned", rules.taxonomy, needs_basis):
            return Reading("", report, tuple(faults), tuple(repairs))
        report = fill_bases(report) if needs_basis is False else report
        if may_downgrade:
            report, more = downgrade(report, "sectioned", rules.find_clause, rules.criteria.name)
            warnings += more
        text = format_sectioned(report, num_images)
        if rewrite_marks(text, style, keep) == text and not claim_faults(references.check(text)):
            citations = tuple(cited_numbers(text))
            return Reading(text, report, (), tuple(repairs), tuple(warnings), bool(warnings), citations)
    return Reading("", report, (_UNSTABLE,), tuple(repairs))


def release_line(line: str, style: Style, references: References) -> str | None:
    """A line of a report that may go out while the rest is still being written, its marks in `style`; None when it
    cites what is no evidence or names what has none (core/answer_channel.py LineGate)."""
    if mark_faults(line, references.num_evidence) or claim_faults(references.check(line)):
        return None
    indent = line[: len(line) - len(line.lstrip())]
    return indent + rewrite_marks(line, style, known_up_to(references.num_evidence))


def mark_faults(text: str, num_evidence: int) -> list[str]:
    """What the model is told about marks that name no evidence."""
    numbers = sorted({n for mark in find_marks(text) for n in mark.numbers if not 1 <= n <= num_evidence})
    if not numbers:
        return []
    known = f"证据编号为 1 到 {num_evidence}" if num_evidence else "本次没有检索到证据，不得写引用"
    return [f"引用编号 {'、'.join(map(str, numbers[:10]))} 不存在，{known}。"]
