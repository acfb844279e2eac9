"""One call of an upstream that answers in one piece: JSON sent, the whole answer read and parsed, with retries.

Rule: an answer is taken whole or not at all, and what its parser refuses is the upstream's failure.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, TypeVar

import aiohttp
import orjson
from pydantic import SecretStr

from cg_rag.core.account import note_retry, note_upstream_error, noting_call
from cg_rag.core.exchange import Exchange, Timeouts
from cg_rag.core.json_parts import EncodedBody
from cg_rag.core.log import log_event
from cg_rag.core.retry import BACKOFF_SECONDS, wait_seconds
from cg_rag.core.upstream_errors import UpstreamBroken, UpstreamError
from cg_rag.core.upstream_session import blamed, check_reachable, headers_for

Answer = TypeVar("Answer")

# What the input took, by the names that servers give it; the last counts nothing else where nothing is written.
_INPUT_TOKENS: Final = ("prompt_tokens", "input_tokens", "total_tokens")
_MAX_TOKENS: Final = 2**53  # beyond it a counter would no longer rise by one


@dataclass(frozen=True, slots=True)
class CallSettings:
    """Where a model is and how it is called. Times are seconds; `timeout_seconds` bounds a call with all of its
    attempts and the waits between them; `max_attempts` counts the first one.

    Raises ValueError for an endpoint that is none and for a key that no header can carry.
    """

    endpoint: str
    model: str
    api_key: SecretStr = field(default_factory=lambda: SecretStr(""))
    timeout_seconds: float = 30.0
    connect_timeout_seconds: float = 10.0
    max_attempts: int = 3
    backoff_seconds: float = BACKOFF_SECONDS
    proxy_from_environment: bool = False
    name: str = "upstream"
    """What it is called in logs and metrics."""

    def __post_init__(self) -> None:
        check_reachable(self)


def sendable(text: str) -> str:
    """`text` with "?" for each lone surrogate, which JSON cannot carry."""
    return text.encode("utf-8", "replace").decode()


def decode(answer: bytes) -> Any:
    """The JSON of an answer. Raises UpstreamBroken("malformed")."""
    try:
        return orjson.loads(answer)
    except orjson.JSONDecodeError:
        raise UpstreamBroken("malformed") from None  # the cause holds the answer


def usage_of(told: Any) -> dict[str, int]:
    """`prompt_tokens` of an answer that is not a chat's; empty where the server does not count.

    OpenAI, Jina, vLLM and DashScope write `usage`, Cohere and SiliconFlow `meta.tokens`, TEI nothing.
    """
    for counts in _counts(told):
        for name in _INPUT_TOKENS:
            number = counts.get(name)
            if type(number) is int and 0 < number < _MAX_TOKENS:
                return {"prompt_tokens": number}
    return {}


def _counts(told: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(told, dict):
        return
    meta = told.get("meta")
    for found in (told.get("usage"), meta.get("tokens") if isinstance(meta, dict) else None):
        if isinstance(found, dict):
            yield found


class JsonCaller:
    """Calls one URL, in the loop of `session`."""

    def __init__(self, settings: CallSettings, session: aiohttp.ClientSession, url: str) -> None:
        self._settings = settings
        self._session = session
        self._url = url

    async def call(
        self, body: EncodedBody, parse: Callable[[Any], Answer], max_bytes: int, ends: float
    ) -> Answer:
        """What `parse` makes of the decoded answer. All attempts and the waits between them end at `ends`, a time of the
        running loop. Raises UpstreamError, also what `parse` raises of it."""
        with noting_call(self._settings.name) as note:
            for attempt in count(1):
                try:
                    told = decode(await self._ask(body, ends, max_bytes))
                    answer = parse(told)
                except UpstreamError as failure:
                    await self._recover(blamed(failure, self._settings, attempt), ends)
                else:
                    note.done(usage_of(told))
                    return answer
        raise AssertionError("attempts end by returning or raising")

    async def _ask(self, body: EncodedBody, ends: float, max_bytes: int) -> bytes:
        answer = bytearray()
        async with self._exchange(body, ends) as exchange:
            while data := await exchange.read():
                answer += data
                if len(answer) > max_bytes:
                    raise UpstreamBroken("too_large")
        return bytes(answer)

    def _exchange(self, body: EncodedBody, ends: float) -> Exchange:
        # Nothing comes before all of the answer is made, so the whole is the only wait that has a known length.
        timeouts = Timeouts(
            connect=self._settings.connect_timeout_seconds,
            first_byte=math.inf,
            between_bytes=math.inf,
            total=ends - asyncio.get_running_loop().time(),
        )
        headers = headers_for(self._settings, "application/json")
        return Exchange(self._session, self._url, headers, body, timeouts, math.inf)

    async def _recover(self, failure: UpstreamError, ends: float) -> None:
        """Returns when another attempt may begin; raises `failure` when there is to be none."""
        note_upstream_error(self._settings.name, failure.reason)
        if not failure.may_retry or failure.attempts >= self._settings.max_attempts:
            raise failure
        base = self._settings.backoff_seconds
        wait = wait_seconds(failure.attempts, failure.retry_after_seconds, random.random(), base)
        if asyncio.get_running_loop().time() + wait >= ends:
            raise failure
        note_retry(self._settings.name)
        log_event(logging.DEBUG, "upstream_retry", reason=failure.reason, status=failure.status)
        await asyncio.sleep(wait)
