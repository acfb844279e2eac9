"""One OpenAI-compatible chat client for text and vision models: complete and stream, with retries.

Rule: a stream is retried only while nothing of it has been yielded. A retry never begins what the budget cannot
hold. Keys travel in the Authorization header and nowhere else.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from pydantic import SecretStr

from cg_rag.core.chat_request import ChatRequest, Wording, build_body, may_be_structure, refused_feature
from cg_rag.core.chat_stream import ChatDelta, ChatParser, ChatResult
from cg_rag.core.exchange import Exchange, Timeouts
from cg_rag.core.json_parts import EncodedBody, Slices, encode_body
from cg_rag.core.log import log_event, request_id_var
from cg_rag.core.providers import (
    Provider,
    ProviderName,
    StructuredOutput,
    ThinkingControl,
    find_provider,
    weaker,
)
from cg_rag.core.retry import BACKOFF_SECONDS, MAX_RETRY_AFTER_SECONDS, wait_seconds
from cg_rag.core.tool_calls import ToolCall, ToolCallDelta
from cg_rag.core.upstream_errors import (
    UpstreamBroken,
    UpstreamEmpty,
    UpstreamError,
    UpstreamFailed,
    UpstreamFiltered,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnreachable,
)

__all__ = [
    "ChatDelta",
    "ChatRequest",
    "ChatResult",
    "ChatUpstream",
    "Slices",
    "ToolCall",
    "ToolCallDelta",
    "UpstreamBroken",
    "UpstreamEmpty",
    "UpstreamError",
    "UpstreamFailed",
    "UpstreamFiltered",
    "UpstreamRefused",
    "UpstreamSettings",
    "UpstreamTimeout",
    "UpstreamUnreachable",
    "is_endpoint",
    "open_session",
]

_FINISH_GRACE_SECONDS: Final = (
    2.0  # after the finish_reason only usage and [DONE] can come: not worth a failure
)


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """Where a model is and how it is called. Times are seconds; `timeout_seconds` bounds one attempt.

    `endpoint` is the base URL (`…/v1`), or the whole one when it ends in /chat/completions. None for
    `thinking_control` and `structured_output` is what `provider` says; `streaming` false is for servers whose
    streams do not work. Raises ValueError for an endpoint that is none.
    """

    endpoint: str
    model: str
    api_key: SecretStr = field(default_factory=lambda: SecretStr(""))
    provider: ProviderName = "auto"
    thinking_control: ThinkingControl | None = None
    structured_output: StructuredOutput | None = None
    enable_thinking: bool = False
    streaming: bool = True
    timeout_seconds: float = 120.0
    first_byte_timeout_seconds: float = 60.0
    connect_timeout_seconds: float = 10.0
    between_bytes_timeout_seconds: float = 60.0
    max_attempts: int = 3
    backoff_seconds: float = BACKOFF_SECONDS
    proxy_from_environment: bool = False

    def __post_init__(self) -> None:
        if not is_endpoint(self.endpoint):
            raise ValueError("endpoint is no http(s) URL without user, query and fragment")


def is_endpoint(text: str) -> bool:
    """Whether `text` can be an endpoint: http or https, a host; no user, password, query or fragment, in which
    keys would hide."""
    try:
        url = urlsplit(text)
        url.port  # noqa: B018 - raises for one that is none
    except ValueError:
        return False
    is_web = url.scheme in ("http", "https") and bool(url.hostname)
    return is_web and text.isprintable() and not any(character in text for character in " @?#\\")


def open_session(settings: UpstreamSettings) -> aiohttp.ClientSession:
    """The session of one upstream, to be closed by whoever opened it. Certificates are verified; a proxy is
    taken from the environment only with `proxy_from_environment`."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),  # core/capacity.py bounds how much goes on at once
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        # Not aiohttp's trust_env, which reads keys for the host from ~/.netrc as well.
        proxy=_proxy_for(settings.endpoint) if settings.proxy_from_environment else None,
        headers={"User-Agent": "cg-rag"},
    )


@dataclass(slots=True)
class _Plan:
    """One call: what is wanted, and how far its attempts got."""

    request: ChatRequest
    streamed: bool
    budget_ends: float
    yields_parts: bool
    attempts: int = 0
    retries: int = 0
    has_yielded: bool = False
    wording: Wording | None = None
    modest: StructuredOutput | None = None
    failure: UpstreamError | None = None


class ChatUpstream:
    """One model at one endpoint. What the server refused once is remembered here for all later calls."""

    def __init__(self, settings: UpstreamSettings, session: aiohttp.ClientSession) -> None:
        self._settings = settings
        self._session = session
        self._provider = find_provider(settings.provider, settings.endpoint)
        self._structured_output = settings.structured_output or self._provider.structured_output
        self._include_usage = True
        base = settings.endpoint.rstrip("/")
        self._url = base if base.endswith("/chat/completions") else f"{base}/chat/completions"

    @property
    def provider(self) -> Provider:
        return self._provider

    @property
    def model(self) -> str:
        return self._settings.model

    @property
    def structured_output(self) -> StructuredOutput:
        """The strongest constraint that the server has not refused so far."""
        return self._structured_output

    async def complete(self, request: ChatRequest, budget_seconds: float | None = None) -> ChatResult:
        """The whole answer, within `budget_seconds` of now, retries and waits included. Raises UpstreamError."""
        streamed = self._provider.thinking_needs_stream and self._thinks(request)
        plan = _Plan(request, streamed, _end_of(budget_seconds), yields_parts=False)
        async with aclosing(self._attempts(plan)) as deltas:
            async for delta in deltas:
                if delta.result is not None:
                    return delta.result
        raise AssertionError("an attempt ended without a result")

    def stream(
        self, request: ChatRequest, budget_seconds: float | None = None
    ) -> AsyncGenerator[ChatDelta, None]:
        """The answer as it comes; the last delta holds all of it as `result`. Raises UpstreamError, after which what
        was yielded is no answer. Use `contextlib.aclosing`, so that leaving early closes the connection at once."""
        plan = _Plan(request, self._settings.streaming, _end_of(budget_seconds), yields_parts=True)
        return self._attempts(plan)

    def _thinks(self, request: ChatRequest) -> bool:
        wanted = request.enable_thinking
        return self._settings.enable_thinking if wanted is None else wanted

    async def _attempts(self, plan: _Plan) -> AsyncGenerator[ChatDelta, None]:
        while True:
            if asyncio.get_running_loop().time() >= plan.budget_ends:
                raise self._blamed(UpstreamTimeout("budget_spent"), plan)
            plan.attempts += 1
            async with aclosing(self._attempt(plan, self._worded(plan))) as deltas:
                async for delta in deltas:
                    yield delta
            if plan.failure is None:
                return
            await self._recover(self._blamed(plan.failure, plan), plan)

    async def _attempt(self, plan: _Plan, wording: Wording) -> AsyncGenerator[ChatDelta, None]:
        """One request and what comes of it; an UpstreamError is left in the plan."""
        plan.failure = None
        plan.wording = wording
        try:
            async with aclosing(self._exchanged(plan, wording)) as deltas:
                async for delta in deltas:
                    if plan.yields_parts or delta.result is not None:
                        plan.has_yielded = True
                        yield delta
        except UpstreamError as failure:
            plan.failure = failure

    async def _exchanged(self, plan: _Plan, wording: Wording) -> AsyncGenerator[ChatDelta, None]:
        body = encode_body(build_body(plan.request, wording))
        parser = ChatParser(wording.thinking, wording.provider.answers_in_thinking)
        async with self._exchange(body, wording.streamed, plan.budget_ends) as answer:
            while not parser.is_done and (data := await _read(answer, parser.is_finished)):
                for delta in parser.feed(data):
                    yield delta
            if parser.is_done:
                await answer.settle()
        for delta in parser.finish():
            yield delta if delta.result is None else self._named(delta, delta.result, plan, wording)

    def _exchange(self, body: EncodedBody, streamed: bool, budget_ends: float) -> Exchange:
        settings = self._settings
        first_byte = settings.first_byte_timeout_seconds
        timeouts = Timeouts(
            connect=settings.connect_timeout_seconds,
            # The first byte of an answer that comes in one piece comes when all of it is made.
            first_byte=first_byte if streamed else math.inf,
            between_bytes=settings.between_bytes_timeout_seconds,
            total=settings.timeout_seconds,
        )
        return Exchange(self._session, self._url, self._headers(), body, timeouts, budget_ends)

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json, text/event-stream"}
        key = self._settings.api_key.get_secret_value()
        if key:
            headers["Authorization"] = f"Bearer {key}"
        request_id = request_id_var.get()
        if request_id:
            headers["X-Request-ID"] = request_id
        return headers

    def _worded(self, plan: _Plan) -> Wording:
        thinking = self._thinks(plan.request)
        can_constrain = self._provider.structures_thoughts or not thinking
        is_constrained = plan.request.schema is not None and can_constrain
        return Wording(
            provider=self._provider,
            model=self._settings.model,
            thinking_control=self._settings.thinking_control or self._provider.thinking_control,
            thinking=thinking,
            streamed=plan.streamed,
            structured_output=(plan.modest or self._structured_output) if is_constrained else "none",
            include_usage=self._include_usage,
        )

    def _named(self, delta: ChatDelta, result: ChatResult, plan: _Plan, wording: Wording) -> ChatDelta:
        if plan.modest is not None:
            self._structured_output = plan.modest  # it has helped, so it is what this upstream takes
        named = replace(
            result,
            model=self._settings.model,
            attempts=plan.attempts,
            structured_output=wording.structured_output,
        )
        return replace(delta, result=named)

    def _blamed(self, failure: UpstreamError, plan: _Plan) -> UpstreamError:
        failure.attempts = plan.attempts
        # A server may call its failure by the key that it was sent.
        if failure.code and failure.code in self._settings.api_key.get_secret_value():
            failure.code = ""
        return failure

    async def _recover(self, failure: UpstreamError, plan: _Plan) -> None:
        """Returns when another attempt may begin; raises `failure` when there is to be none."""
        if plan.has_yielded:
            raise failure
        if plan.wording is not None and self._steps_down(failure, plan, plan.wording):
            return
        plan.retries += 1
        if not failure.may_retry or plan.retries >= self._settings.max_attempts:
            raise failure
        asked = failure.retry_after_seconds
        wait = wait_seconds(plan.retries, asked, random.random(), self._settings.backoff_seconds)
        is_unbounded = math.isinf(plan.budget_ends)
        if is_unbounded and (asked or 0.0) > MAX_RETRY_AFTER_SECONDS:
            raise failure
        if asyncio.get_running_loop().time() + wait >= plan.budget_ends:
            raise failure
        log_event(logging.DEBUG, "upstream_retry", reason=failure.reason, status=failure.status)
        await asyncio.sleep(wait)

    def _steps_down(self, failure: UpstreamError, plan: _Plan, wording: Wording) -> bool:
        """Whether the same request, put more modestly, may be taken. Another call may have found out the same
        meanwhile, so only what this one was refused is stepped down from."""
        if not isinstance(failure, UpstreamRefused) or failure.status not in (400, 422):
            return False
        feature = refused_feature(failure.detail)
        if feature == "stream_options" and wording.streamed and wording.include_usage:
            self._include_usage = False
        elif feature == "structured_output" and (modest := weaker(wording.structured_output)):
            if self._structured_output == wording.structured_output:
                self._structured_output = modest
        elif feature is None and plan.modest is None and may_be_structure(failure.detail, wording):
            # A terse refusal names nothing. Tried once without, and remembered only when that is taken.
            plan.modest = "none"
            return True
        else:
            return False
        log_event(
            logging.WARNING,
            "upstream_stepped_down",
            feature=feature,
            structured_output=self._structured_output,
        )
        return True


async def _read(answer: Exchange, is_finished: bool) -> bytes:
    if not is_finished:
        return await answer.read()
    try:
        return await answer.read(_FINISH_GRACE_SECONDS)
    except (UpstreamTimeout, UpstreamBroken):
        return b""


def _end_of(budget_seconds: float | None) -> float:
    return math.inf if budget_seconds is None else asyncio.get_running_loop().time() + budget_seconds


def _proxy_for(endpoint: str) -> str | None:
    url = urlsplit(endpoint)
    proxy = getproxies().get(url.scheme)
    is_http = proxy is not None and proxy.startswith(("http://", "https://"))
    return proxy if is_http and not proxy_bypass(url.hostname or "") else None
