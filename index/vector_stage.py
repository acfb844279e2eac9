"""The dense half of retrieval: a question becomes a vector, the vector finds articles.

Rule: the vector of a question is the mean of its own words and of the same words with their law terms beside them
(site_terms.json), because site people and laws name things differently; docs/retrieval.md has the measurement.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
from numpy.typing import NDArray

from cg_rag.index.dense import DenseSearcher, MicroBatcher, Rows
from cg_rag.index.embedder import Embedder
from cg_rag.index.model_errors import ModelFailed
from cg_rag.index.onnx import CURRENT_TOKEN
from cg_rag.index.scan import Floats, KernelName
from cg_rag.index.store import IndexReader

Ranges = Sequence[tuple[int, int]]
PAUSE_SECONDS = 5.0


class VectorStage:
    """Embeds and searches over one open index. Threads share one."""

    def __init__(self, reader: IndexReader, embedder: Embedder, kernel: KernelName) -> None:
        """Raises ValueError for an index without vectors, ModelInvalid where the kernel cannot work."""
        if reader.vectors is None:
            raise ValueError("the index holds no vectors")
        self.name = embedder.name
        self._embedder = embedder
        self._searcher = DenseSearcher(reader.vectors, reader.read_full, kernel)
        self._batcher = MicroBatcher(self._searcher)
        self._is_remote = embedder.kernel_class == "endpoint"
        # A model here uses processors: more texts at once than there are would only take memory. An endpoint is waited
        # for, and how many may wait is what the retrieval slots say.
        self._embedding = threading.BoundedSemaphore(os.cpu_count() or 1)
        self._pause_ends = 0.0

    @property
    def kernel(self) -> str:
        return self._searcher.kernel

    @property
    def kernel_fault(self) -> str | None:
        """A sentence where another kernel than the one asked for is in use."""
        return self._searcher.kernel_fault

    def embed(self, query: str, expansions: Sequence[str]) -> Floats:
        """float32 [D] of length 1. Raises what the embedder raises; ModelFailed at once for some seconds after an
        endpoint has failed, so that not everybody waits for its time-out."""
        if time.monotonic() < self._pause_ends:
            raise ModelFailed(self.name, "接口刚刚失败，稍后再试")
        token = CURRENT_TOKEN.get()
        try:
            with nullcontext() if self._is_remote else self._embedding:
                vector = self._embedder.embed_query(query, token)
                if expansions:
                    vector = vector + self._embedder.embed_query(f"{query} {' '.join(expansions)}", token)
        except (ModelFailed, OSError):
            if token is not None:
                token.check()  # the caller left: nothing is known of the endpoint
            if self._is_remote:
                self._pause_ends = time.monotonic() + PAUSE_SECONDS
            raise
        length = float(np.linalg.norm(vector))
        return (vector / length).astype(np.float32) if length else vector

    def search(self, vector: Floats, ranges: Ranges, k: int) -> tuple[Rows, NDArray[np.float64]]:
        """(rows int64 [<= k], cosines float64 [<= k]), best first; searches of other threads share the scan."""
        return self._batcher.search(vector, ranges, k)

    def score_rows(self, vector: Floats, rows: Rows) -> NDArray[np.float64]:
        """Cosines float64 [len(rows)] of rows in any order."""
        return self._searcher.score_rows(vector, rows)
