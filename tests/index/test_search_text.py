"""What `cg-rag search` prints of a score."""

from __future__ import annotations

import pytest

from cg_rag.index.corpus import Article
from cg_rag.index.ranking import Hit
from cg_rag.index.retriever import SearchResult
from cg_rag.index.search import _as_text


def told(*hits: Hit) -> list[str]:
    articles = [Article("样例规范", f"1.0.{hit.row}", "正文", {}) for hit in hits]
    return _as_text(SearchResult(list(hits), articles, {}, [], "问")).splitlines()[::2]


@pytest.mark.parametrize("num_alike", [1, 2])
def test_where_no_candidate_stands_out_the_stage_scores_are_shown(num_alike: int) -> None:
    stages = {"fused": 0.0, "lexical": 12.3456, "dense": 0.71}
    lines = told(*(Hit(row, 0.0, stages) for row in range(num_alike)))
    assert all(line.endswith("　字面得分 12.346、余弦 0.710") for line in lines)


def test_other_scores_are_shown_as_they_are() -> None:
    fused = {"fused": 1.25, "lexical": 3.0}
    assert told(Hit(1, 1.25, fused), Hit(2, 0.0, {"lexical": 0.0}))[0].endswith("　得分 1.250")
    assert told(Hit(1, 12.5, {"lexical": 12.5})) == ["1. 样例规范 1.0.1　得分 12.500"]
