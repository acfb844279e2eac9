"""A process that serves one application until it is told to stop.

Rule: the first SIGTERM or SIGINT closes the port and lets running requests end within the shutdown time-out; the
second one ends at once. A worker ends at once only when its supervisor says so: a terminal, or systemd, sends one signal
to all processes, and the supervisor passes it on as well.
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
from typing import Any

from aiohttp import web

from cg_rag.core.connection import make_runner, quiet_accept_errors
from cg_rag.core.log import log_event
from cg_rag.core.settings import ServerSettings
from cg_rag.core.web import BASE_PATH
from cg_rag.core.worker import Link, Worker


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
    with socket.socket(family_of(server.host), socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((server.host, server.port))
            probe.listen()
        except OSError as error:
            raise CannotListen(server, error) from error


def family_of(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def run_app(
    make_app: Callable[[], web.Application],
    server: ServerSettings,
    version: str,
    announce: Callable[[str], None],
    worker: Worker | None = None,
) -> int:
    """Serve what `make_app` returns (called inside the event loop). `announce` gets the base URL when the port is
    open; a worker of several tells its supervisor instead. Returns the exit code; an address that cannot be had is one
    line on standard error and 1."""
    link = worker.link if worker is not None else None
    try:
        return asyncio.run(_serve(make_app, server, version, announce, link))
    except CannotListen as error:
        print(str(error), file=sys.stderr)
        return 1


class _Stops:
    """Waits for a request to stop, and for one to stop at once."""

    def __init__(self, link: Link | None) -> None:
        self.gently = asyncio.Event()
        self.at_once = asyncio.Event()
        self._signals_count = link is None
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._take_signal)
        if link is not None:
            link.follow(self._take)

    def _take_signal(self) -> None:
        self._take(self._signals_count and self.gently.is_set())

    def _take(self, at_once: bool) -> None:
        self.gently.set()
        if at_once:
            self.at_once.set()


async def _serve(
    make_app: Callable[[], web.Application],
    server: ServerSettings,
    version: str,
    announce: Callable[[str], None],
    link: Link | None,
) -> int:
    quiet_accept_errors(asyncio.get_running_loop())
    stops = _Stops(link)
    runner = make_runner(
        make_app(),
        header_timeout_seconds=server.header_timeout_seconds,
        write_timeout_seconds=server.write_timeout_seconds,
        shutdown_timeout_seconds=server.shutdown_timeout_seconds,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, server.host, server.port, reuse_port=link is not None).start()
    except OSError as error:
        await runner.cleanup()
        raise CannotListen(server, error) from error
    if link is not None:
        log_event(logging.INFO, "worker_listening", pid=os.getpid())
        link.say_listening()
    else:
        url = base_url(runner.addresses[0])
        log_event(logging.INFO, "listening", url=url, version=version, pid=os.getpid())
        announce(url)
    await stops.gently.wait()
    log_event(logging.INFO, "stopping")
    return await _stop(runner, stops.at_once)


def base_url(address: tuple[Any, ...]) -> str:
    """`address` is that of a socket: host, port and, for IPv6, more."""
    host, port = address[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{BASE_PATH}"


async def _stop(runner: web.AppRunner, at_once: asyncio.Event) -> int:
    cleanup = asyncio.create_task(runner.cleanup())
    again = asyncio.create_task(at_once.wait())
    await asyncio.wait({cleanup, again}, return_when=asyncio.FIRST_COMPLETED)
    again.cancel()
    if cleanup.done():
        log_event(logging.INFO, "stopped")
        return 0
    log_event(logging.WARNING, "stopped_at_once")
    cleanup.cancel()
    return 1
