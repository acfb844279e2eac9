"""The chat client against two servers that others wrote: llmock and aimock, run where they are installed.

llmock is found as a module of this Python or as a command; aimock through CG_RAG_TEST_AIMOCK, the path of a
`node_modules` folder that holds @copilotkit/aimock.

`llmock report --strict` must have nothing to say wherever a retry is allowed. It takes for granted that a client asks
again whatever was handed on already, and cannot see whether one treated a broken stream as an answer. Behind the first
token we never ask again, because two attempts would be stitched together; there exactly one finding is demanded, and
beside it that the caller got an error.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from pydantic import SecretStr

from cg_rag.core.upstream import (
    ChatRequest,
    ChatResult,
    ChatUpstream,
    UpstreamError,
    UpstreamSettings,
    open_session,
)
from tests.conftest import StartServer
from tests.generating import NO_VECTORS, ROUTES
from tests.sse_checker import StreamChecker

pytestmark = pytest.mark.slow

PATIENCE_SECONDS = 30.0
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "search_regulations",
            "description": "search regulations",
            "parameters": {
                "type": "object",
                "properties": {"query": {"type": "string"}},
                "required": ["query"],
            },
        },
    }
]
SCHEMA = {
    "type": "object",
    "properties": {"indices": {"type": "array", "items": {"type": "integer", "enum": [2, 1]}}},
    "required": ["indices"],
    "additionalProperties": False,
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def serving(command: list[str], log: Path, port: int) -> Iterator[int]:
    """Runs `command` until it listens on `port`, and ends it afterwards."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        asyncio.run(listening(process, port))
        yield port
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)


async def listening(process: subprocess.Popen[bytes], port: int) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while process.poll() is None:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            writer.close()
            return
    raise AssertionError("the mock ended before it listened")


def llmock_command() -> list[str]:
    if importlib.util.find_spec("llmock") is not None:
        return [sys.executable, "-m", "llmock.cli"]
    found = shutil.which("llmock")
    if found is None:
        pytest.skip("llmock is not installed")
    return [found]


@pytest.fixture(scope="module")
def llmock_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    port = free_port()
    pace = ["--stream-chunk-delay-ms", "20"]  # else all is sent before anybody can stop reading
    command = [*llmock_command(), "serve", "--port", str(port), "--log-level", "warning", *pace]
    yield from serving(command, tmp_path_factory.mktemp("llmock") / "log", port)


class Script:
    """llmock's scenario, its journal and its verdict."""

    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self._session = session
        self._base = f"http://127.0.0.1:{port}/_llmock"

    async def add(self, *behaviors: dict[str, Any]) -> None:
        async with self._session.post(f"{self._base}/scenario", json={"behaviors": behaviors}) as answer:
            assert answer.status == 201, await answer.text()

    async def reset(self) -> None:
        async with self._session.post(f"{self._base}/reset") as answer:
            assert answer.status == 200

    async def verdict(self) -> dict[str, Any]:
        async with self._session.get(f"{self._base}/verdict") as answer:
            return dict(await answer.json())


@asynccontextmanager
async def client_of(port: int, **options: Any) -> AsyncIterator[ChatUpstream]:
    settings = UpstreamSettings(
        **{"endpoint": f"http://127.0.0.1:{port}/v1", "model": "gpt-4o", "api_key": SecretStr("test")}
        | options
    )
    async with open_session(settings) as session:
        yield ChatUpstream(settings, session)


@asynccontextmanager
async def llmock(port: int, **options: Any) -> AsyncIterator[tuple[ChatUpstream, Script]]:
    """At the end llmock must have nothing to say against the client, warnings included."""
    async with aiohttp.ClientSession() as session, client_of(port, **options) as client:
        script = Script(session, port)
        await script.reset()
        yield client, script
        verdict = await script.verdict()
        assert verdict["findings"] == []


def ask(text: str, **options: Any) -> ChatRequest:
    return ChatRequest([{"role": "user", "content": text}], **options)


async def streamed(client: ChatUpstream, request: ChatRequest, **options: Any) -> tuple[str, str, ChatResult]:
    text, thinking, result = "", "", None
    async with aclosing(client.stream(request, **options)) as deltas:
        async for delta in deltas:
            text += delta.text
            thinking += delta.thinking
            result = delta.result
    assert result is not None
    return text, thinking, result


async def failure_of(client: ChatUpstream, request: ChatRequest, **options: Any) -> tuple[str, UpstreamError]:
    text = ""
    try:
        async with aclosing(client.stream(request, **options)) as deltas:
            async for delta in deltas:
                text += delta.text
    except UpstreamError as failure:
        return text, failure
    raise AssertionError("no failure")


async def test_llmock_plain_and_streamed(llmock_port: int) -> None:
    async with llmock(llmock_port) as (client, script):
        await script.add({"type": "reply", "text": "脚手架验收合格后方可使用。", "times": 2})
        result = await client.complete(ask("一"))
        text, _, final = await streamed(client, ask("二"))
        assert result.text == text == final.text == "脚手架验收合格后方可使用。"
        assert result.usage is not None
        assert final.usage is not None


async def test_llmock_structured_output(llmock_port: int) -> None:
    async with llmock(llmock_port) as (client, _):
        result = await client.complete(ask("JSON", schema=SCHEMA))
        assert json.loads(result.text) == {"indices": [2]}
        assert result.structured_output == "json_schema"


@pytest.mark.parametrize("streaming", [True, False])
async def test_llmock_tool_calls(llmock_port: int, streaming: bool) -> None:
    async with llmock(llmock_port) as (client, script):
        await script.add(
            {
                "type": "reply",
                "tool_calls": [
                    {"name": "search_regulations", "arguments": {"query": "脚手架"}},
                    {"name": "search_regulations", "arguments": {"query": "临边"}},
                ],
            },
        )
        request = ask("search", tools=TOOLS)
        result = (await streamed(client, request))[2] if streaming else await client.complete(request)
        assert [json.loads(call.arguments)["query"] for call in result.tool_calls] == ["脚手架", "临边"]
        assert len({call.id for call in result.tool_calls}) == 2


@pytest.mark.parametrize("kind", ["malformed_arguments", "unknown_tool"])
async def test_llmock_broken_tool_calls_are_handed_on_as_they_are(llmock_port: int, kind: str) -> None:
    async with llmock(llmock_port) as (client, script):
        await script.add({"type": "tool_fault", "kind": kind})
        (call,) = (await streamed(client, ask("search", tools=TOOLS)))[2].tool_calls
        assert (call.name == "search_regulations") == (kind == "malformed_arguments")


async def test_llmock_rate_limits_are_waited_out(llmock_port: int) -> None:
    async with llmock(llmock_port) as (client, script):
        await script.add({"type": "fail", "status": 429, "retry_after": 1, "times": 2})
        assert (await client.complete(ask("429"))).attempts == 3


async def test_llmock_a_rate_limit_beyond_the_budget_is_given_up(llmock_port: int) -> None:
    async with aiohttp.ClientSession() as session, client_of(llmock_port) as client:
        script = Script(session, llmock_port)
        await script.reset()
        await script.add({"type": "fail", "status": 429, "retry_after": 30})
        _, failure = await failure_of(client, ask("429"), budget_seconds=2)
        assert (failure.reason, failure.attempts) == ("rate_limited", 1)
        assert [finding["code"] for finding in (await script.verdict())["findings"]] == ["gave_up"]


@pytest.mark.parametrize("status", [408, 409, 500, 502, 503, 504, 529])
async def test_llmock_server_errors_are_retried_with_growing_waits(llmock_port: int, status: int) -> None:
    async with llmock(llmock_port) as (client, script):
        await script.add({"type": "fail", "status": status, "times": 2})
        assert (await streamed(client, ask(str(status))))[2].attempts == 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_llmock_the_callers_errors_are_not_retried(llmock_port: int, status: int) -> None:
    async with llmock(llmock_port) as (client, script):
        await script.add({"type": "fail", "status": status})
        _, failure = await failure_of(client, ask(str(status)))
        assert (failure.status, failure.attempts) == (status, 1)


async def test_llmock_an_outage_ends_after_three_attempts(llmock_port: int) -> None:
    async with llmock(llmock_port) as (client, script):
        await script.add({"type": "fail", "status": 503, "times": None})
        _, failure = await failure_of(client, ask("outage"))
        assert (failure.reason, failure.attempts) == ("server_error", 3)


REASONS = {"disconnect": "cut", "truncate": "cut", "malformed": "malformed"}


@pytest.mark.parametrize("kind", REASONS)
async def test_llmock_a_stream_that_breaks_after_tokens_is_an_error(llmock_port: int, kind: str) -> None:
    async with llmock(llmock_port) as (client, script):
        await script.add({"type": "reply", "text": "word " * 60, "times": 2})
        await script.add({"type": "stream_fault", "kind": kind, "after_chunks": 3})
        text, failure = await failure_of(client, ask("break"))
        assert text
        assert (failure.reason, failure.attempts) == (REASONS[kind], 1)
        # Whoever got the error asks again, from the beginning; llmock counts that as the retry it looks for.
        assert (await streamed(client, ask("break")))[2].attempts == 1


# What llmock calls it when nobody asks again: the second is an error to it, the others are warnings.
BEHIND_THE_FIRST_TOKEN = {
    "disconnect": "gave_up",
    "truncate": "truncated_stream_accepted",
    "malformed": "malformed_chunk_ignored",
}


@pytest.mark.parametrize("kind", BEHIND_THE_FIRST_TOKEN)
async def test_llmock_only_misses_the_retry_that_is_forbidden_behind_the_first_token(
    llmock_port: int, kind: str
) -> None:
    async with aiohttp.ClientSession() as session, client_of(llmock_port) as client:
        script = Script(session, llmock_port)
        await script.reset()
        await script.add({"type": "reply", "text": "word " * 60})
        await script.add({"type": "stream_fault", "kind": kind, "after_chunks": 3})
        text, failure = await failure_of(client, ask("break"))
        assert text
        assert (failure.reason, failure.attempts) == (REASONS[kind], 1)
        found = (await script.verdict())["findings"]
        assert [finding["code"] for finding in found] == [BEHIND_THE_FIRST_TOKEN[kind]]


@pytest.mark.parametrize("kind", REASONS)
async def test_llmock_a_stream_that_breaks_before_tokens_is_retried(llmock_port: int, kind: str) -> None:
    async with llmock(llmock_port) as (client, script):
        await script.add({"type": "stream_fault", "kind": kind, "after_chunks": 0})
        text, _, result = await streamed(client, ask("break"))
        assert (text, result.attempts) == (result.text, 2)


async def test_llmock_a_stall_is_left_and_a_slow_start_is_waited_for(llmock_port: int) -> None:
    async with llmock(llmock_port, between_bytes_timeout_seconds=0.5) as (client, script):
        await script.add({"type": "stream_fault", "kind": "stall", "after_chunks": 2, "stall_seconds": 30})
        _, failure = await failure_of(client, ask("stall"))
        assert failure.reason == "between_bytes_timeout"
        await script.add({"type": "slow_first_token", "seconds": 1.0})
        assert (await streamed(client, ask("slow")))[2].attempts == 1


# (behaviours, whether the service has an answer in the end)
OF_THE_SERVICE: dict[str, tuple[list[dict[str, Any]], bool]] = {
    "plain": ([], True),
    "rate limit": ([{"type": "fail", "status": 429, "retry_after": 1, "times": 2}], True),
    "busy": ([{"type": "fail", "status": 503, "times": 2}], True),
    "outage": ([{"type": "fail", "status": 500, "times": 3}], False),
    "wrong key": ([{"type": "fail", "status": 401}], False),
    "no such model": ([{"type": "fail", "status": 404}], False),
    "slow start": ([{"type": "slow_first_token", "seconds": 0.5}], True),
    "disconnect": ([{"type": "stream_fault", "kind": "disconnect", "after_chunks": 0}], True),
    "truncate": ([{"type": "stream_fault", "kind": "truncate", "after_chunks": 0}], True),
    "malformed": ([{"type": "stream_fault", "kind": "malformed", "after_chunks": 0}], True),
}


async def test_llmock_report_finds_no_fault_in_the_service(
    llmock_port: int, start_server: StartServer
) -> None:
    """Both routes and their streams, each fault once a route; then the command itself, warnings included."""
    server = start_server(
        f"  generation: {{endpoint: 'http://127.0.0.1:{llmock_port}/v1', model: gpt-4o, api_key: test}}\n"
        f"{NO_VECTORS}"
    )
    server.wait_ready()
    async with aiohttp.ClientSession() as session:
        script = Script(session, llmock_port)
        await script.reset()
        for name, (behaviors, has_answer) in OF_THE_SERVICE.items():
            for path, body in ROUTES:
                for route in (path, f"{path}/stream"):
                    if behaviors:
                        await script.add(*behaviors)
                    # A question of its own: llmock takes the same body for a retry.
                    asked = body | {"query": f"脚手架怎么验收 {name} {route}"}
                    answer = await asyncio.to_thread(server.post, route, asked)
                    final = StreamChecker(answer.body).final if route != path else answer.json
                    assert final["ok"] is has_answer, (name, route, final)
    report = [*llmock_command(), "report", "--strict", "--url", f"http://127.0.0.1:{llmock_port}"]
    told = await asyncio.to_thread(subprocess.run, report, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout
    assert "PASS" in told.stdout


def aimock_command() -> list[str]:
    folder = os.environ.get("CG_RAG_TEST_AIMOCK", "")
    program = Path(folder) / ".bin" / "llmock"
    if not folder or not program.exists() or shutil.which("node") is None:
        pytest.skip("aimock is not installed; CG_RAG_TEST_AIMOCK names its node_modules")
    return [str(program)]


FIXTURES: list[dict[str, Any]] = [
    {"match": {"userMessage": "plain"}, "response": {"content": "脚手架🦺验收 [cite^1] 合格。"}},
    {
        "match": {"userMessage": "think"},
        "response": {"content": "答案", "reasoning": "先看第一条，再看第二条。"},
    },
    {"match": {"userMessage": "tags"}, "response": {"content": "<think>想一想</think>\n\n答案"}},
    {
        "match": {"userMessage": "tools"},
        "response": {
            "toolCalls": [
                {"name": "search_regulations", "arguments": {"query": "脚手架验收"}},
                {"name": "search_regulations", "arguments": {"query": "临边防护"}},
            ]
        },
    },
    {"match": {"userMessage": "limit"}, "response": {"content": "半句", "finishReason": "length"}},
    {"match": {"userMessage": "filter"}, "response": {"content": "不", "finishReason": "content_filter"}},
    {"match": {"userMessage": "busy"}, "response": {"error": {"message": "busy"}, "status": 429}},
    {"match": {"userMessage": "down"}, "response": {"error": {"message": "down"}, "status": 503}},
    {"match": {"userMessage": "wrong"}, "response": {"error": {"message": "wrong"}, "status": 400}},
    {
        "match": {"userMessage": "truncated"},
        "response": {"content": "这句话到不了头，因为中间断了。"},
        "latency": 20,
        "chunkSize": 2,
        "truncateAfterChunks": 4,
    },
    {
        "match": {"userMessage": "dropped"},
        "response": {"content": "这句话到不了头，因为中间断了。" * 20},
        "latency": 20,
        "chunkSize": 1,
        "disconnectAfterMs": 200,
    },
    {"match": {"userMessage": "garbled"}, "response": {"content": "x"}, "chaos": {"malformedRate": 1.0}},
    {"match": {"userMessage": "gone"}, "response": {"content": "x"}, "chaos": {"disconnectRate": 1.0}},
]


@pytest.fixture(scope="module")
def aimock_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder, port = tmp_path_factory.mktemp("aimock"), free_port()
    fixtures = folder / "fixtures.json"
    fixtures.write_text(json.dumps({"fixtures": FIXTURES}), "utf-8")
    command = [*aimock_command(), "-p", str(port), "-f", str(fixtures), "--validate-on-load", "-c", "3"]
    yield from serving(command, folder / "log", port)


@asynccontextmanager
async def aimock(port: int) -> AsyncIterator[ChatUpstream]:
    async with client_of(port, model="o3-mini", backoff_seconds=0.05) as client:
        yield client


@pytest.mark.parametrize(
    ("question", "text", "thinking", "finish_reason"),
    [
        ("plain", "脚手架🦺验收 [cite^1] 合格。", "", "stop"),
        ("think", "答案", "先看第一条，再看第二条。", "stop"),
        ("tags", "答案", "想一想", "stop"),
        ("limit", "半句", "", "length"),
    ],
)
async def test_aimock_answers_whole_and_streamed(
    aimock_port: int, question: str, text: str, thinking: str, finish_reason: str
) -> None:
    async with aimock(aimock_port) as client:
        whole = await client.complete(ask(question))
        seen_text, seen_thinking, result = await streamed(client, ask(question))
    for answer in (whole, result):
        assert (answer.text, answer.thinking, answer.finish_reason) == (text, thinking, finish_reason)
        assert answer.usage is not None
    assert (seen_text, seen_thinking) == (text, thinking)


@pytest.mark.parametrize("streaming", [True, False])
async def test_aimock_tool_calls_in_pieces(aimock_port: int, streaming: bool) -> None:
    async with aimock(aimock_port) as client:
        request = ask("tools", tools=TOOLS)
        result = (await streamed(client, request))[2] if streaming else await client.complete(request)
    assert [json.loads(call.arguments)["query"] for call in result.tool_calls] == ["脚手架验收", "临边防护"]
    assert result.finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("question", "reason", "attempts"),
    [
        ("filter", "content_filter", 1),
        ("busy", "rate_limited", 3),
        ("down", "server_error", 3),
        ("wrong", "refused", 1),
        ("unknown question", "not_found", 1),
        ("truncated", "cut", 1),
        ("dropped", "cut", 1),
        ("garbled", "malformed", 3),
        ("gone", "disconnected", 3),
    ],
)
async def test_aimock_failures_are_named(aimock_port: int, question: str, reason: str, attempts: int) -> None:
    async with aimock(aimock_port) as client:
        text, failure = await failure_of(client, ask(question))
    assert (failure.reason, failure.attempts) == (reason, attempts)
    assert bool(text) == (question in ("truncated", "dropped", "filter"))
