"""One turn of the model under the public protocol, as it comes: stage text on channel `reasoning`, its answer on
`answer`. No I/O.

Rule: what goes out is public text: no labels, no marks and no names without evidence, and never the model's thinking.
A stage goes out line by line; the answer as core/report_gate.py lets it through, or not before it is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from cg_rag.core.agentic_report import MAX_ANSWER_CHARACTERS, public_text
from cg_rag.core.answer_channel import AnswerChannel
from cg_rag.core.claims import References
from cg_rag.core.events import Event, Token
from cg_rag.core.protocol import Label, Piece, ProtocolParser
from cg_rag.core.report_gate import ReportGate, spans_lines
from cg_rag.core.upstream import ChatDelta

# An answer of the length that is read, and the stages before it.
MAX_TURN_CHARACTERS: Final = 2 * MAX_ANSWER_CHARACTERS


class Stage:
    """One block that is public as it is read: feed it, then finish; `content` is what went out."""

    def __init__(self, label: Label, references: References) -> None:
        self.label = label
        self.content = ""
        self._references = references
        self._line = ""
        self._last = ""  # the line before, as it went out

    def feed(self, text: str) -> str:
        *lines, self._line = (self._line + text).split("\n")
        return "".join(map(self._put, lines))

    def finish(self) -> str:
        line, self._line = self._line, ""
        return self._put(line)

    def _put(self, line: str) -> str:
        shown = public_text(line, self._references, self.label == "SEARCH_PLAN")
        if not shown or (self._last and spans_lines(self._last, shown, self._references)):
            return ""
        self._last = shown
        piece = f"\n{shown}" if self.content else shown
        self.content += piece
        return piece


class PublicTurn:
    """`take` the deltas of one call, then `finish`: both give the events to send.

    `releases_answer` False: the answer is kept back, because its kind decides whether it may stand. `begin_answer`
    gives what goes before the first of it.
    """

    def __init__(
        self,
        channel: AnswerChannel,
        references: References,
        *,
        aligns: bool,
        releases_answer: bool,
        begin_answer: Callable[[], Iterable[Event]],
        has_spoken: bool,
    ) -> None:
        """`has_spoken`: stages went out before, and a blank line goes between."""
        self._channel = channel
        self._references = references
        self._aligns = aligns
        self._releases_answer = releases_answer
        self._begin_answer = begin_answer
        self._has_spoken = has_spoken
        self.is_cut = False  # it ended at the model's limit of tokens
        self._begin()

    def _begin(self) -> None:
        self.parser = ProtocolParser()
        self.stages: list[Stage] = []
        self._said: list[str] = []
        self._num_characters = 0
        self._gate = ReportGate(self._references, self._aligns)
        self._in_answer = False

    @property
    def text(self) -> str:
        """All that the model wrote, without its thinking."""
        return "".join(self._said)

    @property
    def is_too_long(self) -> bool:
        return self._num_characters > MAX_TURN_CHARACTERS

    def take(self, delta: ChatDelta) -> Iterator[Event]:
        if delta.retracts_text:
            # What was shown of a stage cannot be taken back; it was public text all the same.
            yield from self._channel.reset("thinking") if self._channel.text else ()
            self._begin()
        if delta.finish_reason is not None:
            self.is_cut = delta.finish_reason == "length"
        if delta.text:
            self._said.append(delta.text)
            self._num_characters += len(delta.text)
            yield from self._show(self.parser.feed(delta.text))

    def finish(self) -> Iterator[Event]:
        yield from self._show(self.parser.finish())
        yield from self._end_stage()
        if self._releases_answer:
            yield from self._channel.release(self._gate.finish())

    def _show(self, pieces: Iterable[Piece]) -> Iterator[Event]:
        for piece in pieces:
            if piece.label == "ANSWER":
                yield from self._show_answer(piece.text)
            else:
                yield from self._show_stage(piece)

    def _show_answer(self, text: str) -> Iterator[Event]:
        if not self._in_answer:
            yield from self._end_stage()
            yield from self._begin_answer()
            self._in_answer = True
        if self._releases_answer:
            yield from self._channel.release(self._gate.feed(text))

    def _show_stage(self, piece: Piece) -> Iterator[Event]:
        if not self.stages or self.stages[-1].label != piece.label:
            yield from self._end_stage()
            self.stages.append(Stage(piece.label, self._references))
        yield from self._say(piece.text)

    def _end_stage(self) -> Iterator[Event]:
        if self.stages:
            yield from self._say(None)

    def _say(self, text: str | None) -> Iterator[Event]:
        """What of the stage can go out; None ends it."""
        stage = self.stages[-1]
        is_first = not stage.content
        shown = stage.finish() if text is None else stage.feed(text)
        if shown:
            yield Token("reasoning", f"\n\n{shown}" if is_first and self._has_spoken else shown)
            self._has_spoken = True
