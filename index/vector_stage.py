"""The dense half of retrieval: a question becomes a vector, the vector finds articles.

Rule: the vector of a question is the mean of its own words and of the same words with their law terms beside them
(site_terms.json), because site people and laws name things differently; docs/retrieval.md has the measurement.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
from numpy.typing import NDArray

from cg_rag.index.beside import SPARE
from cg_rag.index.dense import DenseSearcher, MicroBatcher
from cg_rag.index.embedder import Embedder
from cg_rag.index.endpoint_pause import EndpointPause
from cg_rag.index.exact_scores import ExactScores, Rows
from cg_rag.index.onnx import CURRENT_TOKEN, CancelToken
from cg_rag.index.remote_vectors import RemoteSearcher, VectorEngine
from cg_rag.index.scan import Floats, KernelName
from cg_rag.index.store import IndexReader

Ranges = Sequence[tuple[int, int]]


class VectorStage:
    """Embeds and searches over one open index. Threads share one."""

    def __init__(
        self,
        reader: IndexReader,
        embedder: Embedder,
        kernel: KernelName,
        engine: VectorEngine | None = None,
    ) -> None:
        """`engine` searches in place of this process when it is given. Raises ValueError for an index without vectors,
        ModelInvalid where the kernel cannot work, EngineFailed, EngineLacksIndex."""
        if reader.vectors is None:
            raise ValueError("the index holds no vectors")
        self.name = embedder.name
        self._embedder = embedder
        self.kernel_fault: str | None = None
        """A sentence where another kernel than the one asked for is in use."""
        self._searcher: RemoteSearcher | DenseSearcher
        self._finder: RemoteSearcher | MicroBatcher
        if engine is not None:
            engine.check(reader.num_docs)
            exact = ExactScores(np.asarray(reader.vectors.full_scales), reader.dim, reader.read_full)
            self._finder = self._searcher = RemoteSearcher(engine, exact, reader.num_docs)
        else:
            self._searcher = scanner = DenseSearcher(reader.vectors, reader.read_full, kernel)
            self._finder = MicroBatcher(scanner)
            self.kernel_fault = scanner.kernel_fault
        self._is_remote = embedder.kernel_class == "endpoint"
        # A model here uses processors: more texts at once than there are would only take memory. An endpoint is waited
        # for, and how many may wait is what the retrieval slots say.
        self._embedding = threading.BoundedSemaphore(os.cpu_count() or 1)
        self._pause = EndpointPause(embedder.name, self._is_remote)

    @property
    def kernel(self) -> str:
        """What searches the vectors: a kernel of this process, or an engine and the kind of its index."""
        return self._searcher.kernel

    def embed(self, query: str, expansions: Sequence[str]) -> Floats:
        """float32 [D] of length 1. Raises what the embedder raises; ModelFailed at once for some seconds after an
        endpoint has failed, so that not everybody waits for its time-out."""
        token = CURRENT_TOKEN.get()
        with self._pause.watch(token), nullcontext() if self._is_remote else self._embedding:
            vector = self._embed(query, expansions, token)
        length = float(np.linalg.norm(vector))
        return (vector / length).astype(np.float32) if length else vector

    def _embed(self, query: str, expansions: Sequence[str], token: CancelToken | None) -> Floats:
        """One text a call: beside another in a batch a model with dynamic int8 layers would embed it otherwise."""
        if not expansions:
            return self._embedder.embed_query(query, token)

        def embed_with_terms() -> Floats:
            return self._embedder.embed_query(f"{query} {' '.join(expansions)}", token)

        if self._embedder.uses_one_processor:
            own, with_terms = SPARE.both(lambda: self._embedder.embed_query(query, token), embed_with_terms)
            return own + with_terms
        return self._embedder.embed_query(query, token) + embed_with_terms()

    def search(self, vector: Floats, ranges: Ranges, k: int) -> tuple[Rows, NDArray[np.float64]]:
        """(rows int64 [<= k], cosines float64 [<= k]), best first; searches of other threads share a scan here."""
        return self._finder.search(vector, ranges, k)

    def score_rows(self, vector: Floats, rows: Rows) -> NDArray[np.float64]:
        """Cosines float64 [len(rows)] of rows in any order."""
        return self._searcher.score_rows(vector, rows)
