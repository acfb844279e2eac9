"""What tests of the vision modes over sockets have in common: the service with a scripted model, reports, pictures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from tests.conftest import StartServer
from tests.fake_upstream import FakeUpstream, Script, upstream_in_thread
from tests.pictures import jpeg, text_of
from tests.server_process import Answer, ServerProcess
from tests.sse_checker import StreamChecker

PICTURE = {"data": text_of(jpeg())}
# docs/vision.md
REPORT = (
    "隐患等级：一般隐患\n\n隐患分类：扣件式钢管脚手架\n\n隐患描述：\n1. 脚手架基础区域存在明显积水，未采取有效排水措施。\n\n"
    "整改措施和建议：\n1. 立即排除积水并设置排水设施。"
)
SAFE_REPORT = "隐患等级：无隐患\n\n隐患分类：无\n\n隐患描述：\n1. 临边护栏完整，人员佩戴安全帽。\n\n整改措施和建议：\n1. 无需整改。"
PLAIN_QUESTION = "图里有什么？"


class Service(NamedTuple):
    server: ServerProcess
    upstream: FakeUpstream

    def post(self, *replies: Script, path: str = "/vision/answer", **fields: Any) -> Answer:
        """One picture, unless `images` says otherwise; `replies` are what the model says."""
        self.upstream.forget()
        self.upstream.enqueue(*replies)
        return self.server.post(path, {"images": [PICTURE]} | fields)

    def stream(self, *replies: Script, path: str = "/vision/answer", **fields: Any) -> StreamChecker:
        return StreamChecker(self.post(*replies, path=f"{path}/stream", **fields).body)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """What the model got last."""
        messages: list[dict[str, Any]] = self.upstream.requests[-1].json["messages"]
        return messages

    @property
    def content(self) -> list[dict[str, Any]]:
        """The last message that the model got."""
        content: list[dict[str, Any]] = self.messages[-1]["content"]
        return content

    @property
    def slots_in_use(self) -> int:
        in_use: int = self.server.get("/health").json["capacity"]["generation"]["in_use"]
        return in_use


@contextmanager
def seeing(start_server: StartServer, more: str = "", **vision: Any) -> Iterator[Service]:
    """A ready service whose vision model is scripted; `vision` are settings of that section."""
    with upstream_in_thread() as upstream:
        section = json.dumps({"endpoint": upstream.url, "model": "vlm"} | vision)
        server = start_server(f"  embedding: {{provider: none}}\n  vision: {section}\n{more}")
        server.wait_ready()
        yield Service(server, upstream)
        server.stop()
