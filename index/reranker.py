"""How well an article answers a question, read together: by an ONNX cross-encoder, or by a function that is handed in.

Rule: a model's answer is taken whole or not at all. Scores are finite and in 0..1, or the call fails with the model's
name; a score that an endpoint leaves out is None, and what becomes of it is up to whoever asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from cg_rag.index.article_text import ARTICLE_NAMES, break_control_tokens, fill_article
from cg_rag.index.beside import SPARE
from cg_rag.index.corpus import Article
from cg_rag.index.embedder import digest_parts
from cg_rag.index.external_data import list_external_files
from cg_rag.index.model_errors import ModelFailed, ModelInvalid
from cg_rag.index.model_folder import (
    SETTINGS_FILE,
    ModelFolder,
    Template,
    check_range,
    parse_settings,
)
from cg_rag.index.onnx import Array, CancelToken, OnnxSession
from cg_rag.index.pairs import PairTemplate, PairTokenizer
from cg_rag.index.tokenizer import Encoded

OutputKind = Literal["logit", "no_yes", "token_logits"]
OUTPUT_AXES: dict[OutputKind, int] = {"logit": 2, "no_yes": 2, "token_logits": 3}

# Between two batches a caller who left is noticed without waiting for the runtime.
MAX_PAIRS = 8
# Logits of a whole vocabulary: 512 tokens of Qwen3 are 300 MB for one pair, so those go one by one.
MAX_LOGITS = 1 << 25
LARGE_VOCABULARY = 200_000
MIN_BATCHES_TO_SHARE = 6


@dataclass(frozen=True, slots=True)
class PairScore:
    """`score` is in 0..1. `value` orders the same way without running into the ends: the logit where there is one."""

    score: float
    value: float


class Reranker(Protocol):
    """What ranking needs. `is_remote`: no processor of this machine works for it."""

    name: str
    fingerprint: str
    is_remote: bool

    def score(
        self, query: str, articles: Sequence[Article], cancel: CancelToken | None = None
    ) -> Sequence[PairScore | None]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class RerankerSettings:
    """cg_rag_model.json of a reranker, beside `sha256`.

    `output`: what the graph gives for a pair. logit: [batch, 1]; no_yes: [batch, 2], logits of no and yes;
    token_logits: [batch, length, vocabulary], of which `no_id` and `yes_id` at the last token count. `sigmoid` is false
    where a logit output is a probability already. `pair_template`: {query}, {document}, {instruction} for models that
    are asked in words, null for the tokenizer's own pair. `document_template`: as `passage_template` of an embedder;
    `compact` leaves out 《》 in names and white space in contents. `query_chars`, `document_chars`: cut before
    tokenising. `batch`: pairs in one call, 1 for dynamic int8.
    """

    kind: Literal["reranker"]
    name: str
    file: str
    tokenizer: str
    output: OutputKind
    max_tokens: int
    document_template: str
    compact: bool = False
    pair_template: str | None = None
    instruction: str = ""
    sigmoid: bool = True
    no_id: int | None = None
    yes_id: int | None = None
    query_chars: int = 2000
    document_chars: int = 8192
    padding_side: Literal["left", "right"] = "right"
    batch: int = 1

    def __post_init__(self) -> None:
        check_range("max_tokens", self.max_tokens, 8, 8192)
        check_range("batch", self.batch, 1, MAX_PAIRS)
        check_range("query_chars", self.query_chars, 1, 65536)
        check_range("document_chars", self.document_chars, 1, 65536)
        ids = [value for value in (self.no_id, self.yes_id) if value is not None]
        if len(ids) != (2 if self.output == "token_logits" else 0) or any(value < 0 for value in ids):
            raise ValueError("no_id 与 yes_id 只在 output 为 token_logits 时给出，且须同时给出")
        if not self.sigmoid and self.output != "logit":
            raise ValueError("sigmoid 为 false 只用于 output 为 logit")
        self.templates()

    def templates(self) -> tuple[Template, PairTemplate | None]:
        """Of the document, of the pair. Raises ValueError (Chinese)."""
        document = Template.parse(self.document_template, ARTICLE_NAMES)
        if not document.uses("contents"):
            raise ValueError("document_template 须含 {contents}")
        if self.pair_template is None:
            return document, None
        return document, PairTemplate.parse(self.pair_template, self.instruction)


@dataclass(slots=True)
class _Failure:
    """Why the pieces of one computation are not to go on."""

    error: BaseException | None = None

    def check(self) -> None:
        if self.error is not None:
            raise self.error


class OnnxReranker:
    """The model of one folder. Safe to use from several threads; everything here blocks."""

    is_remote = False

    def __init__(self, model_dir: Path, threads: int = 1, shared: Path | None = None) -> None:
        """Checks digests, then opens; what the folder lacks is looked for in `shared`. ModelMissing, or ModelInvalid
        with one sentence."""
        folder = ModelFolder.open(model_dir, "reranker", shared)
        self.settings = parse_settings(RerankerSettings, folder.raw, str(model_dir / SETTINGS_FILE))
        model, tokenizer = folder.find_file(self.settings.file), folder.find_file(self.settings.tokenizer)
        folder.check_digests([model, tokenizer, *list_external_files(model)])
        self.name = self.settings.name
        self.fingerprint = digest_parts("reranker", folder.fingerprint)
        self._document, pair = self.settings.templates()
        self._tokenizer = PairTokenizer(tokenizer, self.settings.max_tokens, pair)
        self._session = OnnxSession(model, threads=threads, preferred=("logits",))
        self._uses_one_processor = threads == 1
        self._check_output()

    def score(
        self, query: str, articles: Sequence[Article], cancel: CancelToken | None = None
    ) -> list[PairScore]:
        """One score for each article. Raises Cancelled, also in the middle of a computation, and ModelFailed."""
        token = cancel or CancelToken()
        asked = self._tokenizer.neutralise(query[: self.settings.query_chars])
        texts = [self.document_text(article) for article in articles]
        batches = list(self._batches(self._tokenizer.encode_pairs(asked, texts)))
        failure = _Failure()
        try:
            return [self._score(logit) for logit in self._logits(batches, token, failure)]
        finally:
            failure.error = None  # it and its traceback would hold each other

    def document_text(self, article: Article) -> str:
        """What is read of an article, control tokens broken up."""
        limit = self.settings.document_chars
        # Cleaning costs by the character, and little of a long text is ever read.
        shown = replace(article, contents=article.contents[: 4 * limit])
        return fill_article(self._document, shown, self._tokenizer.neutralise, self.settings.compact)[:limit]

    def close(self) -> None:
        """Nothing to do: the runtime's memory goes with the object."""

    def _batches(self, pairs: Sequence[Encoded]) -> Iterator[Sequence[Encoded]]:
        start = 0
        while start < len(pairs):
            batch = pairs[start : start + self.settings.batch]
            batch = batch[: self._max_rows(max(len(pair) for pair in batch))]
            start += len(batch)
            yield batch

    def _logits(
        self, batches: Sequence[Sequence[Encoded]], token: CancelToken, failure: _Failure
    ) -> list[float]:
        """In order. Half of them on another processor while that has nothing to do: what is in one batch, and so every
        number, is the same either way. Whatever ends one half ends the other before its next batch."""
        try:
            if len(batches) >= MIN_BATCHES_TO_SHARE and self._uses_one_processor:
                half = len(batches) // 2
                first, second = SPARE.both(
                    lambda: self._logits(batches[:half], token, failure),
                    lambda: self._logits(batches[half:], token, failure),
                )
                return first + second
            logits: list[float] = []
            for batch in batches:
                token.check()
                failure.check()
                arrays = self._tokenizer.pad(batch, self.settings.padding_side)
                output = self._session.run(self._session.build_feeds(*arrays), token)
                logits += self._read(output, arrays[1])
            return logits
        except BaseException as error:
            failure.error = failure.error or error
            raise

    def _max_rows(self, length: int) -> int:
        cells = self._session.max_cells
        if self.settings.output == "token_logits":
            cells = min(cells, MAX_LOGITS // (self._session.output.shape[-1] or LARGE_VOCABULARY))
        return max(1, cells // length)

    def _read(self, output: Array, mask: Array) -> list[float]:
        """float64 logits of one batch; `mask` [batch, length] says which token is the last real one."""
        logits = self._at_last_token(output, mask) if self.settings.output == "token_logits" else output
        logits = logits.astype(np.float64)
        width = 1 if self.settings.output == "logit" else 2
        if logits.shape != (len(mask), width):
            raise ModelFailed(self.name, f"输出形状应为 {(len(mask), width)}，实为 {logits.shape}")
        # The sigmoid of yes - no is the share of yes between the two.
        found: list[float] = (logits[:, 0] if width == 1 else logits[:, 1] - logits[:, 0]).tolist()
        return found

    def _at_last_token(self, logits: Array, mask: Array) -> Array:
        wanted = [self.settings.no_id, self.settings.yes_id]
        if logits.shape[:2] != mask.shape or logits.shape[2] <= max(value or 0 for value in wanted):
            raise ModelFailed(self.name, f"输出形状 {logits.shape} 与输入 {mask.shape} 或词表不符")
        last = mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1)
        return np.stack([logits[np.arange(len(mask)), last, token_id] for token_id in wanted], axis=1)

    def _score(self, logit: float) -> PairScore:
        if not math.isfinite(logit):
            raise ModelFailed(self.name, "得分不是有限的数")
        score = sigmoid(logit) if self.settings.sigmoid else logit
        return PairScore(checked_score(score, self.name), logit)

    def _check_output(self) -> None:
        shape, kind = self._session.output.shape, self.settings.output
        width = {"logit": 1, "no_yes": 2}.get(kind)
        if len(shape) != OUTPUT_AXES[kind] or (width and shape[-1] not in (None, width)):
            raise ModelInvalid(
                self.name, f"输出 {self._session.output.name} 的形状 {shape} 与 output {kind} 不符"
            )


class CallableReranker:
    """Scores from an endpoint. `call` takes the question and the texts and gives a score in 0..1 for each, None where
    it got none; it blocks, and raises what it likes."""

    is_remote = True

    def __init__(
        self,
        call: Callable[[str, list[str]], Sequence[float | None]],
        *,
        name: str,
        document_template: str = "{law_name}{article_number} {contents}",
        document_chars: int = 4000,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        """Raises ValueError (Chinese) for a broken template."""
        self.name = name
        self.close = close
        self._call = call
        self._document = Template.parse(document_template, ARTICLE_NAMES)
        self._document_chars = document_chars
        self.fingerprint = digest_parts("rerank endpoint", name, document_template, str(document_chars))

    def score(
        self, query: str, articles: Sequence[Article], cancel: CancelToken | None = None
    ) -> list[PairScore | None]:
        """One for each article. Raises Cancelled (before or after the call), ModelFailed, what `call` raises."""
        token = cancel or CancelToken()
        token.check()
        texts = [
            fill_article(self._document, article, break_control_tokens)[: self._document_chars]
            for article in articles
        ]
        scores = self._call(break_control_tokens(query), texts)
        token.check()
        if len(scores) != len(texts):
            raise ModelFailed(self.name, f"应有 {len(texts)} 个得分，实有 {len(scores)} 个")
        return [None if score is None else self._checked(score) for score in scores]

    def _checked(self, score: float) -> PairScore:
        return PairScore(checked_score(score, self.name), float(score))


class BrokenReranker:
    """Stands where a model could not be opened: every call fails with the reason."""

    is_remote = False
    fingerprint = "broken"

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self._reason = reason

    def score(self, query: str, articles: Sequence[Article], cancel: CancelToken | None = None) -> Any:
        raise ModelFailed(self.name, self._reason)

    def close(self) -> None:
        pass


def sigmoid(logit: float) -> float:
    """Never overflows."""
    small = math.exp(-abs(logit))
    return 1 / (1 + small) if logit >= 0 else small / (1 + small)


def checked_score(score: float, name: str) -> float:
    """Raises ModelFailed for what is not in 0..1."""
    if not 0 <= score <= 1:
        raise ModelFailed(name, f"得分 {score} 不在 0..1 之内")
    return float(score)
