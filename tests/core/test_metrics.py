from __future__ import annotations

import re

from prometheus_client.parser import text_string_to_metric_families

from cg_rag.core.metrics import Metrics
from cg_rag.core.shared_counts import Reading


def values(metrics: Metrics) -> dict[str, float]:
    """`name{labels}` -> value, as a scraper reads it."""
    body, content_type = metrics.render("")
    assert content_type.startswith("text/plain")
    found = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def test_what_happens_is_counted_and_what_stands_is_read_when_it_is_asked_for() -> None:
    standing = [
        Reading("cg_rag_seats", "h", 4, {"resource": "a"}),
        Reading("cg_rag_seats", "h", 5, {"resource": "b"}),
    ]
    metrics = Metrics(lambda: [*standing, Reading("cg_rag_refused", "h", 7, kind="counter")])
    metrics.request("/cg-rag/rag", 200, "", 0.3)
    metrics.request("/cg-rag/rag", 429, "capacity.exceeded", 5.0)
    metrics.tokens("vision", "prompt", 800)
    standing.append(Reading("cg_rag_seats", "h", 6, {"resource": "c"}))
    found = values(metrics)
    assert found["cg_rag_seats{resource=a}"] == 4
    assert found["cg_rag_seats{resource=c}"] == 6
    assert found["cg_rag_refused_total{}"] == 7
    assert found["cg_rag_requests_total{code=,route=/cg-rag/rag,status=200}"] == 1
    assert found["cg_rag_requests_total{code=capacity.exceeded,route=/cg-rag/rag,status=429}"] == 1
    assert found["cg_rag_request_seconds_bucket{le=0.25,route=/cg-rag/rag}"] == 0
    assert found["cg_rag_request_seconds_bucket{le=0.5,route=/cg-rag/rag}"] == 1
    assert found["cg_rag_request_seconds_count{route=/cg-rag/rag}"] == 2
    assert found["cg_rag_upstream_tokens_total{kind=prompt,upstream=vision}"] == 800
    assert found["process_resident_memory_bytes{}"] > 0


def test_two_services_of_one_process_count_apart() -> None:
    first, second = Metrics(tuple), Metrics(tuple)
    first.degraded()
    assert values(first)["cg_rag_retrieval_degraded_total{}"] == 1
    assert values(second)["cg_rag_retrieval_degraded_total{}"] == 0


def test_no_series_tells_when_it_was_made() -> None:
    metrics = Metrics(tuple)
    metrics.retry("vision")
    assert not [name for name in values(metrics) if "_created" in name]


def test_open_metrics_is_given_to_who_asks_for_it() -> None:
    body, content_type = Metrics(tuple).render("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert re.search(rb"# EOF\n$", body)
