"""The steps of the controller workflow that answer in JSON: their schemas, what is read from them, and what the server
itself makes of them. No I/O.

Rule: whatever was asked for is checked here. Lists are bounded, texts are one line each, and a step that cannot be read
says in Chinese why.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from cg_rag.core.json_objects import find_objects
from cg_rag.core.protocol import MAX_QUESTION_CHARACTERS, MAX_QUESTIONS, SceneStatus

SCENES: Final[tuple[SceneStatus, ...]] = ("assessable", "unsupported_scene", "insufficient_visual_evidence")
MAX_FACTS: Final = 20
MAX_HAZARDS: Final = 12
MAX_LINE_CHARACTERS: Final = 400
_MAX_TEXT_CHARACTERS: Final = 16_000

# 垫板词表: what stands below an upright, whether it is there or not (docs/vision.md, controller_wip).
SOLE_PLATE_WORDS: Final = ("垫板", "垫木", "底座", "可调底座")
_ABOUT_UPRIGHTS: Final = re.compile("立杆|脚手架|架体|支架|模板支撑|支撑架")


class StepUnreadable(Exception):
    """The message is a Chinese clause for the model and for the caller."""


@dataclass(frozen=True, slots=True)
class Observation:
    scene: SceneStatus
    facts: tuple[str, ...]
    hazards: tuple[str, ...]

    @property
    def needs_search(self) -> bool:
        return self.scene == "assessable" and bool(self.hazards)

    def written(self) -> str:
        """As the stage OBSERVATION."""
        return "\n".join([*map("{}. {}".format, range(1, 99), self.facts), f"场景：{self.scene}"])

    def told(self) -> str:
        """As the other steps are told it."""
        return json.dumps(
            {"scene_status": self.scene, "facts": self.facts, "hazards": self.hazards}, ensure_ascii=False
        )


@dataclass(frozen=True, slots=True)
class Review:
    summary: str
    questions: tuple[str, ...]
    """None that is new: the evidence is enough."""


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def _list(max_items: int) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "string"}, "maxItems": max_items}


OBSERVE_SCHEMA: Final = _object(
    {
        "scene_status": {"type": "string", "enum": list(SCENES)},
        "facts": _list(MAX_FACTS),
        "hazards": _list(MAX_HAZARDS),
    }
)
PLAN_SCHEMA: Final = _object({"questions": _list(MAX_QUESTIONS)})
REVIEW_SCHEMA: Final = _object(
    {"summary": {"type": "string"}, "enough": {"type": "boolean"}, "questions": _list(MAX_QUESTIONS)}
)


def read_observation(text: str) -> Observation:
    """Raises StepUnreadable."""
    said = _find(text, "scene_status", "facts", "hazards")
    scene = said.get("scene_status")
    if scene not in SCENES:
        raise StepUnreadable(f"scene_status 须为 {'、'.join(SCENES)} 之一")
    facts = _lines(said.get("facts"), MAX_FACTS)
    hazards = _lines(said.get("hazards"), MAX_HAZARDS)
    if not facts and not hazards:
        raise StepUnreadable("facts 须为非空的字符串数组")
    return Observation(scene, facts or hazards, hazards)


def read_plan(text: str) -> tuple[str, ...]:
    """At least one question. Raises StepUnreadable."""
    questions = _questions(_find(text, "questions").get("questions"))
    if not questions:
        raise StepUnreadable("questions 须为一至三个检索问题的字符串数组")
    return questions


def read_review(text: str) -> Review:
    """Raises StepUnreadable."""
    said = _find(text, "summary", "enough", "questions")
    summary = said.get("summary")
    if not isinstance(summary, str) or not summary.strip():
        raise StepUnreadable("summary 须为非空的字符串")
    enough = said.get("enough") in (True, "true", "是")
    questions = () if enough else _questions(said.get("questions"))
    return Review(_text(summary), questions)


def _find(text: str, *names: str) -> dict[str, Any]:
    found = next(find_objects(text[:_MAX_TEXT_CHARACTERS], names), None)
    if found is None:
        raise StepUnreadable("回答中没有所要的 JSON 对象")
    return found


def _text(value: str) -> str:
    # A JSON string may hold half of a surrogate pair, which no answer of ours can.
    return " ".join(value.encode("utf-8", "replace").decode("utf-8").split())


def _lines(value: object, most: int) -> tuple[str, ...]:
    listed = value if isinstance(value, list) else value.splitlines() if isinstance(value, str) else []
    lines = [_text(item)[:MAX_LINE_CHARACTERS] for item in listed if isinstance(item, str)]
    return tuple(dict.fromkeys(line for line in lines if line))[:most]


def _questions(value: object) -> tuple[str, ...]:
    return tuple(question[:MAX_QUESTION_CHARACTERS] for question in _lines(value, MAX_QUESTIONS))


def with_sole_plate_words(question: str) -> str:
    """A question about uprights, with the words for what has to stand below them."""
    if not _ABOUT_UPRIGHTS.search(question) or any(word in question for word in SOLE_PLATE_WORDS):
        return question
    return f"{question} {SOLE_PLATE_WORDS[0]} {SOLE_PLATE_WORDS[2]}"[:MAX_QUESTION_CHARACTERS]


def find_uncovered(hazards: Sequence[str], asked: Sequence[str]) -> tuple[str, ...]:
    """The hazards that no question was about: less than a third of their pairs of characters stand in any of them."""
    asked_pairs = [_pairs(question) for question in asked]

    def is_covered(hazard: str) -> bool:
        pairs = _pairs(hazard)
        return any(len(pairs & known) * 3 >= len(pairs) for known in asked_pairs)

    return tuple(hazard for hazard in hazards if not is_covered(hazard))[:MAX_QUESTIONS]


def _pairs(text: str) -> set[str]:
    letters = [char for char in text if char.isalnum()]
    return {"".join(pair) for pair in pairwise(letters)}
