"""Separates a model's thinking from its answer where both come in one text, between <think> and </think>.

Rule: what stands before a `</think>` was thinking, opened or not; text is what follows. Templates that put `<think>`
into the prompt leave only the closing tag, so text may turn out to have been thinking after it was handed on: then
a piece says so, and whoever handed it on takes it back. Tags in code fences and after a backtick are text. No I/O.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

OPEN: Final = "<think>"
CLOSE: Final = "</think>"
_FENCE: Final = "```"
_MARK: Final = re.compile(r"</?think>|```")
_BEGUN: Final = re.compile(r"(?:<(?:/?(?:t(?:h(?:i(?:n(?:k)?)?)?)?)?)|``?)\Z")


class Piece(NamedTuple):
    """`retracts_text`: all text so far was thinking, and counts as such from here on; `text` follows after it."""

    text: str = ""
    thinking: str = ""
    retracts_text: bool = False


class ThinkingSplitter:
    """Feed the content as it comes, then `finish`. What comes out does not depend on how it was cut.

    `may_begin_inside`: thinking was asked for, so a content without `<think>` may be one whose beginning stood in
    the prompt. It is held back until a `</think>`, `begin_outside` or the end tells. Tags are taken out, and white
    space at the beginning of a text or a thought is dropped.
    """

    def __init__(self, may_begin_inside: bool = False) -> None:
        self._pending = ""  # may be the beginning of a mark
        self._held: list[str] | None = [] if may_begin_inside else None
        self._held_blank = True
        self._inside = False
        self._at_start = True  # of a text or a thought: white space is still dropped
        self._has_text = False
        self._in_fence = False
        self._last = ""  # the character before what comes next
        self._stray: list[str] | None = None  # text since a `</think>` in the fence that is open

    def begin_outside(self) -> list[Piece]:
        """Thinking comes in a field of its own, so the content is the answer from its first letter."""
        return self._release_held()

    def passes(self, content: str) -> bool:
        """Whether `content` is text as it stands, as most is: then it has been taken, and `feed` is not to be called.
        A way to save time, and nothing else."""
        if self._held is not None or self._inside or self._at_start or self._stray is not None:
            return False
        if self._pending or not content or "<" in content or "`" in content:
            return False
        self._last = content[-1]
        return True

    def feed(self, content: str) -> list[Piece]:
        """The pieces that are certain now."""
        buffer = self._pending + content
        pieces: list[Piece] = []
        position = 0
        for mark in _MARK.finditer(buffer):
            pieces += self._take_plain(buffer[position : mark.start()])
            pieces += self._take_mark(mark.group())
            position = mark.end()
        rest = buffer[position:]
        begun = _BEGUN.search(rest)
        end = begun.start() if begun else len(rest)
        self._pending = rest[end:]
        return pieces + self._take_plain(rest[:end])

    def finish(self, truncated: bool = False) -> list[Piece]:
        """What was held back. A thought that was never closed stays a thought, a fence that was never closed is no
        fence. `truncated`: the answer ended at a limit, so what is still held is a thought that was cut."""
        if self._held is not None and truncated:
            thinking = "".join(self._held) + self._pending
            self._held, self._pending = None, ""
            return _thought(thinking.lstrip())
        pieces = self._release_held()
        rest, self._pending = self._pending, ""
        pieces += self._take_plain(rest)
        if self._in_fence and self._stray is not None:
            pieces.append(Piece("".join(self._stray).lstrip(), retracts_text=True))
        return pieces

    def _take_mark(self, mark: str) -> list[Piece]:
        if self._held is not None:
            return self._take_mark_held(mark)
        if self._inside:
            return self._close() if mark == CLOSE else self._take_plain(mark)
        if mark == _FENCE:
            self._in_fence = not self._in_fence
            self._stray = None
            return self._take_plain(mark)
        if self._in_fence or self._last == "`":
            return self._take_quoted(mark)
        return self._open() if mark == OPEN else self._close()

    def _take_mark_held(self, mark: str) -> list[Piece]:
        assert self._held is not None
        if mark == CLOSE:
            thinking, self._held = "".join(self._held), None
            return _thought(thinking.lstrip()) + self._close()
        if mark == OPEN and self._held_blank:
            self._held = None
            return self._open()
        return self._take_plain(mark)

    def _take_quoted(self, mark: str) -> list[Piece]:
        pieces = self._take_plain(mark)
        if mark == CLOSE and self._in_fence:
            self._stray = []
        return pieces

    def _open(self) -> list[Piece]:
        self._inside, self._at_start = True, True
        return []

    def _close(self) -> list[Piece]:
        retracts = not self._inside and self._has_text
        self._inside, self._at_start, self._last = False, True, ""
        if not retracts:
            return []
        self._has_text = False
        return [Piece(retracts_text=True)]

    def _take_plain(self, content: str) -> list[Piece]:
        if self._held is not None:
            self._held.append(content)
            self._held_blank = self._held_blank and not content.strip()
            return []
        if self._at_start:
            content = content.lstrip()
        if not content:
            return []
        self._at_start, self._last = False, content[-1]
        if self._inside:
            return _thought(content)
        self._has_text = True
        if self._stray is not None:
            self._stray.append(content)
        return [Piece(content)]

    def _release_held(self) -> list[Piece]:
        if self._held is None:
            return []
        content, self._held = "".join(self._held), None
        pending, self._pending = self._pending, ""
        return self.feed(content + pending)


def _thought(content: str) -> list[Piece]:
    return [Piece(thinking=content)] if content else []
