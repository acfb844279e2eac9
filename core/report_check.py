"""Whether a report keeps its contract, and what to tell the model when it does not. No I/O.

Rule: a fault is a Chinese sentence that says what is wrong and what to write instead; it goes into the correction that
the model is sent. No fault means that format() gives a report that may be published.

`无隐患` and the category `无` go together, each only with the other: a picture with a hazard has one of the 19
categories, one that is no site or shows too little has a scene and neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cg_rag.core.report import SCENE_WORDS, Block, Report, Section, Shape
from cg_rag.core.taxonomy import LEVELS, NO_HAZARD, Taxonomy

_MAX_QUOTED = 40


def check(
    report: Report, num_images: int, shape: Shape, taxonomy: Taxonomy, needs_basis: bool | None = None
) -> list[str]:
    """The faults of a report on `num_images` pictures; an empty list when there is none.

    `needs_basis`: whether a hazard needs items below 隐患判定依据; by default in the sectioned shape.
    """
    if not report.blocks:
        return [f"没有找到隐患报告，须按规定格式写出{_head('隐患等级', shape)}等部分。"]
    faults = list(_check_count(report, num_images))
    basis = shape == "sectioned" if needs_basis is None else needs_basis
    for place, block in enumerate(report.blocks):
        prefix = f"图{place + 1}：" if num_images > 1 else ""
        faults += [prefix + fault for fault in _check_block(block, shape, taxonomy, basis)]
    return faults


def _head(name: str, shape: Shape) -> str:
    return f"“{name}：”" if shape == "free_form" else f"“## {name}”"


def _check_count(report: Report, num_images: int) -> Iterator[str]:
    numbers = [block.number for block in report.blocks]
    if len(numbers) != num_images:
        if num_images == 1:
            yield f"一张图片只写一份报告，只有一个隐患等级和一个主隐患分类，收到 {len(numbers)} 份。"
        else:
            yield f"共 {num_images} 张图片，须依次写“## 图1”到“## 图{num_images}”各一份报告，收到 {len(numbers)} 份。"
    elif any(number is not None for number in numbers) and numbers != list(range(1, num_images + 1)):
        found = "、".join("无标题" if number is None else f"图{number}" for number in numbers)
        yield f"各份报告的标题须依次为“## 图1”到“## 图{num_images}”，收到 {found}。"


def _check_block(block: Block, shape: Shape, taxonomy: Taxonomy, needs_basis: bool) -> Iterator[str]:
    for head in block.repeated_heads:
        yield f"“{head}”写了不止一次，须把各条合并到同一部分下依次编号。"
    if block.scene:
        if block.level or block.level_written or block.category or block.category_written:
            yield f"写了“场景：{SCENE_WORDS[block.scene]}”，就不能再写隐患等级和隐患分类；确有可见隐患则不写场景。"
        return
    yield from _check_values(block, shape, taxonomy)
    if block.level == NO_HAZARD:
        return
    yield from _check_items("隐患描述", block.description)
    if needs_basis:
        yield from _check_items("隐患判定依据", block.basis)
    yield from _check_items("整改措施和建议" if shape == "free_form" else "整改措施及建议", block.measures)


def _check_values(block: Block, shape: Shape, taxonomy: Taxonomy) -> Iterator[str]:
    if not block.level:
        written = f"，收到“{_quote(block.level_written)}”" if block.level_written else "，没有收到"
        yield f"{_head('隐患等级', shape)}须写且只写以下之一：{'、'.join(LEVELS)}{written}。"
    if not block.category:
        written = f"，收到“{_quote(block.category_written)}”" if block.category_written else "，没有收到"
        names = "、".join((*taxonomy.categories, taxonomy.none))
        yield f"{_head('隐患分类', shape)}须写且只写以下之一：{names}{written}。"
    if block.level and block.category and (block.level == NO_HAZARD) != (block.category == taxonomy.none):
        yield (
            f"“{NO_HAZARD}”与分类“{taxonomy.none}”须同时使用，收到等级“{block.level}”、分类“{block.category}”；"
            f"没有可见隐患则两者都写，有可见隐患则两者都不写。"
        )


def _check_items(head: str, section: Section) -> Iterator[str]:
    if not section.items:
        yield f"缺少“{head}”或其下没有内容，须逐条编号写出。"


def _quote(written: str) -> str:
    text = " ".join(written.split())
    return text if len(text) <= _MAX_QUOTED else f"{text[:_MAX_QUOTED]}…"


def correction(faults: Sequence[str]) -> str:
    """The message that asks a model to write its report again. It gives no hint which level is wanted."""
    reasons = "\n".join(f"{number}. {fault}" for number, fault in enumerate(faults, start=1))
    return f"上面的回答不符合要求：\n{reasons}\n\n请按规定格式重新写出完整的报告，对画面的判断不变，不要解释，不要道歉。"
