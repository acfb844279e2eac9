"""`cg-rag mcp-config`: the lines that a client of the MCP endpoint needs, for the address of the configuration.

Rule: a key is never printed; its place holds words that say where it goes.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
from typing import Any

from cg_rag.core.cli import add_server_arguments
from cg_rag.core.config import Settings

KEY_PLACEHOLDER = "Bearer <此处填 server.api_keys 中的密钥>"
# Every interface has an address of its own; from this machine this one reaches the service.
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_PROBE_SECONDS = 1.0


def add_mcp_config_arguments(parser: argparse.ArgumentParser) -> None:
    add_server_arguments(parser)


def run_mcp_config(_args: argparse.Namespace, settings: Settings) -> int:
    """Prints the client configuration; hints go to standard error. 1 when there is no endpoint to speak of."""
    server = settings.server
    if not settings.mcp.enabled:
        print("MCP 入口未开放：请设 mcp.enabled 为 true 并重启服务。", file=sys.stderr)
        return 1
    if not server.port:
        print("端口为 0，由系统任取：请用 --port 给出服务启动时显示的端口。", file=sys.stderr)
        return 1
    host = _EVERYWHERE.get(server.host, server.host)
    print(
        json.dumps(
            client_configuration(host, server.port, bool(server.api_keys)), ensure_ascii=False, indent=2
        )
    )
    if host != server.host:
        print(f"从其他机器连接时，把 {host} 换成本机的地址。", file=sys.stderr)
    if not _answers(host, server.port):
        print("该地址现在没有 CG_RAG 在服务，请先运行 cg-rag serve。", file=sys.stderr)
    return 0


def client_configuration(host: str, port: int, with_key: bool) -> dict[str, Any]:
    """As docs/mcp.md shows it."""
    named = f"[{host}]" if ":" in host else host
    server: dict[str, Any] = {"type": "streamable-http", "url": f"http://{named}:{port}/cg-rag/mcp/"}
    if with_key:
        server["headers"] = {"Authorization": KEY_PLACEHOLDER}
    return {"mcpServers": {"CG_RAG": server}}


def _answers(host: str, port: int) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=_PROBE_SECONDS)
    try:
        connection.request("GET", "/cg-rag/health")
        return b'"service":"CG_RAG"' in connection.getresponse().read(4096)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
