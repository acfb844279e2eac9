"""Citation marks: every spelling, cut anywhere, known numbers only."""

from __future__ import annotations

import html
import itertools
import re
import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cg_rag.core.mark_reader import MAX_MARK_CHARS, find_marks
from cg_rag.core.mark_remains import cut_mark_remains
from cg_rag.core.marks import (
    MarkFilter,
    Style,
    cited_numbers,
    known_up_to,
    rewrite_marks,
    strip_marks,
)
from tests.growth import assert_linear

KNOWN = known_up_to(5)
STYLES: tuple[Style, ...] = ("cite", "numbered", "none")

# text, as cite, as numbered, as none
SPELLINGS = [
    ("积水[cite^2]。", "积水[cite^2]。", "积水〔2〕。", "积水。"),
    ("积水 [cite^2]。", "积水 [cite^2]。", "积水 〔2〕。", "积水。"),
    ("甲[cite^1,2]乙", "甲[cite^1][cite^2]乙", "甲〔1〕〔2〕乙", "甲乙"),
    ("甲[cite^1，2、3]乙", "甲[cite^1][cite^2][cite^3]乙", "甲〔1〕〔2〕〔3〕乙", "甲乙"),
    ("甲[cite^1, cite^2]乙", "甲[cite^1][cite^2]乙", "甲〔1〕〔2〕乙", "甲乙"),
    ("甲[cite^1][cite^2]", "甲[cite^1][cite^2]", "甲〔1〕〔2〕", "甲"),
    ("甲[cite^2-4]", "甲[cite^2][cite^3][cite^4]", "甲〔2〕〔3〕〔4〕", "甲"),
    ("甲[cite ^1]", "甲[cite^1]", "甲〔1〕", "甲"),
    ("甲[ cite^ 1 ]", "甲[cite^1]", "甲〔1〕", "甲"),
    ("甲[cite^１]", "甲[cite^1]", "甲〔1〕", "甲"),
    ("甲［ｃｉｔｅ＾１］", "甲[cite^1]", "甲〔1〕", "甲"),
    ("甲【cite^1】", "甲[cite^1]", "甲〔1〕", "甲"),
    ("甲（cite^1）", "甲[cite^1]", "甲〔1〕", "甲"),
    ("甲[CITE^1]", "甲[cite^1]", "甲〔1〕", "甲"),
    ("甲[Citation: 1]", "甲[cite^1]", "甲〔1〕", "甲"),
    ("甲[сite^1]", "甲[cite^1]", "甲〔1〕", "甲"),  # a Cyrillic с
    ("甲[[cite^1]]", "甲[cite^1]", "甲〔1〕", "甲"),
    ("甲[cite^[1]]", "甲[cite^1]", "甲〔1〕", "甲"),
    ("甲[ci\u200bte^\u20601\ufeff]", "甲[cite^1]", "甲〔1〕", "甲"),
    ("甲[cite^\n1]", "甲[cite^1]", "甲〔1〕", "甲"),
    ("甲[cite^1", "甲[cite^1]", "甲〔1〕", "甲"),
    ("甲cite^1乙", "甲[cite^1]乙", "甲〔1〕乙", "甲乙"),
    ("甲 cite^1，2人", "甲 [cite^1]，2人", "甲 〔1〕，2人", "甲，2人"),
    ("甲[证据1]", "甲[cite^1]", "甲〔1〕", "甲"),
    ("甲[cite]^1", "甲[cite^1]", "甲〔1〕", "甲"),
    ("甲[^1]", "甲[cite^1]", "甲〔1〕", "甲"),
    ("甲[cite^01]", "甲[cite^1]", "甲〔1〕", "甲"),
    ("甲[cite^1][cite^1]", "甲[cite^1][cite^1]", "甲〔1〕〔1〕", "甲"),
    ("甲[cite^1,1]", "甲[cite^1]", "甲〔1〕", "甲"),
    ("```\n甲[cite^1]\n```", "```\n甲[cite^1]\n```", "```\n甲〔1〕\n```", "```\n甲\n```"),
    ("甲[cite^9]乙", "甲乙", "甲乙", "甲乙"),
    ("甲 [cite^9] 乙", "甲 乙", "甲 乙", "甲 乙"),
    ("甲[cite^1,9]", "甲[cite^1]", "甲〔1〕", "甲"),
    ("甲[cite^0]", "甲", "甲", "甲"),
    ("甲[cite^99999999999999999999]", "甲", "甲", "甲"),
    ("甲〔1〕乙", "甲乙", "甲〔1〕乙", "甲乙"),
    ("甲〔1、2〕乙", "甲乙", "甲〔1〕〔2〕乙", "甲乙"),
    ("甲【1】乙", "甲乙", "甲〔1〕乙", "甲乙"),
    ("甲[1]乙", "甲乙", "甲〔1〕乙", "甲乙"),
    ("甲[1,2]乙", "甲乙", "甲〔1〕〔2〕乙", "甲乙"),
    ("甲【1†source】乙", "甲乙", "甲〔1〕乙", "甲乙"),
    ("甲【9†L3-L5】乙", "甲乙", "甲乙", "甲乙"),
    ("甲（引用：9《消防法》）乙", "甲《消防法》）乙", "甲《消防法》）乙", "甲《消防法》）乙"),
    ("甲（证据1）乙", "甲[cite^1]乙", "甲〔1〕乙", "甲乙"),
    ("甲〔9〕乙", "甲乙", "甲乙", "甲乙"),
    ("[1] 甲\n[2] 乙", "1. 甲\n2. 乙", "〔1〕 甲\n〔2〕 乙", "1. 甲\n2. 乙"),
    ("[ci[cite^9]te^1]甲", "[ci甲", "[ci甲", "[ci甲"),
    ("甲[ci[cite^9]te^9]乙", "甲[ci乙", "甲[ci乙", "甲[ci乙"),
    # What a page shows as a mark: entities, escapes, tags between.
    ("甲&#91;cite^1&#93;乙", "甲[cite^1]乙", "甲〔1〕乙", "甲乙"),
    ("甲&#x5B;cite&#94;1&#x5d;乙", "甲[cite^1]乙", "甲〔1〕乙", "甲乙"),
    ("甲&lbrack;cite&Hat;1&rbrack;乙", "甲[cite^1]乙", "甲〔1〕乙", "甲乙"),
    ("甲&lsqb;cite^9&rsqb;乙", "甲乙", "甲乙", "甲乙"),
    ("甲&amp;#91;cite^9&amp;#93;乙", "甲乙", "甲乙", "甲乙"),
    ("甲&#91cite^9&#93乙", "甲乙", "甲乙", "甲乙"),
    ("甲&#12308;1&#12309;乙", "甲乙", "甲〔1〕乙", "甲乙"),
    ("甲&#91;9&#93;乙", "甲乙", "甲乙", "甲乙"),
    ("甲[cite^&#x32;]乙", "甲[cite^2]乙", "甲〔2〕乙", "甲乙"),
    ("甲[&#99;ite^9]乙", "甲乙", "甲乙", "甲乙"),
    ("甲[ci&shy;te^&zwnj;1]乙", "甲[cite^1]乙", "甲〔1〕乙", "甲乙"),
    ("甲&lt;cite^1&gt;乙", "甲[cite^1]乙", "甲〔1〕乙", "甲乙"),
    ("甲\\[cite^1\\]乙", "甲[cite^1]乙", "甲〔1〕乙", "甲乙"),
    ("甲\\[cite\\^9\\]乙", "甲乙", "甲乙", "甲乙"),
    ("甲\\[1\\]乙", "甲乙", "甲〔1〕乙", "甲乙"),
    ("甲[ci<b></b>te^9]乙", "甲乙", "甲乙", "甲乙"),
    ("甲[cite<sup>^1</sup>]乙", "甲[cite^1]乙", "甲〔1〕乙", "甲乙"),
    ("甲[ci<!-- -->te^1]乙", "甲[cite^1]乙", "甲〔1〕乙", "甲乙"),
    # Numbers above the line.
    ("不得有积水¹。", "不得有积水。", "不得有积水〔1〕。", "不得有积水。"),
    ("不得有积水。¹˒²", "不得有积水。", "不得有积水。〔1〕〔2〕", "不得有积水。"),
    ("不得有积水⁽⁹⁾。", "不得有积水。", "不得有积水。", "不得有积水。"),
    ("不得有积水<sup>1</sup>。", "不得有积水。", "不得有积水〔1〕。", "不得有积水。"),
    ("不得有积水<sup>9</sup", "不得有积水", "不得有积水", "不得有积水"),
    ("不得有积水<sup>[1]</sup>。", "不得有积水。", "不得有积水〔1〕。", "不得有积水。"),
    ("（GB 55023-2022）²", "（GB 55023-2022）", "（GB 55023-2022）〔2〕", "（GB 55023-2022）"),
    ("甲[**9**]乙[`9`]丙", "甲乙丙", "甲乙丙", "甲乙丙"),
    ("甲[**cite^2**]乙", "甲[cite^2]乙", "甲〔2〕乙", "甲乙"),
    ("甲[<bdi>cite</bdi>^9]<center>[9<tbody>]乙", "甲<center>乙", "甲<center>乙", "甲<center>乙"),
    ("甲𝐜𝐢𝐭𝐞^9乙", "甲乙", "甲乙", "甲乙"),
    ("甲[¹]乙", "甲乙", "甲〔1〕乙", "甲乙"),
    ("甲[cite^¹]乙", "甲[cite^1]乙", "甲〔1〕乙", "甲乙"),
]
# Looks like a mark, and is text.
PLAIN = [
    "建质规〔2024〕5号",
    "建质规[2024]5号文",
    "住建部令〔2018〕第37号",
    "建质〔2018、2019〕31号",
    "面积 [3*4] 平方米、[**重点**]",
    "规划〔2021-2025〕与[2024，2025]年度",
    "注意[重点]部位",
    "吊重（5）吨",
    "A[i]与B[n]",
    "【隐患】未戴安全帽",
    "1. 甲\n2. 乙",
    "excited [not cited]",
    "[cite] 1. 甲",
    "(见图1)",
    "cite",
    "the cite 5 of",
    "第七条（一）",
    "《施工脚手架通用规范》（GB 55023-2022）",
    "a < 3 > b",
    "配电箱（来源：2号楼东侧）",
    "（证据1张照片）",
    "【9†未写完",
    "面积 20m²，荷载 3kN/m²",
    "承载力 10³ 牛、x² + y²、(a+b)²",
    "30 米² 的作业面",
    "20m<sup>2</sup> 的平台",
    "s⁻¹",
    "A&B、R&D、&lt;script&gt;、&nbsp;甲",
    "a &lt; 3",
    "路径 C:\\1\\2",
    "\\[重点\\]",
    "<b>重点</b>",
]


@pytest.mark.parametrize(("text", "cite", "numbered", "none"), SPELLINGS)
def test_every_spelling_comes_to_the_form_of_its_style(
    text: str, cite: str, numbered: str, none: str
) -> None:
    assert [rewrite_marks(text, style, KNOWN) for style in STYLES] == [cite, numbered, none]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("text", PLAIN)
def test_text_that_only_looks_like_a_mark_stays(text: str, style: Style) -> None:
    assert rewrite_marks(text, style, KNOWN) == text


def test_numbers_are_moved_where_the_caller_says() -> None:
    moved = {1: 3, 2: 3, 4: 1}.get
    assert rewrite_marks("甲[cite^1]乙[cite^1,2]丙[cite^4][cite^3]", "cite", moved) == (
        "甲[cite^3]乙[cite^3]丙[cite^1]"
    )


def test_cited_numbers_are_ascending_and_each_once() -> None:
    assert cited_numbers("甲[cite^3]乙[cite^1]丙[cite^3]") == [1, 3]
    assert cited_numbers("甲〔2〕〔1〕，建质规〔2024〕5号") == [1, 2]
    assert cited_numbers("无") == []


def test_no_more_is_held_back_than_promised() -> None:
    marks = MarkFilter("cite", KNOWN)
    sent = "甲" + "[" + " cite ^" * 300
    received = "".join(marks.feed(char) for char in sent)
    held = len(sent) - len(received)
    assert held - sent.count(" ") <= MAX_MARK_CHARS + 2 * 300


def test_plain_text_goes_out_at_once() -> None:
    marks = MarkFilter("none", KNOWN)
    assert marks.feed("隐患等级：一般隐患") == "隐患等级：一般隐患"
    assert marks.feed("\n\n隐患") == "\n\n隐患"
    assert marks.feed("[") == ""
    assert marks.feed("重点]") == "[重点]"


def test_thousands_of_brackets_are_read_in_linear_time() -> None:
    for text in ("[" * 20_000, "[cite^" * 4_000, "c" * 20_000, "[1" * 10_000, "[ci[cite^9]te^" * 300):
        strip_marks(text)


def test_what_is_left_of_marks_is_looked_for_in_linear_time() -> None:
    for text in ("[" * 8_000, "{[（" * 3_000, "[[[[\n" * 2_000, "[cite^" * 2_000, "cite^]" * 2_000):
        assert_linear(cut_mark_remains, text)
    assert cut_mark_remains("甲" + "[" * 9 + "cite^编号]]乙[[cite^]丙") == "甲乙丙"


# What a client's own pattern for marks would be, over the text as a reader sees it.
_SEEN = re.compile(r"cite\^\d|[\[【〔]cite(?:[\]】〕]\^|[\^:_-]{0,3})\d|〔\d{1,3}〕|\[\d{1,3}\]|【\d{1,3}】")
_RAISED = re.compile("[甲。][¹⁹]|[甲。]<sup>[0-9¹⁹]+</sup>")
_PUBLISHED = re.compile(r"\[cite\^([1-5])\]")


def as_seen(text: str) -> str:
    text = re.sub(r"\\([\[\]^])", r"\1", html.unescape(text))
    text = re.sub(r"</?(?:b|sup|i)>|<!--.*?-->", "", text)
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(c for c in folded if unicodedata.category(c) not in ("Cf", "Cc", "Mn") and not c.isspace())


PIECES = st.sampled_from(
    [
        "[",
        "]",
        "【",
        "】",
        "〔",
        "〕",
        "（",
        "）",
        "(",
        ")",
        "c",
        "i",
        "t",
        "e",
        "cite",
        "ci",
        "te",
        "^",
        "^1",
        "1",
        "2",
        "9",
        ",",
        "、",
        "-",
        " ",
        "\n",
        "\u200b",
        "[cite^1]",
        "[cite^9]",
        "[ci",
        "te^9]",
        "〔1〕",
        "〔2024〕",
        "cite^3",
        "CITE",
        "ｃ",
        "１",
        "＾",
        "证据",
        "甲",
        "。",
        "&#91;",
        "&#93;",
        "&lbrack;",
        "&Hat;",
        "&#x39;",
        "&zwnj;",
        "&#",
        "91;",
        "&amp;",
        "\\",
        "\\[",
        "<b>",
        "</b>",
        "<sup>",
        "</sup>",
        "<",
        "¹",
        "⁹",
        "m",
    ]
)
TEXTS = st.lists(PIECES, max_size=40).map("".join)


@settings(max_examples=400)
@given(TEXTS, st.lists(st.integers(0, 60), max_size=12), st.sampled_from(STYLES))
@example("[ci[cite^9]te^9]", [3, 10, 12], "cite")
@example("[" + "\u200b" * 250 + "cite^9]", [1, 200, 251], "none")
def test_what_comes_out_does_not_depend_on_how_the_text_was_cut(
    text: str, cuts: list[int], style: Style
) -> None:
    whole = MarkFilter(style, KNOWN)
    expected = whole.feed(text) + whole.finish()
    pieces = MarkFilter(style, KNOWN)
    places = sorted({0, *(cut for cut in cuts if cut < len(text)), len(text)})
    joined = "".join(pieces.feed(text[a:b]) for a, b in itertools.pairwise(places)) + pieces.finish()
    assert joined == expected
    letters = MarkFilter(style, KNOWN)
    assert "".join(map(letters.feed, text)) + letters.finish() == expected


@settings(max_examples=400)
@given(TEXTS)
def test_no_unknown_mark_is_left_whatever_was_written(text: str) -> None:
    assert not _SEEN.search(as_seen(strip_marks(text)))
    cited = rewrite_marks(text, "cite", KNOWN)
    assert not _RAISED.search(cited)
    assert not _RAISED.search(rewrite_marks(text, "numbered", KNOWN))
    assert not _SEEN.search(as_seen(_PUBLISHED.sub("", cited))) or _only_joined(cited)
    assert all(1 <= number <= 5 for mark in find_marks(cited) for number in mark.numbers)
    numbered = rewrite_marks(text, "numbered", KNOWN)
    assert all(1 <= number <= 5 for mark in find_marks(numbered) for number in mark.numbers)


def _only_joined(text: str) -> bool:
    """Taking the marks of a text out of it may bring others about; in the text itself there are none."""
    return not _SEEN.search(as_seen(_PUBLISHED.sub("\ufffd", text)))


@settings(max_examples=300)
@given(TEXTS, st.sampled_from(STYLES))
def test_rewriting_twice_changes_nothing(text: str, style: Style) -> None:
    once = rewrite_marks(text, style, KNOWN)
    assert rewrite_marks(once, style, KNOWN) == once


@settings(max_examples=100)
@given(st.text(max_size=200))
def test_any_text_is_read(text: str) -> None:
    strip_marks(text)
    find_marks(text)
