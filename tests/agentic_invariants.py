"""What holds for every answer and every stream of the agentic mode, whatever the model wrote.

Read independently of the code under test where that is possible: marks and labels by patterns of their own.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from cg_rag.core.agentic_report import Verdict
from cg_rag.core.claims import References, unsupported
from cg_rag.core.evidence import EvidenceStore
from cg_rag.core.report_publish import Rules
from cg_rag.modes.vision_rules import make_references
from tests.sse_checker import StreamChecker

MARK = re.compile(r"\[cite\^(\d+)\]")
LOOKS_LIKE_A_MARK = re.compile(
    r"[\[【〔［(（{]\s*(?:cite|citation|ref|引用|证据)\s*[\^:：]\s*\d|cite\s*\^|[〔【]\s*\d{1,3}\s*[〕】]",
    re.I,
)
RAISED = re.compile(r"[\u4e00-\u9fff。；）》][⁰¹²³⁴-⁹]|[\u4e00-\u9fff。；）》]<sup>\s*\d")
LABELS = re.compile(
    r"[\[【]\s*(?:OBSERVATION|SEARCH_PLAN|EVIDENCE_REVIEW|FINAL_REASONING|ANSWER)\s*[\]】]", re.I
)
LABEL_ALONE = re.compile(
    r"^[\s#*-]*(?:\d{1,2}[.、])?[\s#*-]*(?:OBSERVATION|SEARCH_PLAN|EVIDENCE_REVIEW|FINAL_REASONING|ANSWER)[\s:：*]*$",
    re.M,
)
# What no index and no criteria of the tests have, told apart without the code under test.
NOWHERE = re.compile(
    r"建筑法》第|第九十九条|2022版）》第|安全生产法第2"
    r"|(?<![A-Za-z0-9Ａ-Ｚａ-ｚ])(?:JGJ ?130-2011|GB ?50016|9\.9\.9(?!\w)|GB ?55023(?!—)|JGJ ?999)(?![A-Za-z0-9Ａ-Ｚａ-ｚ])"
)
SECTIONS = ["隐患等级", "隐患分类", "隐患描述", "隐患判定依据", "整改措施及建议"]
SCENES = {"assessable", "unsupported_scene", "insufficient_visual_evidence", "not_assessed"}


def check_answer(payload: Mapping[str, Any], rules: Rules) -> None:
    """Raises AssertionError."""
    answer, documents = payload["answer"], payload["retrieval_docs"]
    references = references_to(documents, rules)
    assert answer.strip() == answer != ""
    check_text(answer, references)
    numbers = sorted({int(number) for number in MARK.findall(answer)})
    assert payload["citations"] == numbers
    expected = ("cited" if numbers else "uncited") if documents else "none"
    assert payload["evidence_status"] == expected
    assert payload["scene_status"] in SCENES
    if payload["scene_status"] == "insufficient_visual_evidence":
        assert any("补拍" in warning for warning in payload["warnings"])
    assert len(payload["hazard_categories"]) in (0, payload["image_count"])
    for stage in payload["reasoning_stages"]:
        check_text(stage["content"], references, is_question=stage["label"] == "SEARCH_PLAN")


def check_verdict(
    verdict: Verdict, documents: Sequence[Mapping[str, Any]], references: References, num_images: int
) -> None:
    """The same of what the answer is made of."""
    assert verdict.text.strip() == verdict.text != ""
    check_text(verdict.text, references)
    assert list(verdict.citations) == sorted({int(number) for number in MARK.findall(verdict.text)})
    assert all(1 <= number <= len(documents) for number in verdict.citations)
    if verdict.kind == "report":
        check_sections(verdict.text)
    assert verdict.scene in SCENES
    assert len(verdict.categories) == (0 if verdict.kind == "plain" else num_images)
    if verdict.scene == "insufficient_visual_evidence":
        assert any("补拍" in warning for warning in verdict.warnings)


def check_sections(report: str) -> None:
    """A report has every section, once and in order; without a hazard it may lack the basis."""
    for block in re.split(r"^## 图\d\n", report, flags=re.M):
        heads = re.findall(r"^#{2,3} (.+)", block, re.M)
        if heads and "\n无隐患\n" not in block:
            assert heads == SECTIONS, report


def references_to(documents: Sequence[Mapping[str, Any]], rules: Rules) -> References:
    store = EvidenceStore(max(len(documents), 1))
    store.add([documents], len(documents))
    return make_references(store.items, rules)


def as_shown(text: str) -> str:
    """What a page makes of it: entities and escapes undone, tags and what has no width left out, half-width."""
    text = re.sub(r"\\([\[\]^])", r"\1", html.unescape(text))
    text = re.sub(r"</?(?:b|i|sup|br)>|<!--.*?-->", "", text)
    folded = unicodedata.normalize("NFKC", text.replace("\t", " "))
    return "".join(char for char in folded if char == "\n" or unicodedata.category(char) not in ("Cf", "Cc"))


def check_text(text: str, references: References, is_question: bool = False) -> None:
    """No label, no mark that resolves to nothing, no name without evidence."""
    assert not RAISED.search(text), text
    for seen in (text, as_shown(text)):
        assert not LABELS.search(seen), text
        assert not LABEL_ALONE.search(seen), text
        assert not LOOKS_LIKE_A_MARK.search(MARK.sub("", seen)), text
        assert {*MARK.findall(seen)} == {*MARK.findall(text)}, text
    assert all(1 <= int(number) <= references.num_evidence for number in MARK.findall(text)), text
    if not is_question:
        assert not NOWHERE.search(text), text
        assert not unsupported(references.check(text)), text


def check_stream(stream: StreamChecker, rules: Rules) -> None:
    """What was sent on the way, void or not; what a stream that ended with an error found is not known."""
    answers = [""]
    for event in stream.events:
        if event.name == "answer_reset":
            answers.append("")
        elif event.name == "token" and event.data["channel"] == "answer":
            answers[-1] += event.data["text"]
    if stream.terminal.name == "error":
        for text in (*answers, stream.reasoning_text):
            assert not LABELS.search(text), text
        return
    references = references_to(stream.final["retrieval_docs"], rules)
    for text in answers:
        check_text(text, references)
    stages = [stage["content"] for stage in stream.final["reasoning_stages"] if stage["content"]]
    assert stream.reasoning_text == "\n\n".join(stages)
