"""BM25 over the terms of text.py, as four NumPy arrays and nothing else.

Rule: every sum is a sum of integers. The impact of a posting is one byte, the weight of a term one integer,
so a score is exact whatever the order, the CPU or the load, and equal scores are ordered by row.

BM25 of article d for the query terms T (each counted once):

    sum over t in T of  w(t) * idf(t) * tf * (k1 + 1) / (tf + k1 * (1 - b + b * |d| / average |d|))
    idf(t) = ln(1 + (N - df + 0.5) / (df + 0.5))
    w(t) = 0.5 for a single Han character, 0.4 for a term of the expansions only, else 1

The fraction lies in 0 .. k1 + 1 and is stored as 1 .. 255; idf follows from the length of the posting list.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cg_rag.index.text import HAN_RANGES, NEVER_IN_WORDS, TOKENISER_VERSION, find_words, normalise, terms

__all__ = ["TOKENISER_VERSION", "LexicalArrays", "LexicalSearcher", "term_key", "terms"]

K1 = 1.5
B = 0.75
# A character inside a run is already told by two pairs. Full weight: R@10 0.750 / MRR@10 0.606 on the site
# questions, half: 0.821 / 0.641, better on either half of them; no difference on STARD (docs/retrieval.md).
SINGLE_WEIGHT = 0.5
# Terms that the query does not hold, only its expansions (site_terms.py). From 0.2 to 0.4 no set of questions
# loses anything; from 0.8 on what was added outweighs what was asked (docs/retrieval.md).
EXPANSION_WEIGHT = 0.4
IMPACT_LEVELS = 255
IDF_SCALE = 1000  # idf 0.001 .. 13 becomes 1 .. 13000

# A packed posting is  term << 22 | row,  a term of Han characters  first << 21 | second  (first may be 0).
_ROW_BITS = 22
_CHAR_BITS = 21
MAX_ROWS = 1 << _ROW_BITS
# Words get numbers above all code points while an index is built, hashes with the top bit set in the index.
_WORD_BASE = 0x110000 << _CHAR_BITS
_WORD_TAG = 1 << 63
_BATCH = 1024  # texts tokenised at a time: a few MB of scratch that stays in the cache

# From this many articles on, terms in more than half of them are left out of a query that has others.
MIN_ROWS_TO_SKIP_COMMON = 1000
# A query of 2000 different characters costs milliseconds, not a walk through the whole index.
MAX_QUERY_TERMS = 512
MAX_POSTINGS = 1 << 20

_BLOCK = 64
_IMPACTS_AT_ONCE = 1 << 14

Points = NDArray[np.uint32]


def term_key(term: str) -> int:
    """The 64-bit key of a term, equal on every machine: packed code points, or a tagged BLAKE2b of a word."""
    first = ord(term[0])
    # Words hold no Han characters, so the first one tells; most are in the one range looked at first.
    if 0x4E00 <= first <= 0x9FFF or any(low <= first <= high for low, high in HAN_RANGES):
        return first if len(term) == 1 else first << _CHAR_BITS | ord(term[1])
    digest = hashlib.blake2b(term.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") | _WORD_TAG


@dataclass(frozen=True, slots=True)
class LexicalArrays:
    """Posting lists in one piece: the list of term i is `rows[indptr[i]:indptr[i + 1]]`, ascending.

    keys     uint64 [V], ascending (term_key)
    indptr   int64 [V + 1]
    rows     uint16 [P], uint32 where there are more than 65536 articles
    impacts  uint8 [P], 1 .. 255: the BM25 fraction in steps of (k1 + 1) / 255, without idf
    meta     JSON-able: tokeniser, k1, b, num_rows, average_terms
    """

    keys: NDArray[np.uint64]
    indptr: NDArray[np.int64]
    rows: NDArray[Any]
    impacts: NDArray[np.uint8]
    meta: dict[str, Any]

    @classmethod
    def build(cls, texts: Iterable[str], progress: Callable[[int], None] | None = None) -> LexicalArrays:
        """Tokenise `texts` (row 0, 1, …); `progress` is told how many are done. ValueError above MAX_ROWS."""
        tokens = _Tokens()
        stream = iter(texts)
        while batch := list(islice(stream, _BATCH)):
            tokens.add(batch)
            if progress is not None:
                progress(tokens.num_rows)
        return _arrays(*tokens.packed(), tokens.lengths())


class _Tokens:
    """Collects every occurrence of every term as packed integers, a batch of texts at a time."""

    def __init__(self) -> None:
        self.num_rows = 0
        self._packed: list[NDArray[np.uint64]] = []
        self._lengths: list[NDArray[np.int64]] = []
        self._word_ids: dict[str, int] = {}
        self._words: list[int] = []
        self._word_rows: list[int] = []

    def add(self, texts: Sequence[str]) -> None:
        if self.num_rows + len(texts) > MAX_ROWS:
            raise ValueError(f"条文数超过上限 {MAX_ROWS}。")
        normal = [normalise(text) for text in texts]
        sizes = np.fromiter(map(len, normal), np.int64, len(normal)) + 1
        joined = "\n".join(normal) + "\n"
        points = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), np.uint32)
        is_han = _is_han(points)
        self._add_han(points, is_han, sizes)
        self._add_words(normal, np.flatnonzero(_may_hold_words(points, is_han, sizes)).tolist())
        self.num_rows += len(texts)

    def _add_han(self, points: Points, is_han: NDArray[np.bool_], sizes: NDArray[np.int64]) -> None:
        places = np.flatnonzero(is_han)
        pairs = places[:-1][np.diff(places) == 1]
        row_of = np.repeat(np.arange(len(sizes), dtype=np.uint64) + np.uint64(self.num_rows), sizes)
        wide = points.astype(np.uint64)
        single = wide[places]
        double = wide[pairs] << np.uint64(_CHAR_BITS) | wide[pairs + 1]
        rows = np.concatenate([row_of[places], row_of[pairs]])
        self._packed.append(np.concatenate([single, double]) << np.uint64(_ROW_BITS) | rows)
        counts = np.bincount((rows - np.uint64(self.num_rows)).astype(np.int64), minlength=len(sizes))
        self._lengths.append(counts)

    def _add_words(self, texts: Sequence[str], offsets: Iterable[int]) -> None:
        for offset in offsets:
            before = len(self._words)
            words = find_words(texts[offset])
            self._words += [self._word_ids.setdefault(word, len(self._word_ids)) for word in words]
            count = len(self._words) - before
            self._word_rows += [self.num_rows + offset] * count
            self._lengths[-1][offset] += count

    def lengths(self) -> NDArray[np.int64]:
        """int64 [N]: terms per article."""
        return np.concatenate([np.empty(0, np.int64), *self._lengths])

    def packed(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """(uint64 [occurrences] unsorted, uint64 [words] the ascending keys that words are numbered by)."""
        hashes = np.array([term_key(word) for word in self._word_ids], np.uint64)
        word_keys, rank = np.unique(hashes, return_inverse=True)
        numbers = rank.astype(np.uint64)[np.array(self._words, np.int64)] + np.uint64(_WORD_BASE)
        words = numbers << np.uint64(_ROW_BITS) | np.array(self._word_rows, np.uint64)
        return np.concatenate([*self._packed, words]), word_keys


def _is_han(points: Points) -> NDArray[np.bool_]:
    return _is_in(points, HAN_RANGES)


def _is_in(points: Points, ranges: Iterable[tuple[int, int]]) -> NDArray[np.bool_]:
    found = np.zeros(len(points), np.bool_)
    for first, last in ranges:
        # Unsigned wrap-around makes one comparison of two.
        found |= points - np.uint32(first) <= np.uint32(last - first)
    return found


def _may_hold_words(points: Points, is_han: NDArray[np.bool_], sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool [len(sizes)]: whether find_words may find anything in texts of so many of `points` each.

    Most articles are Han and punctuation alone, and looking for words in them took a third of the build.
    """
    may = ~(is_han | _is_in(points, NEVER_IN_WORDS))
    return np.logical_or.reduceat(may, np.cumsum(sizes) - sizes)


def _starts(ordered: NDArray[np.uint64]) -> NDArray[np.int64]:
    """int64: where each run of equal values begins, and the length of the array at the end."""
    changes = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    head = np.zeros(min(1, len(ordered)), np.int64)
    return np.concatenate([head, changes, [len(ordered)]])


def _arrays(
    packed: NDArray[np.uint64], word_keys: NDArray[np.uint64], lengths: NDArray[np.int64]
) -> LexicalArrays:
    packed.sort()
    starts = _starts(packed)
    counts = np.diff(starts)
    postings = packed[starts[:-1]]
    rows = (postings & np.uint64(MAX_ROWS - 1)).astype(np.uint16 if len(lengths) <= 1 << 16 else np.uint32)
    numbers = postings >> np.uint64(_ROW_BITS)
    indptr = _starts(numbers)
    keys = numbers[indptr[:-1]]
    is_word = keys >= np.uint64(_WORD_BASE)
    keys[is_word] = word_keys[(keys[is_word] - np.uint64(_WORD_BASE)).astype(np.int64)]
    average = float(lengths.sum()) / max(1, len(lengths))
    impacts = _impacts(counts, rows, lengths, average)
    meta = {
        "tokeniser": TOKENISER_VERSION,
        "k1": K1,
        "b": B,
        "num_rows": len(lengths),
        "average_terms": average,
    }
    return LexicalArrays(keys, indptr, rows, impacts, meta)


def _impacts(
    counts: NDArray[np.int64], rows: NDArray[Any], lengths: NDArray[np.int64], average: float
) -> NDArray[np.uint8]:
    norm = K1 * (1 - B + B * lengths / max(1.0, average))
    impacts = np.empty(len(rows), np.uint8)
    # In one piece, three quarters of the time goes into memory that is touched for the first time.
    for start in range(0, len(rows), _IMPACTS_AT_ONCE):
        part = slice(start, start + _IMPACTS_AT_ONCE)
        fraction = counts[part] / (counts[part] + norm[rows[part]])
        impacts[part] = np.maximum(1, np.rint(fraction * IMPACT_LEVELS))
    return impacts


class LexicalSearcher:
    """Searches arrays that may be read-only and memory-mapped; holds no scratch, so threads share one."""

    def __init__(self, arrays: LexicalArrays) -> None:
        # A slice of a memmap object costs ten times as much as one of the plain array over the same memory.
        self._keys = np.asarray(arrays.keys)
        self._indptr = np.asarray(arrays.indptr)
        self._rows = np.asarray(arrays.rows)
        self._impacts = np.asarray(arrays.impacts)
        self._num_rows = int(arrays.meta["num_rows"])
        self._unit = (float(arrays.meta["k1"]) + 1) / (IMPACT_LEVELS * IDF_SCALE)

    def search(
        self, query: str, ranges: Sequence[tuple[int, int]], k: int, expansions: Iterable[str] = ()
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """(rows int64 [<= k], BM25 scores float64 [<= k]), best first, equal scores by row.

        Only rows of `ranges` (ascending, disjoint, [start, stop)) that share a term with the query, or a pair of
        characters with the words of `expansions`, which count EXPANSION_WEIGHT. ValueError where k < 1.
        """
        if k < 1:
            raise ValueError(f"k 须不小于 1，收到 {k}。")
        lists = self._posting_lists(query, expansions)
        ranges = [(start, stop) for start, stop in ranges if start < stop]
        if not lists or not ranges:
            return np.empty(0, np.int64), np.empty(0, np.float64)
        low, high = ranges[0][0], ranges[-1][1]
        sums = self._sum_impacts(lists, low, high)
        rows, best = _best_of_ranges(sums, low, ranges, k)
        return rows, best * self._unit

    def _posting_lists(self, query: str, expansions: Iterable[str]) -> list[tuple[int, int, int]]:
        """(start, stop, weight) of each term that is searched for: what was written first, rarest first."""
        written = {term_key(term) for term in terms(query)}
        # Single characters of added words are in a third of all articles: they cost most and say least.
        added = {term_key(term) for word in expansions for term in terms(word) if len(term) > 1} - written
        keys = np.array(sorted(written | added), np.uint64)
        places = np.searchsorted(self._keys, keys)
        places = places[places < len(self._keys)]
        keys = keys[: len(places)]
        known = self._keys[places] == keys
        places, keys = places[known], keys[known]
        is_added = [key in added for key in keys.tolist()]
        factors = list(map(_factor, keys.tolist(), is_added))
        starts, stops = self._indptr[places], self._indptr[places + 1]
        chosen = self._choose(stops - starts, np.array(is_added, np.bool_)).tolist()
        spans = list(zip(starts.tolist(), stops.tolist(), factors, strict=True))
        return [
            (start, stop, self._weight(stop - start, factor))
            for start, stop, factor in map(spans.__getitem__, chosen)
        ]

    def _choose(self, sizes: NDArray[np.int64], is_added: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Which posting lists are worth their cost: written before added, rarest first, equal sizes by key."""
        order = np.lexsort((sizes, is_added))[:MAX_QUERY_TERMS]
        ordered = sizes[order]
        skipped = 2 * ordered > self._num_rows
        if self._num_rows < MIN_ROWS_TO_SKIP_COMMON or skipped.all():
            skipped[:] = False
        fits = ~skipped & (np.cumsum(np.where(skipped, 0, ordered)) <= MAX_POSTINGS)
        if not fits.any():
            fits[:1] = True
        return order[fits]

    def _weight(self, size: int, factor: float) -> int:
        idf = math.log(1 + (self._num_rows - size + 0.5) / (size + 0.5))
        return max(1, round(idf * IDF_SCALE * factor))

    def _sum_impacts(self, lists: Sequence[tuple[int, int, int]], low: int, high: int) -> NDArray[np.float64]:
        """float64 [high - low]: whole numbers far below 2**53, so the sums are exact in any order."""
        if (low, high) != (0, self._num_rows):
            lists = list(self._cut(lists, low, high))
        total = sum(stop - start for start, stop, _ in lists)
        rows = np.empty(total, np.intp)
        shares = np.empty(total, np.float64)
        end = 0
        for start, stop, weight in lists:
            begin, end = end, end + stop - start
            rows[begin:end] = self._rows[start:stop]
            np.multiply(self._impacts[start:stop], float(weight), out=shares[begin:end])
        if low:
            rows -= low
        sums = np.bincount(rows, weights=shares, minlength=high - low)
        return sums.astype(np.float64, copy=False)

    def _cut(
        self, lists: Sequence[tuple[int, int, int]], low: int, high: int
    ) -> Iterator[tuple[int, int, int]]:
        bounds = np.array([low, high], np.int64)
        for start, stop, weight in lists:
            first, last = np.searchsorted(self._rows[start:stop], bounds).tolist()
            if first < last:
                yield start + first, start + last, weight


def _factor(key: int, is_added: bool) -> float:
    if is_added:
        return EXPANSION_WEIGHT
    return SINGLE_WEIGHT if key < 1 << _CHAR_BITS else 1.0


def _best_of_ranges(
    sums: NDArray[np.float64], low: int, ranges: Sequence[tuple[int, int]], k: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    if len(ranges) == 1:
        places = _top(sums, k)
        return places + low, sums[places]
    scores = np.concatenate([sums[start - low : stop - low] for start, stop in ranges])
    places = _top(scores, k)
    starts = np.array([start for start, _ in ranges], np.int64)
    firsts = np.cumsum([0] + [stop - start for start, stop in ranges[:-1]])
    owner = np.searchsorted(firsts, places, side="right") - 1
    return places - firsts[owner] + starts[owner], scores[places]


def _top(scores: NDArray[np.float64], k: int) -> NDArray[np.int64]:
    """int64 [<= k]: places of the k highest positive scores, equal ones ascending.

    The k-th highest of the maxima of disjoint groups is a bound that k scores reach: what is below it is out.
    """
    whole = len(scores) // _BLOCK
    if whole > k:
        # Row i + j * whole for all j: a maximum over columns runs in whole vectors, one over rows does not.
        maxima = scores[: whole * _BLOCK].reshape(_BLOCK, whole).max(axis=0)
        bound = np.partition(maxima, whole - k)[whole - k]
        found = np.flatnonzero(scores >= max(bound, 1.0))
    else:
        found = np.flatnonzero(scores)
    values = scores[found]
    if len(found) > 4 * k:
        bound = np.partition(values, len(values) - k)[len(values) - k]
        found = found[values >= bound]
        values = scores[found]
    return found[np.argsort(-values, kind="stable")[:k]]
