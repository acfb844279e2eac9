"""A process that does nothing but stream, for measuring memory and descriptors: prints its port, ends with its stdin.

GET /stream?n=100&sz=60   n answer tokens of sz characters, then `final`; &pause=SECONDS between them
GET /health               nothing
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from aiohttp import web

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cg_rag.core.connection import make_runner
from cg_rag.core.events import Event, Final, Token
from cg_rag.core.log import setup_logging
from cg_rag.core.sse_stream import follow_streams, stream_events
from cg_rag.core.web import REQUEST_ID, make_edge

WRITE_TIMEOUT_SECONDS = 10.0


async def tokens(num_tokens: int, width: int, pause: float) -> AsyncIterator[Event]:
    for number in range(num_tokens):
        yield Token("answer", f"{number:{width}}")
        if pause:
            await asyncio.sleep(pause)
    yield Final({"ok": True, "num_tokens": num_tokens})


async def stream(request: web.Request) -> web.StreamResponse:
    query = request.query
    num_tokens, width, pause = int(query["n"]), int(query["sz"]), float(query.get("pause", 0))
    return await stream_events(
        request,
        lambda: tokens(num_tokens, width, pause),
        heartbeat_seconds=1,
        request_id=request[REQUEST_ID],
    )


async def health(_request: web.Request) -> web.Response:
    return web.json_response({})


async def main() -> None:
    setup_logging("INFO", "json")
    app = web.Application(middlewares=[make_edge({})])
    app.router.add_get("/stream", stream)
    app.router.add_get("/health", health)
    follow_streams(app, 2.0)
    runner = make_runner(
        app,
        header_timeout_seconds=10,
        write_timeout_seconds=WRITE_TIMEOUT_SECONDS,
        shutdown_timeout_seconds=2.0,
    )
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
