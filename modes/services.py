"""What a mode may use. Made once at start, handed to every mode; tests make their own."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TypeVar

from cg_rag.core.cache import Cache
from cg_rag.core.capacity import Limiter
from cg_rag.core.config import Settings
from cg_rag.index.library import IndexLibrary
from cg_rag.index.retriever import SearchResult
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

    async def in_thread(self, function: Callable[[], Result]) -> Result:
        """Run blocking work off the event loop. A cancelled caller is let go only when the thread has ended,
        so that whatever slot it holds is given back no sooner than the work really stops."""
        # The context goes along, so that a log line of the thread carries the request's id.
        context = contextvars.copy_context()
        future = asyncio.get_running_loop().run_in_executor(self.threads, context.run, function)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise
