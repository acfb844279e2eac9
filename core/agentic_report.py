"""What the answer of an agentic turn is worth: a report with citations, a remark on a scene, a plain answer. No I/O.

Rule: `text` is what may be published and has been read back; `faults` and `repairs` are what the model is asked to
correct first. Where nothing was found no article can be right, so what is cut there is nothing to ask about
(docs/vision.md, 检索全失败).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from cg_rag.core.citation_alignment import align_citations
from cg_rag.core.claims import References, claim_faults, cut_claims
from cg_rag.core.mark_remains import cut_mark_remains, has_mark_remains
from cg_rag.core.marks import cited_numbers, known_up_to, rewrite_marks
from cg_rag.core.protocol import SceneStatus, cut_labels, holds_label
from cg_rag.core.report import Report, hazard_categories, requires_report
from cg_rag.core.report_check import check
from cg_rag.core.report_parse import parse
from cg_rag.core.report_publish import Rules, mark_faults, read_sectioned
from cg_rag.core.taxonomy import NO_HAZARD

AnswerScene = Literal["assessable", "unsupported_scene", "insufficient_visual_evidence", "not_assessed"]
Kind = Literal["none", "report", "scene", "plain"]
ResetReason = Literal["format", "level", "salvage"]

# Four pictures with twenty points and their bases each are 10,000. Reading rubbish takes 60 ms for 1,000 characters.
MAX_ANSWER_CHARACTERS: Final = 16_000
_MAX_PASSES: Final = 6
_BROKEN_NAME: Final = re.compile(r"(《[^《》\n]{0,60})\n+([^《》\n]{0,60}》)")  # over the end of a line
_TOO_LONG: Final = f"回答超过 {MAX_ANSWER_CHARACTERS} 个字符，须精简。"
_IS_CUT: Final = "回答达到模型的输出长度上限而中断，须精简后写完整。"
_HAS_LABEL: Final = "[ANSWER] 部分里出现了协议标签，须去掉。"
_NO_SCENE: Final = "场景写为不可判定，就不能写“无隐患”；不可判定的画面用几句话说明，确可判定的改写场景。"
_MARK_IS_BROKEN: Final = "有不完整的引用标记，须写成 [cite^编号]。"
_MAY_LACK: Final = "回答达到模型的输出长度上限，可能不完整。"
_EMPTY: Final = "回答为空，须写出内容。"
_CUT_UNSUPPORTED: Final = "已删去没有检索依据的引用编号或法规条文。"
_ALIGNED: Final = "有 {count} 处引用与所述条文不一致，已改到一致的证据或删去。"
_RETAKE: Final = (
    "画面不足以判定，请补拍：在光线充足处，从 3 至 5 米外正对可疑部位拍全景，再近拍连接与底部等细节。"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model wrote. `scene` is what the observation says; `has_leaked`: labels stood in it and were taken out;
    `is_cut`: it ended at the model's limit of tokens."""

    text: str
    scene: SceneStatus | None = None
    has_leaked: bool = False
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """What every answer of a request is held to."""

    question: str
    num_images: int
    rules: Rules
    aligns: bool

    @property
    def requires_report(self) -> bool:
        return requires_report(self.question)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`text` is "" when nothing may be published. `repairs` are faults that rules have repaired in it. `reason` is why
    text that went out before is sent anew."""

    text: str = ""
    kind: Kind = "none"
    scene: AnswerScene = "not_assessed"
    categories: tuple[str | None, ...] = ()
    citations: tuple[int, ...] = ()
    faults: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    reason: ResetReason = "format"
    names_hazard: bool = False

    @property
    def passes(self) -> bool:
        return bool(self.text) and not self.faults and not self.repairs

    def with_warnings(self, *warnings: str) -> Verdict:
        return replace(self, warnings=(*self.warnings, *warnings))


def judge(answer: Answer, task: Task, references: References) -> Verdict:
    """Takes up to a second of CPU for rubbish, a few ms for a report."""
    if len(answer.text) > MAX_ANSWER_CHARACTERS:
        return Verdict(faults=(_TOO_LONG,))
    verdict = _judge(_without_labels(answer), task, references)
    if verdict.text and holds_label(verdict.text):
        # Its halves came together when the mark between them was cut.
        again = _judge(_without_labels(replace(answer, text=verdict.text)), task, references)
        repairs = dict.fromkeys((*verdict.repairs, *again.repairs))
        warnings = dict.fromkeys((*verdict.warnings, *again.warnings))
        verdict = replace(again, repairs=tuple(repairs), warnings=tuple(warnings))
    if verdict.text and holds_label(verdict.text):
        return replace(verdict, text="", faults=(*verdict.faults, _HAS_LABEL))
    return verdict


def _without_labels(answer: Answer) -> Answer:
    text = cut_labels(answer.text)
    return replace(answer, text=text, has_leaked=answer.has_leaked or text != answer.text)


def _judge(answer: Answer, task: Task, references: References) -> Verdict:
    text = cut_mark_remains(answer.text)
    is_broken = text != answer.text
    text, num_aligned = align_citations(text, references) if task.aligns else (text, 0)
    report = parse(text, task.rules.taxonomy)
    if report.has_level:
        verdict = _judge_report(text, answer, task, references)
    elif _is_scene(answer, report, task):
        verdict = _judge_scene(text, answer, task, report, references)
    elif not task.requires_report:
        verdict = _judge_plain(text, references)
    else:
        verdict = _judge_report(text, answer, task, references)
    if is_broken:
        verdict = replace(verdict, repairs=(*verdict.repairs, _MARK_IS_BROKEN))
    return _completed(verdict, answer, references, num_aligned)


def _completed(verdict: Verdict, answer: Answer, references: References, num_aligned: int) -> Verdict:
    """What holds for every kind."""
    if verdict.text and has_mark_remains(verdict.text):
        return replace(verdict, text="", faults=(*verdict.faults, _MARK_IS_BROKEN))
    repairs = [*verdict.repairs]
    repairs += [_HAS_LABEL] if answer.has_leaked else []
    repairs += [_IS_CUT] if answer.is_cut else []
    warnings = list(verdict.warnings)
    if verdict.repairs and verdict.text:
        warnings.append(_CUT_UNSUPPORTED)
    if answer.is_cut and verdict.text:
        warnings.append(_MAY_LACK)
    if num_aligned and verdict.text:
        warnings.append(_ALIGNED.format(count=num_aligned))
    if not references.num_evidence:
        repairs = [repair for repair in repairs if repair not in verdict.repairs]
    return replace(verdict, repairs=tuple(repairs), warnings=tuple(warnings))


def _is_scene(answer: Answer, report: Report, task: Task) -> bool:
    """Whether a text without a level says why there is none: by the observation, or picture by picture. Where no
    report is asked for none is missing."""
    if not task.requires_report:
        return False
    if answer.scene in ("unsupported_scene", "insufficient_visual_evidence"):
        return True
    return len(report.blocks) == task.num_images and all(block.scene for block in report.blocks)


def _judge_report(text: str, answer: Answer, task: Task, references: References) -> Verdict:
    needs_basis = references.num_evidence > 0
    reading = read_sectioned(text, task.num_images, task.rules, "cite", references, needs_basis=needs_basis)
    levels = {block.level for block in reading.report.blocks if not block.scene}
    faults = list(reading.faults)
    if answer.scene not in (None, "assessable") and levels == {NO_HAZARD}:
        faults.append(_NO_SCENE)
    if faults and reading.repairs:
        # A part that is empty because its claims were cut is not missing in what the model wrote.
        uncut = parse(text, task.rules.taxonomy)
        written = check(uncut, task.num_images, "sectioned", task.rules.taxonomy, needs_basis)
        faults = [fault for fault in faults if fault in written or fault == _NO_SCENE]
        return Verdict(faults=tuple(faults), repairs=reading.repairs)
    if faults:
        return Verdict(faults=tuple(faults))
    scenes = [block.scene for block in reading.report.blocks]
    return Verdict(
        reading.text,
        "report",
        "assessable",
        tuple(hazard_categories(reading.report)),
        reading.citations,
        (),
        reading.repairs,
        (*reading.warnings, *_retakes(scenes)),
        "level" if reading.is_downgraded else "format",
        bool(levels - {NO_HAZARD}),
    )


def _retakes(scenes: Sequence[str]) -> list[str]:
    """A picture among others that shows too little is to be taken again too."""
    places = [place for place, scene in enumerate(scenes, start=1) if scene == "insufficient_visual_evidence"]
    return [f"图{place}{_RETAKE}" for place in places]


def _judge_scene(text: str, answer: Answer, task: Task, report: Report, references: References) -> Verdict:
    scenes: set[str] = {block.scene for block in report.blocks if block.scene}
    if not scenes and answer.scene:
        scenes = {str(answer.scene)} - {"assessable"}
    if task.num_images > 1 and len(report.blocks) == task.num_images and all(b.scene for b in report.blocks):
        reading = read_sectioned(text, task.num_images, task.rules, "cite", references, needs_basis=False)
        published, repairs, faults = reading.text, list(reading.repairs), reading.faults
    else:
        published, repairs = _clean(_unsectioned(text, report), references)
        faults = () if published else (_EMPTY,)
    scene: AnswerScene = "not_assessed"
    if len(scenes) == 1:
        scene = "unsupported_scene" if "unsupported_scene" in scenes else "insufficient_visual_evidence"
    warnings = () if scene == "unsupported_scene" else (_RETAKE,)
    if faults:
        return Verdict(faults=tuple(faults), repairs=tuple(repairs))
    citations = tuple(cited_numbers(published))
    return Verdict(
        published, "scene", scene, (None,) * task.num_images, citations, (), tuple(repairs), warnings
    )


def _unsectioned(text: str, report: Report) -> str:
    """A remark on a scene that was written in sections all the same, as sentences."""
    if len(report.blocks) != 1:
        return text
    block = report.blocks[0]
    return "\n".join((*block.description.items, *block.measures.items)) or text


def _judge_plain(text: str, references: References) -> Verdict:
    published, repairs = _clean(text, references)
    if not published:
        return Verdict(faults=(_EMPTY,), repairs=tuple(repairs))
    # What is cut from a sentence that nobody signs is not worth another call.
    warnings = (_CUT_UNSUPPORTED,) if repairs else ()
    return Verdict(published, "plain", "not_assessed", (), tuple(cited_numbers(published)), (), (), warnings)


def _clean(text: str, references: References) -> tuple[str, list[str]]:
    """Free text without unknown marks and names; "" when that never ends."""
    keep = known_up_to(references.num_evidence)
    repairs = [*mark_faults(text, references.num_evidence), *claim_faults(references.check(text))]
    for _ in range(_MAX_PASSES):
        text = _BROKEN_NAME.sub(r"\1\2", text)
        marked = cut_mark_remains(rewrite_marks(text, "cite", keep))
        done = cut_claims(marked, references)[0].strip()
        if done == text:
            return done, repairs
        text = done
    return "", repairs


def public_text(text: str, references: References, is_question: bool) -> str:
    """A line of a stage as it may be shown: unknown marks cut, and the names that have no evidence, save where a law is
    what is asked for. "" when nothing is left."""
    shown = _clean(cut_labels(text), references)[0]
    if is_question:
        shown = cut_mark_remains(rewrite_marks(text, "none", known_up_to(0)))
    return "" if holds_label(shown) or has_mark_remains(shown) else shown
