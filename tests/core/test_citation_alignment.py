"""Citations moved to the evidence that their sentence names."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cg_rag.core.citation_alignment import align_citations
from cg_rag.core.evidence import Evidence
from cg_rag.modes.vision_rules import load_rules, make_references

_ARTICLES = [
    ("GB55023-2022施工脚手架通用规范", "2.0.1", "脚手架性能应符合下列规定。"),
    ("中华人民共和国安全生产法", "第二十八条", "应进行教育和培训。"),
    ("GB55023-2022施工脚手架通用规范", "6.0.5(1)", "架体应设护栏。"),
]
REFERENCES = make_references(
    [Evidence(n, *article, {}) for n, article in enumerate(_ARTICLES, start=1)], load_rules(None)
)
CRITERIA = "《房屋市政工程生产安全重大事故隐患判定标准（2024版）》第七条第一款"


@pytest.mark.parametrize(
    ("text", "aligned"),
    [
        # Right as they are.
        ("1. 《安全生产法》第二十八条：应培训 [cite^2]。", None),
        ("1. 《施工脚手架通用规范》规定应坚实 [cite^3]。", None),
        ("1. 地基应坚实 [cite^2]。", None),
        ("## 隐患判定依据", None),
        ("1. 《安全生产法》第二十八条：应培训 [cite^9]。", None),  # the check's business
        # Moved.
        ("1. 《安全生产法》第二十八条：应培训 [cite^1]。", "1. 《安全生产法》第二十八条：应培训 [cite^2]。"),
        (
            "1. 《施工脚手架通用规范》6.0.5(1) 护栏【cite^１】。",
            "1. 《施工脚手架通用规范》6.0.5(1) 护栏[cite^3]。",
        ),
        (
            "1. 《安全生产法》第二十八条应培训。[cite^1]地基应坚实[cite^1]。",
            "1. 《安全生产法》第二十八条应培训。[cite^2]地基应坚实[cite^1]。",
        ),
        (
            "1. 《安全生产法》第二十八条与《施工脚手架通用规范》2.0.1 [cite^1][cite^3]。",
            "1. 《安全生产法》第二十八条与《施工脚手架通用规范》2.0.1 [cite^1][cite^2]。",
        ),
        # Taken out: nothing that is named is evidence.
        (f"1. {CRITERIA}：承载力不足 [cite^2]。", f"1. {CRITERIA}：承载力不足。"),
        ("1. 《建筑法》第四十七条 [cite^1]。", "1. 《建筑法》第四十七条。"),
        ("1. 《安全生产法》第二十八条 [cite^2][cite^1]。", "1. 《安全生产法》第二十八条 [cite^2]。"),
    ],
)
def test_a_citation_goes_to_what_its_sentence_names(text: str, aligned: str | None) -> None:
    done, num_changed = align_citations(text, REFERENCES)
    assert done == (aligned or text)
    assert bool(num_changed) == (aligned is not None)


PIECES = [
    "《安全生产法》第二十八条", "《施工脚手架通用规范》2.0.1", "[cite^1]", "[cite^2]", "[cite^3]", "[cite^9]", "【cite^2】", "。", "；", "\n", "1. ", "护栏",
    CRITERIA, "第三条",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
@example(f"{CRITERIA}。[cite^1]。[cite^1]")
def test_alignment_comes_to_rest_and_takes_nothing_but_marks(text: str) -> None:
    done, _ = align_citations(text, REFERENCES)
    assert align_citations(done, REFERENCES) == (done, 0)

    def bare(written: str) -> str:
        return re.sub(r"[\[【]cite\^\d+[\]】]|\s", "", written)

    assert bare(done) == bare(text)
