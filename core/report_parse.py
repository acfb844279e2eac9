"""Reads a hazard report in whatever way a model wrote it. No I/O, never raises.

Rule: a line that begins with a head (隐患等级, 隐患描述 …) begins a part, whatever marks stand around the head; a second
level begins the next picture. What stands under no head is not in the report. Nothing is guessed: a value that the
taxonomy does not know stays "", and the model is asked again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from cg_rag.core.report import Block, Part, Report, Scene, Section
from cg_rag.core.report_items import split_items
from cg_rag.core.taxonomy import NO_HAZARD, Taxonomy

_KIND: Final = "(?:安全|事故|主要|现场)?"
_HEADS: Final[dict[Part, str]] = {
    "level": f"主?{_KIND}隐患(?:等级|级别)(?:判定|评定)?|隐患定级|等级判定|等级",
    "category": f"主?{_KIND}隐患(?:分类|类别|类型)|主要分类|分类|类别",
    "scene": "场景(?:判定|判断|类型|状态|说明)?",
    "description": f"{_KIND}隐患(?:描述|内容|情况|详情|说明)|(?:安全)?问题描述|(?:现场|画面|图片)描述|描述",
    "basis": f"{_KIND}(?:隐患)?(?:判定|判断|定级|法规|规范|法律)?依据(?:条款)?|(?:隐患)?判定标准",
    "measures": f"{_KIND}(?:隐患)?整改(?:措施)?(?:[及和与、]?(?:整改)?建议)?(?:措施)?|(?:建议|防范|处理)(?:措施|建议)|措施[及和与、]建议|建议",
    "other": "备注|总结|综合(?:评价|结论|判断|分析)|结论|(?:补充)?说明|注意事项|(?:风险|后果)(?:分析|提示)|可能后果|风险后果"
    "|(?:定级|判定)理由|免责声明|温馨提示|参考标准|置信度",
}
_AFTER_HEAD: Final = r"[\s*_】\]」)）\"'`|]*"
_HEAD: Final = re.compile(
    r"(?:[^\w\u3400-\u9fff]|_)*"
    r"(?:(?:[(（]?(?:\d{1,2}|[一二三四五六七八九十]{1,2})[)）.、．:：]|[①-⑩])(?:[^\w\u3400-\u9fff]|_)*){0,4}"
    r"(?P<head>" + "|".join(f"(?P<{part}>{words})" for part, words in _HEADS.items()) + ")"
    # 【隐患等级】一般隐患, **隐患分类** 施工用电: a head that is set apart needs no colon.
    rf"(?:{_AFTER_HEAD}(?:[:：][\s*_]*|$)|[\s*_]*[】\]][\s*_]*|(?<=隐患等级|隐患分类)[*_]*[ \t\u3000]+)(?P<value>.*)"
)
# A head in the middle of a line, for the names that are nothing else.
_MIDDLE: Final = re.compile(
    r"(?<=[\s。；;，,|*、）)])[\s#*_【\[]*(?P<head>隐患等级|隐患分类|隐患描述|隐患判定依据|整改措施(?:[及和与]建议)?)[\s*_】\]]*[:：]"
)
_PLACE: Final = r"(?P<{0}>\d{{1,2}}|[一二三四五六七八九十])"
_PICTURE: Final = re.compile(
    r"(?P<marks>[^\w\u3400-\u9fff]*)"
    rf"(?:第\s*{_PLACE.format('ordinal')}\s*[张幅](?:图片?|照片|图像)?|(?:图片?|照片|图像)\s*{_PLACE.format('number')})"
    r"(?P<caption>\s*[(（][^()（）\n]{0,40}[)）])?[\s*_】\]」#]*(?P<colon>[:：])?[\s*_]*(?P<rest>.*)$"
)
_FENCE: Final = re.compile(r"^\s*(?:```|~~~)\s*[A-Za-z]*\s*$")
_ROW: Final = re.compile(r"^\s*\|([^|]*)\|([^|]*)\|?\s*$")
_RULE_LINE: Final = re.compile(r"^[\s|:*_=—–-]*$")
_INVISIBLE: Final = re.compile(
    "[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufe00-\ufe0f\ufeff\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]"
)
_NO_SITE: Final = re.compile(
    "非(?:建筑|建设|房屋)?(?:施工|工地|作业)|不(?:是|属于|涉及|为)(?:建筑|建设)?(?:施工|工地)|与(?:建筑)?施工无关|unsupported_scene"
)
_TOO_LITTLE: Final = re.compile(
    "不足以|(?:信息|证据|画面|依据)不足|(?:无法|不能|难以|不可|不宜)(?:准确|有效|清晰)?(?:判[定断别]|辨[别认识]|识别|评估|确定|看清)"
    "|看不清|不清晰|模糊|过暗|过曝|insufficient_visual_evidence"
)
_NO_VALUE: Final = re.compile(
    r"(?:不适用|不涉及|未知|暂无|不评定|不判定|n/?a|none|null|[-—/\s]*)", re.IGNORECASE
)


@dataclass(slots=True)
class _Draft:
    number: int | None = None
    parts: dict[Part, list[str]] = field(default_factory=dict)
    heads: list[str] = field(default_factory=list)
    loose: list[str] = field(default_factory=list)
    level_heads: list[str] = field(default_factory=list)
    current: Part | None = None

    def begin(self, part: Part, head: str, value: str) -> None:
        self.current = part
        self.heads.append(head)
        if part == "level":
            self.level_heads.append(head)
        self.parts.setdefault(part, []).append(value)

    def add(self, line: str) -> None:
        if self.current is None:
            return
        values = self.parts[self.current]
        if self.current not in ("level", "category", "scene"):
            values.append(line)
        elif line.strip() and not values[-1]:
            values[-1] = line.strip()  # the value below its head
        else:
            self.loose.append(line)


def parse(text: str, taxonomy: Taxonomy) -> Report:
    """The report in a model's answer; no blocks when there is none in it. Marks of citations are text here."""
    drafts = [draft for draft in _read(text) if draft.parts]
    if all(draft.number is not None for draft in drafts):
        drafts.sort(key=lambda draft: draft.number or 0)
    blocks = tuple(_to_block(draft, taxonomy) for draft in drafts)
    # 防护等级 of a plug, or a mere 等级, is the answer to another question.
    return Report(blocks, any("隐患" in head for draft in drafts for head in draft.level_heads))


def is_report(text: str, taxonomy: Taxonomy) -> bool:
    """Whether a text has a line with a level. One without is the answer to a question that asks for no report."""
    return parse(text, taxonomy).has_level


def reread_items(items: Sequence[str]) -> tuple[str, ...]:
    """Items that were changed, as they would be read from the report that they are published in."""
    return split_items([f"{number}. {item}" for number, item in enumerate(items, start=1)], _defuse)


def read_section(raw: str) -> Section:
    """What stands below one head, as `parse` reads it."""
    return _section(raw.split("\n"))


def _read(text: str) -> list[_Draft]:
    drafts = [_Draft()]
    for line in _lines(text):
        picture = _read_picture(line)
        if picture:
            drafts.append(_Draft(picture[0]))
            line = picture[1]
        match = _HEAD.match(line)
        if match is None:
            drafts[-1].add(line)
            continue
        part = next(name for name in _HEADS if match[name])
        if _begins_picture(part, drafts[-1]):
            drafts.append(_Draft())
        drafts[-1].begin(part, match["head"], (match["value"] or "").strip())
    return drafts


def _lines(text: str) -> Iterator[str]:
    text = _INVISIBLE.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    for line in text.split("\n"):
        row = _ROW.match(line)
        line = f"{row[1].strip()}：{row[2].strip()}" if row else line
        if _FENCE.match(line) or (line.strip() and _RULE_LINE.match(line)):
            continue
        pieces = _MIDDLE.sub(lambda match: f"\n{match['head']}：", line).split("\n")
        # Of **整改措施**： the first asterisk is left over.
        yield from (piece for piece in pieces if not piece or not _RULE_LINE.match(piece))


def _read_picture(line: str) -> tuple[int, str] | None:
    """The number of a 图N head, and what stands behind it on its line."""
    match = _PICTURE.match(line)
    if match is None:
        return None
    written = match["ordinal"] or match["number"]
    number = int(written) if written.isdigit() else "一二三四五六七八九十".index(written) + 1
    rest = match["rest"].strip(" #*_】]：:。")
    if not rest or _HEAD.match(rest):
        return number, match["rest"] if rest else ""
    return (number, "") if "#" in match["marks"] else None


def _begins_picture(part: Part, draft: _Draft) -> bool:
    if part not in ("level", "scene"):
        return False
    has_text = "description" in draft.parts or "measures" in draft.parts
    return part in draft.parts or (has_text and ("level" in draft.parts or "scene" in draft.parts))


def _to_block(draft: _Draft, taxonomy: Taxonomy) -> Block:
    level_written = "".join(draft.parts.get("level", ()))
    category_written = "、".join(filter(None, draft.parts.get("category", ())))
    level = taxonomy.find_level(level_written) or ""
    category = taxonomy.find_category(category_written) or ""
    scene = _find_scene("".join(draft.parts.get("scene", ())))
    if not scene and not level:
        scene = _find_scene(level_written)
    if not scene and not category and level in ("", NO_HAZARD):
        scene = _find_scene(category_written)
    if scene and level in ("", NO_HAZARD) and _is_harmless(level_written, level):
        level = level_written = ""
        if category in ("", taxonomy.none) and _is_harmless(category_written, category):
            category = category_written = ""
    description = _section(draft.parts.get("description", ()))
    if scene and not description.items:
        description = _section(draft.loose)
    basis, measures = (_section(draft.parts.get(part, ())) for part in ("basis", "measures"))
    repeated = tuple(dict.fromkeys(head for head in draft.heads if draft.heads.count(head) > 1))
    return Block(
        level,
        category,
        scene,
        description,
        basis,
        measures,
        draft.number,
        level_written,
        category_written,
        repeated,
    )


def _find_scene(written: str) -> Scene:
    if _NO_SITE.search(written):
        return "unsupported_scene"
    return "insufficient_visual_evidence" if _TOO_LITTLE.search(written) else ""


def _is_harmless(written: str, value: str) -> bool:
    """Whether a level or category beside a scene says nothing against it."""
    return bool(value or _find_scene(written) or _NO_VALUE.fullmatch(written))


def _section(lines: list[str] | tuple[str, ...]) -> Section:
    raw = "\n".join(line.rstrip() for line in lines).strip("\n")
    return Section(split_items(lines, _defuse), raw)


def _defuse(item: str) -> str:
    """An item without the heads in it: what is published as an item has to be read back as one."""
    while match := _HEAD.match(f"1. {item}"):
        item = (match["value"] or "").strip()
    while match := _MIDDLE.search(f"1. {item}"):
        item = f"1. {item}"[: match.start()][3:] + f"1. {item}"[match.end() :]
    return "" if _read_picture(f"1. {item}") else item
