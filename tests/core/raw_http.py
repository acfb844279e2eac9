"""A server made by `make_runner` on a free port, and raw bytes sent to it: what no HTTP client would send."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from cg_rag.core.connection import make_runner
from cg_rag.core.errors import CgError, error_body
from tests.steady_clock import steady_clock

PATIENCE_SECONDS = 10.0


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except CgError as error:
        body = orjson.dumps(error_body(error, "req_test"))
        headers = {**error.headers, "Content-Type": "application/json"}
        return web.Response(body=body, status=error.status, headers=headers)
    except web.HTTPException as error:
        return web.json_response({"error": {"code": str(error.status)}}, status=error.status)


@dataclass
class Server:
    port: int
    runner: web.AppRunner
    bad_requests: list[str] = field(default_factory=list)

    async def connect(self, **options: Any) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, **options)
        return Client(reader, writer)

    async def send(self, *parts: bytes) -> Answer:
        """One connection, all parts, one answer."""
        client = await self.connect()
        try:
            for part in parts:
                await client.send(part)
            return await client.answer()
        finally:
            await client.close()


@asynccontextmanager
async def serve(
    handlers: Mapping[str, Handler], *, with_middleware: bool = True, **options: Any
) -> AsyncIterator[Server]:
    """`handlers` maps a path to what answers GET and POST there."""
    app = web.Application(middlewares=[errors_as_json] if with_middleware else [])
    for path, handler in handlers.items():
        app.router.add_route("*", path, handler)
    lines: list[str] = []
    defaults = {"header_timeout_seconds": 5.0, "write_timeout_seconds": 5.0, "shutdown_timeout_seconds": 1.0}
    runner = make_runner(app, on_bad_request=lines.append, **{**defaults, **options})
    async with steady_clock():
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield Server(runner.addresses[0][1], runner, lines)
        finally:
            await runner.cleanup()


@dataclass(frozen=True)
class Answer:
    status: int
    head: bytes
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def code(self) -> str:
        code: str = self.json["error"]["code"]
        return code


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> Answer:
        async with asyncio.timeout(PATIENCE_SECONDS):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", head)
            body = await self.reader.readexactly(int(length[1])) if length else b""
        return Answer(int(head.split(b" ", 2)[1]), head, body)

    async def closed(self) -> bytes:
        """Waits until the server has closed; what it had still sent."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            return


async def until(condition: Callable[[], bool]) -> None:
    """Lets the loop turn until `condition` holds; for states that announce themselves by no event."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0)


class LogEvents(logging.Handler):
    """The records of the service's logger, and a way to wait for one."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self._arrived = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self._arrived.set()

    def named(self, event: str) -> list[logging.LogRecord]:
        return [record for record in self.records if record.getMessage() == event]

    async def wait_for(self, event: str) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not self.named(event):
                self._arrived.clear()
                await self._arrived.wait()
