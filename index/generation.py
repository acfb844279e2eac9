"""The write side of the index: one new generation beside the old ones, then one pointer replaced.

Rule: the pointer never names a folder that is not whole. A generation gets its name only when every byte of
it is on the disk; a damaged folder is never repaired in place, its successor takes another name
(`<fingerprint>.1`).
"""

from __future__ import annotations

import hashlib
import os
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from cg_rag.index.array_files import VectorDraft, write_array, write_vectors
from cg_rag.index.corpus import LawRun
from cg_rag.index.durable import (
    TEMPORARY_PREFIX,
    build_lock,
    discard,
    replace_file,
    sync_directory,
    temporary_path,
    write_file,
)
from cg_rag.index.errors import IndexBusy, IndexDamaged
from cg_rag.index.lexical import TOKENISER_VERSION, LexicalArrays
from cg_rag.index.manifest import (
    ARTICLES,
    FORMAT_VERSION,
    LAWS,
    LEXICAL,
    LOOKUP_KEYS,
    LOOKUP_ROWS,
    MANIFEST,
    OFFSETS,
    VECTOR_DTYPE,
    FileEntry,
    encode_laws,
    encode_manifest,
    parse_manifest,
)
from cg_rag.index.numerals import lookup_keys
from cg_rag.index.os_words import reason_of

POINTER = "current"

GENERATION = re.compile(r"[0-9a-f]{16}(\.[1-9][0-9]{0,3})?")


def read_pointer(index_dir: Path) -> str | None:
    """The name of the current generation's folder, None when nothing was built. Raises IndexDamaged."""
    try:
        with (index_dir / POINTER).open("rb") as file:
            raw = file.read(64)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise IndexDamaged(POINTER, f"无法读取：{reason_of(error)}") from error
    name = raw.decode("ascii", "replace").removesuffix("\n")
    # The name becomes a path: nothing but a generation's name may leave this function.
    if not GENERATION.fullmatch(name):
        raise IndexDamaged(POINTER, "内容不是索引目录名", "16 位十六进制指纹", repr(name)[:40])
    return name


def current_fingerprint(index_dir: Path) -> str | None:
    """What `IndexReader.open` would open now. Reads one small file.

    Raises IndexDamaged for a broken pointer.
    """
    return read_pointer(index_dir)


def lookup_hash(run_index: int, key: str) -> int:
    """64-bit hash under which lookup.keys stores the article key `key` of law `run_index`."""
    digest = hashlib.blake2b(f"{run_index}\0{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def write_generation(
    index_dir: Path,
    drafts: Sequence[LawRun],
    lines: Iterable[bytes],
    lexical: LexicalArrays,
    corpora: Sequence[Mapping[str, Any]],
    vectors: VectorDraft | None = None,
) -> str:
    """Write one generation, make it current, return its folder's name. Older ones but the previous are removed.

    `drafts` are the runs in row order without digests, `lines` the lines of articles.jsonl in the same order.
    `vectors` None makes an index for lexical search only. The build lock must be held. Raises OSError when the disk refuses; then everything is as it was before.
    """
    folder = temporary_path(index_dir)
    folder.mkdir()
    try:
        fingerprint, files = _write_files(folder, drafts, lines, lexical, corpora, vectors)
        return publish(index_dir, folder, fingerprint, files)
    finally:
        discard(folder)


def remove_leftovers(index_dir: Path) -> list[str]:
    """Remove what a killed build left behind; returns the names. Does nothing while a build runs."""
    if not index_dir.is_dir():
        return []
    try:
        with build_lock(index_dir):
            return discard_leftovers(index_dir)
    except (IndexBusy, OSError):
        # Also a read-only file system: a server there must start all the same.
        return []


def discard_leftovers(index_dir: Path) -> list[str]:
    """As `remove_leftovers`, for a caller that holds the build lock."""
    leftovers = sorted(path for path in index_dir.iterdir() if path.name.startswith(TEMPORARY_PREFIX))
    for path in leftovers:
        discard(path)
    return [path.name for path in leftovers if not os.path.lexists(path)]


class _ArticleStream:
    """Lines on their way to articles.jsonl. What must be known of them afterwards is kept in flat arrays."""

    def __init__(self, drafts: Sequence[LawRun]) -> None:
        self._drafts = drafts
        self._hashes = array("Q")
        self._rows = array("Q")
        self.offsets = array("Q", [0])
        self.runs: list[LawRun] = []

    def blocks(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        source = iter(lines)
        for index, draft in enumerate(self._drafts):
            digest = hashlib.sha256()
            for row in range(draft.start, draft.start + draft.count):
                line = next(source)
                digest.update(line)
                self._note(index, row, line)
                yield line
            self.runs.append(replace(draft, sha256=digest.hexdigest()))

    def _note(self, run_index: int, row: int, line: bytes) -> None:
        self.offsets.append(self.offsets[-1] + len(line))
        # Text without numbers has the key "", under which nobody looks.
        for key in filter(None, lookup_keys(orjson.loads(line)["article_number"])):
            self._hashes.append(lookup_hash(run_index, key))
            self._rows.append(row)

    def lookup(self) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
        hashes = np.array(self._hashes, dtype="<u8")
        rows = np.array(self._rows, dtype="<u4")
        order = np.lexsort((rows, hashes))
        return hashes[order], rows[order]


def _write_files(
    folder: Path,
    drafts: Sequence[LawRun],
    lines: Iterable[bytes],
    lexical: LexicalArrays,
    corpora: Sequence[Mapping[str, Any]],
    vectors: VectorDraft | None,
) -> tuple[str, dict[str, FileEntry]]:
    stream = _ArticleStream(drafts)
    files = {ARTICLES: write_file(folder / ARTICLES, stream.blocks(lines))}
    digests: Mapping[str, Sequence[str]] = {}
    if vectors is not None:
        vector_files, digests = write_vectors(folder, drafts, vectors)
        files |= vector_files
    files[LAWS] = write_file(folder / LAWS, [encode_laws(stream.runs, digests)])
    keys, rows = stream.lookup()
    arrays = {OFFSETS: np.array(stream.offsets, dtype="<u8"), LOOKUP_KEYS: keys, LOOKUP_ROWS: rows}
    arrays |= {f"lexical.{part}": getattr(lexical, part) for part in LEXICAL}
    for name, values in arrays.items():
        files[name] = write_array(folder / name, values)
    raw = encode_manifest(
        {
            "format_version": FORMAT_VERSION,
            "built_at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "num_docs": len(stream.offsets) - 1,
            "dim": vectors.embedding["dim"] if vectors else 0,
            "dtype": VECTOR_DTYPE if vectors else None,
            "embedding": dict(vectors.embedding) if vectors else None,
            "tokeniser": TOKENISER_VERSION,
            "lexical": lexical.meta,
            "corpora": list(corpora),
            "files": {name: entry.to_json() for name, entry in sorted(files.items())},
        }
    )
    files[MANIFEST] = write_file(folder / MANIFEST, [raw])
    return orjson.loads(raw)["fingerprint"], files


def publish(index_dir: Path, folder: Path, fingerprint: str, files: Mapping[str, FileEntry]) -> str:
    """Give `folder`, whose files are all on the disk, its name and make it current; returns the name.

    `files` is what it holds, by name. The build lock must be held. Raises OSError; then everything is as it was.
    """
    previous = _read_pointer_bytes(index_dir)
    name, exists = _choose_name(index_dir, fingerprint, files)
    try:
        if not exists:
            sync_directory(folder)
            folder.rename(index_dir / name)
            sync_directory(index_dir)
        replace_file(index_dir / POINTER, f"{name}\n".encode())
    except BaseException:
        _undo(index_dir, name, previous, keep=exists)
        raise
    _remove_old_generations(index_dir, name, previous)
    return name


def _read_pointer_bytes(index_dir: Path) -> bytes | None:
    try:
        return (index_dir / POINTER).read_bytes()
    except FileNotFoundError:
        return None


def _choose_name(index_dir: Path, fingerprint: str, files: Mapping[str, FileEntry]) -> tuple[str, bool]:
    """A folder of this content that is whole (True), else a name that is free (False)."""
    name = fingerprint
    number = 0
    while os.path.lexists(index_dir / name):
        if _is_whole(index_dir / name, files):
            return name, True
        number += 1
        name = f"{fingerprint}.{number}"
    return name, False


def _is_whole(folder: Path, files: Mapping[str, FileEntry]) -> bool:
    try:
        # The manifest also tells when it was built, so it is judged by its own digest.
        parse_manifest((folder / MANIFEST).read_bytes(), folder.name)
        return all(
            _file_digest(folder / name) == entry.sha256 for name, entry in files.items() if name != MANIFEST
        )
    except (OSError, IndexDamaged):
        return False


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _undo(index_dir: Path, name: str, previous: bytes | None, keep: bool) -> None:
    """Bring the old pointer back when only its last fsync failed, then drop the folder that nothing names."""
    with suppress(OSError):
        if _read_pointer_bytes(index_dir) != previous:
            _restore_pointer(index_dir, previous)
    with suppress(OSError, IndexDamaged):
        if not keep and read_pointer(index_dir) != name:
            discard(index_dir / name)


def _restore_pointer(index_dir: Path, previous: bytes | None) -> None:
    if previous is None:
        (index_dir / POINTER).unlink()
    else:
        replace_file(index_dir / POINTER, previous)


def generations(index_dir: Path) -> list[str]:
    """The names of all generations there are; a directory that cannot be read has none."""
    try:
        return sorted(path.name for path in index_dir.iterdir() if GENERATION.fullmatch(path.name))
    except OSError:
        return []


def _remove_old_generations(index_dir: Path, name: str, previous: bytes | None) -> None:
    """Keep the current generation and the one before it, to which an operator may point back."""
    before = (previous or b"").decode("ascii", "replace").strip()
    if before == name:
        return
    for old in generations(index_dir):
        if old not in (name, before):
            discard(index_dir / old)
