"""The service that `cg-rag eval vision` asks: one that runs elsewhere, or one started in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from cg_rag.core.connection import make_runner
from cg_rag.core.photo_asking import AskingStopped
from cg_rag.core.photo_client import PhotoClient, Reply, base_url
from cg_rag.core.settings import Settings
from cg_rag.core.web import BASE_PATH
from cg_rag.modes.http_app import build_app
from cg_rag.modes.services import make_services

READY_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class EvaluatedService:
    """A service that answers, and what it says of itself."""

    client: PhotoClient
    health: Mapping[str, Any]


@asynccontextmanager
async def open_elsewhere(url: str, settings: Settings, seconds: float) -> AsyncIterator[EvaluatedService]:
    """A running one at `url`, which `base_url` takes, asked with the first key of `settings`. Raises AskingStopped."""
    base = base_url(url)
    assert base is not None, "checked before"
    client = PhotoClient(base, _key(settings), seconds)
    try:
        yield EvaluatedService(client, _said(await client.health()))
    finally:
        await client.close()


@asynccontextmanager
async def open_here(
    settings: Settings, version: str, profile: str | None, seconds: float, *, needs_index: bool
) -> AsyncIterator[EvaluatedService]:
    """One in this process, on a free port of 127.0.0.1, with the vision profile `profile` instead of the settings'.
    `seconds` are what one photo may take. Raises AskingStopped."""
    vision = settings.vision.model_copy(update={"profile": profile} if profile else {})
    quiet = settings.mcp.model_copy(update={"enabled": False})
    services = make_services(settings.model_copy(update={"vision": vision, "mcp": quiet}))
    runner = make_runner(
        build_app(services, version),
        header_timeout_seconds=settings.server.header_timeout_seconds,
        write_timeout_seconds=settings.server.write_timeout_seconds,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}{BASE_PATH}"
        client = PhotoClient(url, _key(settings), seconds)
        try:
            yield EvaluatedService(client, await _loaded(client, needs_index))
        finally:
            await client.close()
    finally:
        await runner.cleanup()


def _key(settings: Settings) -> str:
    return next((key.get_secret_value() for key in settings.server.api_keys.values()), "")


async def _loaded(client: PhotoClient, needs_index: bool) -> Mapping[str, Any]:
    """What the service says once its index is open, which takes seconds."""
    ends = asyncio.get_running_loop().time() + READY_SECONDS
    while True:
        health = _said(await client.health())
        if not needs_index or health.get("index", {}).get("state") != "loading":
            return health
        if asyncio.get_running_loop().time() > ends:
            raise AskingStopped(f"索引在 {READY_SECONDS:.0f} 秒内没有打开。")
        await asyncio.sleep(0.05)


def _said(reply: Reply) -> Mapping[str, Any]:
    if reply.payload is None:
        raise AskingStopped(f"{reply.message}。")
    if reply.payload.get("vision", {}).get("configured") is False:
        raise AskingStopped("该服务没有配置视觉模型，请设置 vision.endpoint 与 vision.model。")
    return reply.payload
