"""Where the log of a real process goes: the journal, a journal that has gone, a file that is rotated under several workers."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.generating import NO_VECTORS, wait_for
from tests.server_process import PROGRAM

Start = Callable[..., subprocess.Popen[bytes]]
START_SECONDS = 30.0
SEVERITIES = {"error": "3", "warning": "4", "info": "6"}


@pytest.fixture
def start(tmp_path: Path, small_index: Path) -> Iterator[Start]:
    """`start(settings, stderr=…, **environ)` starts `serve`; what still runs at the end is stopped."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(settings: str = "", stderr: int = subprocess.PIPE, **environ: str) -> subprocess.Popen[bytes]:
        config = tmp_path / "config.yaml"
        index = json.dumps(str(small_index))
        config.write_text(
            f"cg_rag:\n  index: {{dir: {index}}}\n  mcp: {{enabled: false}}\n{NO_VECTORS}{settings}"
        )
        own = ("CG_RAG_", "JOURNAL_STREAM")
        clean = {key: value for key, value in os.environ.items() if not key.startswith(own)}
        words = [sys.executable, str(PROGRAM), "serve", "--config", str(config), "--port", "0"]
        process = subprocess.Popen(words, env=clean | environ, stdin=subprocess.DEVNULL, stderr=stderr)
        started.append(process)
        return process

    yield begin
    for process in started:
        process.terminate()
        process.wait(60)
        if process.stderr is not None:
            process.stderr.close()


class Journal:
    """Stands for journald: a stream that is read line by line, and the name that systemd gives it."""

    def __init__(self, ours: int, theirs: int) -> None:
        status = os.fstat(theirs)
        self.name = f"{status.st_dev}:{status.st_ino}"
        self.theirs = theirs
        self.lines: list[str] = []
        self._ours = open(ours, encoding="utf-8")  # noqa: SIM115
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self._ours:
            self.lines.append(line)

    def events(self, name: str) -> list[tuple[str, dict[str, Any]]]:
        """(severity, line) of each."""
        found = [re.fullmatch(r"<(\d)>(\{.*\})\n", line) for line in list(self.lines)]
        told = [(match[1], json.loads(match[2])) for match in found if match]
        return [(severity, line) for severity, line in told if line["event"] == name]

    def close(self) -> None:
        """When everybody who writes has ended."""
        self._reader.join(20)
        self._ours.close()


def make_journal(kind: str) -> Journal:
    if kind == "pipe":
        return Journal(*os.pipe())
    ours, theirs = socket.socketpair()  # what journald hands out
    return Journal(ours.detach(), theirs.detach())


def whole_lines(file: Path) -> list[str]:
    """Those that are finished: a file that is being written may end within one."""
    return file.read_text("utf-8").split("\n")[:-1]


def get(url: str, path: str) -> int:
    address, _, base = url.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request("GET", f"/{base}{path}")
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


@pytest.mark.parametrize(("kind", "workers"), [("pipe", 1), ("socket", 1), ("socket", 2)])
def test_every_line_for_the_journal_has_its_severity(start: Start, kind: str, workers: int) -> None:
    journal = make_journal(kind)
    environ = {"JOURNAL_STREAM": journal.name, "CG_RAG_NO_SUCH_SETTING": "1"}
    process = start(f"  server: {{workers: {workers}}}\n", journal.theirs, **environ)
    os.close(journal.theirs)
    wait_for(lambda: len(journal.events("listening")) == 1, START_SECONDS)
    (severity, listening), *_ = journal.events("listening")
    assert severity == "6"
    assert get(listening["url"], "/nope") == 404
    wait_for(lambda: len(journal.events("request")) == 1, START_SECONDS)
    if workers > 1:
        killed = journal.events("worker_listening")[0][1]["pid"]
        os.kill(killed, signal.SIGKILL)
        wait_for(lambda: bool(journal.events("worker_ended")), START_SECONDS)
        assert journal.events("worker_ended")[0][0] == "3"
    process.terminate()
    assert process.wait(60) == 0
    journal.close()
    assert journal.events("config_warning")[0][0] == "4"
    for line in journal.lines:
        found = re.fullmatch(r"<(\d)>(\{.*\})\n", line)
        assert found, line
        assert found[1] == SEVERITIES[json.loads(found[2])["level"]]


def test_a_name_that_was_inherited_from_elsewhere_is_not_the_journal(start: Start) -> None:
    journal, other = make_journal("pipe"), os.pipe()
    status = os.fstat(other[1])
    process = start("", journal.theirs, JOURNAL_STREAM=f"{status.st_dev}:{status.st_ino}")
    os.close(journal.theirs)
    wait_for(lambda: any('"listening"' in line for line in journal.lines), START_SECONDS)
    process.terminate()
    assert process.wait(60) == 0
    journal.close()
    for end in other:
        os.close(end)
    assert [json.loads(line) for line in journal.lines][-1]["event"] == "stopped"


def test_a_journal_that_goes_away_costs_lines_and_no_answer(start: Start) -> None:
    ours, theirs = socket.socketpair()
    status = os.fstat(theirs.fileno())
    process = start("", theirs.fileno(), JOURNAL_STREAM=f"{status.st_dev}:{status.st_ino}")
    theirs.close()
    told = b""
    while b'"listening"' not in told or not told.endswith(b"\n"):
        part = ours.recv(65536)
        assert part, told
        told += part
    found = re.search(rb'"url":"([^"]*)"', told)
    assert found is not None
    ours.close()  # journald has ended: whoever writes now gets EPIPE
    assert [get(found[1].decode(), "/health") for _ in range(3)] == [200, 200, 200]
    process.terminate()
    assert process.wait(60) == 0


def test_a_file_that_is_rotated_under_several_workers_loses_no_line(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "cg-rag.log"
    process = start(f"  server: {{workers: 2}}\n  log: {{file: {json.dumps(str(path))}}}\n")

    def lines() -> list[dict[str, Any]]:
        files = [tmp_path / f"cg-rag.log.{number}" for number in (1, 2)] + [path]
        return [json.loads(line) for file in files if file.exists() for line in whole_lines(file)]

    def events(name: str) -> list[dict[str, Any]]:
        return [line for line in lines() if line["event"] == name]

    wait_for(lambda: bool(events("listening")), START_SECONDS)
    url = events("listening")[0]["url"]
    asked = 0
    for rotation in (1, 2, None):
        for _ in range(12):
            assert get(url, f"/nope-{asked}") == 404
            asked += 1
        if rotation is not None:
            path.rename(tmp_path / f"cg-rag.log.{rotation}")
    wait_for(lambda: len(events("request")) == asked, START_SECONDS)
    assert {line["path"] for line in events("request")} == {
        f"/cg-rag/nope-{number}" for number in range(asked)
    }
    assert {line["worker"] for line in events("request")} == {1, 2}
    assert all((tmp_path / name).stat().st_mode & 0o777 == 0o640 for name in ("cg-rag.log", "cg-rag.log.1"))
    process.terminate()
    assert process.wait(60) == 0
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert len(events("stopped")) == 2
