"""The MCP endpoint is made when it is first asked for, once, whoever asks meanwhile."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cg_rag.core.doctor import check_mcp
from cg_rag.core.settings import McpSettings, Settings
from cg_rag.core.worker import Link, Worker
from cg_rag.modes import http_app
from tests.mcp_wire import LEGACY, message

ROOT = Path(__file__).resolve().parents[2]
LIST = message("tools/list", {})
MAKE_APP = """
import sys
import cg_rag
from cg_rag.core.config import load
from cg_rag.modes.http_app import build_app
from cg_rag.modes.services import make_services
settings = load(None, {}).settings
assert settings.mcp.enabled
build_app(make_services(settings), "0")
print(sorted({"mcp", "mcp_types", "httpx", "starlette"} & set(sys.modules)))
"""


def test_a_service_that_nobody_asked_over_mcp_has_not_imported_the_sdk(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MAKE_APP],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


async def ask(url: str) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/mcp/", json=LIST, headers=LEGACY) as answer,
    ):
        return answer.status, await answer.json()


@pytest.fixture
def makings(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What making the endpoint does first, one entry a time it is made; what is not there costs nothing."""
    todo: list[Callable[[], None]] = []
    real = http_app._McpOnDemand.make

    def load(self: Any) -> Any:
        if todo:
            todo.pop(0)()
        return real(self)

    monkeypatch.setattr(http_app._McpOnDemand, "make", load)
    return todo


class Pause:
    """Holds up the thread that makes the endpoint, from `began` until `may_go_on`."""

    def __init__(self) -> None:
        self.began, self.may_go_on = asyncio.Event(), asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def __call__(self) -> None:
        self._loop.call_soon_threadsafe(self.began.set)
        asyncio.run_coroutine_threadsafe(self.may_go_on.wait(), self._loop).result(30)


async def leave_during(pause: Pause, asking: asyncio.Task[Any]) -> None:
    await pause.began.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_twenty_first_requests_wait_for_one_and_the_same_endpoint(
    start: Callable[..., Any], makings: list[Callable[[], None]]
) -> None:
    made: list[None] = []
    makings += [lambda: made.append(None)] * 5
    _, url = await start()
    answers = await asyncio.gather(*(ask(url) for _ in range(20)))
    assert {status for status, _ in answers} == {200}
    assert all(answer["result"]["tools"] for _, answer in answers)
    assert len(made) == 1


async def test_a_client_that_leaves_takes_the_endpoint_from_nobody(
    start: Callable[..., Any], makings: list[Callable[[], None]]
) -> None:
    pause = Pause()
    makings.append(pause)
    _, url = await start()
    first = asyncio.create_task(ask(url))
    await pause.began.wait()
    second = asyncio.create_task(ask(url))
    await leave_during(pause, first)
    pause.may_go_on.set()
    status, answer = await second
    assert (status, bool(answer["result"]["tools"])) == (200, True)


async def test_what_could_not_be_imported_is_told_and_tried_again(
    start: Callable[..., Any], makings: list[Callable[[], None]]
) -> None:
    def fail() -> None:
        raise ImportError("a package is broken")

    makings.append(fail)
    _, url = await start()
    status, answer = await ask(url)
    assert (status, answer["error"]["code"]) == (500, "internal_error")
    assert "broken" not in str(answer)
    assert (await ask(url))[0] == 200


async def test_what_failed_after_everybody_had_left_is_tried_again_by_the_next(
    start: Callable[..., Any], makings: list[Callable[[], None]]
) -> None:
    pause = Pause()

    def fail_when_told() -> None:
        pause()
        raise ImportError("a package is broken")

    makings.append(fail_when_told)
    _, url = await start()
    await leave_during(pause, asyncio.create_task(ask(url)))
    pause.may_go_on.set()
    while any(task.get_coro().__name__ == "to_thread" for task in asyncio.all_tasks()):  # type: ignore[union-attr]
        await asyncio.sleep(0.01)
    assert (await ask(url))[0] == 200


async def test_who_is_not_to_enter_does_not_bring_the_sdk_in(
    start: Callable[..., Any], makings: list[Callable[[], None]]
) -> None:
    made: list[None] = []
    makings.append(lambda: made.append(None))
    _, url = await start()
    async with aiohttp.ClientSession() as session:
        for method, headers, status in (
            ("POST", {"Origin": "https://elsewhere.example"}, 403),
            ("GET", {}, 405),
            ("DELETE", {}, 405),
        ):
            async with session.request(method, f"{url}/mcp/", headers=headers) as answer:
                assert answer.status == status
    assert not made
    assert (await ask(url))[0] == 200
    assert made


async def test_one_of_several_workers_has_it_from_the_start(
    start: Callable[..., Any], makings: list[Callable[[], None]]
) -> None:
    made: list[None] = []
    makings.append(lambda: made.append(None))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        _, url = await start(worker=Worker(number=1, count=2, link=Link(ours)))
        assert made
        assert (await ask(url))[0] == 200


def test_doctor_says_whether_it_could_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [finding.severity for finding in check_mcp(Settings())] == ["ok"]
    monkeypatch.setitem(sys.modules, "cg_rag.core.mcp_http", None)
    found = check_mcp(Settings())
    assert [finding.severity for finding in found] == ["error"]
    assert "无法导入" in found[0].message
    assert check_mcp(Settings(mcp=McpSettings(enabled=False))) == []
