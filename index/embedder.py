"""Text to vectors of unit length: by an ONNX model, or by an endpoint that is handed in as a function.

Rule: the vector of a text depends on the text, the model folder and the class of the CPU. It does not depend
on what is computed beside it, so models with dynamic int8 layers keep `batch` at 1.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from cg_rag.index.article_text import ARTICLE_NAMES, break_control_tokens, fill_article
from cg_rag.index.corpus import Article
from cg_rag.index.external_data import list_external_files
from cg_rag.index.model_errors import Cancelled, ModelFailed, ModelInvalid
from cg_rag.index.model_folder import (
    FINGERPRINT_CHARS,
    SETTINGS_FILE,
    ModelFolder,
    Template,
    check_range,
    parse_settings,
)
from cg_rag.index.onnx import Array, CancelToken, OnnxSession, kernel_class, runtime_version
from cg_rag.index.tokenizer import ModelTokenizer

Vector = np.ndarray[Any, np.dtype[np.float32]]
Pooling = Literal["cls", "mean", "last", "none"]

TEXT_VERSION = (
    1  # raise it when neutralising, cutting or filling in changes: stored vectors are then made anew
)
QUERY_NAMES = ("text", "instruction")


class Embedder(Protocol):
    """What index building and search need. Vectors are float32 [dim], finite, of length 1. `uses_one_processor`: while
    one text is embedded, another processor may do another."""

    name: str
    dim: int
    fingerprint: str
    kernel_class: str
    uses_one_processor: bool

    def embed_query(self, text: str, cancel: CancelToken | None = None) -> Vector: ...

    def article_text(self, article: Article) -> str: ...

    def close(self) -> None: ...

    def embed_articles(
        self,
        articles: Iterable[Article],
        progress: Callable[[int], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> Iterator[Vector]: ...


@dataclass(frozen=True, slots=True)
class EmbedderSettings:
    """cg_rag_model.json of an embedder, beside `sha256` (file name -> digest; every file that is opened).

    `file`, `tokenizer`: names inside the folder. `dim`: width of the graph's output. `mrl_dim`: vectors are
    cut to this many leading values, or null. `pooling`: none when the graph pools; an output without a token
    axis is never pooled. `query_template`: {text} and {instruction}; `passage_template`: {law_name},
    {short_law_name} (without 中华人民共和国), {article_number}, {contents}. `eos` is appended when the
    tokenizer does not do so itself. `batch`: texts in one call.
    """

    kind: Literal["embedder"]
    name: str
    file: str
    tokenizer: str
    pooling: Pooling
    dim: int
    max_tokens: int
    query_template: str
    passage_template: str
    normalize: bool = True
    mrl_dim: int | None = None
    padding_side: Literal["left", "right"] = "right"
    eos: str | None = None
    instruction: str = ""
    batch: int = 1

    def __post_init__(self) -> None:
        check_range("dim", self.dim, 1, 8192)
        check_range("max_tokens", self.max_tokens, 8, 8192)
        check_range("batch", self.batch, 1, 64)
        if self.mrl_dim is not None:
            check_range("mrl_dim", self.mrl_dim, 1, self.dim)
            if not self.normalize:
                raise ValueError("设置了 mrl_dim 时 normalize 须为 true")
        Templates.parse(self.query_template, self.passage_template)


@dataclass(frozen=True, slots=True)
class Templates:
    query: Template
    article: Template

    @classmethod
    def parse(cls, query: str, article: str) -> Templates:
        """Raises ValueError when a template has unknown names, or leaves out {text} or {contents}."""
        parsed = cls(Template.parse(query, QUERY_NAMES), Template.parse(article, ARTICLE_NAMES))
        if not parsed.query.uses("text") or not parsed.article.uses("contents"):
            raise ValueError("query_template 须含 {text}，passage_template 须含 {contents}")
        return parsed

    def fill_query(self, text: str, instruction: str, clean: Callable[[str], str]) -> str:
        return self.query.render({"text": clean(text), "instruction": instruction})

    def fill_article(self, article: Article, clean: Callable[[str], str]) -> str:
        return fill_article(self.article, article, clean)


class OnnxEmbedder:
    """The model of one folder. Safe to use from several threads; everything here blocks."""

    def __init__(self, model_dir: Path, threads: int = 1) -> None:
        """Checks digests, then opens. ModelMissing, or ModelInvalid with one sentence."""
        folder = ModelFolder.open(model_dir, "embedder")
        self.settings = parse_settings(EmbedderSettings, folder.raw, str(model_dir / SETTINGS_FILE))
        model, tokenizer = folder.find_file(self.settings.file), folder.find_file(self.settings.tokenizer)
        folder.check_digests([model, tokenizer, *list_external_files(model)])
        self.name = self.settings.name
        self.dim = self.settings.mrl_dim or self.settings.dim
        self.fingerprint = digest_parts("onnx", folder.fingerprint)
        # Another release of the runtime rounds otherwise too (cosine 0.998): its vectors are not mixed either.
        self.kernel_class = f"{kernel_class()}/ort-{runtime_version()}"
        self._templates = Templates.parse(self.settings.query_template, self.settings.passage_template)
        self._tokenizer = ModelTokenizer(tokenizer, self.settings.max_tokens, self.settings.eos)
        self._session = OnnxSession(model, threads=threads)
        self.uses_one_processor = threads == 1
        self._check_output()

    def embed_query(self, text: str, cancel: CancelToken | None = None) -> Vector:
        """float32 [dim]. Raises Cancelled, ModelFailed."""
        filled = self._templates.fill_query(text, self.settings.instruction, self._tokenizer.neutralise)
        vector: Vector = self._embed([filled], cancel)[0]
        return vector

    def article_text(self, article: Article) -> str:
        """What is embedded for an article, control tokens neutralised; its digest tells what is unchanged."""
        return self._templates.fill_article(article, self._tokenizer.neutralise)

    def embed_articles(
        self,
        articles: Iterable[Article],
        progress: Callable[[int], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> Iterator[Vector]:
        """One float32 [dim] per article, in order; `progress` gets the number done.

        Raises Cancelled when `should_stop` says so between two calls, and ModelFailed.
        """
        texts = map(self.article_text, articles)
        return _in_batches(texts, self.settings.batch, self._embed_some, progress, should_stop)

    def close(self) -> None:
        """Nothing to do: the runtime's memory goes with the object."""

    def _embed_some(self, texts: Sequence[str]) -> Array:
        return self._embed(texts, None)

    def _embed(self, texts: Sequence[str], cancel: CancelToken | None) -> Array:
        """float32 [len(texts), dim]; calls of at most `max_cells` tokens, padding counted."""
        encoded = [self._tokenizer.encode(text) for text in texts]
        if not all(encoded):
            raise ModelFailed(self.name, "分词没有得到任何词")
        rows = max(1, self._session.max_cells // max(len(text) for text in encoded))
        groups = [encoded[start : start + rows] for start in range(0, len(encoded), rows)]
        padded = (self._tokenizer.pad(group, self.settings.padding_side) for group in groups)
        return np.concatenate([self._run(*arrays, cancel) for arrays in padded])

    def _run(self, ids: Array, mask: Array, type_ids: Array, cancel: CancelToken | None) -> Array:
        output = self._session.run(self._session.build_feeds(ids, mask, type_ids), cancel)
        if output.shape[: output.ndim - 1] != mask.shape[: output.ndim - 1]:
            raise ModelFailed(self.name, f"输出形状 {output.shape} 与输入 {mask.shape} 不符")
        vectors = pool(output, mask, self.settings.pooling)[:, : self.dim]
        return finish(vectors, len(ids), self.dim, self.settings.normalize, self.name)

    def _check_output(self) -> None:
        shape, pooling = self._session.output.shape, self.settings.pooling
        if len(shape) not in (2, 3) or (len(shape) == 3 and pooling == "none"):
            raise ModelInvalid(
                self.name, f"输出 {self._session.output.name} 的形状 {shape} 与 pooling {pooling} 不符"
            )
        if shape[-1] not in (None, self.settings.dim):
            raise ModelInvalid(self.name, f"输出维度为 {shape[-1]}，设置项 dim 为 {self.settings.dim}")


class CallableEmbedder:
    """Vectors from an endpoint. `call` takes texts and gives float32 [len(texts), dim]; it blocks, and raises
    what it likes. Its answer is checked and brought to length 1.
    """

    kernel_class = "endpoint"
    uses_one_processor = False  # it waits, and its owner may have set how many calls it takes at a time

    def __init__(
        self,
        call: Callable[[list[str]], Array],
        *,
        name: str,
        dim: int,
        query_template: str = "{text}",
        passage_template: str = "{law_name}{article_number} {contents}",
        instruction: str = "",
        batch: int = 32,
        max_chars: int = 8192,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        """Raises ValueError (Chinese) for a broken template."""
        self.name = name
        self.dim = dim
        self._call = call
        self.close = close
        self._templates = Templates.parse(query_template, passage_template)
        self._instruction = instruction
        self._batch = batch
        self._max_chars = max_chars
        self.fingerprint = digest_parts(
            "endpoint", name, str(dim), query_template, passage_template, instruction, str(max_chars)
        )

    def embed_query(self, text: str, cancel: CancelToken | None = None) -> Vector:
        """float32 [dim]. Raises Cancelled (before or after the call), ModelFailed, what `call` raises."""
        token = cancel or CancelToken()
        token.check()
        vector: Vector = self._embed([self._templates.fill_query(text, self._instruction, self._clean)])[0]
        token.check()
        return vector

    def article_text(self, article: Article) -> str:
        """What is sent for an article."""
        return self._templates.fill_article(article, self._clean)

    def embed_articles(
        self,
        articles: Iterable[Article],
        progress: Callable[[int], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> Iterator[Vector]:
        """One float32 [dim] per article, in order; `progress` gets the number done."""
        return _in_batches(map(self.article_text, articles), self._batch, self._embed, progress, should_stop)

    def _clean(self, text: str) -> str:
        return break_control_tokens(text[: self._max_chars])

    def _embed(self, texts: Sequence[str]) -> Array:
        return finish(np.asarray(self._call(list(texts))), len(texts), self.dim, True, self.name)


def pool(output: Array, mask: Array, pooling: Pooling) -> Array:
    """[batch, length, width] -> float32 [batch, width] over real tokens; [batch, width] is pooled already.

    `cls` is the first real token and `last` the last one, whichever side the padding is on.
    """
    hidden = output.astype(np.float32, copy=False)
    if hidden.ndim == 2:
        return hidden
    rows = np.arange(len(hidden))
    if pooling == "cls":
        first: Array = hidden[rows, mask.argmax(axis=1)]
        return first
    if pooling == "last":
        last: Array = hidden[rows, mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1)]
        return last
    weights = mask.astype(np.float32)[:, :, None]
    mean: Array = (hidden * weights).sum(axis=1) / weights.sum(axis=1)
    return mean


def finish(vectors: Array, count: int, dim: int, normalize: bool, name: str) -> Array:
    """float32 [count, dim], each of length 1 when `normalize`. ModelFailed: not finite, zero, other shape."""
    if vectors.shape != (count, dim):
        raise ModelFailed(name, f"向量形状应为 {(count, dim)}，实为 {vectors.shape}")
    exact = vectors.astype(np.float64)
    lengths = np.sqrt(np.sum(exact * exact, axis=1, keepdims=True))
    if not np.isfinite(lengths).all() or not lengths.all():
        raise ModelFailed(name, "向量含有非数值或为零向量")
    return (exact / lengths if normalize else exact).astype(np.float32)


def _in_batches(
    texts: Iterator[str],
    size: int,
    embed: Callable[[Sequence[str]], Array],
    progress: Callable[[int], None] | None,
    should_stop: Callable[[], bool] | None,
) -> Iterator[Vector]:
    done = 0
    while batch := list(islice(texts, size)):
        if should_stop and should_stop():
            raise Cancelled
        yield from embed(batch)
        done += len(batch)
        if progress:
            progress(done)


def digest_parts(*parts: str) -> str:
    text = json.dumps([TEXT_VERSION, *parts], ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:FINGERPRINT_CHARS]
