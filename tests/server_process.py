"""The service as its users have it: a process, a port, a log. Blocking, standard library only."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.answer_checker import check_answer

PROGRAM = Path(__file__).resolve().parent.parent / "cg_rag.py"
START_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])


class ServerProcess:
    """`program` is cg_rag.py, or a test's own that takes the same arguments and logs the same way."""

    def __init__(
        self, config: Path, environ: Mapping[str, str] | None = None, program: Path = PROGRAM
    ) -> None:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("CG_RAG_")}
        self.process = subprocess.Popen(
            [sys.executable, str(program), "serve", "--config", str(config), "--port", "0"],
            env=clean | dict(environ or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        self.lines: list[dict[str, Any]] = []
        self.raw_log = b""
        self._ended = False
        self._news = threading.Condition()
        self._waited_for: dict[str, int] = {}
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        try:
            url = urlsplit(self.wait_event("listening")["url"])
        except AssertionError:
            # Left open, its pipe would be a warning that falls upon whichever test runs when it is collected.
            self.process.kill()
            self.stop()
            raise
        assert url.port is not None
        self.port: int = url.port

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            try:
                event = json.loads(line)
            except ValueError:
                event = {"event": "not_json", "text": line.decode("utf-8", "replace")}
            with self._news:
                self.raw_log += line
                self.lines.append(event)
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def wait_event(self, name: str, timeout: float = START_TIMEOUT_SECONDS, **fields: Any) -> dict[str, Any]:
        """The next line of this event with these fields; lines of it that were waited for already do not count."""
        deadline = time.monotonic() + timeout
        with self._news:
            while True:
                for number in range(self._waited_for.get(name, 0), len(self.lines)):
                    line = self.lines[number]
                    if line["event"] == name and all(line.get(key) == value for key, value in fields.items()):
                        self._waited_for[name] = number + 1
                        return line
                if self._ended or not self._news.wait(deadline - time.monotonic()):
                    raise AssertionError(f"no {name} {fields} in the log: {self.raw_log.decode()}")

    def forget_event(self, name: str) -> None:
        """Lines of this event that are there already do not count for `wait_event`."""
        with self._news:
            self._waited_for[name] = len(self.lines)

    def wait_ready(self) -> None:
        self.wait_event("index_loaded")

    def request(
        self,
        method: str,
        path: str,
        body: bytes | str | Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 30.0,
    ) -> Answer:
        """One request on a connection of its own; a mapping is sent as JSON."""
        sent = dict(headers or {})
        if isinstance(body, Mapping):
            body = json.dumps(body).encode()
        if body is not None:
            sent.setdefault("Content-Type", "application/json")
        if isinstance(body, str):
            body = body.encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, "/cg-rag" + path, body, sent)
            response = connection.getresponse()
            answer = Answer(response.status, dict(response.headers.items()), response.read())
            check_answer(method, path, answer.status, answer.headers, answer.body)
            return answer
        finally:
            connection.close()

    def post(self, path: str, body: bytes | str | Mapping[str, Any], **headers: str) -> Answer:
        return self.request(
            "POST", path, body, {key.replace("_", "-"): value for key, value in headers.items()}
        )

    def get(self, path: str, **headers: str) -> Answer:
        return self.request(
            "GET", path, None, {key.replace("_", "-"): value for key, value in headers.items()}
        )

    def connect(self, timeout: float = 10.0) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)

    def resident_bytes(self) -> int:
        statm = Path(f"/proc/{self.process.pid}/statm").read_text().split()
        return int(statm[1]) * os.sysconf("SC_PAGE_SIZE")

    def peak_bytes(self, restart: bool = False) -> int:
        """The most that was resident since the start, or since this was last called with `restart`."""
        if restart:
            Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024

    def num_open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait_exit(self, timeout: float = 30.0) -> int:
        code = self.process.wait(timeout)
        self._reader.join(timeout)
        return code

    def stop(self) -> int:
        if self.process.poll() is None:
            self.signal()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self._reader.join(10)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return self.process.wait(10)
