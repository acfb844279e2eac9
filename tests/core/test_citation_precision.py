"""exists, supports, in force: what is checked, and what the check cannot see."""

from __future__ import annotations

from typing import Any

from cg_rag.core.citation_precision import Citation, check_citations
from cg_rag.index.validity import read_validity
from cg_rag.modes.vision_rules import make_finder

DOCUMENTS: list[dict[str, Any]] = [
    {
        "law_name": "GB99001-2025样例脚手架规范",
        "article_number": "2.0.1",
        "contents": "脚手架地基应平整坚实，四周设排水沟，基础处不得有积水。",
        "status": "现行有效",
    },
    {
        "law_name": "样例旧标准",
        "article_number": "3.1",
        "contents": "动火作业须办理动火证。",
        "status": "已废止",
    },
    {"law_name": "样例旧标准", "article_number": "3.2", "contents": "脚手架地基应平整坚实，不得积水。"},
]


def check(answer: str) -> list[Citation]:
    return check_citations(answer, DOCUMENTS, make_finder, read_validity)


def test_a_number_that_leads_nowhere_does_not_exist_and_nothing_else_is_said_of_it() -> None:
    assert check("1. 地基不得有积水[cite^4]。") == [Citation(4, "1. 地基不得有积水。")]


def test_words_of_the_article_support_and_other_words_do_not() -> None:
    good, bad = check("1. 地基应平整坚实，基础处不得有积水[cite^1]。\n2. 地基应平整坚实[cite^2]。")
    assert (good.supports, good.validity, good.name) == (True, "in_force", "GB99001-2025样例脚手架规范 2.0.1")
    assert (bad.exists, bad.supports, bad.validity) == (True, False, "repealed")


def test_an_item_that_names_another_article_of_the_evidence_is_not_supported() -> None:
    named = "1. 《样例脚手架规范》2.0.1：脚手架地基应平整坚实，不得积水"
    right, wrong = check(f"{named}[cite^1]。\n{named}[cite^3]。")
    assert (right.supports, wrong.supports) == (True, False)
    assert wrong.share > 0.5
    assert wrong.validity == ""


def test_marks_of_hybrid_and_several_marks_in_an_item_are_read() -> None:
    assert [found.number for found in check("1. 不得有积水〔1〕〔3〕。\n2. 〔2〕")] == [1, 3, 2]
    assert check("没有引用。") == []


def test_meaning_is_not_seen() -> None:
    # Written down so that nobody takes the figure for more than it is.
    (found,) = check("1. 地基可以不平整坚实，基础处可以有积水[cite^1]。")
    assert found.supports
