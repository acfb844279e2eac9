"""Writes a checked report in its canonical form, as it is published. No I/O.

Rule: there is one way to write a report, whatever the model wrote, and parse() reads it back as the same report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from cg_rag.core.criteria import Finder, names_clause
from cg_rag.core.report import SCENE_WORDS, Block, Report, Section
from cg_rag.core.taxonomy import NO_HAZARD

# What a report without a hazard says where the model left a part out.
_NO_DESCRIPTION: Final = ("画面中未发现可见的安全隐患。",)
_NO_MEASURES: Final = ("无需整改。",)
# The whole of a basis for which nothing was found: the section stays, and has no points to number.
NOTHING_FOUND: Final = "未检索到可引用的条文。"  # docs/vision.md


def format_free_form(report: Report, num_images: int) -> str:
    """The free-form shape (contract 7). What the model wrote below other heads is not in it."""
    return _format(report, num_images, _free_form_parts)


def format_sectioned(report: Report, num_images: int, verbatim: bool = False) -> str:
    """The shape with `## 隐患等级` … `## 整改措施及建议`; with several pictures as `###` below `## 图N`.

    `verbatim`: sections are their `raw` text (hybrid), not the items that were read.
    """
    return _format(report, num_images, lambda block: sectioned_parts(block, num_images, verbatim))


def _format(report: Report, num_images: int, parts: Callable[[Block], Iterator[str]]) -> str:
    texts: list[str] = []
    for place, block in enumerate(report.blocks, start=1):
        texts += [f"## 图{place}"] if num_images > 1 else []
        texts += parts(block)
    return "\n\n".join(texts)


def _free_form_parts(block: Block) -> Iterator[str]:
    if block.scene:
        yield f"场景：{SCENE_WORDS[block.scene]}"
    else:
        yield f"隐患等级：{block.level}"
        yield f"隐患分类：{block.category}"
    for head, items in (("隐患描述", _description(block)), ("整改措施和建议", _measures(block))):
        if items:
            yield f"{head}：\n{number_items(items)}"


def sectioned_parts(block: Block, num_images: int, verbatim: bool = False) -> Iterator[str]:
    """The sections of one block, each with its head: level, category, description, basis if any, measures; of a
    picture without a level the scene and the description as one."""
    marks = "###" if num_images > 1 else "##"
    description = _text(block.description, _description(block), verbatim)
    if block.scene:
        yield "\n\n".join(filter(None, (f"场景：{SCENE_WORDS[block.scene]}", description)))
        return
    yield f"{marks} 隐患等级\n{block.level}"
    yield f"{marks} 隐患分类\n{block.category}"
    yield f"{marks} 隐患描述\n{description}"
    if block.basis.items:
        written = _text(block.basis, block.basis.items, verbatim)
        yield f"{marks} 隐患判定依据\n{NOTHING_FOUND if block.basis.items == (NOTHING_FOUND,) else written}"
    yield f"{marks} 整改措施及建议\n{_text(block.measures, _measures(block), verbatim)}"


def fill_bases(report: Report) -> Report:
    """A report without evidence, every section of it there: a hazard whose basis is empty says why."""
    basis = Section((NOTHING_FOUND,), NOTHING_FOUND)
    lacks = [not (block.scene or block.basis.items or block.level == NO_HAZARD) for block in report.blocks]
    blocks = zip(report.blocks, lacks, strict=True)
    return replace(report, blocks=tuple(replace(b, basis=basis) if lack else b for b, lack in blocks))


def _text(section: Section, items: Sequence[str], verbatim: bool) -> str:
    return section.raw if verbatim and section.items else number_items(items)


def _description(block: Block) -> Sequence[str]:
    return block.description.items or (_NO_DESCRIPTION if block.level == NO_HAZARD else ())


def _measures(block: Block) -> Sequence[str]:
    return block.measures.items or (_NO_MEASURES if block.level == NO_HAZARD else ())


def number_items(items: Sequence[str]) -> str:
    return "\n".join(f"{number}. {item}" for number, item in enumerate(items, start=1))


def adopt_clauses(report: Report, find_clause: Finder) -> Report:
    """Move what a basis says about clauses of the criteria into the description: the free form has no basis."""
    blocks = []
    for block in report.blocks:
        named = [item for item in block.basis.items if names_clause(item, find_clause)]
        items = (*block.description.items, *(item for item in named if item not in block.description.items))
        blocks.append(replace(block, basis=Section(), description=replace(block.description, items=items)))
    return replace(report, blocks=tuple(blocks))
