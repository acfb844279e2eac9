"""What one request takes, written down where it happens: stages, calls of upstreams, tokens, tools. No I/O.

Rule: names are words of this program or of its configuration, never a caller's, so that the series made from them stay
few. Work that nobody asked for through the edge has no account, and its notes are dropped.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from cg_rag.core.events import Event, close
from cg_rag.core.events import Final as FinalEvent

MAX_KEPT_CHARACTERS: Final = 4000
_QUESTIONS: Final = ("query", "question", "text")
_ANSWERS: Final = ("answer", "answer_text", "text")
_TOKEN_KINDS: Final = {"prompt_tokens": "prompt", "completion_tokens": "completion"}


class Meter(Protocol):
    """Counts over all requests. Its methods are called from any thread and return at once; times are seconds."""

    def begin(self) -> None: ...

    def end(self) -> None: ...

    def request(self, route: str, status: int, code: str, seconds: float) -> None: ...

    def traffic(self, route: str, received_bytes: int, sent_bytes: int) -> None: ...

    def first_token(self, route: str, seconds: float) -> None: ...

    def stage(self, name: str, seconds: float) -> None: ...

    def call(self, upstream: str, outcome: str, seconds: float) -> None: ...

    def upstream_error(self, upstream: str, reason: str) -> None: ...

    def retry(self, upstream: str) -> None: ...

    def tokens(self, upstream: str, kind: str, count: int) -> None: ...

    def tool(self, name: str, code: str, seconds: float) -> None: ...

    def degraded(self) -> None: ...


@dataclass(slots=True)
class Calls:
    """The calls that one request made to one upstream; a call includes its retries."""

    calls: int = 0
    retries: int = 0
    errors: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def as_json(self) -> dict[str, int]:
        """Without what is zero: most requests have few of these."""
        named = {name: getattr(self, name) for name in self.__slots__}
        return {name: count for name, count in named.items() if count or name == "calls"}


@dataclass(slots=True)
class Account:
    """One request. `code` is why its result is not what was wanted although the answer is a 200; `tool` the MCP tool
    that was called; `texts` what was asked and answered, kept only with `keeps_texts`. `cache_hit` None: nothing was
    looked up."""

    meter: Meter | None = None
    keeps_texts: bool = False
    started: float = field(default_factory=time.perf_counter)
    first_token_seconds: float | None = None
    upstreams: dict[str, Calls] = field(default_factory=dict)
    cache_hit: bool | None = None
    code: str = ""
    tool: str = ""
    texts: dict[str, str] = field(default_factory=dict)

    def of(self, upstream: str) -> Calls:
        return self.upstreams.setdefault(upstream, Calls())


account_var: ContextVar[Account | None] = ContextVar("account", default=None)


def note_stage(name: str, seconds: float) -> None:
    """A stage of the work was done, or a slot was waited for."""
    account = account_var.get()
    if account is not None and account.meter is not None:
        account.meter.stage(name, seconds)


def note_timings(timings_ms: Mapping[str, float]) -> None:
    """The same for several, named as in `runtime_stats`."""
    for name, milliseconds in timings_ms.items():
        note_stage(name.removesuffix("_ms"), milliseconds / 1000)


class CallNote:
    """A call that goes on."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self.outcome = "left"

    def done(self, usage: Mapping[str, int] | None = None) -> None:
        """Its answer is complete; `usage` is what the upstream says it took."""
        self.outcome = "ok"
        _note_tokens(self._upstream, usage)


@contextmanager
def noting_call(upstream: str) -> Iterator[CallNote]:
    """Around one call with all of its attempts: `ok`, `failed`, or `left` when whoever wanted it is gone."""
    note = CallNote(upstream)
    started = time.perf_counter()
    try:
        yield note
    except Exception:
        note.outcome = "failed"
        raise
    finally:
        _note_call(upstream, note.outcome, time.perf_counter() - started)


def _note_call(upstream: str, outcome: str, seconds: float) -> None:
    account = account_var.get()
    if account is None:
        return
    account.of(upstream).calls += 1
    if account.meter is not None:
        account.meter.call(upstream, outcome, seconds)


def note_upstream_error(upstream: str, reason: str) -> None:
    """An attempt failed; it may be tried again."""
    account = account_var.get()
    if account is None:
        return
    account.of(upstream).errors += 1
    if account.meter is not None:
        account.meter.upstream_error(upstream, reason)


def note_retry(upstream: str) -> None:
    account = account_var.get()
    if account is None:
        return
    account.of(upstream).retries += 1
    if account.meter is not None:
        account.meter.retry(upstream)


def _note_tokens(upstream: str, usage: Mapping[str, int] | None) -> None:
    account = account_var.get()
    if account is None or not usage:
        return
    calls = account.of(upstream)
    for name, kind in _TOKEN_KINDS.items():
        count = usage.get(name, 0)
        if count > 0:
            setattr(calls, name, getattr(calls, name) + count)
            if account.meter is not None:
                account.meter.tokens(upstream, kind, count)


def note_cache(hit: bool) -> None:
    """Several look-ups of one request are a hit when all of them are."""
    account = account_var.get()
    if account is not None:
        account.cache_hit = hit and account.cache_hit is not False


def note_degraded() -> None:
    """An answer was made although a stage of retrieval failed."""
    account = account_var.get()
    if account is not None and account.meter is not None:
        account.meter.degraded()


def note_code(code: str) -> None:
    account = account_var.get()
    if account is not None:
        account.code = code


def note_first_token() -> None:
    """A stream sends text; only the first call counts."""
    account = account_var.get()
    if account is not None and account.first_token_seconds is None:
        account.first_token_seconds = time.perf_counter() - account.started


def note_tool(name: str, code: str, seconds: float) -> None:
    """A tool has answered; `code` "" when its result is what was wanted."""
    account = account_var.get()
    if account is None:
        return
    account.tool = name
    if account.meter is not None:
        account.meter.tool(name, code, seconds)


def business_code() -> str:
    """What `note_code` noted for the request that goes on."""
    account = account_var.get()
    return account.code if account is not None else ""


def keeping_texts(request: object, events: AsyncIterator[Event]) -> AsyncIterator[Event]:
    """`events`, with the question and the answer kept on the account where the configuration wants them."""
    account = account_var.get()
    if account is None or not account.keeps_texts:
        return events
    question = next((getattr(request, name) for name in _QUESTIONS if hasattr(request, name)), "")
    account.texts["question"] = str(question)[:MAX_KEPT_CHARACTERS]
    return _keeping(account, events)


async def _keeping(account: Account, events: AsyncIterator[Event]) -> AsyncGenerator[Event, None]:
    try:
        async for event in events:
            if isinstance(event, FinalEvent):
                account.texts["answer"] = _answer(event.payload)[:MAX_KEPT_CHARACTERS]
            yield event
    finally:
        await close(events)


def _answer(payload: Mapping[str, Any]) -> str:
    inner = payload.get("generation")
    bodies = [payload, inner if isinstance(inner, dict) else {}]
    found = [body[name] for body in bodies for name in _ANSWERS if isinstance(body.get(name), str)]
    return str(found[0]) if found else ""
