"""Evidence keeps one numbering for the whole request."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cg_rag.core.evidence import EvidenceStore


def _document(name: str, **extra: Any) -> dict[str, Any]:
    return {"law_name": "样例规范", "article_number": name, "contents": f"{name} 的内容", **extra}


def test_results_are_interleaved_by_rank_and_duplicates_count_once() -> None:
    store = EvidenceStore.for_topk(12)
    first = [_document("1.0.1", score=0.9), _document("1.0.2")]
    second = [_document("2.0.1"), _document("1.0.1", score=0.2), _document("2.0.2")]
    found = store.add([first, second], 4)
    assert [(item.number, item.article_number) for item in found] == [
        (1, "1.0.1"),
        (2, "2.0.1"),
        (3, "1.0.2"),
        (4, "2.0.2"),
    ]
    assert all("score" not in document for document in store.documents)


def test_a_round_takes_no_more_than_its_candidates_and_old_ones_keep_their_numbers() -> None:
    store = EvidenceStore.for_topk(2)
    store.add([[_document("1"), _document("2")]], 2)
    again = store.add([[_document("2"), _document("3"), _document("4")]], 2)
    assert [(item.number, item.article_number) for item in again] == [(2, "2"), (3, "3")]
    assert len(store) == 3


def test_two_texts_under_one_number_are_two_documents() -> None:
    store = EvidenceStore.for_topk(2)
    other = _document("1") | {"contents": "另一文本"}
    assert len(store.add([[_document("1"), other]], 5)) == 2


def test_beyond_the_cap_old_evidence_is_still_found_and_new_is_left_out() -> None:
    store = EvidenceStore(2)
    store.add([[_document("1"), _document("2")]], 9)
    found = store.add([[_document("3"), _document("1")]], 9)
    assert [item.article_number for item in found] == ["1"]
    assert len(store) == 2


@given(
    st.lists(st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=6), min_size=1, max_size=3), max_size=4),
    st.integers(1, 8),
)
def test_number_n_is_document_n_for_ever(rounds: list[list[list[str]]], limit: int) -> None:
    store = EvidenceStore(5)
    seen: dict[str, int] = {}
    for results in rounds:
        found = store.add([[_document(name) for name in names] for names in results], limit)
        assert len(found) <= limit
        for item in found:
            assert seen.setdefault(item.article_number, item.number) == item.number
            assert store.documents[item.number - 1]["article_number"] == item.article_number
    assert len(store) <= 5
