"""Measures the lexical index over a corpus and its questions; prints one table.

    python tests/bench/lexical.py --corpus FILE --queries FILE [--topk 10] [--repeat 20] [--plain] [--peers [--rows N]]

--corpus    JSONL or JSONL.gz: law_name, contents, and id where the questions name ids
--queries   JSONL: query, and `relevant` (a list of ids) for R@10 and MRR@10
--plain     without the law words for site words
--peers     another table instead: bm25s and tantivy beside it, where they are installed, in this process
--rows      with --peers: so many articles; a corpus that has fewer is gone through again in another order

R@10 and MRR@10 are followed by those of the first, third … question and of the second, fourth … one.
Times are CPU time of one process; BLAS is not involved. The first build of the process is the one shown.

Peers get our terms, made before the clock runs, and BM25 with our k1 and b; ours makes its terms while the
clock runs. "index given terms" of a peer is its indexing alone, "build from text" that and making the terms.
Build times are medians of three (one above 50,000 articles); the first of three takes its memory from the system,
the others do not. Query times are of 400 queries, engines take turns after every 20. overlap@10 is the share of our ten best
(by the words of the query alone) that an engine has among its own ten best.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import importlib
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cg_rag.index.lexical import K1, B, LexicalArrays, LexicalSearcher, terms
from cg_rag.index.site_terms import SiteTerms

T = TypeVar("T")
Row = dict[str, Any]
LONGEST_QUERY = 2000
NUM_TIMED = 400
ROUND = 20
NUM_BUILDS = 3
MAX_ROWS_TO_REPEAT = 50_000


def load_jsonl(path: Path) -> list[Row]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def timed(action: Callable[[], T]) -> tuple[float, T]:
    """(milliseconds of CPU, result)"""
    started = time.process_time()
    result = action()
    return (time.process_time() - started) * 1000, result


def judge(ranked: Sequence[str], relevant: set[str]) -> tuple[float, float]:
    """(recall, reciprocal rank) of one answer."""
    hits = [place for place, name in enumerate(ranked, 1) if name in relevant]
    return len(hits) / len(relevant), 1 / hits[0] if hits else 0.0


def name_rows(articles: Sequence[Row]) -> list[str]:
    """Ids; a row without one gets a name that no question can mean."""
    return [str(article.get("id", f"row {row}")) for row, article in enumerate(articles)]


class Search:
    """A query as the retriever searches for it, over all rows."""

    def __init__(self, arrays: LexicalArrays, site_terms: SiteTerms) -> None:
        self._searcher = LexicalSearcher(arrays)
        self._ranges = [(0, int(arrays.meta["num_rows"]))]
        self._site_terms = site_terms

    def __call__(self, query: str, topk: int) -> list[int]:
        rows, _ = self._searcher.search(query, self._ranges, topk, self._site_terms.expand(query))
        found: list[int] = rows.tolist()
        return found


def measure_quality(search: Search, articles: Sequence[Row], queries: Sequence[Row]) -> list[str]:
    names = name_rows(articles)
    known = set(names)
    scores = []
    for query in queries:
        relevant = {str(name) for name in query.get("relevant", ())}
        if relevant & known:
            scores.append(judge([names[row] for row in search(query["query"], 10)], relevant))
    if not scores:
        return ["—", "—"]
    parts = [
        np.mean(scores[first::step], axis=0) for first, step in ((0, 1), (0, 2), (1, 2)) if scores[first:]
    ]
    return [" / ".join(f"{part[column]:.3f}" for part in parts) for column in (0, 1)]


def measure_queries(search: Search, queries: Sequence[Row], topk: int, repeat: int) -> list[str]:
    times = [timed(partial(search, row["query"], topk))[0] for _ in range(repeat) for row in queries]
    return [f"{value:.2f}" for value in np.percentile(times, [50, 95]).tolist()]


def measure_worst(search: Search, articles: Sequence[Row], site_terms: SiteTerms, topk: int) -> str:
    """The slowest of: the most frequent different characters, as many as a query may have, and site words. Median of 20."""
    counts = Counter(char for article in articles for char in article["contents"] if "一" <= char <= "鿿")
    texts = ["".join(char for char, _ in counts.most_common(n)) for n in (250, 500, 1000, LONGEST_QUERY)]
    texts += ["".join(site_terms.law_words)[:LONGEST_QUERY]]
    texts += [(texts[0] + texts[-1])[:LONGEST_QUERY]]
    worst = [np.median([timed(partial(search, text, topk))[0] for _ in range(20)]) for text in texts]
    return f"{max(worst):.1f}"


@dataclass(frozen=True)
class Engine:
    """`build(texts)` -> (ms of indexing given terms or None, ms from text, index).

    `prepare(index, query)` runs before the clock, `search(index, prepared)` under it, `rows(index, found)` after it.
    """

    build: Callable[[Sequence[str]], tuple[float | None, float, Any]]
    prepare: Callable[[Any, str], Any]
    search: Callable[[Any, Any], Any]
    rows: Callable[[Any, Any], list[int]]


def make_terms(texts: Sequence[str]) -> list[list[str]]:
    """One object per different term: twenty million of them are in 100,000 articles."""
    return [[sys.intern(term) for term in terms(text)] for text in texts]


def unique_terms(index: object, query: str) -> list[str]:
    return sorted(set(terms(query)))


def build_ours(texts: Sequence[str], site_terms: SiteTerms) -> tuple[None, float, Search]:
    spent, arrays = timed(lambda: LexicalArrays.build(texts))
    return None, spent, Search(arrays, site_terms)


def ours(site_terms: SiteTerms) -> Engine:
    return Engine(
        partial(build_ours, site_terms=site_terms),
        lambda index, query: query,
        lambda index, query: index(query, 10),
        lambda index, found: list(found),
    )


def build_bm25s(
    texts: Sequence[str], backend: str, tokenise: Callable[[Sequence[str]], Any]
) -> tuple[float, float, Any]:
    module = importlib.import_module("bm25s")
    index = module.BM25(k1=K1, b=B, method="lucene", backend=backend)
    spent_tokens, tokens = timed(lambda: tokenise(texts))
    spent_index, _ = timed(lambda: index.index(tokens, show_progress=False))
    return spent_index, spent_tokens + spent_index, index


def search_bm25s(index: Any, query: Any) -> Any:
    return index.retrieve([query], k=10, show_progress=False, n_threads=0).documents[0]


def bm25s_engine(backend: str = "numpy") -> Engine:
    for name in ("bm25s", backend):
        importlib.import_module(name)
    build = partial(build_bm25s, backend=backend, tokenise=make_terms)
    return Engine(build, unique_terms, search_bm25s, lambda index, found: found.tolist())


def bm25s_as_it_comes() -> Engine:
    """Its own tokeniser: every run of two and more letters is a word, so a clause of Chinese is one word."""
    tokenise = partial(importlib.import_module("bm25s").tokenize, show_progress=False)
    return replace(
        bm25s_engine(),
        build=partial(build_bm25s, backend="numpy", tokenise=tokenise),
        prepare=lambda index, query: tokenise([query], return_ids=False)[0],
    )


def build_tantivy(texts: Sequence[str]) -> tuple[float, float, Any]:
    tantivy = importlib.import_module("tantivy")
    fields = tantivy.SchemaBuilder().add_integer_field("row", fast=True)
    schema = fields.add_text_field("body", tokenizer_name="whitespace", index_option="freq").build()
    spent_terms, lines = timed(lambda: [" ".join(terms(text)) for text in texts])

    def add() -> Any:
        index = tantivy.Index(schema)
        writer = index.writer(1_000_000_000, 1)  # one thread, one segment
        for row, line in enumerate(lines):
            writer.add_document(tantivy.Document(row=row, body=line))
        writer.commit()
        writer.wait_merging_threads()
        index.reload()
        return index.searcher()

    spent_index, searcher = timed(add)
    return spent_index, spent_terms + spent_index, (tantivy, schema, searcher)


def search_tantivy(index: Any, words: list[str]) -> Any:
    tantivy, schema, searcher = index
    parts = [(tantivy.Occur.Should, tantivy.Query.term_query(schema, "body", word, "freq")) for word in words]
    # Not counting what matches lets it pass over most of it.
    return searcher.search(tantivy.Query.boolean_query(parts), 10, count=False)


def tantivy_engine() -> Engine:
    importlib.import_module("tantivy")
    return Engine(
        build_tantivy,
        unique_terms,
        search_tantivy,
        lambda index, found: index[2].fast_field_values("row", [address for _, address in found.hits]),
    )


PeerTable = dict[str, dict[str, float | None]]
OURS, OURS_PLAIN, BM25S, BM25S_NUMBA, TANTIVY = "ours", "ours, plain", "bm25s", "bm25s (numba)", "tantivy"
ENGINES: dict[str, Callable[[], Engine]] = {
    OURS: lambda: ours(SiteTerms.load()),
    OURS_PLAIN: lambda: ours(SiteTerms.of(())),
    BM25S: bm25s_engine,
    BM25S_NUMBA: lambda: bm25s_engine("numba"),
    TANTIVY: tantivy_engine,
    "bm25s, own tokeniser": bm25s_as_it_comes,
}


def open_engines() -> Iterator[tuple[str, Engine]]:
    for name, opener in ENGINES.items():
        try:
            yield name, opener()
        except ImportError as error:
            print(f"{name}: {error}", file=sys.stderr)


def repeat_rows(articles: Sequence[Row], count: int, seed: int = 1) -> list[Row]:
    """The first `count`; where there are fewer, more of them in an order of the seed, each as often as the others."""
    found = list(articles)
    order = random.Random(seed)
    while len(found) < count:
        found += order.sample(list(articles), len(articles))
    return found[:count]


def build_all(
    engines: dict[str, Engine], texts: Sequence[str], num_builds: int
) -> tuple[dict[str, Any], dict[str, tuple[float | None, float]]]:
    """(indexes, medians of the build times in ms)"""
    indexes: dict[str, Any] = {}
    spent: dict[str, list[tuple[float | None, float]]] = {name: [] for name in engines}
    for name, engine in engines.items():
        for _ in range(num_builds):
            indexes.pop(name, None)
            gc.collect()
            alone, whole, indexes[name] = engine.build(texts)
            spent[name].append((alone, whole))
    return indexes, {
        name: (
            None if times[0][0] is None else float(np.median([alone for alone, _ in times])),
            float(np.median([whole for _, whole in times])),
        )
        for name, times in spent.items()
    }


def ask_all(
    engines: dict[str, Engine], indexes: dict[str, Any], queries: Sequence[str]
) -> dict[str, list[float]]:
    """Every time of every engine, in ms; they take turns."""
    times: dict[str, list[float]] = {name: [] for name in engines}
    stream = iter(queries)
    while part := list(islice(stream, ROUND)):
        for name, engine in engines.items():
            ready = [engine.prepare(indexes[name], query) for query in part]
            engine.search(indexes[name], ready[0])
            times[name] += [timed(partial(engine.search, indexes[name], one))[0] for one in ready]
    return times


def answer_all(engine: Engine, index: Any, queries: Sequence[Row]) -> list[list[int]]:
    return [engine.rows(index, engine.search(index, engine.prepare(index, row["query"]))) for row in queries]


def measure_peers(articles: Sequence[Row], queries: Sequence[Row]) -> PeerTable:
    """Engine -> column -> value; times in ms, None where a column says nothing about it."""
    engines = dict(open_engines())
    texts = [f"{article['law_name']}\n{article['contents']}" for article in articles]
    indexes, builds = build_all(engines, texts, NUM_BUILDS if len(texts) <= MAX_ROWS_TO_REPEAT else 1)
    asked = queries[:NUM_TIMED]
    times = ask_all(engines, indexes, [row["query"] for row in asked])
    answers = {name: answer_all(engine, indexes[name], asked) for name, engine in engines.items()}
    names, table = name_rows(articles), PeerTable()
    for name, found in answers.items():
        recall, rank = judge_all(found, names, asked)
        table[name] = {
            "index given terms ms": builds[name][0],
            "build from text ms": builds[name][1],
            "query p50 ms": float(np.percentile(times[name], 50)),
            "query p95 ms": float(np.percentile(times[name], 95)),
            "overlap@10": mean_overlap(found, answers[OURS_PLAIN], names),
            "R@10": recall,
            "MRR@10": rank,
        }
    return table


def mean_overlap(found: Sequence[list[int]], reference: Sequence[list[int]], names: Sequence[str]) -> float:
    """Copies of an article count as that article."""
    shares = []
    for rows, expected in zip(found, reference, strict=True):
        wanted = {names[row] for row in expected}
        shares.append(len(wanted & {names[row] for row in rows}) / max(1, len(wanted)))
    return float(np.mean(shares))


def judge_all(
    found: Sequence[list[int]], names: Sequence[str], queries: Sequence[Row]
) -> tuple[float | None, float | None]:
    """Means of the questions whose relevant articles are there; (None, None) without such questions."""
    known = set(names)
    scores = []
    for rows, query in zip(found, queries, strict=True):
        relevant = {str(name) for name in query.get("relevant", ())}
        if relevant & known:
            scores.append(judge(list(dict.fromkeys(names[row] for row in rows)), relevant))
    columns = [float(value) for value in np.mean(scores, axis=0)] if scores else (None, None)
    return columns[0], columns[1]


def print_peers(num_rows: int, num_queries: int, table: PeerTable) -> None:
    print(f"{num_rows} articles, {num_queries} queries, k = 10, ms of CPU time\n")
    columns = list(table[OURS])
    print(f"| engine | {' | '.join(columns)} |\n|{' --- |' * (len(columns) + 1)}")
    for name, values in table.items():
        cells = [
            "—" if value is None else f"{value:.3f}" if value < 100 else f"{value:.0f}"
            for value in values.values()
        ]
        print(f"| {name} | {' | '.join(cells)} |")


def measure(
    articles: Sequence[Row], queries: Sequence[Row], site_terms: SiteTerms, topk: int, repeat: int
) -> dict[str, str]:
    texts = [f"{article['law_name']}\n{article['contents']}" for article in articles]
    build_ms, arrays = timed(lambda: LexicalArrays.build(texts))
    search = Search(arrays, site_terms)
    num_bytes = sum(part.nbytes for part in (arrays.keys, arrays.indptr, arrays.rows, arrays.impacts))
    recall, rank = measure_quality(search, articles, queries)
    p50, p95 = measure_queries(search, queries, topk, repeat)
    return {
        "articles": str(len(articles)),
        "queries": str(len(queries)),
        "build s": f"{build_ms / 1000:.2f}",
        "bytes/article": f"{num_bytes / max(1, len(articles)):.0f}",
        "query p50 ms": p50,
        "query p95 ms": p95,
        "worst query ms": measure_worst(search, articles, site_terms, topk),
        "R@10": recall,
        "MRR@10": rank,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--queries", type=Path, required=True)
    parser.add_argument("--topk", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--rows", type=int)
    args = parser.parse_args()
    site_terms = SiteTerms.of(()) if args.plain else SiteTerms.load()
    articles, queries = load_jsonl(args.corpus), load_jsonl(args.queries)
    if args.peers:
        chosen = repeat_rows(articles, args.rows or len(articles))
        print_peers(len(chosen), min(len(queries), NUM_TIMED), measure_peers(chosen, queries))
        return 0
    table = measure(articles, queries, site_terms, args.topk, args.repeat)
    print("| " + " | ".join(table) + " |")
    print("|" + " --- |" * len(table))
    print("| " + " | ".join(table.values()) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
