"""What a mode may use. Made once at start, handed to every mode; tests make their own."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from pydantic import SecretStr

from cg_rag.core.cache import Cache
from cg_rag.core.capacity import Limiter
from cg_rag.core.embeddings import BlockingEmbeddings, EmbeddingsSettings
from cg_rag.core.settings import EmbeddingSettings, Settings
from cg_rag.core.upstream_errors import UpstreamError
from cg_rag.index.corpus import Selector
from cg_rag.index.embedder import CallableEmbedder, Embedder, OnnxEmbedder
from cg_rag.index.library import IndexLibrary, Profile, RankingOptions
from cg_rag.index.model_errors import ModelFailed
from cg_rag.index.models import E5_SMALL_ZH
from cg_rag.index.onnx import CURRENT_TOKEN, CancelToken
from cg_rag.index.retriever import SearchResult
from cg_rag.modes.upstreams import Upstream, generation_upstream
from cg_rag.prompts import Mismatch

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Services:
    settings: Settings
    library: IndexLibrary
    threads: Executor
    retrieval_slots: Limiter
    generation_slots: Limiter
    body_bytes: Limiter
    retrieval_cache: Cache[SearchResult]
    prompt_mismatches: tuple[Mismatch, ...] = ()
    generation: Upstream | None = None
    """The model for text generation; None when none is configured, or provider `local` chooses without one."""

    async def in_thread(self, function: Callable[[], Result]) -> Result:
        """Run blocking work off the event loop. A cancelled caller is let go only when the thread has ended,
        so that whatever slot it holds is given back no sooner than the work really stops."""
        # The context goes along, so that a log line of the thread carries the request's id.
        context = contextvars.copy_context()
        token = CancelToken()
        context.run(CURRENT_TOKEN.set, token)
        future = asyncio.get_running_loop().run_in_executor(self.threads, context.run, function)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            token.cancel()
            await asyncio.wait([future])
            future.exception()  # nobody is left who would want it
            raise

    async def close(self) -> None:
        """Close the connections to upstreams, in the loop that used them."""
        if self.generation is not None:
            await self.generation.close()


def make_library(settings: Settings, embedder: Embedder | None = None) -> IndexLibrary:
    """The index that `settings` name, not opened yet. `embedder` is the model when it is open already."""
    profiles = {}
    for name, profile in settings.profiles.items():
        include = profile.include
        selectors = (
            (Selector(),) if include == "all" else tuple(Selector(**entry.model_dump()) for entry in include)
        )
        profiles[name] = Profile(profile.label, selectors, profile.retrieval_method == "lexical")
    retrieval = settings.retrieval
    options = RankingOptions(
        retrieval.min_score, retrieval.degrade, retrieval.dense_weight, settings.index.kernel
    )
    return IndexLibrary(settings.index.dir, profiles, options, lambda: embedder or make_embedder(settings))


def make_embedder(settings: Settings) -> Embedder | None:
    """The embedding model of `settings`, opened (70 ms for the bundled one); None for provider `none`.

    Raises ModelMissing, ModelInvalid.
    """
    embedding = settings.embedding
    if embedding.provider == "none":
        return None
    if embedding.provider == "http":
        return _make_http_embedder(embedding)
    return OnnxEmbedder(embedding.model_dir or E5_SMALL_ZH, embedding.threads)


def _make_http_embedder(embedding: EmbeddingSettings) -> Embedder:
    client = BlockingEmbeddings(
        EmbeddingsSettings(
            embedding.endpoint,
            embedding.model,
            embedding.api_key or SecretStr(""),
            embedding.timeout_seconds,
        )
    )

    def call(texts: list[str]) -> Any:
        try:
            return np.array(client(texts, CURRENT_TOKEN.get()), dtype=np.float32)
        except UpstreamError as error:
            raise ModelFailed(embedding.model, str(error)) from error

    return CallableEmbedder(
        call,
        name=embedding.model,
        dim=embedding.dim,
        query_template=embedding.query_template,
        passage_template=embedding.passage_template,
        batch=embedding.batch,
        close=client.close,
    )


def make_services(
    settings: Settings, prompt_mismatches: Sequence[Mismatch] = (), embedder: Embedder | None = None
) -> Services:
    """Everything that modes use, from settings alone. Opens nothing."""
    wait = settings.capacity.wait_timeout_seconds
    return Services(
        settings=settings,
        library=make_library(settings, embedder),
        # As many as may search at once: those who wait for the scan of others share the next one.
        threads=ThreadPoolExecutor(settings.capacity.retrieval.max, thread_name_prefix="retrieval"),
        retrieval_slots=Limiter("retrieval", settings.capacity.retrieval.max, wait),
        generation_slots=Limiter("generation", settings.capacity.generation.max, wait),
        body_bytes=Limiter("request_body", settings.server.max_inflight_body_bytes, wait),
        retrieval_cache=Cache(settings.cache.max_bytes, settings.cache.ttl_seconds),
        prompt_mismatches=tuple(prompt_mismatches),
        generation=generation_upstream(settings),
    )
