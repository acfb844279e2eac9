"""What stands at this moment in one process, as numbers for /metrics: capacity, cache, index, memory. docs/metrics.md.

Reads memory only, calls nobody, takes no slot. Slots and cache of several workers add up; the index is one, mapped by
all, so of it the most counts, and a scope is usable where every worker can ask it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import get_args

from cg_rag.core.shared_counts import Reading
from cg_rag.index.library import Snapshot, State
from cg_rag.modes.services import Services


def readings(services: Services, version: str) -> Iterator[Reading]:
    yield Reading("cg_rag_info", "The version that runs", 1, {"version": version}, merge="max")
    yield from _capacity(services)
    yield from _cache(services)
    yield from _index(services.library.snapshot)


def _capacity(services: Services) -> Iterator[Reading]:
    for limiter in services.limiters:
        labels = {"resource": limiter.resource}
        now = limiter.snapshot()
        yield Reading("cg_rag_capacity_max", "Units there are: slots, or bytes", now["max"], labels)
        yield Reading("cg_rag_capacity_in_use", "Units taken", now["in_use"], labels)
        yield Reading("cg_rag_capacity_waiting", "Requests that wait for units", now["waiting"], labels)
        yield Reading(
            "cg_rag_capacity_refused", "Requests that waited in vain", limiter.num_refused, labels, "counter"
        )


def _cache(services: Services) -> Iterator[Reading]:
    cache = services.retrieval_cache.snapshot()
    yield Reading("cg_rag_cache_entries", "Answers kept", cache["entries"])
    yield Reading("cg_rag_cache_bytes", "What they take in memory", cache["bytes"])
    yield Reading("cg_rag_cache_hits", "Look-ups that found an answer", cache["hits"], kind="counter")
    yield Reading("cg_rag_cache_misses", "Look-ups that found none", cache["misses"], kind="counter")


def _index(snapshot: Snapshot) -> Iterator[Reading]:
    for state in get_args(State):
        is_now = float(snapshot.state == state)
        yield Reading(
            "cg_rag_index_state", "1 for the state the index is in", is_now, {"state": state}, merge="max"
        )
    for name, scope in snapshot.scopes.items():
        labels = {"scope": name}
        usable = float(not scope.fault)
        yield Reading(
            "cg_rag_index_articles", "Articles of a scope", scope.scope.num_docs, labels, merge="max"
        )
        yield Reading("cg_rag_index_usable", "1 when a scope can be asked", usable, labels, merge="min")
    if snapshot.reader is not None:
        built = datetime.fromisoformat(snapshot.reader.manifest["built_at"]).timestamp()
        resident = snapshot.reader.bytes_resident
        yield Reading("cg_rag_index_built_timestamp_seconds", "When the index was built", built, merge="max")
        yield Reading("cg_rag_index_resident_bytes", "Memory that the index holds", resident, merge="max")
