"""What a mode may use. Made once at start, handed to every mode; tests make their own."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from pydantic import SecretStr

from cg_rag.core.cache import Cache
from cg_rag.core.capacity import Limiter
from cg_rag.core.config import ConfigError
from cg_rag.core.embeddings import BlockingEmbeddings, EmbeddingsSettings
from cg_rag.core.os_words import reason_of
from cg_rag.core.profile import VisionProfile
from cg_rag.core.rerank import BlockingReranker, RerankApiSettings
from cg_rag.core.rerank_settings import RerankSettings
from cg_rag.core.settings import EmbeddingSettings, Settings
from cg_rag.core.upstream_errors import UpstreamError
from cg_rag.core.vision_settings import vision_profile
from cg_rag.core.worker import ALONE, Worker
from cg_rag.index.beside import share_processors
from cg_rag.index.corpus import Selector
from cg_rag.index.embedder import CallableEmbedder, Embedder, OnnxEmbedder
from cg_rag.index.library import IndexLibrary, Profile, RankingOptions, RerankerSource
from cg_rag.index.milvus import Milvus, MilvusOptions
from cg_rag.index.model_errors import ModelFailed
from cg_rag.index.models import E5_SMALL_ZH, STATUTE_CE_6L
from cg_rag.index.onnx import CURRENT_TOKEN, CancelToken
from cg_rag.index.reranker import CallableReranker, OnnxReranker, Reranker
from cg_rag.index.retriever import SearchResult
from cg_rag.modes.upstreams import (
    Upstream,
    generation_upstream,
    hybrid_upstream,
    vision_upstream,
)
from cg_rag.modes.vision_rules import VisionTexts, load_vision_texts
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
    vision_slots: Limiter
    """The same as `generation_slots` unless `capacity.vision.max` gives vision slots of its own."""
    vision_profile: VisionProfile
    vision_texts: VisionTexts
    prompt_mismatches: tuple[Mismatch, ...] = ()
    generation: Upstream | None = None
    """The model for text generation; None when none is configured, or provider `local` chooses without one."""
    vision: Upstream | None = None
    """The model that sees; None when it is not configured."""
    hybrid: Upstream | None = None
    """The text model of vision/hybrid; None unless endpoint, model and key are configured."""
    worker: Worker = ALONE
    """Which of the processes of the service this is; slots, cache and models are its own."""

    @property
    def limiters(self) -> tuple[Limiter, ...]:
        """Each one once."""
        own_vision = () if self.vision_slots is self.generation_slots else (self.vision_slots,)
        return (self.retrieval_slots, self.generation_slots, self.body_bytes, *own_vision)

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
        for upstream in (self.generation, self.vision, self.hybrid):
            if upstream is not None:
                await upstream.close()


class RerankClient(Protocol):
    """A score in 0..1 for each text, None where the endpoint left one out. Blocks; raises UpstreamError."""

    def __call__(self, query: str, texts: list[str], token: CancelToken | None) -> Sequence[float | None]: ...

    def close(self) -> None: ...


MakeRerankClient = Callable[[RerankSettings], RerankClient]


def open_rerank_client(rerank: RerankSettings) -> RerankClient:
    """The endpoint of `rerank`; its connections are opened when it is first called."""
    return BlockingReranker(
        RerankApiSettings(
            endpoint=rerank.endpoint,
            model=rerank.model,
            api_key=rerank.api_key or SecretStr(""),
            timeout_seconds=rerank.timeout_seconds,
            form=rerank.api_form,
        )
    )


def make_library(
    settings: Settings,
    embedder: Embedder | None = None,
    make_rerank_client: MakeRerankClient = open_rerank_client,
) -> IndexLibrary:
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
        min_score=retrieval.min_score,
        degrade=retrieval.degrade,
        dense_weight=retrieval.dense_weight,
        kernel=settings.index.kernel,
        rerank_candidates=settings.rerank.candidates,
        rerank_weight=settings.rerank.weight,
    )
    return IndexLibrary(
        settings.index.dir,
        profiles,
        options,
        lambda: embedder or make_embedder(settings),
        reranker=reranker_source(settings, make_rerank_client),
        engines=make_milvus(settings) if settings.index.backend == "milvus" else None,
    )


def make_milvus(settings: Settings) -> Milvus:
    """The Milvus of `settings`; connects when it is first asked."""
    milvus = settings.index.milvus
    token = milvus.token.get_secret_value() if milvus.token else ""
    return Milvus(MilvusOptions(milvus.uri, token, milvus.database, milvus.prefix, milvus.timeout_seconds))


def reranker_source(settings: Settings, make_client: MakeRerankClient) -> RerankerSource | None:
    """What reorders answers; None for method `fused`. Nothing is opened before it is needed."""
    rerank = settings.rerank
    if rerank.chosen == "fused":
        return None
    if rerank.chosen == "api":
        name = rerank.model or rerank.api_form
        return RerankerSource(name, True, lambda: _make_api_reranker(make_client(rerank), name))
    folder = rerank.model_dir

    def open_model() -> Reranker:
        if folder is not None:
            return OnnxReranker(folder, rerank.threads)
        return OnnxReranker(STATUTE_CE_6L, rerank.threads, shared=E5_SMALL_ZH)

    return RerankerSource((folder or STATUTE_CE_6L).name, False, open_model)


def _make_api_reranker(client: RerankClient, name: str) -> Reranker:
    def call(query: str, texts: list[str]) -> Sequence[float | None]:
        try:
            return client(query, texts, CURRENT_TOKEN.get())
        except UpstreamError as error:
            raise ModelFailed(name, str(error)) from error

    return CallableReranker(call, name=name, close=client.close)


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
    settings: Settings,
    prompt_mismatches: Sequence[Mismatch] = (),
    embedder: Embedder | None = None,
    make_rerank_client: MakeRerankClient = open_rerank_client,
    worker: Worker = ALONE,
) -> Services:
    """Everything that modes use, from settings alone. Opens nothing but the prompts and the criteria.

    Raises ConfigError for a `criteria.file` that holds no criteria.
    """
    share_processors(worker.count)
    capacity = settings.capacity
    wait = capacity.wait_timeout_seconds
    profile = vision_profile(settings)
    generation_slots = Limiter("generation", capacity.generation.max, wait)
    own = capacity.vision.max
    return Services(
        settings=settings,
        library=make_library(settings, embedder, make_rerank_client),
        # As many as may search at once: those who wait for the scan of others share the next one.
        threads=ThreadPoolExecutor(capacity.retrieval.max, thread_name_prefix="retrieval"),
        retrieval_slots=Limiter("retrieval", capacity.retrieval.max, wait),
        generation_slots=generation_slots,
        vision_slots=generation_slots if own is None else Limiter("vision", own, wait),
        vision_profile=profile,
        vision_texts=_load_vision_texts(settings),
        body_bytes=Limiter("request_body", settings.server.max_inflight_body_bytes, wait),
        retrieval_cache=Cache(settings.cache.max_bytes, settings.cache.ttl_seconds),
        prompt_mismatches=tuple(prompt_mismatches),
        generation=generation_upstream(settings),
        vision=vision_upstream(settings, profile),
        hybrid=hybrid_upstream(settings),
        worker=worker,
    )


def _load_vision_texts(settings: Settings) -> VisionTexts:
    try:
        return load_vision_texts(settings.criteria.file)
    except OSError as error:
        raise ConfigError(f"criteria.file：无法读取 {error.filename}（{reason_of(error)}）。") from error
    except ValueError as error:
        raise ConfigError(f"criteria.file：{error}") from error
