"""The figures of an evaluation over labelled photos: the user's measure, confusion, citations, cost. No I/O.

Rule: every figure says over how many photos it is. docs/vision-eval.md defines each of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any, Final

import numpy as np

from cg_rag.core.citation_precision import Citation, check_citations
from cg_rag.core.photo_labels import PhotoLabel
from cg_rag.core.photo_verdict import (
    MATCHES,
    VERDICT_WORDS,
    Match,
    Reading,
    Rules,
    Verdict,
    count_verdicts,
    judge,
    read_answer,
)
from cg_rag.core.report import SCENE_WORDS
from cg_rag.core.taxonomy import LEVELS, Taxonomy
from cg_rag.index.metrics import Interval, ratio_interval
from cg_rag.index.validity import read_validity
from cg_rag.modes.vision_rules import make_finder

UNREAD: Final = VERDICT_WORDS["unrecognised"]
_DECIMALS: Final = 4
_VALIDITIES: Final = ("in_force", "amended", "repealed", "pending", "")


@dataclass(frozen=True, slots=True)
class Terms:
    """What answers are held to."""

    taxonomy: Taxonomy
    category_of_label: Mapping[str, str]
    rules: Rules
    match: Match


@dataclass(frozen=True, slots=True)
class Judged:
    """One photo that was asked: `record` is the journal's."""

    label: PhotoLabel
    record: Mapping[str, Any]
    reading: Reading
    verdicts: Mapping[Match, Verdict]
    citations: tuple[Citation, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """All photos of one run; `judged` lacks those that were not asked yet."""

    name: str
    head: Mapping[str, Any]
    judged: Mapping[str, Judged]


@dataclass(frozen=True, slots=True)
class Score:
    """`measure` is yes / (yes + no), None without either; `of_all` counts what was not recognised against it."""

    counts: Mapping[Verdict, int]
    measure: Interval | None
    of_all: float | None


def _validity(status: Any) -> str:
    return read_validity(status) or ""


def judge_record(label: PhotoLabel, record: Mapping[str, Any], terms: Terms) -> Judged:
    payload = record.get("payload")
    if not isinstance(payload, dict):
        error = record.get("error")
        reading = Reading(fault=str(error.get("message", "")) if isinstance(error, dict) else "没有答复")
        citations: list[Citation] = []
    else:
        reading = read_answer(payload, terms.taxonomy, terms.category_of_label)
        documents = payload.get("retrieval_docs") or []
        citations = check_citations(str(payload.get("answer", "")), documents, make_finder, _validity)
    verdicts = {match: judge(label, reading, match, terms.rules) for match in MATCHES}
    return Judged(label, record, reading, verdicts, tuple(citations))


def score(run: Run, match: Match) -> Score:
    verdicts = [entry.verdicts[match] for entry in run.judged.values()]
    counts = count_verdicts(verdicts)
    asked = len(verdicts) - counts["uncounted"]
    return Score(
        counts, ratio_interval(_parts(verdicts)), round(counts["yes"] / asked, _DECIMALS) if asked else None
    )


def _parts(verdicts: Sequence[Verdict]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """[photos, 2]: is it a yes, is it in the denominator. What is not counted has no row."""
    rows = [(verdict == "yes", verdict in ("yes", "no")) for verdict in verdicts if verdict != "uncounted"]
    return np.array(rows, dtype=np.float64).reshape(-1, 2)


@dataclass(frozen=True, slots=True)
class Difference:
    """The measure of `one` less that of `other`, over the photos that both were asked. `only_one` of them are yes in
    `one` alone, `only_other` in `other` alone."""

    one: str
    other: str
    photos: int
    interval: Interval | None
    only_one: int
    only_other: int


def differences(runs: Sequence[Run], match: Match) -> list[Difference]:
    """Every pair of runs, in their order."""
    return [_difference(one, other, match) for one, other in combinations(runs, 2)]


def _difference(one: Run, other: Run, match: Match) -> Difference:
    photos = [photo for photo in one.judged if photo in other.judged]
    pairs = [(one.judged[photo].verdicts[match], other.judged[photo].verdicts[match]) for photo in photos]
    pairs = [pair for pair in pairs if "uncounted" not in pair]
    parts = np.hstack([_parts([pair[side] for pair in pairs]) for side in (0, 1)])
    only = [sum(pair[side] == "yes" != pair[1 - side] for pair in pairs) for side in (0, 1)]
    return Difference(one.name, other.name, len(pairs), ratio_interval(parts), *only)


def level_table(run: Run) -> tuple[list[str], list[str], list[list[int]]]:
    """(columns, rows, counts): levels expected, one a row, against levels read, and what was not recognised."""
    columns = [*LEVELS, *SCENE_WORDS.values(), UNREAD]
    pairs = Counter(
        (_expected(entry.label), entry.reading.shown_level or UNREAD)
        for entry in run.judged.values()
        if _expected(entry.label) and entry.reading.has_levels
    )
    rows = [name for name in columns if any(expected == name for expected, _ in pairs)]
    return columns, rows, [[pairs[row, column] for column in columns] for row in rows]


def _expected(label: PhotoLabel) -> str:
    return label.level or (SCENE_WORDS[label.scene] if label.scene else "")


def category_pairs(run: Run) -> list[tuple[str, str, int]]:
    """(expected, read, photos) where they differ, most frequent first."""
    pairs = Counter(
        (entry.label.category, entry.reading.category or UNREAD)
        for entry in run.judged.values()
        if entry.label.category and entry.reading.category != entry.label.category
    )
    return [(*pair, count) for pair, count in sorted(pairs.items(), key=lambda item: (-item[1], item[0]))]


def faults(run: Run) -> list[tuple[str, int]]:
    """(reason, photos) of the answers that say nothing, most frequent first: a model that never answered shows here."""
    reasons = Counter(entry.reading.fault for entry in run.judged.values() if entry.reading.fault)
    return sorted(reasons.items(), key=lambda item: (-item[1], item[0]))


@dataclass(frozen=True, slots=True)
class CitationFigures:
    """Of `total` marks `existing` lead to evidence; of those `supporting` pass the check of wording, and `validity`
    counts what the sources say of them, "" where they say nothing."""

    total: int
    existing: int
    supporting: int
    validity: Mapping[str, int]

    @property
    def stated(self) -> int:
        return self.existing - self.validity[""]


def citation_figures(run: Run) -> CitationFigures:
    citations = [citation for entry in run.judged.values() for citation in entry.citations]
    existing = [citation for citation in citations if citation.exists]
    validity = {name: sum(citation.validity == name for citation in existing) for name in _VALIDITIES}
    return CitationFigures(len(citations), len(existing), sum(c.supports for c in existing), validity)


@dataclass(frozen=True, slots=True)
class Cost:
    """Means over the photos that were answered; tokens over those whose upstream counts them, None without any."""

    answered: int
    counted: int
    prompt_tokens: float | None
    completion_tokens: float | None
    total_tokens: float | None
    mean_seconds: float | None
    median_seconds: float | None
    p95_seconds: float | None


def cost(run: Run) -> Cost:
    records = [entry.record for entry in run.judged.values() if isinstance(entry.record.get("payload"), dict)]
    seconds = np.array([float(record.get("elapsed_ms", 0.0)) / 1000 for record in records])
    usages = [usage for record in records if isinstance(usage := record["payload"].get("usage"), dict)]
    usages = [usage for usage in usages if isinstance(usage.get("total_tokens"), int)]
    tokens = [
        _mean([usage.get(name) or 0 for usage in usages])
        for name in ("prompt_tokens", "completion_tokens", "total_tokens")
    ]
    times = (
        [round(float(value), 2) for value in (seconds.mean(), *np.quantile(seconds, [0.5, 0.95]))]
        if len(seconds)
        else [None, None, None]
    )
    return Cost(len(records), len(usages), *tokens, *times)


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 1) if values else None


def as_json(runs: Sequence[Run], num_photos: int, terms: Terms) -> dict[str, Any]:
    """Everything that the reports show, and each photo's verdicts."""
    return {
        "photos": num_photos,
        "match": terms.match,
        **asdict(terms.rules),
        "runs": [_run_json(run) for run in runs],
        "differences": [
            {**asdict(entry), "interval": _interval_json(entry.interval)}
            for entry in differences(runs, terms.match)
        ],
    }


def _run_json(run: Run) -> dict[str, Any]:
    columns, rows, counts = level_table(run)
    figures = citation_figures(run)
    validity = {name or "unstated": count for name, count in figures.validity.items()}
    scores = {match: score(run, match) for match in MATCHES}
    return {
        "name": run.name,
        "settings": dict(run.head),
        "asked": len(run.judged),
        "scores": {
            match: {**entry.counts, "measure": _interval_json(entry.measure), "of_all": entry.of_all}
            for match, entry in scores.items()
        },
        "levels": {"columns": columns, "rows": rows, "counts": counts},
        "category_confusions": [
            {"expected": expected, "read": read, "photos": count}
            for expected, read, count in category_pairs(run)
        ],
        "citations": {**asdict(figures), "validity": validity},
        "cost": asdict(cost(run)),
        "answers": [_answer_json(photo, entry) for photo, entry in run.judged.items()],
    }


def _interval_json(interval: Interval | None) -> dict[str, float] | None:
    return {name: round(value, _DECIMALS) for name, value in asdict(interval).items()} if interval else None


def _answer_json(photo: str, entry: Judged) -> dict[str, Any]:
    error = entry.record.get("error")
    return {
        "photo": photo,
        "level": entry.reading.shown_level,
        "category": entry.reading.category,
        "fault": entry.reading.fault,
        "error_code": error.get("code", "") if isinstance(error, dict) else "",
        "verdicts": dict(entry.verdicts),
        "citations": [asdict(citation) for citation in entry.citations],
        "elapsed_ms": entry.record.get("elapsed_ms"),
    }
