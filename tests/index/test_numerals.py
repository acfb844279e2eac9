"""Numbers as laws write them: numerals, article keys, and the keys under which an article is stored."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cg_rag.index.numerals import article_key, chinese_to_int, fold, lookup_keys, parts_key


def int_to_chinese(value: int) -> str:
    """The numeral that a law would print, 0..99999: the twin that reading is held against."""
    if value >= 10_000:
        high, low = divmod(value, 10_000)
        gap = "零" if 0 < low < 1000 else ""
        return f"{print_below_wan(high)}万{gap}{print_below_wan(low)}"
    text = print_below_wan(value) or "零"
    return text.removeprefix("一") if 10 <= value < 20 else text


def print_below_wan(value: int) -> str:
    text, gap = "", False
    for unit, name in ((1000, "千"), (100, "百"), (10, "十"), (1, "")):
        digit = value // unit % 10
        if digit:
            text += ("零" if gap and text else "") + "零一二三四五六七八九"[digit] + name
        gap = digit == 0
    return text


quick = settings(max_examples=150)

# What untrusted numbers are made of: every part of the grammar, in any order, and anything else.
number_text = st.one_of(
    st.text(max_size=20),
    st.lists(
        st.sampled_from([*"第条款项目之、（）()一十百零〇两万.０９1aＡ附录件表-:：§①⑴㈠ ", "条目"]),
        max_size=12,
    ).map("".join),
)


@pytest.mark.parametrize(
    ("numeral", "value"),
    [
        ("十", 10),
        ("十七", 17),
        ("二十", 20),
        ("一百零三", 103),
        ("二百〇五", 205),
        ("一百二十", 120),
        ("一百一", 110),
        ("一百一十", 110),
        ("一千零五", 1005),
        ("一千二", 1200),
        ("一万零一百", 10100),
        ("两百", 200),
        ("廿三", 23),
        ("一二三", 123),
        ("二〇二四", 2024),
        ("零", 0),
        ("42", 42),
    ],
)
def test_a_numeral_has_the_value_that_a_reader_gives_it(numeral: str, value: int) -> None:
    assert chinese_to_int(numeral) == value


@pytest.mark.parametrize(
    "text", ["", "十十", "百千", "一百零", "条", "一1", "九九九九九九九九九九", "1234567890", "一万一万"]
)
def test_what_is_no_numeral_has_no_value(text: str) -> None:
    assert chinese_to_int(text) is None


def test_every_number_of_a_long_law_survives_printing_and_reading() -> None:
    assert [n for n in range(100_000) if chinese_to_int(int_to_chinese(n)) != n] == []


@given(st.integers(1, 99_999))
@quick
def test_chinese_and_western_spellings_of_an_article_share_one_key(n: int) -> None:
    spellings = [f"第{int_to_chinese(n)}条", f"第{n}条", f"第 {n} 条", f"{n}", f"{int_to_chinese(n)}条"]
    assert {article_key(spelling) for spelling in spellings} == {str(n)}


@pytest.mark.parametrize(
    ("key", "spellings"),
    [
        ("7-1", ["第七条之一", "第7条之1", "第七条之1", "第七之一条", "７-１"]),
        ("133-2", ["第一百三十三条之二"]),
        ("6.0.5", ["6.0.5", "第6.0.5条", "§6.0.5", "６.０.５", "6．0．5", "第 6.0.5 条", "6.0.05"]),
        (
            "6.0.5(1)",
            ["6.0.5(1)", "6.0.5（1）", "6.0.5 (1)", "第6.0.5条第1款", "第6.0.5条（一）", "6.0.5①", "6.0.5⑴"],
        ),
        ("3.1.4(2)(1)", ["第3.1.4条第2款第1项"]),
        ("9.2(a)", ["9.2条：a）", "9.2a)", "第9.2条 A）"]),
        ("7:1", ["第七条第一款", "第7条第1款"]),
        ("7:1(2)", ["第七条第一款第（二）项", "第七条第一款第二项", "第7条第1款(2)"]),
        ("15(1)", ["第十五条（一）", "第十五条第（一）项", "第十五条第一项", "第15条㈠"]),
        ("附录a", ["附录A", "附录Ａ", "附录 a"]),
        ("附录a.0.1", ["附录A.0.1", "A.0.1", "第A.0.1条", "附录A第A.0.1条"]),
        ("附件1", ["附件一", "附件1"]),
        ("条目1", ["一、", "条目一", "条目1", "1、"]),
        ("8.8.2.1", ["第8.8.2.1条"]),
        ("(1)", ["（一）", "(一)", "(1)", "⑴", "㈠"]),
        ("28", ["第二十八條", "第28條"]),
        ("7:1(2)", ["第七條第一款第（二）項"]),
        ("全文", ["全文"]),
        ("", ["", " "]),
    ],
)
def test_all_spellings_of_a_number_share_one_key(key: str, spellings: list[str]) -> None:
    assert {spelling: article_key(spelling) for spelling in spellings} == dict.fromkeys(spellings, key)


def test_numbers_that_look_alike_keep_different_keys() -> None:
    numbers = [
        "第一条",
        "一、",
        "第一条之一",
        "第十一条",
        "1.1",
        "1.0.1",
        "1(1)",
        "第一条第一款",
        "附录A",
        "附件一",
        "1.1(1)",
    ]
    assert len({article_key(number) for number in numbers}) == len(numbers)


@pytest.mark.parametrize(
    "number", ["28天", "第七条例", "条目", "第条", "表 3.3.5", "6.0.5-6.0.8", "第十十条"]
)
def test_what_is_no_article_number_is_its_own_key(number: str) -> None:
    assert article_key(number) == number.replace(" ", "")


@given(number_text)
@quick
def test_a_key_is_its_own_key(text: str) -> None:
    key = article_key(text)
    assert article_key(key) == key


@given(number_text)
@quick
def test_full_width_and_half_width_have_the_same_key(text: str) -> None:
    wide = "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text)
    assert article_key(wide) == article_key(text)


@given(st.text(max_size=200))
@quick
def test_folding_keeps_every_position(text: str) -> None:
    assert len(fold(text)) == len(text)


def test_a_part_is_stored_under_its_parents_and_marked_as_a_part() -> None:
    assert lookup_keys("28") == ["28"]
    assert lookup_keys("第七条之一") == ["7-1"]
    assert lookup_keys("6.0.5（1）") == ["6.0.5(1)", "6.0.5", parts_key("6.0.5")]
    assert lookup_keys("第七条第一款（二）") == ["7:1(2)", "7:1", parts_key("7:1"), "7", parts_key("7")]
    assert lookup_keys("A.0.1") == ["附录a.0.1", "附录a", parts_key("附录a")]
    assert lookup_keys("全文") == ["全文"]


@given(number_text)
@quick
def test_no_number_can_name_the_mark_of_parts_as_its_own_key(text: str) -> None:
    keys = lookup_keys(text)
    assert keys[0] == article_key(text)
    assert len(keys) == len(set(keys))
