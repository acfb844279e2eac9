"""Laws and articles of a text looked up in a short list, without the server."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from cg_rag.index.evidence import EvidenceFinder

FINDER = EvidenceFinder(
    [
        ("中华人民共和国建筑法", "第三条"),
        ("GB55023-2022施工脚手架通用规范", "6.0.5(1)"),
        ("GB55023-2022施工脚手架通用规范", "6.0.5(2)"),
    ]
)


def rows(text: str) -> list[tuple[int, ...]]:
    return [found.rows for found in FINDER.find(text)]


def test_an_article_is_found_by_any_of_its_spellings() -> None:
    assert rows("《建筑法》第三条") == rows("建筑法第3条") == rows("第三条") == [(0,)]
    assert rows("GB 55023 6.0.5（2）") == [(2,)]
    assert rows("《施工脚手架通用规范》第6.0.5条") == [(1, 2)]


def test_a_law_without_an_article_has_the_rows_of_the_law() -> None:
    (found,) = FINDER.find("《施工脚手架通用规范》")
    assert (found.names_article, found.rows, found.law_rows) == (False, (), (1, 2))


def test_what_the_list_lacks_has_no_rows() -> None:
    assert rows("《建筑法》第四条、JGJ 130-2011第6.3.2条") == [(), ()]


def test_a_document_that_is_no_law_is_not_found() -> None:
    assert FINDER.find("《施工日志》与《安全技术交底》") == []


@settings(max_examples=200)
@given(
    st.lists(
        st.sampled_from(["《建筑法》", "第三条", "6.0.5", "（1）", "、", "GB55023", "第", "条", "甲"])
    ).map("".join)
)
def test_spans_are_ascending_disjoint_and_of_the_text(text: str) -> None:
    end = 0
    for found in FINDER.find(text):
        assert end <= found.start < found.end
        assert text[found.start : found.end] == found.raw
        end = found.end
