"""The MCP endpoint over tools made for tests, as a process: long work, progress, pictures, failures.

    python tests/mcp_process.py serve --config FILE --port 0

The configuration is the service's; CG_RAG_TEST_PING_SECONDS and CG_RAG_TEST_PROGRESS_SECONDS shorten the beats. Beside
the endpoint there are POST /cg-rag/plain (test_slow without MCP), GET /cg-rag/state (tasks, slots and bytes in use) and GET /cg-rag/busiest: the most CPU time, in
milliseconds, that the event loop spent between two turns of a task since it was last asked; other load on the machine
does not count in it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

from aiohttp import web

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cg_rag.core.body import LongString, read_json_object
from cg_rag.core.capacity import Limiter
from cg_rag.core.config import load
from cg_rag.core.errors import CgError
from cg_rag.core.log import log_event, setup_logging
from cg_rag.core.mcp_http import McpEndpoint, McpOptions
from cg_rag.core.memory import give_back, share_arenas
from cg_rag.core.serving import run_app
from cg_rag.core.settings import Settings
from cg_rag.core.sse_stream import follow_streams
from cg_rag.core.tools import Report, Tool
from cg_rag.core.web import make_edge

SLOTS = 5000
MAX_BODY_BYTES = 96 * 1024 * 1024


def schema(**properties: str) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": kind} for name, kind in properties.items()}}


def make_tools(slots: Limiter) -> dict[str, Tool]:
    async def slow(arguments: dict[str, Any], _request_id: str, report: Report) -> dict[str, Any]:
        async with slots.slot():
            log_event(logging.INFO, "slow_began")
            try:
                for stage in range(arguments.get("stages", 0)):
                    report(f"第 {stage + 1} 步")
                    await asyncio.sleep(0)
                await asyncio.sleep(arguments["seconds"])
            except asyncio.CancelledError:
                log_event(logging.INFO, "slow_cancelled")
                raise
        return {"ok": True}

    async def busy(arguments: dict[str, Any], _request_id: str, report: Report) -> dict[str, Any]:
        for number in range(arguments["reports"]):
            report(f"第 {number + 1} 次")
            await asyncio.sleep(0)
        log_event(logging.INFO, "busy_ended")
        return {"ok": True}

    async def pictures(arguments: dict[str, Any], _request_id: str, _report: Report) -> dict[str, Any]:
        data = [image["data"] for image in arguments["images"]]
        return {
            "ok": True,
            "num_bytes": [one.num_bytes if isinstance(one, LongString) else len(one) for one in data],
        }

    async def big(arguments: dict[str, Any], _request_id: str, _report: Report) -> dict[str, Any]:
        return {"ok": True, "text": "字" * arguments["characters"]}

    async def fail(arguments: dict[str, Any], _request_id: str, _report: Report) -> dict[str, Any]:
        if arguments["code"] == "none":
            raise RuntimeError("a secret of the inside")
        if arguments["code"] == "business":
            return {
                "ok": False,
                "error": {"code": "generation_not_configured", "message": "未配置", "details": {}},
            }
        raise CgError(
            arguments["code"], details={"resource": "retrieval", "max": 16, "wait_timeout_seconds": 5.0}
        )

    tools = [
        Tool("test_slow", "慢", "慢慢做", schema(seconds="number", stages="integer"), slow),
        Tool("test_busy", "忙", "报很多次进度", schema(reports="integer"), busy),
        Tool("test_pictures", "图", "数一数字节", schema(images="array"), pictures),
        Tool("test_big", "大", "很长的回答", schema(characters="integer"), big),
        Tool("test_fail", "错", "失败", schema(code="string"), fail),
    ]
    return {tool.name: tool for tool in tools}


class BusyWatch:
    """Looks at the event loop every millisecond, from the first time it is asked on."""

    def __init__(self) -> None:
        self._busiest = self._last = 0.0
        self._task: asyncio.Task[None] | None = None

    async def _watch(self) -> None:
        while True:
            self._last = time.thread_time()
            await asyncio.sleep(0.001)
            self._busiest = max(self._busiest, time.thread_time() - self._last)

    async def answer(self, _request: web.Request) -> web.Response:
        if self._task is None:
            self._task = asyncio.create_task(self._watch())
        busiest, self._busiest = self._busiest, 0.0
        return web.json_response({"ms": busiest * 1000})


def build_app(settings: Settings) -> web.Application:
    slots = Limiter("generation", SLOTS, settings.capacity.wait_timeout_seconds)
    body_bytes = Limiter(
        "request_body", settings.server.max_inflight_body_bytes, settings.capacity.wait_timeout_seconds
    )

    async def read(request: web.Request) -> dict[str, Any]:
        return await read_json_object(
            request,
            max_bytes=MAX_BODY_BYTES,
            inflight=body_bytes,
            idle_timeout_seconds=settings.server.body_idle_timeout_seconds,
        )

    async def plain(request: web.Request) -> web.Response:
        arguments = (await read(request))["params"]["arguments"]
        async with slots.slot():
            await asyncio.sleep(arguments["seconds"])
        return web.json_response({"ok": True})

    async def state(_request: web.Request) -> web.Response:
        gc.collect()
        give_back()
        tasks = len(asyncio.all_tasks())
        return web.json_response(
            {
                "tasks": tasks,
                "slots": slots.in_use,
                "body_bytes": body_bytes.in_use,
                "calls": len(endpoint.calls),
            }
        )

    options = McpOptions(
        version="0",
        instructions="测试",
        allowed_origins=settings.mcp.allowed_origins,
        answer_bytes=body_bytes,
        large_answer_bytes=256 * 1024,
        ping_seconds=float(os.environ.get("CG_RAG_TEST_PING_SECONDS", "15")),
        progress_seconds=float(os.environ.get("CG_RAG_TEST_PROGRESS_SECONDS", "10")),
    )
    endpoint = McpEndpoint(make_tools(slots), read, options)
    app = web.Application(middlewares=[make_edge(settings.server.api_keys)])
    for path in ("/cg-rag/mcp", "/cg-rag/mcp/"):
        app.router.add_route("*", path, endpoint.handle)
    app.router.add_post("/cg-rag/plain", plain)
    app.router.add_get("/cg-rag/state", state)
    app.router.add_get("/cg-rag/busiest", BusyWatch().answer)
    follow_streams(app, settings.server.shutdown_timeout_seconds)
    return app


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--port", type=int, default=0)
    args = parser.parse_args()
    settings = load(args.config, {}, flags={"server.port": args.port}).settings
    setup_logging(settings.log.level, settings.log.format)
    share_arenas()
    return run_app(lambda: build_app(settings), settings.server, "0", lambda url: None)


if __name__ == "__main__":
    sys.exit(main())
