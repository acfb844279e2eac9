"""What of a report goes out while it is still being written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cg_rag.core.evidence import Evidence
from cg_rag.core.report_gate import ReportGate
from cg_rag.core.report_publish import read_sectioned
from cg_rag.modes.vision_rules import load_rules, make_references
from tests.agentic_scenarios import LAW, SAFE, report

RULES = load_rules(None)
REFERENCES = make_references([Evidence(1, f"GB99001-2025{LAW}", "2.0.1", "不得有积水。", {})], RULES)


def released(text: str, *, aligns: bool = False, size: int = 3) -> str:
    gate = ReportGate(REFERENCES, aligns)
    pieces = [text[place : place + size] for place in range(0, len(text), size)]
    return "".join(map(gate.feed, pieces)) + gate.finish()


@pytest.mark.parametrize(
    "text",
    [
        report(),
        SAFE,
        report().replace("\n\n", "\n") + "\n",
        "\n\n" + report().replace("\n", "\n\n"),
        report().replace("1. ", "1、"),
        report().replace("[cite^1]", "【cite^１】"),
        f"## 图1\n{report(head='###')}\n## 图2\n场景：画面不足以判定\n1. 画面过暗。\n",
    ],
)
def test_what_goes_out_is_what_is_published(text: str) -> None:
    num_images = 2 if "图2" in text else 1
    assert released(text) == read_sectioned(text, num_images, RULES, "cite", REFERENCES).text


@pytest.mark.parametrize(
    "line",
    [
        "1. 地基不得有积水 [cite^9]。",
        "1. 《建筑法》第四十七条。",
        "1. 地基 [cite^",
        "[EVIDENCE_REVIEW]",
        "- [SEARCH_PLAN]",
        "1. 地基 [ci[cite^1]te^9]。",
    ],
)
def test_from_the_first_line_that_has_no_evidence_on_nothing_goes_out(line: str) -> None:
    assert released(f"## 隐患等级\n一般隐患\n{line}\n## 整改措施及建议\n1. 排水。") == "## 隐患等级\n一般隐患"


@pytest.mark.parametrize(
    "halves",
    [
        ("1. 地基 [cite", "^9]。"),
        ("1. 依据《建筑", "法》第四十七条。"),
        ("[", "ANSWER]"),
        ("地基【cite", "^### 9]"),
        ("[c【1】ite", "^9]"),
    ],
)
def test_two_lines_that_only_together_say_it_do_not_both_go_out(halves: tuple[str, str]) -> None:
    out = released("甲\n" + "\n".join(halves))
    assert halves[1] not in out


@given(st.text(alphabet="## 图1隐患等级\n1.。[cite^19]《法》第条场景：", max_size=80), st.integers(1, 9))
def test_any_cutting_releases_the_same(text: str, size: int) -> None:
    assert released(text, size=size) == released(text, size=1000)
