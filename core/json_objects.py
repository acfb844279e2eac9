"""Finds the JSON objects in what a model wrote: in fences, in prose, with a comma too many. No I/O, never raises."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from typing import Any, Final

_MAX_OBJECTS: Final = 8
_TRAILING_COMMA: Final = re.compile(r",(\s*[}\]])")


def find_objects(text: str, names: Collection[str]) -> Iterator[dict[str, Any]]:
    """Those that have one of these keys, in order; the first few braces are tried."""
    decoder = json.JSONDecoder(strict=False)
    for candidate in (text, _TRAILING_COMMA.sub(r"\1", text)):
        place = -1
        for _ in range(_MAX_OBJECTS):
            place = candidate.find("{", place + 1)
            if place < 0:
                break
            try:
                value, end = decoder.raw_decode(candidate, place)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict) and not value.keys().isdisjoint(names):
                yield value
            place = end - 1
