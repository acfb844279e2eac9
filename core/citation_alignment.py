"""Moves a citation to the evidence that its sentence names, or takes it out. No I/O.

Rule: a sentence that names laws or articles may cite only evidence that it names; one that names none keeps its marks.
Profiles with `aligns_citations` do this before a report is checked; it invents no citation where there was none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from cg_rag.core.claims import References
from cg_rag.core.mark_reader import find_marks
from cg_rag.core.marks import known_up_to, rewrite_marks

# A sentence with all stops and marks behind it, so that a mark taken out joins no other sentence's marks to it; the end
# of a line ends a sentence.
_SENTENCE: Final = re.compile(r"[^。；;！!？?\n]*(?:[。；;！!？?]|[ \t]*\[cite\^\d{1,9}\])*")


def align_citations(text: str, references: References) -> tuple[str, int]:
    """`text` with its marks in the form [cite^n], and how many of them were moved or taken out.

    Nothing is done about marks without evidence: whoever checks the report does that.
    """
    parts: list[str] = []
    num_changed = 0
    lines = text.split("\n")
    for line in lines:
        if not find_marks(line):
            parts.append(line)
            continue
        aligned, changed = _align_line(_canonical(line), references)
        parts.append(aligned if changed else line)
        num_changed += changed
    return "\n".join(parts), num_changed


def _canonical(line: str) -> str:
    """The line with every spelling of a mark as [cite^n], unknown numbers kept for the check to find."""
    indent = line[: len(line) - len(line.lstrip())]
    return indent + rewrite_marks(line, "cite", lambda number: number)


def _align_line(line: str, references: References) -> tuple[str, int]:
    aligned, num_changed = "", 0
    for sentence in _SENTENCE.findall(line):
        done, changed = _align_sentence(sentence, references)
        aligned += done
        num_changed += changed
    return (rewrite_marks(aligned, "cite", lambda number: number), num_changed) if num_changed else (line, 0)


def _align_sentence(sentence: str, references: References) -> tuple[str, int]:
    marks = find_marks(sentence)
    if not marks:
        return sentence, 0
    bare = rewrite_marks(sentence, "none", known_up_to(0))
    claims = references.check(bare)
    if not claims:
        return sentence, 0
    named = list(dict.fromkeys(number for claim in claims for number in claim.evidence))
    cited = [number for mark in marks for number in mark.numbers]
    free = [number for number in named if number not in cited]
    moves = {number: _target(number, named, free, references) for number in dict.fromkeys(cited)}
    num_changed = sum(number != target for number, target in moves.items())
    if not num_changed:
        return sentence, 0
    for mark in reversed(marks):
        targets = dict.fromkeys(moves[number] for number in mark.numbers if moves[number] is not None)
        written = "".join(f"[cite^{target}]" for target in targets)
        before = sentence[: mark.start] if written else sentence[: mark.start].rstrip(" ")
        sentence = before + written + sentence[mark.end :]
    return sentence, num_changed


def _target(number: int, named: Sequence[int], free: list[int], references: References) -> int | None:
    if number in named or not 1 <= number <= references.num_evidence:
        return number
    return free.pop(0) if free else None
