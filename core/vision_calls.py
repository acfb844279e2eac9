"""The calls that one vision request makes to one model: one budget, one answer on thinking, usage of all of them.

Rule: what a call fails with is the caller's error already (core/vision_errors.py), except that an answer without any
text is an answer: whoever reads it says what is wrong with it, and asks again where it may.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from cg_rag.core.budget import Budget
from cg_rag.core.errors import CgError
from cg_rag.core.upstream import (
    ChatDelta,
    ChatRequest,
    ChatResult,
    ChatUpstream,
    UpstreamEmpty,
    UpstreamError,
)
from cg_rag.core.vision_errors import vision_failure

Message = Mapping[str, Any]
Failure = Callable[[UpstreamError, Budget, str], CgError]


class VisionCalls:
    """`thinks`: whether thinking is asked for. `usage` and `attempts` (requests sent) count all calls so far; `usage`
    is None until the server has told any. `failure` says what a failed call is to the caller."""

    def __init__(
        self, upstream: ChatUpstream, budget: Budget, thinks: bool, failure: Failure = vision_failure
    ) -> None:
        self.budget = budget
        self.thinks = thinks
        self.usage: dict[str, int] | None = None
        self.attempts = 0
        self._upstream = upstream
        self._failure = failure

    async def stream(
        self, messages: Sequence[Message], stage: str, tools: Sequence[Message] = ()
    ) -> AsyncGenerator[ChatDelta, None]:
        """One call; the last delta has `result`. Raises CgError: vision_budget_exceeded, what `failure` says."""
        self.budget.check(stage)
        request = ChatRequest(messages, enable_thinking=self.thinks, tools=tools)
        try:
            async with aclosing(self._upstream.stream(request, self.budget.remaining())) as deltas:
                async for delta in deltas:
                    if delta.result is not None:
                        self._count(delta.result)
                    yield delta
        except GeneratorExit:
            self.attempts += 1  # broken off: what was tried before its first token is not known
            raise
        except UpstreamEmpty as error:
            yield ChatDelta(result=self._nothing(error))
        except UpstreamError as error:
            raise self._failure(error, self.budget, stage) from error

    async def complete(
        self,
        messages: Sequence[Message],
        stage: str,
        schema: Mapping[str, Any] | None = None,
        tools: Sequence[Message] = (),
    ) -> ChatResult:
        """The same in one piece. `schema`, `tools`: see ChatRequest."""
        self.budget.check(stage)
        request = ChatRequest(messages, enable_thinking=self.thinks, schema=schema, tools=tools)
        try:
            result = await self._upstream.complete(request, self.budget.remaining())
        except UpstreamEmpty as error:
            return self._nothing(error)
        except UpstreamError as error:
            raise self._failure(error, self.budget, stage) from error
        self._count(result)
        return result

    def _count(self, result: ChatResult) -> None:
        self.attempts += result.attempts
        if result.usage:
            known = self.usage or {}
            self.usage = known | {name: known.get(name, 0) + count for name, count in result.usage.items()}

    def _nothing(self, error: UpstreamEmpty) -> ChatResult:
        self.attempts += error.attempts
        return ChatResult("", "", (), None, "stop", attempts=error.attempts)
