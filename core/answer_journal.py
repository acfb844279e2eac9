"""The answers of an evaluation, kept as they come: nothing that a model was paid for is asked again.

Rule: an answer is on the disk before the next photo is asked. What cannot be read back whole counts as not there.

One line of JSON that tells what was asked of whom, then one line an answer:
    {"photo", "sha256", "question", "settled", "elapsed_ms", "payload" or "error"}
A later line of the same photo beats an earlier one. `settled` false is a failure of the moment: asked again next time.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

FORMAT: Final = "cg-rag-vision-eval/1"

Key = tuple[str, str, str]
_KEY: Final = ("photo", "sha256", "question")


class JournalUnusable(Exception):
    """The message is one Chinese sentence with the remedy."""


def key_of(record: Mapping[str, Any]) -> Key:
    return record["photo"], record["sha256"], record["question"]


def read_journal(path: Path) -> tuple[dict[str, Any], dict[Key, dict[str, Any]]]:
    """(head, newest record of each key) of a journal. Raises JournalUnusable for a file that is none, OSError."""
    raw = path.read_bytes()
    head, records = _read_lines(raw)
    if head is None:
        raise JournalUnusable(f"{path} 不是视觉评测的记录。")
    return head, {key_of(record): record for record in records}


def _read_lines(raw: bytes) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    head, records = None, []
    for number, line in enumerate(raw.split(b"\n")):
        value = _read_line(line)
        if number == 0 and value.get("format") == FORMAT:
            head = value
        elif all(isinstance(value.get(name), str) for name in _KEY) and "settled" in value:
            records.append(value)
    return head, records


def _read_line(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}  # the torn end of a killed run
    return value if isinstance(value, dict) else {}


class AnswerJournal:
    """A journal that is written to, alone: a second run on it is refused."""

    def __init__(self, path: Path, head: Mapping[str, Any], restart: bool) -> None:
        """Made when absent; `restart` throws away what is there. Raises JournalUnusable, OSError."""
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            self._lock()
            if restart:
                os.ftruncate(self._descriptor, 0)
            self.records = self._load({"format": FORMAT, **head})
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, record: Mapping[str, Any]) -> None:
        """Keep one answer, on the disk when this returns."""
        self._write(record)
        self.records[key_of(record)] = dict(record)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _lock(self) -> None:
        try:
            # The kernel gives the lock back when the process dies.
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise JournalUnusable(
                f"{self._path} 正由另一次评测写入，请等它结束，或用 --name 另取名称。"
            ) from error

    def _load(self, head: dict[str, Any]) -> dict[Key, dict[str, Any]]:
        raw = self._path.read_bytes()
        if not raw:
            self._write(head)
            return {}
        found, records = _read_lines(raw)
        if found is None:
            raise JournalUnusable(
                f"{self._path} 不是视觉评测的记录，请用 --name 另取名称，或用 --restart 覆盖。"
            )
        if differing := sorted(name for name in {*found, *head} if found.get(name) != head.get(name)):
            raise JournalUnusable(
                f"{self._path} 是在其他设置下得到的（不同之处：{'、'.join(differing)}），"
                "请用 --name 另取名称，或用 --restart 从头再问。"
            )
        if not raw.endswith(b"\n"):
            os.write(self._descriptor, b"\n")
        return {key_of(record): record for record in records}

    def _write(self, record: Mapping[str, Any]) -> None:
        # Lone surrogates of an answer stay escapes: the file is ASCII, and `\n` ends a line and nothing else.
        raw = json.dumps(record).encode() + b"\n"
        while raw:
            raw = raw[os.write(self._descriptor, raw) :]
        os.fsync(self._descriptor)
