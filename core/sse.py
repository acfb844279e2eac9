"""Server-sent events as bytes: the encoder of our streams, the decoder of an upstream's. No I/O, no clock.

Rule: of a text only CR, LF and CRLF end a line; U+2028, U+0085 and the like are text. What we send is `event: NAME`,
one `data:` line of compact JSON and a blank line, and JSON escapes both line ends, so no text can forge a frame.
"""

from __future__ import annotations

from typing import NamedTuple

import orjson

from cg_rag.core.errors import CgError, error_body
from cg_rag.core.events import Agent, AnswerReset, Event, Final, Progress, Retrieval, Token, Trace

MAX_EVENT_BYTES = 8 * 1024 * 1024
KEEPALIVE = b": keepalive\n\n"

EVENT_NAMES: dict[type, str] = {
    Progress: "progress",
    Retrieval: "retrieval",
    Token: "token",
    Trace: "trace",
    Agent: "agent",
    AnswerReset: "answer_reset",
    Final: "final",
}
_HEADS = {kind: f"event: {name}\ndata: ".encode() for kind, name in EVENT_NAMES.items()}
# Tokens are nine events of ten; put together from these, one takes half the time.
_TOKEN_HEADS = {
    channel: _HEADS[Token] + b'{"channel":' + orjson.dumps(channel) + b',"text":'
    for channel in ("answer", "reasoning")
}
_ERROR_HEAD = b"event: error\ndata: "
_BOM = b"\xef\xbb\xbf"
_MAX_RETRY_DIGITS = 15  # ages in milliseconds; int() itself refuses 4301 digits


def encode(event: Event) -> bytes:
    """The frame of one event. Raises TypeError when it holds what JSON cannot: a lone surrogate, above all."""
    if type(event) is Token:
        return b"%b%b}\n\n" % (_TOKEN_HEADS[event.channel], orjson.dumps(event.text))
    return _HEADS[type(event)] + orjson.dumps(_data(event)) + b"\n\n"


def _data(event: Event) -> object:
    if isinstance(event, (Final, Retrieval)):
        return event.payload
    if isinstance(event, Progress) and not event.heartbeat:
        return {"stage": event.stage, "label": event.label, "status": event.status}
    return event


def encode_error(error: CgError, request_id: str) -> bytes:
    """The frame that ends a failed stream: request_id, code, message, details, and the last three under `error`."""
    body = error_body(error, request_id)
    return _ERROR_HEAD + orjson.dumps({"request_id": request_id, **body["error"], **body}) + b"\n\n"


class ServerSentEvent(NamedTuple):
    """`event` is `message` where none was named; `id` and `retry` are the last ones of the stream so far."""

    event: str
    data: str
    id: str = ""
    retry: int | None = None


class SseTooLarge(Exception):
    """A line, or the data of one event, is above the decoder's limit."""


class SseDecoder:
    """The event stream of the WHATWG, fed with bytes cut anywhere. Invalid UTF-8 becomes U+FFFD."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._line = bytearray()  # the beginning of a line whose end has not come
        self._after_cr = False
        self._first_line = True
        self._too_large = False
        self._is_between = False  # two events: nothing of the next one has come
        self._name = b""
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._id = ""
        self._retry: int | None = None

    def plain_data(self, chunk: bytes) -> bytes | None:
        """The data of the one event that `chunk` is, when it is `data: …` and a blank line and stands between two
        events: what a server sends that sends each token by itself. None: `feed` it. Which of the two is asked makes
        no difference but in time; what is no UTF-8 is left in it here."""
        if (
            self._is_between
            and chunk.find(b"\n") == len(chunk) - 2
            and chunk.startswith(b"data: ")
            and chunk.endswith(b"\n")
            and b"\r" not in chunk
            and len(chunk) - 2 <= self._max_event_bytes
        ):
            return chunk[6:-2]
        return None

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """The events that end in `chunk`. Raises SseTooLarge; events before the large one are returned first,
        and the next call raises."""
        self._check()
        if self._after_cr and chunk:
            self._after_cr = False
            if chunk[0] == 0x0A:
                chunk = chunk[1:]
        if not chunk:
            return []
        events = self._take_lines(self._split(chunk))
        self._is_between = not (self._line or self._data or self._name or self._after_cr or self._too_large)
        if not events:
            self._check()
        return events

    def finish(self) -> ServerSentEvent | None:
        """The stream has ended. Returns the event that it broke off in, for reports: it was never sent whole and
        is no event. None when the stream ended between events. Raises SseTooLarge."""
        self._check()
        begun = bytes(self._line)
        if begun and not begun.startswith(b":"):
            self._take_field(begun)
        elif not self._data and not self._name:
            return None
        return self._make_event()

    def _check(self) -> None:
        if self._too_large:
            raise SseTooLarge(f"a server-sent event is above {self._max_event_bytes} bytes")

    def _split(self, chunk: bytes) -> list[bytes]:
        """The lines that end in `chunk`; the beginning of another is kept."""
        lines = chunk.splitlines()  # of bytes: at CR, LF and CRLF alone
        ended = chunk[-1] in b"\r\n"
        self._after_cr = chunk[-1] == 0x0D
        begun = b"" if ended else lines.pop()
        if lines and self._line:
            lines[0] = bytes(self._line) + lines[0]
            self._line.clear()
        self._line += begun
        return lines

    def _take_lines(self, lines: list[bytes]) -> list[ServerSentEvent]:
        events = []
        for line in lines:
            if line:
                self._take_field(line)
            else:
                self._first_line = False
                if self._data:
                    events.append(self._make_event())
                self._forget_event()
            if self._too_large:
                return events
        self._too_large = len(self._line) > self._max_event_bytes
        return events

    def _take_field(self, line: bytes) -> None:
        if len(line) > self._max_event_bytes:
            self._too_large = True
            return
        if self._first_line:
            self._first_line = False
            line = line.removeprefix(_BOM)
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._data_bytes += len(value) + 1
            self._too_large = self._data_bytes > self._max_event_bytes
        elif name == b"event":
            self._name = value
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit() and len(value) <= _MAX_RETRY_DIGITS:
            self._retry = int(value)

    def _make_event(self) -> ServerSentEvent:
        name = self._name.decode("utf-8", "replace") or "message"
        data = b"\n".join(self._data).decode("utf-8", "replace")
        return ServerSentEvent(name, data, self._id, self._retry)

    def _forget_event(self) -> None:
        self._name = b""
        self._data.clear()
        self._data_bytes = 0
