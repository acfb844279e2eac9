"""Tool calls out of the pieces in which servers send them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cg_rag.core.tool_calls import MAX_TOOL_CALLS, ToolCall, ToolCallAssembler, TooManyToolCalls


def piece(arguments: Any = None, name: Any = None, **entry: Any) -> dict[str, Any]:
    return {**entry, "function": {"name": name, "arguments": arguments}}


def assembled(*entries: Any) -> list[tuple[str, str, str]]:
    assembler = ToolCallAssembler()
    for entry in entries:
        assembler.add([entry])
    return [(call.id, call.name, call.arguments) for call in assembler.calls()]


ONE = [("c1", "look", '{"n":1}')]
TWO = [("c1", "look", '{"n":1}'), ("c2", "look", '{"n":2}')]

FORMS: dict[str, tuple[list[Any], list[tuple[str, str, str]]]] = {
    "in one piece": ([piece('{"n":1}', "look", index=0, id="c1")], ONE),
    "id and name come later": (
        [piece('{"n"', index=0), piece(":1}", index=0), piece(None, "look", index=0, id="c1")],
        ONE,
    ),
    "empty id and name later": (
        [piece("", "look", index=0, id="c1"), piece('{"n":1}', "", index=0, id="")],
        ONE,
    ),
    "id and name repeated": (
        [piece('{"n"', "look", index=0, id="c1"), piece(":1}", "look", index=0, id="c1")],
        ONE,
    ),
    "another id with every piece": (
        [piece("", "look", index=0, id="c1"), piece('{"n":', index=0, id="x"), piece("1}", index=0, id="y")],
        ONE,
    ),
    "no index, id only at first": (
        [piece('{"n":', "look", id="c1"), piece("1}"), piece('{"n":2}', "look", id="c2")],
        TWO,
    ),
    "no index, id with every piece": (
        [
            piece('{"n"', "look", id="c1"),
            piece('{"n":2', "look", id="c2"),
            piece(":1}", id="c1"),
            piece("}", id="c2"),
        ],
        TWO,
    ),
    "no index and no id": (
        [piece('{"n":', "look"), piece("1}"), piece('{"n":2}', "look")],
        [("call_0", "look", '{"n":1}'), ("call_1", "look", '{"n":2}')],
    ),
    "every call under index 0": (
        [piece('{"n":1}', "look", index=0, id="c1"), piece('{"n":2}', "look", index=0, id="c2")],
        TWO,
    ),
    "interleaved": (
        [
            piece('{"n"', "look", index=0, id="c1"),
            piece('{"n":', "look", index=1, id="c2"),
            piece(":1}", index=0),
            piece("2}", index=1),
        ],
        TWO,
    ),
    "arguments as an object": ([piece({"n": 1}, "look", index=0, id="c1")], ONE),
    "index missing later": ([piece('{"n":', "look", index=0, id="c1"), piece("1}")], ONE),
    "broken arguments stay": ([piece('{"n":', "look", index=0, id="c1")], [("c1", "look", '{"n":')]),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_form_found_in_the_wild_is_assembled(name: str) -> None:
    entries, expected = FORMS[name]
    assert assembled(*entries) == expected


def test_a_piece_says_what_is_known_so_far() -> None:
    assembler = ToolCallAssembler()
    assembler.add([piece("{", "look", index=0, id="c1")])
    (delta,) = assembler.add([piece("}", index=0)])
    assert (delta.index, delta.id, delta.name, delta.arguments) == (0, "c1", "look", "}")


def test_more_calls_than_anybody_makes_are_refused() -> None:
    assembler = ToolCallAssembler()
    entries = [piece("{}", "look", index=index, id=str(index)) for index in range(MAX_TOOL_CALLS)]
    assembler.add(entries)
    with pytest.raises(TooManyToolCalls):
        assembler.add([piece("{}", "look", index=MAX_TOOL_CALLS)])


def test_arguments_nested_too_deeply_to_be_written_are_empty() -> None:
    nested: Any = {}
    for _ in range(500):
        nested = {"a": nested}
    assert assembled(piece(nested, "look", id="c1")) == [("c1", "look", "")]


VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-1, 2)
    | st.sampled_from(["", "a", "b", "{}", '{"n":'])
    | st.floats()
)
ENTRIES = st.fixed_dictionaries(
    {},
    optional={
        "index": VALUES,
        "id": VALUES,
        "function": VALUES | st.dictionaries(st.sampled_from(["name", "arguments"]), VALUES, max_size=2),
    },
)


@settings(max_examples=200)
@given(st.lists(ENTRIES | VALUES, max_size=20))
def test_any_entries_make_calls_that_can_be_answered(entries: list[Any]) -> None:
    assembler = ToolCallAssembler()
    pieces = assembler.add(entries)
    calls = assembler.calls()
    assert all(isinstance(call, ToolCall) and call.id for call in calls)
    for index, call in enumerate(calls):
        assert call.arguments == "".join(piece.arguments for piece in pieces if piece.index == index)
