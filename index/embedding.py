"""The vectors of a build: those of unchanged articles are kept, the others are made, and none is lost by a kill.

Rule: what is embedded is told by the digest of the text as the model gets it. Vectors of another model, of
other settings or of another class of CPU are never mixed with new ones: then all are made anew.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cg_rag.index.array_files import VectorDraft
from cg_rag.index.corpus import Article
from cg_rag.index.errors import BuildFailed
from cg_rag.index.journal import DIGEST_BYTES, VectorJournal
from cg_rag.index.model_errors import ModelFailed
from cg_rag.index.os_words import fault_of
from cg_rag.index.progress import Progress
from cg_rag.index.spool import decode_article
from cg_rag.index.store import IndexReader
from cg_rag.index.vectors import BLOCK_ROWS, encode_full

if TYPE_CHECKING:  # it imports the tokenizers, which a build without vectors does not need
    from cg_rag.index.embedder import Embedder

_COMPARABLE = ("fingerprint", "kernel_class", "dim")


def describe_embedding(embedder: Embedder) -> dict[str, Any]:
    """What the manifest says of the vectors of `embedder`."""
    return {
        "model": embedder.name,
        "fingerprint": embedder.fingerprint,
        "dim": embedder.dim,
        "kernel_class": embedder.kernel_class,
    }


class RowVectors:
    """The vectors of all rows of one build. Used once, under the build lock.

    `num_embedded` counts texts that were embedded, `num_reused` rows whose vector was there before: in the
    current index or in the journal of an interrupted build. `notes` are sentences for the report.
    """

    def __init__(
        self,
        index_dir: Path,
        embedder: Embedder,
        old: IndexReader | None,
        progress: Progress,
        should_stop: Callable[[], bool],
    ) -> None:
        """`old` is the current index, every byte of it verified, or None."""
        self.embedding = describe_embedding(embedder)
        self.notes: list[str] = []
        self.num_embedded = 0
        self.num_reused = 0
        self.seconds = 0.0
        self._embedder = embedder
        self._progress = progress
        self._should_stop = should_stop
        self._old = old if old is not None and self._is_comparable(old.manifest["embedding"]) else None
        self._journal = VectorJournal(index_dir, self.embedding)
        # The row of the old index, or -1 - the place in the journal.
        self._origins = np.empty(0, np.int64)

    def make(self, lines: Callable[[], Iterator[bytes]]) -> None:
        """Find or make the vector of every line; `lines` gives all rows of the build in order, twice.

        Raises BuildFailed naming the article, Cancelled, OSError; what was made until then is kept.
        """
        began = time.monotonic()
        digests = [self._digest(line) for line in lines()]
        kept = self._rows_of_old()
        missing = set(digests) - kept.keys()
        self._journal.compact(missing)
        places = self._journal.places
        if resumed := len(missing & places.keys()):
            self.notes.append(f"接着上次中断的构建，已有 {resumed} 条向量")
        missing -= places.keys()
        self.num_reused = sum(digest not in missing for digest in digests)
        if missing:
            self._embed(zip(lines(), digests, strict=True), missing)
        self._journal.sync()
        origins = (kept[digest] if digest in kept else -1 - places[digest] for digest in digests)
        self._origins = np.fromiter(origins, np.int64, len(digests))
        self.seconds = time.monotonic() - began

    def draft(self) -> VectorDraft:
        """What `write_generation` takes."""
        return VectorDraft(self.embedding, self._blocks())

    def close(self) -> None:
        self._journal.close()

    def _is_comparable(self, embedding: Mapping[str, Any] | None) -> bool:
        if embedding is None:
            return False
        if all(embedding[key] == self.embedding[key] for key in _COMPARABLE):
            return True
        names = [
            f"{value['model']}（{value['fingerprint']}，{value['kernel_class']}）"
            for value in (embedding, self.embedding)
        ]
        self.notes.append(f"原有向量由 {names[0]} 生成，与当前的 {names[1]} 不可混用，已全部重新生成")
        return False

    def _digest(self, line: bytes) -> bytes:
        text = self._embedder.article_text(decode_article(line))
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()

    def _rows_of_old(self) -> dict[bytes, int]:
        if self._old is None:
            return {}
        lines = (line for run in self._old.runs for line in self._old.article_lines(run))
        return {self._digest(line): row for row, line in enumerate(lines)}

    def _embed(self, lines: Iterable[tuple[bytes, bytes]], missing: set[bytes]) -> None:
        self._progress.start("生成向量", len(missing))
        pending: deque[tuple[bytes, Article]] = deque()
        vectors = self._embedder.embed_articles(_take(lines, missing, pending), None, self._should_stop)
        while (vector := _next(vectors, pending)) is not None:
            if not pending:
                raise _failure((), f"模型 {self._embedder.name} 给出的向量多于条文")
            digest, article = pending.popleft()
            full, scales = _encode(vector, article, self._embedder.dim)
            self._journal.append(digest, full[0], scales[0])
            self.num_embedded += 1
            self._progress.advance(1)
        if pending or missing:
            raise _failure(pending, f"模型 {self._embedder.name} 给出的向量少于条文")
        self._progress.finish()

    def _blocks(self) -> Iterator[tuple[NDArray[np.int16], NDArray[np.float32]]]:
        for start in range(0, len(self._origins), BLOCK_ROWS):
            yield self._gather(self._origins[start : start + BLOCK_ROWS])

    def _gather(self, origins: NDArray[np.int64]) -> tuple[NDArray[np.int16], NDArray[np.float32]]:
        full = np.empty((len(origins), self._embedder.dim), np.int16)
        scales = np.empty(len(origins), np.float32)
        kept = origins >= 0
        if self._old is not None and self._old.vectors is not None and kept.any():
            full[kept] = self._old.read_full(origins[kept])
            scales[kept] = self._old.vectors.full_scales[origins[kept]]
        if not kept.all():
            full[~kept], scales[~kept] = self._journal.read(-1 - origins[~kept])
        return full, scales


def _take(
    lines: Iterable[tuple[bytes, bytes]], missing: set[bytes], pending: deque[tuple[bytes, Article]]
) -> Iterator[Article]:
    """The articles whose text is `missing`, each text once; what was taken is noted in `pending`."""
    for line, digest in lines:
        if digest in missing:
            missing.remove(digest)
            article = decode_article(line)
            pending.append((digest, article))
            yield article


def _next(vectors: Iterator[Any], pending: deque[tuple[bytes, Article]]) -> Any:
    """The next vector, None at the end. An endpoint that cannot be reached raises OSError, which must not be
    taken for a fault of the disk.
    """
    try:
        return next(vectors, None)
    except (ModelFailed, OSError) as error:
        raise _failure(pending, fault_of(error)) from error


def _encode(vector: Any, article: Article, dim: int) -> tuple[NDArray[np.int16], NDArray[np.float32]]:
    """int16 [1, dim] and its scale."""
    try:
        values = np.asarray(vector, np.float32)
        if values.shape != (dim,):
            raise ValueError(f"向量形状应为 {(dim,)}，实为 {values.shape}。")
        if not values.any():
            raise ValueError("零向量没有方向。")
        return encode_full(values[None])
    except ValueError as error:
        raise _failure([(b"", article)], str(error)) from error


def _failure(pending: Iterable[tuple[bytes, Article]], reason: str) -> BuildFailed:
    articles = [article for _, article in pending]
    first = f"《{articles[0].law_name}》{articles[0].article_number}" if articles else "条文"
    several = f"起的 {len(articles)} 条条文" if len(articles) > 1 else ""
    return BuildFailed(
        f"无法为{first}{several}生成向量：{reason.rstrip('。')}。"
        "已生成的向量已保存，再次构建时从中断处继续；原有索引未受影响。"
    )
