"""The answer channel: whatever went out before, the tokens since the last reset equal what is published."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from cg_rag.core.answer_channel import AnswerChannel, LineGate
from cg_rag.core.events import AnswerReset, Token


def _join(events: list[AnswerReset | Token]) -> str:
    text = ""
    for event in events:
        text = "" if isinstance(event, AnswerReset) else text + event.text
    return text


@given(st.lists(st.text(max_size=8), max_size=5), st.text(max_size=30))
def test_after_settling_the_tokens_since_the_last_reset_are_the_final_text(
    pieces: list[str], final: str
) -> None:
    channel = AnswerChannel()
    events: list[AnswerReset | Token] = []
    for piece in pieces:
        events += channel.release(piece)
    events += channel.settle(final, "format")
    assert _join(events) == final == channel.text


def test_a_text_that_only_goes_on_is_never_reset() -> None:
    channel = AnswerChannel()
    released = list(channel.release("隐患等级："))
    assert list(channel.settle("隐患等级：无隐患", "format")) == [Token("answer", "无隐患")]
    assert released == [Token("answer", "隐患等级：")]


def test_a_reset_is_said_even_when_nothing_has_gone_out() -> None:
    assert list(AnswerChannel().reset("level")) == [AnswerReset("level")]


@given(st.text(alphabet="ab\nx", max_size=40), st.lists(st.integers(0, 40), max_size=6))
def test_the_gate_lets_the_same_lines_through_however_the_text_is_cut(text: str, cuts: list[int]) -> None:
    def check(line: str) -> str | None:
        return None if "x" in line else line.upper()

    def run(pieces: list[str]) -> str:
        gate = LineGate(check)
        return "".join(map(gate.feed, pieces)) + gate.finish()

    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    whole = run([text])
    assert run([text[a:b] for a, b in itertools.pairwise(places)]) == whole
    assert whole == text.partition("x")[0].upper()[: len(whole)]
    assert "X" not in whole
