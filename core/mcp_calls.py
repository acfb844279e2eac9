"""The MCP calls that are in flight, by whose they are: what a cancellation is looked up in. No SDK, no I/O.

Rule: a call is in here no longer than it runs, and a call without a name is in here not at all.
"""

from __future__ import annotations

from typing import Protocol

Key = tuple[str, ...]
"""Whose call it is: see `call_key`."""


class Cancellable(Protocol):
    def cancel(self) -> None: ...


class CallsInFlight:
    """A client may give one id to two calls at once, although it must not; then both are meant by it."""

    def __init__(self) -> None:
        self._calls: dict[Key, tuple[Cancellable, ...]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._calls.values()))

    def add(self, key: Key | None, call: Cancellable) -> None:
        """`key` None: nobody can cancel this call."""
        if key is not None:
            self._calls[key] = (*self._calls.get(key, ()), call)

    def remove(self, key: Key | None, call: Cancellable) -> None:
        if key is None:
            return
        others = tuple(other for other in self._calls[key] if other is not call)
        if others:
            self._calls[key] = others
        else:
            del self._calls[key]

    def cancel(self, key: Key) -> bool:
        """Whether there was something to cancel."""
        calls = self._calls.get(key, ())
        for call in calls:
            call.cancel()
        return bool(calls)
