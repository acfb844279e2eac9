"""The vision profiles: how the vision modes work, as data. docs/vision.md, 视觉版本.

Rule: a profile is a row of `PROFILES`; the modes read its fields and never its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Literal

ProfileName = Literal["e10", "continuous_base", "controller", "controller_wip"]
Workflow = Literal["continuous", "controller"]


@dataclass(frozen=True, slots=True)
class VisionProfile:
    """`inventory`: the visible facts in six sections come first. `publishes`: what rules can repair is repaired and
    published. `upstream_retries`: attempts after the first, in all vision modes. `strict_retrieval_failure`: when all
    of retrieval fails, nothing is written. `aligns_citations`: a citation goes to the evidence its sentence names.
    The last three are experiments: words for sole plates, a second look, searches for what was not covered."""

    name: ProfileName
    workflow: Workflow
    inventory: bool
    publishes: bool
    upstream_retries: int
    strict_retrieval_failure: bool
    aligns_citations: bool
    total_budget_seconds: float = 150.0
    sole_plate_words: bool = False
    second_look: bool = False
    coverage_search: bool = False

    @property
    def is_experimental(self) -> bool:
        return self.sole_plate_words or self.second_look or self.coverage_search


_CONTROLLER: Final = VisionProfile(
    "controller",
    "controller",
    inventory=False,
    publishes=False,
    upstream_retries=1,
    strict_retrieval_failure=True,
    aligns_citations=True,
)
PROFILES: Final[Mapping[str, VisionProfile]] = MappingProxyType(
    {
        row.name: row
        for row in (
            VisionProfile(
                "e10",
                "continuous",
                inventory=True,
                publishes=True,
                upstream_retries=4,
                strict_retrieval_failure=True,
                aligns_citations=False,
            ),
            VisionProfile(
                "continuous_base",
                "continuous",
                inventory=False,
                publishes=False,
                upstream_retries=1,
                strict_retrieval_failure=False,
                aligns_citations=False,
            ),
            _CONTROLLER,
            replace(
                _CONTROLLER,
                name="controller_wip",
                sole_plate_words=True,
                second_look=True,
                coverage_search=True,
            ),
        )
    }
)
_BY_WORKFLOW: Final[Mapping[Workflow, str]] = {"continuous": "e10", "controller": "controller"}


def resolve_profile(
    name: ProfileName | None,
    workflow: Workflow | None,
    total_budget_seconds: float | None = None,
    strict_retrieval_failure: bool | None = None,
) -> VisionProfile:
    """The profile in force: `name`, else what the older setting `workflow` means, else e10. What is given beside it
    beats what the profile says."""
    profile = PROFILES[name or _BY_WORKFLOW[workflow or "continuous"]]
    if total_budget_seconds is not None:
        profile = replace(profile, total_budget_seconds=total_budget_seconds)
    if strict_retrieval_failure is not None:
        profile = replace(profile, strict_retrieval_failure=strict_retrieval_failure)
    return profile
