"""Photos put to a running service, one request each, over HTTP.

Rule: a failure is told as what it is. `stops`: there is no use in asking for the next photo. `settled`: the service's
last word on this photo, which asking again would only pay for twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import orjson

from cg_rag.core.os_words import connection_reason
from cg_rag.core.retry import parse_retry_after
from cg_rag.core.web import BASE_PATH

MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
_HEALTH_SECONDS: Final = 30.0
_MAX_WAITS: Final = 30  # for a place, per photo; each as long as the service says
_MAX_WAIT_SECONDS: Final = 30.0
# What the service made of this photo. All else is a failure of the moment or of the set-up.
SETTLED: Final = frozenset(
    ("vision_response_invalid", "vision_budget_exceeded", "invalid_image", "payload_too_large")
)
STOPS: Final = frozenset(
    (
        "vision_not_configured",
        "hybrid_generation_not_configured",
        "invalid_request",
        "unauthorized",
        "not_found",
        "method_not_allowed",
        "unreachable",
    )
)


@dataclass(frozen=True, slots=True)
class Reply:
    """`payload` is the body of the answer, None for a failure with its `code` and Chinese `message`."""

    payload: dict[str, Any] | None
    elapsed_ms: float
    code: str = ""
    message: str = ""
    wait_seconds: float = 2.0

    @property
    def settled(self) -> bool:
        return self.payload is not None or self.code in SETTLED

    @property
    def stops(self) -> bool:
        return self.code in STOPS


def base_url(written: str) -> str | None:
    """`http://host:port/cg-rag` for any usual way to write the address of a service; None for what is no address."""
    try:
        url = urlsplit(written.strip().rstrip("/"))
        valid = (
            url.scheme in ("http", "https")
            and url.hostname
            and not (url.query or url.fragment or url.username)
        )
        _ = url.port
    except ValueError:
        return None
    if not valid:
        return None
    path = url.path if url.path.endswith(BASE_PATH) else f"{url.path}{BASE_PATH}"
    return f"{url.scheme}://{url.netloc}{path}"


class PhotoClient:
    """One service. `key` is sent as a bearer token when it is not empty; a request may take `timeout_seconds`."""

    def __init__(self, url: str, key: str, timeout_seconds: float) -> None:
        self._url = url
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        # No proxy from the environment: the service stands on the site, and the photos stay there.
        self._session = aiohttp.ClientSession(headers={"User-Agent": "cg-rag-eval", **headers})
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)

    async def close(self) -> None:
        await self._session.close()

    async def health(self) -> Reply:
        """What the service says of itself."""
        return await self._ask("GET", "/health", None, aiohttp.ClientTimeout(total=_HEALTH_SECONDS))

    async def ask(self, route: str, body: Mapping[str, Any]) -> Reply:
        """The answer to one request; waits for a place as long as the service asks for."""
        data = orjson.dumps(body)
        for _ in range(_MAX_WAITS):
            reply = await self._ask("POST", route, data, self._timeout)
            if reply.code != "capacity.exceeded":
                break
            await asyncio.sleep(reply.wait_seconds)
        return reply

    async def _ask(
        self,
        method: str,
        path: str,
        data: bytes | None,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109
    ) -> Reply:
        started = time.perf_counter()
        headers = {"Content-Type": "application/json"} if data is not None else {}
        try:
            async with self._session.request(
                method,
                f"{self._url}{path}",
                data=data,
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                raw = await _read_all(response.content)
                status, headers = response.status, dict(response.headers)
        except TimeoutError:
            return Reply(None, _since(started), "timeout", "没有在时限内答复")
        except (aiohttp.ClientError, OSError) as error:
            return Reply(
                None, _since(started), "unreachable", f"无法连接 {self._url}（{connection_reason(error)}）"
            )
        reply = _read(raw, status, _since(started))
        wait = parse_retry_after(headers.get("Retry-After"), None, datetime.now(UTC))
        return reply if wait is None else replace(reply, wait_seconds=min(wait, _MAX_WAIT_SECONDS))


async def _read_all(content: aiohttp.StreamReader) -> bytes:
    """All of an answer; one above MAX_ANSWER_BYTES is cut, and is then no JSON."""
    answer = bytearray()
    async for piece in content.iter_any():
        answer += piece
        if len(answer) > MAX_ANSWER_BYTES:
            return b""
    return bytes(answer)


def _since(started: float) -> float:
    return round((time.perf_counter() - started) * 1000, 1)


def _read(raw: bytes, status: int, elapsed_ms: float) -> Reply:
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        body = None
    if not isinstance(body, dict):
        code = "not_found" if status == 404 else "not_json"
        return Reply(None, elapsed_ms, code, f"答复不是 JSON（HTTP {status}），请检查地址")
    if status == 200:
        return Reply(body, elapsed_ms)
    error = body.get("error")
    error = error if isinstance(error, dict) else {}
    return Reply(
        None,
        elapsed_ms,
        str(error.get("code", f"http_{status}")),
        str(error.get("message", f"HTTP {status}")),
    )
