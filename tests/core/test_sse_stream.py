from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from cg_rag.core.connection import MAX_UNSENT_BYTES, make_runner
from cg_rag.core.errors import CgError
from cg_rag.core.events import Event, Final, Progress, Token
from cg_rag.core.log import logger
from cg_rag.core.sse import KEEPALIVE, encode
from cg_rag.core.sse_stream import (
    CLIENT_GONE,
    EVENTS_PER_TURN,
    OPEN_STREAMS,
    STREAM_CODE,
    answer_stream,
    follow_streams,
    stream_events,
)
from cg_rag.core.web import REQUEST_ID, make_edge
from tests.core.raw_http import PATIENCE_SECONDS, Client, LogEvents, Server, until
from tests.core.test_connection import connect_with_small_buffer, gone, shrink_send_buffer
from tests.sse_checker import StreamChecker
from tests.steady_clock import loop_seconds, steady_clock

GET_STREAM = b"GET /stream HTTP/1.1\r\nHost: x\r\nX-Request-ID: req_1\r\n\r\n"
FINAL = Final({"ok": True, "answer": "甲乙"})
Start = Callable[[], AsyncIterator[Event]]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[LogEvents]:
    """The service's lines; at the end nobody else may have logged anything."""
    events = LogEvents()
    logger.addHandler(events)
    level = logger.level
    logger.setLevel(logging.INFO)
    yield events
    logger.setLevel(level)
    logger.removeHandler(events)
    assert {record.name for record in caplog.records} <= {logger.name}


@dataclass
class StreamServer(Server):
    codes: list[str] = field(default_factory=list)
    """STREAM_CODE of every request that has ended, and `cancelled` after it if its task was."""


@asynccontextmanager
async def serve_stream(
    start: Start,
    *,
    heartbeat_seconds: float = 0.0,
    shutdown_timeout_seconds: float = 1.0,
    write_timeout_seconds: float = 5.0,
    small_buffers: bool = False,
) -> AsyncIterator[StreamServer]:
    """GET /stream is answered with what `start` yields, behind the edge of the service."""

    async def handler(request: web.Request) -> web.StreamResponse:
        if small_buffers:
            shrink_send_buffer(request)
        try:
            return await stream_events(
                request, start, heartbeat_seconds=heartbeat_seconds, request_id=request[REQUEST_ID]
            )
        finally:
            codes.append(request[STREAM_CODE])
            task = asyncio.current_task()
            assert task is not None
            if task.cancelling():
                codes.append("cancelled")

    codes: list[str] = []
    app = web.Application(middlewares=[make_edge({})])
    app.router.add_get("/stream", handler)
    async with run(app, codes, shutdown_timeout_seconds, write_timeout_seconds) as server:
        yield server
    assert len(app[OPEN_STREAMS]) == 0


@asynccontextmanager
async def run(
    app: web.Application,
    codes: list[str],
    shutdown_timeout_seconds: float = 1.0,
    write_timeout_seconds: float = 5.0,
) -> AsyncIterator[StreamServer]:
    follow_streams(app, shutdown_timeout_seconds)
    runner = make_runner(
        app,
        header_timeout_seconds=5.0,
        write_timeout_seconds=write_timeout_seconds,
        shutdown_timeout_seconds=shutdown_timeout_seconds,
    )
    async with steady_clock():
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield StreamServer(runner.addresses[0][1], runner, codes=codes)
        finally:
            await runner.cleanup()


async def read_head(client: Client) -> bytes:
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await client.reader.readuntil(b"\r\n\r\n")


async def read_chunk(client: Client) -> bytes:
    """One chunk of the transfer coding; b"" is the last."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        size = int(await client.reader.readuntil(b"\r\n"), 16)
        return (await client.reader.readexactly(size + 2))[:-2]


async def read_chunks(client: Client) -> list[bytes]:
    chunks = []
    while chunk := await read_chunk(client):
        chunks.append(chunk)
    return chunks


async def read_stream(server: Server) -> StreamChecker:
    """One whole stream on a connection of its own."""
    client = await server.connect()
    try:
        await client.send(GET_STREAM)
        assert b" 200 OK\r\n" in await read_head(client)
        return StreamChecker(b"".join(await read_chunks(client)))
    finally:
        await client.close()


async def two_tokens() -> AsyncIterator[Event]:
    yield Token("answer", "甲")
    yield Token("answer", "乙")
    yield FINAL


class Gate:
    """A mode that waits where a test wants it to, and tells how it ended."""

    def __init__(self, *before: Event) -> None:
        self.before = before
        self.waiting = asyncio.Event()
        self.open = asyncio.Event()
        self.closed = asyncio.Event()
        self.ended_by: BaseException | None = None

    async def run(self) -> AsyncIterator[Event]:
        try:
            for event in self.before:
                yield event
            self.waiting.set()
            await self.open.wait()
            yield FINAL
        except BaseException as error:
            self.ended_by = error
            raise
        finally:
            self.closed.set()


async def soon(event: asyncio.Event, seconds: float = PATIENCE_SECONDS) -> None:
    async with asyncio.timeout(seconds):
        await event.wait()


# --- what is sent -----------------------------------------------------------------------------------------------


async def test_a_stream_is_sent_byte_for_byte_as_documented_one_chunk_an_event(log: LogEvents) -> None:
    async with serve_stream(two_tokens) as server:
        client = await server.connect()
        await client.send(GET_STREAM)
        status, *headers = (await read_head(client)).decode().strip().split("\r\n")
        assert status == "HTTP/1.1 200 OK"
        names = dict(line.split(": ", 1) for line in headers)
        del names["Date"], names["Server"]
        assert names == {
            "Content-Type": "text/event-stream; charset=utf-8",
            "Cache-Control": "no-cache, no-transform",
            "X-Accel-Buffering": "no",
            "X-Content-Type-Options": "nosniff",
            "X-Request-ID": "req_1",
            "Transfer-Encoding": "chunked",
        }
        assert [chunk.decode() for chunk in await read_chunks(client)] == [
            'event: token\ndata: {"channel":"answer","text":"甲"}\n\n',
            'event: token\ndata: {"channel":"answer","text":"乙"}\n\n',
            'event: final\ndata: {"ok":true,"answer":"甲乙"}\n\n',
        ]
        await client.send(GET_STREAM)
        await read_head(client)
        assert len(await read_chunks(client)) == 3, "the connection serves the next request"
        await client.close()
    assert [record.getMessage() for record in log.records] == ["request", "request"]


async def test_an_old_client_gets_the_stream_without_chunks_up_to_the_end_of_the_connection() -> None:
    async with serve_stream(two_tokens) as server:
        client = await server.connect()
        await client.send(GET_STREAM.replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert b"chunked" not in await read_head(client)
        assert StreamChecker(await client.closed()).final == FINAL.payload
        await client.close()


async def test_nobody_can_talk_the_stream_into_compressing() -> None:
    async with serve_stream(two_tokens) as server:
        client = await server.connect()
        await client.send(GET_STREAM.replace(b"\r\n\r\n", b"\r\nAccept-Encoding: gzip, br\r\n\r\n"))
        assert b"Content-Encoding" not in await read_head(client)
        assert (await read_chunk(client)).startswith(b"event: ")
        await client.close()


async def test_the_headers_are_out_and_each_event_is_before_the_mode_goes_on() -> None:
    gate = Gate()
    async with serve_stream(gate.run) as server:
        client = await server.connect()
        await client.send(GET_STREAM)
        await read_head(client)
        assert not gate.open.is_set()
        gate.open.set()
        assert len(await read_chunks(client)) == 1
        await client.close()

    second = Gate(Token("answer", "甲乙"))
    async with serve_stream(second.run) as server:
        client = await server.connect()
        await client.send(GET_STREAM)
        await read_head(client)
        assert b"token" in await read_chunk(client)
        second.open.set()
        assert len(await read_chunks(client)) == 1
        await client.close()


# --- how it ends -------------------------------------------------------------------------------------------------


async def test_an_error_of_the_catalogue_is_the_terminal_event(log: LogEvents) -> None:
    async def mode() -> AsyncIterator[Event]:
        yield Token("answer", "甲")
        raise CgError("capacity.exceeded", details={"resource": "generation"})

    async with serve_stream(mode) as server:
        stream = await read_stream(server)
    assert stream.names == ["token", "error"]
    assert stream.terminal.data["request_id"] == "req_1"
    assert stream.terminal.data["details"] == {"resource": "generation"}
    assert stream.error_code == "capacity.exceeded"
    assert [record.getMessage() for record in log.records] == ["request"]


def refuse() -> AsyncIterator[Event]:
    raise RuntimeError("secret")


async def fail_late() -> AsyncIterator[Event]:
    yield Token("answer", "甲")
    raise RuntimeError("secret")


async def lose_upstream() -> AsyncIterator[Event]:
    yield Token("answer", "甲")
    raise ConnectionResetError("secret")


async def end_early() -> AsyncIterator[Event]:
    yield Token("answer", "甲")


async def yield_what_json_cannot_hold() -> AsyncIterator[Event]:
    yield Token("answer", "secret \ud83e")


async def fail_while_closing() -> AsyncIterator[Event]:
    try:
        yield FINAL
    finally:
        raise RuntimeError("secret")


BROKEN = [
    refuse, fail_late, lose_upstream, end_early, yield_what_json_cannot_hold, fail_while_closing,
]  # fmt: skip


@pytest.mark.parametrize("mode", BROKEN, ids=[mode.__name__ for mode in BROKEN])
async def test_an_unforeseen_fault_is_internal_error_with_one_traceback_and_no_word_of_it_to_the_caller(
    mode: Start, log: LogEvents
) -> None:
    async with serve_stream(mode) as server:
        stream = await read_stream(server)
    assert stream.error_code == "internal_error"
    assert b"secret" not in stream.terminal.raw
    assert [record.getMessage() for record in log.records] == ["internal_error", "request"]
    assert log.records[0].exc_info is not None


async def test_nothing_follows_final_and_the_mode_is_closed_before_it_is_sent(log: LogEvents) -> None:
    closed = asyncio.Event()

    async def mode() -> AsyncIterator[Event]:
        try:
            yield FINAL
            yield Token("answer", "丙")
        finally:
            await asyncio.sleep(0)
            closed.set()

    async with serve_stream(mode, heartbeat_seconds=0.001) as server:
        client = await server.connect()
        await client.send(GET_STREAM)
        await read_head(client)
        assert await read_chunk(client) == encode(FINAL)
        assert closed.is_set()
        assert await read_chunks(client) == []
        await asyncio.sleep(0.02)  # twenty heartbeats
        await client.send(GET_STREAM)
        assert (await read_head(client)).startswith(b"HTTP/1.1 200 ")
        await client.close()


async def test_a_mode_runs_in_one_task_so_its_own_time_limits_span_its_events() -> None:
    async def mode() -> AsyncIterator[Event]:
        try:
            async with asyncio.timeout(0.05):
                yield Token("answer", "甲乙")
                await asyncio.Event().wait()
        except TimeoutError:
            yield FINAL

    async with serve_stream(mode, heartbeat_seconds=0.01) as server:
        assert (await read_stream(server)).final == FINAL.payload


async def test_a_mode_that_has_all_its_text_at_hand_does_not_hold_the_loop() -> None:
    turns: list[int] = []
    num_tokens = EVENTS_PER_TURN * 20

    async def mode() -> AsyncIterator[Event]:
        started = turns[-1]
        for _ in range(num_tokens):
            yield Token("reasoning", "甲")
        turns.append(turns[-1] - started)
        yield Final({})

    async def count() -> None:
        turns.append(0)
        while True:
            await asyncio.sleep(0)
            turns[-1] += 1

    counting = asyncio.create_task(count())
    async with serve_stream(mode) as server:
        assert len((await read_stream(server)).events) == num_tokens + 1
    counting.cancel()
    assert turns[0] >= 20


# --- readers who leave, do not read, or read slowly -----------------------------------------------------------------


async def test_a_reader_who_leaves_while_the_mode_waits_ends_it_within_a_second_with_one_line(
    log: LogEvents,
) -> None:
    gate = Gate(Token("answer", "甲"))
    async with serve_stream(gate.run, heartbeat_seconds=0.05) as server:
        client = await server.connect()
        await client.send(GET_STREAM)
        await read_head(client)
        await soon(gate.waiting)
        await client.close()
        await soon(gate.closed, seconds=1)
        await log.wait_for("request")
        assert server.codes == [CLIENT_GONE, "cancelled"]
    assert isinstance(gate.ended_by, asyncio.CancelledError)
    assert [record.getMessage() for record in log.records] == ["request"]


async def test_a_reader_who_leaves_while_text_flows_ends_the_mode_with_one_line(log: LogEvents) -> None:
    closed = asyncio.Event()

    async def mode() -> AsyncIterator[Event]:
        try:
            while True:
                yield Token("answer", "甲" * 100)
                await asyncio.sleep(0)
        finally:
            closed.set()

    async with serve_stream(mode) as server:
        client = await server.connect()
        await client.send(GET_STREAM)
        await read_head(client)
        client.writer.transport.abort()
        await soon(closed, seconds=1)
        await log.wait_for("request")
    assert [record.getMessage() for record in log.records] == ["request"]
    assert log.records[0].exc_info is None


async def test_fifty_readers_who_leave_at_random_moments_leave_one_line_each_and_nothing_else(
    log: LogEvents,
) -> None:
    running = 0

    async def mode() -> AsyncIterator[Event]:
        nonlocal running
        running += 1
        try:
            for _ in range(30):
                yield Token("answer", "甲" * 300)
                await asyncio.sleep(0.001)
            yield FINAL
        finally:
            running -= 1

    async def leave(server: Server, seed: int) -> None:
        random_ = random.Random(seed)
        client = await server.connect()
        await client.send(GET_STREAM)
        with contextlib.suppress(asyncio.IncompleteReadError):
            await client.reader.readexactly(random_.randrange(1, 20_000))
        client.writer.transport.abort()

    tasks = asyncio.all_tasks()
    async with serve_stream(mode, heartbeat_seconds=0.002) as server:
        tasks = asyncio.all_tasks()
        await asyncio.gather(*(leave(server, seed) for seed in range(50)))
        await until(lambda: len(log.named("request")) == 50 and running == 0)
        await until(lambda: asyncio.all_tasks() == tasks)
    assert len(log.records) == 50


async def test_a_reader_who_takes_nothing_is_dropped_and_the_mode_closed(log: LogEvents) -> None:
    closed = asyncio.Event()

    async def mode() -> AsyncIterator[Event]:
        try:
            while True:
                yield Token("answer", "甲" * 100)
        finally:
            closed.set()

    async with serve_stream(
        mode, write_timeout_seconds=0.5, heartbeat_seconds=0.05, small_buffers=True
    ) as server:
        peer = await connect_with_small_buffer(server.port)
        await asyncio.get_running_loop().sock_sendall(peer, GET_STREAM)
        started = loop_seconds()
        await soon(closed)
        assert 0.4 < loop_seconds() - started < 2
        await log.wait_for("request")
        await gone(peer)
    assert sorted(record.getMessage() for record in log.records) == ["reader_dropped", "request"]


def unsent_bytes(server: Server) -> list[int]:
    inner = server.runner.server
    assert inner is not None
    transports = [connection.transport for connection in inner.connections]
    return [transport.get_write_buffer_size() for transport in transports if transport is not None]


async def test_the_mode_waits_for_a_reader_who_falls_behind_and_heartbeats_add_nothing(
    log: LogEvents,
) -> None:
    num_made = 0

    async def mode() -> AsyncIterator[Event]:
        nonlocal num_made
        while True:
            num_made += 1
            yield Token("answer", "甲" * 100)

    async with serve_stream(
        mode, heartbeat_seconds=0.01, write_timeout_seconds=60.0, small_buffers=True
    ) as server:
        peer = await connect_with_small_buffer(server.port)
        await asyncio.get_running_loop().sock_sendall(peer, GET_STREAM)
        made, unsent = -1, [0]
        async with asyncio.timeout(PATIENCE_SECONDS):  # it would never end if heartbeats were added
            while (made, unsent) != (
                num_made,
                unsent_bytes(server),
            ):  # until the system's own buffers are full too
                made, unsent = num_made, unsent_bytes(server)
                await asyncio.sleep(0.1)  # ten heartbeats
        assert 0 < unsent[0] <= MAX_UNSENT_BYTES + 400
        peer.close()
        await log.wait_for("request")


async def read_slowly(
    server: Server, bytes_per_turn: int, seconds_per_turn: float, begin: asyncio.Event | None = None
) -> StreamChecker:
    loop = asyncio.get_running_loop()
    peer = await connect_with_small_buffer(server.port)
    await loop.sock_sendall(peer, GET_STREAM.replace(b"HTTP/1.1", b"HTTP/1.0"))
    if begin is not None:
        await begin.wait()
    received = b""
    while piece := await loop.sock_recv(peer, bytes_per_turn):
        received += piece
        await asyncio.sleep(seconds_per_turn)
    peer.close()
    return StreamChecker(received.partition(b"\r\n\r\n")[2])


def numbered(num_tokens: int, width: int = 60) -> Start:
    """A mode of so many numbered tokens; `answer` of its end is all of them."""
    texts = [f"{number:{width}}" for number in range(num_tokens)]

    async def mode() -> AsyncIterator[Event]:
        for text in texts:
            yield Token("answer", text)
            await asyncio.sleep(0)
        yield Final({"answer": "".join(texts)})

    return mode


async def test_a_reader_of_5_kib_a_second_gets_everything_in_order(log: LogEvents) -> None:
    async with serve_stream(
        numbered(100), heartbeat_seconds=0.01, write_timeout_seconds=1.0, small_buffers=True
    ) as server:
        started = loop_seconds()
        stream = await read_slowly(server, 1024, 0.05)
        assert loop_seconds() - started > 0.5, "the reader was too fast to show anything"
    assert len(stream.named("token")) == 100
    assert stream.final["answer"] == stream.answer_text
    assert not log.named("reader_dropped")


async def test_forty_streams_at_once_half_of_them_slow_all_end_well_with_bounded_buffers() -> None:
    highest = 0
    waits = asyncio.Event()

    async def watch(server: Server) -> None:
        nonlocal highest
        while True:
            highest = max(highest, sum(unsent_bytes(server)))
            if highest:
                waits.set()
            await asyncio.sleep(0.005)

    # More than all buffers hold: while the slow readers do not begin, a stream has to wait, and is seen to.
    mode = numbered(600, width=10)
    async with serve_stream(mode, heartbeat_seconds=0.02, small_buffers=True) as server:
        watching = asyncio.create_task(watch(server))
        streams = await asyncio.gather(
            *(
                read_slowly(server, 1024, 0.02, waits) if number % 2 else read_stream(server)
                for number in range(40)
            )
        )
        watching.cancel()
    assert [len(stream.named("token")) for stream in streams] == [600] * 40
    # What is above the mark is one event at most, and the largest is `final`.
    assert 0 < highest <= 40 * (MAX_UNSENT_BYTES + 7000)


# --- heartbeats --------------------------------------------------------------------------------------------------


async def test_a_waiting_mode_is_not_disturbed_by_heartbeats_that_name_its_stage() -> None:
    gate = Gate(Progress("vision", "正在识别", "running"))
    async with serve_stream(gate.run, heartbeat_seconds=0.02) as server:
        client = await server.connect()
        started = loop_seconds()
        await client.send(GET_STREAM)
        await read_head(client)
        assert b"heartbeat" not in await read_chunk(client)
        beats = [await read_chunk(client) for _ in range(3)]
        assert loop_seconds() - started >= 0.06
        assert set(beats) == {KEEPALIVE + encode(Progress("vision", "正在识别", "running", heartbeat=True))}
        gate.open.set()
        rest = b"".join(await read_chunks(client))
        assert rest.endswith(encode(FINAL))
        await client.close()
    assert not isinstance(gate.ended_by, asyncio.CancelledError)


async def test_a_stage_that_is_done_is_not_named_as_running() -> None:
    gate = Gate(Progress("retrieval", "检索", "running"), Progress("retrieval", "检索", "done"))
    async with serve_stream(gate.run, heartbeat_seconds=0.02) as server:
        client = await server.connect()
        await client.send(GET_STREAM)
        await read_head(client)
        beat = [await read_chunk(client) for _ in range(3)][-1]
        assert b'"stage":"waiting","label":"' in beat
        assert b'"heartbeat":true' in beat
        gate.open.set()
        await read_chunks(client)
        await client.close()


async def test_heartbeats_begin_before_the_first_event_and_zero_switches_them_off() -> None:
    for seconds, beats in ((0.01, True), (0.0, False)):
        gate = Gate(Token("answer", FINAL.payload["answer"]))
        async with serve_stream(gate.run, heartbeat_seconds=seconds) as server:
            reading = asyncio.create_task(read_stream(server))
            await soon(gate.waiting)
            await asyncio.sleep(0.05)
            gate.open.set()
            stream = await reading
        assert bool(stream.comments) is beats
        assert ("progress" in stream.names) is beats


async def test_a_stream_that_sends_often_enough_has_no_heartbeat() -> None:
    async def mode() -> AsyncIterator[Event]:
        for _ in range(20):
            yield Token("reasoning", "甲")
            await asyncio.sleep(0.02)
        yield Final({})

    async with serve_stream(mode, heartbeat_seconds=0.3) as server:
        assert (await read_stream(server)).comments == []


async def test_a_heartbeat_never_falls_inside_a_frame() -> None:
    async def mode() -> AsyncIterator[Event]:
        for _ in range(20):
            yield Token("reasoning", "甲" * 20_000)
            await asyncio.sleep(0.003)
        yield Final({})

    async with serve_stream(mode, heartbeat_seconds=0.001, small_buffers=True) as server:
        stream = await read_stream(server)  # StreamChecker looks at every frame
    assert stream.comments
    assert stream.reasoning_text == "甲" * 400_000


# --- shutdown ----------------------------------------------------------------------------------------------------


async def test_stopping_lets_streams_end_and_tells_those_that_do_not() -> None:
    short, endless = Gate(Token("answer", "甲乙")), Gate(Token("answer", "甲"))
    gates = iter([short, endless])
    async with serve_stream(lambda: next(gates).run(), shutdown_timeout_seconds=0.8) as server:
        clients = [await server.connect() for _ in range(2)]
        for client, gate in zip(clients, (short, endless), strict=True):
            await client.send(GET_STREAM)
            await read_head(client)
            await soon(gate.waiting)
        started = loop_seconds()
        stopping = asyncio.create_task(server.runner.cleanup())
        asyncio.get_running_loop().call_later(0.1, short.open.set)
        bodies = [b"".join(await read_chunks(client)) for client in clients]
        await stopping
        assert 0.5 < loop_seconds() - started < 1.5
        for client in clients:
            assert await client.closed() == b""
            await client.close()
    assert StreamChecker(bodies[0]).final == FINAL.payload
    told = StreamChecker(bodies[1])
    assert told.error_code == "internal_error"
    assert told.terminal.data["details"] == {"reason": "shutdown"}
    assert "正在停止" in told.terminal.data["message"]
    assert endless.closed.is_set()


async def test_stopping_does_not_wait_for_a_reader_who_takes_nothing(log: LogEvents) -> None:
    closed = asyncio.Event()

    async def mode() -> AsyncIterator[Event]:
        try:
            while True:
                yield Token("answer", "甲" * 100)
        finally:
            closed.set()

    async with serve_stream(mode, shutdown_timeout_seconds=0.4, small_buffers=True) as server:
        peer = await connect_with_small_buffer(server.port)
        await asyncio.get_running_loop().sock_sendall(peer, GET_STREAM)
        await until(lambda: max(unsent_bytes(server), default=0) > MAX_UNSENT_BYTES)
        started = loop_seconds()
        await server.runner.cleanup()
        assert loop_seconds() - started < 1.0
        assert closed.is_set()
        await gone(peer)
    assert [record.getMessage() for record in log.records] == ["request"]


async def test_a_slow_reader_still_gets_the_end_of_a_stopped_stream() -> None:
    async def mode() -> AsyncIterator[Event]:
        while True:
            yield Token("reasoning", "甲" * 100)

    async with serve_stream(mode, shutdown_timeout_seconds=1.5, small_buffers=True) as server:
        reading = asyncio.create_task(read_slowly(server, 2048, 0.01))
        await until(lambda: max(unsent_bytes(server), default=0) > MAX_UNSENT_BYTES)
        stopping = asyncio.create_task(server.runner.cleanup())
        stream = await reading
        await stopping
        assert server.codes == ["internal_error"]
    assert stream.error_code == "internal_error"


async def test_a_reader_who_leaves_as_the_service_stops_is_no_error(log: LogEvents) -> None:
    gate = Gate()
    async with serve_stream(gate.run) as server:
        client = await server.connect()
        await client.send(GET_STREAM)
        await read_head(client)
        await soon(gate.waiting)
        assert server.runner.server is not None
        (connection,) = server.runner.server.connections
        assert connection.transport is not None
        connection.transport.abort()
        # Runs after the loss was noticed, and before the task of the stream has heard of it.
        asyncio.get_running_loop().call_soon(server.runner.app[OPEN_STREAMS].stop)
        await soon(gate.closed)
        await client.close()
        await log.wait_for("request")
        assert server.codes == [CLIENT_GONE, "cancelled"]
    assert [record.getMessage() for record in log.records] == ["request"]


# --- the route ---------------------------------------------------------------------------------------------------


@asynccontextmanager
async def serve_route(
    read_error: CgError | None = None, start_error: CgError | None = None
) -> AsyncIterator[StreamServer]:
    async def handler(request: web.Request) -> web.StreamResponse:
        async def read() -> bytes:
            if read_error is not None:
                raise read_error
            return await request.read()

        async def echo(body: bytes) -> AsyncIterator[Event]:
            yield Final({"body": body.decode()})

        def start(body: bytes) -> AsyncIterator[Event]:
            if start_error is not None:
                raise start_error
            return echo(body)

        try:
            return await answer_stream(
                request, read=read, start=start, heartbeat_seconds=0, request_id=request[REQUEST_ID]
            )
        finally:
            codes.append(request.get(STREAM_CODE, "no stream"))

    codes: list[str] = []
    app = web.Application(middlewares=[make_edge({})])
    app.router.add_post("/stream", handler)
    async with run(app, codes) as server:
        yield server


POST_STREAM = b"POST /stream HTTP/1.1\r\nHost: x\r\nX-Request-ID: req_1\r\nContent-Length: 2\r\n\r\n{}"


async def post_stream(server: Server) -> tuple[bytes, StreamChecker]:
    client = await server.connect()
    await client.send(POST_STREAM)
    head = await read_head(client)
    stream = StreamChecker(b"".join(await read_chunks(client)))
    await client.close()
    return head, stream


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("request_timeout", 408),
        ("payload_too_large", 413),
        ("unsupported_media_type", 415),
        ("capacity.exceeded", 429),
    ],
)
async def test_what_is_decided_before_the_body_is_parsed_keeps_its_status(code: str, status: int) -> None:
    async with serve_route(read_error=CgError(code)) as server:
        answer = await server.send(POST_STREAM)
        assert (answer.status, answer.code) == (status, code)
        assert b"application/json" in answer.head
        assert server.codes == ["no stream"]


async def test_a_body_that_is_no_json_is_an_error_event_under_200() -> None:
    async with serve_route(read_error=CgError("invalid_request", "不是 JSON。")) as server:
        head, stream = await post_stream(server)
        assert head.startswith(b"HTTP/1.1 200 ")
        assert b"text/event-stream" in head
        assert stream.names == ["error"]
        assert stream.terminal.data["message"] == "不是 JSON。"
        assert server.codes == ["invalid_request"]


@pytest.mark.parametrize("code", ["invalid_request", "index.not_ready", "capacity.exceeded"])
async def test_what_the_fields_or_the_mode_fail_with_is_an_error_event_under_200(code: str) -> None:
    async with serve_route(start_error=CgError(code)) as server:
        head, stream = await post_stream(server)
        assert head.startswith(b"HTTP/1.1 200 ")
        assert stream.error_code == code
        assert server.codes == [code]


async def test_a_good_body_reaches_the_mode() -> None:
    async with serve_route() as server:
        _, stream = await post_stream(server)
        assert stream.final == {"body": "{}"}
        assert server.codes == [""]
