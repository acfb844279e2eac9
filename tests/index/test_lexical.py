"""The fast search beside a slow one that keeps dicts and adds in plain Python."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cg_rag.index import lexical
from cg_rag.index.lexical import LexicalArrays, LexicalSearcher, term_key, terms

Ranges = Sequence[tuple[int, int]]
TEXT = st.text("安全生产脚手架 GB12.0，", max_size=20)
DIVISOR = lexical.IMPACT_LEVELS * lexical.IDF_SCALE


class SlowIndex:
    """BM25 over dict postings. `quantised` uses the same integers as the index, otherwise plain floats."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.num_rows = len(texts)
        counts = [Counter(terms(text)) for text in texts]
        self.lengths = [sum(count.values()) for count in counts]
        self.average = max(1.0, sum(self.lengths) / max(1, self.num_rows))
        self.postings: dict[str, dict[int, int]] = {}
        for row, count in enumerate(counts):
            for term, frequency in count.items():
                self.postings.setdefault(term, {})[row] = frequency

    def chosen(self, query: str, expansions: Sequence[str]) -> dict[str, float]:
        """Term -> weight: written terms before added ones, rarest first, as many as there may be."""
        weights = dict.fromkeys(terms(query), 1.0)
        weights |= {
            term: lexical.SINGLE_WEIGHT for term in weights if len(term) == 1 and "\u3400" <= term <= "\u9fff"
        }
        # Word by word: "B" and "0" are two words of the expansions, and no code B0.
        for term in [term for word in expansions for term in terms(word)]:
            if len(term) > 1:
                weights.setdefault(term, lexical.EXPANSION_WEIGHT)
        written = set(terms(query))
        known = [term for term in weights if term in self.postings]
        order = sorted(
            known, key=lambda term: (term not in written, len(self.postings[term]), term_key(term))
        )
        order = order[: lexical.MAX_QUERY_TERMS]
        rare = [term for term in order if 2 * len(self.postings[term]) <= self.num_rows]
        kept = rare if rare and self.num_rows >= lexical.MIN_ROWS_TO_SKIP_COMMON else order
        return {term: weights[term] for term in kept}

    def fraction(self, row: int, frequency: int) -> float:
        norm = lexical.K1 * (1 - lexical.B + lexical.B * self.lengths[row] / self.average)
        return frequency / (frequency + norm)

    def impact(self, term: str, factor: float, row: int, quantised: bool) -> float:
        size = len(self.postings[term])
        idf = math.log(1 + (self.num_rows - size + 0.5) / (size + 0.5))
        weight = idf * factor
        fraction = self.fraction(row, self.postings[term][row])
        if not quantised:
            return weight * fraction * (lexical.K1 + 1)
        return max(1, round(idf * lexical.IDF_SCALE * factor)) * max(
            1, round(fraction * lexical.IMPACT_LEVELS)
        )

    def search(
        self, query: str, ranges: Ranges, k: int, quantised: bool = True, expansions: Sequence[str] = ()
    ) -> list[tuple[int, float]]:
        scores: dict[int, float] = {}
        for term, factor in self.chosen(query, expansions).items():
            for row in self.postings[term]:
                if any(start <= row < stop for start, stop in ranges):
                    scores[row] = scores.get(row, 0) + self.impact(term, factor, row, quantised)
        return sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))[:k]


def search(texts: Sequence[str], query: str, ranges: Ranges | None = None, k: int = 10) -> list[int]:
    rows, scores = LexicalSearcher(LexicalArrays.build(texts)).search(query, ranges or [(0, len(texts))], k)
    assert rows.dtype == np.int64
    assert scores.dtype == np.float64
    return list(rows.tolist())


def assert_same(
    texts: Sequence[str], query: str, ranges: Ranges, k: int, expansions: Sequence[str] = ()
) -> None:
    rows, scores = LexicalSearcher(LexicalArrays.build(texts)).search(query, ranges, k, expansions)
    expected = SlowIndex(texts).search(query, ranges, k, expansions=expansions)
    assert rows.tolist() == [row for row, _ in expected]
    unit = (lexical.K1 + 1) / DIVISOR
    assert scores.tolist() == [score * unit for _, score in expected]


def generated(num_texts: int, seed: int) -> list[str]:
    """Zipf-like text over 3000 characters, lengths 20 .. 300."""
    rng = np.random.default_rng(seed)
    chances = 1 / np.arange(1, 3001)
    chances /= chances.sum()
    sizes = rng.integers(20, 300, num_texts)
    points = rng.choice(3000, sizes.sum(), p=chances) + 0x4E00
    joined = "".join(map(chr, points))
    ends = np.cumsum(sizes)
    return [joined[end - size : end] for end, size in zip(ends, sizes, strict=True)]


@given(st.lists(TEXT, max_size=30), TEXT, st.integers(1, 40))
def test_rows_and_scores_equal_the_slow_search(texts: list[str], query: str, k: int) -> None:
    assert_same(texts, query, [(0, len(texts))], k)


@given(st.lists(TEXT, min_size=12, max_size=30), TEXT, st.integers(0, 5), st.integers(6, 11))
def test_scopes_of_several_ranges_equal_the_slow_search(
    texts: list[str], query: str, start: int, stop: int
) -> None:
    assert_same(texts, query, [(start, 5), (stop, 12)], 5)


@given(st.lists(TEXT, max_size=30), TEXT, st.lists(TEXT, max_size=3))
@example(texts=["B0"], query="", expansions=["B", "0"])
def test_a_search_with_expansions_equals_the_slow_search(
    texts: list[str], query: str, expansions: list[str]
) -> None:
    assert_same(texts, query, [(0, len(texts))], 10, expansions)


def test_a_large_corpus_equals_the_slow_search() -> None:
    texts = generated(2000, seed=1)
    slow, fast = SlowIndex(texts), LexicalSearcher(LexicalArrays.build(texts))
    for query in (texts[17][:15], texts[99][:200], "一丁七"):
        for ranges in ([(0, 2000)], [(3, 700), (1000, 1001), (1500, 1999)]):
            expected = slow.search(query, ranges, 2000)
            for k in (1, 10, 40, 300, 5000):
                rows, _ = fast.search(query, ranges, k)
                assert rows.tolist() == [row for row, _ in expected[:k]]


def test_one_byte_per_posting_keeps_the_ten_best_of_float_bm25() -> None:
    texts = generated(3000, seed=2)
    slow, fast = SlowIndex(texts), LexicalSearcher(LexicalArrays.build(texts))
    shared = 0
    for text in texts[:100]:
        query = text[3:18]
        exact = slow.search(query, [(0, 3000)], 10, quantised=False)
        shared += len({row for row, _ in exact} & set(fast.search(query, [(0, 3000)], 10)[0].tolist()))
    assert shared >= 990


@given(st.lists(st.text(st.characters(exclude_categories=()), max_size=30), max_size=8))
def test_the_index_holds_exactly_the_terms_of_its_texts(texts: list[str]) -> None:
    arrays = LexicalArrays.build(texts)
    expected = {(term_key(term), row) for row, text in enumerate(texts) for term in terms(text)}
    keys = np.repeat(arrays.keys, np.diff(arrays.indptr)).tolist()
    assert sorted(zip(keys, arrays.rows.tolist(), strict=True)) == sorted(expected)
    assert len(keys) == len(expected)
    assert arrays.keys.tolist() == sorted(set(arrays.keys.tolist()))


def test_equal_scores_are_ordered_by_row() -> None:
    assert search(["安全网", "脚手架", "安全网", "安全网"], "安全网") == [0, 2, 3]


def test_only_articles_that_share_a_term_are_returned() -> None:
    assert search(["安全网", "脚手架", "模板"], "脚手架塔吊", k=3) == [1]
    assert search(["安全网", "脚手架"], "塔吊") == []


@pytest.mark.parametrize("query", ["", " ", "，。", "\u200b"])
def test_a_query_without_terms_finds_nothing(query: str) -> None:
    assert search(["安全网"], query) == []


def test_an_empty_corpus_and_an_empty_scope_find_nothing() -> None:
    assert search([], "安全") == []
    assert search(["安全"], "安全", [(0, 0)]) == []


def test_k_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="收到 0"):
        search(["安全"], "安全", k=0)


def test_an_article_outside_the_scope_never_comes_back() -> None:
    texts = ["安全网"] * 10
    assert search(texts, "安全网", [(2, 4), (7, 8)]) == [2, 3, 7]


def test_a_term_of_every_article_still_answers_when_it_is_all_there_is() -> None:
    assert search(["安全"] * 1500, "安全", k=3) == [0, 1, 2]


def test_a_term_of_most_articles_is_left_out_beside_a_rarer_one() -> None:
    texts = ["安 全"] * 1500 + ["安 网"]
    assert search(texts, "安网") == [1500]


def test_a_small_corpus_leaves_no_term_out() -> None:
    assert search(["安 全", "安 全", "安 网"], "安网") == [2, 0, 1]


def test_a_query_of_too_many_terms_keeps_the_rarest() -> None:
    characters = [chr(0x4E00 + i) for i in range(600)]
    texts = [" ".join(characters), " ".join(characters[:100]), "安全"]
    assert_same(texts, " ".join(characters), [(0, 3)], 3)
    scores = LexicalSearcher(LexicalArrays.build(texts)).search(" ".join(characters), [(0, 3)], 3)[1]
    assert len(scores) == 2
    assert scores[0] > 10 * scores[1]


def test_an_added_word_counts_less_than_the_same_word_written() -> None:
    searcher = LexicalSearcher(LexicalArrays.build(["塔吊", "起重机", "围墙"]))
    written = searcher.search("塔吊 起重机", [(0, 3)], 3)
    added = searcher.search("塔吊", [(0, 3)], 3, ["起重机"])
    assert sorted(written[0].tolist()) == added[0].tolist() == [0, 1]
    assert added[1][1] < lexical.EXPANSION_WEIGHT * written[1].max() + 1e-9


def test_adding_what_is_written_already_changes_nothing() -> None:
    searcher = LexicalSearcher(LexicalArrays.build(["塔吊", "起重机", "起重吊装"]))
    plain, added = (searcher.search("起重机", [(0, 3)], 3, words) for words in ((), ["起重机", "起重"]))
    assert plain[0].tolist() == added[0].tolist()
    assert plain[1].tolist() == added[1].tolist()


def test_added_words_never_push_written_terms_over_the_bound() -> None:
    written = " ".join(chr(0x4E00 + i) for i in range(600))
    rare = ["围墙", "渣土", "泥浆"]
    searcher = LexicalSearcher(LexicalArrays.build([written, *rare, "围墙"]))
    assert searcher.search(written, [(0, 5)], 5, rare)[0].tolist() == [0]


def test_added_words_of_a_large_corpus_equal_the_slow_search() -> None:
    texts = generated(2000, seed=5)
    slow, fast = SlowIndex(texts), LexicalSearcher(LexicalArrays.build(texts))
    for query, expansions in ((texts[3][:15], [texts[7][:6], texts[8][:4]]), ("一", ["一丁七", "丁"])):
        rows, scores = fast.search(query, [(0, 2000)], 50, expansions)
        expected = slow.search(query, [(0, 2000)], 50, expansions=expansions)
        assert rows.tolist() == [row for row, _ in expected]
        assert scores.tolist() == [score * ((lexical.K1 + 1) / DIVISOR) for _, score in expected]


def test_the_order_of_the_query_and_repeated_terms_do_not_matter_for_characters() -> None:
    texts = generated(200, seed=3)
    searcher = LexicalSearcher(LexicalArrays.build(texts))
    there = searcher.search("一 丁 七 三", [(0, 200)], 50)
    back = searcher.search("三 七 七 丁 一 一", [(0, 200)], 50)
    assert there[0].tolist() == back[0].tolist()
    assert there[1].tolist() == back[1].tolist()


def test_threads_that_share_a_searcher_get_the_same_answers() -> None:
    texts = generated(2000, seed=4)
    searcher = LexicalSearcher(LexicalArrays.build(texts))
    queries = [text[:20] for text in texts[:40]]

    def ask(query: str) -> list[int]:
        return list(searcher.search(query, [(0, 2000)], 20)[0].tolist())

    alone = [ask(query) for query in queries]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, queries)) == alone


def test_read_only_mapped_arrays_give_the_same_answers(tmp_path: Path) -> None:
    arrays = LexicalArrays.build(["安全网", "GB55023 脚手架", "脚手架"])
    parts: dict[str, Any] = {}
    for name in ("keys", "indptr", "rows", "impacts"):
        values = getattr(arrays, name)
        values.tofile(tmp_path / name)
        parts[name] = np.memmap(tmp_path / name, values.dtype, "r")
    mapped = LexicalSearcher(replace(arrays, **parts))
    assert mapped.search("gb 55023", [(0, 3)], 5)[0].tolist() == [1]
    assert mapped.search("脚手架", [(0, 3)], 5)[0].tolist() == [2, 1]


def test_rows_above_65535_take_four_bytes_and_are_found() -> None:
    texts = ["安全"] * 65536 + ["脚手架"]
    arrays = LexicalArrays.build(texts)
    assert arrays.rows.dtype == np.uint32
    assert LexicalSearcher(arrays).search("脚手架", [(0, 65537)], 5)[0].tolist() == [65536]
    assert LexicalArrays.build(texts[:10]).rows.dtype == np.uint16


def test_building_reports_progress_and_takes_any_iterable() -> None:
    seen: list[int] = []
    arrays = LexicalArrays.build((f"条文 {i}" for i in range(2500)), seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 2500
    assert arrays.meta["num_rows"] == 2500
    assert LexicalSearcher(arrays).search("2499", [(0, 2500)], 5)[0].tolist() == [2499]


def test_keys_of_known_terms_never_change() -> None:
    assert term_key("安") == 0x5B89
    assert term_key("安全") == 0x5B89 << 21 | 0x5168
    assert term_key("gb55023") == 0xF1A8D3854DD6A5AD
