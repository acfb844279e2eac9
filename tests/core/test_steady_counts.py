"""Counts that keep their place: none is lost, none moves, and /metrics shows them."""

from __future__ import annotations

import threading

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from cg_rag.core.metrics import Metrics
from cg_rag.core.steady_counts import SteadyValue

NUM_THREADS, NUM_COUNTS = 8, 2000


def test_no_count_of_several_threads_is_lost_and_none_moves() -> None:
    value = SteadyValue("counter", "name", "name", (), (), "help")
    place = value._cell.buffer_info()
    start = threading.Barrier(NUM_THREADS)

    def count() -> None:
        start.wait(30)
        for _ in range(NUM_COUNTS):
            value.inc(0.5)

    threads = [threading.Thread(target=count) for _ in range(NUM_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert value.get() == NUM_THREADS * NUM_COUNTS / 2
    value.set(7)
    assert (value.get(), value._cell.buffer_info()) == (7.0, place)


def test_metrics_of_one_process_are_kept_so() -> None:
    metrics = Metrics(tuple)
    registry = CollectorRegistry()
    counter = Counter("made_after", "text", ("name",), registry=registry)
    histogram = Histogram("made_too", "text", buckets=(1, 2), registry=registry)
    counter.labels("a").inc(3, exemplar={"trace": "x"})
    histogram.observe(1.5)
    assert isinstance(counter.labels("a")._value, SteadyValue)
    text = generate_latest(registry).decode()
    assert 'made_after_total{name="a"} 3.0' in text
    assert 'made_too_bucket{le="1.0"} 0.0' in text
    assert 'made_too_bucket{le="2.0"} 1.0' in text
    assert "made_too_sum 1.5" in text
    metrics.request("/cg-rag/health", 200, "", 0.25)
    body, _ = metrics.render("")
    assert b'cg_rag_requests_total{code="",route="/cg-rag/health",status="200"} 1.0' in body
    assert b'cg_rag_request_seconds_sum{route="/cg-rag/health"} 0.25' in body
