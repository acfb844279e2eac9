"""A process that serves one application until it is told to stop.

Rule: the first SIGTERM or SIGINT closes the port and lets running requests end within the shutdown time-out; the
second one ends at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable

from aiohttp import web

from cg_rag.core.connection import make_runner, quiet_accept_errors
from cg_rag.core.log import log_event
from cg_rag.core.settings import ServerSettings
from cg_rag.core.web import BASE_PATH


def run_app(
    make_app: Callable[[], web.Application],
    server: ServerSettings,
    version: str,
    announce: Callable[[str], None],
) -> int:
    """Serve what `make_app` returns (called inside the event loop). `announce` gets the base URL when the port is
    open. Returns the exit code; an address that cannot be had is one line on standard error and 1."""
    try:
        return asyncio.run(_serve(make_app, server, version, announce))
    except OSError as error:
        where = f"{server.host}:{server.port}"
        print(
            f"无法监听 {where}：{error.strerror or error}。请更换 server.port 或停止占用者。", file=sys.stderr
        )
        return 1


async def _serve(
    make_app: Callable[[], web.Application],
    server: ServerSettings,
    version: str,
    announce: Callable[[str], None],
) -> int:
    quiet_accept_errors(asyncio.get_running_loop())
    signals: asyncio.Queue[int] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signals.put_nowait, number)
    runner = make_runner(
        make_app(),
        header_timeout_seconds=server.header_timeout_seconds,
        write_timeout_seconds=server.write_timeout_seconds,
        shutdown_timeout_seconds=server.shutdown_timeout_seconds,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, server.host, server.port).start()
    except OSError:
        await runner.cleanup()
        raise
    url = _base_url(runner)
    log_event(logging.INFO, "listening", url=url, version=version, pid=os.getpid())
    announce(url)
    await signals.get()
    log_event(logging.INFO, "stopping")
    return await _stop(runner, signals)


def _base_url(runner: web.AppRunner) -> str:
    host, port = runner.addresses[0][:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{BASE_PATH}"


async def _stop(runner: web.AppRunner, signals: asyncio.Queue[int]) -> int:
    cleanup = asyncio.create_task(runner.cleanup())
    again = asyncio.create_task(signals.get())
    await asyncio.wait({cleanup, again}, return_when=asyncio.FIRST_COMPLETED)
    again.cancel()
    if cleanup.done():
        log_event(logging.INFO, "stopped")
        return 0
    log_event(logging.WARNING, "stopped_at_once")
    cleanup.cancel()
    return 1
