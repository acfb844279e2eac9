"""What the service says of itself: health, ready, profiles. Reads memory only, calls nobody, takes no slot."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from cg_rag import prompts
from cg_rag.core.memory import resident_bytes
from cg_rag.index.library import ScopeState, Snapshot
from cg_rag.modes.retrieve import get_usable_scope
from cg_rag.modes.services import Services

SERVICE_NAME = "CG_RAG"
# Workflow of the agentic mode -> the step that writes the report.
_WRITING_STEP = {"continuous": "continuous", "controller": "compose"}


def health(services: Services, version: str, started_at: float, with_counts: bool) -> dict[str, Any]:
    """The body of /health. `started_at` is of time.monotonic(). Without `with_counts` (a caller without key on a
    service that has keys) numbers and fingerprints are left out."""
    snapshot = services.library.snapshot
    body: dict[str, Any] = {
        "ok": True,
        "service": SERVICE_NAME,
        "version": version,
        "uptime_seconds": round(time.monotonic() - started_at, 1),
        "available_scopes": sorted(services.library.profiles),
        "active_scope": services.settings.active_scope,
        "profile": _active_profile(services, snapshot),
        "index": _index(snapshot, services.settings.index.backend),
        "generation": _generation(services),
        "hybrid_generation": _hybrid_generation(services),
        "rerank": _rerank(services),
        "vision": _vision(services),
        "capacity": _capacity(services),
        "cache": services.retrieval_cache.snapshot(),
        "memory": {"rss_bytes": resident_bytes()},
        "worker": _worker(services),
    }
    return body if with_counts else _without_counts(body)


def ready(services: Services, with_counts: bool) -> dict[str, Any]:
    """The body of /ready; raises index.not_ready while the active scope cannot be asked."""
    scope = services.settings.active_scope
    state = get_usable_scope(scope, services.library.snapshot)
    body: dict[str, Any] = {"ok": True, "active_scope": scope}
    return body | {"num_docs": state.scope.num_docs} if with_counts else body


def profiles(services: Services) -> dict[str, Any]:
    """The body of /profiles."""
    scopes = services.library.snapshot.scopes
    return {
        "ok": True,
        "profiles": {
            name: {"label": profile.label} | _scope_numbers(scopes[name])
            for name, profile in services.library.profiles.items()
        },
    }


def _scope_numbers(state: ScopeState) -> dict[str, Any]:
    return {
        "retrieval_method": state.method,
        "num_docs": state.scope.num_docs,
        "fingerprint": state.fingerprint,
    }


def _active_profile(services: Services, snapshot: Snapshot) -> dict[str, Any]:
    name = services.settings.active_scope
    label = services.library.profiles[name].label
    return {"scope": name, "label": label} | _scope_numbers(snapshot.scopes[name])


def _index(snapshot: Snapshot, backend: str) -> dict[str, Any]:
    manifest: Mapping[str, Any] = snapshot.reader.manifest if snapshot.reader else {}
    return {
        "state": snapshot.state,
        "num_docs": manifest.get("num_docs", 0),
        "fingerprint": manifest.get("fingerprint", ""),
        "built_at": manifest.get("built_at", ""),
        "embedding_model": (manifest.get("embedding") or {}).get("model", ""),
        "dim": manifest.get("dim", 0),
        "dtype": manifest.get("dtype") or "",
        "bytes_resident": snapshot.reader.bytes_resident if snapshot.reader else 0,
        "backend": backend,
        "faults": list(snapshot.faults),
    }


def _generation(services: Services) -> dict[str, Any]:
    upstream = services.generation
    if upstream is None:
        is_local = services.settings.generation.provider == "local"
        provider = "local" if is_local else ""
        return {
            "configured": is_local,
            "provider": provider,
            "model": "",
            "enable_thinking": False,
            "streaming": False,
        }
    return {
        "configured": True,
        "provider": upstream.provider,
        "model": upstream.settings.model,
        "enable_thinking": upstream.settings.enable_thinking,
        "streaming": upstream.settings.streaming,
    }


def _rerank(services: Services) -> dict[str, Any]:
    rerank = services.settings.rerank
    source = services.library.reranker_source
    return {
        "api_enabled": rerank.chosen == "api",
        "model": source.name if source else rerank.model,
        "method": rerank.chosen,
    }


def _hybrid_generation(services: Services) -> dict[str, Any]:
    upstream = services.hybrid
    return {"configured": upstream is not None, "model": upstream.settings.model if upstream else ""}


def _vision(services: Services) -> dict[str, Any]:
    settings, profile = services.settings.vision, services.vision_profile
    return {
        "configured": services.vision is not None,
        "model": services.vision.settings.model if services.vision else "",
        "profile": profile.name,
        "workflow": profile.workflow,
        "experimental": profile.is_experimental,
        "prompt_sha256": services.vision_texts.answer.sha256,
        "agentic_prompt_sha256": services.vision_texts.agentic_systems[
            _WRITING_STEP[profile.workflow]
        ].sha256,
        "criteria_sha256": services.vision_texts.rules.criteria.sha256,
        "prompt_pins_ok": not services.prompt_mismatches,
        "total_budget_seconds": profile.total_budget_seconds,
        "sse_heartbeat_seconds": settings.sse_heartbeat_seconds,
        "strict_retrieval_failure": profile.strict_retrieval_failure,
        "max_images": settings.max_images,
        "max_image_bytes": settings.max_image_bytes,
        "hazard_taxonomy_version": prompts.taxonomy_version(),
    }


def _capacity(services: Services) -> dict[str, Any]:
    return {limiter.resource: limiter.snapshot() for limiter in services.limiters}


def _worker(services: Services) -> dict[str, int]:
    worker = services.worker
    return {
        "number": worker.number,
        "count": worker.count,
        "running": worker.num_running,
        "restarts": worker.restarts,
        "pid": os.getpid(),
    }


def _without_counts(body: dict[str, Any]) -> dict[str, Any]:
    """What an anonymous caller may see: is it up, what can it do; nothing to count or to compare."""
    open_keys = ("ok", "service", "version", "available_scopes", "active_scope")
    profile = {key: body["profile"][key] for key in ("scope", "label", "retrieval_method")}
    return {key: body[key] for key in open_keys} | {
        "profile": profile,
        "index": {"state": body["index"]["state"]},
        "generation": body["generation"],
        "hybrid_generation": body["hybrid_generation"],
        "rerank": body["rerank"],
        "vision": {"configured": body["vision"]["configured"]},
    }
