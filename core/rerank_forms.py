"""What a rerank request is made of and what its answer means, in the three forms that servers understand. No I/O.

flat       Jina, Cohere v2, vLLM, Xinference, SiliconFlow, llama.cpp, infinity, Zhipu, DashScope's compatible API
dashscope  DashScope's native API
tei        Hugging Face text-embeddings-inference

Rule: a score belongs to the text whose index it names, and to no other; an answer with one wrong index is no answer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from cg_rag.core.upstream_errors import UpstreamBroken, UpstreamEmpty, UpstreamError, stream_error

RerankForm = Literal["flat", "dashscope", "tei"]

# Whole URLs, whatever the form; the second is DashScope's compatible API.
_WHOLE: Final = ("/rerank", "/reranks", "/text-rerank/text-rerank")
_PATHS: Final[Mapping[RerankForm, str]] = {
    "flat": "/rerank",
    "dashscope": "/services/rerank/text-rerank/text-rerank",
    "tei": "/rerank",
}


@dataclass(frozen=True, slots=True)
class RerankLimits:
    """Of one request. `max_tokens` counts the question once for each text, and each text; `max_bytes` is of UTF-8."""

    max_texts: int
    max_tokens: int
    max_bytes: int


# flat: qwen3-rerank, the narrowest that is documented. dashscope: gte-rerank-v2. tei: its own defaults; it truncates
# each text by itself.
LIMITS: Final[Mapping[RerankForm, RerankLimits]] = {
    "flat": RerankLimits(500, 120_000, 2_000_000),
    "dashscope": RerankLimits(500, 30_000, 2_000_000),
    "tei": RerankLimits(32, 1_000_000, 2_000_000),
}
_SPARE_BYTES: Final = 4096  # of a request, for what is not text
_BYTES_PER_TEXT: Final = 64
_HALF_TOKENS: Final = re.compile("[A-Za-z ]")
_RARE: Final = re.compile("[\U00010000-\U0010ffff]")


def rerank_url(endpoint: str, form: RerankForm) -> str:
    """`endpoint` is the base URL (`…/v1`; for `dashscope` `…/api/v1`), or the whole one."""
    base = endpoint.rstrip("/")
    return base if base.endswith(_WHOLE) else base + _PATHS[form]


def make_body(form: RerankForm, model: str, query: str, texts: Sequence[str]) -> dict[str, Any]:
    """The request. It holds only fields that every server of the form takes: Cohere refuses unknown ones."""
    if form == "tei":
        return {"query": query, "texts": list(texts), "truncate": True}
    if form == "dashscope":
        parameters = {"top_n": len(texts), "return_documents": False}
        return {"model": model, "input": {"query": query, "documents": list(texts)}, "parameters": parameters}
    return {"model": model, "query": query, "documents": list(texts), "top_n": len(texts)}


def split_batches(query: str, texts: Sequence[str], limits: RerankLimits) -> list[range]:
    """Which texts go into one request, in order; one that is over a limit all by itself goes alone."""
    query_tokens = estimate_tokens(query)
    room_bytes = limits.max_bytes - _SPARE_BYTES - _num_bytes(query)
    batches: list[range] = []
    tokens = num_bytes = start = 0
    for index, text in enumerate(texts):
        more_tokens, more_bytes = query_tokens + estimate_tokens(text), _num_bytes(text)
        is_full = (
            index - start >= limits.max_texts
            or tokens + more_tokens > limits.max_tokens
            or num_bytes + more_bytes > room_bytes
        )
        if is_full and index > start:
            batches.append(range(start, index))
            tokens, num_bytes, start = 0, 0, index
        tokens += more_tokens
        num_bytes += more_bytes
    return [*batches, range(start, len(texts))] if texts else []


def estimate_tokens(text: str) -> int:
    """Not fewer than the models' tokenizers make of Chinese law: a character is a token at most, Latin words come in
    pieces of two letters and more, rare characters are written in bytes."""
    halves = len(_HALF_TOKENS.findall(text))
    return len(text) - halves + (halves + 1) // 2 + 2 * len(_RARE.findall(text))


def _num_bytes(text: str) -> int:
    """At most: quotes and backslashes take two, and what is beside a text in JSON."""
    return len(text.encode("utf-8", "replace")) + text.count('"') + text.count("\\") + _BYTES_PER_TEXT


def parse_scores(told: Any, num_texts: int) -> list[float | None]:
    """The score of each text as the server gave it, None where it gave none.

    Takes `results`, `output.results`, `data` or a bare array of entries with an index and a score under
    `relevance_score`, `score` or `logit`. Raises UpstreamBroken("malformed") for an index that is no integer below
    `num_texts` or comes twice, for a score that is no finite number and for any other shape, UpstreamEmpty for an
    answer without entries, and what `stream_error` says for an error object.
    """
    scores: list[float | None] = [None] * num_texts
    entries = _find_entries(told)
    if not entries:
        raise UpstreamEmpty("empty")
    for entry in entries:
        index, score = _indexed(entry)
        if not 0 <= index < num_texts or scores[index] is not None:
            raise UpstreamBroken("malformed")
        scores[index] = score
    return scores


def _find_entries(told: Any) -> list[Any]:
    for found in _candidates(told):
        if isinstance(found, list):
            return found
    raise _refusal(told)


def _candidates(told: Any) -> Iterator[Any]:
    yield told
    if isinstance(told, dict) and not told.get("error"):
        output = told.get("output")
        yield told.get("results")
        yield output.get("results") if isinstance(output, dict) else None
        yield told.get("data")


def _refusal(told: Any) -> UpstreamError:
    """What an answer without a list means: the server's word for its failure, or nothing that can be read."""
    if isinstance(told, dict) and told.get("error"):
        return stream_error(told["error"])
    if isinstance(told, dict) and told.get("code") and "message" in told:  # DashScope, Xinference
        return stream_error(told)
    return UpstreamBroken("malformed")


def _indexed(entry: Any) -> tuple[int, float]:
    if not isinstance(entry, dict):
        raise UpstreamBroken("malformed")
    index = entry.get("index")
    given = (entry.get(name) for name in ("relevance_score", "score", "logit"))
    score: Any = next((value for value in given if value is not None), None)
    # `type`, not isinstance: true is no number here.
    if type(index) is not int or type(score) not in (int, float) or not math.isfinite(score):
        raise UpstreamBroken("malformed")
    return index, float(score)


def rescale(scores: Sequence[float | None]) -> list[float | None]:
    """The scores as they are when all lie in 0..1, else the sigmoid of each.

    Scores outside of 0..1 are logits, whose probability the sigmoid is: it keeps their order, and a score goes on
    meaning the same from question to question. Min-max would call the best of a bad lot 1.
    """
    known = [score for score in scores if score is not None]
    if all(0.0 <= score <= 1.0 for score in known):
        return list(scores)
    return [None if score is None else _sigmoid(score) for score in scores]


def _sigmoid(value: float) -> float:
    if value >= 0:
        return 1.0 / (1.0 + math.exp(-value))
    power = math.exp(value)
    return power / (1.0 + power)
