"""Whether a chat model can be reached, for `cg-rag doctor`: its list of models is asked for, and no model.

Rule: nothing is generated and nothing is charged; what comes back is looked at for the model's name alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import orjson

from cg_rag.core.doctor import Finding
from cg_rag.core.os_words import connection_reason
from cg_rag.core.upstream import UpstreamSettings
from cg_rag.core.upstream_session import headers_for, open_session, url_of

PROBE_SECONDS: Final = 5.0
_MAX_LIST_BYTES: Final = 1024 * 1024
_CHAT: Final = "/chat/completions"


@dataclass(frozen=True, slots=True)
class Probe:
    """`status` is None when nothing answered, for the Chinese `reason`; `models` is None when the server tells no list."""

    status: int | None = None
    models: frozenset[str] | None = None
    reason: str = ""


def check_upstreams(upstreams: Mapping[str, UpstreamSettings]) -> list[Finding]:
    """A finding for each section of the configuration, asked side by side, within PROBE_SECONDS. Runs a loop of its own."""

    async def ask() -> Sequence[Probe]:
        return await asyncio.gather(*(probe(settings) for settings in upstreams.values()))

    probes = asyncio.run(ask()) if upstreams else ()
    return [
        _finding(section, settings, answer)
        for (section, settings), answer in zip(upstreams.items(), probes, strict=True)
    ]


async def probe(settings: UpstreamSettings) -> Probe:
    """Never raises for what a server or a network does."""
    url = url_of(settings.endpoint.rstrip("/").removesuffix(_CHAT), "/models")
    try:
        async with (
            asyncio.timeout(PROBE_SECONDS),
            open_session(settings) as session,
            session.get(
                url, headers=headers_for(settings, "application/json"), allow_redirects=False
            ) as response,
        ):
            body = await _read(response.content) if response.status == 200 else b""
            return Probe(response.status, _names(body))
    except TimeoutError:
        return Probe(reason=f"{PROBE_SECONDS:g} 秒内没有答复")
    except (aiohttp.ClientError, OSError, UnicodeError) as error:
        return Probe(reason=connection_reason(error))


async def _read(content: aiohttp.StreamReader) -> bytes:
    body = b""
    while len(body) < _MAX_LIST_BYTES and (data := await content.readany()):
        body += data
    return body


def _names(body: bytes) -> frozenset[str] | None:
    """The ids of an OpenAI list of models."""
    try:
        value: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    rows = value.get("data") if isinstance(value, dict) else None
    if not isinstance(rows, list):
        return None
    return frozenset(str(row["id"]) for row in rows if isinstance(row, dict) and "id" in row)


def _shown(endpoint: str) -> str:
    """Scheme, host and port: a path or a query may hold a key."""
    try:
        parts = urlsplit(endpoint)
    except ValueError:
        return "该地址"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _finding(section: str, settings: UpstreamSettings, answer: Probe) -> Finding:
    subject, model = f"模型服务 {section}", settings.model
    if answer.status is None:
        return Finding(
            "error",
            subject,
            f"连接不上 {_shown(settings.endpoint)}：{answer.reason}",
            f"检查 {section}.endpoint、网络与该服务是否在运行",
        )
    if answer.status in (401, 403):
        return Finding(
            "error", subject, f"可以连接，但密钥被拒绝（HTTP {answer.status}）", f"检查 {section}.api_key"
        )
    if answer.status >= 500:
        return Finding(
            "warning", subject, f"可以连接，但报告故障（HTTP {answer.status}）", "查看该服务的日志"
        )
    if answer.models is not None and model not in answer.models:
        return Finding(
            "warning",
            subject,
            f"可以连接，但其模型列表中没有 {model}",
            f"检查 {section}.model；个别服务的列表不全，确认无误可不理会",
        )
    listed = "" if answer.models is not None else "（未提供模型列表，模型名称未核对）"
    return Finding("ok", subject, f"可以连接，模型 {model}{listed}")
