"""What calls of embedding and rerank endpoints take, as each kind of server says it."""

from __future__ import annotations

from typing import Any

import pytest

from cg_rag.core.json_call import usage_of

TOLD: dict[str, tuple[Any, int | None]] = {
    "OpenAI, vLLM": ({"data": [], "usage": {"prompt_tokens": 9, "total_tokens": 9}}, 9),
    "Jina": ({"results": [], "usage": {"total_tokens": 815}}, 815),
    "DashScope": ({"output": {"results": []}, "usage": {"total_tokens": 79, "input_tokens": 79}}, 79),
    "Cohere": ({"meta": {"billed_units": {"search_units": 1}, "tokens": {"input_tokens": 7}}}, 7),
    "SiliconFlow": ({"meta": {"tokens": {"input_tokens": 28, "output_tokens": 0}}}, 28),
    "Xinference": ({"results": [], "meta": {"tokens": None}}, None),
    "TEI": ([{"index": 0, "score": 0.5}], None),
    "only billed units": ({"meta": {"billed_units": {"search_units": 1}}}, None),
    "zero": ({"usage": {"prompt_tokens": 0, "total_tokens": 0}}, None),
    "less than zero": ({"usage": {"prompt_tokens": -5}}, None),
    "no integer": ({"usage": {"prompt_tokens": True, "input_tokens": "9", "total_tokens": 9.5}}, None),
    "more than a counter holds": ({"usage": {"prompt_tokens": 10**30}}, None),
    "no object": ({"usage": [1], "meta": "x"}, None),
    "nothing": (None, None),
}


@pytest.mark.parametrize(("told", "tokens"), TOLD.values(), ids=TOLD.keys())
def test_tokens_of_the_input_are_found_where_each_server_writes_them(told: Any, tokens: int | None) -> None:
    assert usage_of(told) == ({} if tokens is None else {"prompt_tokens": tokens})
