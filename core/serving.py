"""A process that serves one application until it is told to stop.

Rule: the first SIGTERM or SIGINT closes the port and lets running requests end within the shutdown time-out; the
second one ends at once.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable

from aiohttp import web

from cg_rag.core.connection import make_runner, quiet_accept_errors
from cg_rag.core.log import log_event
from cg_rag.core.settings import ServerSettings
from cg_rag.core.web import BASE_PATH


class CannotListen(Exception):
    """The address cannot be had; the message is one Chinese line with the remedy."""

    def __init__(self, server: ServerSettings, error: OSError) -> None:
        reason = _REASONS.get(error.errno or 0, f"系统错误 {error.errno}")
        super().__init__(f"无法监听 {server.host}:{server.port}：{reason}。")


_REASONS = {
    errno.EADDRINUSE: "端口已被占用，请用 --port 或 server.port 换一个，或停止占用它的程序",
    errno.EACCES: "没有权限使用该端口，请用 --port 或 server.port 换 1024 以上的端口",
    errno.EADDRNOTAVAIL: "本机没有该地址，请检查 --host 或 server.host",
}


def check_address(server: ServerSettings) -> None:
    """Raises CannotListen when `server` could not be listened on now. For work that is only worth doing if it can."""
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((server.host, server.port))
            probe.listen()
        except OSError as error:
            raise CannotListen(server, error) from error


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
    except CannotListen as error:
        print(str(error), file=sys.stderr)
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
    except OSError as error:
        await runner.cleanup()
        raise CannotListen(server, error) from error
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
