"""Arrays on their way to the disk: raw little-endian values, whose element type and shape the manifest tells.

Rule: the arrays of vectors are written in one pass over the rows and never held as a whole. Each of their
rows counts in the digest of its law, so that damage there takes down only the scopes that hold this law.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cg_rag.index.corpus import LawRun
from cg_rag.index.durable import write_file
from cg_rag.index.manifest import FileEntry
from cg_rag.index.vectors import BLOCK_ROWS, FULL, FULL_SCALES, MEAN, SCALES, SCAN, FullEncoder, encode_scan

Floats = NDArray[np.float32]
Rows = tuple[NDArray[Any], Floats]  # whole numbers [n, D], scales [n]

_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class VectorDraft:
    """The vectors of a generation that is to be written.

    `embedding` goes into the manifest: model, fingerprint, dim, kernel_class. `blocks` are int16 [n, D] and
    scales float32 [n] as `vectors.encode_full` makes them, all rows in order; they are taken once.
    """

    embedding: Mapping[str, Any]
    blocks: Iterable[tuple[NDArray[np.int16], Floats]]


def write_array(path: Path, values: NDArray[Any], digests: RunDigests | None = None) -> FileEntry:
    # Raw bytes instead of np.save: an error keeps its errno, and nothing of the file has to be trusted to
    # read it.
    little = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
    raw = _bytes_of(little)
    blocks = (raw[at : at + _BLOCK_BYTES] for at in range(0, len(raw), _BLOCK_BYTES))
    entry = write_file(path, digests.watch(blocks) if digests else blocks)
    return replace(entry, dtype=little.dtype.str, shape=little.shape)


def write_vectors(
    folder: Path, drafts: Sequence[LawRun], vectors: VectorDraft
) -> tuple[dict[str, FileEntry], dict[str, list[str]]]:
    """Write the five files of vectors; returns their entries, and the digests of the runs by file.

    The scan is made from full.i16 as it stands on the disk: the mean is known when all rows have been seen.
    """
    writer = _VectorWriter(folder, drafts, vectors.embedding["dim"])
    full_scales = writer.write_rows(FULL, "<i2", writer.count(vectors.blocks))
    writer.write_scales(FULL_SCALES, full_scales)
    mean = writer.encoder.mean()
    writer.files[MEAN] = write_array(folder / MEAN, mean)
    writer.write_scales(SCALES, writer.write_rows(SCAN, "|i1", _scan(folder / FULL, full_scales, mean)))
    return writer.files, writer.digests


class RunDigests:
    """SHA-256 of each run's rows in one file; rows come in order, in pieces of any size."""

    def __init__(self, drafts: Sequence[LawRun], row_bytes: int) -> None:
        self._ends = [(draft.start + draft.count) * row_bytes for draft in drafts]
        self._digest = hashlib.sha256()
        self._position = 0
        self.found: list[str] = []

    def watch(self, blocks: Iterable[memoryview]) -> Iterator[memoryview]:
        for block in blocks:
            self._add(block)
            yield block

    def _add(self, block: memoryview) -> None:
        while block:
            end = self._ends[len(self.found)]
            part = block[: end - self._position]
            self._digest.update(part)
            self._position += len(part)
            block = block[len(part) :]
            if self._position == end:
                self.found.append(self._digest.hexdigest())
                self._digest = hashlib.sha256()


class _VectorWriter:
    def __init__(self, folder: Path, drafts: Sequence[LawRun], dim: int) -> None:
        self._folder = folder
        self._drafts = drafts
        self._dim = dim
        self.encoder = FullEncoder(dim)
        self.files: dict[str, FileEntry] = {}
        self.digests: dict[str, list[str]] = {}

    def write_rows(self, name: str, dtype: str, blocks: Iterable[Rows]) -> Floats:
        """Returns the scales."""
        width = self._dim * np.dtype(dtype).itemsize
        scales = [np.empty(0, np.float32)]

        def raw() -> Iterator[memoryview]:
            for rows, row_scales in blocks:
                scales.append(row_scales)
                yield _bytes_of(rows.astype(dtype, copy=False))

        digests = RunDigests(self._drafts, width)
        entry = write_file(self._folder / name, digests.watch(raw()))
        self.files[name] = replace(entry, dtype=dtype, shape=(entry.size // width, self._dim))
        self.digests[name] = digests.found
        return np.concatenate(scales)

    def write_scales(self, name: str, scales: Floats) -> None:
        digests = RunDigests(self._drafts, scales.itemsize)
        self.files[name] = write_array(self._folder / name, scales, digests)
        self.digests[name] = digests.found

    def count(self, blocks: Iterable[Rows]) -> Iterator[Rows]:
        for full, scales in blocks:
            self.encoder.add(full, scales)
            yield full, scales


def _scan(path: Path, full_scales: Floats, mean: Floats) -> Iterator[Rows]:
    with path.open("rb") as file:
        for start in range(0, len(full_scales), BLOCK_ROWS):
            scales = full_scales[start : start + BLOCK_ROWS]
            raw = file.read(2 * len(scales) * len(mean))
            yield encode_scan(np.frombuffer(raw, "<i2").reshape(len(scales), -1), scales, mean)


def _bytes_of(values: NDArray[Any]) -> memoryview:
    return memoryview(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
