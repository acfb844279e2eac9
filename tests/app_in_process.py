"""The application behind a real port of this process, where a test can reach what it is made of."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from cg_rag.core.config import load
from cg_rag.core.connection import make_runner
from cg_rag.modes.http_app import build_app
from cg_rag.modes.services import Services, make_services

LOAD_SECONDS = 30.0


@asynccontextmanager
async def apps_in_process(config: Path) -> AsyncIterator[Callable[..., Any]]:
    """`services, url = await begin("…settings…", index_dir)`, the index loaded; all are stopped at the end.
    `options` go to make_services."""
    runners: list[web.AppRunner] = []

    async def begin(
        settings: str, index_dir: Path, poll_seconds: float = 0, **options: Any
    ) -> tuple[Services, str]:
        services = _services(config, settings, index_dir, poll_seconds, options)
        runner = make_runner(build_app(services, "0"), header_timeout_seconds=5, write_timeout_seconds=5)
        runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with asyncio.timeout(LOAD_SECONDS):
            while services.library.snapshot.state == "loading":
                await asyncio.sleep(0.001)
        return services, f"http://127.0.0.1:{runner.addresses[0][1]}/cg-rag"

    try:
        yield begin
    finally:
        for runner in runners:
            await runner.cleanup()


def _services(
    config: Path, settings: str, index_dir: Path, poll_seconds: float, options: dict[str, Any]
) -> Services:
    index = {"dir": str(index_dir), "poll_seconds": poll_seconds}
    config.write_text(f"cg_rag:\n  index: {json.dumps(index)}\n{settings}", "utf-8")
    return make_services(load(config, {}).settings, **options)
