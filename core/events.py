"""What a mode yields while it works, and how an interface without a stream takes only the end of it.

Rule: a mode is one async generator of events, and its last event is `Final`. A JSON answer is the payload of that
event, so it cannot differ from what a stream would end with.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Progress:
    """A stage began (`running`) or ended (`done`); `label` is Chinese and may be shown as it is."""

    stage: str
    label: str
    status: Literal["running", "done"]


@dataclass(frozen=True, slots=True)
class Final:
    """The whole answer. `payload` is the JSON body of the endpoint."""

    payload: dict[str, Any]


Event = Progress | Final


async def drain(events: AsyncIterator[Event]) -> dict[str, Any]:
    """Run a mode to its end and return the payload of its `Final`. Raises what the mode raises."""
    async for event in events:
        if isinstance(event, Final):
            return event.payload
    raise RuntimeError("a mode ended without Final")
