"""One structured observation: the JSON a model was asked for, read whatever it wrote around it, and its text. No I/O.

Rule: a label is one of the closed list or there is none. What cannot be read is no failure of the call: the
observation says that it failed and why, and its text can still be shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cg_rag.core.claims import References, cut_claims
from cg_rag.core.json_objects import find_objects
from cg_rag.core.mark_remains import strip_citations
from cg_rag.core.report_format import number_items
from cg_rag.core.report_parse import reread_items
from cg_rag.core.taxonomy import Taxonomy

PROFILE_ID: Final = "construction-hazard-inspection-v1"  # docs/vision.md
MAX_TEXT_CHARACTERS: Final = 8_000  # of what is read, and of what is shown unread
_MAX_SUGGESTIONS: Final = 20
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_NO_LABEL: Final = frozenset(("", "无", "无隐患", "none", "null", "n/a", "无标签", "无可见隐患"))
_TRUTH: Final[Mapping[object, bool]] = {"true": True, "false": False, "是": True, "否": False}


@dataclass(frozen=True, slots=True)
class Observation:
    """`error` is "" for one that could be read; else it says in Chinese what was wrong, and `label` is ""."""

    text: str
    label: str = ""
    hazard_description: str = ""
    is_non_scene: bool = False
    error: str = ""


class _Unreadable(Exception):
    """The message is a Chinese clause."""


def observation_schema(taxonomy: Taxonomy) -> dict[str, Any]:
    """The JSON schema of an observation: the strongest that can be said about it."""
    text = {"type": "string"}
    properties = {
        "description": text,
        "hazard_label": {"type": "string", "enum": [*taxonomy.labels, ""]},
        "hazard_description": text,
        "suggestions": {"type": "array", "items": text},
        "is_non_scene": {"type": "boolean"},
    }
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def read_observation(text: str, taxonomy: Taxonomy, references: References) -> Observation:
    """What a model's answer says; never raises. `references` are the criteria alone: no other law was looked up."""
    answer = text[:MAX_TEXT_CHARACTERS]
    said = next(find_objects(answer, ("hazard_label", "description")), None)
    unread = cut_claims(_plain(answer), references)[0].strip()
    if said is None:
        return Observation(unread, error="回答中没有所要的 JSON 对象")
    # The same cleaning for all that is published, whether the rest can be read or not.
    description = _published(said.get("description"), references)
    hazard = _published(said.get("hazard_description"), references)
    suggestions = _suggestions(said.get("suggestions"), references)
    try:
        if "hazard_label" not in said:  # "" says that there is no hazard; left out, it says nothing
            raise _Unreadable("缺少 hazard_label")
        label = _label(said["hazard_label"], taxonomy)
        is_non_scene = _flag(said.get("is_non_scene"))
        _check(description, label, is_non_scene)
    except _Unreadable as fault:
        shown = _format(description, None, suggestions) if description else unread
        return Observation(shown, error=str(fault))
    return Observation(
        _format(description, label or "无", suggestions), label, hazard if label else "", is_non_scene
    )


def _published(value: object, references: References) -> str:
    """One line of text as it may be shown: no marks, no laws that nobody looked up."""
    if not isinstance(value, str):
        return ""
    return cut_claims(" ".join(_plain(value).split()), references)[0].strip()


def _plain(text: str) -> str:
    # A JSON string may hold half of a surrogate pair, which no answer of ours can.
    whole = text.encode("utf-8", "replace").decode("utf-8")
    return strip_citations(_CONTROL.sub("", whole))


def _suggestions(value: object, references: References) -> tuple[str, ...]:
    listed = value if isinstance(value, list) else str(value).splitlines() if isinstance(value, str) else []
    lines = [_published(item, references) for item in listed[:_MAX_SUGGESTIONS]]
    return reread_items([line for line in lines if line])


def _label(value: object, taxonomy: Taxonomy) -> str:
    if value is None or (isinstance(value, str) and value.strip().lower() in _NO_LABEL):
        return ""
    if not isinstance(value, str):
        raise _Unreadable("hazard_label 不是字符串")
    label = taxonomy.find_label(value)
    if label is None:
        raise _Unreadable(f"hazard_label 不在标签词表中，收到“{_plain(value)[:40]}”")
    return label


def _flag(value: object) -> bool:
    if value is None or isinstance(value, bool):
        return bool(value)
    truth = _TRUTH.get(value.strip().lower()) if isinstance(value, str) else None
    if truth is None:
        raise _Unreadable("is_non_scene 不是布尔值")
    return truth


def _check(description: str, label: str, is_non_scene: bool) -> None:
    if not description:
        raise _Unreadable("description 为空或不是字符串")
    if label and is_non_scene:
        raise _Unreadable("既写了隐患标签，又写了不是施工现场")


def _format(description: str, label: str | None, suggestions: tuple[str, ...]) -> str:
    parts = [f"图片描述：{description}"]
    parts += [f"确定隐患描述：{label}"] if label is not None else []
    parts += [f"整改建议：\n{number_items(suggestions)}" if suggestions else "整改建议：无"]
    return "\n\n".join(parts)
