"""Puts tool calls together from the pieces in which servers stream them. No I/O.

Rule: a call is found by its `index`; where that is missing or shared by several, by what servers do instead. The
first id and the first name that are not empty hold, arguments are concatenated as text and not parsed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

MAX_TOOL_CALLS: Final = 64  # in one answer; the modes carry out three
_MAX_LOOKS: Final = 64  # at the arguments of one call: each look reads them from their beginning


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`arguments` is what the model wrote, JSON or not; `name` may be that of no tool."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of the `index`-th call, from 0; `id` and `name` are those known so far."""

    index: int
    id: str
    name: str
    arguments: str


class TooManyToolCalls(Exception):
    """An answer asks for more than MAX_TOOL_CALLS calls."""


@dataclass(slots=True)
class _Call:
    position: int
    index: int | None
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    looks: int = 0

    def is_whole(self) -> bool:
        """Whether a name and a complete JSON object are there, so that what follows may be another call."""
        self.looks += 1
        if not self.name or self.looks > _MAX_LOOKS:
            return False
        try:
            return isinstance(orjson.loads("".join(self.arguments)), dict)
        except orjson.JSONDecodeError:
            return False


class ToolCallAssembler:
    """`add` the entries of `tool_calls` as they come, whatever they are; `calls` at the end."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []

    def add(self, entries: Any) -> list[ToolCallDelta]:
        """The pieces in these entries of one delta; what is no entry is passed over. Raises TooManyToolCalls."""
        if not isinstance(entries, list):
            return []
        return [self._add(entry) for entry in entries if isinstance(entry, dict)]

    def calls(self) -> tuple[ToolCall, ...]:
        """The calls in order of appearance; one without an id gets one, because its result must name it."""
        return tuple(
            ToolCall(call.id or f"call_{number}", call.name, "".join(call.arguments))
            for number, call in enumerate(self._calls)
        )

    def _add(self, entry: dict[str, Any]) -> ToolCallDelta:
        function = entry.get("function")
        function = function if isinstance(function, dict) else {}
        identity, name = _text(entry.get("id")), _text(function.get("name"))
        call = self._find(_index(entry.get("index")), identity, name)
        call.id = call.id or identity
        call.name = call.name or name
        arguments = _arguments(function.get("arguments"))
        call.arguments.append(arguments)
        return ToolCallDelta(call.position, call.id, call.name, arguments)

    def _find(self, index: int | None, identity: str, name: str) -> _Call:
        call = self._known(index, identity, name)
        if call is not None and not _is_another(call, identity, name):
            return call
        if len(self._calls) >= MAX_TOOL_CALLS:
            raise TooManyToolCalls
        self._calls.append(_Call(len(self._calls), index))
        return self._calls[-1]

    def _known(self, index: int | None, identity: str, name: str) -> _Call | None:
        if index is not None:
            # The last one: several calls under one index follow each other.
            return _last(call for call in self._calls if call.index == index)
        same = _last(call for call in self._calls if identity and call.id == identity)
        if same is not None or not self._calls:
            return same
        last = self._calls[-1]
        starts_anew = name and last.name and ((identity and last.id) or last.is_whole())
        return None if starts_anew else last


def _last(calls: Iterable[_Call]) -> _Call | None:
    found = None
    for call in calls:
        found = call
    return found


def _is_another(call: _Call, identity: str, name: str) -> bool:
    # Older ollama numbers every call 0, and older vLLM gives every piece of a call another id but only the first
    # a name: a new id with a name after complete arguments is another call, a new id alone is not.
    return bool(identity and name and call.id and call.id != identity and call.is_whole())


def _index(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _arguments(value: Any) -> str:
    if not isinstance(value, dict):
        return _text(value)
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # nested deeper than it writes, though not than it reads
        return ""
