"""What a vision request has found so far: articles under numbers that stay. No I/O.

Rule: one numbering for the whole request. A document found twice keeps its first number, and number n is
`documents[n - 1]` for ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

MIN_CAP: Final = 40  # docs/vision.md: 最多保留 max(40, topk) 条
_NOT_EVIDENCE: Final = (
    "score",
    "debug",
)  # of one search, not of the article: another question scores it anew


@dataclass(frozen=True, slots=True)
class Evidence:
    """One numbered article. `document` is what a caller sees of it."""

    number: int
    law_name: str
    article_number: str
    contents: str
    document: Mapping[str, Any]


class EvidenceStore:
    """At most `cap` documents; what is found beyond them is left out, never put in place of another."""

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._by_identity: dict[object, Evidence] = {}

    @classmethod
    def for_topk(cls, topk: int) -> EvidenceStore:
        return cls(max(MIN_CAP, topk))

    def __len__(self) -> int:
        return len(self._by_identity)

    @property
    def items(self) -> list[Evidence]:
        return list(self._by_identity.values())

    @property
    def documents(self) -> list[dict[str, Any]]:
        """`retrieval_docs` of the answer."""
        return [dict(item.document) for item in self._by_identity.values()]

    def add(self, results: Sequence[Sequence[Mapping[str, Any]]], limit: int) -> list[Evidence]:
        """Take the results of one round, a list per question, best first: interleaved by rank, at most `limit`
        different documents. Returns those that are evidence, old and new, in that order."""
        found: dict[int, Evidence] = {}
        for document in _interleaved(results):
            if len(found) == limit:
                break
            if (item := self._keep(document)) is not None:
                found.setdefault(item.number, item)
        return list(found.values())

    def among(self, documents: Sequence[Mapping[str, Any]]) -> list[Evidence]:
        """Those of `documents` that are evidence, in their order."""
        return [item for document in documents if (item := self._by_identity.get(_identity(document)))]

    def _keep(self, document: Mapping[str, Any]) -> Evidence | None:
        identity = _identity(document)
        known = self._by_identity.get(identity)
        if known is None and len(self._by_identity) < self._cap:
            shown = {name: value for name, value in document.items() if name not in _NOT_EVIDENCE}
            known = Evidence(
                len(self._by_identity) + 1,
                document["law_name"],
                document["article_number"],
                document["contents"],
                shown,
            )
            self._by_identity[identity] = known
        return known


def _identity(document: Mapping[str, Any]) -> object:
    """(law, article) is not unique in real corpora, so the text belongs to it; `doc_id` is an article's own."""
    doc_id = document.get("doc_id")
    names = (document["law_name"], document["article_number"])
    return (*names, doc_id) if isinstance(doc_id, str) and doc_id else (*names, document["contents"])


def _interleaved(results: Sequence[Sequence[Mapping[str, Any]]]) -> Iterator[Mapping[str, Any]]:
    for rank in zip_longest(*results):
        yield from (document for document in rank if document is not None)
