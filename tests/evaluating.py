"""A labelled folder of photos whose right answers are known, a model that answers by photo, and a scripted service."""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.fake_upstream import Received, Reply, Script, error, raw, says
from tests.pictures import jpeg


def photo_bytes(number: int) -> bytes:
    return jpeg(width=600 + number)


def labelled_folder(folder: Path, rows: Sequence[Mapping[str, str]], encoding: str = "utf-8") -> Path:
    """Photos `01.jpg`… and `labels.csv` with the columns of `rows`, 图片 before them."""
    folder.mkdir()
    text = io.StringIO()
    writer = csv.DictWriter(text, ["图片", *rows[0]])
    writer.writeheader()
    for number, row in enumerate(rows, start=1):
        name = f"{number:02}.jpg"
        (folder / name).write_bytes(photo_bytes(number))
        writer.writerow({"图片": name, **row})
    (folder / "labels.csv").write_bytes(text.getvalue().encode(encoding))
    return folder


def free_form(level: str, category: str, description: str = "画面左侧有积水。") -> str:
    return f"隐患等级：{level}\n\n隐患分类：{category}\n\n隐患描述：\n1. {description}\n\n整改措施和建议：\n1. 立即整改。"


def _number_of(request: Received) -> int:
    text = request.body.decode()
    return next(number for number in range(1, 200) if base64.b64encode(photo_bytes(number)).decode() in text)


def by_photo(answers: Mapping[int, str], asked: list[int]) -> Script:
    """What a model says of photo n, whenever it is asked; `asked` keeps the numbers in order."""

    def reply(request: Received) -> Reply:
        number = _number_of(request)
        asked.append(number)
        script = says(answers[number])
        assert callable(script)
        return script(request)

    return reply


def agentic_body(answer: str, documents: Sequence[Mapping[str, Any]], tokens: int = 100) -> dict[str, Any]:
    """The body of vision/agentic as docs/vision.md shows it."""
    return {
        "ok": True,
        "mode": "agentic",
        "answer": answer,
        "retrieval_docs": list(documents),
        "scene_status": "assessable",
        "usage": {"prompt_tokens": tokens - 10, "completion_tokens": 10, "total_tokens": tokens},
    }


def scripted_service(
    answer: Callable[[int], dict[str, Any] | Reply], asked: list[int], profile: str = "e10"
) -> Script:
    """A service that says of itself that it runs `profile`, and of photo n what `answer` gives."""
    health = {"version": "1", "vision": {"configured": True, "profile": profile, "model": "vlm"}}

    def reply(request: Received) -> Reply:
        if request.path.endswith("/health"):
            return raw(json.dumps(health).encode())
        if not request.path.endswith("/vision/agentic"):
            return error(404)
        number = _number_of(request)
        asked.append(number)
        said = answer(number)
        return said if isinstance(said, Reply) else raw(json.dumps(said).encode())

    return reply
