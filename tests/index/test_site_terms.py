"""Site words to law words: the table itself, and where a word is seen in a question."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cg_rag.index.site_terms import MAX_EXPANSIONS, TABLE, SiteTerms
from cg_rag.index.text import normalise

TERMS = SiteTerms.load()
SITE_WORDS = sorted(TERMS.law_words)
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=80)
QUESTION = st.lists(st.one_of(st.sampled_from(SITE_WORDS), st.text("的了吗证罚 ，", max_size=4)), max_size=12)


def is_han(word: str) -> bool:
    return all("\u4e00" <= char <= "\u9fff" for char in word)


def small(**law_words: str) -> SiteTerms:
    return SiteTerms.of((word, tuple(law.split())) for word, law in law_words.items())


def test_every_word_of_the_table_is_two_han_characters_or_more() -> None:
    words = {*TERMS.law_words, *(law for laws in TERMS.law_words.values() for law in laws)}
    assert not [word for word in words if len(word) < 2 or not is_han(word)]


def test_every_word_stands_as_text_is_searched() -> None:
    assert not [word for word in TERMS.law_words if normalise(word) != word]


def test_no_entry_adds_only_what_it_is() -> None:
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    entries = [entry for section in table["sections"] for entry in section["entries"]]
    assert len(entries) >= 150
    assert not [entry for entry in entries if set(entry[1].split()) <= set(entry[0].split())]
    assert not [law for _, laws in entries for law in laws.split() if laws.split().count(law) > 1]


def test_no_word_adds_more_than_eight() -> None:
    assert max(map(len, TERMS.law_words.values())) <= 8


@pytest.mark.parametrize(
    ("question", "law_word"),
    [
        ("塔吊多久年检", "塔式起重机"),
        ("工人的安全帽谁出钱", "从业人员"),
        ("爬架提升", "附着式升降脚手架"),
        ("跳板没绑", "脚手板"),
        ("高支模要不要论证", "模板支架"),
        ("吊篮配重", "高处作业吊篮"),
        ("人货电梯超员", "施工升降机"),
        ("井架停层门", "物料提升机"),
        ("深基坑放坡", "支护"),
        ("电箱没锁", "配电箱"),
        ("电锯没护罩", "圆盘锯"),
        ("汽车吊支腿", "起重机械"),
        ("工地扬尘", "扬尘污染"),
        ("没护栏", "防护栏杆"),
        ("挑架工字钢", "悬挑式脚手架"),
        ("盘扣立杆", "承插型盘扣式钢管脚手架"),
        ("碗扣接头", "碗扣式钢管脚手架"),
        ("门架剪刀撑", "门式钢管脚手架"),
        ("满堂架搭多高", "满堂脚手架"),
    ],
)
def test_a_site_word_adds_the_word_of_the_law(question: str, law_word: str) -> None:
    assert law_word in TERMS.expand(question)


def test_the_longest_word_wins_and_takes_its_characters() -> None:
    terms = small(塔吊="塔式起重机", 塔吊司机="操作人员", 司机="驾驶人")
    assert terms.expand("塔吊司机") == ("操作人员",)
    assert terms.expand("塔吊的司机") == ("塔式起重机", "驾驶人")


def test_a_single_character_is_no_site_word() -> None:
    assert TERMS.expand("证") == TERMS.expand("罚") == TERMS.expand("吊、塔") == ()
    with pytest.raises(ValueError, match="不足两个字"):
        small(证="资格证书")


@pytest.mark.parametrize(
    "text",
    [
        "管理人员工作",
        "职工人数",
        "较大风险",
        "境外电影",
        "没证据",
        "移民工程",
        "突出事迹",
        "尸体检验",
        "自行车",
    ],
)
def test_a_site_word_across_two_ordinary_words_is_not_seen(text: str) -> None:
    assert TERMS.expand(text) == ()


def test_words_do_not_join_over_marks_or_spaces() -> None:
    assert TERMS.expand("塔，吊 工\n人") == ()


def test_full_width_and_invisible_characters_make_no_difference() -> None:
    assert TERMS.expand("塔\u200b吊") == TERMS.expand("塔吊") != ()


def test_what_the_question_says_already_is_not_added() -> None:
    assert small(工人="从业人员 作业人员").expand("工人是不是从业人员") == ("作业人员",)


def test_each_law_word_is_added_once_in_the_order_of_the_question() -> None:
    terms = small(塔吊="起重机械 塔式起重机", 吊车="起重机械")
    assert terms.expand("吊车碰塔吊，塔吊碰吊车") == ("起重机械", "塔式起重机")


def test_a_question_of_nothing_but_site_words_adds_a_bounded_number() -> None:
    assert len(TERMS.expand("".join(SITE_WORDS)[:2000])) == MAX_EXPANSIONS


def test_a_word_given_twice_is_refused(tmp_path: Path) -> None:
    table = {"sections": [{"name": "机械", "entries": [["塔吊 塔吊", "塔式起重机"]]}], "guards": ""}
    path = tmp_path / "table.json"
    path.write_text(json.dumps(table), encoding="utf-8")
    with pytest.raises(ValueError, match="“塔吊”重复"):
        SiteTerms.load(path)


@given(st.one_of(ANY_TEXT, QUESTION.map("".join)))
def test_no_text_raises_and_the_answer_repeats(text: str) -> None:
    added = TERMS.expand(text)
    assert added == TERMS.expand(text)
    assert len(set(added)) == len(added) <= MAX_EXPANSIONS
    assert not [word for word in added if word in normalise(text)]


@given(st.one_of(ANY_TEXT, QUESTION.map("".join)))
def test_words_found_equal_a_search_that_tries_every_length(text: str) -> None:
    text = normalise(text)
    expected, at = [], 0
    while at < len(text):
        ends = [end for end in range(len(text), at, -1) if text[at:end] in TERMS.law_words]
        expected += [text[at : ends[0]]] if ends else []
        at = ends[0] if ends else at + 1
    assert list(TERMS.find_words(text)) == expected
