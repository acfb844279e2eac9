"""Vectors that a build has made, kept until they stand in an index.

Rule: a record leaves the process before the next article is embedded, so a kill costs no more than the vector
that was being made. What cannot be read back whole (a torn end, a changed byte, another model or another
class of CPU) counts as not there, and its article is embedded again.

On disk: one line of JSON that tells what made the vectors, then records of equal length
    digest of the text, 16 bytes | scale, float32 | int16 [D] | CRC-32 of these
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import zlib
from collections.abc import Iterator, Mapping, Set
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cg_rag.index.durable import discard, sync_directory, temporary_path, write_file
from cg_rag.index.held_files import HeldFile

DIGEST_BYTES = 16
MAX_AGE_SECONDS = 30 * 86400  # of the journal of a model that nobody came back to
# What a power cut may cost; the death of the process alone costs nothing.
_SYNC_RECORDS = 64
_SYNC_SECONDS = 2.0
_FORMAT = 1
_BLOCK_RECORDS = 1024


class VectorJournal:
    """The journal of one model in `index_dir`, made when absent. The build lock must be held.

    `places` maps the digest of a text to the place of its record. OSError when the disk refuses.
    """

    def __init__(self, index_dir: Path, embedding: Mapping[str, Any]) -> None:
        """`embedding` as in the manifest: fingerprint, kernel_class and dim decide what is comparable."""
        self._path = journal_path(index_dir, embedding["fingerprint"])
        self._header = _encode_header(embedding)
        row = [("digest", f"V{DIGEST_BYTES}"), ("scale", "<f4"), ("full", "<i2", embedding["dim"])]
        self._record = np.dtype([*row, ("crc", "<u4")])
        self._descriptor = -1
        self._num_unsynced = 0
        self._synced_at = time.monotonic()
        self.places: dict[bytes, int] = {}
        self._open()

    def append(self, digest: bytes, full: NDArray[np.int16], scale: np.float32) -> None:
        """Keep one vector, `full` int16 [dim]."""
        body = digest + scale.astype("<f4").tobytes() + full.astype("<i2").tobytes()
        self._write(body + zlib.crc32(body).to_bytes(4, "little"), self._num_records)
        self.places[digest] = self._num_records
        self._num_records += 1
        self._num_unsynced += 1
        if self._num_unsynced >= _SYNC_RECORDS or time.monotonic() - self._synced_at >= _SYNC_SECONDS:
            self.sync()

    def read(self, places: NDArray[np.int64]) -> tuple[NDArray[np.int16], NDArray[np.float32]]:
        """(int16 [n, dim], scales float32 [n]) of records in any order."""
        raw = self._file.read_rows(places, self._record.itemsize, len(self._header))
        records = raw.view(self._record)[:, 0]
        return records["full"], records["scale"]

    def sync(self) -> None:
        """Bring what was appended to the disk, so that a power cut costs nothing."""
        if self._num_unsynced:
            os.fsync(self._descriptor)
        self._num_unsynced = 0
        self._synced_at = time.monotonic()

    def compact(self, wanted: Set[bytes]) -> None:
        """Drop the vectors of other texts when they outnumber those of `wanted`: builds that are interrupted
        again and again, each over other sources, must not fill the disk.
        """
        kept = sorted(place for digest, place in self.places.items() if digest in wanted)
        if self._num_records - len(kept) <= len(wanted):
            return
        size = self._record.itemsize
        records = (self._file.read(len(self._header) + place * size, size) for place in kept)
        temporary = temporary_path(self._path.parent)
        try:
            write_file(temporary, chain([self._header], records))
            self.close()
            os.replace(temporary, self._path)
        finally:
            discard(temporary)
        sync_directory(self._path.parent)
        self._open()

    def close(self) -> None:
        """Bring everything to the disk. The journal stays for the next build."""
        if self._descriptor < 0:
            return
        try:
            self.sync()
        finally:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> None:
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            self._file = self._open_for_reading()
            self._find_records()
        except BaseException:
            self.close()
            raise

    def _find_records(self) -> None:
        self._num_records = 0
        if self._file.read(0, len(self._header)) == self._header:
            self._num_records = (self._file.size() - len(self._header)) // self._record.itemsize
        else:
            os.ftruncate(self._descriptor, 0)
            self._write_all(self._header, 0)
        self.places = dict(self._load())

    def _open_for_reading(self) -> HeldFile:
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return HeldFile(folder, self._path.name)
        finally:
            os.close(folder)

    def _load(self) -> Iterator[tuple[bytes, int]]:
        size = self._record.itemsize
        for first in range(0, self._num_records, _BLOCK_RECORDS):
            raw = self._file.read(len(self._header) + first * size, _BLOCK_RECORDS * size)
            for place in range(min(_BLOCK_RECORDS, self._num_records - first)):
                record = raw[place * size : (place + 1) * size]
                if zlib.crc32(record[:-4]) == int.from_bytes(record[-4:], "little"):
                    yield record[:DIGEST_BYTES], first + place

    def _write(self, record: bytes, place: int) -> None:
        # At its place and not at the end of the file: a torn record of a killed build is written over.
        self._write_all(record, len(self._header) + place * self._record.itemsize)

    def _write_all(self, raw: bytes, offset: int) -> None:
        while raw:
            count = os.pwrite(self._descriptor, raw, offset)
            raw, offset = raw[count:], offset + count


def journal_path(index_dir: Path, fingerprint: str) -> Path:
    """Where the vectors of the model with this fingerprint wait. Cleaning up leftovers never removes it."""
    name = hashlib.blake2b(fingerprint.encode(), digest_size=8).hexdigest()
    return index_dir / f"embedding-{name}.journal"


def discard_old_journals(index_dir: Path, in_use: str | None) -> None:
    """Remove journals that were not touched for 30 days, but not that of the fingerprint `in_use`."""
    kept = journal_path(index_dir, in_use) if in_use is not None else None
    for path in index_dir.glob("embedding-*.journal"):
        if path != kept and time.time() - path.lstat().st_mtime > MAX_AGE_SECONDS:
            discard(path)


def _encode_header(embedding: Mapping[str, Any]) -> bytes:
    decisive = {key: embedding[key] for key in ("fingerprint", "kernel_class", "dim")}
    return json.dumps({"format": _FORMAT, **decisive}, ensure_ascii=False).encode() + b"\n"
