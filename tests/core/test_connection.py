from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator

import pytest
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from cg_rag.core.connection import MAX_UNSENT_BYTES, Connection, quiet_accept_errors
from cg_rag.core.errors import CgError
from cg_rag.core.log import logger
from tests.core.raw_http import PATIENCE_SECONDS, Client, LogEvents, serve
from tests.steady_clock import loop_seconds

GET_OK = b"GET /ok HTTP/1.1\r\nHost: x\r\n\r\n"


async def answer_ok(_request: web.Request) -> web.Response:
    return web.json_response({"ok": True})


@pytest.fixture
def log() -> Iterator[LogEvents]:
    events = LogEvents()
    logger.addHandler(events)
    level = logger.level
    logger.setLevel(logging.INFO)
    yield events
    logger.setLevel(level)
    logger.removeHandler(events)


def post(*headers: bytes, body: bytes = b"{}") -> bytes:
    return b"POST /ok HTTP/1.1\r\nHost: x\r\n" + b"".join(line + b"\r\n" for line in headers) + b"\r\n" + body


MALFORMED = {
    "content length and chunked": post(
        b"Content-Length: 2", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"
    ),
    "two content lengths": post(b"Content-Length: 2", b"Content-Length: 3"),
    "signed content length": post(b"Content-Length: +2"),
    "empty content length": post(b"Content-Length: "),
    "content length of 24 digits": post(b"Content-Length: 999999999999999999999999"),
    "bare line feeds": b"GET /ok HTTP/1.1\nHost: x\n\n",
    "folded header": b"GET /ok HTTP/1.1\r\nHost: x\r\nX-A: a\r\n b\r\n\r\n",
    "space before the colon": b"GET /ok HTTP/1.1\r\nHost : x\r\n\r\n",
    "unknown transfer encoding": post(b"Transfer-Encoding: xchunked", body=b"0\r\n\r\n"),
    "two hosts": b"GET /ok HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "no host": b"GET /ok HTTP/1.1\r\n\r\n",
    "HTTP/0.9": b"GET /ok HTTP/0.9\r\nHost: x\r\n\r\n",
    "HTTP/2.0": b"GET /ok HTTP/2.0\r\nHost: x\r\n\r\n",
    "HTTP/3": b"GET /ok HTTP/3\r\nHost: x\r\n\r\n",
    "preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no version": b"GET /ok\r\n\r\n",
    "NUL in a header": b"GET /ok HTTP/1.1\r\nHost: x\r\nX-Request-ID: a\0b\r\n\r\n",
    "path of 16 KiB": b"GET /" + b"a" * 16384 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "header of 16 KiB": b"GET /ok HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 16384 + b"\r\n\r\n",
    "200 headers": b"GET /ok HTTP/1.1\r\nHost: x\r\n"
    + b"".join(b"X%d: a\r\n" % i for i in range(200))
    + b"\r\n",
    "lower-case method": b"get /ok HTTP/1.1\r\nHost: x\r\n\r\n",
    "unknown method": b"BREW /ok HTTP/1.1\r\nHost: x\r\n\r\n",
    "space in the path": b"GET /o k HTTP/1.1\r\nHost: x\r\n\r\n",
    "bytes above 0x7f in the path": b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
    "unclosed address in the URL": b"GET http://[::1 HTTP/1.1\r\nHost: x\r\n\r\n",
    "impossible port in the URL": b"GET http://a:99999999/ HTTP/1.1\r\nHost: x\r\n\r\n",
    "negative chunk": post(b"Transfer-Encoding: chunked", body=b"-1\r\n\r\n"),
    "chunk that is no number": post(b"Transfer-Encoding: chunked", body=b"zz\r\n\r\n"),
    "all byte values": bytes(range(256)) * 4,
    "hello of TLS": bytes.fromhex("160301010001000100fc0303") + bytes(200),
    "line of another protocol": b"EHLO site.example\r\n",
    "endless line": b"A" * 100_000,
}


@pytest.mark.parametrize("request_bytes", MALFORMED.values(), ids=MALFORMED.keys())
async def test_malformed_http_gets_a_json_400_one_line_and_a_closed_connection(
    request_bytes: bytes, log: LogEvents, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve({"/ok": answer_ok}) as server:
        client = await server.connect()
        await client.send(request_bytes)
        answer = await client.answer()
        assert await client.closed() == b""
        await client.close()
        assert (answer.status, answer.code) == (400, "invalid_request")
        assert answer.json["request_id"].encode() in answer.head
        assert b"Connection: close\r\n" in answer.head
        assert len(server.bad_requests) == 1
        assert server.bad_requests[0].isprintable()
        assert server.bad_requests[0].isascii()
        assert not log.records
        assert not caplog.records
        assert (await server.send(GET_OK)).status == 200


HARMLESS = {
    "way out of the tree": (b"GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n", 404),
    "bad percent signs": (b"GET /%zz%00%ff HTTP/1.1\r\nHost: x\r\n\r\n", 404),
    "bytes above 0x7f in a header": (b"GET /ok HTTP/1.1\r\nHost: x\r\nX-Request-ID: \xff\xfe\r\n\r\n", 200),
    "nonsense as host": (b"GET /ok HTTP/1.1\r\nHost: a:b:c[\r\n\r\n", 200),
    "asterisk": (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 404),
    "tunnel": (b"CONNECT a:80 HTTP/1.1\r\nHost: x\r\n\r\n", 404),
    "offer of HTTP/2": (b"GET /ok HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n", 200),
    "HTTP/1.0 without host": (b"GET /ok HTTP/1.0\r\n\r\n", 200),
    "line ends before the request": (b"\r\n\r\n" + GET_OK, 200),
}


@pytest.mark.parametrize(("request_bytes", "status"), HARMLESS.values(), ids=HARMLESS.keys())
async def test_odd_but_valid_http_is_answered(request_bytes: bytes, status: int) -> None:
    async with serve({"/ok": answer_ok}) as server:
        assert (await server.send(request_bytes)).status == status
        assert not server.bad_requests


async def test_a_line_too_long_and_a_bad_url_are_told_apart_from_other_faults() -> None:
    async with serve({"/ok": answer_ok}) as server:
        long = await server.send(MALFORMED["header of 16 KiB"])
        url = await server.send(MALFORMED["unclosed address in the URL"])
        assert "8190" in long.json["error"]["message"]
        assert "URL" in url.json["error"]["message"]


async def test_pipelined_requests_are_answered_in_order_and_garbage_behind_them_last() -> None:
    async with serve({"/ok": answer_ok}) as server:
        client = await server.connect()
        await client.send(GET_OK)
        await client.send(GET_OK.replace(b"/ok", b"/no") + GET_OK)
        assert [(await client.answer()).status for _ in range(3)] == [200, 404, 200]
        await client.send(b"\x01\x02\r\n\r\n")
        assert (await client.answer()).status == 400
        assert await client.closed() == b""
        await client.close()


async def drip(client: Client, data: bytes) -> None:
    """One byte at a time, for as long as the server takes them."""
    with contextlib.suppress(ConnectionError):
        for byte in data:
            await client.send(bytes([byte]))
            await asyncio.sleep(0.02)


async def test_a_connection_that_sends_nothing_or_drips_its_header_is_closed_at_the_deadline() -> None:
    async with serve({"/ok": answer_ok}, header_timeout_seconds=0.3) as server:
        started = loop_seconds()
        silent, dripping, blank = [await server.connect() for _ in range(3)]
        drips = [
            asyncio.create_task(drip(dripping, b"GET /ok HTTP/1.1\r\nX-Slow: " + b"a" * 1000)),
            asyncio.create_task(drip(blank, b"\r\n" * 500)),
        ]
        assert [await client.closed() for client in (silent, dripping, blank)] == [b""] * 3
        assert 0.2 < loop_seconds() - started < 5
        await asyncio.gather(*drips)
        for client in (silent, dripping, blank):
            await client.close()


async def test_the_header_deadline_spares_idle_keep_alive_and_starts_again_with_the_next_byte() -> None:
    async with serve({"/ok": answer_ok}, header_timeout_seconds=0.3) as server:
        client, clock = await server.connect(), await server.connect()
        await client.send(GET_OK)
        assert (await client.answer()).status == 200
        await clock.closed()  # a whole header time-out has passed
        await client.send(GET_OK)
        assert (await client.answer()).status == 200
        await client.send(b"GET /ok HTT")
        assert await client.closed() == b""
        for each in (client, clock):
            await each.close()


async def test_the_header_deadline_does_not_touch_a_request_at_work_though_more_bytes_arrive() -> None:
    release = asyncio.Event()

    async def wait(_request: web.Request) -> web.Response:
        await release.wait()
        return web.json_response({"ok": True})

    async with serve({"/wait": wait}, header_timeout_seconds=0.3) as server:
        client, clock = await server.connect(), await server.connect()
        await client.send(GET_OK.replace(b"/ok", b"/wait") + b"GET /wait HT")
        await clock.closed()
        await client.send(b"T")
        release.set()
        assert (await client.answer()).status == 200
        for each in (client, clock):
            await each.close()


async def connect_with_small_buffer(port: int) -> socket.socket:
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.setblocking(False)
    await asyncio.get_running_loop().sock_connect(peer, ("127.0.0.1", port))
    return peer


def shrink_send_buffer(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


async def gone(peer: socket.socket) -> None:
    """Reads what is left; returns when the server has dropped the connection."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(PATIENCE_SECONDS):
        with contextlib.suppress(ConnectionError):
            while await loop.sock_recv(peer, 65536):
                pass
    peer.close()


async def test_a_stream_that_nobody_reads_is_cut_and_its_handler_cancelled(log: LogEvents) -> None:
    cancelled = asyncio.Event()

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b": keepalive\n\n" * 1000)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with serve({"/stream": stream}, write_timeout_seconds=0.5) as server:
        peer = await connect_with_small_buffer(server.port)
        await asyncio.get_running_loop().sock_sendall(peer, GET_OK.replace(b"/ok", b"/stream"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await cancelled.wait()
        await gone(peer)
        assert len(log.named("reader_dropped")) == 1
        assert len(log.records) == 1


async def test_a_large_answer_that_nobody_reads_is_cut_too(log: LogEvents) -> None:
    async def large(_request: web.Request) -> web.Response:
        return web.Response(body=bytes(16 << 20))

    async with serve({"/large": large}, write_timeout_seconds=0.3) as server:
        peer = await connect_with_small_buffer(server.port)
        await asyncio.get_running_loop().sock_sendall(peer, GET_OK.replace(b"/ok", b"/large"))
        await log.wait_for("reader_dropped")
        await gone(peer)
        assert len(log.records) == 1


async def test_a_connection_that_closes_does_not_wait_for_ever_for_its_last_bytes_to_be_read(
    log: LogEvents,
) -> None:
    async def small(request: web.Request) -> web.Response:
        shrink_send_buffer(request)
        response = web.Response(body=bytes(MAX_UNSENT_BYTES))  # what is left of it does not pause writing
        response.force_close()
        return response

    async with serve({"/small": small}, write_timeout_seconds=0.3) as server:
        peer = await connect_with_small_buffer(server.port)
        await asyncio.get_running_loop().sock_sendall(peer, GET_OK.replace(b"/ok", b"/small"))
        await log.wait_for("reader_dropped")
        await gone(peer)


async def test_a_slow_reader_that_takes_something_in_time_gets_everything(log: LogEvents) -> None:
    size = 200 << 10

    async def large(request: web.Request) -> web.Response:
        shrink_send_buffer(request)
        return web.Response(body=bytes(size))

    async with serve({"/large": large}, write_timeout_seconds=0.5) as server:
        peer = await connect_with_small_buffer(server.port)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(peer, GET_OK.replace(b"/ok", b"/large"))
        started, received = loop_seconds(), 0
        while received < size:
            piece = await loop.sock_recv(peer, 65536)
            assert piece, "the server hung up on a reader who was taking its answer"
            received += len(piece)
            await asyncio.sleep(0.03)
        assert loop_seconds() - started > 0.6, "the reader was too fast to show anything"
        peer.close()
        assert not log.records


async def test_a_caller_who_leaves_cancels_the_handler() -> None:
    working, cancelled = asyncio.Event(), asyncio.Event()

    async def wait(_request: web.Request) -> web.Response:
        working.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    async with serve({"/wait": wait}) as server:
        client = await server.connect()
        await client.send(GET_OK.replace(b"/ok", b"/wait"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await working.wait()
            await client.close()
            await cancelled.wait()


async def test_an_exception_that_no_middleware_caught_is_a_json_500_with_one_traceback(
    log: LogEvents, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_request: web.Request) -> web.Response:
        raise RuntimeError("secret")

    async with serve({"/fail": fail}, with_middleware=False) as server:
        answer = await server.send(GET_OK.replace(b"/ok", b"/fail"))
        assert (answer.status, answer.code) == (500, "internal_error")
        assert b"secret" not in answer.body
        assert [record.getMessage() for record in log.records] == ["internal_error"]
        assert log.records[0].exc_info is not None
        assert [record.name for record in caplog.records] == [logger.name]


async def test_an_error_of_the_catalogue_that_no_middleware_caught_keeps_its_status() -> None:
    async def refuse(_request: web.Request) -> web.Response:
        raise CgError("not_found")

    async with serve({"/refuse": refuse}, with_middleware=False) as server:
        answer = await server.send(GET_OK.replace(b"/ok", b"/refuse"))
        assert (answer.status, answer.code) == (404, "not_found")


async def test_an_unknown_path_with_an_expectation_is_a_plain_404_and_never_asks_for_the_body() -> None:
    async with serve({"/ok": answer_ok}, lingering_seconds=0.1) as server:
        for expect in (b"100-continue", b"200-maybe"):
            request_head = post(b"Content-Length: 5", b"Expect: " + expect, body=b"").replace(b"/ok", b"/no")
            assert (await server.send(request_head)).status == 404


async def test_stopping_lets_requests_end_and_cancels_the_rest_after_one_deadline() -> None:
    working, finish, outcomes = asyncio.Event(), asyncio.Event(), []

    async def wait(request: web.Request) -> web.Response:
        working.set()
        try:
            await (finish.wait() if request.path == "/short" else asyncio.Event().wait())
        except asyncio.CancelledError:
            outcomes.append("cancelled")
            raise
        return web.json_response({"ok": True})

    async with serve({"/short": wait, "/endless": wait}, shutdown_timeout_seconds=1.0) as server:
        short, endless = await server.connect(), await server.connect()
        for client, path in ((endless, b"/endless"), (short, b"/short")):
            working.clear()
            await client.send(GET_OK.replace(b"/ok", path))
            await working.wait()
        started = loop_seconds()
        stopping = asyncio.create_task(server.runner.cleanup())
        asyncio.get_running_loop().call_later(0.1, finish.set)
        assert (await short.answer()).status == 200
        await stopping
        assert 0.9 < loop_seconds() - started < 1.8
        assert await endless.closed() == b""
        assert outcomes == ["cancelled"]
        for client in (short, endless):
            await client.close()


async def test_running_out_of_file_descriptors_is_one_line_and_other_reports_stay(
    log: LogEvents, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.get_running_loop()
    quiet_accept_errors(loop)
    reason = OSError(24, "Too many open files")
    for _ in range(128):
        loop.call_exception_handler(
            {"message": "socket.accept() out of system resource", "exception": reason}
        )
    loop.call_exception_handler({"message": "something else"})
    assert len(log.named("accept_failed")) == 1
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == [
        "something else"
    ]


def test_asyncio_still_reports_lack_of_descriptors_in_the_words_we_look_for() -> None:
    import asyncio.selector_events as source
    import inspect

    assert "'socket.accept() out of system resource'" in inspect.getsource(source)


@pytest.mark.parametrize("name", ["_waiter", "_messages", "_lingering_time", "_loop", "_task_handler"])
async def test_aiohttp_still_has_the_private_names_of_a_connection(name: str) -> None:
    handler = RequestHandler(web.Server(answer_ok), loop=asyncio.get_running_loop())  # type: ignore[arg-type]
    assert hasattr(handler, name)


@pytest.mark.parametrize("name", ["_kwargs", "_loop"])
async def test_aiohttp_still_has_the_private_names_of_a_server(name: str) -> None:
    assert hasattr(web.Server(answer_ok), name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    [
        "connection_made",
        "connection_lost",
        "data_received",
        "pause_writing",
        "resume_writing",
        "start",
        "finish_response",
        "handle_error",
        "log_exception",
        "force_close",
        "close",
    ],
)
def test_aiohttp_still_has_the_methods_that_a_connection_overrides_or_calls(name: str) -> None:
    assert callable(getattr(RequestHandler, name))
    assert callable(getattr(Connection, name))


def test_aiohttp_still_makes_its_server_where_the_runner_replaces_it() -> None:
    assert asyncio.iscoroutinefunction(web.AppRunner._make_server)
