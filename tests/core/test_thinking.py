"""Thinking and answer out of one text, cut anywhere."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cg_rag.core.thinking import Piece, ThinkingSplitter


def split(
    content: str,
    *cuts: int,
    may_begin_inside: bool = False,
    truncated: bool = False,
    asks_what_passes: bool = False,
) -> tuple[str, str]:
    """(text, thinking), as somebody who follows every piece has them in the end."""
    splitter = ThinkingSplitter(may_begin_inside)
    text, thinking = "", ""
    places = [0, *sorted(cuts), len(content)]
    pieces: list[Piece] = []
    for start, end in itertools.pairwise(places):
        part = content[start:end]
        pieces += [Piece(part)] if asks_what_passes and splitter.passes(part) else splitter.feed(part)
    for piece in pieces + splitter.finish(truncated):
        if piece.retracts_text:
            text, thinking = "", thinking + text
        text += piece.text
        thinking += piece.thinking
    return text, thinking


FORMS = {
    "plain": ("答案", ("答案", "")),
    "usual": ("<think>想</think>答案", ("答案", "想")),
    "white space around": ("\n<think>\n想\n</think>\n\n答案\n", ("答案\n", "想\n")),
    "empty thought": ("<think>\n\n</think>\n\n答案", ("答案", "")),
    "only the closing tag": ("想一想</think>\n答案", ("答案", "想一想")),
    "closing tag first": ("</think>答案", ("答案", "")),
    "never closed": ("<think>想到一半", ("", "想到一半")),
    "closed with nothing after": ("<think>想</think>\n", ("", "想")),
    "nested": ("<think>a<think>b</think>c</think>答案", ("答案", "a<think>bc")),
    "interleaved": ("<think>a</think>一<think>b</think>二", ("一二", "ab")),
    "opening tag in a fence": ("看：\n```html\n<think>x</think>\n```\n完", None),
    "tag after a backtick": ("标签 `</think>` 的用法", None),
    "fence inside of a thought": ("<think>```json\n{}</think>答案", ("答案", "```json\n{}")),
    "fence that is never closed": ("想 ```json\n{}</think>\n答案", ("答案", "想 ```json\n{}</think>\n答案")),
    "less-than signs": ("若 a<b 且 c</d 则 <thin", None),
    "other tags": ("<thinking>x</thinking>", None),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_form_found_in_the_wild_is_separated(name: str) -> None:
    content, expected = FORMS[name]
    assert split(content) == (expected or (content, ""))


@pytest.mark.parametrize("name", FORMS)
def test_every_form_comes_out_the_same_when_cut_into_letters(name: str) -> None:
    content, _ = FORMS[name]
    assert split(content, *range(len(content))) == split(content)


def test_a_thought_begun_in_the_prompt_is_never_handed_on_as_text() -> None:
    splitter = ThinkingSplitter(may_begin_inside=True)
    assert splitter.feed("先看脚手架") == []
    pieces = splitter.feed("……</think>答案")
    assert [(piece.text, piece.thinking, piece.retracts_text) for piece in pieces] == [
        ("", "先看脚手架……", False),
        ("答案", "", False),
    ]


def test_a_model_that_does_not_think_although_asked_gives_its_text_at_the_end() -> None:
    assert split("直接回答", may_begin_inside=True) == ("直接回答", "")


def test_a_thought_cut_at_the_token_limit_is_no_answer() -> None:
    assert split("先看脚手架", may_begin_inside=True, truncated=True) == ("", "先看脚手架")
    assert split("<think>先看", truncated=True) == ("", "先看")


def test_thinking_in_a_field_of_its_own_lets_the_text_through_at_once() -> None:
    splitter = ThinkingSplitter(may_begin_inside=True)
    assert splitter.begin_outside() == []
    assert [piece.text for piece in splitter.feed("答")] == ["答"]


def test_text_is_handed_on_letter_by_letter_while_no_tag_can_begin() -> None:
    splitter = ThinkingSplitter()
    assert [[piece.text for piece in splitter.feed(letter)] for letter in "ab<c"] == [
        ["a"],
        ["b"],
        [],
        ["<c"],
    ]


MARKS = st.sampled_from(["<think>", "</think>", "```", "`", "<", "/", "think", ">", "\n", " ", "想", "a"])
CONTENTS = st.lists(MARKS, max_size=30).map("".join)


@settings(max_examples=300)
@given(CONTENTS, st.data(), st.booleans(), st.booleans())
def test_the_outcome_does_not_depend_on_the_cuts(
    content: str, data: st.DataObject, inside: bool, truncated: bool
) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(content)), max_size=8))
    whole = split(content, may_begin_inside=inside, truncated=truncated)
    for asks in (False, True):
        assert (
            split(content, *cuts, may_begin_inside=inside, truncated=truncated, asks_what_passes=asks)
            == whole
        )


def test_text_passes_when_nothing_can_come_of_it() -> None:
    splitter = ThinkingSplitter()
    assert not splitter.passes("答")  # white space before it would have been dropped
    splitter.feed("答")
    assert [splitter.passes(part) for part in ("案 \n", "", "a<b", "`")] == [True, False, False, False]
    splitter.feed("<")
    assert not splitter.passes("b")
    splitter.feed("think>")
    assert not splitter.passes("想")
    after_a_fence = ThinkingSplitter()
    after_a_fence.feed("``````")
    assert after_a_fence.passes("a")
    assert after_a_fence.feed("<think>想") == [Piece(thinking="想")]


@settings(max_examples=300)
@given(st.text("ab想\n `<>/", max_size=40), st.text("ab想\n `<>/", max_size=40))
def test_text_and_thought_are_preserved(thought: str, answer: str) -> None:
    text, thinking = split(f"<think>{thought}</think>{answer}")
    assert (text, thinking) == (answer.lstrip(), thought.lstrip())


@settings(max_examples=300)
@given(CONTENTS, st.booleans())
@example("think></think><", False)
def test_no_letter_outside_of_tags_is_lost(content: str, inside: bool) -> None:
    def letters(text: str) -> list[str]:
        return sorted(text.replace("<think>", "").replace("</think>", "").replace("\n", "").replace(" ", ""))

    text, thinking = split(content, may_begin_inside=inside)
    # Each for itself: the end of one and the beginning of the other may look like a tag.
    assert len(letters(text)) + len(letters(thinking)) >= len(letters(content))


def test_hostile_texts_cost_no_more_than_their_length() -> None:
    splitter = ThinkingSplitter(may_begin_inside=True)
    for _ in range(20_000):
        splitter.feed("x<think>")
    assert len(splitter.finish()) < 60_000
