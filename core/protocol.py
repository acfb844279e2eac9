"""The public protocol of the agentic mode: a model's labelled turn, read while it is written. No I/O.

A turn is blocks, each headed by a label alone on its line: OBSERVATION with SEARCH_PLAN or FINAL_REASONING + ANSWER, and
after evidence EVIDENCE_REVIEW with the same choice (docs/vision.md, 智能生成). Rule: what stands before the first label
is dropped, and so is what follows a SEARCH_PLAN, because it was written without the evidence that the plan asks for.
The text comes out the same however it was cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from cg_rag.core.shown_text import cut_shown, shown

Label = Literal["OBSERVATION", "SEARCH_PLAN", "EVIDENCE_REVIEW", "FINAL_REASONING", "ANSWER"]
SceneStatus = Literal["assessable", "unsupported_scene", "insufficient_visual_evidence"]

MAX_QUESTIONS: Final = 3  # docs/vision.md: 检索问题 1..3 条
MAX_QUESTION_CHARACTERS: Final = 2000  # what retrieval takes

_NAMES: Final[dict[str, Label]] = {
    "OBSERVATION": "OBSERVATION",
    "OBSERVATIONS": "OBSERVATION",
    "SEARCHPLAN": "SEARCH_PLAN",
    "EVIDENCEREVIEW": "EVIDENCE_REVIEW",
    "FINALREASONING": "FINAL_REASONING",
    "ANSWER": "ANSWER",
    "FINALANSWER": "ANSWER",
    "观察": "OBSERVATION",
    "检索计划": "SEARCH_PLAN",
    "证据复核": "EVIDENCE_REVIEW",
    "最终推理": "FINAL_REASONING",
    "回答": "ANSWER",
}
_WORD: Final = "|".join(
    [
        "OBSERVATIONS?",
        "SEARCH[_ -]?PLAN",
        "EVIDENCE[_ -]?REVIEW",
        "FINAL[_ -]?REASONING",
        "(?:FINAL[_ -]?)?ANSWER",
        "观察",
        "检索计划",
        "证据复核",
        "最终推理",
        "回答",
    ]
)
_MARKS: Final = r"[\s#*_>`]{0,12}"
_OPEN, _CLOSE = r"[\[［【〔(（<〈「]", r"[\]］】〕)）>〉」]"
# The label alone: bare, in brackets, bold or a heading, with a colon or not.
_ALONE: Final = re.compile(
    rf"{_MARKS}(?:{_OPEN}\s?/?)?{_MARKS}(?P<word>{_WORD}){_MARKS}(?:{_CLOSE})?{_MARKS}[:：]?{_MARKS}", re.I
)
# Text may follow on the line only behind a label in square brackets, which no sentence begins with.
_FOLLOWED: Final = re.compile(rf"{_MARKS}[\[［【]\s?(?P<word>{_WORD})\s?[\]］】]{_MARKS}[:：]?[ \t]*", re.I)
_CLOSING: Final = re.compile(rf"{_MARKS}{_OPEN}\s?/\s?(?:{_WORD})\s?{_CLOSE}{_MARKS}", re.I)
_FENCE: Final = re.compile(r"\s{0,3}(?:`{3,20}|~{3,20})[A-Za-z0-9_-]{0,20}\s{0,9}")
# Longer than any label with its decoration: a line that has got this far without one is text.
_LABEL_CHARACTERS: Final = 96


@dataclass(frozen=True, slots=True)
class Piece:
    """Some text of the block headed `label`; ends of lines are \\n."""

    label: Label
    text: str


@dataclass(slots=True)
class Block:
    label: Label
    text: str = ""


class ProtocolParser:
    """One turn of the model. `blocks` is what has come so far, in the order in which it came."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.has_leaked = False
        """Whether a label stood inside the answer; the label itself is left out of it."""
        self._line = ""
        self._in_text = False
        self._is_over = False

    def feed(self, text: str) -> list[Piece]:
        """The pieces that `text` completes."""
        pieces: list[Piece] = []
        for part in re.split(r"(?<=\n)", text):
            self._take(part, pieces)
        return pieces

    def finish(self) -> list[Piece]:
        """What was held back because it might have become a label."""
        pieces: list[Piece] = []
        self._end_line("", pieces)
        return pieces

    def find(self, label: Label) -> str | None:
        """The text of the last block headed `label`, stripped; None when there is none."""
        for block in reversed(self.blocks):
            if block.label == label:
                return block.text.strip()
        return None

    def _take(self, part: str, pieces: list[Piece]) -> None:
        if part.endswith("\n"):
            self._line += part[:-1]
            self._end_line("\n", pieces)
            return
        self._line += part
        if self._in_text or len(self._line) >= _LABEL_CHARACTERS:
            self._start_text(pieces)

    def _start_text(self, pieces: list[Piece]) -> None:
        """The beginning of a line is known: what follows goes out as it comes. A last \\r waits, it may be half an end."""
        if not self._in_text:
            self._line = self._take_label(self._line)
            self._in_text = True
        held = "\r" if self._line.endswith("\r") else ""
        self._put(self._line.removesuffix("\r"), pieces)
        self._line = held

    def _end_line(self, end: str, pieces: list[Piece]) -> None:
        line, self._line = self._line.removesuffix("\r"), ""
        was_text, self._in_text = self._in_text, False
        if not was_text:
            if self._is_mere_form(line):
                return
            line = self._take_label(line)
        self._put(line + end, pieces)

    def _is_mere_form(self, line: str) -> bool:
        """A label, a closing label or a fence alone on the line: taken note of, and no text."""
        if _FENCE.fullmatch(line) or _CLOSING.fullmatch(line):
            return True
        found = _ALONE.fullmatch(line)
        if found and not (self._in_answer and _is_word_of_text(line, found["word"])):
            self._begin(found["word"])
            return True
        return False

    @property
    def _in_answer(self) -> bool:
        return bool(self.blocks) and self.blocks[-1].label == "ANSWER"

    def _take_label(self, line: str) -> str:
        found = _FOLLOWED.match(line)
        if not found:
            return line
        self._begin(found["word"])
        return line[found.end() :]

    def _begin(self, word: str) -> None:
        label = _NAMES[re.sub(r"[_\s-]", "", word).upper()]
        if self._in_answer:
            self.has_leaked = self.has_leaked or label != "ANSWER"
            return
        # "无需检索" is no plan, and what follows it lacks nothing.
        last = self.blocks[-1] if self.blocks else None
        self._is_over = last is not None and last.label == "SEARCH_PLAN" and bool(parse_questions(last.text))
        if not self._is_over:
            self.blocks.append(Block(label))

    def _put(self, text: str, pieces: list[Piece]) -> None:
        if not self.blocks or self._is_over or not text:
            return
        block = self.blocks[-1]
        block.text += text
        pieces.append(Piece(block.label, text))


_ANYWHERE: Final = re.compile(rf"[\[［【]\s{{0,3}}/?(?:{_WORD})\s{{0,3}}[\]］】]", re.I)
# With what would be left behind: one of two blanks, and marks of its own.
_WITHIN: Final = re.compile(
    rf"(?P<blank> )?(?P<strong>[*_`]{{0,3}}){_ANYWHERE.pattern}(?P=strong)(?(blank)(?= ))"
    rf"|(?P<marks>[*_`]{{0,3}}){_ANYWHERE.pattern}(?P=marks)",
    re.I,
)
_MAX_PASSES: Final = 8
_NUMBERED: Final = re.compile(r"^\s*(?:[-*+•]|\d{1,2}[.、．)）])\s*")


def holds_label(text: str) -> bool:
    """Whether a whole text has a label in brackets anywhere, or one in English alone on a line or as an item."""
    seen = shown(text)
    return bool(_ANYWHERE.search(seen)) or any(map(_is_label, seen.split("\n")))


def _is_label(line: str) -> bool:
    found = _ALONE.fullmatch(_NUMBERED.sub("", line))
    return found is not None and found["word"].isascii()


def cut_labels(text: str) -> str:
    """A whole text without the labels that `holds_label` finds; what stands around them is kept."""
    for _ in range(_MAX_PASSES):
        lines = cut_shown(text, _WITHIN).split("\n")
        done = "\n".join(line for line in lines if not _is_label(shown(line)))
        if done == text:
            break
        text = done
    return text


def _is_word_of_text(line: str, word: str) -> bool:
    """A bare Chinese word may stand alone in a report; a label there is in brackets or in English."""
    return not word.isascii() and line.strip(" *_#：:\t") == word and "[" not in line


_BULLET: Final = re.compile(
    r"^[\s>]*(?:[-*+•·●–—]+|[(（]?[0-9０-９一二三四五六七八九十]{1,2}[)）.、．:：](?![0-9])|[①-⑳])\s*"
)
_HEAD: Final = re.compile(r"^(?:检索)?(?:问题|关键词|查询|计划)\s*[0-9一二三]?\s*[:：]\s*")
_NOTHING: Final = re.compile(r"^(?:无|没有|不需要|无需|暂无|none|n/?a)[^？?]{0,8}$", re.I)
_QUOTES: Final = "\"'“”‘’「」`*"


def parse_questions(text: str) -> list[str]:
    """The search questions of a SEARCH_PLAN: at most MAX_QUESTIONS, one a line or a JSON array, in order, no two alike."""
    questions: list[str] = []
    for line in _as_lines(text):
        question = _HEAD.sub("", _BULLET.sub("", line)).strip().strip(_QUOTES).strip()
        question = question[:MAX_QUESTION_CHARACTERS].strip()
        if question and not _NOTHING.match(question) and question not in questions:
            questions.append(question)
    return questions[:MAX_QUESTIONS]


def _as_lines(text: str) -> Sequence[str]:
    stripped = text.strip()
    if stripped.startswith("["):
        try:
            value = json.loads(stripped)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return value
    return [line for line in text.splitlines() if not re.fullmatch(r"\s*检索(?:问题|计划)\s*[:：]?\s*", line)]


# Possessive, so that a run of blanks or of list signs is read once.
_SCENE: Final = re.compile(
    r"^(?:[^\S\n]|[\-*#>])*+场景(?:状态)?\**+\s*+[:：]\s*+\**+\s*+(?P<value>[^\n]{1,40})", re.M
)
_SCENES: Final[tuple[tuple[str, SceneStatus], ...]] = (
    ("unsupported_scene", "unsupported_scene"),
    ("insufficient_visual_evidence", "insufficient_visual_evidence"),
    ("非施工", "unsupported_scene"),
    ("非工地", "unsupported_scene"),
    ("画面不足", "insufficient_visual_evidence"),
    ("不足以判定", "insufficient_visual_evidence"),
    ("assessable", "assessable"),
    ("可判定", "assessable"),
    ("可评估", "assessable"),
)


def find_scene(observation: str) -> SceneStatus | None:
    """What the last line `场景：…` of an OBSERVATION says; None when there is none, or it says nothing known."""
    for found in reversed(list(_SCENE.finditer(observation))):
        value = found["value"].lower()
        for word, status in _SCENES:
            if word in value:
                return status
    return None
