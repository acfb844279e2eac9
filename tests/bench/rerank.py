"""What the reranker gains at each weight, what choosing by score makes of it, and what it costs.

    python tests/bench/rerank.py --index-dir DIR --questions FILE.jsonl [--candidates 20]

Questions as for `cg-rag eval retrieval`. Weight 0 is retrieval alone, weight 1 the reranker alone. `picks` are what
`generation.provider: local` chooses among the candidates, at most 5.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from cg_rag.core.config import load
from cg_rag.core.local_picks import choose_locally
from cg_rag.index.fusion import z_scores
from cg_rag.index.metrics import find_ranks, recall_at, reciprocal_rank
from cg_rag.index.progress import TerminalProgress
from cg_rag.index.questions import DEFAULT_ID_FIELDS, judge_questions, read_questions
from cg_rag.modes.services import make_library

WEIGHTS = (0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
MAX_PICKS = 5

Items = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Asked:
    """`fused` and `logits` of the candidates `rows`, best fused first; `items` are the rows of each right answer."""

    rows: list[int]
    fused: NDArray[np.float64]
    logits: NDArray[np.float64]
    items: Items

    def order(self, weight: float) -> list[int]:
        mixed = (1 - weight) * z_scores(self.fused) + weight * z_scores(self.logits)
        return [self.rows[place] for place in np.argsort(-mixed, kind="stable")]


def ask_all(index_dir: str, questions: Path, candidates: int) -> tuple[list[Asked], float, float]:
    """The questions, and CPU seconds of one question in retrieval and in reranking."""
    library = make_library(load(flags={"index.dir": index_dir}).settings)
    library.refresh()
    reader, retriever, reranker = library.snapshot.reader, library.snapshot.retriever, library.reranker
    if reader is None or retriever is None or reranker is None:
        sys.exit("该索引没有向量，无从重排。")
    judged = judge_questions(read_questions(questions), reader, TerminalProgress(), DEFAULT_ID_FIELDS)
    asked, spent = [], [0.0, 0.0]
    for question in (one for one in judged if one.items):
        began = time.process_time()
        found = retriever.search(question.query, "full", candidates, "fused")
        between = time.process_time()
        scores = reranker.score(found.query, found.articles)
        spent = [spent[0] + between - began, spent[1] + time.process_time() - between]
        logits = np.array([score.value for score in scores if score is not None])
        fused = np.array([hit.score for hit in found.hits])
        asked.append(
            Asked([hit.row for hit in found.hits], fused, logits, [item.rows for item in question.items])
        )
    return asked, spent[0] / len(asked), spent[1] / len(asked)


def picked(one: Asked, order: list[int]) -> tuple[float, int]:
    """F1 and number of what is chosen; the scores stay at their places."""
    chosen = [order[number - 1] for number in choose_locally(one.fused.tolist(), MAX_PICKS)]
    hits = sum(any(row in item for row in chosen) for item in one.items)
    return 2 * hits / (len(chosen) + len(one.items)), len(chosen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--index-dir", required=True)
    parser.add_argument("--questions", required=True, type=Path)
    parser.add_argument("--candidates", type=int, default=20)
    args = parser.parse_args()
    asked, retrieving, reranking = ask_all(args.index_dir, args.questions, args.candidates)
    print(f"{len(asked)} questions, CPU s each: retrieval {retrieving:.3f}, reranking {reranking:.3f}\n")
    print("| weight | MRR@10 | R@10 | F1 of picks | picks |\n| --- | --- | --- | --- | --- |")
    for weight in WEIGHTS:
        orders = [one.order(weight) for one in asked]
        ranks = [find_ranks(order, one.items) for order, one in zip(orders, asked, strict=True)]
        chosen = [picked(one, order) for order, one in zip(orders, asked, strict=True)]
        cells = (
            np.mean([reciprocal_rank(of_question, 10) for of_question in ranks]),
            np.mean([recall_at(of_question, 10) for of_question in ranks]),
            *np.mean(chosen, axis=0),
        )
        print(f"| {weight} | " + " | ".join(f"{cell:.3f}" for cell in cells) + " |")


if __name__ == "__main__":
    main()
