"""The one place that knows how servers of chat completions differ: thinking, structured output, usage.

Rule: a provider is a row of `PROVIDERS`, never a branch elsewhere. What a row says is a default; the settings
`thinking_control` and `structured_output` overrule it, and what a server refuses is stepped down from once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args
from urllib.parse import urlsplit

ProviderName = Literal[
    "auto", "openai", "deepseek", "dashscope", "vllm", "sglang", "ollama", "llamacpp", "xinference"
]
ThinkingControl = Literal[
    "none", "enable_thinking", "thinking_type", "chat_template_kwargs", "reasoning_effort"
]
StructuredOutput = Literal[
    "none", "json_object", "json_schema", "structured_outputs", "guided_json", "grammar"
]

PROVIDER_NAMES: Final[tuple[str, ...]] = get_args(ProviderName)

# Refused by OpenAI's strict mode and by xgrammar, which sglang and vLLM use; uniqueness is checked locally anyway.
_STRICT_LACKS: Final = frozenset({"uniqueItems"})


@dataclass(frozen=True, slots=True)
class Provider:
    """How one kind of server is talked to.

    `thinking_needs_stream`: thinking is refused unless streamed. `structures_thoughts`: structured output may be
    asked for while thinking is on. `answers_in_thinking`: with thinking off, the whole answer may come in the
    field for thinking. `wants_thoughts_back`: in a turn with tools the thinking goes back with the message.
    `schema_lacks`: keywords that are taken out of a schema.
    """

    name: ProviderName
    thinking_control: ThinkingControl
    structured_output: StructuredOutput
    thinking_needs_stream: bool = False
    structures_thoughts: bool = True
    answers_in_thinking: bool = False
    wants_thoughts_back: bool = False
    schema_lacks: frozenset[str] = frozenset()


# From the vendors' documentation and issue trackers. `openai` is also every server that we know nothing about.
PROVIDERS: Final[Mapping[str, Provider]] = {
    row.name: row
    for row in (
        Provider("openai", "none", "json_schema", schema_lacks=_STRICT_LACKS),
        # Thinks unless told otherwise. JSON mode is all it has; a forced tool_choice is 400 while it thinks.
        Provider("deepseek", "thinking_type", "json_object", wants_thoughts_back=True),
        Provider(
            "dashscope",
            "enable_thinking",
            "json_schema",
            thinking_needs_stream=True,
            structures_thoughts=False,
            schema_lacks=_STRICT_LACKS,
        ),
        # guided_json is gone since 0.12. Some of its reasoning parsers take an answer without </think> for thinking.
        Provider(
            "vllm",
            "chat_template_kwargs",
            "json_schema",
            answers_in_thinking=True,
            schema_lacks=_STRICT_LACKS,
        ),
        Provider("sglang", "chat_template_kwargs", "json_schema", schema_lacks=_STRICT_LACKS),
        Provider("ollama", "reasoning_effort", "json_schema", structures_thoughts=False),
        # A grammar can be applied inside <think>, which leaves no answer at all.
        Provider("llamacpp", "chat_template_kwargs", "json_schema", structures_thoughts=False),
        Provider("xinference", "enable_thinking", "json_schema", schema_lacks=_STRICT_LACKS),
    )
}

_HOSTS: Final[Mapping[str, str]] = {
    "api.openai.com": "openai",
    "api.deepseek.com": "deepseek",
    "dashscope.aliyuncs.com": "dashscope",
    "dashscope-intl.aliyuncs.com": "dashscope",
    "dashscope-us.aliyuncs.com": "dashscope",
}
# The ports that these servers take when none is given; 8000 and 8080 are everybody's.
_PORTS: Final[Mapping[int, str]] = {11434: "ollama", 30000: "sglang", 9997: "xinference"}

_WEAKER: Final[Mapping[StructuredOutput, StructuredOutput]] = {
    "json_schema": "json_object",
    "structured_outputs": "json_schema",
    "guided_json": "json_schema",
    "grammar": "json_schema",
    "json_object": "none",
}


def find_provider(name: ProviderName, endpoint: str) -> Provider:
    """The row of `name`; for `auto` the one that host or port of the endpoint tell, else `openai`."""
    if name != "auto":
        return PROVIDERS[name]
    url = urlsplit(endpoint)
    guessed = _HOSTS.get(url.hostname or "") or _PORTS.get(url.port or 0) or "openai"
    return PROVIDERS[guessed]


def thinking_fields(control: ThinkingControl, enabled: bool) -> dict[str, Any]:
    """What goes into the request body to switch thinking. Off is said explicitly: several think by default."""
    match control:
        case "enable_thinking":
            return {"enable_thinking": enabled}
        case "thinking_type":
            return {"thinking": {"type": "enabled" if enabled else "disabled"}}
        case "chat_template_kwargs":
            return {"chat_template_kwargs": {"enable_thinking": enabled}}
        case "reasoning_effort":
            return {"reasoning_effort": "medium" if enabled else "none"}
        case "none":
            return {}


def structured_fields(mode: StructuredOutput, schema: Mapping[str, Any]) -> dict[str, Any]:
    """What goes into the request body so that the answer obeys `schema`, as far as `mode` can say it."""
    match mode:
        case "json_schema":
            wanted = {"name": "answer", "strict": True, "schema": schema}
            return {"response_format": {"type": "json_schema", "json_schema": wanted}}
        case "structured_outputs":
            return {"structured_outputs": {"json": schema}}
        case "guided_json":
            return {"guided_json": schema}
        case "grammar":
            return {"json_schema": schema}  # llama.cpp makes its grammar of it
        case "json_object":
            return {"response_format": {"type": "json_object"}}
        case "none":
            return {}


def weaker(mode: StructuredOutput) -> StructuredOutput | None:
    """What to try once a server has refused `mode`; None when there is nothing weaker."""
    return _WEAKER.get(mode)


def without_keywords(schema: Any, keywords: frozenset[str]) -> Any:
    """`schema` without these JSON Schema keywords, at every depth."""
    if isinstance(schema, Mapping):
        return {
            key: without_keywords(value, keywords) for key, value in schema.items() if key not in keywords
        }
    if isinstance(schema, (list, tuple)):
        return [without_keywords(item, keywords) for item in schema]
    return schema
