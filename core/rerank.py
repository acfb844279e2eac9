"""Scores from a rerank endpoint: an async client, and the same for threads without a loop.

Rule: a question is answered whole or not at all. The batches of one question are scored by the same model on the same
scale, so they are rescaled together, never each by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import aiohttp

from cg_rag.core.blocking import BlockingClient, Stopper
from cg_rag.core.json_call import CallSettings, JsonCaller, sendable
from cg_rag.core.json_parts import encode_body
from cg_rag.core.log import log_event
from cg_rag.core.rerank_forms import (
    LIMITS,
    RerankForm,
    RerankLimits,
    make_body,
    parse_scores,
    rerank_url,
    rescale,
    split_batches,
)

# Some servers send every text back, and some escape each character of it.
_SPARE_BYTES: Final = 1024 * 1024
_ANSWER_PER_REQUEST: Final = 4


@dataclass(frozen=True, slots=True)
class RerankApiSettings(CallSettings):
    """`endpoint` is the base URL, or the whole one when it ends in /rerank (`rerank_url`). `timeout_seconds` bounds all
    batches of one question together. None for `max_texts` and `max_tokens` is what `form` says (`LIMITS`)."""

    name: str = "rerank"
    form: RerankForm = "flat"
    max_texts: int | None = None
    max_tokens: int | None = None

    @property
    def limits(self) -> RerankLimits:
        limits = LIMITS[self.form]
        return replace(
            limits,
            max_texts=self.max_texts or limits.max_texts,
            max_tokens=self.max_tokens or limits.max_tokens,
        )


class RerankClient:
    """One model at one endpoint, for use in the loop of `session`."""

    def __init__(self, settings: RerankApiSettings, session: aiohttp.ClientSession) -> None:
        self._settings = settings
        self._caller = JsonCaller(settings, session, rerank_url(settings.endpoint, settings.form))

    async def score(self, query: str, texts: Sequence[str]) -> list[float | None]:
        """How well each text answers `query`, 0..1; None for a text that the server left out. No text, no request.

        Raises UpstreamError. A lone surrogate, which JSON cannot carry, is sent as "?".
        """
        ends = asyncio.get_running_loop().time() + self._settings.timeout_seconds
        query, sent = sendable(query), [sendable(text) for text in texts]
        scores: list[float | None] = []
        # One after another: a server that is asked for a batch at a time is not asked to hold all of them.
        for batch in split_batches(query, sent, self._settings.limits):
            scores += await self._score_batch(query, sent[batch.start : batch.stop], ends)
        num_missing = scores.count(None)
        if num_missing:
            log_event(logging.WARNING, "rerank_incomplete", num_missing=num_missing, num_texts=len(texts))
        return rescale(scores)

    async def _score_batch(self, query: str, texts: Sequence[str], ends: float) -> list[float | None]:
        body = encode_body(make_body(self._settings.form, self._settings.model, query, texts))
        max_bytes = _SPARE_BYTES + _ANSWER_PER_REQUEST * body.length
        num_texts = len(texts)
        return await self._caller.call(body, lambda told: parse_scores(told, num_texts), max_bytes, ends)


class BlockingReranker(BlockingClient):
    """`RerankClient` as a function for many threads at once."""

    def __init__(self, settings: RerankApiSettings) -> None:
        super().__init__(settings, "rerank")
        self._rerank = settings

    def __call__(self, query: str, texts: list[str], token: Stopper | None = None) -> list[float | None]:
        """What `RerankClient.score` gives, and raises with what `BlockingClient.run` raises."""
        if not texts:
            return []
        return self.run(lambda session: RerankClient(self._rerank, session).score(query, texts), token)
