"""What the settings of the vision modes come to: what is configured, with which key, and how large a request may be."""

from __future__ import annotations

from pydantic import SecretStr

from cg_rag.core.profile import VisionProfile, resolve_profile
from cg_rag.core.settings import Settings

MIN_PHOTO_BODY_BYTES = 96 * 1024 * 1024  # docs/http.md: the largest body of the vision routes and of MCP


def vision_api_key(settings: Settings) -> SecretStr | None:
    """The key to send with pictures: its own, else the shared one, else none."""
    return settings.vision.api_key or settings.api_key


def is_vision_configured(settings: Settings) -> bool:
    return bool(settings.vision.endpoint and settings.vision.model)


def is_hybrid_configured(settings: Settings) -> bool:
    """Whether the text model of hybrid has all three; never with the shared key, which is another server's."""
    hybrid = settings.hybrid_generation
    return bool(hybrid.endpoint and hybrid.model and hybrid.api_key)


def half_configured(settings: Settings) -> list[str]:
    """One Chinese sentence for each vision upstream of which something is set and something needed is missing."""
    vision, hybrid = settings.vision, settings.hybrid_generation
    needed: dict[str, dict[str, object]] = {
        "vision": {"endpoint": vision.endpoint, "model": vision.model},
        "hybrid_generation": {"endpoint": hybrid.endpoint, "model": hybrid.model, "api_key": hybrid.api_key},
    }
    found = []
    for section, values in needed.items():
        absent = [f"{section}.{name}" for name, value in values.items() if not value]
        if 0 < len(absent) < len(values):
            found.append(f"{section} 只设置了一部分，缺 {'、'.join(absent)}，视为未配置。")
    return found


def max_photo_body_bytes(settings: Settings) -> int:
    """The largest body of a route that takes pictures: room for all of them in Base64, and never more than may be in
    flight at all, because such a body could only be refused as one too many."""
    vision = settings.vision
    wanted = max(MIN_PHOTO_BODY_BYTES, vision.max_images * vision.max_image_bytes * 3 // 2)
    return min(wanted, settings.server.max_inflight_body_bytes)


def vision_profile(settings: Settings) -> VisionProfile:
    """The vision profile in force, with what settings say beside it."""
    vision = settings.vision
    return resolve_profile(
        vision.profile, vision.agentic_workflow, vision.total_budget_seconds, vision.strict_retrieval_failure
    )
