"""What a mode yields while it works, and how an interface without a stream takes only the end of it.

Rule: a mode is one async generator of events, and its last event is `Final`. A JSON answer is the payload of that
event, so it cannot differ from what a stream ends with. A mode that is left before its end is closed at once, so it
closes in turn whatever generators it iterates over (contextlib.aclosing).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Progress:
    """A stage began (`running`) or ended (`done`); `label` is Chinese and may be shown as it is.

    `heartbeat` is set by the stream alone: nothing new happened, but the work goes on.
    """

    stage: str
    label: str
    status: Literal["running", "done"]
    heartbeat: bool = False


@dataclass(frozen=True, slots=True)
class Retrieval:
    """Articles were found. `payload`: num_docs, retrieval_docs, cache and, in rounds, round."""

    payload: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of text. Those of channel `answer` since the last `AnswerReset`, joined, are the answer."""

    channel: Literal["answer", "reasoning"]
    text: str


@dataclass(frozen=True, slots=True)
class Trace:
    """A node of the pipeline for auditors; all three texts are public."""

    name: str
    status: str
    summary: str


@dataclass(frozen=True, slots=True)
class Agent:
    """A step that the model decided on: observation, search, retry or final."""

    event_id: str
    kind: Literal["observation", "search", "retry", "final"]
    status: str
    label: str


@dataclass(frozen=True, slots=True)
class AnswerReset:
    """All answer text so far is void; it is sent again from its beginning."""

    reason: str


@dataclass(frozen=True, slots=True)
class Final:
    """The whole answer. `payload` is the JSON body of the endpoint."""

    payload: dict[str, Any]


Event = Progress | Retrieval | Token | Trace | Agent | AnswerReset | Final


async def drain(
    events: AsyncIterator[Event], watch: Callable[[Event], None] = lambda event: None
) -> dict[str, Any]:
    """Run a mode to its end and return the payload of its `Final`. Raises what the mode raises.

    `watch` sees what comes before that, and must return at once."""
    try:
        async for event in events:
            if isinstance(event, Final):
                return event.payload
            watch(event)
    finally:
        await close(events)
    raise RuntimeError("a mode ended without Final")


async def close(events: AsyncIterator[Event]) -> None:
    """End a mode where it stands: slots and connections are given back before this returns."""
    if isinstance(events, AsyncGenerator):
        await events.aclose()
