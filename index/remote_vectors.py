"""The dense search where an engine beyond this process holds the vectors.

Rule: the engine only picks candidates. Cosines come from the int16 rows beside the texts, as they do without it, so an
answer is the same as the one that the scan of this process gives wherever the engine finds the same candidates.

Rule: ranges that hold no more rows than there would be candidates are scored here and the engine is not asked; so what
a question names outright does not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

import numpy as np

from cg_rag.index.endpoint_pause import EndpointPause
from cg_rag.index.errors import EngineFailed
from cg_rag.index.exact_scores import Answer, ExactScores, Rows, num_candidates
from cg_rag.index.onnx import CURRENT_TOKEN
from cg_rag.index.scan import Floats, count_rows

Ranges = Sequence[tuple[int, int]]
Result = TypeVar("Result")

# How often a caller that waits for the engine looks whether it is still wanted.
LOOK_SECONDS = 0.05
# More callers than this at once wait for each other; the retrieval slots are fewer by default.
MAX_CALLS = 32


class VectorEngine(Protocol):
    """One index in an engine. All calls block, at most for the engine's time-out."""

    @property
    def name(self) -> str:
        """For logs and doctor: the engine and the kind of its index."""

    def check(self, num_rows: int) -> None:
        """Raises EngineFailed when the engine cannot be reached, EngineLacksIndex when it has not all rows."""

    def search(self, vector: Floats, ranges: Ranges, limit: int) -> Rows:
        """The rows of `ranges` nearest to `vector`, at most `limit`, in any order. Raises EngineFailed."""


class VectorEngines(Protocol):
    """Where the indexes are (`milvus.Milvus`)."""

    def collection(self, fingerprint: str) -> VectorEngine:
        """What searches the vectors of the built index `fingerprint`, whether it is there or not."""

    def close(self) -> None: ...


class RemoteSearcher:
    """`search` as `dense.DenseSearcher` has it. Threads share one."""

    def __init__(self, engine: VectorEngine, exact: ExactScores, num_rows: int) -> None:
        self._engine = engine
        self._exact = exact
        self._everything = [(0, num_rows)]
        self._pause = EndpointPause(engine.name, True, EngineFailed)
        self._calls = ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="vector-engine")

    @property
    def kernel(self) -> str:
        return self._engine.name

    def search(self, query: Floats, ranges: Ranges, k: int) -> Answer:
        """(rows int64 [<= k], cosines float64 [<= k]), best first, equal ones by row.

        Raises EngineFailed, at once for some seconds after it was raised; Cancelled.
        """
        ranges = [span for span in ranges if span[0] < span[1]]
        limit = num_candidates(k)
        if count_rows(ranges) <= limit:
            rows = np.concatenate([np.empty(0, np.int64), *(np.arange(*span) for span in ranges)])
        else:
            asked = [] if ranges == self._everything else ranges
            rows = self._ask(lambda: self._engine.search(query, asked, limit))
        return self._exact.best_of(query, np.unique(rows).astype(np.int64), k)

    def score_rows(self, query: Floats, rows: Rows) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return self._exact.score(query, rows)

    def _ask(self, call: Callable[[], Result]) -> Result:
        """In a thread of its own: a caller who leaves is let go, though the engine knows no way to be stopped."""
        token = CURRENT_TOKEN.get()
        with self._pause.watch(token):
            future = self._calls.submit(call)
            while True:
                try:
                    return future.result(LOOK_SECONDS)
                except TimeoutError:
                    if token is not None and token.cancelled:
                        future.cancel()
                        token.check()
