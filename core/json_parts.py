"""JSON whose long strings stay the bytes that they are: a body as slices, with its length, and nothing joined.

Rule: a picture is held once. Its bytes go from where they are to the socket; only the JSON around them is made.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class Slices:
    """A string of a JSON text, given as the bytes between its quotes: printable ASCII such as Base64.

    Raises ValueError for a quote, a backslash or a line end, with which it could leave its string.
    """

    parts: tuple[bytes, ...]

    def __post_init__(self) -> None:
        for part in self.parts:
            if b'"' in part or b"\\" in part or b"\n" in part:
                raise ValueError("a slice of a JSON string holds a quote, a backslash or a line end")


@dataclass(frozen=True, slots=True)
class EncodedBody:
    """`slices` in order are the JSON text, `length` the number of their bytes."""

    slices: tuple[bytes, ...]
    length: int


def encode_body(body: Mapping[str, Any]) -> EncodedBody:
    """`body` as JSON in UTF-8; each `Slices` in it becomes a string without being copied.

    Raises TypeError for what JSON cannot say: a lone surrogate, an integer beyond 64 bit, another type.
    """
    # Random, so that no text of a caller's can be taken for a placeholder.
    token = secrets.token_hex(16)
    leaves: list[Slices] = []

    def place(value: Any) -> Any:
        if isinstance(value, Slices):
            leaves.append(value)
            return f"{token}:{len(leaves) - 1}"
        if isinstance(value, Mapping):
            return dict(value)
        raise TypeError(f"{type(value).__name__} has no JSON form")

    text = orjson.dumps(dict(body), default=place, option=orjson.OPT_PASSTHROUGH_DATACLASS)
    pieces = re.split(rb"%b:(\d+)" % token.encode(), text) if leaves else [text]
    slices: list[bytes] = []
    for number, piece in enumerate(pieces):
        slices += leaves[int(piece)].parts if number % 2 else (piece,)
    return EncodedBody(tuple(slices), sum(map(len, slices)))
