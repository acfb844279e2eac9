"""The three tiers over an index held in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cg_rag.index.corpus import Article, LawRun, Scope
from cg_rag.index.errors import ScopeUnknown
from cg_rag.index.lexical import LexicalArrays, LexicalSearcher
from cg_rag.index.numerals import lookup_keys
from cg_rag.index.ranking import Ranker
from cg_rag.index.retriever import Retriever, SearchResult

SAFETY = "中华人民共和国安全生产法"
BUILDING = "中华人民共和国建筑法"
SCAFFOLD = "GB55023-2022施工脚手架通用规范"
LAWS = {
    SAFETY: [
        ("第二十七条", "生产经营单位的主要负责人应当具备安全生产知识。"),
        ("第二十八条", "从业人员应当接受教育和培训。"),
        ("第二十九条", "采用新工艺的单位应当对施工许可进行专门培训。"),
    ],
    BUILDING: [
        ("第七条", "建筑工程开工前应当领取施工许可证。"),
        ("第八条", "申请领取施工许可证应当具备下列条件。"),
        ("第二十八条", "禁止转包全部建筑工程。"),
    ],
    SCAFFOLD: [
        ("6.0.4", "脚手架在使用过程中应当定期检查。"),
        ("6.0.5", "脚手架遇有大风停用后应当检查。"),
        ("6.0.5(1)", "遇有六级及以上强风或大雨过后。"),
    ],
    "施工现场管理办法": [
        ("第一条", "施工许可证应当公示，脚手架应当验收。"),
        ("第二条", "安全生产教育和培训应当记录。"),
    ],
    "塔式起重机管理规定": [("第一条", "塔式起重机应当检查。")],
    # A second edition of the first law, as real corpora hold them.
    SAFETY + " ": [("第二十八条", "从业人员应当接受旧版教育。")],
}


class MemoryIndex:
    """What the retriever needs of an index, over lists. Remembers which rows were read."""

    def __init__(self, laws: Sequence[tuple[str, str, Sequence[tuple[str, str]]]]) -> None:
        self.articles: list[Article] = []
        self.rows_read: list[int] = []
        self._rows: dict[tuple[int, str], list[int]] = {}
        runs = []
        for corpus, name, articles in laws:
            runs.append(LawRun(name, corpus, (), len(self.articles), len(articles), ""))
            for number, contents in articles:
                for key in lookup_keys(number):
                    self._rows.setdefault((len(runs) - 1, key), []).append(len(self.articles))
                self.articles.append(Article(name, number, contents))
        self.runs = tuple(runs)
        self.lexical = LexicalArrays.build(f"{a.law_name}\n{a.contents}" for a in self.articles)

    def find_rows(self, run_index: int, key: str) -> list[int]:
        return self._rows.get((run_index, key), [])

    def read_articles(self, rows: Sequence[int]) -> list[Article]:
        self.rows_read += rows
        return [self.articles[row] for row in rows]


INDEX = MemoryIndex([("b" if name.endswith(" ") else "a", name.strip(), law) for name, law in LAWS.items()])
NUM_ROWS = len(INDEX.articles)
SCOPES = {
    "full": Scope("full", ((0, NUM_ROWS),)),
    "usual": Scope("usual", ((3, 6), (9, 11))),
    "empty": Scope("empty", ()),
}


def by_words(index: MemoryIndex, scopes: Mapping[str, Scope], min_score: float | None = None) -> Retriever:
    return Retriever(index, scopes, Ranker(index.lexical, None, min_score=min_score))


RETRIEVER = by_words(INDEX, SCOPES)
PIECES = [
    "《安全生产法》",
    "安全生产法",
    "第二十八条",
    "第28条",
    "GB55023",
    "6.0.5",
    "建筑法",
    "施工许可证",
    "脚手架",
    "，",
]
QUERIES = st.lists(st.sampled_from(PIECES), max_size=6).map(" ".join)


def places(result: SearchResult) -> list[tuple[str, str]]:
    return [(article.law_name, article.article_number) for article in result.articles]


def tier(stages: dict[str, float]) -> int:
    return 0 if "exact" in stages else 1 if "law" in stages else 2


@pytest.mark.parametrize(
    "query", ["《安全生产法》第二十八条", "安全生产法第28条", "中华人民共和国安全生产法第２８条"]
)
def test_the_named_article_comes_first_in_every_edition_by_row(query: str) -> None:
    result = RETRIEVER.search(query, "full", 5)
    assert [hit.row for hit in result.hits[:2]] == [1, NUM_ROWS - 1]
    assert all(hit.stages["exact"] == 1.0 for hit in result.hits[:2])
    assert {law for law, _ in places(result)[2:4]} == {SAFETY}
    assert result.hits[0].score == result.hits[1].score == result.hits[2].score + 1.0


def test_the_score_of_the_only_article_of_a_law_does_not_depend_on_topk() -> None:
    one, many = (RETRIEVER.search("《塔式起重机管理规定》第一条 检查", "full", topk).hits for topk in (1, 5))
    assert one == many[:1]
    assert many[0].score == many[1].score + 1.0


def test_code_and_clause_number_bring_the_clause_and_its_items() -> None:
    result = RETRIEVER.search("GB55023 6.0.5", "full", 3)
    assert places(result)[:2] == [(SCAFFOLD, "6.0.5"), (SCAFFOLD, "6.0.5(1)")]


def test_articles_of_a_named_law_come_before_better_matches_elsewhere() -> None:
    result = RETRIEVER.search("《建筑法》 脚手架验收", "full", NUM_ROWS)
    tiers = [tier(hit.stages) for hit in result.hits]
    assert tiers[:3] == [1, 1, 1]
    assert set(tiers[3:]) == {2}
    assert places(result)[3] == ("施工现场管理办法", "第一条")


def test_articles_of_a_named_law_are_in_lexical_order() -> None:
    result = RETRIEVER.search("建筑法 领取施工许可证 条件", "full", 3)
    assert places(result) == [(BUILDING, "第八条"), (BUILDING, "第七条"), (BUILDING, "第二十八条")]


def test_a_query_that_names_nothing_is_answered_by_the_lexical_search_alone() -> None:
    rows, scores = LexicalSearcher(INDEX.lexical).search("脚手架 检查", SCOPES["full"].ranges, 5)
    result = RETRIEVER.search("脚手架 检查", "full", 5)
    assert [hit.row for hit in result.hits] == rows.tolist()
    assert [hit.score for hit in result.hits] == scores.tolist()
    assert [hit.stages for hit in result.hits] == [{"lexical": score} for score in scores.tolist()]


def test_what_lies_outside_the_scope_is_not_found_by_name_either() -> None:
    result = RETRIEVER.search("《安全生产法》第二十八条 施工许可证", "usual", NUM_ROWS)
    assert result.hits
    assert all(3 <= hit.row < 6 or 9 <= hit.row < 11 for hit in result.hits)
    assert all(tier(hit.stages) == 2 for hit in result.hits)


def test_a_named_article_inside_the_scope_is_found() -> None:
    assert places(RETRIEVER.search("建筑法第七条", "usual", 1)) == [(BUILDING, "第七条")]


def test_an_empty_scope_and_an_empty_query_find_nothing() -> None:
    assert RETRIEVER.search("安全生产法第二十八条", "empty", 5).hits == []
    assert RETRIEVER.search("", "full", 5).hits == []


def test_an_article_that_the_law_does_not_have_leaves_the_law_first() -> None:
    result = RETRIEVER.search("《建筑法》第九百条", "full", 3)
    assert [tier(hit.stages) for hit in result.hits] == [1, 1, 1]


def test_min_score_cuts_only_the_lexical_tier() -> None:
    strict = by_words(INDEX, SCOPES, min_score=1e9)
    result = strict.search("建筑法第七条 施工许可证 脚手架", "full", NUM_ROWS)
    assert [tier(hit.stages) for hit in result.hits] == [0, 1, 1]
    assert strict.search("脚手架", "full", 5).hits == []


def test_min_score_keeps_what_reaches_it() -> None:
    best = RETRIEVER.search("脚手架 检查", "full", 1).hits[0].score
    kept = by_words(INDEX, SCOPES, min_score=best).search("脚手架 检查", "full", 5)
    assert [hit.score for hit in kept.hits] == [best]


def test_an_unknown_scope_names_the_known_ones() -> None:
    with pytest.raises(ScopeUnknown) as caught:
        RETRIEVER.search("安全", "nowhere", 5)
    assert caught.value.available == ("full", "usual", "empty")


@pytest.mark.parametrize("topk", [0, -1])
def test_topk_below_one_is_refused(topk: int) -> None:
    with pytest.raises(ValueError, match=f"收到 {topk}"):
        RETRIEVER.search("安全", "full", topk)


def test_the_query_comes_back_normalised_and_every_stage_is_timed() -> None:
    result = RETRIEVER.search("　ＧＢ５５０２３ ", "full", 1)
    assert result.query == "GB55023"
    assert set(result.timings_ms) == {"exact_ms", "lexical_ms", "read_ms"}
    assert min(result.timings_ms.values()) >= 0
    assert result.warnings == []


def test_only_the_articles_of_the_answer_are_read() -> None:
    index = MemoryIndex([("main", name, law) for name, law in LAWS.items()])
    result = by_words(index, SCOPES).search("安全生产法第二十八条 施工许可证", "full", 3)
    assert index.rows_read == [hit.row for hit in result.hits]


@given(QUERIES, st.sampled_from(["full", "usual"]), st.integers(1, NUM_ROWS + 3))
def test_every_answer_is_ordered_distinct_and_a_prefix_of_a_longer_one(
    query: str, scope: str, topk: int
) -> None:
    result = RETRIEVER.search(query, scope, topk)
    rows = [hit.row for hit in result.hits]
    assert len(rows) == len(set(rows)) <= topk
    assert [tier(hit.stages) for hit in result.hits] == sorted(tier(hit.stages) for hit in result.hits)
    assert all(before.score >= after.score for before, after in pairwise(result.hits))
    assert result.hits == RETRIEVER.search(query, scope, 200).hits[:topk]


@settings(max_examples=50)
@given(st.text(st.characters(exclude_categories=()), max_size=40))
def test_no_query_raises(query: str) -> None:
    RETRIEVER.search(query, "full", 5)


def test_threads_get_the_same_answers() -> None:
    queries = ["安全生产法第28条", "建筑法 施工许可证", "GB55023 6.0.5", "脚手架 检查"] * 10
    alone = [RETRIEVER.search(query, "full", 5).hits for query in queries]
    with ThreadPoolExecutor(8) as pool:
        assert [r.hits for r in pool.map(lambda q: RETRIEVER.search(q, "full", 5), queries)] == alone


def test_a_site_word_finds_the_article_that_says_it_in_the_words_of_the_law() -> None:
    result = RETRIEVER.search("塔吊", "full", 3)
    assert places(result) == [("塔式起重机管理规定", "第一条")]
    assert "塔式起重机" in result.expansions
    assert set(result.hits[0].stages) == {"lexical"}
    assert result.query == "塔吊"


def test_a_question_without_site_words_adds_nothing() -> None:
    assert RETRIEVER.search("施工许可证", "full", 3).expansions == ()


def test_an_added_word_never_names_a_law() -> None:
    # 塔机 adds the name of this law's subject; written out with 规定 it would name the law.
    index = MemoryIndex(
        [("a", "塔式起重机", [("第一条", "塔式起重机应当检查。")]), ("a", "办法", [("第一条", "塔机。")])]
    )
    retriever = by_words(index, {"full": Scope("full", ((0, 2),))})
    written, added = (retriever.search(query, "full", 2) for query in ("《塔式起重机》", "塔机"))
    assert "law" in written.hits[0].stages
    assert added.expansions[0] == "塔式起重机"
    assert [set(hit.stages) for hit in added.hits] == [{"lexical"}, {"lexical"}]


def test_a_named_article_stays_first_beside_site_words() -> None:
    result = RETRIEVER.search("《安全生产法》第二十八条 工人 塔吊", "full", 5)
    assert result.hits[0].row == 1
    assert "exact" in result.hits[0].stages
