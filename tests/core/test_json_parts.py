"""JSON bodies that hold long strings as slices."""

from __future__ import annotations

import json
import tracemalloc
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cg_rag.core.json_parts import Slices, encode_body

BASE64 = st.text("ABab01+/=", max_size=20).map(str.encode)


def test_a_picture_of_ten_megabytes_is_not_copied() -> None:
    picture = (b"A" * 5_000_000, b"B" * 5_000_000)
    url = Slices((b"data:image/jpeg;base64,", *picture))
    body = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}
    tracemalloc.start()
    try:
        encoded = encode_body(body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 * 1024
    assert sum(slice_ is part for slice_ in encoded.slices for part in picture) == 2
    assert encoded.length == sum(map(len, encoded.slices))
    sent = json.loads(b"".join(encoded.slices))
    assert len(sent["messages"][0]["content"][0]["image_url"]["url"]) == 10_000_023


@pytest.mark.parametrize("part", [b'"', b"a\\", b"a\nb"])
def test_bytes_that_could_leave_their_string_are_refused(part: bytes) -> None:
    with pytest.raises(ValueError, match="quote"):
        Slices((b"ok", part))


def test_what_json_cannot_say_is_a_type_error() -> None:
    for value in ("\ud800", 2**70, object()):
        with pytest.raises(TypeError):
            encode_body({"a": value})


def test_read_only_mappings_are_written_as_objects() -> None:
    assert encode_body(MappingProxyType({"a": MappingProxyType({"b": (1,)})})).slices == (b'{"a":{"b":[1]}}',)


TREES = st.recursive(
    st.text(max_size=5)
    | st.integers(0, 9)
    | st.none()
    | st.lists(BASE64, max_size=3).map(lambda p: Slices(tuple(p))),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


def plain(value: Any) -> Any:
    if isinstance(value, Slices):
        return b"".join(value.parts).decode()
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


@settings(max_examples=200)
@given(st.dictionaries(st.text(max_size=3), TREES, max_size=4))
def test_the_slices_joined_are_the_same_json(body: dict[str, Any]) -> None:
    encoded = encode_body(body)
    text = b"".join(encoded.slices)
    assert json.loads(text) == plain(body)
    assert encoded.length == len(text)
