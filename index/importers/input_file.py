"""What an importer is given to read, and where it tells what it could not take.

Rule: nothing is dropped in silence. Whatever is not an article is told to the log with its place: left over in a file
that was read, doubtful, against a rule, or never read at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from cg_rag.index.corpus import Article

# rejected  against a rule; stops the build unless it may be skipped
# left      text of a file that was read, in no article
# warning   taken, but to be looked at
# unread    a file that no importer reads
Kind = Literal["rejected", "left", "warning", "unread"]
ColumnMap = Mapping[str, tuple[str, ...]]

# Kept in memory and printed; the report file has everything.
MAX_KEPT_NOTES = 1000
MAX_KEPT_CHARS = 200
_MAX_SAMPLES = 3


@dataclass(frozen=True, slots=True)
class InputFile:
    """`path` is where the bytes lie; `place` is what the user is told: a member of an archive lies elsewhere for the
    time of reading. `columns` says which column of a table stands for which field."""

    path: Path
    place: str
    columns: ColumnMap = field(default_factory=dict)

    @property
    def name(self) -> str:
        return PurePosixPath(self.place).name

    @property
    def stem(self) -> str:
        return PurePosixPath(self.place).stem


@dataclass(frozen=True, slots=True)
class Note:
    """One thing that was not taken, or not without doubt. `place` is file, or file:line; `reason` is Chinese."""

    kind: Kind
    place: str
    reason: str
    text: str = ""


@dataclass(slots=True)
class FileReport:
    """What became of one file. `laws` counts articles by law, `reasons` what was left by its reason; `samples` are the
    first articles of each law, and `numbers` all their numbers, where a preview was asked for."""

    place: str
    importer: str
    laws: Counter[str] = field(default_factory=Counter)
    counts: Counter[Kind] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    notes: list[Note] = field(default_factory=list)
    samples: dict[str, list[Article]] = field(default_factory=dict)
    numbers: dict[str, list[str]] = field(default_factory=dict)

    @property
    def num_articles(self) -> int:
        return self.laws.total()

    def summary(self) -> dict[str, Any]:
        return {
            "file": self.place,
            "importer": self.importer,
            "num_articles": self.num_articles,
            "laws": dict(self.laws),
            **{kind: self.counts[kind] for kind in ("left", "warning", "rejected", "unread")},
            "reasons": dict(self.reasons),
        }


class ImportLog:
    """Collects what is told of the files of a build, in the order of reading."""

    def __init__(
        self, write: Callable[[Mapping[str, Any]], None] = lambda record: None, preview: bool = False
    ) -> None:
        """`write` is handed every note and every file's summary, whole, as they come."""
        self._write = write
        self._preview = preview
        self._num_kept = 0
        self.files: list[FileReport] = []

    def read(self, file: InputFile, importer: str, articles: Iterator[Article]) -> Iterator[Article]:
        """Pass `articles` of `file` on and count them."""
        report = FileReport(file.place, importer)
        self.files.append(report)
        try:
            for article in articles:
                self._count(report, article)
                yield article
        finally:
            self._write({"kind": "file", **report.summary()})

    def reject(self, place: str, reason: str) -> None:
        self._add(Note("rejected", place, reason))

    def leave(self, place: str, text: str, reason: str) -> None:
        self._add(Note("left", place, reason, text))

    def warn(self, place: str, reason: str) -> None:
        self._add(Note("warning", place, reason))

    def skip(self, place: str, reason: str) -> None:
        self._add(Note("unread", place, reason))

    def notes(self, *kinds: Kind) -> Iterator[Note]:
        """What is kept in memory of these kinds, in the order it was told."""
        return (note for file in self.files for note in file.notes if note.kind in kinds)

    def count(self, kind: Kind) -> int:
        return sum(file.counts[kind] for file in self.files)

    def _add(self, note: Note) -> None:
        self._write(
            {"kind": note.kind, "place": note.place, "reason": note.reason}
            | ({"text": note.text} if note.text else {})
        )
        report = self._report_of(note)
        report.counts[note.kind] += 1
        if note.kind == "left":
            report.reasons[note.reason] += 1
        if self._num_kept < MAX_KEPT_NOTES:
            self._num_kept += 1
            report.notes.append(Note(note.kind, note.place, note.reason, note.text[:MAX_KEPT_CHARS]))

    def _report_of(self, note: Note) -> FileReport:
        if note.kind == "unread" or not self.files:
            self.files.append(FileReport(note.place, ""))
        return self.files[-1]

    def _count(self, report: FileReport, article: Article) -> None:
        report.laws[article.law_name] += 1
        if not self._preview:
            return
        samples = report.samples.setdefault(article.law_name, [])
        if len(samples) < _MAX_SAMPLES:
            samples.append(article)
        report.numbers.setdefault(article.law_name, []).append(article.article_number)
