"""`cg-rag mcp-config`: what it prints, what it never prints, its exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.server_process import PROGRAM

KEY = "canary-key-never-to-be-seen"


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CG_RAG_")}
    command = [sys.executable, str(PROGRAM), "mcp-config", *arguments]
    return subprocess.run(command, env=clean | environ, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(
    ("arguments", "url"),
    [
        (["--port", "1"], "http://127.0.0.1:1/cg-rag/mcp/"),
        (["--port", "1", "--host", "::1"], "http://[::1]:1/cg-rag/mcp/"),
    ],
)
def test_configuration_is_for_the_address_that_is_served(arguments: list[str], url: str) -> None:
    done = run(*arguments)
    assert done.returncode == 0
    assert json.loads(done.stdout) == {"mcpServers": {"CG_RAG": {"type": "streamable-http", "url": url}}}
    assert "没有 CG_RAG 在服务" in done.stderr


def test_key_has_its_place_and_is_not_shown() -> None:
    done = run("--port", "1", "--host", "0.0.0.0", CG_RAG_SERVER_API_KEYS=f"agent={KEY}")
    server = json.loads(done.stdout)["mcpServers"]["CG_RAG"]
    assert server["url"] == "http://127.0.0.1:1/cg-rag/mcp/"
    assert server["headers"]["Authorization"].startswith("Bearer <")
    assert KEY not in done.stdout + done.stderr
    assert "换成本机的地址" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "environ", "words"),
    [(["--port", "0"], {}, "--port"), ([], {"CG_RAG_MCP_ENABLED": "false"}, "mcp.enabled")],
)
def test_without_an_endpoint_there_is_one_sentence_and_nothing_to_copy(
    arguments: list[str], environ: dict[str, str], words: str
) -> None:
    done = run(*arguments, **environ)
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr
