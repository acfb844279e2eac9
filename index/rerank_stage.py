"""The best articles of an answer in a better order: a reranker reads the question together with each of them.

Rule: a reranker never decides alone. Within a tier of the answer (exact look-ups are none) the places of the first
`candidates` articles are given anew by (1 - weight) x z(score) + weight x z(logit), both z-scores over these articles;
equal ones stay in their order. The scores stay at their places: the first still has the highest of them, so they never
rise along the list, and what reads a scale into them (the distance from the best to the worst) reads the same as
before. An article without a logit keeps its place.

Measured: docs/retrieval.md. Without vectors a reranker of this machine is not asked: words alone give the same answer
on every machine, and need no model.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import numpy as np

from cg_rag.index.corpus import Article
from cg_rag.index.endpoint_pause import EndpointPause
from cg_rag.index.fusion import z_scores
from cg_rag.index.model_errors import Cancelled, ModelFailed
from cg_rag.index.onnx import CURRENT_TOKEN, CancelToken
from cg_rag.index.os_words import fault_of
from cg_rag.index.ranking import FAILURES, Hit, Question, StageFailed
from cg_rag.index.reranker import PairScore, Reranker

CANDIDATES = 20
WEIGHT = 0.4
WITHOUT_RERANK = "重排暂不可用，本次按检索得分排列。"
SOME_MISSING = "重排没有给出 {count} 条条文的得分，它们保留原来的位置。"
# How soon a caller who left is noticed while waiting for a processor.
POLL_SECONDS = 0.1

ReadArticles = Callable[[Sequence[int]], list[Article]]


class RerankStage:
    """One reranker over the answers of one index. Threads share it."""

    def __init__(
        self,
        reranker: Reranker,
        *,
        candidates: int = CANDIDATES,
        weight: float = WEIGHT,
        degrade: bool = True,
    ) -> None:
        self.name = reranker.name
        self._reranker = reranker
        self._candidates = candidates
        self._weight = weight
        self._degrade = degrade
        self._pause = EndpointPause(reranker.name, reranker.is_remote)
        # As for embedding: more pairs at once than there are processors would only take memory.
        self._computing = threading.BoundedSemaphore(os.cpu_count() or 1)

    def depth(self, num_exact: int) -> int:
        """How many hits are to be found, so that an article's place does not hang on topk."""
        return self._candidates + num_exact

    def rerank(self, question: Question, hits: list[Hit], topk: int, read: ReadArticles) -> bool:
        """Reorder `hits` in place; whether the reranker had its say.

        A failure degrades `question`, or raises StageFailed where that is not allowed. Raises Cancelled.
        """
        windows = find_windows(hits, self._candidates)
        places = [place for window in windows for place in window]
        if not places or min(places) >= topk or (question.vector is None and not self._reranker.is_remote):
            return False
        try:
            with question.timed("rerank_ms"):
                scores = self._score(question.text, read([hits[place].row for place in places]))
        except Cancelled:
            raise
        except FAILURES as error:
            if not self._degrade:
                raise StageFailed(f"无法重排：{fault_of(error)}") from error
            question.degrade(WITHOUT_RERANK, f"无法重排：{fault_of(error)}")
            return False
        if missing := scores.count(None):
            question.degrade(SOME_MISSING.format(count=missing), f"{self.name} 缺少 {missing} 个得分")
        found = dict(zip(places, scores, strict=True))
        for window in windows:
            reorder(hits, window, [found[place] for place in window], self._weight)
        return True

    def _score(self, query: str, articles: Sequence[Article]) -> list[PairScore | None]:
        token = CURRENT_TOKEN.get()
        with (
            self._pause.watch(token),
            nullcontext() if self._reranker.is_remote else self._processor(token),
        ):
            scores = list(self._reranker.score(query, articles, token))
            if not any(scores):
                raise ModelFailed(self.name, "没有给出任何得分")
            return scores

    @contextmanager
    def _processor(self, token: CancelToken | None) -> Iterator[None]:
        while not self._computing.acquire(timeout=POLL_SECONDS):
            if token is not None:
                token.check()
        try:
            yield
        finally:
            self._computing.release()


def find_windows(hits: Sequence[Hit], candidates: int) -> list[list[int]]:
    """Places of the hits that compete with each other, tier by tier, `candidates` in all; a single one has no
    competitor."""
    law = [place for place, hit in enumerate(hits) if "law" in hit.stages][:candidates]
    rest = [place for place, hit in enumerate(hits) if not hit.stages.keys() & {"law", "exact"}]
    return [window for window in (law, rest[: candidates - len(law)]) if len(window) > 1]


def reorder(
    hits: list[Hit], window: Sequence[int], scores: Sequence[PairScore | None], weight: float
) -> None:
    """Give the places in `window` (ascending) anew, in place."""
    scored = [(hits[place], score) for place, score in zip(window, scores, strict=True) if score is not None]
    places = [place for place, score in zip(window, scores, strict=True) if score is not None]
    first = np.array([hit.score for hit, _ in scored], np.float64)
    second = np.array([score.value for _, score in scored], np.float64)
    mixed = (1 - weight) * z_scores(first) + weight * z_scores(second)
    order = np.argsort(-mixed, kind="stable")
    for place, number, kept in zip(places, order.tolist(), first.tolist(), strict=True):
        hit, score = scored[number]
        stages = {**hit.stages, "rerank": score.score, "mixed": float(mixed[number])}
        hits[place] = Hit(hit.row, kept, stages)
