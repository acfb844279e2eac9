"""Exact search by vectors: an int8 scan picks candidates, int16 rows decide.

Rule: every number that decides is an exact whole number times the scale of its row, one rounding each. No
order of additions shows in it, so the same query gets the same list alone, in a batch, in any block size,
with any BLAS, and from either kernel.

    approximate score of a row = scale of the row x (int8 row . query levels)
    candidates                 = the best 4 k, at least 100 and at most 100 more than k, equal ones by row
    score                      = scale of the row x (int16 row . 23-bit query), equal ones by row
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cg_rag.index.exact_scores import Answer, ExactScores, Rows, num_candidates
from cg_rag.index.scan import Floats, Kernel, KernelName, NumpyKernel, OnnxKernel, Ranges, count_rows
from cg_rag.index.vectors import EncodedQueries, VectorArrays, encode_queries

Request = tuple[Ranges, int]  # (ranges, k)

# Scores of one matrix product: 32 MB, or one query over more rows than that.
MAX_SCORES = 8 << 20
MAX_BATCH = 32
_GROUP = 64


class DenseSearcher:
    """Searches arrays that may be read-only maps. Holds no scratch, so threads share one.

    `kernel` says which one is in use; `kernel_fault` is a sentence where "onnx" was asked for and this CPU
    does not add exactly.
    """

    def __init__(
        self,
        arrays: VectorArrays,
        read_full: Callable[[Rows], NDArray[np.int16]],
        kernel: KernelName = "numpy",
    ) -> None:
        """`read_full`: ascending rows -> int16 [len(rows), D]. Raises ValueError for arrays that do not fit
        each other, ModelInvalid where the onnx runtime cannot work.
        """
        # A slice of a memmap object costs ten times as much as one of the plain array over the same memory.
        scan, scales, full_scales = map(np.asarray, (arrays.scan, arrays.scales, arrays.full_scales))
        shapes = (scales.shape, full_scales.shape, arrays.mean.shape)
        if scan.ndim != 2 or shapes != (scan.shape[:1], scan.shape[:1], scan.shape[1:]):
            raise ValueError(f"向量数组的形状不一致：{scan.shape}、{shapes}。")
        self.num_rows, self.dim = scan.shape
        self.kernel_fault: str | None = None
        self._exact = ExactScores(full_scales, self.dim, read_full)
        self._kernel = self._choose_kernel(scan, scales, kernel)
        self.kernel = self._kernel.name

    def search(self, query: Floats, ranges: Ranges, k: int) -> Answer:
        """(rows int64 [<= k], cosines float64 [<= k]), best first, equal ones by row.

        `query` float32 [D] of length 1; `ranges` ascending, disjoint, [start, stop); only they are scanned.
        ValueError: k < 1, ranges outside of the rows, another shape, values that are not finite.
        """
        return self.search_many(query[None], [(ranges, k)])[0]

    def search_many(self, queries: Floats, requests: Sequence[Request]) -> list[Answer]:
        """`search` for each of `queries` [Q, D] with its own ranges and k: one scan over their union."""
        self.check(queries, requests)
        encoded = encode_queries(queries)
        union = _unite(ranges for ranges, _ in requests)
        step = max(1, MAX_SCORES // max(1, count_rows(union)))
        found: list[Rows] = []
        for first in range(0, len(requests), step):
            scores = self._kernel.score(encoded.levels[first : first + step], union)
            group = zip(scores, requests[first : first + step], strict=True)
            found += [_candidates(row, union, request) for row, request in group]
        return self._decide(found, encoded, requests)

    def score_rows(self, query: Floats, rows: Rows) -> NDArray[np.float64]:
        """Cosines float64 [len(rows)], the numbers that `search` gives for these rows."""
        return self._exact.score(query, rows)

    def check(self, queries: Floats, requests: Sequence[Request]) -> None:
        """Raise the ValueError that `search_many` would raise."""
        if queries.shape != (len(requests), self.dim) or not requests:
            raise ValueError(f"查询向量的形状应为 {(len(requests), self.dim)}，实为 {queries.shape}。")
        if not np.isfinite(queries).all():
            raise ValueError("查询向量含有非数值。")
        for ranges, k in requests:
            if k < 1:
                raise ValueError(f"k 须不小于 1，收到 {k}。")
            bounds = [bound for span in ranges for bound in span]
            if bounds and (bounds != sorted(bounds) or bounds[0] < 0 or bounds[-1] > self.num_rows):
                raise ValueError(f"行的范围须递增并在 0..{self.num_rows} 之内，收到 {list(ranges)}。")

    def _choose_kernel(self, scan: NDArray[np.int8], scales: Floats, name: KernelName) -> Kernel:
        if name == "onnx":
            kernel = OnnxKernel(scan, scales)
            if kernel.is_exact:
                return kernel
            self.kernel_fault = "本机 CPU 的 int8 乘加会溢出截断（没有 VNNI），已改用 numpy 内核"
        return NumpyKernel(scan, scales)

    def _decide(
        self, found: Sequence[Rows], encoded: EncodedQueries, requests: Sequence[Request]
    ) -> list[Answer]:
        parts = zip(found, encoded.exact, encoded.units.tolist(), requests, strict=True)
        return [self._exact.best(query, unit, rows, k) for rows, query, unit, (_, k) in parts]


@dataclass(slots=True, eq=False)
class _Waiting:
    query: Floats
    request: Request
    woken: threading.Event = field(default_factory=threading.Event)
    answer: Answer | None = None
    error: BaseException | None = None
    batch: list[_Waiting] = field(default_factory=list)  # whom it scans for


class Searcher(Protocol):
    """What `MicroBatcher` needs of a `DenseSearcher`."""

    def check(self, queries: Floats, requests: Sequence[Request]) -> None: ...

    def search_many(self, queries: Floats, requests: Sequence[Request]) -> list[Answer]: ...


class MicroBatcher:
    """Gathers the searches of many threads into one scan.

    Rule: a search that finds nobody scanning scans at once, alone. Those that come meanwhile wait, and the
    first of them scans for all. So nobody waits while the scan is idle, and no thread of its own is needed.
    """

    def __init__(self, searcher: Searcher, max_batch: int = MAX_BATCH) -> None:
        self._searcher = searcher
        self._max_batch = max_batch
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._leader: _Waiting | None = None  # who scans, or is called to

    @property
    def num_waiting(self) -> int:
        """Searches that the next scan will answer."""
        return len(self._waiting)

    def search(self, query: Floats, ranges: Ranges, k: int) -> Answer:
        """As `DenseSearcher.search`. A wrong argument is only its caller's error; one of the scan itself
        (a full.i16 that cannot be read) reaches everybody of that batch.
        """
        request = (ranges, k)
        self._searcher.check(query[None], [request])
        own = _Waiting(query, request)
        try:
            self._take_part(own)
        except BaseException as error:
            # Of the scan, or Ctrl-C anywhere: nobody must wait for a leader that has left.
            for one in own.batch:
                if one.answer is None:
                    one.error = error
            self._hand_over(own)
            raise
        if own.error is not None:
            raise own.error
        assert own.answer is not None
        return own.answer

    def _take_part(self, own: _Waiting) -> None:
        """Until answered: by another's scan, or by leading one."""
        with self._lock:
            self._waiting.append(own)
            if self._leader is None:
                self._leader = own
        if self._leader is not own:
            own.woken.wait()
        if self._leader is own:
            self._lead(own)

    def _lead(self, own: _Waiting) -> None:
        """Search for those who wait now, the caller first among them; then wake them and the next leader."""
        with self._lock:
            own.batch = self._waiting[: self._max_batch]
            del self._waiting[: self._max_batch]
        queries = np.stack([one.query for one in own.batch])
        answers = self._searcher.search_many(queries, [one.request for one in own.batch])
        for one, answer in zip(own.batch, answers, strict=True):
            one.answer = answer
        self._hand_over(own)

    def _hand_over(self, own: _Waiting) -> None:
        """Done anew, it completes one that was interrupted."""
        with self._lock:
            self._waiting = [one for one in self._waiting if one is not own and one not in own.batch]
            if self._leader is own:
                self._leader = self._waiting[0] if self._waiting else None
            if self._leader is not None:
                self._leader.woken.set()
            for one in own.batch:
                one.woken.set()
            own.batch = []  # it holds itself


def best_places(scores: Floats, count: int) -> Rows:
    """Places of the `count` highest scores, ascending; of equal ones at the border the first.

    The lowest of the `count` highest maxima of disjoint groups is a bound that `count` scores reach: what is
    below it is out.
    """
    if len(scores) <= count:
        return np.arange(len(scores), dtype=np.int64)
    group = min(_GROUP, len(scores) // (2 * count))
    if group > 1:
        # Group i holds i, i + groups, …: a maximum over columns runs in whole vectors of the CPU.
        groups = len(scores) // group
        maxima = scores[: group * groups].reshape(group, groups).max(axis=0)
        found = np.flatnonzero(scores >= np.partition(maxima, groups - count)[groups - count])
    else:
        found = np.arange(len(scores), dtype=np.int64)
    order = np.argsort(-scores[found], kind="stable")[:count]
    return np.sort(found[order])


def _candidates(scores: Floats, union: Ranges, request: Request) -> Rows:
    """Rows int64, ascending, that are worth an exact score."""
    ranges = [span for span in request[0] if span[0] < span[1]]
    return _rows_of(best_places(_cut(scores, union, ranges), num_candidates(request[1])), ranges)


def _unite(many: Iterator[Ranges]) -> list[tuple[int, int]]:
    """Ascending, disjoint, not touching: what any of `many` holds."""
    united: list[tuple[int, int]] = []
    for start, stop in sorted({span for ranges in many for span in ranges if span[0] < span[1]}):
        if united and start <= united[-1][1]:
            united[-1] = (united[-1][0], max(stop, united[-1][1]))
        else:
            united.append((start, stop))
    return united


def _cut(scores: Floats, union: Ranges, ranges: Ranges) -> Floats:
    """The scores of `ranges`, each of which lies inside one range of `union`, in order."""
    if list(ranges) == list(union):
        return scores
    starts = np.array([start for start, _ in union], np.int64)
    shifts = np.cumsum([0] + [stop - start for start, stop in union])[:-1] - starts
    parts = [np.empty(0, np.float32)]
    for start, stop in ranges:
        shift = int(shifts[np.searchsorted(starts, start, side="right") - 1])
        parts.append(scores[start + shift : stop + shift])
    return parts[1] if len(parts) == 2 else np.concatenate(parts)


def _rows_of(places: Rows, ranges: Ranges) -> Rows:
    """Places in the scores of `ranges` -> rows of the index."""
    if len(ranges) == 1:
        return places + ranges[0][0]
    starts = np.array([start for start, _ in ranges], np.int64)
    firsts = np.cumsum([0] + [stop - start for start, stop in ranges])[:-1]
    owner = np.searchsorted(firsts, places, side="right") - 1
    return places - firsts[owner] + starts[owner] if len(ranges) else places
