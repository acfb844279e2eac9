"""A tool that other programs call by name: its arguments checked, its outcome in one envelope. docs/mcp.md.

Rule: whatever a call meets, the caller gets the envelope. `ok` false: the call failed, with the code and message that
HTTP would answer; `ok` true, `operation_ok` false: HTTP would have answered 200 with `ok` false. No I/O here.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cg_rag.core.account import business_code, note_tool
from cg_rag.core.config_file import one_line
from cg_rag.core.errors import CgError
from cg_rag.core.log import logger
from cg_rag.core.requests import RequestModel, describe

UNKNOWN_TOOL = "other"
CANCELLED = "cancelled"
OPERATION_FAILED = "CG_RAG 业务操作失败"

ENVELOPE_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "ok": {"type": "boolean", "description": "调用是否成功：参数合法，服务作出了回答"},
        "operation_ok": {"type": "boolean", "description": "业务是否成功；只在 ok 为 true 时出现"},
        "message": {"type": "string", "description": "失败的原因；成功时为空"},
        "data": {
            "type": "object",
            "description": "与对应的 HTTP 接口返回的 JSON 相同；ok 为 false 时为空对象",
        },
        "error": {
            "type": "object",
            "description": "只在 ok 为 false 时出现",
            "properties": {
                "code": {"type": "string"},
                "message": {"type": "string"},
                "details": {"type": "object"},
            },
        },
    },
    "required": ["ok", "message", "data"],
}
"""What every tool returns. Loose, so that newer fields break no client that checks results against it."""

Report = Callable[[str], None]
"""Tells the caller what is being done now, in Chinese; returns at once."""


@dataclass(frozen=True, slots=True)
class Tool:
    """`run(arguments, request_id, report)` returns what HTTP would answer, or raises CgError.

    `input_schema` is JSON Schema; its `properties` are the arguments there are. `open_world`: whether the tool may
    reach beyond this service, to a model that somebody else runs.
    """

    name: str
    title: str
    description: str
    input_schema: Mapping[str, Any]
    run: Callable[[dict[str, Any], str, Report], Awaitable[dict[str, Any]]]
    open_world: bool = False


async def call_tool(
    tools: Mapping[str, Tool], name: str, arguments: object, request_id: str, report: Report
) -> dict[str, Any]:
    """The envelope of one call. `arguments` is what the caller sent, whatever that is; None is no arguments."""
    started = time.perf_counter()
    code = CANCELLED
    try:
        envelope = await _call(tools, name, arguments, request_id, report)
        code = envelope["error"]["code"] if "error" in envelope else business_code()
    finally:
        note_tool(name if name in tools else UNKNOWN_TOOL, code, time.perf_counter() - started)
    return envelope


async def _call(
    tools: Mapping[str, Tool], name: str, arguments: object, request_id: str, report: Report
) -> dict[str, Any]:
    try:
        tool = _find(tools, name)
        payload = await tool.run(_check_arguments(tool, arguments), request_id, report)
    except CgError as error:
        return failed(name, error)
    except Exception:
        logger.exception("internal_error")
        return failed(name, CgError("internal_error", details={"request_id": request_id}))
    return succeeded(payload)


def succeeded(payload: dict[str, Any]) -> dict[str, Any]:
    """The envelope of what HTTP answers with 200."""
    is_done = bool(payload.get("ok", True))
    return {
        "ok": True,
        "operation_ok": is_done,
        "message": "" if is_done else OPERATION_FAILED,
        "data": payload,
    }


def failed(name: str, error: CgError) -> dict[str, Any]:
    """The envelope of what HTTP answers with an error status."""
    message, details = error.message, error.details
    if error.code == "invalid_request":
        # A model that called several tools at once has to be told which one to mend.
        message, details = f"{name}：{message}", {"tool": name} | details
    return {
        "ok": False,
        "message": message,
        "data": {},
        "error": {"code": error.code, "message": message, "details": details},
    }


def _find(tools: Mapping[str, Tool], name: str) -> Tool:
    if name in tools:
        return tools[name]
    hint = _nearest(name, tools) or f"可用的工具：{'、'.join(tools)}。"
    raise CgError("not_found", f"工具 {one_line(name)} 不存在，{hint}", {"available_tools": list(tools)})


def _check_arguments(tool: Tool, arguments: object) -> dict[str, Any]:
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        raise CgError(
            "invalid_request", f"arguments 须为对象，收到{describe(arguments)}。", {"field": "arguments"}
        )
    known = tool.input_schema["properties"]
    for name in arguments:
        if name not in known:
            hint = _nearest(name, known) or (
                f"可用的参数：{'、'.join(known)}。" if known else "本工具没有参数。"
            )
            raise CgError(
                "invalid_request", f"未知的参数 {one_line(name)}，{hint}", {"field": one_line(name)}
            )
    return arguments


def _nearest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word[:100], list(known), 1)
    return f"是否想写 {near[0]}？" if near else ""


def make_input_schema(
    model: type[RequestModel] | None, descriptions: Mapping[str, str], choices: Mapping[str, list[str]]
) -> dict[str, Any]:
    """JSON Schema of a tool's arguments: the fields of `model` that `descriptions` names, with these descriptions.

    `choices` are the values of a text field that is one of few. Written without `$ref`, which many clients do not
    follow. Raises KeyError for a field that the model lacks.
    """
    full = model.model_json_schema() if model is not None else {}
    properties = {}
    for name, description in descriptions.items():
        field = _plain(full["properties"][name], full.get("$defs", {}))
        if name in choices:
            field["enum"] = choices[name]
        properties[name] = field | {"description": description}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    required = [name for name in full.get("required", []) if name in properties]
    return schema | ({"required": required} if required else {})


def _plain(node: Any, definitions: Mapping[str, Any]) -> Any:
    """`node` without references and without titles, which repeat the names."""
    if isinstance(node, list):
        return [_plain(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _plain(definitions[node["$ref"].rsplit("/", 1)[1]], definitions)
    plain = {
        key: _plain(value, definitions) for key, value in node.items() if key not in ("title", "properties")
    }
    if "properties" in node:
        plain.pop("description", None)  # the docstring of a model is not for callers
        plain["properties"] = {name: _plain(value, definitions) for name, value in node["properties"].items()}
    return plain
