"""The service with a scripted vision model in this process, for whole conversations over real sockets."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import aiohttp
from aiohttp import web

from cg_rag.core.budget import Budget
from cg_rag.core.config import load
from cg_rag.core.connection import make_runner
from cg_rag.modes import vision_intake
from cg_rag.modes.http_app import build_app
from cg_rag.modes.services import Services, make_services
from cg_rag.modes.upstreams import Upstream
from tests.agentic_scenarios import PICTURE, Scenario
from tests.conftest import PROFILES
from tests.fake_upstream import FakeUpstream
from tests.sse_checker import StreamChecker
from tests.steady_clock import loop_seconds, steady_clock

REQUEST_ID = "req-golden"


@dataclass
class App:
    url: str
    services: Services
    upstream: FakeUpstream

    async def post(self, path: str = "/vision/agentic", **fields: Any) -> tuple[int, bytes]:
        body = {"images": [PICTURE]} | fields
        async with (
            aiohttp.ClientSession() as session,
            session.post(self.url + path, json=body, headers={"X-Request-ID": REQUEST_ID}) as response,
        ):
            return response.status, await response.read()

    async def stream(self, **fields: Any) -> StreamChecker:
        status, body = await self.post("/vision/agentic/stream", **fields)
        assert status == 200
        return StreamChecker(body)


@asynccontextmanager
async def agentic_app(
    folder: Path, index_dir: Path, scenario: Scenario, more: str = "", **vision: Any
) -> AsyncIterator[App]:
    """Ready to be asked; the model says what the scenario has it say. `vision` are settings of that section.

    All time-outs and budgets, of the service and of the test, are on the steady clock (`loop_seconds`)."""
    if scenario.index == "broken":
        shutil.copytree(index_dir, folder / "index")
        index_dir = folder / "index"
    steady_budget = mock.patch.object(vision_intake, "Budget", partial(Budget, clock=loop_seconds))
    async with steady_clock(), FakeUpstream() as upstream:
        upstream.enqueue(*scenario.replies)
        vision |= {"endpoint": upstream.url, "model": "vlm", "profile": scenario.profile}
        services = _services(folder, index_dir, scenario, vision, more)
        runner = make_runner(build_app(services, "0"), header_timeout_seconds=5, write_timeout_seconds=5)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            await _until_loaded(services)
            if scenario.index == "broken":
                os.truncate(next(index_dir.glob("*/articles.jsonl")), 10)
            with steady_budget:
                yield App(f"http://127.0.0.1:{runner.addresses[0][1]}/cg-rag", services, upstream)
        finally:
            await runner.cleanup()


async def _until_loaded(services: Services) -> None:
    async with asyncio.timeout(30):
        while services.library.snapshot.state == "loading":
            await asyncio.sleep(0.001)


def _services(
    folder: Path, index_dir: Path, scenario: Scenario, vision: dict[str, Any], more: str
) -> Services:
    config = folder / "config.yaml"
    index = json.dumps({"dir": str(index_dir), "poll_seconds": 0})
    config.write_text(
        f"cg_rag:\n  index: {index}\n  embedding: {{provider: none}}\n  vision: {json.dumps(vision)}\n{PROFILES}{more}",
        "utf-8",
    )
    services = make_services(load(config, {}).settings)
    assert services.vision is not None
    profile = services.vision_profile
    if scenario.budget_seconds is not None:
        profile = replace(profile, total_budget_seconds=scenario.budget_seconds)
    # The waits between attempts are measured elsewhere.
    quick = Upstream(replace(services.vision.settings, backoff_seconds=0.001))
    return replace(services, vision=quick, vision_profile=profile)


def told(upstream: FakeUpstream, services: Services) -> str:
    """What the model got, call by call: the step of the system message, and the messages that are new."""
    steps = {prompt.text[:200]: name for name, prompt in services.vision_texts.agentic_systems.items()}
    texts, seen = [], 1
    for number, request in enumerate(upstream.requests, start=1):
        messages = request.json["messages"]
        step = steps[messages[0]["content"][:200]]
        new = messages[seen:] if len(messages) > seen and step == "continuous" else messages[1:]
        seen = len(messages)
        schema = "，要求 JSON" if "response_format" in request.json else ""
        texts.append(f"——— 第 {number} 次调用，{step}，共 {len(messages)} 条消息{schema} ———")
        texts += [f"【{message['role']}】\n{_written(message['content'])}" for message in new]
    return "\n".join(texts) + "\n"


def _written(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] if part["type"] == "text" else "（图片）" for part in content)


def without_times(body: bytes) -> str:
    """The stream with every time as 0."""
    text = body.decode()
    stats = re.compile(r'"runtime_stats":\{[^}]*\}')
    return stats.sub(lambda match: re.sub(r":[\d.]+", ":0", match[0]), text)
