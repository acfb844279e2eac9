"""Whether an answer says of a photo what its label says: 是, 否, 未识别, or not to be counted. No I/O.

Rule: `yes` and `no` are for answers in which the matter can be read; whatever cannot be read is `unrecognised` and in
no denominator. The measure is yes / (yes + no). docs/vision-eval.md, 是、否与未识别, says the same to users.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from cg_rag.core.photo_labels import PhotoLabel
from cg_rag.core.report import SCENE_WORDS, Scene
from cg_rag.core.report_parse import parse
from cg_rag.core.taxonomy import MAJOR, NO_HAZARD, SUSPECTED_MAJOR, Taxonomy

Verdict = Literal["yes", "no", "unrecognised", "uncounted"]
Match = Literal["level", "category", "both", "hazards"]
MATCHES: Final[tuple[Match, ...]] = ("both", "level", "category", "hazards")
VERDICT_WORDS: Final[Mapping[Verdict, str]] = {
    "yes": "是",
    "no": "否",
    "unrecognised": "未识别",
    "uncounted": "不计",
}
MATCH_WORDS: Final[Mapping[Match, str]] = {
    "both": "等级与分类",
    "level": "等级",
    "category": "分类",
    "hazards": "隐患关键词",
}


@dataclass(frozen=True, slots=True)
class Reading:
    """What an answer says. `fault` is the Chinese reason why it says nothing; `hazards` is the text in which keywords
    are looked for. `has_levels`: the mode gives levels at all."""

    level: str = ""
    scene: Scene = ""
    category: str = ""
    hazards: str = ""
    fault: str = ""
    has_levels: bool = True

    @property
    def shown_level(self) -> str:
        """For tables: the level, the scene in its place, "" for neither."""
        return self.level or (SCENE_WORDS[self.scene] if self.scene else "")


@dataclass(frozen=True, slots=True)
class Rules:
    """How strict a match is: `merge_major` counts 疑似重大 as 重大; `any_hazard` is content with one of the groups."""

    merge_major: bool = False
    any_hazard: bool = False


def read_answer(
    payload: Mapping[str, Any], taxonomy: Taxonomy, category_of_label: Mapping[str, str]
) -> Reading:
    """What the body of any vision mode says of its one photo; never raises for a body of the right shape."""
    if payload.get("mode") == "observe":
        return _read_observation(payload, taxonomy, category_of_label)
    report = parse(str(payload.get("answer", "")), taxonomy)
    scene = payload.get("scene_status")
    if not report.blocks and (scene == "unsupported_scene" or scene == "insufficient_visual_evidence"):
        # What agentic says of such a picture is free text; what it is stands beside it.
        return Reading(scene=scene)
    if len(report.blocks) != 1:
        return Reading(fault="有多份报告" if report.blocks else "没有隐患报告")
    block = report.blocks[0]
    if not (block.level or block.scene or block.category):
        return Reading(fault="报告中没有可识别的等级与分类")
    return Reading(block.level, block.scene, block.category, "\n".join(block.description.items))


def _read_observation(
    payload: Mapping[str, Any], taxonomy: Taxonomy, category_of_label: Mapping[str, str]
) -> Reading:
    if payload.get("parse_status") != "succeeded":
        return Reading(fault="观察没有解析成功", has_levels=False)
    if payload.get("is_non_scene"):
        return Reading(scene="unsupported_scene", has_levels=False)
    label = str(payload.get("hazard_label", ""))
    if not label:
        return Reading(category=taxonomy.none, has_levels=False)
    hazards = f"{label}\n{payload.get('hazard_description', '')}"
    return Reading(category=category_of_label.get(label, ""), hazards=hazards, has_levels=False)


def judge(label: PhotoLabel, reading: Reading, match: Match, rules: Rules) -> Verdict:
    """One photo under one way to match."""
    return _JUDGES[match](label, reading, rules)


def _judge_level(label: PhotoLabel, reading: Reading, rules: Rules) -> Verdict:
    if not reading.has_levels or not (label.level or label.scene):
        return "uncounted"
    if label.scene:
        said = reading.scene or reading.level
        return _said(said, said == label.scene)
    fold = {SUSPECTED_MAJOR: MAJOR} if rules.merge_major else {}
    level = fold.get(reading.level, reading.level)
    return _said(level, level == fold.get(label.level, label.level))


def _judge_category(label: PhotoLabel, reading: Reading, rules: Rules) -> Verdict:
    return _said(reading.category, reading.category == label.category) if label.category else "uncounted"


def _judge_both(label: PhotoLabel, reading: Reading, rules: Rules) -> Verdict:
    verdicts = {_judge_level(label, reading, rules)}
    if not label.scene:
        verdicts.add(_judge_category(label, reading, rules))
    order: tuple[Verdict, ...] = ("uncounted", "no", "unrecognised", "yes")
    return next(verdict for verdict in order if verdict in verdicts)


def _judge_hazards(label: PhotoLabel, reading: Reading, rules: Rules) -> Verdict:
    if not label.hazards:
        return "uncounted"
    if reading.fault or reading.scene:
        return "unrecognised"
    if reading.level == NO_HAZARD:
        return "no"
    # 未见 before a word denies it as often (未见积水) as it names the hazard (未见护栏): it is not looked at.
    text = _fold(reading.hazards)
    enough = any if rules.any_hazard else all
    return _said("read", enough(any(_fold(word) in text for word in group) for group in label.hazards))


_JUDGES: Final[Mapping[Match, Callable[[PhotoLabel, Reading, Rules], Verdict]]] = {
    "level": _judge_level,
    "category": _judge_category,
    "both": _judge_both,
    "hazards": _judge_hazards,
}


def _said(what: str, agrees: bool) -> Verdict:
    if not what:
        return "unrecognised"
    return "yes" if agrees else "no"


def _fold(text: str) -> str:
    return re.sub(r"[ \t\u3000]+", "", unicodedata.normalize("NFKC", text).casefold())


def count_verdicts(verdicts: Sequence[Verdict]) -> dict[Verdict, int]:
    return {verdict: verdicts.count(verdict) for verdict in VERDICT_WORDS}
