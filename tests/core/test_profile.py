from __future__ import annotations

import pytest

from cg_rag.core.config import load
from cg_rag.core.profile import PROFILES, ProfileName, Workflow, resolve_profile
from cg_rag.core.vision_settings import vision_profile


def test_the_table_is_that_of_the_document() -> None:
    rows = {
        name: (row.workflow, row.inventory, row.publishes, row.upstream_retries, row.strict_retrieval_failure)
        for name, row in PROFILES.items()
    }
    assert rows == {
        "e10": ("continuous", True, True, 4, True),
        "continuous_base": ("continuous", False, False, 1, False),
        "controller": ("controller", False, False, 1, True),
        "controller_wip": ("controller", False, False, 1, True),
    }
    assert {name for name, row in PROFILES.items() if row.aligns_citations} == {
        "controller",
        "controller_wip",
    }
    assert {name for name, row in PROFILES.items() if row.is_experimental} == {"controller_wip"}
    assert {row.total_budget_seconds for row in PROFILES.values()} == {150.0}
    assert all(name == row.name for name, row in PROFILES.items())


@pytest.mark.parametrize(
    ("name", "workflow", "expected"),
    [
        (None, None, "e10"),
        (None, "continuous", "e10"),
        (None, "controller", "controller"),
        ("continuous_base", None, "continuous_base"),
        ("e10", "controller", "e10"),
        ("controller_wip", "continuous", "controller_wip"),
    ],
)
def test_a_profile_beats_the_older_key(
    name: ProfileName | None, workflow: Workflow | None, expected: str
) -> None:
    assert resolve_profile(name, workflow).name == expected


def test_what_is_given_explicitly_beats_the_profile() -> None:
    profile = resolve_profile("continuous_base", None, 30.0, True)
    assert (profile.total_budget_seconds, profile.strict_retrieval_failure) == (30.0, True)
    assert resolve_profile("e10", None, None, False).strict_retrieval_failure is False


def test_the_settings_reach_the_profile_by_their_names() -> None:
    environ = {
        "CG_RAG_VISION_AGENTIC_WORKFLOW": "controller",
        "CG_RAG_VISION_TOTAL_BUDGET_SECONDS": "90",
        "CG_RAG_VISION_STRICT_RETRIEVAL_FAILURE": "0",
    }
    profile = vision_profile(load(environ=environ).settings)
    assert (profile.name, profile.total_budget_seconds, profile.strict_retrieval_failure) == (
        "controller",
        90,
        False,
    )
    environ["CG_RAG_VISION_PROFILE"] = "continuous_base"
    assert vision_profile(load(environ=environ).settings).workflow == "continuous"
