"""What a text model wants to look up: from tool calls, from a JSON plan, or from calls written out as text. No I/O.

Rule: a question is taken wherever it can be recognised with certainty, because servers and models differ in how they
say it; what cannot be is answered with a sentence that says how to ask. Nothing here is executed but a search.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cg_rag.core.evidence import Evidence
from cg_rag.core.tool_calls import ToolCall
from cg_rag.core.upstream_errors import UpstreamFailed, UpstreamRefused

TOOL_NAME: Final = "search_regulations"
MAX_CALLS: Final = 3  # docs/vision.md: 每轮最多 3 次工具调用
MAX_QUESTION_CHARACTERS: Final = 200  # of a model's question; what is longer is no question but a paragraph
MAX_TOLD_CHARACTERS: Final = 1200  # of one article in a tool result
NOTHING_FOUND: Final = "没有检索到相关条文。"

SEARCH_TOOL: Final[Mapping[str, Any]] = {
    "type": "function",
    "function": {
        "name": TOOL_NAME,
        "description": "按一个问题检索施工安全法规与标准条文，返回带编号〔n〕的条文。一次一个问题，写明设备或部位与违规情形。",
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "检索问题，如：脚手架立杆基础积水 排水措施"}
            },
            "required": ["query"],
        },
    },
}
PLAN_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {"queries": {"type": "array", "items": {"type": "string"}, "maxItems": MAX_CALLS}},
    "required": ["queries"],
    "additionalProperties": False,
}

# Keys that models write for `query` and `queries`, and those that hold one of them inside.
_NAMES: Final = ("queries", "query", "questions", "question", "keywords", "检索问题", "问题", "q")
_HOLDERS: Final = ("arguments", "parameters", "function", "input", "tool_calls", "search_plan", "plan")
_CUT_QUERY: Final = re.compile(r'"(?:query|question|q)"\s*:\s*"((?:[^"\\]|\\.){2,400})')
_BARE: Final = re.compile(r"[^{}\[\]<>\u3400-\u9fff]*[\u3400-\u9fff][^{}\[\]<>]*")
_MAX_TEXT: Final = 20_000
_MAX_VALUES: Final = 64
_MAX_DEPTH: Final = 8
_ABOUT_TOOLS: Final = re.compile(r"\btools?\b|tool[_ -]?(?:use|call|choice|parser)|function[_ -]?call", re.I)
_DECODER: Final = json.JSONDecoder()


@dataclass(slots=True)
class ToolSupport:
    """What is known about one upstream: None until it has called a tool, or has shown that it knows none."""

    known: bool | None = None


def read_queries(text: str) -> list[str]:
    """The questions in the JSON of a text, whatever stands around it; empty when there is none. Never raises."""
    found: list[str] = []
    for value in _json_values(text[:_MAX_TEXT]):
        found += _queries_in(value, 0)
    return list(dict.fromkeys(found))


def read_call(call: ToolCall) -> tuple[str, str]:
    """(question, ""), or ("", what to tell the model)."""
    if not is_search(call.name):
        return "", f"没有名为“{call.name[:40]}”的工具，只有 {TOOL_NAME}(query)。"
    written = call.arguments.strip()
    queries = read_queries(written) or [tidy(text) for text in _CUT_QUERY.findall(written)]
    if not queries and _BARE.fullmatch(written):
        queries = [tidy(written.strip("\"'"))]  # the question in place of an object
    if not queries or not queries[0]:
        return "", '参数不是合法的 JSON 对象，须为 {"query": "一个检索问题"}。'
    return queries[0], ""


def is_search(name: str) -> bool:
    return name.strip().lower().removeprefix("functions.") == TOOL_NAME


def tidy(question: str) -> str:
    """One line without blanks around, bounded, and without halves of surrogate pairs, which no request can carry."""
    whole = question.encode("utf-8", "ignore").decode()
    return " ".join(whole.split())[:MAX_QUESTION_CHARACTERS].strip()


def _json_values(text: str) -> Iterator[Any]:
    """Every object or array of a text that is not inside of another one."""
    place = 0
    for _ in range(_MAX_VALUES):
        starts = [at for at in (text.find("{", place), text.find("[", place)) if at >= 0]
        if not starts:
            return
        try:
            value, place = _DECODER.raw_decode(text, min(starts))
        except (ValueError, RecursionError):
            place = min(starts) + 1
            continue
        yield value


def _queries_in(value: Any, depth: int = 0) -> Iterator[str]:
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, str):
        yield from filter(None, (tidy(value),))
    elif isinstance(value, list):
        for item in value[:_MAX_VALUES]:
            yield from _queries_in(item, depth + 1)
    elif isinstance(value, dict):
        yield from _queries_of(value, depth)


def _queries_of(value: Mapping[str, Any], depth: int) -> Iterator[str]:
    named = next((value[name] for name in _NAMES if name in value), None)
    if named is not None:
        yield from _queries_in(named, depth + 1)
        return
    for name in _HOLDERS:
        held = value.get(name)
        # Arguments are JSON inside of JSON in some servers' texts.
        yield from read_queries(held) if isinstance(held, str) else _queries_in(held, depth + 1)


def refuses_tools(error: BaseException | None, is_first: bool) -> bool:
    """Whether a call failed because the server or its model knows no tools. `is_first`: no call with tools has been
    answered so far, so a refusal that names nothing may mean them too."""
    if isinstance(error, UpstreamFailed):
        return error.status in (500, 501) and bool(
            _ABOUT_TOOLS.search(error.detail)
        )  # llama.cpp without --jinja
    if not isinstance(error, UpstreamRefused) or error.status not in (400, 404, 422):
        return False
    if _ABOUT_TOOLS.search(error.detail):
        return True
    return is_first and error.status != 404 and not error.detail.strip()


def evidence_text(found: Sequence[Evidence], told: set[int]) -> str:
    """One question's articles as the model reads them; those in `told` were written out before."""
    if not found:
        return NOTHING_FOUND
    parts = []
    for entry in found:
        head = f"〔{entry.number}〕 {entry.law_name} {entry.article_number}".rstrip()
        parts.append(
            f"{head}（内容见前）" if entry.number in told else f"{head}\n{_shortened(entry.contents)}"
        )
        told.add(entry.number)
    return "\n\n".join(parts)


def _shortened(contents: str) -> str:
    return contents if len(contents) <= MAX_TOLD_CHARACTERS else f"{contents[:MAX_TOLD_CHARACTERS]}……（节略）"
