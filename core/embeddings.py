"""Vectors from an OpenAI-compatible embeddings endpoint: an async client, and the same for threads without a loop.

Rule: an answer is taken whole or not at all. Each text has exactly one vector, all have one length, and every number is
finite as float32; whatever else comes is an UpstreamError.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from cg_rag.core.blocking import BlockingClient, Stopper
from cg_rag.core.json_call import CallSettings, JsonCaller, sendable
from cg_rag.core.json_parts import EncodedBody, encode_body
from cg_rag.core.upstream_errors import UpstreamBroken, stream_error
from cg_rag.core.upstream_session import url_of

MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
# JSON can take twenty times its bytes once parsed, so few texts get little room: 8192 numbers of 64 bytes a text.
_BYTES_PER_TEXT: Final = 512 * 1024
_SPARE_BYTES: Final = 1024 * 1024
_MAX_FLOAT32: Final = 3.4028234663852886e38  # IEEE 754; beyond it a float32 is infinite


@dataclass(frozen=True, slots=True)
class EmbeddingsSettings(CallSettings):
    """`endpoint` is the base URL (`…/v1`), or the whole one when it ends in /embeddings."""

    name: str = "embedding"


class EmbeddingsClient:
    """One model at one endpoint, for use in the loop of `session`."""

    def __init__(self, settings: EmbeddingsSettings, session: aiohttp.ClientSession) -> None:
        self._settings = settings
        self._caller = JsonCaller(settings, session, url_of(settings.endpoint, "/embeddings"))

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector per text, in their order, as the model made it. No text, no request. Raises UpstreamError.

        A lone surrogate, which JSON cannot carry, is sent as "?".
        """
        if not texts:
            return []
        body = self._encode(texts)
        ends = asyncio.get_running_loop().time() + self._settings.timeout_seconds
        num_texts = len(texts)
        return await self._caller.call(
            body, lambda told: parse_vectors(told, num_texts), max_answer_bytes(num_texts), ends
        )

    def _encode(self, texts: Sequence[str]) -> EncodedBody:
        sent = [sendable(text) for text in texts]
        return encode_body({"model": self._settings.model, "input": sent, "encoding_format": "float"})


class BlockingEmbeddings(BlockingClient):
    """`EmbeddingsClient` as a function for many threads at once."""

    def __init__(self, settings: EmbeddingsSettings) -> None:
        super().__init__(settings, "embeddings")
        self._embeddings = settings

    def __call__(self, texts: list[str], token: Stopper | None = None) -> list[list[float]]:
        """What `EmbeddingsClient.embed` gives, and raises with what `BlockingClient.run` raises."""
        if not texts:
            return []
        return self.run(lambda session: EmbeddingsClient(self._embeddings, session).embed(texts), token)


def max_answer_bytes(num_texts: int) -> int:
    """How many bytes of an answer to so many texts are read."""
    return min(MAX_ANSWER_BYTES, _SPARE_BYTES + num_texts * _BYTES_PER_TEXT)


def parse_vectors(told: Any, num_texts: int) -> list[list[float]]:
    """The vectors of `{"data": [{"index", "embedding"}, …]}` by their index, whatever order they come in.

    Raises UpstreamBroken("malformed") unless there is exactly one for each index below `num_texts`, all of one length
    and of numbers that a float32 can hold, and what `stream_error` says for an error object.
    """
    if not isinstance(told, dict):
        raise UpstreamBroken("malformed")
    if told.get("error"):
        raise stream_error(told["error"])
    vectors = _by_index(told.get("data"), num_texts)
    if len({len(vector) for vector in vectors}) != 1:
        raise UpstreamBroken("malformed")
    return vectors


def _by_index(data: Any, num_texts: int) -> list[list[float]]:
    if not isinstance(data, list) or len(data) != num_texts:
        raise UpstreamBroken("malformed")
    found = dict(_indexed(entry) for entry in data)
    if found.keys() != set(range(num_texts)):
        raise UpstreamBroken("malformed")
    return [found[index] for index in range(num_texts)]


def _indexed(entry: Any) -> tuple[int, list[float]]:
    if not isinstance(entry, dict):
        raise UpstreamBroken("malformed")
    index, numbers = entry.get("index"), entry.get("embedding")
    # `type`, not isinstance: true is no number here.
    if type(index) is not int or not isinstance(numbers, list) or not numbers:
        raise UpstreamBroken("malformed")
    if not set(map(type, numbers)) <= {int, float}:
        raise UpstreamBroken("malformed")
    if not all(map(math.isfinite, numbers)) or max(map(abs, numbers)) > _MAX_FLOAT32:
        raise UpstreamBroken("malformed")
    return index, list(map(float, numbers))
