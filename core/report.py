"""What a hazard report is: its blocks and sections as values, and the two shapes it is written in. No I/O.

Rule: one block for each picture, in their order. A block has either a level and a category, or a scene. The words of a
published report are the canonical ones of the taxonomy, its heads the ones below, whatever the model wrote.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from cg_rag.core.criteria import Finder, names_clause
from cg_rag.core.taxonomy import MAJOR, SUSPECTED_MAJOR

Shape = Literal["free_form", "sectioned"]
Scene = Literal["", "unsupported_scene", "insufficient_visual_evidence"]
Part = Literal["level", "category", "scene", "description", "basis", "measures", "other"]

SCENE_WORDS: Final[dict[str, str]] = {
    "unsupported_scene": "非施工现场",
    "insufficient_visual_evidence": "画面不足以判定",
}


@dataclass(frozen=True, slots=True)
class Section:
    """`items` are the points, one line each, without numbers. `raw` is the text as the model wrote it, without the
    head and the blank lines around."""

    items: tuple[str, ...] = ()
    raw: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """The report on one picture. `level` and `category` are canonical, "" where what was written (`level_written`,
    `category_written`) names none. `number` is that of the 图N head, None without one. `repeated_heads` stand twice:
    which text belongs to which of them cannot be told."""

    level: str = ""
    category: str = ""
    scene: Scene = ""
    description: Section = Section()
    basis: Section = Section()
    measures: Section = Section()
    number: int | None = None
    level_written: str = ""
    category_written: str = ""
    repeated_heads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """`has_level`: a line with a level is in the text, so it is a report even where nothing else is right."""

    blocks: tuple[Block, ...]
    has_level: bool


def hazard_categories(report: Report) -> list[str | None]:
    """One entry for each picture in order: the category, None where the picture is no site or shows too little."""
    return [None if block.scene else block.category for block in report.blocks]


def downgrade(
    report: Report, shape: Shape, find_clause: Finder, criteria_name: str
) -> tuple[Report, list[str]]:
    """Make 重大事故隐患 that names no clause of the list 疑似重大事故隐患; the warnings that say so.

    The clause stands in the basis, in a free-form report in the description. `find_clause` was made from
    `Criteria.articles()`.
    """
    blocks, warnings = list(report.blocks), []
    for place, block in enumerate(blocks):
        if block.level == MAJOR and not is_founded(block, shape, find_clause):
            blocks[place] = replace(block, level=SUSPECTED_MAJOR)
            warnings.append(
                f"{_which(place, len(blocks))}写为“{MAJOR}”，但没有指明《{criteria_name}》的条款，已改为“{SUSPECTED_MAJOR}”。"
            )
    return replace(report, blocks=tuple(blocks)), warnings


def is_founded(block: Block, shape: Shape, find_clause: Finder) -> bool:
    """Whether the block names a clause of the criteria where its shape asks for it."""
    section = block.description if shape == "free_form" else block.basis
    return any(names_clause(item, find_clause) for item in section.items)


def unfounded_warnings(report: Report, shape: Shape, find_clause: Finder, criteria_name: str) -> list[str]:
    """What hybrid says instead of changing the level."""
    return [
        f"{_which(place, len(report.blocks))}写为“{MAJOR}”，但没有指明《{criteria_name}》的条款，请人工复核。"
        for place, block in enumerate(report.blocks)
        if block.level == MAJOR and not is_founded(block, shape, find_clause)
    ]


def _which(place: int, num_blocks: int) -> str:
    return f"图{place + 1}的隐患等级" if num_blocks > 1 else "隐患等级"


# A question with one of these words asks for a report (docs/criteria.md), and the default question has two of them.
HAZARD_WORDS: Final = (
    "隐患",
    "安全",
    "风险",
    "违章",
    "违规",
    "危险",
    "整改",
    "检查",
    "排查",
    "检测",
    "规范",
    "事故",
)


def requires_report(question: str) -> bool:
    """Whether the answer has to be a report. Otherwise the model chooses: see `report_parse.is_report`."""
    return not question.strip() or any(word in question for word in HAZARD_WORDS)
