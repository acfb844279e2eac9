"""An engine of vectors in this process: it holds what was pushed, and fails when told to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from cg_rag.index.errors import EngineFailed, EngineLacksIndex


class MemoryEngine:
    """One collection; `asked` are the (ranges, limit) of its searches."""

    def __init__(self, collection: str = "memory") -> None:
        self.collection = collection
        self.name = "memory"
        self.rows: dict[int, NDArray[np.float32]] | None = None
        self.asked: list[tuple[list[tuple[int, int]], int]] = []
        self.puts: list[int] = []
        self.is_away = False
        self.hangs: threading.Event | None = None
        self.when_asked: Callable[[], object] = lambda: None
        self.fails_after = 1 << 30

    def count(self) -> int | None:
        if self.is_away:
            raise EngineFailed("memory", "it is away")
        return None if self.rows is None else len(self.rows)

    def check(self, num_rows: int) -> None:
        if self.count() != num_rows:
            raise EngineLacksIndex(self.collection, self.count(), num_rows)

    def create(self, dim: int, num_rows: int, kind: str) -> None:
        self.rows = {}

    def put(self, first_row: int, vectors: NDArray[np.float32]) -> None:
        assert self.rows is not None
        self.fails_after -= 1
        if self.fails_after < 0:
            raise EngineFailed("memory", "it broke")
        self.puts.append(first_row)
        self.rows |= {first_row + place: vector for place, vector in enumerate(vectors)}

    def finish(self) -> None:
        pass

    def drop(self) -> None:
        self.rows = None

    def search(
        self, vector: NDArray[np.float32], ranges: Sequence[tuple[int, int]], limit: int
    ) -> NDArray[np.int64]:
        self.asked.append((list(ranges), limit))
        self.when_asked()
        if (hangs := self.hangs) is not None:  # a caller who has left may take it away meanwhile
            hangs.wait(30)
        if self.is_away:
            raise EngineFailed("memory", "it is away")
        assert self.rows is not None
        spans = ranges or [(0, 1 << 40)]
        rows = [row for row in self.rows if any(start <= row < stop for start, stop in spans)]
        return np.array(sorted(rows, key=lambda row: -float(self.rows[row] @ vector))[:limit], np.int64)  # type: ignore[index]


class MemoryEngines:
    """All collections, by the fingerprint of their index."""

    def __init__(self) -> None:
        self.found: dict[str, MemoryEngine] = {}

    def collection(self, fingerprint: str) -> MemoryEngine:
        return self.found.setdefault(fingerprint, MemoryEngine(fingerprint))

    def close(self) -> None:
        pass
