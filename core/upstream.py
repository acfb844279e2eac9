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

import aiohttp
from pydantic import SecretStr

from cg_rag.core.account import note_retry, note_upstream_error, noting_call
from cg_rag.core.chat_request import ChatRequest, Wording, build_body, may_be_structure, refused_feature
from cg_rag.core.chat_stream import ChatDelta, ChatParser, ChatResult
from cg_rag.core.exchange import Exchange, Timeouts
from cg_rag.core.json_parts import Slices, encode_body
from cg_rag.core.log import log_event
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
from cg_rag.core.upstream_session import blamed, check_reachable, headers_for, open_session, url_of

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
    streams do not work. Raises ValueError for an endpoint that is none and for a key that no header can carry.
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
    name: str = "upstream"
    """What it is called in logs and metrics."""

    def __post_init__(self) -> None:
        check_reachable(self)


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


class ChatUpstream:
    """One model at one endpoint. What the server refused once is remembered here for all later calls."""

    def __init__(self, settings: UpstreamSettings, session: aiohttp.ClientSession) -> None:
        self._settings = settings
        self._session = session
        self._provider = find_provider(settings.provider, settings.endpoint)
        self._structured_output = settings.structured_output or self._provider.structured_output
        self._include_usage = True
        self._url = url_of(settings.endpoint, "/chat/completions")

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
        # One generator: every delta passes through every one there is.
        with noting_call(self._settings.name) as note:
            while True:
                wording = self._begin(plan)
                parser = self._parser(wording)
                try:
                    async with self._exchange(plan, wording) as answer:
                        while not parser.is_done:
                            data = await (_read_rest(answer) if parser.is_finished else answer.read())
                            if not data:
                                break
                            deltas = parser.feed(data)
                            for delta in deltas if plan.yields_parts else ():
                                plan.has_yielded = True
                                yield delta
                        if parser.is_done:
                            await answer.settle()
                    for delta in self._finished(parser, plan, wording):
                        if delta.result is not None:
                            note.done(delta.result.usage)
                        elif not plan.yields_parts:
                            continue
                        plan.has_yielded = True
                        yield delta
                    return
                except UpstreamError as error:
                    failure = error
                await self._recover(blamed(failure, self._settings, plan.attempts), plan)

    def _begin(self, plan: _Plan) -> Wording:
        if asyncio.get_running_loop().time() >= plan.budget_ends:
            raise blamed(UpstreamTimeout("budget_spent"), self._settings, plan.attempts)
        plan.attempts += 1
        plan.wording = self._worded(plan)
        return plan.wording

    def _parser(self, wording: Wording) -> ChatParser:
        secret = self._settings.api_key.get_secret_value()
        return ChatParser(wording.thinking, wording.provider.answers_in_thinking, secret)

    def _finished(self, parser: ChatParser, plan: _Plan, wording: Wording) -> list[ChatDelta]:
        return [
            delta if delta.result is None else self._named(delta, delta.result, plan, wording)
            for delta in parser.finish()
        ]

    def _exchange(self, plan: _Plan, wording: Wording) -> Exchange:
        settings = self._settings
        body = encode_body(build_body(plan.request, wording))
        first_byte = settings.first_byte_timeout_seconds
        timeouts = Timeouts(
            connect=settings.connect_timeout_seconds,
            # The first byte of an answer that comes in one piece comes when all of it is made.
            first_byte=first_byte if wording.streamed else math.inf,
            between_bytes=settings.between_bytes_timeout_seconds,
            total=settings.timeout_seconds,
        )
        headers = headers_for(settings, "application/json, text/event-stream")
        return Exchange(self._session, self._url, headers, body, timeouts, plan.budget_ends)

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
        return delta._replace(result=named)

    async def _recover(self, failure: UpstreamError, plan: _Plan) -> None:
        """Returns when another attempt may begin; raises `failure` when there is to be none."""
        note_upstream_error(self._settings.name, failure.reason)
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
        note_retry(self._settings.name)
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


async def _read_rest(answer: Exchange) -> bytes:
    """What comes behind the finish_reason."""
    try:
        return await answer.read(_FINISH_GRACE_SECONDS)
    except (UpstreamTimeout, UpstreamBroken):
        return b""


def _end_of(budget_seconds: float | None) -> float:
    return math.inf if budget_seconds is None else asyncio.get_running_loop().time() + budget_seconds
