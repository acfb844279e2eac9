"""What every vision mode holds reports to, read once at start: taxonomy, labels, criteria."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cg_rag import prompts
from cg_rag.core.claims import References
from cg_rag.core.criteria import Criteria, Finder, parse_criteria
from cg_rag.core.evidence import Evidence
from cg_rag.core.report_publish import Rules
from cg_rag.core.taxonomy import Taxonomy, load_taxonomy
from cg_rag.index.evidence import EvidenceFinder
from cg_rag.prompts import vocabulary


@dataclass(frozen=True, slots=True)
class VisionTexts:
    """What models that see are told, and what their reports are held to. `criteria_alone` is what a report may name
    for which nothing was retrieved."""

    rules: Rules
    criteria_alone: References
    answer: prompts.Prompt
    observe: prompts.Prompt
    hybrid: prompts.Prompt
    """What the text model of hybrid is told."""
    agentic_systems: Mapping[str, prompts.Prompt]
    """The system prompts of the agentic mode by the name of their step."""
    agentic_instructions: Mapping[str, str]
    """What goes into its user messages: pinned like the others."""


AGENTIC_SYSTEMS = ("continuous", "observe", "plan", "review", "compose")
AGENTIC_INSTRUCTIONS = ("inventory", "second_look", "sole_plate")


def load_vision_texts(criteria_file: Path | None) -> VisionTexts:
    """Read once at start, about 20 ms. Raises what load_criteria raises."""
    rules = load_rules(criteria_file)
    names = ("answer", "observe", "hybrid")
    answer, observe, hybrid = (prompts.load(f"vision/{mode}/system.txt") for mode in names)
    systems = {step: prompts.load(f"vision/agentic/{step}.txt") for step in AGENTIC_SYSTEMS}
    instructions = {name: prompts.load(f"vision/agentic/{name}.txt").text for name in AGENTIC_INSTRUCTIONS}
    return VisionTexts(rules, make_references((), rules), answer, observe, hybrid, systems, instructions)


def load_vision_taxonomy() -> Taxonomy:
    return load_taxonomy(vocabulary.load_json(vocabulary.TAXONOMY), vocabulary.load_json(vocabulary.LABELS))


def load_criteria(file: Path | None) -> Criteria:
    """The site's clause list, the shipped one without a file. Raises OSError, and ValueError with a Chinese reason."""
    return parse_criteria((file or prompts.DIRECTORY / vocabulary.CRITERIA).read_bytes())


def load_rules(criteria_file: Path | None) -> Rules:
    """Raises what load_criteria raises."""
    criteria = load_criteria(criteria_file)
    return Rules(load_vision_taxonomy(), criteria, make_finder(criteria.articles()))


def make_finder(articles: Sequence[tuple[str, str]]) -> Finder:
    return EvidenceFinder(articles).find


def make_references(evidence: Sequence[Evidence], rules: Rules) -> References:
    """What a report of this request may name, its evidence so far and the criteria. About 2 ms of CPU."""
    return References(evidence, rules.criteria, make_finder)


def system_text(prompt: prompts.Prompt, criteria: Criteria) -> str:
    """The system message: the pinned file, two line ends, the criteria (contract of vision reports)."""
    return f"{prompt.text}\n\n{criteria.text}"
