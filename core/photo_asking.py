"""Photos asked one by one, several at a time, and every answer kept the moment it comes.

Rule: a photo with a settled answer is never asked again. What stops one stops all: the others are not paid for.
"""

from __future__ import annotations

import asyncio
import base64
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from cg_rag.core.answer_journal import AnswerJournal, Key
from cg_rag.core.photo_client import PhotoClient, Reply
from cg_rag.core.photo_labels import PhotoLabel

MAX_FAILURES: Final = 5  # in a row, before the rest is left for another time


class AskingStopped(Exception):
    """There is no use in going on; the message is one Chinese sentence."""


class Progress(Protocol):
    """What is told on the way."""

    def start(self, label: str, total: int | None) -> None: ...
    def advance(self, count: int) -> None: ...
    def finish(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Photo:
    """A file and what is expected of it; `sha256` is of its bytes."""

    label: PhotoLabel
    path: Path
    sha256: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What every photo is asked: the route below the base path, the fields beside `images` and `question`."""

    route: str
    fields: Mapping[str, Any]
    question: str


def question_of(label: PhotoLabel, question: str) -> str:
    """The label's own question, else the one for all; "" is the service's default."""
    return label.question or question


@dataclass(slots=True)
class _Work:
    plan: Plan
    journal: AnswerJournal
    client: PhotoClient
    progress: Progress
    waiting: deque[Photo] = field(default_factory=deque)
    failures: int = 0

    def key(self, photo: Photo) -> Key:
        return photo.label.photo, photo.sha256, question_of(photo.label, self.plan.question)

    def is_settled(self, photo: Photo) -> bool:
        record = self.journal.records.get(self.key(photo))
        return record is not None and bool(record["settled"])

    async def ask_on(self) -> None:
        while self.waiting:
            await self._ask(self.waiting.popleft())
            self.progress.advance(1)

    async def _ask(self, photo: Photo) -> None:
        data = await asyncio.to_thread(lambda: base64.b64encode(photo.path.read_bytes()).decode())
        name, sha256, question = self.key(photo)
        body = {"images": [{"data": data}], **self.plan.fields}
        reply = await self.client.ask(self.plan.route, body | ({"question": question} if question else {}))
        if reply.stops:
            raise AskingStopped(
                f"{name}：{reply.message.rstrip('。')}。已得到的答案都已保存，处理后重新运行同一命令即可继续。"
            )
        outcome = _outcome(reply)
        head = {"photo": name, "sha256": sha256, "question": question, "settled": reply.settled}
        self.journal.append(head | {"elapsed_ms": reply.elapsed_ms} | outcome)
        self._count(reply)

    def _count(self, reply: Reply) -> None:
        self.failures = 0 if reply.settled else self.failures + 1
        if self.failures >= MAX_FAILURES:
            raise AskingStopped(
                f"连续 {MAX_FAILURES} 张失败（{reply.message.rstrip('。')}），已停止。"
                "已得到的答案都已保存，处理后重新运行同一命令即可继续。"
            )


def _outcome(reply: Reply) -> dict[str, Any]:
    if reply.payload is not None:
        return {"payload": reply.payload}
    return {"error": {"code": reply.code, "message": reply.message}}


async def ask_all(
    photos: Sequence[Photo],
    plan: Plan,
    journal: AnswerJournal,
    client: PhotoClient,
    concurrency: int,
    progress: Progress,
    name: str,
) -> None:
    """Ask for every photo that has no settled answer in `journal`. Raises AskingStopped, OSError."""
    work = _Work(plan, journal, client, progress)
    work.waiting.extend(photo for photo in photos if not work.is_settled(photo))
    progress.start(name, len(photos))
    progress.advance(len(photos) - len(work.waiting))
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(work.waiting))):
                group.create_task(work.ask_on())
    except* (AskingStopped, OSError) as failed:
        raise failed.exceptions[0] from None
    finally:
        progress.finish()
