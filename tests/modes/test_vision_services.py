"""What the settings of vision become: upstreams with their keys, slots, health, the log and doctor."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cg_rag import prompts
from cg_rag.core.config import Loaded, load
from cg_rag.core.doctor import check_vision
from cg_rag.core.vision_settings import half_configured, max_photo_body_bytes
from cg_rag.modes.health import health
from cg_rag.modes.services import Services, make_services
from tests.conftest import StartServer

VISION = {"CG_RAG_VISION_ENDPOINT": "http://127.0.0.1:1/v1", "CG_RAG_VISION_MODEL": "vlm"}
HYBRID = {
    "CG_RAG_HYBRID_GENERATION_ENDPOINT": "http://127.0.0.1:2/v1",
    "CG_RAG_HYBRID_GENERATION_MODEL": "text",
    "CG_RAG_HYBRID_GENERATION_API_KEY": "key-of-hybrid",
}


def loaded(environ: dict[str, str]) -> Loaded:
    return load(environ={"CG_RAG_EMBEDDING_PROVIDER": "none", **environ})


def services_of(environ: dict[str, str]) -> Services:
    services = make_services(loaded(environ).settings)
    services.threads.shutdown()
    return services


def without(environ: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in names}


def test_nothing_set_is_nothing_configured() -> None:
    services = services_of({})
    assert (services.vision, services.hybrid) == (None, None)
    assert half_configured(services.settings) == []


@pytest.mark.parametrize("absent", VISION)
def test_vision_needs_endpoint_and_model_and_its_half_stops_nothing(absent: str) -> None:
    services = services_of(without(VISION, absent))
    assert services.vision is None
    (problem,) = half_configured(services.settings)
    assert absent.removeprefix("CG_RAG_VISION_").lower() in problem


@pytest.mark.parametrize("absent", HYBRID)
def test_hybrid_needs_all_three(absent: str) -> None:
    assert services_of(HYBRID).hybrid is not None
    services = services_of(
        without(HYBRID, absent) | {"CG_RAG_API_KEY": "shared", "CG_RAG_GENERATION_API_KEY": "x"}
    )
    assert services.hybrid is None
    (problem,) = half_configured(services.settings)
    assert absent.removeprefix("CG_RAG_HYBRID_GENERATION_").lower() in problem


@pytest.mark.parametrize(
    ("shared", "own", "sent"), [("s", "o", "o"), ("s", "", "s"), ("", "o", "o"), ("", "", "")]
)
def test_vision_uses_its_own_key_then_the_shared_one_and_hybrid_only_its_own(
    shared: str, own: str, sent: str
) -> None:
    services = services_of(VISION | HYBRID | {"CG_RAG_API_KEY": shared, "CG_RAG_VISION_API_KEY": own})
    assert services.vision is not None
    assert services.hybrid is not None
    assert services.vision.settings.api_key.get_secret_value() == sent
    assert services.hybrid.settings.api_key.get_secret_value() == "key-of-hybrid"


@pytest.mark.parametrize(("profile", "attempts"), [("e10", 5), ("continuous_base", 2), ("controller", 2)])
def test_the_profile_says_how_often_the_vision_model_is_asked(profile: str, attempts: int) -> None:
    services = services_of(VISION | HYBRID | {"CG_RAG_VISION_PROFILE": profile})
    assert services.vision is not None
    assert services.hybrid is not None
    assert services.vision.settings.max_attempts == attempts
    assert services.hybrid.settings.max_attempts == 3


def test_every_switch_of_an_upstream_is_handed_on() -> None:
    switches = {
        "PROVIDER": "vllm",
        "ENABLE_THINKING": "true",
        "STREAMING": "false",
        "THINKING_CONTROL": "none",
        "STRUCTURED_OUTPUT": "json_object",
        "TIMEOUT_SECONDS": "30",
        "FIRST_BYTE_TIMEOUT_SECONDS": "7",
    }
    environ = VISION | HYBRID
    for section in ("VISION", "HYBRID_GENERATION"):
        environ |= {f"CG_RAG_{section}_{name}": value for name, value in switches.items()}
    services = services_of(environ)
    for upstream in (services.vision, services.hybrid):
        assert upstream is not None
        settings = upstream.settings
        assert (upstream.provider, settings.enable_thinking, settings.streaming) == ("vllm", True, False)
        assert (settings.thinking_control, settings.structured_output) == ("none", "json_object")
        assert (settings.timeout_seconds, settings.first_byte_timeout_seconds) == (30.0, 7.0)


def test_vision_shares_the_slots_of_generation_unless_it_is_given_its_own() -> None:
    shared = services_of(VISION)
    assert shared.vision_slots is shared.generation_slots
    assert "vision" not in health(shared, "0", 0.0, True)["capacity"]
    own = services_of(VISION | {"CG_RAG_CAPACITY_VISION_MAX": "2"})
    assert (own.vision_slots.max_units, own.vision_slots.resource) == (2, "vision")
    assert health(own, "0", 0.0, True)["capacity"]["vision"]["max"] == 2


def test_health_tells_what_is_configured_and_how() -> None:
    environ = VISION | HYBRID | {"CG_RAG_VISION_PROFILE": "controller_wip", "CG_RAG_VISION_MAX_IMAGES": "3"}
    body = health(services_of(environ), "0", 0.0, True)
    assert body["hybrid_generation"] == {"configured": True, "model": "text"}
    assert body["vision"] == {
        "configured": True,
        "model": "vlm",
        "profile": "controller_wip",
        "workflow": "controller",
        "experimental": True,
        "prompt_sha256": prompts.load("vision/answer/system.txt").sha256,
        "agentic_prompt_sha256": prompts.load("vision/agentic/compose.txt").sha256,
        "criteria_sha256": prompts.load("vision/criteria_2024.txt").sha256,
        "prompt_pins_ok": True,
        "total_budget_seconds": 150.0,
        "sse_heartbeat_seconds": 15.0,
        "strict_retrieval_failure": True,
        "max_images": 3,
        "max_image_bytes": 16777216,
        "hazard_taxonomy_version": "construction-hazard-19-v1",
    }
    anonymous = health(services_of(environ), "0", 0.0, False)
    assert anonymous["vision"] == {"configured": True}
    assert "key-of-hybrid" not in json.dumps(body)


def test_doctor_names_halves_and_experiments() -> None:
    wip = VISION | {"CG_RAG_VISION_PROFILE": "controller_wip", "CG_RAG_HYBRID_GENERATION_MODEL": "text"}
    found = [(finding.severity, finding.message) for finding in check_vision(loaded(wip).settings)]
    assert [severity for severity, _ in found] == ["warning", "warning", "ok"]
    assert "hybrid_generation.endpoint、hybrid_generation.api_key" in found[0][1]
    assert "controller_wip 是实验" in found[1][1]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, 96 << 20),
        ({"CG_RAG_VISION_MAX_IMAGES": "1"}, 96 << 20),
        ({"CG_RAG_VISION_MAX_IMAGES": "5"}, 120 << 20),
        ({"CG_RAG_VISION_MAX_IMAGES": "8"}, 128 << 20),  # as much as may be in flight
        ({"CG_RAG_SERVER_MAX_INFLIGHT_BODY_BYTES": str(64 << 20)}, 64 << 20),
    ],
)
def test_the_largest_body_of_a_photo_route_follows_the_settings(
    environ: dict[str, Any], expected: int
) -> None:
    assert max_photo_body_bytes(loaded(environ).settings) == expected


def test_an_experimental_profile_and_a_half_upstream_are_told_in_the_log(start_server: StartServer) -> None:
    server = start_server("  vision: {endpoint: 'http://127.0.0.1:1/v1', profile: controller_wip}\n")
    assert server.wait_event("config_warning")["warning"].startswith("vision 只设置了一部分")
    assert server.wait_event("vision_profile_experimental")["profile"] == "controller_wip"
