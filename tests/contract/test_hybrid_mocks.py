"""vision/hybrid with a text model that others wrote: llmock's broken tool calls, aimock's scripted tool conversations.

Run where they are installed, see tests/contract/test_upstream_mocks.py. Whatever they send, a request ends in a report or
a typed error, within its bounds, with its slots free.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.conftest import StartServer
from tests.contract.test_upstream_mocks import Script, aimock_command, free_port, llmock_command, serving
from tests.hybrid_bench import BASES, PATH, QUESTIONS, SEEN, Hybrid, draft, hybrid
from tests.seeing import PICTURE
from tests.sse_checker import StreamChecker

pytestmark = pytest.mark.slow

MOST_REQUESTS = (
    6  # a text for a call, two plans or rounds, the draft, its correction; one more for a step down
)
NAME = "search_regulations"
CODES = {"hybrid_generation_upstream_error"}


def ask(service: Hybrid, streamed: bool) -> dict[str, Any]:
    """The payload, or the error; the slots are free again."""
    service.script(SEEN)
    route = f"{PATH}/stream" if streamed else PATH
    answer = service.server.post(route, {"images": [PICTURE]})
    assert service.slots_in_use == (0, 0)
    if not streamed:
        return answer.json
    stream = StreamChecker(answer.body)
    return dict(stream.terminal.data)


def check(payload: dict[str, Any]) -> None:
    if "error" in payload:
        assert payload["error"]["code"] in CODES
        assert payload["error"]["details"]["partial_answer"]
        return
    numbers = {int(number) for number in _numbers(payload["answer"])}
    assert numbers == set(payload["citations"]) <= set(range(1, len(payload["retrieval_docs"]) + 1))


def _numbers(answer: str) -> list[str]:
    return [part.split("〕")[0] for part in answer.split("〔")[1:]]


# --- llmock --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llmock_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    port = free_port()
    command = [*llmock_command(), "serve", "--port", str(port), "--log-level", "warning"]
    yield from serving(command, tmp_path_factory.mktemp("llmock") / "log", port)


def calling(*questions: str, **more: Any) -> dict[str, Any]:
    calls = [{"name": NAME, "arguments": {"query": question}} for question in questions]
    return {"type": "reply", "tool_calls": calls} | more


SCENARIOS: dict[str, list[dict[str, Any]]] = {
    "a conversation": [calling(*QUESTIONS), {"type": "reply", "text": draft()}],
    "malformed arguments": [
        {"type": "tool_fault", "kind": "malformed_arguments"},
        {"type": "reply", "text": draft()},
    ],
    "unknown tool": [{"type": "tool_fault", "kind": "unknown_tool"}, {"type": "reply", "text": draft()}],
    "always malformed": [{"type": "tool_fault", "kind": "malformed_arguments", "times": None}],
    "always unknown": [{"type": "tool_fault", "kind": "unknown_tool", "times": None}],
    "an endless loop": [calling(*QUESTIONS, times=None)],
    "twenty calls": [calling(*(f"脚手架 {n}" for n in range(20))), {"type": "reply", "text": draft()}],
    "nothing scripted": [],
    "busy first": [
        {"type": "fail", "status": 503, "times": 2},
        calling(*QUESTIONS),
        {"type": "reply", "text": draft()},
    ],
    "outage": [{"type": "fail", "status": 500, "times": None}],
    "cut while writing": [
        calling(*QUESTIONS),
        {"type": "reply", "text": draft()},
        {"type": "stream_fault", "kind": "truncate", "after_chunks": 5},
    ],
}


@pytest.fixture(scope="module")
def with_llmock(llmock_port: int, start_server: StartServer) -> Iterator[Hybrid]:
    text = {"endpoint": f"http://127.0.0.1:{llmock_port}/v1", "model": "gpt-4o"}
    with hybrid(start_server, text=text) as service:
        yield service


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("name", SCENARIOS)
async def test_llmock_ends_in_a_report_or_a_typed_error(
    llmock_port: int, with_llmock: Hybrid, name: str, streamed: bool
) -> None:
    async with aiohttp.ClientSession() as session:
        script = Script(session, llmock_port)
        await script.reset()
        if SCENARIOS[name]:
            await script.add(*SCENARIOS[name])
        payload = await asyncio.to_thread(ask, with_llmock, streamed)
        verdict = await script.verdict()
        async with session.get(f"http://127.0.0.1:{llmock_port}/_llmock/requests") as answer:
            requests = await answer.json()
        await script.reset()
    check(payload)
    assert ("error" in payload) == (name in ("outage", "cut while writing"))
    if name in ("a conversation", "busy first"):
        assert payload["citations"] == [1, 2, 3]
    sent = requests["requests"] if isinstance(requests, dict) else requests
    assert 0 < len(sent) <= MOST_REQUESTS
    # That an outage is given up after three attempts, and a broken stream never asked for again, is how it is meant.
    findings = {finding["code"] for finding in verdict["findings"]}
    assert findings <= ({"gave_up", "truncated_stream_accepted"} if "error" in payload else set()), verdict


# --- aimock --------------------------------------------------------------------------------------------------------


def fixture(model: str, has_result: bool, said: str = "隐患描述", **response: Any) -> dict[str, Any]:
    """`said` stands in the last message of a user."""
    return {"match": {"model": model, "userMessage": said, "hasToolResult": has_result}, "response": response}


CALLS = [{"name": NAME, "arguments": {"query": question}} for question in QUESTIONS]
FIXTURES = [
    fixture("two-turns", False, toolCalls=CALLS),
    fixture("two-turns", True, content=draft()),
    fixture("loop", False, toolCalls=CALLS[:1]),
    fixture("loop", True, toolCalls=CALLS[1:2]),
    fixture("forged", False, toolCalls=CALLS),
    fixture("forged", True, content=draft((1, 2, 99), (*BASES[:2], "应进行教育"))),
    fixture("thinks", False, toolCalls=CALLS, reasoning="想查什么"),
    fixture("thinks", True, content=draft(), reasoning="想怎么写"),
    fixture(
        "talks",
        False,
        "只输出一个 JSON 对象，形如",
        content=json.dumps({"queries": QUESTIONS}, ensure_ascii=False),
    ),
    fixture("talks", False, "检索到此为止", content=draft()),
    fixture("talks", False, content="好的，我将检索有关规定。"),
    fixture("loop", False, "不符合要求", content=draft((1, 2, 1), (*BASES[:2], BASES[0]))),
]


@pytest.fixture(scope="module")
def aimock_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder, port = tmp_path_factory.mktemp("aimock"), free_port()
    path: Path = folder / "fixtures.json"
    path.write_text(json.dumps({"fixtures": FIXTURES}), "utf-8")
    command = [*aimock_command(), "-p", str(port), "-f", str(path), "--validate-on-load", "-c", "3"]
    yield from serving(command, folder / "log", port)


@pytest.mark.parametrize("model", ["two-turns", "loop", "forged", "thinks", "talks"])
def test_aimock_conversations_end_in_a_report(
    aimock_port: int, start_server: StartServer, model: str
) -> None:
    text = {"endpoint": f"http://127.0.0.1:{aimock_port}/v1", "model": model}
    with hybrid(start_server, text=text) as service:
        for payload in (ask(service, streamed=False), ask(service, streamed=True)):
            check(payload)
            # The correction of what is forged has no fixture, so what had passed is published.
            assert len(payload["citations"]) == 3 - (model in ("loop", "forged"))
            assert "想" not in json.dumps(payload["reasoning_stages"], ensure_ascii=False)
            assert len(payload["pipeline_trace"]) <= 4
