from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from cg_rag.index.onnx import kernel_class
from cg_rag.index.scan import SLAB_ROWS, Kernel, NumpyKernel, OnnxKernel, adds_exactly
from cg_rag.index.vectors import SCAN_LEVELS

DIM = 48
EXACT_CPUS = ("vnni", "neon-dotprod")


def make_scan(num_rows: int, dim: int = DIM) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    source = np.random.default_rng(num_rows)
    scan = source.integers(-SCAN_LEVELS, SCAN_LEVELS + 1, (num_rows, dim), np.int8)
    return scan, source.uniform(0.0001, 0.01, num_rows).astype(np.float32)


def make_levels(num_queries: int, dim: int = DIM) -> NDArray[np.float32]:
    source = np.random.default_rng(num_queries)
    return source.integers(-SCAN_LEVELS, SCAN_LEVELS + 1, (num_queries, dim)).astype(np.float32)


def slow_scores(
    scan: NDArray[np.int8],
    scales: NDArray[np.float32],
    levels: NDArray[np.float32],
    ranges: list[tuple[int, int]],
) -> NDArray[np.float32]:
    rows = np.array([row for start, stop in ranges for row in range(start, stop)], np.int64)
    dots = levels.astype(np.int64) @ scan[rows].astype(np.int64).T
    return dots.astype(np.float32) * scales[rows]


SPANS = st.lists(st.integers(0, 700), max_size=12, unique=True).map(
    lambda bounds: list(zip(sorted(bounds)[::2], sorted(bounds)[1::2], strict=False))
)


@settings(max_examples=100)
@given(SPANS, st.integers(1, 19), st.sampled_from([1, 64 * 4 * DIM, 128 * 4 * DIM, 1 << 20]))
def test_blocks_of_any_size_give_the_bits_of_the_slow_twin(
    ranges: list[tuple[int, int]], num_queries: int, block_bytes: int
) -> None:
    scan, scales = make_scan(700)
    levels = make_levels(num_queries)
    found = NumpyKernel(scan, scales, block_bytes).score(levels, ranges)
    assert found.tobytes() == slow_scores(scan, scales, levels, ranges).tobytes()


@pytest.mark.skipif(kernel_class() not in EXACT_CPUS, reason="this CPU cuts off pairs of products")
@pytest.mark.parametrize("num_rows", [0, 1, SLAB_ROWS, SLAB_ROWS + 1, 2 * SLAB_ROWS + 77])
def test_both_kernels_give_the_same_bits(num_rows: int) -> None:
    scan, scales = make_scan(num_rows)
    kernel = OnnxKernel(scan, scales)
    assert kernel.is_exact
    bounds = [0, num_rows // 3, num_rows // 2, num_rows]
    for ranges in ([(0, num_rows)], [(bounds[0], bounds[1]), (bounds[2], bounds[3])], []):
        levels = make_levels(3)
        expected = NumpyKernel(scan, scales).score(levels, ranges)
        assert kernel.score(levels, ranges).tobytes() == expected.tobytes()


@pytest.mark.parametrize("kind", [NumpyKernel, OnnxKernel])
def test_the_highest_levels_are_added_without_loss_at_a_width_of_1024(kind: type[NumpyKernel]) -> None:
    scan = np.full((70, 1024), SCAN_LEVELS, np.int8)
    kernel: Kernel = kind(scan, np.ones(70, np.float32))
    if getattr(kernel, "is_exact", True):
        levels = np.full((1, 1024), SCAN_LEVELS, np.float32)
        assert kernel.score(levels, [(0, 70)]).tolist() == [[float(1024 * 127 * 127)] * 70]


def test_products_that_were_cut_off_at_16_bits_are_noticed() -> None:
    scan, _ = make_scan(50)
    shifted = np.full(DIM, SCAN_LEVELS + 128, np.int64)
    products = scan.astype(np.int64) * shifted
    pairs = products[:, ::2] + products[:, 1::2]
    shift_back = 128 * scan.sum(axis=1, dtype=np.int64)
    whole = (pairs.sum(axis=1) - shift_back).astype(np.int32)
    cut_off = (np.clip(pairs, -32768, 32767).sum(axis=1) - shift_back).astype(np.int32)
    assert adds_exactly(scan, [whole[:20], whole[20:]])
    assert not adds_exactly(scan, [cut_off[:20], cut_off[20:]])
