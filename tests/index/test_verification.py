"""Verification: every citation of a text is looked up, and what cannot be said is not said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cg_rag.index import verification
from cg_rag.index.corpus import Article, LawRun, Scope
from cg_rag.index.errors import ScopeUnknown
from cg_rag.index.model_errors import Cancelled
from cg_rag.index.numerals import lookup_keys
from cg_rag.index.onnx import CURRENT_TOKEN, CancelToken
from cg_rag.index.verification import Verdict, Verifier
from tests.growth import assert_linear

CRITERIA = "房屋市政工程生产安全重大事故隐患判定标准（2024版）"
SCAFFOLD = "GB55023-2022施工脚手架通用规范"
SAFETY = "中华人民共和国安全生产法"
DEEP_PIT_COMMENTARY = "JGJ311-2013建筑深基坑工程施工安全技术规范 条文说明"
POWER_2024 = "JGJ/T46-2024建筑与市政工程施工现场临时用电安全技术标准"
POWER_2005 = "JGJ46-2005施工现场临时用电安全技术规范"

# Names and numbers are facts; the contents are written for the test.
CORPUS: dict[str, list[str]] = {
    CRITERIA: ["第七条", "第十五条（一）", "第十五条（二）"],
    SCAFFOLD: ["2.0.1", "5.3.1", "6.0.5(1)", "6.0.5(2)", "6.0.5(3)", "附录A"],
    SAFETY: ["第七条", "第七条之一", "第二十八条"],
    "JGJ59-2011建筑施工安全检查标准": ["3.1.4"],
    "GB/T50720-2011建设工程施工现场消防安全技术标准": ["6.3.1(1)", "6.3.1(2)"],
    "GB/T19155-2017高处作业吊篮": ["8.8.2.1"],
    DEEP_PIT_COMMENTARY: ["11.2.2"],
    "JGJ80-2016建筑施工高处作业安全技术规范": ["4.2.1"],
    "GB55034-2022建筑与市政施工现场安全卫生与职业健康通用规范": ["3.5.3"],
    POWER_2005: ["6.2.3"],
    POWER_2024: ["6.2.3"],
    "JGJ130-2011建筑施工扣件式钢管脚手架安全技术规范": ["15.1", "15.2"],
    "建设工程安全生产管理条例": ["第三十二条"],
    "GB/T34525-2017气瓶搬运、装卸、储存和使用安全规定": ["9.2"],
    "某项批复": ["全文"],
}
STATUS_OF_LAW = {POWER_2005: "已废止", POWER_2024: "现行有效", SAFETY: "已修改"}


class Index:
    """An open index as a table in memory; `reads` counts the articles that were read."""

    def __init__(self, articles: Sequence[Article]) -> None:
        self.articles = list(articles)
        self.reads = 0
        self.runs: list[LawRun] = []
        self._rows: dict[tuple[int, str], list[int]] = {}
        for row, article in enumerate(articles):
            if not self.runs or self.runs[-1].law_name != article.law_name:
                self.runs.append(LawRun(article.law_name, "test", (), row, 0, ""))
            last = self.runs[-1]
            self.runs[-1] = LawRun(last.law_name, "test", (), last.start, last.count + 1, "")
            for key in lookup_keys(article.article_number):
                self._rows.setdefault((len(self.runs) - 1, key), []).append(row)

    def find_rows(self, run_index: int, key: str) -> list[int]:
        return self._rows.get((run_index, key), [])

    def read_articles(self, rows: Sequence[int]) -> list[Article]:
        self.reads += len(rows)
        return [self.articles[row] for row in rows]

    def scope(self, *law_names: str) -> Scope:
        runs = [run for run in self.runs if not law_names or run.law_name in law_names]
        return Scope("", tuple((run.start, run.start + run.count) for run in runs))


def article_of(law: str, number: str) -> Article:
    extra = {"status": STATUS_OF_LAW[law]} if law in STATUS_OF_LAW else {}
    return Article(law, number, f"{law}{number}的样例正文。", extra)


INDEX = Index([article_of(law, number) for law, numbers in CORPUS.items() for number in numbers])
VERIFIER = Verifier(INDEX, {"full": INDEX.scope(), "scaffold": INDEX.scope(SCAFFOLD, SAFETY)})


def verify(text: str, scope: str = "full") -> list[Verdict]:
    return VERIFIER.verify(text, scope).verdicts


def verify_one(text: str, scope: str = "full") -> Verdict:
    (verdict,) = verify(text, scope)
    return verdict


def numbers(verdict: Verdict) -> list[tuple[str, str]]:
    return [(article.law_name, article.article_number) for article in verdict.articles]


# Spellings of reports and atlases, and the article that each of them means.
FIELD = [
    (f"《{CRITERIA}》第七条第一款", CRITERIA, ["第七条"]),
    (f"《{CRITERIA}》第15.1条", CRITERIA, ["第十五条（一）"]),
    (f"《{CRITERIA}》15.1", CRITERIA, ["第十五条（一）"]),
    ("《施工脚手架通用规范》GB55023第5.3.1条", SCAFFOLD, ["5.3.1"]),
    ("《建筑施工安全检查标准》JGJ 59 第3.1.4条第2款", "JGJ59-2011建筑施工安全检查标准", ["3.1.4"]),
    (
        "《建设工程施工现场消防安全技术标准》GB/T 50720 第 6.3.1条第1款",
        "GB/T50720-2011建设工程施工现场消防安全技术标准",
        ["6.3.1(1)"],
    ),
    ("《高处作业吊篮》GB19155-2017第8.8.2.1条", "GB/T19155-2017高处作业吊篮", ["8.8.2.1"]),
    ("《建筑深基坑工程施工安全技术规范》JGJ311条文说明第11.2.2条", DEEP_PIT_COMMENTARY, ["11.2.2"]),
    ("JGJ 80-2016 第 4.2.1 条", "JGJ80-2016建筑施工高处作业安全技术规范", ["4.2.1"]),
    ("GB 55034-2022 §3.5.3", "GB55034-2022建筑与市政施工现场安全卫生与职业健康通用规范", ["3.5.3"]),
    ("《JGJ/T 46-2024》第6.2.3条", POWER_2024, ["6.2.3"]),
    ("《建设工程安全生产管理条例》（国务院令第393号）第三十二条", "建设工程安全生产管理条例", ["第三十二条"]),
    (
        "《气瓶搬运、装卸、储存和使用安全规定》GB/T 34525第9.2条：a）",
        "GB/T34525-2017气瓶搬运、装卸、储存和使用安全规定",
        ["9.2"],
    ),
    ("《安全生产法》第二十八条", SAFETY, ["第二十八条"]),
    ("《安全生产法》第28条", SAFETY, ["第二十八条"]),
    ("安全生产法第28条", SAFETY, ["第二十八条"]),
    ("《中华人民共和国安全生产法》第七条之一", SAFETY, ["第七条之一"]),
    ("《安全生产法》第七条第（一）项", SAFETY, ["第七条"]),
    ("《安全生产法》第七条(一)", SAFETY, ["第七条"]),
    ("JGJ 130 15.1", "JGJ130-2011建筑施工扣件式钢管脚手架安全技术规范", ["15.1"]),
    ("GB 55023 6.0.5(1)", SCAFFOLD, ["6.0.5(1)"]),
    ("GB 55023—2022 第6.0.5条第2款", SCAFFOLD, ["6.0.5(2)"]),
    ("GB55023-2022 第6.0.5条", SCAFFOLD, ["6.0.5(1)", "6.0.5(2)", "6.0.5(3)"]),
    ("ＧＢ５５０２３－２０２２第６．０．５（３）条", SCAFFOLD, ["6.0.5(3)"]),
    ("《施工脚手架通用规范》附录Ａ", SCAFFOLD, ["附录A"]),
]


@pytest.mark.parametrize(("text", "law", "found"), FIELD)
def test_every_spelling_is_exact_with_the_articles_that_it_means(
    text: str, law: str, found: list[str]
) -> None:
    verdict = verify_one(f"现场不符合{text}的要求。")
    assert verdict.raw in text
    assert (verdict.status, verdict.law_name) == ("exact", law)
    assert numbers(verdict) == [(law, number) for number in found]
    assert verdict.articles[0].contents.endswith("的样例正文。")


@pytest.mark.parametrize(
    ("text", "status", "law_name", "number"),
    [
        ("《安全生产法》第一百九十九条", "article_absent", SAFETY, "第一百九十九条"),
        ("GB 55023 第6.0.5条第9款", "article_absent", SCAFFOLD, "第6.0.5条第9款"),
        ("《不存在的管理办法》第一条", "law_not_in_corpus", "不存在的管理办法", "第一条"),
        ("GB 99999-2020 第1.0.1条", "law_not_in_corpus", "GB99999-2020", "第1.0.1条"),
        ("GB 99999 第1.0.1条", "law_not_in_corpus", "GB99999", "第1.0.1条"),
        ("《不存在的管理办法》", "law_not_in_corpus", "不存在的管理办法", ""),
        # Another edition is another text.
        ("GB 55023-2016 第5.3.1条", "law_not_in_corpus", "GB55023-2016", "第5.3.1条"),
        # A law that is held as one text without numbers may well contain the article.
        ("《某项批复》第一条", "law_not_in_corpus", "某项批复", "第一条"),
        # Nothing says whose article it is.
        ("第三条", "law_not_in_corpus", "", "第三条"),
        ("本规范第3.0.1条", "law_not_in_corpus", "", "第3.0.1条"),
    ],
)
def test_what_is_not_found_never_has_an_article(text: str, status: str, law_name: str, number: str) -> None:
    verdict = verify_one(text)
    assert (verdict.status, verdict.law_name, verdict.article_number) == (status, law_name, number)
    assert verdict.articles == ()
    assert verdict.note
    assert set(verdict.as_json()) == {"raw", "law_name", "article_number", "status", "note"}


def test_a_law_that_the_corpus_lacks_is_never_said_not_to_exist() -> None:
    for text in ("《不存在的管理办法》第一条", "GB 99999-2020 第1.0.1条", "《某项批复》第一条"):
        note = verify_one(text).note
        assert "无法核对" in note
        assert "不存在" not in note


def test_a_near_miss_is_named_and_told_apart() -> None:
    assert SCAFFOLD in verify_one("GB 55023-2016 第5.3.1条").note
    assert "不能视为同一部" in verify_one("GB 55023-2016 第5.3.1条").note


@pytest.mark.parametrize(
    "text", ["《施工日志》", "《施工日志》（一）", "C30混凝土", "6.0.5", "", "《", "第三方检测"]
)
def test_what_names_no_law_is_no_citation(text: str) -> None:
    assert verify(text) == []


def test_a_law_named_alone_is_exact_without_number_and_contents() -> None:
    verdict = verify_one("《施工脚手架通用规范》（GB 55023-2022）地基应坚实、平整，不应有积水 [cite^2]")
    assert verdict.as_json() == {
        "raw": "《施工脚手架通用规范》（GB 55023-2022）",
        "law_name": SCAFFOLD,
        "article_number": "",
        "status": "exact",
        "note": "只写了法规，没有写明条文。",
        "doc": {"law_name": SCAFFOLD, "article_number": "", "contents": ""},
    }


def test_several_laws_named_alone_are_one_entry_each_those_in_force_first() -> None:
    verdict = verify_one("参照 JGJ 46 执行")
    assert numbers(verdict) == [(POWER_2024, ""), (POWER_2005, "")]
    assert verdict.standing == "in_force"


def test_the_article_of_the_very_number_comes_before_its_parts() -> None:
    articles = [
        Article(SCAFFOLD, "6.0.5(1)", "一"),
        Article(SCAFFOLD, "6.0.5", "本条"),
        Article(SAFETY, "第三条第二款", "二"),
        Article(SAFETY, "第三条", "本条"),
    ]
    verifier = Verifier(Index(articles), {"full": Scope("full", ((0, len(articles)),))})
    for text in ("GB55023-2022 第6.0.5条", "《安全生产法》第三条"):
        (verdict,) = verifier.verify(text, "full").verdicts
        assert verdict.as_json()["doc"]["contents"] == "本条"


def test_several_articles_of_one_citation_are_a_doc_and_more_docs() -> None:
    body = verify_one("GB55023-2022 第6.0.5条").as_json()
    assert body["doc"]["article_number"] == "6.0.5(1)"
    assert [doc["article_number"] for doc in body["more_docs"]] == ["6.0.5(2)", "6.0.5(3)"]
    assert "note" not in body
    assert "more_docs" not in verify_one("GB55023-2022 第6.0.5条第1款").as_json()


def test_a_number_that_a_law_has_twice_gives_both_articles() -> None:
    index = Index([Article("某办法", "第一条", "甲"), Article("某办法", "第一条", "乙")])
    (verdict,) = Verifier(index, {"full": index.scope()}).verify("《某办法》第一条", "full").verdicts
    assert [article.contents for article in verdict.articles] == ["甲", "乙"]


def test_articles_in_force_come_before_repealed_ones() -> None:
    verdict = verify_one("JGJ 46 第6.2.3条")
    assert numbers(verdict) == [(POWER_2024, "6.2.3"), (POWER_2005, "6.2.3")]
    assert verdict.law_name == POWER_2024
    assert verdict.as_json()["standing"] == "in_force"
    assert verify_one("JGJ 46-2005 第6.2.3条").as_json()["standing"] == "repealed"
    assert verify_one("《安全生产法》第七条").as_json()["standing"] == "amended"


def test_the_standing_tells_what_comes_into_force_later_and_what_holds_in_part() -> None:
    later = Article("某办法", "第一条", "新", {"effective_date": "2999-01-01"})
    partly = Article("某办法", "第一条", "旧", {"status": "部分失效"})
    index = Index([later, partly])
    (verdict,) = Verifier(index, {"full": index.scope()}).verify("《某办法》第一条", "full").verdicts
    assert [article.contents for article in verdict.articles] == ["旧", "新"]
    assert verdict.standing == "in_force"
    assert verdict.note == "该法规标注为部分失效，请核对所引条文是否仍然有效。"
    index = Index([later])
    (verdict,) = Verifier(index, {"full": index.scope()}).verify("《某办法》第一条", "full").verdicts
    assert verdict.as_json()["standing"] == "pending"


@pytest.mark.parametrize("status", [None, "", "样例", 7, ["现行有效"]])
def test_a_status_that_says_nothing_known_gives_no_standing(status: Any) -> None:
    article = Article("某办法", "第一条", "甲", {"status": status})
    verdict = Verdict(0, "《某办法》第一条", "某办法", "第一条", "exact", (article,))
    assert verdict.standing is None
    assert "standing" not in verdict.as_json()


@pytest.mark.parametrize(
    "text",
    [
        f"《{CRITERIA}》第七条第一款",
        "《安全生产法》第七条第一款第（二）项",
        "《建筑施工安全检查标准》JGJ 59 第3.1.4条第2款",
        "《安全生产法》7.3",
    ],
)
def test_a_part_that_is_not_held_apart_is_said_to_be_unchecked(text: str) -> None:
    verdict = verify_one(text)
    assert verdict.status == "exact"
    assert verdict.note == "所引的款、项没有单独收录，对上的是它所在的条文，请对照正文。"


@pytest.mark.parametrize(("text", "law", "found"), FIELD)
def test_a_part_that_is_held_apart_needs_no_note(text: str, law: str, found: list[str]) -> None:
    parted = ("6.0.5", "6.3.1", "第十五条")
    if found[0].startswith(parted):
        assert verify_one(text).note == ""


def test_an_edition_that_the_corpus_does_not_tell_is_said_to_be_unchecked() -> None:
    verdict = verify_one("《安全生产法》（2021修正）第七条")
    assert verdict.status == "exact"
    assert "2021" in verdict.note


def test_only_laws_of_the_scope_count() -> None:
    text = "《安全生产法》第七条，JGJ 80-2016 第4.2.1条，GB 55023 2.0.1"
    assert [verdict.status for verdict in verify(text)] == ["exact"] * 3
    verdicts = verify(text, "scaffold")
    assert [verdict.status for verdict in verdicts] == ["exact", "law_not_in_corpus", "exact"]
    assert "检索范围" in verdicts[1].note
    with pytest.raises(ScopeUnknown):
        verify(text, "nope")


def test_an_article_of_the_same_law_outside_of_the_scope_does_not_count() -> None:
    index = Index(
        [
            Article("某办法", "第一条", "甲"),
            Article("另一办法", "第一条", "乙"),
            Article("某办法", "第二条", "丙"),
        ]
    )
    verifier = Verifier(index, {"first": Scope("first", ((0, 1),)), "last": Scope("last", ((2, 3),))})
    for scope, statuses in (("first", ["exact", "article_absent"]), ("last", ["article_absent", "exact"])):
        verdicts = verifier.verify("《某办法》第一条、第二条", scope).verdicts
        assert [verdict.status for verdict in verdicts] == statuses


def test_citations_come_in_the_order_of_the_text_and_repeat() -> None:
    text = "《安全生产法》第七条，GB 55023 2.0.1；又《安全生产法》第七条。同法第二十八条。"
    verdicts = verify(text)
    assert [verdict.article_number for verdict in verdicts] == ["第七条", "2.0.1", "第七条", "第二十八条"]
    assert all(text.startswith(verdict.raw, verdict.start) for verdict in verdicts)


def test_the_articles_of_one_answer_are_bounded_and_the_rest_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "MAX_ARTICLE_CHARACTERS", 1000)
    result = VERIFIER.verify("《安全生产法》第七条；" * 10, "full")
    assert [verdict.status for verdict in result.verdicts] == ["exact"] * 10
    with_articles = [bool(verdict.articles) for verdict in result.verdicts]
    assert with_articles == sorted(with_articles, reverse=True)
    num_bare = with_articles.count(False)
    assert 0 < num_bare < 10
    (warning,) = result.warnings
    assert f"{num_bare} 处" in warning


def test_a_number_of_very_many_articles_gives_the_first_ones_and_says_so() -> None:
    index = Index([Article("某办法", "第一条", str(row)) for row in range(60)])
    (verdict,) = Verifier(index, {"full": index.scope()}).verify("《某办法》第一条", "full").verdicts
    assert [article.contents for article in verdict.articles] == [str(row) for row in range(50)]
    assert "60" in verdict.note
    assert index.reads == 50


def test_cancelling_stops_it() -> None:
    token = CancelToken()
    token.cancel()
    reset = CURRENT_TOKEN.set(token)
    try:
        with pytest.raises(Cancelled):
            verify("《安全生产法》第七条")
    finally:
        CURRENT_TOKEN.reset(reset)


pieces = st.one_of(
    st.text(max_size=12),
    st.sampled_from([text for text, _, _ in FIELD]),
    st.sampled_from(
        [
            *("第", "条", "《", "》", "（", "）", "第三条", "同法", "本规范", "GB", "JGJ 46", "6.0.5", "(1)"),
            *(
                "附录",
                "A",
                "之一",
                "、",
                "至",
                "款",
                "项",
                "安全生产法",
                "办法",
                "2024版",
                "\n",
                "**",
                "\ud800",
            ),
        ]
    ),
)


@settings(max_examples=300)
@given(st.lists(pieces, max_size=30).map("".join), st.sampled_from(["full", "scaffold"]))
def test_any_text_gives_known_statuses_and_parts_of_itself(text: str, scope: str) -> None:
    end = 0
    for verdict in verify(text, scope):
        assert verdict.start >= end
        end = verdict.start + len(verdict.raw)
        assert text[verdict.start : end] == verdict.raw
        assert verdict.status in ("exact", "article_absent", "law_not_in_corpus")
        assert bool(verdict.articles) == (verdict.status == "exact")
        in_scope = {SCAFFOLD, SAFETY} if scope == "scaffold" else CORPUS.keys()
        assert {article.law_name for article in verdict.articles} <= in_scope


@pytest.mark.parametrize(
    "piece",
    [
        "第3条，",
        "安全生产法第七条，",
        "同法第7条，",
        "《某法》第3条，",
        "GB99999 3.1.2；",
        "《安全生产法》第1、2、3、4、5、6、7条；",
    ],
)
def test_a_text_full_of_citations_takes_a_moment(piece: str) -> None:
    text = (piece * 20_000)[:20_000]
    assert_linear(lambda part: VERIFIER.verify(part, "full"), text)
    assert len(VERIFIER.verify(text, "full").verdicts) > 1000


def found(text: str) -> list[tuple[str, str, str]]:
    return [(verdict.article_number, verdict.status, verdict.raw) for verdict in verify(text)]


def test_every_article_inside_of_a_range_is_verified() -> None:
    whole = "《安全生产法》第七条至第九条"
    assert found(f"依据{whole}处理。") == [
        ("第七条", "exact", "《安全生产法》第七条"),
        ("第7条之1", "exact", whole),
        ("第8条", "article_absent", whole),
        ("第九条", "article_absent", "第九条"),
    ]
    inserted = verify(whole)[1]
    assert numbers(inserted) == [(SAFETY, "第七条之一")]
    assert [one[:2] for one in found("GB 55023 第6.0.4条～第6.0.6条")] == [
        ("第6.0.4条", "article_absent"),
        ("第6.0.5条", "exact"),
        ("第6.0.6条", "article_absent"),
    ]
    assert [one[:2] for one in found("《消防法》第二条至第四条")] == [
        ("第二条", "law_not_in_corpus"),
        ("第3条", "law_not_in_corpus"),
        ("第四条", "law_not_in_corpus"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "《安全生产法》第七条、第九条",
        "《安全生产法》第九条至第七条",
        "《安全生产法》第七条至《消防法》第九条",
        "《安全生产法》第七条第一款至第九条",
    ],
)
def test_what_is_no_range_has_nothing_inside(text: str) -> None:
    assert len(verify(text)) == 2


def test_a_range_that_is_too_long_is_said_to_be_verified_at_its_ends() -> None:
    long = VERIFIER.verify("《安全生产法》第七条至第一百条", "full")
    assert [verdict.article_number for verdict in long.verdicts] == ["第七条", "第一百条"]
    assert "1 处条文区间过长" in long.warnings[0]
    many = VERIFIER.verify("《安全生产法》第一条至第五十条。" * 300, "full")
    assert len(many.verdicts) < 300 * 2 + verification.MAX_FILLED_IN + 20 * 10
    assert "处条文区间过长" in many.warnings[0]
    assert not VERIFIER.verify("《安全生产法》第七条至第九条", "full").warnings
