"""The hybrid report over what text models write: bases, marks, names, and what is let out while it comes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cg_rag.core.claims import References, unsupported
from cg_rag.core.evidence import EvidenceStore
from cg_rag.core.hybrid_report import (
    NO_BASIS,
    NOTHING_FOUND,
    DraftGate,
    HybridWriter,
    describe,
    retake_warnings,
    scene_status,
)
from cg_rag.core.mark_reader import find_marks
from cg_rag.core.mark_remains import has_mark_remains
from cg_rag.core.marks import cited_numbers
from cg_rag.core.report import Report
from cg_rag.core.report_parse import parse
from cg_rag.modes.vision_rules import load_rules, make_references
from tests.agentic_invariants import RAISED, as_shown

RULES = load_rules(None)
ARTICLES = [
    ("GB99001-2025样例脚手架规范", "2.0.1", "脚手架地基应平整坚实，不得有积水。"),
    ("GB99001-2025样例脚手架规范", "6.0.5", "脚手架搭设后应组织验收。"),
    ("中华人民共和国样例安全法", "第二十八条", "应当对新进场人员进行安全教育。"),
    ("样例建工集团手册", "", "动火须办证。"),
]
DESCRIPTION = "1） 立杆底部**浸泡**在积水中。\n（2）未设垫板，见 [图]。\n   - 西侧尤甚"
ONE = f"隐患等级：一般隐患\n\n隐患分类：扣件式钢管脚手架\n\n隐患描述：\n{DESCRIPTION}\n\n整改措施和建议：\n1. 排水。"
SAFE = "隐患等级：无隐患\n\n隐患分类：无\n\n隐患描述：\n1. 护栏完整。\n\n整改措施和建议：\n1. 无需整改。"
DARK = "场景：画面不足以判定\n\n隐患描述：\n1. 画面过暗。\n\n整改措施和建议：\n1. 白天从 3 米外补拍立杆底部。"
OFFICE = "场景：非施工现场\n\n隐患描述：\n1. 会议室。"
BASES = (
    "《样例脚手架规范》（GB 99001-2025）2.0.1：地基应平整坚实，不得有积水〔1〕。",
    "《样例脚手架规范》6.0.5：搭设后应组织验收〔2〕。",
    "《样例安全法》第二十八条：进行安全教育〔3〕。",
)
MEASURES = ("抽排积水，四周挖排水沟。", "复核地基承载力。")


def evidence(number: int) -> EvidenceStore:
    store = EvidenceStore.for_topk(12)
    names = ("law_name", "article_number", "contents")
    store.add([[dict(zip(names, article, strict=True)) for article in ARTICLES[:number]]], 12)
    return store


REFERENCES = {number: make_references(evidence(number).items, RULES) for number in range(5)}


def seen(*pictures: str) -> Report:
    text = (
        pictures[0]
        if len(pictures) == 1
        else "\n\n".join(f"## 图{n}\n\n{text}" for n, text in enumerate(pictures, 1))
    )
    return parse(text, RULES.taxonomy)


def writer(*pictures: str, num_evidence: int = 3) -> HybridWriter:
    pictures = pictures or (ONE,)
    return HybridWriter(seen(*pictures), len(pictures), REFERENCES[num_evidence], RULES.taxonomy)


def draft(bases: Sequence[str] = BASES, measures: Sequence[str] = MEASURES, marks: str = "##") -> str:
    numbered = ["\n".join(f"{n}. {item}" for n, item in enumerate(items, 1)) for items in (bases, measures)]
    return f"{marks} 隐患判定依据\n{numbered[0]}\n\n{marks} 整改措施及建议\n{numbered[1]}"


def released(using: HybridWriter, text: str, cuts: Sequence[int]) -> str:
    gate, out = DraftGate(using), using.description
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        out += gate.feed(text[start:end])
    return out


def test_a_good_draft_is_published_as_it_is_below_the_untouched_description() -> None:
    reading = writer().read(draft())
    assert (reading.faults, reading.warnings, reading.citations) == ((), (), (1, 2, 3))
    assert reading.text == (
        f"## 隐患等级\n一般隐患\n\n## 隐患分类\n扣件式钢管脚手架\n\n## 隐患描述\n{DESCRIPTION}\n\n{draft()}"
    )


def test_the_text_model_reads_level_category_and_description_and_not_the_measures() -> None:
    assert describe(seen(ONE), 1) == (
        f"## 隐患等级\n一般隐患\n\n## 隐患分类\n扣件式钢管脚手架\n\n## 隐患描述\n{DESCRIPTION}"
    )
    several = describe(seen(SAFE, ONE, DARK), 3)
    assert several.startswith("## 图2\n\n### 隐患等级\n一般隐患")
    assert "护栏" not in several


@pytest.mark.parametrize(
    "form", ["[cite^{}]", "【{}】", "［{}］", "〔 {} 〕", "【cite^{}】", "[cite ^{}]", "〔〔{}〕〕"]
)
def test_other_spellings_of_marks_become_the_one(form: str) -> None:
    bases = [base.replace(f"〔{n}〕", form.format(n)) for n, base in enumerate(BASES, 1)]
    reading = writer().read(draft(bases))
    assert (reading.faults, reading.citations) == ((), (1, 2, 3))
    assert reading.text.endswith(draft())


FAULTY: list[tuple[list[str], str, int]] = [
    ([*BASES[:2]], "须恰为 3 条，收到 2 条", 2),
    ([*BASES, BASES[0]], "须恰为 3 条，收到 4 条", 3),
    ([BASES[0], BASES[1], BASES[2].replace("〔3〕", "")], "收到 0 个", 3),  # its text names the one article
    ([BASES[0], BASES[1], "应进行安全教育。"], "收到 0 个", 2),
    ([BASES[0], BASES[1], BASES[2].replace("〔3〕", "〔9〕")], "引用编号 9 不存在", 3),
    ([BASES[0], BASES[1], "应进行安全教育〔9〕。"], "引用编号 9 不存在", 2),
    ([BASES[0], BASES[1], BASES[2].replace("〔3〕", "〔2〕〔3〕")], "收到 2 个", 3),
    ([BASES[0], BASES[1], "应进行教育〔2、3〕。"], "收到 2 个", 3),
    ([BASES[0].replace("〔1〕", "〔2〕"), BASES[1], BASES[2]], "写的却是别的条文", 3),
    ([BASES[0], BASES[1], "《样例安全法》第三十条：教育〔3〕。"], "不在检索到的条文", 2),
    ([BASES[0], BASES[1], "《建筑法》第四十六条：教育〔3〕。"], "不在检索到的条文", 2),
    (
        [BASES[0], BASES[1], "《样例脚手架规范》2.0.1 与《样例安全法》第二十八条〔3〕。"],
        "写的却是别的条文",
        2,
    ),
    ([BASES[0], BASES[0], BASES[2]], "须各引用不同的条文", 3),
]


@pytest.mark.parametrize(("bases", "fault", "num_kept"), FAULTY)
def test_a_broken_basis_is_named_and_what_is_valid_is_kept(
    bases: list[str], fault: str, num_kept: int
) -> None:
    using = writer()
    reading = using.read(draft(bases))
    assert fault in "；".join(reading.faults)
    check_invariants(reading.text, using, REFERENCES[3])
    assert len(reading.report.blocks[0].basis.items) == num_kept
    if num_kept < 3:
        assert any("条通过校验" in warning for warning in reading.warnings)


def test_a_mark_that_points_elsewhere_goes_to_the_article_that_is_named() -> None:
    reading = writer().read(
        draft([BASES[0].replace("〔1〕", "〔2〕"), BASES[1], BASES[2].replace("〔3〕", "")])
    )
    assert [cited_numbers(item) for item in reading.report.blocks[0].basis.items] == [[1], [2], [3]]


def test_names_in_measures_that_nobody_looked_up_are_asked_about_and_then_cut() -> None:
    reading = writer().read(draft(measures=["按照《建筑法》第四十六条的规定，抽排积水。", "复核。"]))
    assert "《建筑法》第四十六条" in reading.faults[0]
    assert reading.text.endswith("## 整改措施及建议\n1. 抽排积水。\n2. 复核。")
    assert "已删去" in reading.warnings[0]


def test_nothing_of_a_useless_draft_is_published_but_the_facts() -> None:
    for text in ("", "对不起，我无法回答。", "## 隐患等级\n重大事故隐患"):
        reading = writer().read(text)
        assert reading.faults
        assert reading.num_points == 0
        assert DESCRIPTION in reading.text
        assert f"## 隐患判定依据\n{NO_BASIS}" in reading.text
        assert "重大" not in reading.text


@pytest.mark.parametrize("num_evidence", [1, 2])
def test_with_fewer_than_three_documents_one_carries_several_bases_and_a_warning_says_so(
    num_evidence: int,
) -> None:
    bases = [BASES[0], BASES[num_evidence - 1], "地基处不得积水〔1〕。"]
    reading = writer(num_evidence=num_evidence).read(draft(bases))
    assert reading.faults == ()
    assert len(reading.report.blocks[0].basis.items) == 3
    assert f"检索到的条文只有 {num_evidence} 条" in reading.warnings[0]


def test_without_evidence_nothing_is_a_basis_and_no_article_is_named() -> None:
    reading = writer(num_evidence=0).read(draft(measures=["按照《建筑法》第四十六条，抽排积水〔1〕。"]))
    assert (reading.faults, reading.citations) == ((), ())
    assert reading.text.endswith(f"## 隐患判定依据\n{NOTHING_FOUND}\n\n## 整改措施及建议\n1. 抽排积水。")


def test_a_clause_of_the_criteria_may_stand_in_a_basis_beside_its_evidence() -> None:
    clause = "《房屋市政工程生产安全重大事故隐患判定标准（2024版）》第七条第（一）项"
    reading = writer().read(draft([f"{clause}；《样例脚手架规范》2.0.1：不得有积水〔1〕。", *BASES[1:]]))
    assert reading.faults == ()


def test_several_pictures_have_three_bases_each_where_there_is_a_hazard() -> None:
    using = writer(SAFE, ONE, OFFICE, ONE)
    text = "\n\n".join(f"## 图{n}\n\n{draft(marks='###')}" for n in (2, 4))
    reading = using.read(text)
    assert reading.faults == ()
    assert [len(block.basis.items) for block in reading.report.blocks] == [0, 3, 0, 3]
    assert reading.text.startswith("## 图1\n\n### 隐患等级\n无隐患")
    assert "## 图3\n\n场景：非施工现场\n\n1. 会议室。\n\n## 图4" in reading.text
    assert reading.text.startswith(using.description)
    assert using.description.endswith(f"### 隐患描述\n{DESCRIPTION}")
    missing = using.read(f"## 图2\n\n{draft(marks='###')}")
    assert "“## 图2”、“## 图4”" in missing.faults[0]


def test_without_a_hazard_the_whole_report_is_the_description() -> None:
    assert writer(SAFE).description == (
        "## 隐患等级\n无隐患\n\n## 隐患分类\n无\n\n## 隐患描述\n1. 护栏完整。\n\n## 整改措施及建议\n1. 无需整改。"
    )
    assert writer(OFFICE).description == "场景：非施工现场\n\n1. 会议室。"
    assert scene_status(seen(OFFICE)) == "unsupported_scene"
    assert scene_status(seen(OFFICE, DARK)) == "insufficient_visual_evidence"
    assert scene_status(seen(DARK, SAFE)) == "assessable"
    assert retake_warnings(seen(DARK)) == ["画面不足以判定，请补拍：白天从 3 米外补拍立杆底部。"]
    assert retake_warnings(seen(OFFICE, SAFE)) == []


PIECES = [
    *BASES,
    *(base.replace("〔", "[cite^").replace("〕", "]") for base in BASES),
    "《样例建工集团手册》：动火须办证〔4〕。",
    "《建筑法》第四十六条：教育〔3〕。",
    "依据《样例脚手架规范》9.9.9〔1〕。",
    "地基应坚实〔1〕〔2〕。",
    "应验收〔99〕。",
    "应验收【２】。",
    "按第二十八条教育〔3〕",
    "6.0.5 要求验收〔2〕。",
    "见第二十八条之一〔0〕。",
    "[cite^1,2]",
    "见[cite^]。",
    "【cite^",
    "抽排积水。",
    "依据：《样例安全法》",
    "第四十六条",
    "规范》GB 50870-2013",
    "应验收&#12308;9&#12309;。",
    "应验收&#91;cite^1&#93;。",
    "应验收\\[cite^9\\]。",
    "应验收〔<b></b>9〕。",
    "应验收⁹。",
    "应验收<sup>2</sup>。",
    "&#91;",
    "&#93;",
    "\\[",
    "㎡、m²",
]
HEADS = [
    "## 隐患判定依据",
    "## 整改措施及建议",
    "**判定依据：**",
    "整改措施：",
    "## 图1",
    "## 图2",
    "隐患等级：重大事故隐患",
    "```",
]
LINES = st.lists(
    st.builds(
        lambda marker, parts: marker + "".join(parts),
        st.sampled_from(["1. ", "2. ", "3. ", "4. ", "- ", "（1）", "", "   "]),
        st.lists(
            st.sampled_from(PIECES) | st.text("〔[【cite^12〕]】。第条6.05《》", max_size=8), max_size=3
        ),
    )
    | st.sampled_from(HEADS)
    | st.just(""),
    max_size=14,
).map("\n".join)
DRAFTS = LINES | st.permutations(PIECES[:8]).map(lambda items: draft(items[:3], items[3:5]))


def check_invariants(text: str, using: HybridWriter, references: References) -> None:
    """What every published report keeps to, whatever the model wrote."""
    report = parse(text, RULES.taxonomy)
    assert text.startswith(using.description)
    written = text[len(using.description) :]
    for mark in find_marks(text):
        assert text[mark.start : mark.end] == f"〔{mark.numbers[0]}〕"
        assert 1 <= mark.numbers[0] <= references.num_evidence
    assert not has_mark_remains(written)
    shown_numbers = {int(number) for number in re.findall(r"[〔\[【]\s*(\d+)\s*[〕\]】]", as_shown(written))}
    assert shown_numbers == set(cited_numbers(written))
    assert "cite^" not in as_shown(written)
    assert not RAISED.search(written)
    assert not unsupported(references.check(written))
    for block in report.blocks:
        items = [item for item in block.basis.items if item not in (NO_BASIS, NOTHING_FOUND)]
        assert len(items) <= 3
        for item in items:
            assert len(find_marks(item)) == 1
    assert [block.level for block in report.blocks] == ["一般隐患"]


def check_draft(text: str, num_evidence: int, data: Any) -> None:
    using = writer(num_evidence=num_evidence)
    reading = using.read(text)
    check_invariants(reading.text, using, REFERENCES[num_evidence])
    assert list(reading.citations) == cited_numbers(reading.text)
    if not reading.faults and num_evidence:
        assert len(reading.report.blocks[0].basis.items) == 3
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    out = released(using, text, cuts)
    # Also where it turns out not to be the beginning of what is published, nothing forged was seen.
    for mark in find_marks(out):
        assert out[mark.start : mark.end] == f"〔{mark.numbers[0]}〕"
        assert 1 <= mark.numbers[0] <= num_evidence
    assert not unsupported(REFERENCES[num_evidence].check(out[len(using.description) :]))
    assert released(using, text, list(range(1, len(text)))) == out
    if not reading.faults:
        assert reading.text.startswith(out)


@settings(max_examples=150)
@given(DRAFTS, st.integers(0, 4), st.data())
def test_whatever_is_written_the_report_keeps_its_rules_and_what_went_out_was_part_of_it(
    text: str, num_evidence: int, data: Any
) -> None:
    check_draft(text, num_evidence, data)


@pytest.mark.slow
@settings(max_examples=8_000)
@given(DRAFTS, st.integers(0, 4), st.data())
def test_the_same_over_eight_thousand_drafts(text: str, num_evidence: int, data: Any) -> None:
    check_draft(text, num_evidence, data)
