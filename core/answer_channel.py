"""What of an answer has gone out, and how it comes to equal the answer that is published.

Rule: the `answer` tokens since the last reset, joined, equal the final answer, whatever went out before it was known
(docs/http.md, 流式接口). No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cg_rag.core.events import AnswerReset, Token


class AnswerChannel:
    """The channel `answer` of one stream. Every method returns the events that are to be yielded."""

    def __init__(self) -> None:
        self.text = ""

    def release(self, text: str) -> Iterator[Token]:
        """Append to what has gone out."""
        if text:
            self.text += text
            yield Token("answer", text)

    def reset(self, reason: str) -> Iterator[AnswerReset]:
        """Void what has gone out. Said also when nothing has: callers show that the answer is made anew."""
        self.text = ""
        yield AnswerReset(reason)

    def settle(self, final: str, reason: str) -> Iterator[AnswerReset | Token]:
        """Make what has gone out equal `final`: the rest of it, or, where another text went out, all of it anew."""
        if not final.startswith(self.text):
            yield from self.reset(reason)
        yield from self.release(final[len(self.text) :])


class LineGate:
    """Lets a text through line by line, as `check` says; from the first line that fails it on, nothing.

    `check` takes a line without its end and returns the line to publish, or None when it must not go out.
    """

    def __init__(self, check: Callable[[str], str | None]) -> None:
        self._check = check
        self._held = ""
        self.is_shut = False

    def feed(self, text: str) -> str:
        """The lines that `text` completes, checked, each with its end."""
        if self.is_shut:
            return ""
        *lines, self._held = (self._held + text).split("\n")
        passed = ""
        for line in lines:
            passed += self._pass(line, "\n")
        return passed

    def finish(self) -> str:
        """The last line, which has no end."""
        line, self._held = self._held, ""
        return self._pass(line, "") if line else ""

    def _pass(self, line: str, end: str) -> str:
        checked = None if self.is_shut else self._check(line)
        self.is_shut = self.is_shut or checked is None
        return "" if checked is None else checked + end
