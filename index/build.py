"""From sources to a new generation of the index.

Rule: a source that did not change is not read again, and what readers see changes all at once or not at
all. The old index is trusted only after every byte of it was verified; a damaged one is simply rebuilt from
the sources.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
from numpy.typing import NDArray

from cg_rag.index.corpus import Article
from cg_rag.index.durable import build_lock, discard, disk_errors
from cg_rag.index.embedding import RowVectors, describe_embedding
from cg_rag.index.errors import IndexDamaged, IndexMissing, SourceInvalid
from cg_rag.index.generation import discard_leftovers
from cg_rag.index.importers import FileReport, ImportLog, Note, Source, find_source, read_source
from cg_rag.index.importers.input_file import Kind
from cg_rag.index.journal import discard_old_journals, journal_path
from cg_rag.index.lexical import MAX_ROWS, LexicalArrays
from cg_rag.index.model_errors import Cancelled
from cg_rag.index.progress import Progress, Silence
from cg_rag.index.source_spec import SourceSpec, check_names, describe_source, parse_source_spec
from cg_rag.index.spool import Spool, count_changes, encode_article, line_digest
from cg_rag.index.store import IndexReader, write_generation
from cg_rag.index.validity import is_in_force

if TYPE_CHECKING:
    from cg_rag.index.embedder import Embedder

__all__ = ["BuildReport", "Progress", "RowsInvalid", "SourceSpec", "build_index", "parse_source_spec"]

# A report that lists more than this is not read; the count is always told.
MAX_LISTED_ROWS = 20
# What the manifest tells of the reading of a source, by the kind of note that is counted.
_NOTE_COUNTS: Mapping[str, Kind] = {"skipped": "rejected", "left": "left", "warnings": "warning"}
COUNTED = (*_NOTE_COUNTS, "not_in_force")


class RowsInvalid(SourceInvalid):
    """Rows that break a rule stopped the build.

    `rows` are the first of them, `count` is how many there are.
    """

    def __init__(self, rows: Sequence[Note], count: int) -> None:
        listed = "".join(f"\n  {row.place}：{row.reason}" for row in rows)
        more = f"\n  ……另有 {count - len(rows)} 行" if count > len(rows) else ""
        super().__init__(
            "来源", f"有 {count} 行不合要求，未构建索引（--skip-invalid 可跳过这些行）{listed}{more}"
        )
        self.rows = tuple(rows)
        self.count = count


@dataclass(frozen=True, slots=True)
class CorpusReport:
    """`reused`: the rows were copied from the old index. `skipped` counts bad rows that were left out, `left` and
    `warnings` what was told of the files when they were read, `not_in_force` articles of repealed or superseded laws.
    """

    name: str
    num_docs: int
    reused: bool
    skipped: int
    left: int = 0
    warnings: int = 0
    not_in_force: int = 0


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What a build did.

    added, removed, unchanged count articles against the old index, by the digest of the record. `embedded`
    counts texts that went through the model, `reused_vectors` rows whose vector was there before: in the old
    index, or kept from a build that was interrupted. `files` are those that were read this time.
    """

    fingerprint: str
    changed: bool
    num_docs: int
    num_laws: int
    added: int
    removed: int
    unchanged: int
    corpora: tuple[CorpusReport, ...]
    bad_rows: tuple[Note, ...]
    num_bad_rows: int
    unsupported: tuple[Note, ...]
    files: tuple[FileReport, ...]
    notes: tuple[str, ...]
    bytes_on_disk: int
    seconds: float
    embedded: int
    reused_vectors: int
    embedding_seconds: float


def build_index(
    specs: Sequence[SourceSpec],
    index_dir: Path,
    progress: Progress | None,
    force: bool = False,
    skip_invalid: bool = False,
    embedder: Embedder | None = None,
    should_stop: Callable[[], bool] | None = None,
    log: ImportLog | None = None,
) -> BuildReport:
    """Build an index of all `specs` and make it current; without an `embedder` one for lexical search only.

    When neither a source nor the embedding changed nothing is written, unless `force`, which takes nothing
    from the old index. Raises SourceInvalid (RowsInvalid for bad rows unless `skip_invalid`), IndexBusy,
    BuildFailed, Cancelled when `should_stop` says so; the old index then stands as it was. Vectors that were
    made until then, or until the process was killed, are kept for the next build. The embedder's own errors
    arrive as BuildFailed when they are ModelFailed or OSError, others as they are. With a `log` every source is read
    again, so that the log is whole.
    """
    began = time.monotonic()
    check_names(specs)
    with disk_errors(index_dir), build_lock(index_dir):
        discard_leftovers(index_dir)
        discard_old_journals(index_dir, embedder.fingerprint if embedder else None)
        build = _Build(
            specs, index_dir, progress or Silence(), skip_invalid, force, embedder, should_stop or _go_on, log
        )
        try:
            return build.run(began)
        finally:
            build.close()


def _go_on() -> bool:
    return False


@dataclass
class _Build:
    """The state of one build. Used once, under the build lock."""

    specs: Sequence[SourceSpec]
    index_dir: Path
    progress: Progress
    skip_invalid: bool
    force: bool
    embedder: Embedder | None
    should_stop: Callable[[], bool]
    wanted_log: ImportLog | None = None
    log: ImportLog = field(default_factory=ImportLog)
    old: IndexReader | None = None
    vectors: RowVectors | None = None
    notes: list[str] = field(default_factory=list)
    unread: list[Note] = field(default_factory=list)

    def run(self, began: float) -> BuildReport:
        self.log = self.wanted_log or self.log
        self.old = self._open_old()
        sources = [find_source(spec.path, spec.columns) for spec in self.specs]
        entries = [describe_source(spec, source) for spec, source in zip(self.specs, sources, strict=True)]
        afresh = self.force or self.wanted_log is not None
        reused = [not afresh and self._is_known(entry) for entry in entries]
        self.unread = [
            note for source, known in zip(sources, reused, strict=True) if known for note in source.unread
        ]
        if self.old is not None and all(reused) and self._same_corpora(entries) and self._same_embedding():
            self._discard_journal()
            corpora = tuple(_corpus_report(entry, True) for entry in self.old.manifest["corpora"])
            return self._report(self.old, corpora, False, (0, 0, self.old.num_docs), began)
        return self._rebuild(sources, entries, reused, began)

    def close(self) -> None:
        if self.vectors is not None:
            self.vectors.close()
        if self.old is not None:
            self.old.close()

    def _open_old(self) -> IndexReader | None:
        try:
            old = IndexReader.open(self.index_dir)
        except IndexMissing:
            return None
        except IndexDamaged as error:
            self.notes.append(f"原有索引不可用，已全部重新读取：{error}")
            return None
        damages = old.verify()
        if not damages:
            return old
        old.close()
        self.notes.append(f"原有索引的 {damages[0].file} 已损坏，已全部重新读取")
        return None

    def _is_known(self, entry: Mapping[str, Any]) -> bool:
        """The old index holds this very source, read by the same importer.

        Skipped rows need consent every time.
        """
        known = self._old_entries().get(entry["name"])
        if known is None or (known["skipped"] and not self.skip_invalid):
            return False
        return all(known[key] == entry[key] for key in ("sha256", "importer", "tags", "only_tags"))

    def _old_entries(self) -> dict[str, Mapping[str, Any]]:
        return {entry["name"]: entry for entry in self.old.manifest["corpora"]} if self.old else {}

    def _same_corpora(self, entries: Sequence[Mapping[str, Any]]) -> bool:
        return list(self._old_entries()) == [entry["name"] for entry in entries]

    def _same_embedding(self) -> bool:
        wanted = describe_embedding(self.embedder) if self.embedder else None
        return self.old is not None and self.old.manifest["embedding"] == wanted

    def _discard_journal(self) -> None:
        """The vectors stand in an index: also where a build was killed between publishing and this."""
        if self.embedder is not None:
            discard(journal_path(self.index_dir, self.embedder.fingerprint))

    def _rebuild(
        self,
        sources: Sequence[Source],
        entries: Sequence[dict[str, Any]],
        reused: Sequence[bool],
        began: float,
    ) -> BuildReport:
        corpora: list[CorpusReport] = []
        with Spool(self.index_dir) as spool:
            for spec, source, entry, known in zip(self.specs, sources, entries, reused, strict=True):
                spool.start_corpus(spec.corpus)
                entry |= self._copy(spool, spec) if known else self._read(spool, spec, source)
                entry["num_docs"] = len(spool) - sum(other.num_docs for other in corpora)
                corpora.append(_corpus_report(entry, known))
            if self.log.count("rejected") and not self.skip_invalid:
                raise RowsInvalid(self._bad_rows(), self.log.count("rejected"))
            _check_size(len(spool))
            changes = count_changes(self._old_digests(), spool.digests())
            self._write(spool, entries)
        new = IndexReader.open(self.index_dir)
        try:
            return self._report(new, tuple(corpora), True, changes, began)
        finally:
            new.close()

    def _copy(self, spool: Spool, spec: SourceSpec) -> dict[str, int]:
        """Returns what the manifest tells of the reading."""
        assert self.old is not None
        known = self._old_entries()[spec.corpus]
        self.progress.start(f"沿用 {spec.corpus}", known["num_docs"])
        for run in self.old.runs:
            if run.corpus == spec.corpus:
                for line in self.old.article_lines(run):
                    spool.add(line, run.law_name, run.tags)
                self.progress.advance(run.count)
        self.progress.finish()
        return {key: int(known.get(key, 0)) for key in COUNTED}

    def _read(self, spool: Spool, spec: SourceSpec, source: Source) -> dict[str, int]:
        """Returns what the manifest tells of the reading."""
        before = {key: self.log.count(kind) for key, kind in _NOTE_COUNTS.items()}
        num_old = 0
        self.progress.start(f"读取 {spec.corpus}", None)
        for article in read_source(source, self.log):
            if self.should_stop():
                raise Cancelled
            if not spec.only_tags or set(spec.only_tags) & set(article.tags):
                spool.add(encode_article(article), article.law_name, _merge_tags(article, spec))
                num_old += not is_in_force(article.extra)
                self.progress.advance(1)
        self.progress.finish()
        told = {key: self.log.count(kind) - before[key] for key, kind in _NOTE_COUNTS.items()}
        return {**told, "not_in_force": num_old}

    def _bad_rows(self) -> tuple[Note, ...]:
        return tuple(islice(self.log.notes("rejected"), MAX_LISTED_ROWS))

    def _write(self, spool: Spool, entries: Sequence[Mapping[str, Any]]) -> None:
        self._make_vectors(spool)
        self.progress.start("建立字面索引", len(spool))
        lexical = LexicalArrays.build(self._texts(spool))
        self.progress.finish()
        self.progress.start("写入", len(spool))
        draft = self.vectors.draft() if self.vectors else None
        write_generation(self.index_dir, spool.runs(), self._watched(spool.lines()), lexical, entries, draft)
        self.progress.finish()
        self._discard_journal()

    def _make_vectors(self, spool: Spool) -> None:
        if self.embedder is None:
            if self.old is not None and self.old.vectors is not None:
                self.notes.append("本次构建没有使用向量模型，原有索引中的向量不再保留")
            return
        trusted = None if self.force else self.old
        self.vectors = RowVectors(self.index_dir, self.embedder, trusted, self.progress, self.should_stop)
        try:
            self.vectors.make(spool.lines)
        finally:
            self.notes += self.vectors.notes

    def _texts(self, spool: Spool) -> Iterator[str]:
        """What the lexical index sees of an article. With the chapter's title results are worse."""
        for line in self._watched(spool.lines()):
            record = orjson.loads(line)
            yield f"{record['law_name']}\n{record['contents']}"

    def _watched(self, lines: Iterator[bytes]) -> Iterator[bytes]:
        for line in lines:
            if self.should_stop():
                raise Cancelled
            yield line
            self.progress.advance(1)

    def _old_digests(self) -> NDArray[np.uint64]:
        if self.old is None:
            return np.empty(0, dtype=np.uint64)
        lines = (line for run in self.old.runs for line in self.old.article_lines(run))
        return np.fromiter(map(line_digest, lines), dtype=np.uint64, count=self.old.num_docs)

    def _report(
        self,
        index: IndexReader,
        corpora: tuple[CorpusReport, ...],
        changed: bool,
        changes: tuple[int, int, int],
        began: float,
    ) -> BuildReport:
        added, removed, unchanged = changes
        kept = index.num_docs if index.vectors and not changed else 0
        return BuildReport(
            fingerprint=index.fingerprint,
            changed=changed,
            num_docs=index.num_docs,
            num_laws=len({run.law_name for run in index.runs}),
            added=added,
            removed=removed,
            unchanged=unchanged,
            corpora=corpora,
            bad_rows=self._bad_rows(),
            num_bad_rows=self.log.count("rejected"),
            unsupported=(*self.unread, *self.log.notes("unread")),
            files=tuple(file for file in self.log.files if file.importer),
            notes=tuple(self.notes),
            bytes_on_disk=index.bytes_on_disk,
            seconds=time.monotonic() - began,
            embedded=self.vectors.num_embedded if self.vectors else 0,
            reused_vectors=self.vectors.num_reused if self.vectors else kept,
            embedding_seconds=self.vectors.seconds if self.vectors else 0.0,
        )


def _corpus_report(entry: Mapping[str, Any], reused: bool) -> CorpusReport:
    return CorpusReport(
        entry["name"], entry["num_docs"], reused, **{key: entry.get(key, 0) for key in COUNTED}
    )


def _merge_tags(article: Article, spec: SourceSpec) -> tuple[str, ...]:
    return tuple(sorted({*article.tags, *spec.tags}))


def _check_size(num_docs: int) -> None:
    if num_docs == 0:
        raise SourceInvalid("来源", "没有任何条文")
    if num_docs > MAX_ROWS:
        raise SourceInvalid("来源", f"共 {num_docs} 条条文，超过上限 {MAX_ROWS} 条")
