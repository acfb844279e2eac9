from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import CodeType, FrameType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from cg_rag.index.dense import Answer, DenseSearcher, Floats, MicroBatcher, Request, Rows, best_places
from cg_rag.index.vectors import VectorArrays, encode_queries, quantise

Spans = list[tuple[int, int]]
DIM = 24
DEADLINE_SECONDS = 30.0


def make_vectors(num_rows: int, seed: int = 0, dim: int = DIM) -> Floats:
    """Vectors of length 1 with what real corpora have: equal rows, nearly equal ones, zeros."""
    source = np.random.default_rng(seed)
    values = source.normal(size=dim) + source.normal(size=(num_rows, dim))
    values[source.random(num_rows) < 0.3] = values[0] if num_rows else 0
    values += 1e-4 * source.normal(size=values.shape) * (source.random((num_rows, 1)) < 0.1)
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    values[source.random(num_rows) < 0.05] = 0
    return values.astype(np.float32)


def make_queries(num: int, seed: int = 1, dim: int = DIM) -> Floats:
    values = np.random.default_rng(seed).normal(size=(num, dim))
    return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)


def read_from(arrays: VectorArrays) -> NDArray[np.int16]:
    assert arrays.full is not None
    return arrays.full


def make_searcher(vectors: Floats, kernel: str = "numpy") -> DenseSearcher:
    arrays = quantise(vectors, vectors.shape[1])
    full = read_from(arrays)
    return DenseSearcher(arrays, lambda rows: full[rows], "onnx" if kernel == "onnx" else "numpy")


def slow_search(arrays: VectorArrays, query: Floats, ranges: Spans, k: int) -> list[tuple[int, float]]:
    """The rule of dense.py in plain integers."""
    encoded = encode_queries(query[None])
    levels, exact = encoded.levels[0].astype(np.int64), encoded.exact[0].astype(np.int64)
    rows = np.array([row for start, stop in ranges for row in range(start, stop)], np.int64)
    scan, full = arrays.scan.astype(np.int64), read_from(arrays).astype(np.int64)
    rough = {row: np.float32(scan[row] @ levels) * arrays.scales[row] for row in rows.tolist()}
    candidates = sorted(rough, key=lambda row: (-rough[row], row))[: max(100, min(4 * k, k + 100))]
    scores = {row: float(full[row] @ exact) * float(arrays.full_scales[row]) for row in candidates}
    best = sorted(scores, key=lambda row: (-scores[row], row))[:k]
    return [(row, scores[row] * float(encoded.units[0])) for row in best]


def as_pairs(answer: Answer) -> list[tuple[int, float]]:
    rows, scores = answer
    assert (rows.dtype, scores.dtype) == (np.int64, np.float64)
    return list(zip(rows.tolist(), scores.tolist(), strict=True))


def spans(num_rows: int) -> st.SearchStrategy[Spans]:
    bounds = st.lists(st.integers(0, num_rows), min_size=2, max_size=10, unique=True).map(sorted)
    cut = bounds.map(lambda found: list(zip(found[::2], found[1::2], strict=False)))
    return st.one_of(st.just([(0, num_rows)]), cut)


@st.composite
def batches(draw: st.DrawFn) -> tuple[Floats, Floats, list[tuple[Spans, int]]]:
    num_rows = draw(st.sampled_from([1, 5, 130, 900]))
    requests = draw(
        st.lists(st.tuples(spans(num_rows), st.sampled_from([1, 3, 10, 60])), min_size=1, max_size=12)
    )
    seed = draw(st.integers(0, 1000))
    queries = make_queries(len(requests), seed + 1)
    vectors = make_vectors(num_rows, seed)
    if draw(st.booleans()):
        queries[0] = vectors[0]
    return vectors, queries, requests


@settings(max_examples=100)
@given(batches())
def test_a_batch_gives_each_query_the_list_it_gets_alone_and_that_is_the_slow_twins(
    batch: tuple[Floats, Floats, list[tuple[Spans, int]]],
) -> None:
    vectors, queries, requests = batch
    arrays = quantise(vectors, DIM)
    searcher = make_searcher(vectors)
    together = searcher.search_many(queries, requests)
    for query, (ranges, k), answer in zip(queries, requests, together, strict=True):
        assert as_pairs(answer) == as_pairs(searcher.search(query, ranges, k))
        assert as_pairs(answer) == slow_search(arrays, query, ranges, k)


@settings(max_examples=30)
@given(batches())
def test_both_kernels_give_the_same_list(batch: tuple[Floats, Floats, list[tuple[Spans, int]]]) -> None:
    vectors, queries, requests = batch
    found = make_searcher(vectors, "onnx").search_many(queries, requests)
    expected = make_searcher(vectors).search_many(queries, requests)
    assert list(map(as_pairs, found)) == list(map(as_pairs, expected))


def test_the_order_is_that_of_the_cosines_in_float64() -> None:
    vectors = make_vectors(3000, dim=384)
    searcher = make_searcher(vectors)
    for query in make_queries(20, dim=384):
        rows, scores = searcher.search(query, [(0, 3000)], 10)
        cosines = vectors.astype(np.float64) @ query.astype(np.float64)
        assert np.allclose(scores, cosines[rows], atol=1e-5)
        assert np.allclose(scores, np.sort(cosines)[::-1][:10], atol=1e-5)


def test_equal_articles_come_in_the_order_of_their_rows() -> None:
    vectors = np.tile(make_queries(1), (300, 1))
    rows, scores = make_searcher(vectors).search(vectors[0], [(20, 50), (60, 300)], 40)
    assert rows.tolist() == [*range(20, 50), *range(60, 70)]
    assert len(set(scores.tolist())) == 1


def test_a_query_of_zeros_gives_the_first_rows_with_the_score_zero() -> None:
    answer = make_searcher(make_vectors(300)).search(np.zeros(DIM, np.float32), [(5, 300)], 3)
    assert as_pairs(answer) == [(5, 0.0), (6, 0.0), (7, 0.0)]


@pytest.mark.parametrize("ranges", [[], [(4, 4)], [(0, 0), (9, 9)]])
def test_no_rows_to_search_give_an_empty_answer(ranges: Spans) -> None:
    assert as_pairs(make_searcher(make_vectors(9)).search(make_queries(1)[0], ranges, 5)) == []


def test_an_index_without_rows_gives_an_empty_answer() -> None:
    for kernel in ("numpy", "onnx"):
        searcher = make_searcher(np.empty((0, DIM), np.float32), kernel)
        assert as_pairs(searcher.search(make_queries(1)[0], [], 5)) == []


@pytest.mark.parametrize(("k", "num_read"), [(1, 100), (25, 100), (30, 120), (50, 150), (200, 300)])
def test_only_rows_of_the_candidates_are_read_and_ascending(k: int, num_read: int) -> None:
    arrays = quantise(make_vectors(2000), DIM)
    full, asked = read_from(arrays), list[Rows]()

    def read(rows: Rows) -> NDArray[np.int16]:
        asked.append(rows)
        return full[rows]

    DenseSearcher(arrays, read).search(make_queries(1)[0], [(100, 900)], k)
    assert [len(rows) for rows in asked] == [num_read]
    assert (np.diff(asked[0]) > 0).all()
    assert 100 <= asked[0].min() <= asked[0].max() < 900


def test_more_scores_than_the_bound_are_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    searcher = make_searcher(make_vectors(400))
    queries, requests = make_queries(9), [([(0, 400)], 5)] * 9
    expected = searcher.search_many(queries, requests)
    monkeypatch.setattr("cg_rag.index.dense.MAX_SCORES", 900)
    assert list(map(as_pairs, searcher.search_many(queries, requests))) == list(map(as_pairs, expected))


def test_scores_of_given_rows_are_those_of_the_search_in_any_order() -> None:
    searcher = make_searcher(make_vectors(300))
    query = make_queries(1)[0]
    rows, scores = searcher.search(query, [(0, 300)], 300)
    shuffled = np.random.default_rng(0).permutation(300)
    assert searcher.score_rows(query, rows[shuffled]).tolist() == scores[shuffled].tolist()
    assert searcher.score_rows(query, rows[:0]).tolist() == []


@pytest.mark.parametrize(
    ("query", "ranges", "k", "message"),
    [
        (np.ones(DIM), [(0, 9)], 0, "k 须不小于 1"),
        (np.ones(DIM), [(0, 10)], 1, "0..9"),
        (np.ones(DIM), [(-1, 5)], 1, "0..9"),
        (np.ones(DIM), [(5, 3)], 1, "递增"),
        (np.ones(DIM), [(4, 6), (0, 2)], 1, "递增"),
        (np.ones(DIM + 1), [(0, 9)], 1, "形状"),
        (np.full(DIM, np.nan), [(0, 9)], 1, "非数值"),
    ],
)
def test_wrong_arguments_are_refused(query: NDArray[np.float64], ranges: Spans, k: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_searcher(make_vectors(9)).search(query.astype(np.float32), ranges, k)


def test_arrays_of_different_lengths_are_refused() -> None:
    arrays = quantise(make_vectors(9), DIM)
    short = VectorArrays(arrays.mean, arrays.scan, arrays.scales[1:], arrays.full_scales)
    with pytest.raises(ValueError, match="形状不一致"):
        DenseSearcher(short, lambda rows: read_from(arrays)[rows])


def test_rows_that_come_back_short_are_noticed() -> None:
    arrays = quantise(make_vectors(9), DIM)
    searcher = DenseSearcher(arrays, lambda rows: read_from(arrays)[rows[1:]])
    with pytest.raises(ValueError, match="形状应为"):
        searcher.search(make_queries(1)[0], [(0, 9)], 3)


@settings(max_examples=100)
@given(
    st.lists(st.integers(-3, 3), max_size=60),
    st.sampled_from([0, 1, 40]),
    st.integers(1, 70),
    st.integers(0, 99),
)
def test_the_best_places_are_those_of_a_full_sort(
    values: list[int], repeat: int, count: int, seed: int
) -> None:
    tied = np.array(values * repeat, np.float32)
    spread = np.random.default_rng(seed).normal(size=len(values) * repeat).astype(np.float32)
    for scores in (tied, spread, tied + spread.round(1)):
        expected = np.sort(np.argsort(-scores, kind="stable")[:count])
        assert best_places(scores, count).tolist() == expected.tolist()


class ScriptedSearcher:
    """Answers with the first value of each query; a scan waits until it is let go, and notes what it got."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.threads: list[int] = []
        self.entered = threading.Semaphore(0)
        self.permits = threading.Semaphore(0)
        self.errors: list[BaseException] = []

    def check(self, queries: Floats, requests: Sequence[Request]) -> None:
        if requests[0][1] < 1:
            raise ValueError("k")

    def search_many(self, queries: Floats, requests: Sequence[Request]) -> list[Answer]:
        self.batches.append(len(requests))
        self.threads.append(threading.get_ident())
        self.entered.release()
        assert self.permits.acquire(timeout=DEADLINE_SECONDS)
        if self.errors:
            raise self.errors.pop()
        return [(np.array([int(query[0])], np.int64), np.zeros(1)) for query in queries]


def until_waiting(batcher: MicroBatcher, num: int) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while batcher.num_waiting != num:
        assert time.monotonic() < deadline
        os.sched_yield()


def until_asleep(thread_id: int) -> None:
    """Until that thread is inside of `Event.wait`: a search counts as waiting some steps before."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not is_inside(sys._current_frames()[thread_id], threading.Event.wait.__code__):
        assert time.monotonic() < deadline
        os.sched_yield()


def is_inside(frame: FrameType | None, code: CodeType) -> bool:
    return frame is not None and (frame.f_code is code or is_inside(frame.f_back, code))


def ask(batcher: MicroBatcher, number: int) -> int:
    rows, _ = batcher.search(np.array([number], np.float32), [(0, 1)], 1)
    return int(rows[0])


def test_a_search_that_finds_nobody_scanning_runs_at_once_in_its_own_thread() -> None:
    searcher = ScriptedSearcher()
    batcher = MicroBatcher(searcher)
    searcher.permits.release(2)
    assert [ask(batcher, 7), ask(batcher, 8)] == [7, 8]
    assert searcher.batches == [1, 1]
    assert searcher.threads == [threading.get_ident()] * 2


def test_searches_that_come_during_a_scan_are_answered_by_one_scan_up_to_the_bound() -> None:
    searcher = ScriptedSearcher()
    batcher = MicroBatcher(searcher, max_batch=4)
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(ask, batcher, 0)
        assert searcher.entered.acquire(timeout=DEADLINE_SECONDS)
        others = [pool.submit(ask, batcher, number) for number in range(1, 7)]
        until_waiting(batcher, 6)
        searcher.permits.release(3)
        answers = [future.result(DEADLINE_SECONDS) for future in (first, *others)]
    assert answers == list(range(7))
    assert searcher.batches == [1, 4, 2]
    assert batcher.num_waiting == 0


def test_a_scan_that_fails_reaches_its_batch_alone_and_the_next_one_works() -> None:
    searcher = ScriptedSearcher()
    batcher = MicroBatcher(searcher)
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(ask, batcher, 0)
        assert searcher.entered.acquire(timeout=DEADLINE_SECONDS)
        others = [pool.submit(ask, batcher, number) for number in (1, 2, 3)]
        until_waiting(batcher, 3)
        searcher.permits.release()
        assert first.result(DEADLINE_SECONDS) == 0
        assert searcher.entered.acquire(timeout=DEADLINE_SECONDS)
        searcher.errors.append(OSError("full.i16"))
        searcher.permits.release()
        assert [type(future.exception(DEADLINE_SECONDS)) for future in others] == [OSError] * 3
    searcher.permits.release()
    assert ask(batcher, 9) == 9


def test_a_wrong_argument_is_its_callers_error_alone() -> None:
    searcher = ScriptedSearcher()
    batcher = MicroBatcher(searcher)
    with pytest.raises(ValueError, match="k"):
        batcher.search(np.zeros(1, np.float32), [(0, 1)], 0)
    searcher.permits.release()
    assert ask(batcher, 3) == 3
    assert searcher.batches == [1]


class Interrupted(BaseException):
    """What the signal handler of the test raises, as Ctrl-C would."""


def test_a_waiting_search_that_is_interrupted_leaves_and_the_others_go_on() -> None:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupted

    searcher = ScriptedSearcher()
    batcher = MicroBatcher(searcher)
    main = threading.get_ident()

    def interrupt_when_waiting() -> None:
        until_waiting(batcher, 1)
        until_asleep(main)
        signal.pthread_kill(main, signal.SIGUSR1)

    previous = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with ThreadPoolExecutor(2) as pool:
            leader = pool.submit(ask, batcher, 1)
            assert searcher.entered.acquire(timeout=DEADLINE_SECONDS)
            sent = pool.submit(interrupt_when_waiting)
            with pytest.raises(Interrupted):
                ask(batcher, 2)
            sent.result(DEADLINE_SECONDS)
            assert batcher.num_waiting == 0
            searcher.permits.release(2)
            assert leader.result(DEADLINE_SECONDS) == 1
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert ask(batcher, 3) == 3


class InterruptedLock:
    """Lets those who enter it pass, but interrupts at its step `at`: each enters, and leaves."""

    def __init__(self, at: int) -> None:
        self.lock = threading.Lock()
        self.steps_left = at
        self.thread = threading.get_ident()

    def __enter__(self) -> None:
        self.step()
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()
        self.step()

    def step(self) -> None:
        if threading.get_ident() == self.thread:
            self.steps_left -= 1
            if self.steps_left == 0:
                raise Interrupted


@pytest.mark.parametrize("at", [1, 2])
def test_a_search_that_is_interrupted_before_it_waits_leaves_too(
    monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    searcher = ScriptedSearcher()
    batcher = MicroBatcher(searcher)
    with ThreadPoolExecutor(1) as pool:
        leader = pool.submit(ask, batcher, 1)
        assert searcher.entered.acquire(timeout=DEADLINE_SECONDS)
        monkeypatch.setattr(batcher, "_lock", InterruptedLock(at))
        with pytest.raises(Interrupted):
            ask(batcher, 2)
        assert batcher.num_waiting == 0
        searcher.permits.release(2)
        assert leader.result(DEADLINE_SECONDS) == 1
        assert pool.submit(ask, batcher, 3).result(DEADLINE_SECONDS) == 3


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5, 6])
def test_a_search_that_leads_leaves_nobody_waiting_wherever_it_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    searcher = ScriptedSearcher()
    batcher = MicroBatcher(searcher)
    monkeypatch.setattr(batcher, "_lock", InterruptedLock(at))
    searcher.permits.release(9)
    with pytest.raises(Interrupted):
        ask(batcher, 2)
    assert batcher.num_waiting == 0
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(ask, batcher, 3).result(DEADLINE_SECONDS) == 3


@pytest.mark.parametrize("at", [1, 2])
def test_a_leader_that_is_interrupted_as_it_hands_over_hands_over_all_the_same(
    monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    searcher = ScriptedSearcher()
    batcher = MicroBatcher(searcher)
    scan = searcher.search_many
    first_thread = threading.get_ident()
    with ThreadPoolExecutor(2) as pool:
        waiters = []

        def scan_while_others_come(queries: Floats, requests: Sequence[Request]) -> list[Answer]:
            if threading.get_ident() == first_thread:
                waiters.extend(pool.submit(ask, batcher, number) for number in (4, 5))
                until_waiting(batcher, 2)
                batcher._lock = InterruptedLock(at)  # type: ignore[assignment]
            return scan(queries, requests)

        monkeypatch.setattr(searcher, "search_many", scan_while_others_come)
        searcher.permits.release(9)
        with pytest.raises(Interrupted):
            ask(batcher, 2)
        assert [waiter.result(DEADLINE_SECONDS) for waiter in waiters] == [4, 5]


def test_32_threads_get_the_lists_they_get_alone() -> None:
    searcher = make_searcher(make_vectors(3000))
    queries = make_queries(64)
    requests: list[tuple[Spans, int]] = [([(0, 3000)], 10), ([(10, 400), (900, 2000)], 7)] * 32
    alone = [
        as_pairs(searcher.search(query, *request)) for query, request in zip(queries, requests, strict=True)
    ]
    batcher = MicroBatcher(searcher)
    start = threading.Barrier(32)

    def work(first: int) -> list[list[tuple[int, float]]]:
        start.wait(DEADLINE_SECONDS)
        places = [(first + 5 * step) % 64 for step in range(20)]
        return [as_pairs(batcher.search(queries[place], *requests[place])) for place in places]

    with ThreadPoolExecutor(32) as pool:
        found = list(pool.map(work, range(32)))
    for first, lists in enumerate(found):
        assert lists == [alone[(first + 5 * step) % 64] for step in range(20)]
    assert batcher.num_waiting == 0


def test_threads_that_search_without_a_batcher_do_not_write_into_each_others_blocks() -> None:
    searcher = make_searcher(make_vectors(6000))
    queries = make_queries(8)
    alone = [as_pairs(searcher.search(query, [(0, 6000)], 10)) for query in queries]
    start = threading.Barrier(8)

    def work(place: int) -> bool:
        start.wait(DEADLINE_SECONDS)
        return all(
            as_pairs(searcher.search(queries[place], [(0, 6000)], 10)) == alone[place] for _ in range(100)
        )

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [True] * 8
