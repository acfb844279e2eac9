from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

from cg_rag.core.body import LongString, _pace, read_json_object
from cg_rag.core.capacity import Limiter
from tests.core.raw_http import PATIENCE_SECONDS, Answer, Client, Server, serve, until
from tests.steady_clock import steady_clock

MAX_BYTES = 2 << 20


@dataclass
class Reading:
    """A route that reads its body, and what it saw."""

    inflight: Limiter = field(default_factory=lambda: Limiter("request_body", 8 << 20, 0.1))
    idle_timeout_seconds: float = 5.0
    max_bytes: int = MAX_BYTES
    bodies: list[dict[str, Any]] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    hold: asyncio.Event | None = None

    async def answer(self, request: web.Request) -> web.Response:
        try:
            body = await read_json_object(
                request,
                max_bytes=self.max_bytes,
                inflight=self.inflight,
                idle_timeout_seconds=self.idle_timeout_seconds,
            )
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        self.bodies.append(body)
        self.held.append(self.inflight.in_use)
        if self.hold is not None:
            await self.hold.wait()
        return web.json_response({"num_keys": len(body)})

    @asynccontextmanager
    async def served(self, **options: Any) -> AsyncIterator[Server]:
        async with serve({"/read": self.answer}, **options) as server:
            yield server
        async with steady_clock(), asyncio.timeout(1):
            await until(lambda: self.inflight.in_use == self.inflight.snapshot()["waiting"] == 0)


def head(*headers: bytes, content_type: bytes = b"application/json") -> bytes:
    lines = [b"POST /read HTTP/1.1", b"Host: x", b"Content-Type: " + content_type, *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def request_of(body: bytes, *headers: bytes, content_type: bytes = b"application/json") -> bytes:
    return head(b"Content-Length: %d" % len(body), *headers, content_type=content_type) + body


def chunked(*chunks: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)


async def closed_after(client: Client) -> Answer:
    """One answer, and nothing but the end after it."""
    answer = await client.answer()
    assert await client.closed() == b""
    await client.close()
    return answer


async def test_a_body_is_read_and_held_in_flight_until_its_request_ends() -> None:
    reading = Reading()
    body = orjson.dumps({"query": "脚手架", "picture": "A" * 100_000})
    async with reading.served() as server:
        answer = await server.send(request_of(body))
        assert answer.json == {"num_keys": 2}
    assert reading.bodies[0]["query"] == "脚手架"
    assert isinstance(reading.bodies[0]["picture"], LongString)
    assert reading.held == [len(body)]


async def test_a_chunked_body_is_counted_as_it_comes() -> None:
    reading = Reading()
    body = orjson.dumps({"picture": "A" * 300_000})
    pieces = [body[start : start + 10_000] for start in range(0, len(body), 10_000)]
    async with reading.served() as server:
        answer = await server.send(head(b"Transfer-Encoding: chunked"), chunked(*pieces), b"0\r\n\r\n")
        assert answer.status == 200
    assert reading.bodies[0]["picture"].text() == "A" * 300_000
    assert reading.held == [len(body)]


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        (b"application/json", 200),
        (b"Application/JSON; charset=UTF-8", 200),
        (b'application/json;charset="utf8"', 200),
        (b"application/json; profile=x", 200),
        (b"application/json; charset=gbk", 415),
        (b"application/json; charset=", 415),
        (b"text/plain", 415),
        (b"text/json", 415),
        (b"application/json-patch+json", 415),
        (b"application/json, text/plain", 415),
        (b"", 415),
        (b";;=\xff", 415),
        (b"multipart/form-data; boundary=x", 415),
    ],
)
async def test_only_json_in_utf8_is_a_media_type_we_read(content_type: bytes, status: int) -> None:
    async with Reading().served() as server:
        assert (await server.send(request_of(b"{}", content_type=content_type))).status == status


async def test_two_content_types_and_none_are_refused() -> None:
    async with Reading().served() as server:
        twice = await server.send(request_of(b"{}", b"Content-Type: text/plain"))
        none = await server.send(b"POST /read HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
    assert none.code == "unsupported_media_type"
    assert twice.status in (400, 415)


ENCODED = {
    "gzip": gzip.compress(b'{"query":"a"}'),
    "GZIP": b"not gzip",
    "gzip, identity": b"{}",
    "deflate": zlib.compress(bytes(64 << 20), 9),
    "br": b"xx",
    "zstd": b"xx",
    "x-unknown": b"{}",
}


@pytest.mark.parametrize(("encoding", "body"), ENCODED.items(), ids=ENCODED.keys())
async def test_any_content_encoding_is_refused_unread(encoding: str, body: bytes) -> None:
    reading = Reading()
    async with reading.served() as server:
        before = resident_bytes()
        answer = await server.send(request_of(body, b"Content-Encoding: " + encoding.encode()))
        assert (answer.status, answer.code) == (415, "unsupported_media_type")
        assert resident_bytes() - before < 16 << 20
        identity = await server.send(request_of(b"{}", b"Content-Encoding: identity"))
        assert identity.status == 200


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def test_a_declared_size_over_the_limit_is_refused_before_a_byte_of_it_is_sent() -> None:
    async with Reading().served(lingering_seconds=0.1) as server:
        answer = await server.send(head(b"Content-Length: 10737418240"))
    assert (answer.status, answer.code) == (413, "payload_too_large")
    assert "10737418240 字节，超过上限 2097152 字节" in answer.json["error"]["message"]
    assert answer.json["error"]["details"] == {"max_bytes": MAX_BYTES}


async def test_size_is_judged_before_media_type_and_media_type_before_room() -> None:
    reading = Reading()
    async with reading.served(lingering_seconds=0.1) as server:
        huge = head(b"Content-Length: 10737418240", content_type=b"text/plain")
        assert (await server.send(huge)).status == 413
        full = await reading.inflight.take(8 << 20)
        assert (await server.send(request_of(b"{}", content_type=b"text/plain"))).status == 415
        assert (await server.send(request_of(b"{}"))).status == 429
        full.release()


async def test_a_sender_of_a_body_over_the_limit_sees_the_413_and_nothing_of_it_is_kept() -> None:
    size = 48 << 20
    block = b"A" * 65536
    async with Reading().served() as server:
        client = await server.connect()
        before = resident_bytes()
        await client.send(head(b"Content-Length: %d" % size))
        for _ in range(size // len(block)):
            await client.send(block)
        answer = await client.answer()
        assert answer.code == "payload_too_large"
        assert resident_bytes() - before < 12 << 20
        await client.send(request_of(b"{}"))  # all was discarded, so the connection is still good
        assert (await client.answer()).status == 200
        await client.close()


async def test_an_endless_chunked_body_is_refused_as_soon_as_it_passes_the_limit() -> None:
    reading = Reading()
    async with reading.served(lingering_seconds=0.1) as server:
        client = await server.connect()
        await client.send(head(b"Transfer-Encoding: chunked") + chunked(b'{"a":"'))
        for _ in range(MAX_BYTES // 65536):
            await client.send(chunked(b"A" * 65536))
        answer = await client.answer()
        assert (answer.status, answer.code) == (413, "payload_too_large")
        await client.close()
    assert not reading.bodies


async def test_a_body_that_pauses_too_long_is_a_408_and_the_connection_is_closed() -> None:
    # Nobody waits so long for the end: what is left of the body is not discarded first.
    async with Reading(idle_timeout_seconds=0.2).served(lingering_seconds=600.0) as server:
        client = await server.connect()
        await client.send(head(b"Content-Length: 50") + b'{"a"')
        answer = await closed_after(client)
    assert (answer.status, answer.code) == (408, "request_timeout")


async def test_a_body_that_drips_for_ever_is_a_408_though_it_never_pauses() -> None:
    async with Reading(idle_timeout_seconds=0.3).served() as server:
        client = await server.connect()
        await client.send(head(b"Content-Length: 100000") + b'{"a":"')
        answered = asyncio.create_task(closed_after(client))
        while not answered.done():
            client.writer.write(b"a")
            await asyncio.sleep(0.02)
        assert (await answered).code == "request_timeout"


@pytest.mark.parametrize(("declared", "status"), [(20_000, 200), (96 << 20, 408)])
async def test_room_for_a_large_body_is_not_kept_for_one_that_comes_at_the_pace_of_a_small_one(
    declared: int, status: int
) -> None:
    # 25 KiB/s are three times what a small body needs; 96 MiB would hold their room for more than an hour.
    room = Limiter("request_body", 128 << 20, 0.1)
    async with Reading(inflight=room, idle_timeout_seconds=0.3, max_bytes=96 << 20).served() as server:
        client = await server.connect()
        await client.send(head(b"Content-Length: %d" % declared) + b'{"a":"')
        answered = asyncio.create_task(client.answer())
        rest = b"A" * (declared - 8) + b'"}' if declared < 1 << 20 else b"A" * (1 << 20)
        for start in range(0, len(rest), 512):
            if answered.done():
                break
            client.writer.write(rest[start : start + 512])
            await asyncio.sleep(0.02)
        assert (await answered).status == status
        await client.close()


def test_the_pace_grows_with_the_body_and_gives_every_size_ten_minutes_at_most() -> None:
    assert _pace(0) == _pace(4 << 20) == 8 * 1024
    for size in (5 << 20, 96 << 20, 1 << 30):
        assert size / _pace(size) == pytest.approx(min(600, size / 8192))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"a":NaN}',
        b"{} {}",
        b'{"a":"\xff"}',
        b'{"a":' + b"[" * 500 + b"]" * 500 + b"}",
        b"[" * 100_000,
    ],
)
async def test_a_body_that_is_no_proper_json_object_is_a_400_and_the_connection_stays(body: bytes) -> None:
    async with Reading().served() as server:
        client = await server.connect()
        await client.send(request_of(body))
        assert (await client.answer()).code == "invalid_request"
        await client.send(request_of(b"{}"))
        assert (await client.answer()).status == 200
        await client.close()


async def test_a_body_whose_chunks_turn_malformed_gets_one_400_and_the_end() -> None:
    reading = Reading()
    async with reading.served() as server:
        client = await server.connect()
        await client.send(head(b"Transfer-Encoding: chunked") + chunked(b'{"a":'))
        await until(lambda: reading.inflight.in_use > 0)
        await client.send(b"zz\r\n1}\r\n0\r\n\r\n")
        answer = await closed_after(client)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "chunked" in answer.json["error"]["message"]


async def test_garbage_behind_a_complete_body_does_not_spoil_it() -> None:
    hold = asyncio.Event()
    reading = Reading(hold=hold)
    async with reading.served() as server:
        client = await server.connect()
        await client.send(request_of(b'{"a":1}'))
        await until(lambda: len(reading.bodies) > 0)
        await client.send(b"GARBAGE\r\n\r\n")
        await until(lambda: bool(server.runner.server.connections[0]._messages))
        hold.set()
        assert (await client.answer()).status == 200
        assert (await closed_after(client)).status == 400


async def test_a_sender_who_leaves_halfway_cancels_the_reading_and_frees_its_room() -> None:
    reading = Reading()
    async with reading.served() as server:
        client = await server.connect()
        await client.send(head(b"Content-Length: 100000") + b'{"a":"')
        await until(lambda: reading.inflight.in_use > 0)
        await client.close()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await reading.cancelled.wait()


async def test_a_body_beyond_the_bytes_in_flight_waits_and_then_is_a_429_with_retry_after() -> None:
    hold = asyncio.Event()
    reading = Reading(inflight=Limiter("request_body", 1000, 0.1), hold=hold)
    async with reading.served() as server:
        first = await server.connect()
        await first.send(request_of(b'{"a":"' + b"A" * 700 + b'"}'))
        second = await server.connect()
        await until(lambda: len(reading.held) > 0)
        await second.send(request_of(b'{"a":"' + b"A" * 700 + b'"}'))
        refused = await second.answer()
        assert (refused.status, refused.code) == (429, "capacity.exceeded")
        assert b"Retry-After: 1\r\n" in refused.head
        assert refused.json["error"]["details"]["resource"] == "request_body"
        hold.set()
        assert (await first.answer()).status == 200
        await first.close()
        await second.close()


async def test_expect_100_is_answered_once_the_headers_are_accepted() -> None:
    async with Reading().served(lingering_seconds=0.1) as server:
        client = await server.connect()
        await client.send(head(b"Content-Length: 2", b"Expect: 100-Continue"))
        assert (await client.answer()).status == 100
        await client.send(b"{}")
        assert (await client.answer()).status == 200
        await client.close()


async def test_a_fault_after_the_interim_answer_is_still_answered_without_any_middleware() -> None:
    async with Reading().served(with_middleware=False) as server:
        client = await server.connect()
        await client.send(head(b"Content-Length: 2", b"Expect: 100-continue"))
        assert (await client.answer()).status == 100
        await client.send(b"[]")
        assert (await client.answer()).code == "invalid_request"
        await client.close()


@pytest.mark.parametrize(
    ("headers", "content_type", "status"),
    [
        ((b"Content-Length: 99999999",), b"application/json", 413),
        ((b"Content-Length: 2",), b"text/plain", 415),
        ((b"Content-Length: 2", b"Content-Encoding: gzip"), b"application/json", 415),
    ],
)
async def test_expect_100_is_not_answered_when_the_headers_are_refused(
    headers: tuple[bytes, ...], content_type: bytes, status: int
) -> None:
    async with Reading().served(lingering_seconds=0.1) as server:
        answer = await server.send(head(b"Expect: 100-continue", *headers, content_type=content_type))
        assert answer.status == status


async def test_expect_100_is_not_answered_when_there_is_no_room() -> None:
    reading = Reading()
    async with reading.served(lingering_seconds=0.1) as server:
        full = await reading.inflight.take(8 << 20)
        answer = await server.send(head(b"Expect: 100-continue", b"Content-Length: 2"))
        assert answer.status == 429
        full.release()


async def test_an_unknown_expectation_is_a_json_400() -> None:
    async with Reading().served() as server:
        answer = await server.send(request_of(b"{}", b"Expect: 200-ok"))
        assert (answer.status, answer.code) == (400, "invalid_request")
