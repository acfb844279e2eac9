"""What requests with pictures share: fields, their defaults, and the earlier turns as messages.

Rule: a mode's `Request` is one of the classes below, or one made of them, and what is wrong with a field's JSON type or
range is said here (`invalid_request`); what is wrong with a picture is said by core/images.py (`invalid_image`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field, PlainValidator, StringConstraints
from pydantic_core import PydanticCustomError

from cg_rag.core.json_text import LongString
from cg_rag.core.requests import LongText, RequestModel, TopK, without_default

DEFAULT_QUESTION: Final = "请检测图中的安全隐患"
MAX_QUESTION_CHARACTERS: Final = 2000
MAX_HISTORY_TURNS: Final = 6  # docs/vision.md: 最多六轮
MAX_SEARCH_ROUNDS: Final = 3

# Several servers refuse a message without content, and leaving it out would put two of one role in a row.
_NOTHING_SAID: Final = "（无）"


def _check_string(value: object) -> object:
    if not isinstance(value, str | LongString):
        raise PydanticCustomError("string_type", "not a string")
    return value


# A string of any length: those above 64 KiB stay the slices that the body reader lifted out.
AnyText = Annotated[str | LongString, PlainValidator(_check_string, json_schema_input_type=str)]
TurnIndex = Annotated[int, Field(ge=0)]
Question = Annotated[
    str,
    StringConstraints(strip_whitespace=True, max_length=MAX_QUESTION_CHARACTERS),
    AfterValidator(lambda question: question or DEFAULT_QUESTION),
]


class ImageItem(RequestModel):
    """One picture, unchecked."""

    data: AnyText = Field(description="base64 数据，或 data:<mime>;base64,<...> 形式的 data URL；不接受网址")
    mime_type: AnyText | None = Field(
        None,
        description="image/jpeg、image/png、image/webp 之一，缺省 image/jpeg；data 为 data URL 时忽略，以其自带类型为准",
    )
    source_turn_index: TurnIndex | None = Field(
        None, description="图片来源轮次，从 0 开始；用于多轮上下文标记"
    )


class Turn(RequestModel):
    """One earlier turn of the conversation."""

    query: LongText = Field(description="用户文字，至多 20000 个字符")
    answer: LongText = Field(description="助手文字，至多 20000 个字符")
    turn_index: TurnIndex = Field(description="轮次，从 0 开始")


class PhotoRequest(RequestModel):
    """Pictures, a question, earlier turns: what `observe` takes."""

    # How many there may be is a setting, and too many are an `invalid_image`.
    images: list[ImageItem] = Field(
        min_length=1, description="图片，至少一张，至多为服务配置的 max_images（默认 4）张"
    )
    question: Question = Field(
        DEFAULT_QUESTION, description=f"观察重点或问题，至多 2000 个字符；空为“{DEFAULT_QUESTION}”"
    )
    history: list[Turn] = Field(
        default_factory=list, max_length=MAX_HISTORY_TURNS, description="最近六轮以内的用户问题和助手回答"
    )


class AnswerRequest(PhotoRequest):
    """What `answer` takes."""

    enable_thinking: bool | None = Field(
        None, description="是否让模型思考，单次覆盖服务的设置；null 为按服务设置"
    )


class SearchingRequest(AnswerRequest):
    """What `agentic` and `hybrid` take. Without `scope` (not in `model_fields_set`) the mode chooses one."""

    scope: str = Field(
        "",
        description="检索范围，full / usual / usual_plus_law；缺省 full，没有配置 full 时为服务的 active_scope",
        json_schema_extra=without_default,
    )
    max_search_rounds: Annotated[int, Field(ge=1, le=MAX_SEARCH_ROUNDS)] | None = Field(
        None, description="最多检索轮数，1..3；null 为按服务设置"
    )
    topk: TopK | None = Field(None, description="每轮检索候选数，1..200；null 为按服务设置")


def history_messages(history: Sequence[Turn]) -> list[dict[str, Any]]:
    """The earlier turns in the order given, as alternating user and assistant messages of plain text."""
    messages: list[dict[str, Any]] = []
    for turn in history:
        messages.append({"role": "user", "content": turn.query or _NOTHING_SAID})
        messages.append({"role": "assistant", "content": turn.answer or _NOTHING_SAID})
    return messages


def history_receipt(history: Sequence[Turn]) -> dict[str, int]:
    """`{"history_turn_count": n}` for an answer; nothing when no earlier turn was given."""
    return {"history_turn_count": len(history)} if history else {}
