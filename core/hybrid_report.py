"""The hybrid report: a description that stays word for word, and the bases and measures of the text model. No I/O.

Rule: with a visible hazard and evidence a block has exactly three bases, each with exactly one mark 〔n〕 that is evidence
and whose text names no other article; a text that breaks this is asked for once more, then what is invalid is dropped.
The description, its level and its category are never touched.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final, Literal

from cg_rag.core.claims import Claim, References, claim_faults, cut_claims, unsupported
from cg_rag.core.mark_reader import find_marks
from cg_rag.core.mark_remains import cut_mark_remains, has_mark_remains
from cg_rag.core.marks import cited_numbers, known_up_to, rewrite_marks
from cg_rag.core.protocol import holds_label
from cg_rag.core.report import Block, Report, Section
from cg_rag.core.report_format import NOTHING_FOUND, format_sectioned, number_items, sectioned_parts
from cg_rag.core.report_parse import parse, reread_items
from cg_rag.core.report_publish import mark_faults
from cg_rag.core.taxonomy import NO_HAZARD, Taxonomy

NUM_BASES: Final = 3  # docs/vision.md: 判定依据固定为 3 条
NO_BASIS: Final = "未能写出通过校验的判定依据，请人工核对检索到的条文。"
NO_MEASURES: Final = "未能写出通过校验的整改措施，请人工补充。"
_HAS_LABEL: Final = "“{item}”里有协议标签，须去掉。"
_ACROSS_LINES: Final = "有引用标记或法规名称跨行书写，无法确认，须各写在一行之内。"
_RETAKE: Final = "在光线充足处，从 3 至 5 米外正对要判定的部位拍摄"
_NUM_DESCRIBING: Final = 3  # sections of a block before its basis: level, category, description
_END: Final = re.compile(r"[。；;.！!]?\s*$")


# (place of the block, part, item)
Point = tuple[int, Literal["basis", "measures"], str]


@dataclass(frozen=True, slots=True)
class Written:
    """Bases and measures for one block, as items."""

    bases: tuple[str, ...] = ()
    measures: tuple[str, ...] = ()

    def points(self, place: int) -> list[Point]:
        """In the order in which they are published."""
        bases: list[Point] = [(place, "basis", item) for item in self.bases]
        return [*bases, *((place, "measures", item) for item in self.measures)]


@dataclass(frozen=True, slots=True)
class Reading:
    """`text` is the report as it may be published, whatever the faults; `faults` are what to ask the model again about,
    `warnings` what a caller is told when `text` is published. `citations` ascending."""

    text: str
    report: Report
    faults: tuple[str, ...]
    warnings: tuple[str, ...]
    citations: tuple[int, ...]
    num_points: int = 0  # bases and measures that passed


def hazard_places(report: Report) -> list[int]:
    """The blocks with a visible hazard, from 0."""
    return [
        place for place, block in enumerate(report.blocks) if not block.scene and block.level != NO_HAZARD
    ]


def bare(report: Report) -> Report:
    """The description alone: what the model that saw wrote about measures is not published."""
    blocks = (replace(block, basis=Section(), measures=Section()) for block in report.blocks)
    return replace(report, blocks=tuple(blocks))


def describe(report: Report, num_images: int) -> str:
    """What the text model reads: level, category and description of every block with a hazard, word for word."""
    texts = []
    for place in hazard_places(report):
        texts += [f"## 图{place + 1}"] if num_images > 1 else []
        texts += list(sectioned_parts(report.blocks[place], num_images, verbatim=True))[:_NUM_DESCRIBING]
    return "\n\n".join(texts)


def correction(faults: Sequence[str]) -> str:
    """The message that asks for another draft."""
    reasons = "\n".join(f"{number}. {fault}" for number, fault in enumerate(faults, start=1))
    return f"上面的回答不符合要求：\n{reasons}\n\n请按规定格式重新写出完整的判定依据和整改措施，不要解释，不要道歉。"


def scene_status(report: Report) -> str:
    """`assessable` as soon as one picture is."""
    scenes = {block.scene for block in report.blocks}
    if "" in scenes:
        return "assessable"
    return "insufficient_visual_evidence" if "insufficient_visual_evidence" in scenes else "unsupported_scene"


def retake_warnings(report: Report) -> list[str]:
    """What is to be photographed again, where a picture shows too little."""
    warnings = []
    for place, block in enumerate(report.blocks):
        if block.scene == "insufficient_visual_evidence":
            which = f"图{place + 1}" if len(report.blocks) > 1 else ""
            hints = "；".join(item.rstrip("。；;") for item in block.measures.items) or _RETAKE
            warnings.append(f"{which}画面不足以判定，请补拍：{hints}。")
    return warnings


class HybridWriter:
    """`report` is the checked description on `num_images` pictures, `references` hold the evidence."""

    def __init__(self, report: Report, num_images: int, references: References, taxonomy: Taxonomy) -> None:
        self.places = hazard_places(report)
        self.needs_bases = references.num_evidence > 0
        self._report = bare(report)
        self._num_images = num_images
        self._references = references
        self._taxonomy = taxonomy
        self._keep = known_up_to(references.num_evidence)

    def read(self, text: str) -> Reading:
        """What a draft is worth. A few ms of CPU for each block."""
        blocks, faults = self._align(self._parsed(text))
        faults += mark_faults(text, self._references.num_evidence) if self.needs_bases else []
        warnings: list[str] = []
        written: dict[int, Written] = {}
        for place in self.places:
            prefix = f"图{place + 1}：" if self._num_images > 1 else ""
            draft = self.items_of(blocks.get(place, Block()))
            written[place], across = self._repair(draft)
            faults += [prefix + fault for fault in (*self._faults(draft), *across)]
            warnings += [prefix + warning for warning in self._warnings(draft, written[place])]
        report = self._fill(written)
        published = format_sectioned(report, self._num_images, verbatim=True)
        return Reading(
            published,
            report,
            tuple(dict.fromkeys(faults)),
            tuple(warnings),
            tuple(cited_numbers(published)),
            sum(len(one.bases) + len(one.measures) for one in written.values()),
        )

    @property
    def description(self) -> str:
        """The published report up to the first block that the text model writes for; all of it when there is none."""
        return self._begun((), has_draft=False)

    def beginning(self, points: Sequence[Point]) -> str:
        """The published report as far as it is certain when these are its first points."""
        return self._begun(points, has_draft=True)

    def _begun(self, points: Sequence[Point], has_draft: bool) -> str:
        parts: list[str] = []
        for place, block in enumerate(self._fill(_gather(points)).blocks):
            parts += [f"## 图{place + 1}"] if self._num_images > 1 else []
            sections = list(sectioned_parts(block, self._num_images, verbatim=True))
            if place in self.places and not any(at > place for at, _, _ in points):
                begun = {part for at, part, _ in points if at == place}
                has_basis = "basis" in begun or (has_draft and not self.needs_bases)
                return "\n\n".join([*parts, *sections[: _NUM_DESCRIBING + has_basis + ("measures" in begun)]])
            parts += sections
        return "\n\n".join(parts)

    def items_of(self, block: Block) -> Written:
        """The points of a parsed block; without evidence nothing can be a basis."""
        bases = tuple(map(_once, block.basis.items)) if self.needs_bases else ()
        return Written(bases, block.measures.items)

    def _fill(self, written: Mapping[int, Written]) -> Report:
        """The description with bases and measures; a block that has none says so."""
        blocks = list(self._report.blocks)
        for place in self.places:
            one = written.get(place, Written())
            basis = _section(one.bases, NO_BASIS if self.needs_bases else NOTHING_FOUND)
            measures = _section(one.measures, NO_MEASURES)
            blocks[place] = replace(blocks[place], basis=basis, measures=measures)
        return replace(self._report, blocks=tuple(blocks))

    def _parsed(self, text: str) -> Sequence[Block]:
        marked = cut_mark_remains(rewrite_marks(text, "numbered", self._keep))
        return parse(marked, self._taxonomy).blocks

    def _align(self, blocks: Sequence[Block]) -> tuple[dict[int, Block], list[str]]:
        by_number = {block.number - 1: block for block in blocks if block.number is not None}
        if len(self.places) == 1:
            found = by_number.get(self.places[0]) or (blocks[0] if blocks else None)
            return ({self.places[0]: found} if found else {}), []
        known = {place: block for place, block in by_number.items() if place in self.places}
        if set(known) == set(self.places):
            return known, []
        heads = "、".join(f"“## 图{place + 1}”" for place in self.places)
        return known, [f"须依次以 {heads} 为标题各写一份。"]

    def points(self, text: str) -> list[Point]:
        """The points of the beginning of a draft, in the order in which they are published."""
        blocks = self._align(self._parsed(text))[0]
        places = filter(blocks.__contains__, self.places)
        return [point for place in places for point in self.items_of(blocks[place]).points(place)]

    def passes(self, passed: Sequence[Point], point: Point) -> bool:
        """Whether a point may go out behind those that have: only what is published whatever follows."""
        place, part, item = point
        before = _gather(passed)
        here = before.get(place, Written())
        if any(not before.get(other, Written()).measures for other in self.places if other < place):
            return False
        if self._strays([*passed, point]):
            return False
        if part == "measures":
            is_founded = len(here.bases) == NUM_BASES or not self.needs_bases
            return is_founded and self._clean((*here.measures, item)) == (*here.measures, item)
        if here.measures or len(here.bases) == NUM_BASES or self.basis_fault(item):
            return False
        return not self._repeats([*here.bases, item])

    def basis_fault(self, item: str) -> str:
        """Why an item cannot be a basis; "" when it can."""
        numbers = [number for mark in find_marks(item) for number in mark.numbers]
        claims = self._references.check(item)
        if holds_label(item):
            return _HAS_LABEL.format(item=_quote(item))
        if faults := claim_faults(claims):
            return faults[0]
        if len(numbers) != 1:
            return f"“{_quote(item)}”须有且只有一个引用〔n〕，收到 {len(numbers)} 个。"
        if any(numbers[0] not in claim.evidence for claim in _named(claims)):
            return f"“{_quote(item)}”引用〔{numbers[0]}〕，写的却是别的条文；每条只写一条证据，编号须与条文一致。"
        return ""

    def measure_fault(self, item: str) -> str:
        if holds_label(item):
            return _HAS_LABEL.format(item=_quote(item))
        faults = claim_faults(self._references.check(item)) if self.needs_bases else []
        return faults[0] if faults else ""

    def _repeats(self, bases: Sequence[str]) -> bool:
        """Whether bases share evidence although there is enough of it."""
        numbers = [number for item in bases for number in _numbers(item)]
        return self._references.num_evidence >= NUM_BASES and len(set(numbers)) < len(numbers)

    def _faults(self, draft: Written) -> Iterator[str]:
        if self.needs_bases:
            if len(draft.bases) != NUM_BASES:
                yield f"判定依据须恰为 {NUM_BASES} 条，收到 {len(draft.bases)} 条。"
            yield from filter(None, map(self.basis_fault, draft.bases))
            if self._repeats(draft.bases):
                yield "检索到的条文不少于 3 条，3 条判定依据须各引用不同的条文。"
        yield from filter(None, map(self.measure_fault, draft.measures))
        if not draft.measures:
            yield "缺少“整改措施及建议”或其下没有内容，须逐条编号写出。"

    def _repair(self, draft: Written) -> tuple[Written, list[str]]:
        """The valid part of a draft, and the fault of points that are valid only one by one."""
        bases = [done for item in draft.bases if (done := self._repair_basis(item))][:NUM_BASES]
        written = Written(tuple(bases), self._clean(draft.measures))
        faults = []
        while strays := self._strays(points := written.points(0)):
            kept = [point for number, point in enumerate(points) if number not in strays]
            written, faults = _gather(kept).get(0, Written()), [_ACROSS_LINES]
        return written, faults

    def _strays(self, points: Sequence[Point]) -> set[int]:
        """The points, of one block or several, that together are a mark or a name which none of them is alone."""
        if not points:
            return set()
        lines = [f"{number % NUM_BASES + 1}. {item}" for number, (_, _, item) in enumerate(points)]
        text = "\n".join(lines)
        starts = list(accumulate((len(line) + 1 for line in lines), initial=0))
        spans = [
            (mark.start, mark.end)
            for mark in find_marks(text)
            if text[mark.start : mark.end] != f"〔{mark.numbers[0]}〕" or self._keep(mark.numbers[0]) is None
        ]
        spans += [(claim.start, claim.end) for claim in unsupported(self._references.check(text))]
        strays = {bisect_right(starts, at) - 1 for start, end in spans for at in (start, end - 1)}
        return strays | {number for number, line in enumerate(lines) if has_mark_remains(line)}

    def _warnings(self, draft: Written, written: Written) -> Iterator[str]:
        bases, measures, num_evidence = written.bases, written.measures, self._references.num_evidence
        if num_evidence and len(bases) < NUM_BASES:
            yield f"判定依据只有 {len(bases)} 条通过校验，不足 {NUM_BASES} 条，未通过的已删去。"
        elif len(draft.bases) > NUM_BASES:
            yield f"模型写了 {len(draft.bases)} 条判定依据，只保留 {NUM_BASES} 条。"
        if 0 < num_evidence < NUM_BASES and bases:
            yield f"检索到的条文只有 {num_evidence} 条，不足 {NUM_BASES} 条，同一条文用于多条判定依据。"
        elif self._repeats(bases):
            yield "有判定依据引用了同一条文。"
        if not measures:
            yield "模型没有写出可用的整改措施，请人工补充。"
        elif measures != draft.measures:
            yield "整改措施中没有检索依据的法规名称、条号或不合格式的内容已删去。"

    def _repair_basis(self, item: str) -> str:
        """The item with the one mark that fits it, "" when none does."""
        if not self.basis_fault(item):
            return item
        claims = self._references.check(item)
        if unsupported(claims):
            return ""
        numbers = list(dict.fromkeys(_numbers(item)))
        named = [set(claim.evidence) for claim in _named(claims)]
        if named:
            common = set.intersection(*named)
            fitting = [number for number in numbers if number in common]
            numbers = fitting or (sorted(common) if len(common) == 1 else [])
        if not numbers:
            return ""
        text = _once(rewrite_marks(item, "numbered", lambda number: number if number == numbers[0] else None))
        if not _numbers(text):
            text = _END.sub(lambda end: f"〔{numbers[0]}〕{end[0].strip()}", text, count=1)
        return "" if self.basis_fault(text) else text

    def _clean(self, items: Sequence[str]) -> tuple[str, ...]:
        """Measures without names that nobody looked up, and none with a label."""
        cleaned = [cut_claims(item, self._references)[0] for item in items if not holds_label(item)]
        if tuple(cleaned) == tuple(items):
            return tuple(items)
        again = reread_items(cleaned)
        return tuple(
            item for item in again if not (holds_label(item) or unsupported(self._references.check(item)))
        )


class DraftGate:
    """Lets the report out while the draft is being written: every point once it is certain and has passed its check.

    From the first point that fails on nothing goes out.
    """

    def __init__(self, writer: HybridWriter) -> None:
        self._writer = writer
        self._text = ""
        self._num_read = 0
        self._passed: list[Point] = []
        self._is_shut = False
        self._released = writer.description

    def feed(self, text: str) -> str:
        """What of the report follows after its opening and what was returned before."""
        self._text += text
        known = self._released
        # Line by line, so that what goes out does not depend on how the text was cut.
        while not self._is_shut and (end := self._text.find("\n", self._num_read) + 1):
            self._num_read = end
            self._read(self._writer.points(self._text[:end])[:-1])  # the last one may go on
        return self._released[len(known) :]

    def _read(self, points: Sequence[Point]) -> None:
        self._is_shut = list(points[: len(self._passed)]) != self._passed
        for point in points[len(self._passed) :]:
            self._is_shut = self._is_shut or not self._writer.passes(self._passed, point)
            if self._is_shut:
                break
            self._passed.append(point)
        self._released = self._writer.beginning(self._passed)


def _gather(points: Sequence[Point]) -> dict[int, Written]:
    return {
        place: Written(
            tuple(item for at, part, item in points if (at, part) == (place, "basis")),
            tuple(item for at, part, item in points if (at, part) == (place, "measures")),
        )
        for place in {at for at, _, _ in points}
    }


def _section(items: Sequence[str], none: str) -> Section:
    return Section(tuple(items), number_items(items)) if items else Section((none,), none)


def _named(claims: Sequence[Claim]) -> list[Claim]:
    """Claims that name evidence."""
    return [claim for claim in claims if claim.evidence]


def _numbers(item: str) -> list[int]:
    return [number for mark in find_marks(item) for number in mark.numbers]


def _once(item: str) -> str:
    """The item with each mark only where it stands last."""
    marks = find_marks(item)
    for mark in reversed(marks[:-1]):
        if any(mark.numbers == later.numbers and later.start > mark.start for later in marks):
            item = item[: mark.start] + item[mark.end :]
    return item


def _quote(item: str) -> str:
    return item if len(item) <= 30 else f"{item[:30]}…"
