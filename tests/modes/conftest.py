"""The service in this process over a small index with vectors, and how to ask it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cg_rag.index.build import SourceSpec, build_index
from cg_rag.index.embedder import OnnxEmbedder
from cg_rag.index.models import E5_SMALL_ZH
from cg_rag.modes.services import Services
from tests.app_in_process import apps_in_process
from tests.fake_upstream import FakeUpstream
from tests.steady_clock import steady_clock

SAMPLE = Path(__file__).resolve().parent.parent.parent / "index" / "sample"
RERANK_OFF = "  rerank: {method: fused}\n"


@pytest.fixture(scope="session")
def vector_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled standards (71 articles) with vectors. Not to be changed: copy it first."""
    index_dir = tmp_path_factory.mktemp("vectors") / "index"
    spec = SourceSpec(SAMPLE / "standards.jsonl", "standards", ())
    build_index([spec], index_dir, None, embedder=OnnxEmbedder(E5_SMALL_ZH))
    return index_dir


@pytest.fixture
async def start(vector_index: Path, tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """`rerank` is a line of the configuration: off where it is not what is tested, since each question costs a
    quarter of a second. `options` go to make_services."""
    async with apps_in_process(tmp_path / "config.yaml") as begin:

        async def begin_here(
            settings: str = "", index_dir: Path = vector_index, rerank: str = RERANK_OFF, **options: Any
        ) -> tuple[Services, str]:
            services, url = await begin(rerank + settings, index_dir, **options)
            return services, url

        yield begin_here


async def ask(url: str, query: str, **fields: Any) -> tuple[int, dict[str, Any]]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/retrieve-rerank", json={"query": query, **fields}) as response,
    ):
        return response.status, await response.json()


async def health(url: str) -> dict[str, Any]:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/health") as response:
        body: dict[str, Any] = await response.json()
        return body


async def leave_while_asked(
    query: str, url: str, services: Services, server: FakeUpstream, num_requests: int = 2
) -> None:
    """Ask, leave when the upstream has so many requests, and see the call cut and the slot given back."""
    asking = asyncio.create_task(ask(url, query))
    async with asyncio.timeout(30):
        while len(server.requests) < num_requests:
            await asyncio.sleep(0.01)
    asking.cancel()
    async with steady_clock(), asyncio.timeout(2):
        while services.retrieval_slots.in_use or not server.num_disconnects:
            await asyncio.sleep(0.01)
