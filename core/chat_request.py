"""What is asked of a chat model, and the request body that says so to one provider. No I/O.

Rule: thinking and structured output are switched by core/providers.py alone; `extra` is the caller's last word.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from cg_rag.core.providers import (
    Provider,
    StructuredOutput,
    ThinkingControl,
    structured_fields,
    thinking_fields,
    without_keywords,
)

Feature = Literal["structured_output", "stream_options"]

_ABOUT_STREAM_OPTIONS: Final = re.compile(r"stream_options|include_usage", re.I)
_ABOUT_STRUCTURE: Final = re.compile(
    r"response[_ ]format|json_schema|json_object|json mode|structured_output|structured output|guided_json"
    r"|guided decoding|grammar",
    re.I,
)
_ABOUT_SOMETHING_ELSE: Final = re.compile(
    r"context|too (?:long|large)|token|length|api[ _-]?key|auth|credential|model|content|inspection|safety|policy|quota"
    r"|balance|billing|image|must contain the word",
    re.I,
)
# dashscope and openai: a fault of this one prompt, and no reason to do without from here on.
_LACKS_THE_WORD: Final = re.compile(r"must contain the word", re.I)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """`messages` as the API takes them; long strings in them may be `Slices` of core/json_parts.py.

    `enable_thinking` None is the upstream's setting. `schema` is the JSON schema wanted for the answer: only asked
    for, never checked here, and the prompt must hold the word JSON and an example, because a server may know no
    more than a JSON mode. `extra` goes into the body last.
    """

    messages: Sequence[Mapping[str, Any]]
    enable_thinking: bool | None = None
    schema: Mapping[str, Any] | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    max_tokens: int | None = None
    temperature: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wording:
    """How one request is put to one upstream."""

    provider: Provider
    model: str
    thinking_control: ThinkingControl
    thinking: bool
    streamed: bool
    structured_output: StructuredOutput
    include_usage: bool


def build_body(request: ChatRequest, wording: Wording) -> dict[str, Any]:
    """The request body, for `encode_body`."""
    body: dict[str, Any] = {"model": wording.model, "messages": list(request.messages)}
    body["stream"] = wording.streamed
    if wording.streamed and wording.include_usage:
        body["stream_options"] = {"include_usage": True}
    for name in ("max_tokens", "temperature"):
        if getattr(request, name) is not None:
            body[name] = getattr(request, name)
    if request.tools:
        body["tools"] = list(request.tools)
    body |= thinking_fields(wording.thinking_control, wording.thinking)
    if request.schema is not None:
        schema = without_keywords(request.schema, wording.provider.schema_lacks)
        body |= structured_fields(wording.structured_output, schema)
    return body | dict(request.extra)


def may_be_structure(detail: str, wording: Wording) -> bool:
    """Whether a refusal that names no feature may mean the constraint: it was asked for, and nothing else is blamed."""
    return wording.structured_output != "none" and not _ABOUT_SOMETHING_ELSE.search(detail)


def refused_feature(detail: str) -> Feature | None:
    """The part of a request that a 400 or 422 complains of and that can be left out."""
    if _ABOUT_STREAM_OPTIONS.search(detail):
        return "stream_options"
    if _ABOUT_STRUCTURE.search(detail) and not _LACKS_THE_WORD.search(detail):
        return "structured_output"
    return None
