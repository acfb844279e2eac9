"""What tests of vision/hybrid have in common: the service with two scripted models, one that looks and one that writes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from tests.conftest import StartServer
from tests.fake_upstream import FakeUpstream, Script, says, upstream_in_thread
from tests.seeing import PICTURE, REPORT
from tests.server_process import Answer, ServerProcess
from tests.sse_checker import StreamChecker

PATH = "/vision/hybrid"
KEY = "sk-of-the-text-model"
SCAFFOLD, SITE_SAFETY, FIRE = (
    "《样例脚手架规范》（GB 99001-2025）",
    "《中华人民共和国样例安全法》",
    "《中华人民共和国样例消防法》",
)
BASES = (
    f"{SCAFFOLD}2.0.1：脚手架地基应平整坚实，基础处不得有积水",
    f"{SCAFFOLD}6.0.5(1)：脚手架搭设后应组织验收，未经验收不得投入使用",
    f"{SITE_SAFETY}第二十八条：对新进场人员进行安全教育和培训",
)
MEASURES = ("立即抽排基础处积水，四周挖设排水沟。", "排水后由技术负责人组织复核地基，合格前停止使用。")
QUESTIONS = ("脚手架地基 积水 排水", "脚手架 验收 投入使用", "安全教育 培训 上岗")


def calls(*questions: str, name: str = "search_regulations") -> Script:
    """The text model asks for these searches, as tool calls."""
    return says(
        tool_calls=[
            {
                "id": f"call_{number}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps({"query": text}, ensure_ascii=False)},
            }
            for number, text in enumerate(questions)
        ]
    )


def draft(
    numbers: Sequence[Any] = (1, 2, 3), bases: Sequence[str] = BASES, measures: Sequence[str] = MEASURES
) -> str:
    """Bases with one mark each, and measures, in the format of the prompt."""
    lines = ["## 隐患判定依据"]
    lines += [
        f"{place}. {text}〔{number}〕。"
        for place, (text, number) in enumerate(zip(bases, numbers, strict=True), 1)
    ]
    lines += ["", "## 整改措施及建议"]
    lines += [f"{place}. {text}" for place, text in enumerate(measures, 1)]
    return "\n".join(lines)


class Hybrid(NamedTuple):
    server: ServerProcess
    eyes: FakeUpstream
    pen: FakeUpstream

    def script(self, seen: Script | Sequence[Script], *written: Script) -> None:
        for upstream, replies in ((self.eyes, [seen] if callable(seen) else seen), (self.pen, written)):
            upstream.forget()
            upstream.requests.clear()
            upstream.enqueue(*replies)

    def post(
        self, seen: Script | Sequence[Script], *written: Script, path: str = PATH, **fields: Any
    ) -> Answer:
        self.script(seen, *written)
        return self.server.post(path, {"images": [PICTURE]} | fields)

    def stream(self, seen: Script | Sequence[Script], *written: Script, **fields: Any) -> StreamChecker:
        return StreamChecker(self.post(seen, *written, path=f"{PATH}/stream", **fields).body)

    def told(self, turn: int) -> list[dict[str, Any]]:
        """The messages of the text model's request number `turn`, from 0."""
        messages: list[dict[str, Any]] = self.pen.requests[turn].json["messages"]
        return messages

    @property
    def slots_in_use(self) -> tuple[int, int]:
        numbers = self.server.get("/health").json["capacity"]
        return numbers["retrieval"]["in_use"], numbers["generation"]["in_use"]


@contextmanager
def hybrid(
    start_server: StartServer, more: str = "", text: Any = None, vision: Any = None, **options: Any
) -> Iterator[Hybrid]:
    """A ready service with both models scripted; `text` and `vision` are settings of their sections."""
    with upstream_in_thread() as eyes, upstream_in_thread() as pen:
        seeing = json.dumps({"endpoint": eyes.url, "model": "vlm"} | (vision or {}))
        writing = json.dumps({"endpoint": pen.url, "model": "pen", "api_key": KEY} | (text or {}))
        settings = (
            f"  embedding: {{provider: none}}\n  vision: {seeing}\n  hybrid_generation: {writing}\n{more}"
        )
        server = start_server(settings, **options)
        server.wait_ready()
        yield Hybrid(server, eyes, pen)
        server.stop()


SEEN = says(REPORT)
