"""An embedder whose vectors follow from the text alone, so that a test can compute them a second time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cg_rag.index.embedder import CallableEmbedder

DIM = 8


def vector_of(text: str, dim: int = DIM) -> NDArray[np.float32]:
    """float32 [dim] of length 1."""
    seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
    vector = np.random.default_rng(seed).standard_normal(dim)
    return (vector / np.sqrt(vector @ vector)).astype(np.float32)


class ToyModel:
    """Remembers the texts that it was given; `before` is called with how many there were until now."""

    def __init__(self, dim: int = DIM, before: Callable[[int], Any] | None = None) -> None:
        self.texts: list[str] = []
        self.dim = dim
        self._before = before

    def __call__(self, texts: list[str]) -> NDArray[np.float32]:
        if self._before is not None:
            self._before(len(self.texts))
        self.texts += texts
        return np.stack([vector_of(text, self.dim) for text in texts])


def toy_embedder(model: ToyModel | None = None, name: str = "toy", batch: int = 1) -> CallableEmbedder:
    model = model or ToyModel()
    return CallableEmbedder(model, name=name, dim=model.dim, batch=batch)
