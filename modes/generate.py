"""constrained-generate: a question and candidate articles in, the chosen ones out. docs/http.md, 受约束生成.

Rule: a model may only name indices of the candidates, and what it names is checked whatever it was asked. Its failures
are results (`ok` false), never errors: only a request that is wrong, or a service that is full, is an error.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any

import numpy as np
from pydantic import ConfigDict, Field, StringConstraints

from cg_rag import prompts
from cg_rag.core.account import note_code
from cg_rag.core.body import LongString
from cg_rag.core.events import Event, Final, Progress, Token
from cg_rag.core.local_picks import choose_locally
from cg_rag.core.log import log_event
from cg_rag.core.pick_conversation import PickConversation
from cg_rag.core.requests import Query, RequestModel, Text
from cg_rag.core.selection import AnswerLines, Candidate
from cg_rag.core.upstream_words import REASON_WORDS, upstream_details
from cg_rag.index.lexical import LexicalArrays, LexicalSearcher
from cg_rag.modes.services import Services
from cg_rag.modes.upstreams import Upstream

SUMMARY = "从给定条文中选出与问题直接相关的条文"
CODES: tuple[str, ...] = ()
SELECT_PROMPT = "generate/select.txt"
MAX_CANDIDATES = 200
NOT_CONFIGURED = (
    "CG_RAG 生成接口未配置，请设置 CG_RAG_GENERATION_ENDPOINT 和 CG_RAG_GENERATION_MODEL。"  # mcp.zh.txt
)

MaxItems = Annotated[int, Field(ge=1, le=50)]
DEFAULT_MAX_ITEMS = 5
Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1000)]


class Document(RequestModel):
    """One candidate. What else it carries comes back as it was given (`include_debug`)."""

    model_config = ConfigDict(extra="allow")

    law_name: Name = Field(description="法规名称")
    article_number: Annotated[str, StringConstraints(strip_whitespace=True, max_length=1000)] = Field(
        description="条文编号；没有编号的文本为空字符串"
    )
    contents: Text = Field(description="条文内容")


class Request(RequestModel):
    """Body of POST /cg-rag/constrained-generate."""

    query: Query = Field(description="问题，去除首尾空白后 1..2000 个字符")
    retrieval_docs: list[Document] = Field(
        min_length=1, max_length=MAX_CANDIDATES, description="候选条文，1..200 条，通常取自检索结果"
    )
    max_items: MaxItems = Field(DEFAULT_MAX_ITEMS, description="至多选出多少条，1..50")
    include_debug: bool = Field(False, description="附带模型原文与所用约束，仅供调试")
    generation_enable_thinking: bool | None = Field(None, description="是否让模型思考；null 为按服务设置")


async def run(request: Request, services: Services, request_id: str) -> AsyncGenerator[Event, None]:
    """Yields Progress, Token, AnswerReset and Final. Raises CgError: capacity.exceeded."""
    task = Task(
        request.query,
        [make_candidate(dict(document)) for document in request.retrieval_docs],
        request.max_items,
        request.generation_enable_thinking,
        request.include_debug,
    )
    async with aclosing(generate(task, services)) as events:
        async for event in events:
            if isinstance(event, Final):
                payload = event.payload
                event = Final({"ok": payload["ok"], "request_id": request_id} | payload)
            yield event


@dataclass(frozen=True, slots=True)
class Task:
    """One selection. `enable_thinking` None is the setting."""

    query: str
    candidates: Sequence[Candidate]
    max_items: int
    enable_thinking: bool | None
    include_debug: bool


def make_candidate(document: dict[str, Any]) -> Candidate:
    """From a document of retrieval, or of a caller who may have put anything in `score`."""
    score = document.get("score")
    is_number = isinstance(score, (int, float)) and not isinstance(score, bool) and math.isfinite(score)
    return Candidate(
        document["law_name"],
        document["article_number"],
        document["contents"],
        float(score) if is_number and score is not None else None,
        document,
    )


@dataclass(slots=True)
class Outcome:
    """What came of a selection. `failure` is the `error` of the answer, None when it succeeded; of one that failed
    only provider, model, `thinks`, thinking, stats and debug are filled in."""

    provider: str = ""
    model: str = ""
    thinks: bool = False
    picks: tuple[int, ...] = ()
    answer_text: str = ""
    raw: str = ""
    thinking: str = ""
    usage: dict[str, int] | None = None
    failure: dict[str, Any] | None = None
    stats: dict[str, float] = field(default_factory=dict)
    debug: dict[str, Any] = field(default_factory=dict)

    def payload(self, task: Task) -> dict[str, Any]:
        """The answer without request_id: what `rag` carries under `generation`."""
        body: dict[str, Any] = {
            "ok": self.failure is None,
            "generation_mode": "constrained",
            "answer_text": self.answer_text,
            "pred_indices": list(self.picks),
            "pred_items": [task.candidates[pick - 1].item for pick in self.picks],
            "pred_raw": self.raw,
            "thinking": self.thinking,  # the tokens that went out, joined, also when all else is void
            "generation_enable_thinking": self.thinks,
            "model": self.model,
            "provider": self.provider,
            "usage": self.usage,
            "runtime_stats": {name: round(ms, 3) for name, ms in self.stats.items()},
        }
        if self.failure is not None:
            body["error"] = self.failure
        if task.include_debug:
            picked = [task.candidates[pick - 1].document for pick in self.picks]
            body["debug"] = self.debug | {"pred_docs": _plain(picked)}
        return body


async def generate(task: Task, services: Services) -> AsyncGenerator[Event, None]:
    """Like `run`, with the payload of Outcome as `Final`. Takes one generation slot for all of it."""
    started = time.perf_counter()
    outcome = Outcome()
    yield Progress("generation", "正在筛选条文", "running")
    async with aclosing(_choose(task, services, outcome)) as events:
        async for event in events:
            yield event
    outcome.stats["total_time_ms"] = (time.perf_counter() - started) * 1000
    if outcome.failure is not None:
        details = outcome.failure["details"]
        note_code(outcome.failure["code"])
        log_event(
            logging.WARNING,
            "generation_failed",
            code=outcome.failure["code"],
            reason=details.get("reason_code", ""),
            status=details.get("status"),
        )
    yield Progress("generation", "条文筛选结束", "done")
    yield Final(outcome.payload(task))


async def _choose(task: Task, services: Services, outcome: Outcome) -> AsyncGenerator[Event, None]:
    """Fills in `outcome`; yields the answer's tokens."""
    upstream = services.generation
    if upstream is None and services.settings.generation.provider != "local":
        outcome.failure = _failure("generation_not_configured", NOT_CONFIGURED, {})
        return
    outcome.provider = "local"
    if upstream is not None:
        wanted = task.enable_thinking
        outcome.thinks = upstream.settings.enable_thinking if wanted is None else wanted
        outcome.provider, outcome.model = upstream.provider, upstream.settings.model
    if not task.candidates:
        # Nothing was found, so there is nothing to choose, and a model that is asked would answer from memory.
        chosen = _tell(task, outcome)
    elif upstream is None:
        chosen = _run_locally(task, services, outcome)
    else:
        chosen = _run_model(task, services, upstream, outcome)
    async with aclosing(chosen) as events:
        async for event in events:
            yield event


async def _run_model(
    task: Task, services: Services, upstream: Upstream, outcome: Outcome
) -> AsyncGenerator[Event, None]:
    async with _slot(services, outcome):
        conversation = PickConversation(
            upstream.chat(),
            _system_prompt().text,
            task.query,
            task.candidates,
            task.max_items,
            enable_thinking=outcome.thinks,
            timeout_seconds=upstream.settings.timeout_seconds,
        )
        started = time.perf_counter()
        async with aclosing(conversation.run()) as events:
            async for event in events:
                yield event
    outcome.stats["model_ms"] = (time.perf_counter() - started) * 1000
    outcome.thinking, outcome.debug = conversation.thinking, _debug(conversation)
    outcome.failure = _model_failure(conversation)
    if outcome.failure is None:
        for line in conversation.lines.finish():
            yield Token("answer", line)
        outcome.picks, outcome.raw = conversation.picks, conversation.raw
        outcome.usage, outcome.answer_text = conversation.usage, conversation.lines.text


async def _run_locally(task: Task, services: Services, outcome: Outcome) -> AsyncGenerator[Event, None]:
    async with _slot(services, outcome):
        outcome.picks = tuple(await services.in_thread(lambda: _choose_locally(task)))
    async for event in _tell(task, outcome):
        yield event


async def _tell(task: Task, outcome: Outcome) -> AsyncGenerator[Event, None]:
    lines = AnswerLines(task.candidates)
    for line in [*lines.take(outcome.picks), *lines.finish()]:
        yield Token("answer", line)
    outcome.answer_text = lines.text


@asynccontextmanager
async def _slot(services: Services, outcome: Outcome) -> AsyncIterator[None]:
    waiting = time.perf_counter()
    async with services.generation_slots.slot():
        outcome.stats["wait_ms"] = (time.perf_counter() - waiting) * 1000
        yield


def _choose_locally(task: Task) -> list[int]:
    scores = [candidate.score for candidate in task.candidates]
    known = [score for score in scores if score is not None]
    if len(known) == len(scores):
        return choose_locally(known, task.max_items)
    return _choose_by_words(task)


def _choose_by_words(task: Task) -> list[int]:
    """BM25 over these candidates alone; those that share no word with the question are out."""
    texts = [f"{one.law_name} {one.article_number} {one.contents}" for one in task.candidates]
    rows, scores = LexicalSearcher(LexicalArrays.build(texts)).search(
        task.query, [(0, len(texts))], len(texts)
    )
    by_row = np.zeros(len(texts))
    by_row[rows] = scores
    found = sorted(rows.tolist())
    chosen = choose_locally([float(by_row[row]) for row in found], task.max_items)
    return [found[place - 1] + 1 for place in chosen]


def _model_failure(conversation: PickConversation) -> dict[str, Any] | None:
    error, fault = conversation.error, conversation.fault
    if error is not None:
        message = f"生成模型调用失败：{REASON_WORDS[error.reason]}。"
        return _failure("generation_upstream_error", message, upstream_details(error, conversation.attempts))
    if fault:
        message = f"生成模型的回答不能使用：{fault}；已要求重新作答一次，仍不能使用。"
        details = {"reason": fault, "attempts": conversation.attempts}
        return _failure("generation_response_invalid", message, details)
    return None


def _debug(conversation: PickConversation) -> dict[str, Any]:
    return {
        "structured_output": conversation.structured_output,
        "system_prompt_sha256": _system_prompt().sha256,
        "attempts": conversation.attempts,
        "calls": [{"raw": call.raw, "fault": call.fault} for call in conversation.calls],
    }


@cache
def _system_prompt() -> prompts.Prompt:
    return prompts.load(SELECT_PROMPT)


def _failure(code: str, message: str, details: dict[str, Any]) -> dict[str, Any]:
    return {"code": code, "message": message, "details": details}


def _plain(value: Any) -> Any:
    """`value` with long strings as strings again."""
    if isinstance(value, LongString):
        return value.text()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
