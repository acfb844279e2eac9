"""A scripted OpenAI-compatible server on 127.0.0.1: enqueue replies, read back requests, faults on demand.

    async with FakeUpstream() as upstream:
        upstream.enqueue(says("## 隐患等级…", cut_after=12))
        …
        assert upstream.requests[0].json["messages"]

It speaks HTTP byte for byte, so that what no server means to send can be sent. A reply is a status, headers and
steps; `says` makes one that is streamed or whole, as the request wants it. For tests without a loop of their own
`upstream_in_thread()` gives the same object, served from a thread.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Self

PATIENCE_SECONDS = 30.0
SSE_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8"}
JSON_HEADERS = {"Content-Type": "application/json"}
USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


@dataclass(frozen=True)
class Hang:
    """Sends nothing more until the client has gone."""


@dataclass(frozen=True)
class Wait:
    """Sends nothing for so long."""

    seconds: float


@dataclass(frozen=True)
class Reset:
    """Ends the connection with RST."""


@dataclass(frozen=True)
class FinInChunk:
    """Ends the connection with FIN in the middle of a chunk of the transfer encoding."""


@dataclass(frozen=True)
class Go:
    """Waits until the test calls `upstream.go()`."""


Step = bytes | Hang | Wait | Reset | FinInChunk | Go


@dataclass(frozen=True)
class Received:
    """One request as it came."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def is_streamed(self) -> bool:
        return bool(self.json.get("stream"))


@dataclass(frozen=True)
class Reply:
    """`before` are steps ahead of the head. With `length` the body has a Content-Length (that may be untrue),
    without it is chunked; with `closes` neither, and the end of the connection ends it."""

    steps: Sequence[Step] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    before: Sequence[Step] = ()
    length: int | None = None
    closes: bool = False


Script = Reply | Callable[[Received], Reply]


def raw(body: bytes, status: int = 200, headers: Mapping[str, str] = JSON_HEADERS, **options: Any) -> Reply:
    """A reply with just these bytes."""
    return Reply([body], status, headers, length=len(body), **options)


def error(status: int, message: str = "scripted failure", code: str = "", **headers: str) -> Reply:
    """An error in OpenAI's form; `retry_after="3"` becomes the header Retry-After."""
    body = json.dumps({"error": {"message": message, "type": code or None, "code": code or None}}).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return raw(body, status, {**JSON_HEADERS, **named})


def sse(chunk: Any) -> bytes:
    """One event of a stream; text goes as it is, the rest as JSON."""
    data = chunk if isinstance(chunk, str) else json.dumps(chunk, ensure_ascii=False)
    return f"data: {data}\n\n".encode()


def chunk(delta: Mapping[str, Any] | None, finish_reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}


def events(
    text: str | Sequence[str] = "",
    thinking: str | Sequence[str] = "",
    tool_calls: Sequence[Mapping[str, Any]] = (),
    finish_reason: str | None = None,
    usage: Mapping[str, int] | None = USAGE,
    thinking_field: str = "reasoning_content",
) -> list[bytes]:
    """The events of a streamed answer, one per character of a text, or per entry of a list."""
    chunks: list[Any] = [chunk({"role": "assistant", "content": ""})]
    chunks += [chunk({thinking_field: part}) for part in thinking]
    chunks += [chunk({"content": part}) for part in text]
    for index, call in enumerate(tool_calls):
        chunks.append(chunk({"tool_calls": [{"index": index, **call}]}))
    chunks.append(chunk({}, finish_reason or ("tool_calls" if tool_calls else "stop")))
    if usage is not None:
        chunks.append({"id": "chatcmpl-1", "choices": [], "usage": dict(usage)})
    return [sse(part) for part in [*chunks, "[DONE]"]]


def whole(
    text: str | Sequence[str] = "",
    thinking: str | Sequence[str] = "",
    tool_calls: Sequence[Mapping[str, Any]] = (),
    finish_reason: str | None = None,
    usage: Mapping[str, int] | None = USAGE,
) -> dict[str, Any]:
    """The same answer in one piece."""
    message: dict[str, Any] = {"role": "assistant", "content": "".join(text) or None}
    if thinking:
        message["reasoning_content"] = "".join(thinking)
    if tool_calls:
        message["tool_calls"] = list(tool_calls)
    reason = finish_reason or ("tool_calls" if tool_calls else "stop")
    return {"choices": [{"index": 0, "message": message, "finish_reason": reason}], "usage": usage}


def says(
    text: str | Sequence[str] = "",
    *,
    cut_after: int | None = None,
    cut_by: Sequence[Step] = (Reset(),),
    slice_bytes: int | None = None,
    **answer: Any,
) -> Script:
    """An answer, streamed or whole as the request wants it.

    `cut_after`: only so many events of a stream are sent, then `cut_by` (Reset(), FinInChunk(), Hang(), Go() … or
    nothing at all for a clean early end). `slice_bytes`: the bytes go out in pieces of so many.
    """

    def reply(request: Received) -> Reply:
        if not request.is_streamed:
            return raw(json.dumps(whole(text, **answer), ensure_ascii=False).encode())
        steps: list[Step] = list(events(text, **answer))
        if cut_after is not None:
            steps = steps[:cut_after] + list(cut_by) + steps[cut_after:] * (Go() in cut_by)
        if slice_bytes:
            steps = [piece for step in steps for piece in _sliced(step, slice_bytes)]
        return Reply(steps, headers=SSE_HEADERS)

    return reply


def streams(*parts: Any, **options: Any) -> Reply:
    """A stream of these events: dicts are chunks, texts the data of an event, bytes and steps as they are."""
    steps = [part if not isinstance(part, (dict, str)) else sse(part) for part in parts]
    return Reply(steps, headers=SSE_HEADERS, **options)


def _sliced(step: Step, size: int) -> list[Step]:
    if not isinstance(step, bytes):
        return [step]
    return [step[start : start + size] for start in range(0, len(step), size)]


class FakeUpstream:
    """Answers each request with the next reply enqueued; with none left, 500. `host` and `port` once entered."""

    def __init__(self) -> None:
        self.requests: list[Received] = []
        self.num_connections = 0
        self.left: list[Received] = []  # requests whose client left while the answer was still being sent
        self._script: deque[Script] = deque()
        self._changed = asyncio.Event()
        self._go = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def enqueue(self, *replies: Script) -> None:
        self._script.extend(replies)

    def forget(self) -> None:
        """Drops the replies that nobody has asked for."""
        self._script.clear()

    @property
    def num_left(self) -> int:
        """Replies that nobody has asked for yet."""
        return len(self._script)

    @property
    def num_disconnects(self) -> int:
        return len(self.left)

    def was_left(self, number: int) -> bool:
        """Whether the client of just this request (counted from 0) left: the departures of earlier ones come late."""
        return any(request is self.requests[number] for request in tuple(self.left))

    @property
    def num_open(self) -> int:
        """Connections that neither side has closed yet."""
        return len(self._tasks)

    def go(self) -> None:
        """Lets every `Go` pass, now and later."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._go.set)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for what a request or a disconnect changes."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._server = await asyncio.start_server(
            self._accept, "127.0.0.1", self.port, limit=64 * 1024 * 1024, backlog=1024
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """From here on connections are refused; running ones are dropped."""
        assert self._server is not None
        # asyncio loses the socket of a connection that it accepted just before close(): a warning that falls upon
        # whichever test runs when it is collected. So first none is accepted any more, and the last become tasks.
        for listening in self._server.sockets:
            asyncio.get_running_loop().remove_reader(listening.fileno())
        await _let_the_loop_turn()
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await _let_the_loop_turn()  # what is cancelled closes its socket
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        task = asyncio.create_task(self._converse(reader, writer))
        self._tasks.add(task)

        def forget(task: asyncio.Task[None]) -> None:
            # Also of a task that was cancelled before it began, and so closed nothing.
            writer.transport.abort()
            self._tasks.discard(task)
            self._changed.set()

        task.add_done_callback(forget)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            writer.close()
            with suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun = b""
        goes_on = True
        while goes_on:
            request = await _read_request(reader, begun)
            # First, so that whoever sees the request does not count its reply among those left.
            script = self._script.popleft() if self._script else error(500, "nothing enqueued")
            self.requests.append(request)
            self._changed.set()
            reply = script if isinstance(script, Reply) else script(request)
            gone = asyncio.create_task(reader.read(1))
            try:
                goes_on = await self._answer(request, reply, writer, gone)
                begun = await gone if goes_on else b""
            except ConnectionError:
                self._note_disconnect(request)
                raise
            finally:
                gone.cancel()
            goes_on = goes_on and bool(begun)

    async def _answer(
        self, request: Received, reply: Reply, writer: asyncio.StreamWriter, gone: asyncio.Task[bytes]
    ) -> bool:
        """Whether the connection can be used again."""
        is_chunked = reply.length is None and not reply.closes
        steps: list[Step] = [*reply.before, _head(reply), *reply.steps]
        num_bare = len(reply.before) + 1
        for number, step in enumerate(steps):
            framed = _framed(step) if is_chunked and number >= num_bare else step
            if not await self._take(framed, writer, gone):
                return False
            if gone.done() and not _has_more(gone):
                self._note_disconnect(request)
                return False
            if isinstance(step, Hang):
                return False  # the client took what came for a whole answer, and asks again
        if is_chunked:
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        return not reply.closes

    async def _take(self, step: Step, writer: asyncio.StreamWriter, gone: asyncio.Task[bytes]) -> bool:
        match step:
            case bytes():
                writer.write(step)
                await writer.drain()
            case Wait(seconds):
                await asyncio.wait([gone], timeout=seconds)
            case Hang():
                await asyncio.wait([gone])
            case Go():
                going = asyncio.create_task(self._go.wait())
                await asyncio.wait([gone, going], return_when=asyncio.FIRST_COMPLETED)
                going.cancel()
            case Reset():
                _reset(writer)
                return False
            case FinInChunk():
                writer.write(b"ff\r\ndata: {")
                await writer.drain()
                return False
        return True

    def _note_disconnect(self, request: Received) -> None:
        self.left.append(request)
        self._changed.set()


def _has_more(gone: asyncio.Task[bytes]) -> bool:
    return gone.exception() is None and bool(gone.result())


def _framed(step: Step) -> Step:
    return b"%x\r\n%b\r\n" % (len(step), step) if isinstance(step, bytes) and step else step


def _head(reply: Reply) -> bytes:
    lines = [f"HTTP/1.1 {reply.status} Scripted"]
    lines += [f"{name}: {value}" for name, value in reply.headers.items()]
    if reply.length is not None:
        lines.append(f"Content-Length: {reply.length}")
    else:
        lines.append("Connection: close" if reply.closes else "Transfer-Encoding: chunked")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def _reset(writer: asyncio.StreamWriter) -> None:
    # RFC 793 aside, this is how BSD sockets send RST: linger for no time at all.
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _read_request(reader: asyncio.StreamReader, begun: bytes) -> Received:
    head = begun + await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = re.fullmatch(r"\d+", headers.get("content-length", ""))
    body = await reader.readexactly(int(length[0])) if length else b""
    method, path, _ = first.split(" ")
    return Received(method, path, headers, body)


@asynccontextmanager
async def fake_upstream(*replies: Script) -> AsyncIterator[FakeUpstream]:
    async with FakeUpstream() as upstream:
        upstream.enqueue(*replies)
        yield upstream


@contextmanager
def upstream_in_thread(*replies: Script) -> Iterator[FakeUpstream]:
    """A FakeUpstream that is served from a thread; `enqueue`, `requests`, `go` and the counts work from here."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="fake-upstream")
    thread.start()
    upstream = FakeUpstream()
    upstream.enqueue(*replies)
    try:
        asyncio.run_coroutine_threadsafe(upstream.__aenter__(), loop).result(PATIENCE_SECONDS)
        try:
            yield upstream
        finally:
            asyncio.run_coroutine_threadsafe(upstream.stop(), loop).result(PATIENCE_SECONDS)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _let_the_loop_turn() -> None:
    """Longer than any chain of callbacks between asyncio's accepting, or aborting, and the end of it."""
    for _ in range(10):
        await asyncio.sleep(0)
