"""MCP over a plain socket: messages out, answers in, nothing done for the test behind its back."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.server_process import Answer, ServerProcess

MCP = "/mcp/"
LEGACY = {"MCP-Protocol-Version": "2025-11-25", "Accept": "application/json, text/event-stream"}
NEWEST = "2026-07-28"
PROGRESS = {"progressToken": "p"}


def message(method: str, params: Any = None, request_id: Any = 1) -> dict[str, Any]:
    body: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if request_id is not None:
        body["id"] = request_id
    return body if params is None else body | {"params": params}


def tool_call(name: str, arguments: Any = None, request_id: Any = 1, meta: Any = None) -> dict[str, Any]:
    params = {"name": name} | ({} if arguments is None else {"arguments": arguments})
    return message("tools/call", params | ({} if meta is None else {"_meta": meta}), request_id)


def newest(body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """`body` and the headers that go with it, as the newest protocol has them."""
    params = dict(body.get("params") or {})
    meta = {
        "io.modelcontextprotocol/protocolVersion": NEWEST,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params["_meta"] = meta | params.get("_meta", {})
    headers = {"MCP-Protocol-Version": NEWEST, "Mcp-Method": body["method"]}
    if "name" in params:
        headers["Mcp-Name"] = params["name"]
    return body | {"params": params}, headers | {"Accept": LEGACY["Accept"]}


def post(server: ServerProcess, body: Any, path: str = MCP, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return server.request("POST", path, json.dumps(body, ensure_ascii=False).encode(), LEGACY | named)


def call(server: ServerProcess, name: str, arguments: Any = None, **headers: str) -> dict[str, Any]:
    """The result of a tool, checked: the text and the structure of it say the same."""
    answer = post(server, tool_call(name, arguments), **headers)
    assert answer.status == 200, answer.body
    return checked_result(answer.json)


def checked_result(body: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = body["result"]
    envelope = result["structuredContent"]
    assert [part["type"] for part in result["content"]] == ["text"]
    assert json.loads(result["content"][0]["text"]) == envelope
    assert result.get("isError", False) is not envelope["ok"]
    assert ("operation_ok" in envelope) is envelope["ok"]
    assert ("error" in envelope) is not envelope["ok"]
    if not envelope["ok"]:
        assert envelope["data"] == {}
        assert envelope["message"] == envelope["error"]["message"]
    return envelope


def open_call(server: ServerProcess, body: Mapping[str, Any], **headers: str) -> socket.socket:
    """A request that was sent, its answer not read."""
    connection = server.connect(30)
    sent = json.dumps(body).encode()
    named = LEGACY | {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [
        "POST /cg-rag/mcp/ HTTP/1.1",
        "Host: x",
        "Content-Type: application/json",
        f"Content-Length: {len(sent)}",
    ]
    lines += [f"{name}: {value}" for name, value in named.items()]
    connection.sendall("\r\n".join([*lines, "", ""]).encode() + sent)
    return connection


def receive_until(connection: socket.socket, condition: Callable[[bytes], bool]) -> bytes:
    """What comes, in however many pieces, until `condition` holds of it."""
    received = b""
    while not condition(received):
        part = connection.recv(1 << 16)
        assert part, received[-200:]
        received += part
    return received


async def call_at_once(port: int, bodies: Sequence[Mapping[str, Any]], path: str = "/mcp/") -> list[bytes]:
    """All `bodies` on connections of their own, sent together; the first line of each answer."""

    async def one(body: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = (
            f"POST /cg-rag{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAccept: application/json, text/event-stream\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer.partition(b"\r\n")[0]

    return await asyncio.gather(*(one(json.dumps(body).encode()) for body in bodies))


def events(body: bytes) -> tuple[list[dict[str, Any]], int]:
    """The messages of a stream, and how many pings came between them."""
    assert body.endswith(b"\n\n"), body[-80:]
    messages, pings = [], 0
    for block in body[:-2].split(b"\n\n"):
        if block == b": ping":
            pings += 1
            continue
        head, data = block.split(b"\n")
        assert head == b"event: message"
        messages.append(json.loads(data.removeprefix(b"data: ")))
    return messages, pings
