"""The public protocol, read in one piece, character by character and cut anywhere."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cg_rag.core.protocol import ProtocolParser, cut_labels, find_scene, holds_label, parse_questions
from tests.growth import assert_linear

TURN = """好的，我先看图。
[OBSERVATION]
立杆底部有积水。
场景：assessable
[SEARCH_PLAN]
- 脚手架基础排水要求
- 立杆垫板要求
"""
FINAL = """[EVIDENCE_REVIEW]
证据足够。
[FINAL_REASONING]
按一般隐患定级。
[ANSWER]
## 隐患等级
一般隐患
"""


def read(*pieces: str) -> ProtocolParser:
    parser = ProtocolParser()
    out = [piece for text in pieces for piece in parser.feed(text)] + parser.finish()
    assert "".join(piece.text for piece in out) == "".join(block.text for block in parser.blocks)
    return parser


def blocks(parser: ProtocolParser) -> list[tuple[str, str]]:
    return [(block.label, block.text.strip()) for block in parser.blocks]


def test_a_turn_is_split_into_its_blocks_and_what_stands_before_is_dropped() -> None:
    assert blocks(read(TURN)) == [
        ("OBSERVATION", "立杆底部有积水。\n场景：assessable"),
        ("SEARCH_PLAN", "- 脚手架基础排水要求\n- 立杆垫板要求"),
    ]
    assert blocks(read(FINAL))[-1] == ("ANSWER", "## 隐患等级\n一般隐患")


@pytest.mark.parametrize(
    "head",
    [
        "[OBSERVATION]",
        "【OBSERVATION】",
        "［OBSERVATION］",
        "**[OBSERVATION]**",
        "### OBSERVATION",
        "## [Observation]",
        "OBSERVATION:",
        "**OBSERVATION**：",
        "观察",
        "【观察】",
        "### 观察",
        "**观察：**",
        "[OBSERVATION]\r",
        "  [ OBSERVATION ]  ",
        "`[OBSERVATION]`",
    ],
)
def test_labels_are_known_as_models_write_them(head: str) -> None:
    assert blocks(read(f"{head}\n可见积水。\n")) == [("OBSERVATION", "可见积水。")]


def test_text_may_follow_a_bracketed_label_on_its_line() -> None:
    assert blocks(read("[OBSERVATION] 可见积水。\n[检索计划]：排水\n")) == [
        ("OBSERVATION", "可见积水。"),
        ("SEARCH_PLAN", "排水"),
    ]


@pytest.mark.parametrize("line", ["回答问题时注意", "OBSERVATION 是第一步", "观察到积水", "见【观察】一节"])
def test_a_sentence_with_such_a_word_is_text(line: str) -> None:
    assert blocks(read(f"[OBSERVATION]\n{line}\n")) == [("OBSERVATION", line)]


def test_what_was_written_behind_a_plan_without_its_evidence_is_dropped() -> None:
    assert blocks(read(TURN + FINAL)) == blocks(read(TURN))


def test_a_label_inside_the_answer_is_reported_and_left_out() -> None:
    parser = read(FINAL + "[OBSERVATION]\n1. 其他\n")
    assert parser.has_leaked
    assert blocks(parser)[-1] == ("ANSWER", "## 隐患等级\n一般隐患\n1. 其他")


def test_a_fence_around_the_answer_is_no_text() -> None:
    parser = read("[FINAL_REASONING]\n略\n[ANSWER]\n```markdown\n## 隐患等级\n一般隐患\n```\n[/ANSWER]\n")
    assert blocks(parser)[-1] == ("ANSWER", "## 隐患等级\n一般隐患")


def test_a_long_line_streams_before_its_end() -> None:
    parser = ProtocolParser()
    parser.feed("[OBSERVATION]\n")
    assert "".join(piece.text for piece in parser.feed("积水" * 60)) == "积水" * 60


ALPHABET = st.sampled_from(
    [
        "[",
        "]",
        "OBSERVATION",
        "SEARCH_PLAN",
        "[ANSWER]",
        "[EVIDENCE_REVIEW]",
        "观察",
        "**",
        "#",
        " ",
        "\n",
        "\r\n",
        "\r",
        "：",
        "- ",
        "字" * 30,
        "a",
        "```",
        "\u2028",
    ]
)


@given(st.lists(ALPHABET, max_size=30).map("".join), st.lists(st.integers(0, 400), max_size=8))
def test_any_cutting_gives_the_same_blocks(text: str, cuts: list[int]) -> None:
    whole = blocks(read(text))
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    assert blocks(read(*(text[a:b] for a, b in itertools.pairwise(places)))) == whole
    assert blocks(read(*text)) == whole


@pytest.mark.parametrize(
    ("text", "questions"),
    [
        ("- 甲\n- 乙", ["甲", "乙"]),
        ("1. 甲\n2、乙\n（3）丙\n④丁", ["甲", "乙", "丙"]),
        ('["甲", "乙"]', ["甲", "乙"]),
        ("检索问题：\n* “脚手架基础排水”\n* “脚手架基础排水”", ["脚手架基础排水"]),
        ("检索问题一：甲\n检索问题2：乙", ["甲", "乙"]),
        ("无需检索", []),
        ("无", []),
        ("", []),
        ("3.1.4条第2款的要求是什么", ["3.1.4条第2款的要求是什么"]),
    ],
)
def test_questions_of_a_plan(text: str, questions: list[str]) -> None:
    assert parse_questions(text) == questions


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("可见。\n场景：assessable", "assessable"),
        ("场景: unsupported_scene", "unsupported_scene"),
        ("**场景：** 非施工现场", "unsupported_scene"),
        ("- 场景：画面不足以判定", "insufficient_visual_evidence"),
        ("场景：热闹", None),
        ("没有", None),
    ],
)
def test_the_scene_line(text: str, status: str | None) -> None:
    assert find_scene(text) == status


@given(st.text())
def test_no_plan_and_no_observation_raises(text: str) -> None:
    questions = parse_questions(text)
    assert len(questions) <= 3
    assert all(0 < len(question) <= 2000 for question in questions)
    find_scene(text)


def test_a_plan_that_asks_nothing_is_none_and_what_follows_it_counts() -> None:
    parser = read("[OBSERVATION]\n看。\n[SEARCH_PLAN]\n无需检索\n[ANSWER]\n好。")
    assert blocks(parser)[-1] == ("ANSWER", "好。")


@pytest.mark.parametrize(
    "text",
    ["[ANSWER]", "a [search plan] b", "- [OBSERVATION]", "1. ANSWER", "## ANSWER", "【回答】", "[\nANSWER]"],
)
def test_labels_are_found_wherever_they_stand(text: str) -> None:
    assert holds_label(text)


@pytest.mark.parametrize("text", ["回答", "THE ANSWER IS", "观察：立杆浸水。", "[cite^1]", "1. 检索计划"])
def test_words_that_are_no_labels_are_none(text: str) -> None:
    assert not holds_label(text)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("1. 立杆浸水 [ANSWER] 较深。", "1. 立杆浸水 较深。"),
        ("1. 立杆[answer]浸水。", "1. 立杆浸水。"),
        ("1. 立杆浸水 **[SEARCH_PLAN]**：较深。", "1. 立杆浸水 ：较深。"),
        ("1. 【回答】立杆浸水。", "1. 立杆浸水。"),
        ("立杆&#91;ANSWER&#93;浸水。", "立杆浸水。"),
        ("立杆\\[ANSWER\\]浸水。", "立杆浸水。"),
        ("立杆[ANS\u200bWER]浸水。", "立杆浸水。"),
        ("立杆[AN<b></b>SWER]浸水。", "立杆浸水。"),
        ("立杆［ＡＮＳＷＥＲ］浸水。", "立杆浸水。"),
        ("立杆[AN[ANSWER]SWER]浸水。", "立杆浸水。"),
        ("甲\n1. OBSERVATION\n乙", "甲\n乙"),
        ("甲\n### ANSWER\n乙[/ANSWER]", "甲\n乙"),
        ("观察\n[重点] A[i] &lt;b&gt; 回答", "观察\n[重点] A[i] &lt;b&gt; 回答"),
    ],
)
def test_a_label_is_taken_out_of_a_text_and_what_stands_around_it_is_kept(text: str, kept: str) -> None:
    assert cut_labels(text) == kept
    assert not holds_label(kept)
    assert holds_label(text) == (text != kept)


@pytest.mark.parametrize(
    "text", ["-\n" * 10_000, "场景：" + "\n" * 20_000, "- " * 10_000, "场景：" + " *" * 10_000]
)
def test_scene_is_looked_for_in_linear_time(text: str) -> None:
    assert_linear(find_scene, text)
