"""The read side of the index: one open generation, and what it can say about damage to its files.

Rule: an open reader depends on no name in the file system. Its files are mapped or held open, so the folder
may be replaced and deleted under it, and it closes when the last thread that reads from it lets go.

Memory: arrays are mapped read-only; texts and the int16 rows of vectors are read with `pread` for the rows
asked for and never kept.
"""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from cg_rag.index.corpus import Article, LawRun
from cg_rag.index.errors import IndexDamaged, IndexMissing
from cg_rag.index.generation import (
    POINTER,
    current_fingerprint,
    lookup_hash,
    read_pointer,
    remove_leftovers,
    write_generation,
)
from cg_rag.index.held_files import HeldFile, MappedFile, open_file
from cg_rag.index.lexical import TOKENISER_VERSION, LexicalArrays
from cg_rag.index.manifest import (
    ARTICLES,
    DTYPES,
    FILES,
    FORMAT_VERSION,
    LAWS,
    LEXICAL,
    LOOKUP_KEYS,
    LOOKUP_ROWS,
    MANIFEST,
    MAX_JSON_BYTES,
    OFFSETS,
    RUN_FILES,
    VECTOR_FILES,
    check_seal,
    has_vectors,
    parse_laws,
    parse_manifest,
    parse_run_digests,
)
from cg_rag.index.numerals import lookup_keys
from cg_rag.index.os_words import fault_of, reason_of
from cg_rag.index.vectors import FULL, FULL_SCALES, MEAN, SCALES, SCAN, VectorArrays

__all__ = [
    "FORMAT_VERSION",
    "POINTER",
    "Damage",
    "IndexReader",
    "current_fingerprint",
    "remove_leftovers",
    "write_generation",
]

# A build may replace the pointer and delete the folder between our two looks; more often than this it is a
# fault.
_MAX_OPEN_ATTEMPTS = 5

# Read with pread; all others are mapped.
_READ_FILES = (ARTICLES, LAWS, FULL)
# What tells where the rows of a law lie comes before what is judged law by law.
_VERIFY_ORDER = (MANIFEST, LAWS, *DTYPES, *(name for name in VECTOR_FILES if name != FULL), ARTICLES, FULL)


@dataclass(frozen=True, slots=True)
class Damage:
    """A file that is not what the manifest says. `expected` and `found` are SHA-256 digests or sizes.

    `runs` are the indexes of the `LawRun`s whose articles are hit; None means that every scope is.
    """

    file: str
    expected: str
    found: str
    runs: tuple[int, ...] | None


class IndexReader:
    """One open generation. Every method may be called from any thread.

    `fingerprint` is the name of its folder, the value that `current_fingerprint` gives while it is current;
    `runs` are the laws in row order; `lexical` and `vectors` hold read-only maps, `vectors` is None for an index
    without them and its `full` is always None: `read_full` reads these rows. `bytes_on_disk` counts all files.
    """

    def __init__(self, folder: Path) -> None:
        self.fingerprint = folder.name
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise IndexDamaged(
                POINTER, f"指向的索引目录无法打开：{reason_of(error)}", found=folder.name
            ) from error
        try:
            self._load(descriptor)
        finally:
            os.close(descriptor)

    @classmethod
    def open(cls, index_dir: Path) -> IndexReader:
        """Open the current generation of `index_dir`.

        Checks the pointer, the manifest with its digest, format and tokeniser version, laws.json, sizes,
        element types and counts; the digests of the large files are left to `verify`. Raises IndexMissing,
        IndexDamaged.
        """
        for attempt in range(_MAX_OPEN_ATTEMPTS):
            name = read_pointer(index_dir)
            if name is None:
                raise IndexMissing(str(index_dir))
            try:
                return cls(index_dir / name)
            except IndexDamaged:
                if attempt == _MAX_OPEN_ATTEMPTS - 1 or read_pointer(index_dir) == name:
                    raise
        raise AssertionError("unreachable")

    def _load(self, folder: int) -> None:
        manifest_file = open_file(folder, MANIFEST)
        manifest = parse_manifest(_read_small(manifest_file), self.fingerprint)
        if manifest["tokeniser"] != TOKENISER_VERSION:
            raise IndexDamaged(
                MANIFEST,
                "索引由另一版本的分词规则构建，请重新运行 cg-rag index build",
                TOKENISER_VERSION,
                manifest["tokeniser"],
            )
        self.manifest: Mapping[str, Any] = MappingProxyType(manifest)
        self.num_docs: int = manifest["num_docs"]
        names = (*FILES, *VECTOR_FILES) if has_vectors(manifest) else FILES
        self._sizes: dict[str, int] = {name: manifest["files"][name]["bytes"] for name in names}
        self._sizes[MANIFEST] = manifest_file.size()
        self._files = {name: self._open_sized(folder, name) for name in names if name in _READ_FILES}
        self._files[MANIFEST] = manifest_file
        self._maps = {name: self._map(folder, name) for name in names if name not in _READ_FILES}
        self.runs = self._load_laws()
        self._starts = [run.start for run in self.runs]
        self._check_counts()
        self.lexical = LexicalArrays(
            **{part: self._maps[f"lexical.{part}"].array for part in LEXICAL}, meta=dict(manifest["lexical"])
        )
        self.dim: int = manifest["dim"]
        self.vectors = self._load_vectors() if FULL in self._files else None

    def _open_sized(self, folder: int, name: str) -> HeldFile:
        file = open_file(folder, name)
        if file.size() != self._sizes[name]:
            raise IndexDamaged(name, "大小不符", f"{self._sizes[name]} 字节", f"{file.size()} 字节")
        return file

    def _map(self, folder: int, name: str) -> MappedFile:
        file = self._open_sized(folder, name)
        try:
            return MappedFile(file, self.manifest["files"][name]["dtype"], self._sizes[name])
        except (OSError, ValueError) as error:
            raise IndexDamaged(name, f"无法映射到内存：{fault_of(error)}") from error

    def _load_laws(self) -> tuple[LawRun, ...]:
        raw = _read_small(self._files[LAWS])
        expected, found = self.manifest["files"][LAWS]["sha256"], hashlib.sha256(raw).hexdigest()
        if found != expected:
            raise IndexDamaged(LAWS, "内容被改动", expected, found)
        return parse_laws(raw, self.num_docs)

    def _load_vectors(self) -> VectorArrays:
        # Shapes were checked against the counts of the manifest, sizes against the shapes.
        arrays = {name: self._maps[name].array for name in (MEAN, SCAN, SCALES, FULL_SCALES)}
        scan = arrays[SCAN].reshape(self.num_docs, self.dim)
        return VectorArrays(arrays[MEAN], scan, arrays[SCALES], arrays[FULL_SCALES])

    def _check_counts(self) -> None:
        arrays = {name: mapped.array for name, mapped in self._maps.items()}
        _check_equal(OFFSETS, "条数与清单不符", self.num_docs + 1, len(arrays[OFFSETS]))
        _check_equal(OFFSETS, "首个位置不符", 0, int(arrays[OFFSETS][0]))
        _check_equal(
            OFFSETS, "末尾位置与 articles.jsonl 不符", self._sizes[ARTICLES], int(arrays[OFFSETS][-1])
        )
        _check_equal(
            LOOKUP_ROWS, "条数与 lookup.keys 不符", len(arrays[LOOKUP_KEYS]), len(arrays[LOOKUP_ROWS])
        )
        num_terms, num_postings = len(arrays["lexical.keys"]), len(arrays["lexical.rows"])
        pointers = arrays["lexical.indptr"]
        _check_equal("lexical.indptr", "条数与 lexical.keys 不符", num_terms + 1, len(pointers))
        _check_equal("lexical.indptr", "末尾位置与 lexical.rows 不符", num_postings, int(pointers[-1]))
        _check_equal(
            "lexical.impacts", "条数与 lexical.rows 不符", num_postings, len(arrays["lexical.impacts"])
        )

    @property
    def holds_old_law(self) -> bool:
        """Whether articles of laws that are not in force may be among the rows."""
        return any(corpus.get("not_in_force", 1) for corpus in self.manifest["corpora"])

    @property
    def bytes_on_disk(self) -> int:
        return sum(self._sizes.values())

    @property
    def bytes_resident(self) -> int:
        """The most that this index keeps in memory under load: all but the texts and the int16 rows, which are
        read and forgotten.
        """
        return sum(size for name, size in self._sizes.items() if name not in (ARTICLES, FULL))

    def run_index(self, row: int) -> int:
        """The index in `runs` of the law that `row` belongs to."""
        return bisect_right(self._starts, row) - 1

    def read_articles(self, rows: Sequence[int]) -> list[Article]:
        """The articles of `rows`, in the order asked for.

        Raises IndexDamaged, IndexError for a row out of range.
        """
        file, offsets = self._files[ARTICLES], self._maps[OFFSETS].array
        return [self._read_article(file, offsets, int(row)) for row in rows]

    def _read_article(self, file: HeldFile, offsets: NDArray[Any], row: int) -> Article:
        if not 0 <= row < self.num_docs:
            raise IndexError(f"row {row} is not in 0..{self.num_docs - 1}")
        start, stop = int(offsets[row]), int(offsets[row + 1])
        if not start < stop <= self._sizes[ARTICLES]:
            raise IndexDamaged(OFFSETS, f"第 {row} 条的位置不可能", "递增", f"{start}..{stop}")
        try:
            line = file.read(start, stop - start)
        except OSError as error:
            raise IndexDamaged(ARTICLES, f"第 {row} 条无法读取：{reason_of(error)}") from error
        return _parse_article(line, row, self.runs[self.run_index(row)])

    def read_full(self, rows: NDArray[np.int64]) -> NDArray[np.int16]:
        """int16 [len(rows), dim] in the order asked for; a row times its `vectors.full_scales` is the vector.

        Raises IndexDamaged, IndexError for a row out of range, ValueError for an index without vectors.
        """
        if self.vectors is None:
            raise ValueError("索引中没有向量。")
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < self.num_docs:
            raise IndexError(f"rows {rows.min()}..{rows.max()} are not in 0..{self.num_docs - 1}")
        return self._files[FULL].read_rows(rows, 2 * self.dim).view("<i2")

    def find_rows(self, run_index: int, key: str) -> list[int]:
        """Rows of law `run_index` that are stored under the article key `key`, ascending."""
        wanted = np.uint64(lookup_hash(run_index, key))
        keys = self._maps[LOOKUP_KEYS].array
        first, last = np.searchsorted(keys, wanted, "left"), np.searchsorted(keys, wanted, "right")
        run = self.runs[run_index]
        candidates = {int(row) for row in self._maps[LOOKUP_ROWS].array[first:last]}
        rows = sorted(row for row in candidates if run.start <= row < run.start + run.count)
        # Two keys may share a hash: the article itself decides.
        return [
            row
            for row, article in zip(rows, self.read_articles(rows), strict=True)
            if key in lookup_keys(article.article_number)
        ]

    def verify(self, should_stop: Callable[[], bool] = lambda: False) -> list[Damage]:
        """Compare every file with its SHA-256; what was found so far when `should_stop` says so."""
        damages: list[Damage] = []
        for name in _VERIFY_ORDER:
            if name not in self._sizes:
                continue
            damage = self._verify_file(name, should_stop)
            if should_stop():
                break
            if damage is not None:
                located = name != ARTICLES or not any(other.file == OFFSETS for other in damages)
                damages.append(self._locate(damage, should_stop) if located else damage)
        return damages

    def _verify_file(self, name: str, should_stop: Callable[[], bool]) -> Damage | None:
        source = self._maps.get(name) or self._files[name]
        # The size is asked for first: touching a mapped page beyond the end of its file kills the process.
        if source.size() != self._sizes[name]:
            return Damage(name, f"{self._sizes[name]} 字节", f"{source.size()} 字节", None)
        if name == MANIFEST:
            return _verify_manifest(_read_small(self._files[name]))
        expected, found = self.manifest["files"][name]["sha256"], _digest(source.blocks(), should_stop)
        if found != expected:
            return Damage(name, expected, found, None)
        if name in (MEAN, SCALES, FULL_SCALES) and not np.isfinite(self._maps[name].array).all():
            return Damage(name, "有限的数", "含有非数值", None)
        return None

    def _locate(self, damage: Damage, should_stop: Callable[[], bool]) -> Damage:
        """Name the runs that the damage hits. None stays when no run's own bytes differ, or nobody can tell."""
        source = self._maps.get(damage.file)
        if damage.file not in RUN_FILES or (source and source.size() != self._sizes[damage.file]):
            return damage
        hit = []
        for index, (run, expected) in enumerate(zip(self.runs, self._run_digests(damage.file), strict=False)):
            if should_stop():
                return damage
            if _digest(self._run_blocks(damage.file, run), should_stop) != expected:
                hit.append(index)
        return Damage(damage.file, damage.expected, damage.found, tuple(hit) or None)

    def _run_digests(self, name: str) -> list[str]:
        """Expected digests of the runs; empty when laws.json cannot tell any more."""
        if name == ARTICLES:
            return [run.sha256 for run in self.runs]
        raw = _read_small(self._files[LAWS])
        whole = hashlib.sha256(raw).hexdigest() == self.manifest["files"][LAWS]["sha256"]
        return parse_run_digests(raw, name) if whole else []

    def _run_blocks(self, name: str, run: LawRun) -> Iterator[bytes] | Iterator[memoryview]:
        start, stop = run.start, run.start + run.count
        if name == ARTICLES:
            offsets = self._maps[OFFSETS].array
            return self._files[name].blocks(int(offsets[start]), int(offsets[stop]))
        width = self._sizes[name] // self.num_docs
        return (self._maps.get(name) or self._files[name]).blocks(start * width, stop * width)

    def stored_files(self) -> Iterator[tuple[str, int, Iterator[bytes] | Iterator[memoryview]]]:
        """Every file as it is stored, the manifest first: name, size in bytes, content in blocks."""
        for name in (MANIFEST, *(name for name in self._sizes if name != MANIFEST)):
            yield name, self._sizes[name], (self._maps.get(name) or self._files[name]).blocks()

    def article_lines(self, run: LawRun) -> Iterator[bytes]:
        """The lines of articles.jsonl of one law as they are stored; a later build copies them."""
        offsets = self._maps[OFFSETS].array
        for row in range(run.start, run.start + run.count):
            start = int(offsets[row])
            yield self._files[ARTICLES].read(start, int(offsets[row + 1]) - start)

    def close(self) -> None:
        """Let go of the files: reads under way in other threads end well, later ones raise KeyError."""
        self._files = {}
        self._maps = {}


def _read_small(file: HeldFile) -> bytes:
    if file.size() > MAX_JSON_BYTES:
        raise IndexDamaged(file.name, "文件过大", f"不超过 {MAX_JSON_BYTES} 字节", f"{file.size()} 字节")
    try:
        return file.read(0, file.size())
    except OSError as error:
        raise IndexDamaged(file.name, f"无法读取：{reason_of(error)}") from error


def _verify_manifest(raw: bytes) -> Damage | None:
    try:
        check_seal(raw)
    except IndexDamaged as error:
        return Damage(MANIFEST, error.expected, error.found, None)
    return None


def _digest(blocks: Iterator[bytes] | Iterator[memoryview], should_stop: Callable[[], bool]) -> str:
    """SHA-256 over the blocks; "" for what cannot be read or when told to stop."""
    digest = hashlib.sha256()
    try:
        for block in blocks:
            if should_stop():
                return ""
            digest.update(block)
    except OSError as error:
        return f"无法读取：{reason_of(error)}"
    return digest.hexdigest()


def _check_equal(file: str, reason: str, expected: int, found: int) -> None:
    if expected != found:
        raise IndexDamaged(file, reason, str(expected), str(found))


def _parse_article(line: bytes, row: int, run: LawRun) -> Article:
    try:
        record = orjson.loads(line)
        fields = [record[key] for key in ("law_name", "article_number", "contents")]
        extra = record.get("extra", {})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IndexDamaged(ARTICLES, f"第 {row} 条不是有效的条文记录") from error
    if not all(isinstance(text, str) for text in fields) or not isinstance(extra, dict):
        raise IndexDamaged(ARTICLES, f"第 {row} 条的字段类型不符")
    if fields[0] != run.law_name:
        raise IndexDamaged(ARTICLES, f"第 {row} 条不属于该法规", run.law_name, fields[0])
    return Article(fields[0], fields[1], fields[2], extra, run.tags)
