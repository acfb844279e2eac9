"""One of the processes that serve the same port, as it sees itself, and its line to the process that started it.

Rule: the line is all that ties a worker to the others. When it breaks, the process that started it is gone, and the
worker ends as if told to: no worker outlives its service and keeps the port.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import orjson

from cg_rag.core.roster import Roster

LISTENING = b"listening"
STOP = b"stop"
STOP_AT_ONCE = b"stop at once"
TELL = b"tell:"
# What one worker may tell the others at a time; the longest that is told is the name of an MCP call.
MAX_MESSAGE_BYTES = 16 * 1024


class Link:
    """A worker's end of the line: packets, each one message. `line` is a SOCK_SEQPACKET socket."""

    def __init__(self, line: socket.socket) -> None:
        line.setblocking(False)
        self._line = line
        self._stop: Callable[[bool], None] | None = None
        self._hear: Callable[[list[str]], object] | None = None

    def follow(self, stop: Callable[[bool], None]) -> None:
        """Call `stop(at_once)` in the running loop whenever the service is to end."""
        self._stop = stop
        asyncio.get_running_loop().add_reader(self._line, self._read)

    def hear(self, receiver: Callable[[list[str]], object]) -> None:
        """Call `receiver` with what another worker told."""
        self._hear = receiver

    def tell(self, words: list[str]) -> None:
        """Tell all other workers. Nobody waits: what finds no room in the line, or is too long, is lost."""
        message = TELL + orjson.dumps(words)
        if len(message) <= MAX_MESSAGE_BYTES:
            self._send(message)

    def say_listening(self) -> None:
        self._send(LISTENING)

    def _send(self, message: bytes) -> None:
        with suppress(OSError):
            self._line.send(message)

    def _read(self) -> None:
        try:
            message = self._line.recv(MAX_MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if message.startswith(TELL):
            if self._hear is not None:
                self._hear(orjson.loads(message.removeprefix(TELL)))
            return
        if not message:
            asyncio.get_running_loop().remove_reader(self._line)
        if self._stop is not None:
            self._stop(message == STOP_AT_ONCE)


@dataclass(frozen=True, slots=True)
class Worker:
    """`number` counts from 1 to `count`; `restarts` says how often this number had to be started again. `link`
    and `roster` are None for a service of one process."""

    number: int = 1
    count: int = 1
    restarts: int = 0
    link: Link | None = None
    roster: Roster | None = None

    @property
    def num_running(self) -> int:
        """How many of the `count` are running now."""
        if self.roster is None:
            return self.count
        return sum(entry.pid > 0 for entry in self.roster.read())


ALONE = Worker()
"""The process of a service that has only one."""
