"""Measures the lexical index over a corpus and its questions; prints one table.

    python tests/bench/lexical.py --corpus FILE --queries FILE [--topk 10] [--repeat 20] [--plain]

--corpus    JSONL or JSONL.gz: law_name, contents, and id where the questions name ids
--queries   JSONL: query, and `relevant` (a list of ids) for R@10 and MRR@10
--plain     without the law words for site words

R@10 and MRR@10 are followed by those of the first, third … question and of the second, fourth … one.
Times are CPU time of one process; BLAS is not involved. The first build of the process is the one shown.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cg_rag.index.lexical import LexicalArrays, LexicalSearcher
from cg_rag.index.site_terms import SiteTerms

T = TypeVar("T")
Row = dict[str, Any]
LONGEST_QUERY = 2000


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
    names = [str(article.get("id", row)) for row, article in enumerate(articles)]
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
    args = parser.parse_args()
    site_terms = SiteTerms.of(()) if args.plain else SiteTerms.load()
    table = measure(load_jsonl(args.corpus), load_jsonl(args.queries), site_terms, args.topk, args.repeat)
    print("| " + " | ".join(table) + " |")
    print("|" + " --- |" * len(table))
    print("| " + " | ".join(table.values()) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
