"""`serve --workers N`: the process that starts the workers, starts again those that end, and ends them all.

Rule: it does no work of the service and imports none of it. It is one thread that waits, so it may fork at any time,
and nothing that a request does can reach it.

The workers listen on one port with SO_REUSEPORT: the kernel spreads new connections over those that are there, so one
that ended gets none until it listens again.
"""

from __future__ import annotations

import gc
import logging
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from cg_rag.core.cli import EXIT_USAGE
from cg_rag.core.config_file import ConfigError
from cg_rag.core.log import log_event, logger
from cg_rag.core.os_words import errno_name, reason_of
from cg_rag.core.roster import Entry, Roster
from cg_rag.core.serving import CannotListen, base_url, check_address, family_of
from cg_rag.core.settings import ServerSettings
from cg_rag.core.worker import LISTENING, MAX_MESSAGE_BYTES, STOP, STOP_AT_ONCE, TELL, Link, Worker

FIRST_DELAY_SECONDS = 0.5
MAX_DELAY_SECONDS = 30.0
HEALTHY_SECONDS = 60.0  # whoever lived so long begins again with the first delay
# Beyond what a worker may take to end by itself.
GRACE_SECONDS = 10.0
AT_ONCE_SECONDS = 1.0

Run = Callable[[Worker, ServerSettings], int]


@dataclass(slots=True)
class _Child:
    worker: Worker
    pid: int
    line: socket.socket
    started_at: float
    is_listening: bool = False


@dataclass(slots=True)
class _Slot:
    """A worker's number through all its lives. `due_at` is when it is to be started, None while it runs."""

    number: int
    restarts: int = 0
    delay: float = field(default_factory=lambda: FIRST_DELAY_SECONDS)
    due_at: float | None = field(default=0.0)


def supervise(
    run: Run, count: int, server: ServerSettings, version: str, announce: Callable[[str], None]
) -> int:
    """Serve with `count` processes, each of which calls `run` (its result is that process's exit code) with the port
    that all share, until a signal comes. `announce` gets the base URL once all listen.

    Returns the exit code: 0 when all workers ended well. A worker that ends at the start, before it listened, ends the
    service with its code; one that ends later is started again, after a delay that doubles up to MAX_DELAY_SECONDS.
    """
    try:
        reserved = _reserve(server)
    except CannotListen as error:
        print(str(error), file=sys.stderr)
        return 1
    try:
        roster = Roster.make(count)
    except OSError as error:
        reserved.close()
        print(f"多个工作进程须有可写的 /dev/shm 或临时文件夹：{reason_of(error)}。", file=sys.stderr)
        return 1
    with reserved:
        address = reserved.getsockname()
        server = server.model_copy(update={"port": address[1]})

        def when_all_listen() -> None:
            url = base_url(address)
            log_event(logging.INFO, "listening", url=url, version=version, pid=os.getpid(), workers=count)
            announce(url)

        service = _Service(lambda worker: run(worker, server), count, server, when_all_listen, roster)
        try:
            return service.run()
        finally:
            roster.remove()


def _reserve(server: ServerSettings) -> socket.socket:
    """A socket that keeps the port for the workers and takes no connections, since it never listens."""
    # Without this look a second service of the same user would share the port of the first unnoticed.
    check_address(server)
    placeholder = socket.socket(family_of(server.host), socket.SOCK_STREAM)
    placeholder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    placeholder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        placeholder.bind((server.host, server.port))
    except OSError as error:
        placeholder.close()
        raise CannotListen(server, error) from error
    return placeholder


class _Service:
    """All workers. Everything happens in `run`, one event after the other."""

    def __init__(
        self,
        run: Callable[[Worker], int],
        count: int,
        server: ServerSettings,
        announce: Callable[[], None],
        roster: Roster,
    ) -> None:
        self._run = run
        self._roster = roster
        self._server = server
        self._announce = announce
        self._slots = {number: _Slot(number) for number in range(1, count + 1)}
        self._children: dict[int, _Child] = {}
        self._selector = selectors.PollSelector()  # no descriptor of its own that a fork would share
        self._is_announced = False
        self._is_stopping = False
        self._kill_at: float | None = None
        self._exit_code = 0

    def run(self) -> int:
        gc.freeze()  # else the collector of every worker would write to, and so copy, what they share with us
        with _signals_as_bytes() as signals:
            self._selector.register(signals, selectors.EVENT_READ, lambda: self._take_signals(signals))
            while self._children or not self._is_stopping:
                self._start_those_due()
                for key, _ in self._selector.select(self._seconds_to_wait()):
                    key.data()
                self._kill_those_overdue()
        log_event(logging.INFO, "service_stopped", exit_code=self._exit_code)
        return self._exit_code

    def _seconds_to_wait(self) -> float | None:
        times = [slot.due_at for slot in self._slots.values()] if not self._is_stopping else [self._kill_at]
        wanted = [at for at in times if at is not None]
        return max(0.0, min(wanted) - time.monotonic()) if wanted else None

    # Starting.

    def _start_those_due(self) -> None:
        for slot in self._slots.values():
            if not self._is_stopping and slot.due_at is not None and slot.due_at <= time.monotonic():
                self._start(slot)

    def _start(self, slot: _Slot) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        worker = Worker(slot.number, len(self._slots), slot.restarts, Link(theirs), self._roster)
        pid = os.fork()
        if pid == 0:
            ours.close()
            self._become(worker)
        theirs.close()
        ours.setblocking(False)
        child = _Child(worker, pid, ours, time.monotonic())
        slot.due_at = None
        self._children[slot.number] = child
        self._enrol(Entry(slot.number, pid, slot.restarts))
        self._selector.register(ours, selectors.EVENT_READ, lambda: self._hear(child))

    def _become(self, worker: Worker) -> None:
        """In the new process: do the worker's work, and never return."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            # An end of another worker's line that stayed open here would hide from it that we are gone.
            for child in self._children.values():
                child.line.close()
            self._selector.close()
            code = self._run(worker)
        except ConfigError as error:
            print(str(error), file=sys.stderr)
            code = EXIT_USAGE
        except BaseException:
            logger.exception("worker_failed")
        finally:
            with suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            # Nothing of the supervisor's may run here: no handler at exit, no frame above this one.
            os._exit(code)

    def _enrol(self, entry: Entry) -> None:
        try:
            self._roster.write(entry)
        except OSError as error:
            # /metrics and /health say something old; the service goes on.
            log_event(logging.WARNING, "roster_not_written", worker=entry.number, reason=errno_name(error))

    # What workers say, and their end.

    def _hear(self, child: _Child) -> None:
        try:
            message = child.line.recv(MAX_MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self._bury(child)
        elif message == LISTENING:
            child.is_listening = True
            self._announce_once()
        elif message.startswith(TELL):
            self._send([other for other in self._children.values() if other is not child], message)

    def _announce_once(self) -> None:
        if not self._is_announced and all(child.is_listening for child in self._children.values()):
            self._is_announced = True
            self._announce()

    def _bury(self, child: _Child) -> None:
        self._selector.unregister(child.line)
        child.line.close()
        _, status = os.waitpid(child.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        slot = self._slots[child.worker.number]
        del self._children[slot.number]
        self._enrol(Entry(slot.number, 0, slot.restarts))
        ending = {"worker": slot.number, "worker_pid": child.pid, "exit": _describe(code)}
        if self._is_stopping:
            self._exit_code = self._exit_code or int(code != 0)
            log_event(logging.INFO if code == 0 else logging.WARNING, "worker_ended", **ending)
        elif not (self._is_announced or child.is_listening):
            log_event(logging.ERROR, "worker_ended", **ending)
            self._exit_code = code if code > 0 else 1
            self._stop(STOP, self._server.shutdown_timeout_seconds + GRACE_SECONDS)
        else:
            self._plan(slot, child, ending)

    def _plan(self, slot: _Slot, child: _Child, ending: dict[str, object]) -> None:
        """Start it again, the later the more often it ended soon after its start."""
        now = time.monotonic()
        if now - child.started_at >= HEALTHY_SECONDS:
            slot.delay = FIRST_DELAY_SECONDS
        log_event(logging.ERROR, "worker_ended", **ending, restart_in_seconds=slot.delay)
        slot.due_at = now + slot.delay
        slot.delay = min(MAX_DELAY_SECONDS, 2 * slot.delay)
        slot.restarts += 1

    # The end of the service.

    def _take_signals(self, signals: socket.socket) -> None:
        for number in signals.recv(64):
            if number not in (signal.SIGTERM, signal.SIGINT):
                continue
            if self._is_stopping:
                self._stop(STOP_AT_ONCE, AT_ONCE_SECONDS)
            else:
                log_event(logging.INFO, "service_stopping")
                self._stop(STOP, self._server.shutdown_timeout_seconds + GRACE_SECONDS)

    def _stop(self, message: bytes, patience_seconds: float) -> None:
        self._is_stopping = True
        self._kill_at = time.monotonic() + patience_seconds
        self._send(list(self._children.values()), message)

    def _send(self, children: list[_Child], message: bytes) -> None:
        for child in children:
            with suppress(OSError):  # a line that is full or broken; the latter is told by its own event
                child.line.send(message)

    def _kill_those_overdue(self) -> None:
        if self._kill_at is None or time.monotonic() < self._kill_at:
            return
        self._kill_at = None
        for child in self._children.values():
            log_event(logging.WARNING, "worker_killed", worker=child.worker.number, worker_pid=child.pid)
            os.kill(child.pid, signal.SIGKILL)


def _describe(code: int) -> str:
    """`exit 1` or `signal SIGKILL`."""
    return f"exit {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


@contextmanager
def _signals_as_bytes() -> Iterator[socket.socket]:
    """A socket that gets one byte, its number, for each SIGTERM and SIGINT."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda *_: None) for number in numbers]
    signal.set_wakeup_fd(theirs.fileno())
    try:
        with ours, theirs:
            yield ours
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
