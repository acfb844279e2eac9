from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from cg_rag.index.vectors import (
    BLOCK_ROWS,
    EXACT_FLOAT32,
    SCAN_LEVELS,
    FullEncoder,
    encode_full,
    encode_queries,
    encode_scan,
    quantise,
    scan_blocks,
)

Floats = NDArray[np.float32]


def unit_vectors(num_rows: int, dim: int, seed: int = 0) -> Floats:
    """Vectors of length 1 around a common direction, as embedding models give them."""
    source = np.random.default_rng(seed)
    values = source.normal(size=dim) + 0.5 * source.normal(size=(num_rows, dim))
    return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)


def test_int16_rows_keep_every_component_within_half_a_step_of_their_row() -> None:
    vectors = unit_vectors(300, 64)
    full, scales = encode_full(vectors)
    assert full.dtype == np.int16
    assert np.abs(full).max(axis=1).tolist() == [32767] * 300
    errors = np.abs(full * scales.astype(np.float64)[:, None] - vectors)
    assert (errors <= 0.501 * scales[:, None]).all()


def test_int8_rows_keep_the_difference_to_the_mean_within_half_a_step_of_their_row() -> None:
    vectors = unit_vectors(300, 64)
    arrays = quantise(vectors, 64)
    rebuilt = arrays.scan * arrays.scales[:, None].astype(np.float64) + arrays.mean
    assert (np.abs(rebuilt - vectors) <= 0.51 * arrays.scales[:, None]).all()
    assert np.allclose(arrays.mean, vectors.mean(axis=0, dtype=np.float64), atol=1e-6)


def test_the_arrays_do_not_depend_on_how_the_rows_arrived() -> None:
    vectors = unit_vectors(2500, 16)
    whole = quantise(vectors, 16)
    assert whole.full is not None
    encoder = FullEncoder(16)
    for cut in np.split(np.arange(2500), [1, 7, 1500, 1501]):
        encoder.add(whole.full[cut], whole.full_scales[cut])
    assert encoder.num_rows == 2500
    assert encoder.mean().tobytes() == whole.mean.tobytes()
    alone = [encode_scan(whole.full[[row]], whole.full_scales[[row]], whole.mean) for row in range(2500)]
    assert np.concatenate([scan for scan, _ in alone]).tobytes() == whole.scan.tobytes()
    assert np.concatenate([scale for _, scale in alone]).tobytes() == whole.scales.tobytes()


def test_an_unchanged_article_keeps_its_int16_row_whatever_is_beside_it() -> None:
    vectors = unit_vectors(50, 16)
    full, scales = encode_full(vectors)
    alone, scale = encode_full(vectors[7:8])
    assert (alone[0] == full[7]).all()
    assert scale[0] == scales[7]


def test_a_stream_is_read_no_further_than_the_block_that_is_asked_for() -> None:
    taken = 0

    def stream() -> Iterator[Floats]:
        nonlocal taken
        for vector in unit_vectors(3 * BLOCK_ROWS, 8):
            taken += 1
            yield vector

    encoder = FullEncoder(8)
    blocks = list(islice(encoder.blocks(stream()), 1))
    assert taken == BLOCK_ROWS
    assert [len(full) for full, _ in blocks] == [BLOCK_ROWS]


def test_the_scan_is_made_a_block_at_a_time() -> None:
    arrays = quantise(unit_vectors(2 * BLOCK_ROWS + 3, 8), 8)
    assert arrays.full is not None
    sizes = [len(scan) for scan, _ in scan_blocks(arrays.full, arrays.full_scales, arrays.mean)]
    assert sizes == [BLOCK_ROWS, BLOCK_ROWS, 3]


def test_zeros_and_equal_rows_have_the_scale_zero_and_no_values_that_are_not_finite() -> None:
    zeros = quantise(np.zeros((3, 8), np.float32), 8)
    assert not zeros.full_scales.any()
    assert not zeros.scan.any()
    equal = quantise(np.tile(unit_vectors(1, 8), (4, 1)), 8)
    assert np.isfinite(equal.scales).all()
    assert (equal.scan == equal.scan[0]).all()


def test_no_rows_give_empty_arrays_of_the_right_width() -> None:
    arrays = quantise([], 8)
    assert arrays.full is not None
    assert (arrays.scan.shape, arrays.full.shape, arrays.mean.shape) == ((0, 8), (0, 8), (8,))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1025.0])
def test_a_vector_that_is_not_finite_or_far_too_long_is_refused(value: float) -> None:
    vectors = unit_vectors(3, 8)
    vectors[1, 2] = value
    with pytest.raises(ValueError, match="有限值"):
        quantise(vectors, 8)


def test_rows_of_another_width_are_refused() -> None:
    with pytest.raises(ValueError, match="形状"):
        FullEncoder(9).add(*encode_full(unit_vectors(2, 8)))


@settings(max_examples=100)
@given(st.sampled_from([1, 2, 384, 1024, 1041, 4096, 8192]), st.integers(0, 2**32 - 1), st.integers(0, 3))
def test_no_product_of_a_query_and_an_int8_row_leaves_exact_float32(dim: int, seed: int, shape: int) -> None:
    source = np.random.default_rng(seed)
    queries = [source.normal(size=dim), source.choice([-1.0, 1.0], dim), np.eye(dim)[0], np.ones(dim) * 1e-30]
    encoded = encode_queries(np.array([queries[shape]], np.float32))
    levels, exact = encoded.levels, encoded.exact
    assert (levels == np.rint(levels)).all()
    assert np.abs(levels).max() <= SCAN_LEVELS
    assert int(np.abs(levels).astype(np.int64).sum()) * SCAN_LEVELS <= EXACT_FLOAT32
    assert int(np.abs(exact).astype(np.int64).sum()) * 32767 <= 1 << 53


def test_a_query_of_usual_width_uses_all_levels() -> None:
    encoded = encode_queries(unit_vectors(20, 384))
    assert np.abs(encoded.levels).max(axis=1).tolist() == [127.0] * 20
    assert np.abs(encoded.exact).max(axis=1).tolist() == [float(1 << 22)] * 20


def test_a_query_is_encoded_the_same_alone_and_among_others() -> None:
    queries = unit_vectors(33, 1500, seed=4)
    together = encode_queries(queries)
    for row, query in enumerate(queries):
        alone = encode_queries(query[None])
        assert (alone.levels[0] == together.levels[row]).all()
        assert (alone.exact[0] == together.exact[row]).all()
        assert alone.units[0] == together.units[row]


def test_exact_levels_times_their_unit_are_the_query() -> None:
    queries = unit_vectors(5, 64)
    encoded = encode_queries(queries)
    assert np.allclose(encoded.exact * encoded.units[:, None], queries, atol=1e-7)


def test_a_query_of_zeros_stays_zeros() -> None:
    encoded = encode_queries(np.zeros((1, 8), np.float32))
    assert not encoded.levels.any()
    assert not encoded.exact.any()
    assert encoded.units.tolist() == [0.0]
