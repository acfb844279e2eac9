"""The numbers of /metrics in Prometheus' text format, in a registry of their own. docs/metrics.md lists them.

Rule: what happens is counted when it happens; what stands (slots, cache, index, memory) is read when it is asked for.
Every label has few values: routes, codes, stages, upstreams, tools and scopes, all known at start.

This module, core/steady_counts.py (where one process keeps them) and core/shared_counts.py (which makes one of those
of several workers) alone import `prometheus_client`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Final, cast

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from cg_rag.core.access import OTHER_ROUTE
from cg_rag.core.log import log_event
from cg_rag.core.os_words import errno_name
from cg_rag.core.roster import Entry
from cg_rag.core.shared_counts import Reading, SharedCounts
from cg_rag.core.steady_counts import count_in_place
from cg_rag.core.worker import ALONE, Worker

# From a health check to the budget of a whole vision request.
REQUEST_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 180)
STAGE_BUCKETS: Final = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
CALL_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120)


Read = Callable[[], Iterable[Reading]]


class Metrics:
    """Counts of one service; a `core.account.Meter`. `read` gives what stands in this process at this moment. A
    `worker` of several counts where the others see it, for the life of its process: one object in each."""

    def __init__(self, read: Read, worker: Worker = ALONE) -> None:
        self._read = read
        self._worker = worker
        self._shared = _share(worker)
        if self._shared is None:
            count_in_place()
        # Since when each series counts: twice as many lines that nobody asks for.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(_Readings(read))
        self._in_progress = Gauge(
            "cg_rag_requests_in_progress",
            "Requests that are being answered",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self._requests = Counter(
            "cg_rag_requests",
            "Requests answered; code is empty when the result is what was wanted",
            ("route", "status", "code"),
            registry=registry,
        )
        self._request_seconds = Histogram(
            "cg_rag_request_seconds",
            "From the request's header to the end of its answer's making",
            ("route",),
            buckets=REQUEST_BUCKETS,
            registry=registry,
        )
        self._first_token_seconds = Histogram(
            "cg_rag_first_token_seconds",
            "From the request's header to the first text of a stream",
            ("route",),
            buckets=REQUEST_BUCKETS,
            registry=registry,
        )
        self._received = Counter(
            "cg_rag_received_bytes", "Bytes of request bodies read", ("route",), registry=registry
        )
        self._sent = Counter(
            "cg_rag_sent_bytes",
            "Bytes of answers, without headers of JSON answers",
            ("route",),
            registry=registry,
        )
        self._stage_seconds = Histogram(
            "cg_rag_stage_seconds",
            "Stages of the work, and waits for capacity (wait_…)",
            ("stage",),
            buckets=STAGE_BUCKETS,
            registry=registry,
        )
        self._calls = Counter(
            "cg_rag_upstream_calls",
            "Calls of models: ok, failed, left",
            ("upstream", "outcome"),
            registry=registry,
        )
        self._call_seconds = Histogram(
            "cg_rag_upstream_call_seconds",
            "Calls of models, retries included",
            ("upstream",),
            buckets=CALL_BUCKETS,
            registry=registry,
        )
        self._errors = Counter(
            "cg_rag_upstream_errors", "Attempts that failed", ("upstream", "reason"), registry=registry
        )
        self._retries = Counter(
            "cg_rag_upstream_retries", "Attempts after the first", ("upstream",), registry=registry
        )
        self._tokens = Counter(
            "cg_rag_upstream_tokens", "Tokens that models counted", ("upstream", "kind"), registry=registry
        )
        self._degraded = Counter(
            "cg_rag_retrieval_degraded", "Answers for which a stage of retrieval failed", registry=registry
        )
        self._tools = Counter("cg_rag_mcp_calls", "Calls of MCP tools", ("tool", "code"), registry=registry)
        self._tool_seconds = Histogram(
            "cg_rag_mcp_call_seconds",
            "Calls of MCP tools",
            ("tool",),
            buckets=REQUEST_BUCKETS,
            registry=registry,
        )

        if self._shared is not None:
            # The files are opened as they are first written to. From here on it matters to nobody who counts that
            # somebody cleans up where they lie (systemd's RemoveIPC of another unit of this user, for one).
            self._request_seconds.labels(OTHER_ROUTE)
            self.note()

    def begin(self) -> None:
        self._in_progress.inc()

    def end(self) -> None:
        self._in_progress.dec()

    def request(self, route: str, status: int, code: str, seconds: float) -> None:
        self._requests.labels(route, str(status), code).inc()
        self._request_seconds.labels(route).observe(seconds)

    def traffic(self, route: str, received_bytes: int, sent_bytes: int) -> None:
        self._received.labels(route).inc(received_bytes)
        self._sent.labels(route).inc(sent_bytes)

    def first_token(self, route: str, seconds: float) -> None:
        self._first_token_seconds.labels(route).observe(seconds)

    def stage(self, name: str, seconds: float) -> None:
        self._stage_seconds.labels(name).observe(seconds)

    def call(self, upstream: str, outcome: str, seconds: float) -> None:
        self._calls.labels(upstream, outcome).inc()
        self._call_seconds.labels(upstream).observe(seconds)

    def upstream_error(self, upstream: str, reason: str) -> None:
        self._errors.labels(upstream, reason).inc()

    def retry(self, upstream: str) -> None:
        self._retries.labels(upstream).inc()

    def tokens(self, upstream: str, kind: str, count: int) -> None:
        self._tokens.labels(upstream, kind).inc(count)

    def tool(self, name: str, code: str, seconds: float) -> None:
        self._tools.labels(name, code).inc()
        self._tool_seconds.labels(name).observe(seconds)

    def degraded(self) -> None:
        self._degraded.inc()

    @property
    def is_shared(self) -> bool:
        """Whether `note` has to be called from time to time."""
        return self._shared is not None

    def note(self) -> None:
        """Let the other workers see what stands in this one. Quick; reads what `read` reads."""
        if self._shared is not None:
            self._shared.note(self._read())

    def render(self, accept: str) -> tuple[bytes, str]:
        """All of it, and its Content-Type: what the Accept header `accept` asks for, else the classic text.

        Of several workers it reads and sums up the files, which takes milliseconds: for a thread. `note` comes first.
        """
        encode, content_type = choose_encoder(accept)
        return encode(cast(CollectorRegistry, self)), content_type

    def collect(self) -> Iterator[Metric]:
        """What an encoder asks of a registry."""
        yield from (self._registry if self._shared is None else self._shared).collect()
        yield from self._workers()

    def _workers(self) -> Iterator[Metric]:
        roster = self._worker.roster
        entries = roster.read() if roster is not None else [Entry(self._worker.number, os.getpid(), 0)]
        up = GaugeMetricFamily("cg_rag_worker_up", "1 while the worker runs", labels=("worker",))
        restarts = CounterMetricFamily(
            "cg_rag_worker_restarts", "Times that the worker was started again", labels=("worker",)
        )
        for entry in entries:
            up.add_metric((str(entry.number),), float(entry.pid > 0))
            restarts.add_metric((str(entry.number),), entry.restarts)
        yield from (up, restarts)


def _share(worker: Worker) -> SharedCounts | None:
    if worker.roster is None:
        return None
    try:
        return SharedCounts(worker.roster, worker.number)
    except OSError as error:
        # Better a worker that answers and counts for itself than none.
        log_event(logging.WARNING, "counts_not_shared", reason=errno_name(error))
        return None


class _Readings(Collector):
    """Readings of one name are one family, in the order of their first."""

    def __init__(self, read: Read) -> None:
        self._read = read

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        for reading in self._read():
            family = families.get(reading.name)
            if family is None:
                kind = GaugeMetricFamily if reading.kind == "gauge" else CounterMetricFamily
                family = families[reading.name] = kind(
                    reading.name, reading.help, labels=list(reading.labels)
                )
            family.add_metric(list(reading.labels.values()), reading.value)
        yield from families.values()

    def describe(self) -> Iterator[GaugeMetricFamily]:
        # Without this registering would read, and nothing is there yet.
        return iter(())
