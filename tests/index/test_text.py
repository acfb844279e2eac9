"""Terms of text: spelling must not matter, no text may raise."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cg_rag.index.text import NEVER_IN_WORDS, find_words, normalise, terms

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=60)
MIXED = st.text("安全网脚手架々〇GBJgbt0123456789./-—－‐（）() 　\u200b\nφкαがßﬁé\u0301", max_size=60)
PREFIXES = ["GB", "JGJ", "GB/T", "CJJ", "JGJ/T", "AQ"]


def half_to_full(text: str) -> str:
    return "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else "\u3000" if c == " " else c for c in text)


@pytest.mark.parametrize(
    "spelling",
    [
        "GB55023-2022",
        "GB 55023—2022",
        "gb55023",
        "ＧＢ　５５０２３",
        "GB/T 55023",
        "GBT55023",
        "GB－55023",
        "GB\u200b55023",
        "《施工脚手架通用规范》(GB 55023–2022)",
    ],
)
def test_a_standard_is_found_by_code_and_number_in_every_spelling(spelling: str) -> None:
    assert {"gb55023", "55023"} <= set(terms(spelling))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("JGJ130", "jgj130"),
        ("JGJ 130-2011", "jgj130"),
        ("JGJ/T46", "jgj46"),
        ("T/CECS 700-2020", "cecs700"),
        ("GB 6067.1-2010", "gb6067.1"),
        ("GB 6067.1-2010", "gb6067"),
        ("第6.0.5条", "6.0.5"),
        ("６．０．５", "6.0.5"),
        ("6.0.5(1)", "6.0.5"),
        ("6.0.5（1）", "6.0.5(1)"),
        ("C30混凝土", "c30"),
        ("HRB 400", "hrb400"),
        ("荷载 2 kN/m²", "knm2"),
        ("荷载 2 kN/m²", "m2"),
        ("10kV", "kv"),
        ("10kV", "10"),
        ("φ48", "φ48"),
    ],
)
def test_a_code_or_number_is_one_term(text: str, expected: str) -> None:
    assert expected in terms(text)


def test_a_run_of_han_gives_each_character_and_each_pair() -> None:
    assert sorted(terms("脚手架，安全")) == sorted(["脚", "手", "架", "脚手", "手架", "安", "全", "安全"])


def test_an_item_belongs_to_a_dotted_number_only() -> None:
    assert sorted(terms("6.0.5(2)、10(3)")) == ["10", "3", "6.0.5", "6.0.5(2)"]


def test_no_pair_reaches_over_a_line_or_a_mark() -> None:
    assert "全网" not in terms("安全\n网") + terms("安全、网") + terms("安全1网")


def test_a_number_on_the_next_line_does_not_join_the_letters_before() -> None:
    assert "gb55023" not in terms("GB\n55023")


def test_a_variation_selector_does_not_split_a_pair() -> None:
    assert "葛洲" in terms("葛\U000e0100洲")


@pytest.mark.parametrize("dash", list("－—–‐‑―−-"))
def test_all_dashes_are_one(dash: str) -> None:
    assert normalise(f"JGJ{dash}59") == "jgj-59"


@given(ANY_TEXT)
def test_no_text_raises(text: str) -> None:
    assert all(isinstance(term, str) and term for term in terms(text))


@given(st.one_of(ANY_TEXT, MIXED))
def test_a_query_normalised_before_gives_the_same_terms(text: str) -> None:
    assert sorted(terms(unicodedata.normalize("NFKC", text).strip())) == sorted(terms(text))


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60))
def test_full_and_half_width_give_the_same_terms(text: str) -> None:
    assert sorted(terms(half_to_full(text))) == sorted(terms(text))


@given(st.one_of(ANY_TEXT, MIXED))
def test_the_short_cut_for_common_wide_marks_changes_nothing(text: str) -> None:
    wide = "，；：（）\u3000"
    text = text + wide + text
    plain = unicodedata.normalize("NFKC", text)
    assert normalise(text) == normalise(plain)


@given(
    st.sampled_from(PREFIXES),
    st.integers(10, 99999),
    st.sampled_from(["", "-2022", "—2011", " "]),
    st.text("安全网的按照规定，。", max_size=8),
)
def test_a_bare_code_is_found_inside_a_sentence(prefix: str, number: int, tail: str, around: str) -> None:
    sentence = f"{around}{prefix} {number}{tail}{around}"
    assert set(terms(f"{prefix}{number}")) <= set(terms(sentence))


@given(MIXED)
def test_words_hold_no_han(text: str) -> None:
    assert not any("\u4e00" <= char <= "\u9fff" for word in find_words(normalise(text)) for char in word)


def test_what_is_passed_over_in_the_search_for_words_begins_none() -> None:
    passed = [chr(point) for first, last in NEVER_IN_WORDS for point in range(first, last + 1)]
    assert len(passed) > 100
    assert not [char for char in passed if char.isalnum()]
    assert list(find_words("".join(passed) + "a")) == ["a"]
