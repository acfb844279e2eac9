"""The articles of a build before their rows are known: bytes in a nameless file, and a few numbers for each.

Rule: rows are ordered by tags, then corpus, then law in order of first appearance, then as the source has
them. Laws that are scattered over a file are gathered, so every law of a corpus is one run and a scope is a
few ranges.
"""

from __future__ import annotations

import hashlib
import tempfile
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from cg_rag.index.corpus import Article, LawRun
from cg_rag.index.durable import TEMPORARY_PREFIX


class Spool:
    """Collects lines of articles.jsonl in any order and gives them back in row order.

    The file in `directory` has no name, so a killed build leaves nothing of it. Raises OSError when the
    disk is full.
    """

    def __init__(self, directory: Path) -> None:
        self._file = tempfile.TemporaryFile(prefix=TEMPORARY_PREFIX, dir=directory)  # noqa: SIM115 - closed by __exit__
        self._offsets = array("Q", [0])
        self._groups = array("L")
        self._digests = array("Q")
        self._group_of: dict[tuple[tuple[str, ...], int, str], int] = {}
        self._corpora: list[str] = []

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._groups)

    def start_corpus(self, name: str) -> None:
        """What is added from now on belongs to this corpus."""
        self._corpora.append(name)

    def add(self, line: bytes, law_name: str, tags: tuple[str, ...]) -> None:
        self._file.write(line)
        self._offsets.append(self._offsets[-1] + len(line))
        self._digests.append(line_digest(line))
        key = (tags, len(self._corpora) - 1, law_name)
        self._groups.append(self._group_of.setdefault(key, len(self._group_of)))

    def runs(self) -> list[LawRun]:
        """The runs in row order, without digests."""
        sizes = np.bincount(np.array(self._groups, dtype=np.int64), minlength=len(self._group_of))
        runs: list[LawRun] = []
        row = 0
        for (tags, corpus, law_name), group in self._sorted_groups():
            count = int(sizes[group])
            runs.append(LawRun(law_name, self._corpora[corpus], tags, row, count, ""))
            row += count
        return runs

    def lines(self) -> Iterator[bytes]:
        """The lines in row order; may be walked more than once, not by two at the same time."""
        self._file.flush()
        rank = np.empty(len(self._group_of), dtype=np.int64)
        for position, (_, group) in enumerate(self._sorted_groups()):
            rank[group] = position
        order = np.argsort(rank[np.array(self._groups, dtype=np.int64)], kind="stable")
        end = -1
        for index in order.tolist():
            start = self._offsets[index]
            if start != end:
                self._file.seek(start)
            end = self._offsets[index + 1]
            yield self._file.read(end - start)

    def digests(self) -> NDArray[np.uint64]:
        """64-bit digests of all lines, in no order that matters."""
        return np.array(self._digests, dtype=np.uint64)

    def _sorted_groups(self) -> list[tuple[tuple[tuple[str, ...], int, str], int]]:
        return sorted(self._group_of.items(), key=lambda item: (item[0][0], item[0][1], item[1]))


def encode_article(article: Article) -> bytes:
    """One line of articles.jsonl. Tags are not in it: they are a property of the run."""
    record: dict[str, Any] = {
        "law_name": article.law_name,
        "article_number": article.article_number,
        "contents": article.contents,
    }
    if article.extra:
        record["extra"] = dict(article.extra)
    return orjson.dumps(record) + b"\n"


def decode_article(line: bytes) -> Article:
    """The article of a line, without tags."""
    record = orjson.loads(line)
    return Article(record["law_name"], record["article_number"], record["contents"], record.get("extra", {}))


def line_digest(line: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(line, digest_size=8).digest(), "little")


def count_changes(old: NDArray[np.uint64], new: NDArray[np.uint64]) -> tuple[int, int, int]:
    """(added, removed, unchanged) between two bags of line digests."""
    old_values, old_counts = np.unique(old, return_counts=True)
    new_values, new_counts = np.unique(new, return_counts=True)
    _, in_old, in_new = np.intersect1d(old_values, new_values, assume_unique=True, return_indices=True)
    unchanged = int(np.minimum(old_counts[in_old], new_counts[in_new]).sum())
    return len(new) - unchanged, len(old) - unchanged, unchanged
