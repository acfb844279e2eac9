"""A question and an article as the one row of tokens that a cross-encoder reads.

Rule: only the article is cut to make both fit, and a question is cut only where it would leave the article less than
half of the room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Encoding

from cg_rag.index.model_errors import ModelFailed
from cg_rag.index.model_folder import Template
from cg_rag.index.tokenizer import Encoded, ModelTokenizer

PAIR_NAMES = ("query", "instruction")
DOCUMENT = "{document}"


@dataclass(frozen=True, slots=True)
class PairTemplate:
    """Text around a pair, for models that are asked in words: `head` up to the article, `tail` behind it."""

    head: Template
    tail: str
    instruction: str

    @classmethod
    def parse(cls, text: str, instruction: str) -> PairTemplate:
        """Raises ValueError (Chinese): {query} and then {document} once, {instruction} at will, nothing behind."""
        head, document, tail = text.partition(DOCUMENT)
        parsed = Template.parse(head, PAIR_NAMES)
        if not document or not parsed.uses("query") or Template.parse(tail, ()).parts[1:]:
            raise ValueError(
                "pair_template 须先有 {query}，后有 {document}，且各在 {document} 之前或仅此一处"
            )
        return cls(parsed, tail, instruction)


class PairTokenizer(ModelTokenizer):
    """Pairs by the tokenizer's own template for two texts, or by `template`."""

    def __init__(self, path: Path, max_tokens: int, template: PairTemplate | None = None) -> None:
        """Raises ModelMissing or ModelInvalid."""
        super().__init__(path, max_tokens)
        self._template = template

    def encode_pairs(self, query: str, documents: Sequence[str]) -> list[Encoded]:
        """One row for each document, at most `max_tokens` long; both texts are neutralised already.

        Raises ModelFailed when the template alone leaves no room.
        """
        if self._template is None:
            return self._join(query, documents)
        return self._fill(self._template, query, documents)

    def _join(self, query: str, documents: Sequence[str]) -> list[Encoded]:
        room = self._max_tokens - self._tokenizer.num_special_tokens_to_add(True)
        first = self._split(query)
        first.truncate(room // 2)
        rows = []
        for document in documents:
            second = self._split(document)
            second.truncate(room - len(first))
            row = self._tokenizer.post_process(first, second)
            rows.append(Encoded(list(row.ids), list(row.type_ids)))
        return rows

    def _fill(self, template: PairTemplate, query: str, documents: Sequence[str]) -> list[Encoded]:
        tail = self._split(template.tail).ids
        empty = self._split(self._head(template, "")).ids
        room = self._max_tokens - len(tail) - len(empty)
        if room < 2:
            raise ModelFailed(self._place, f"模板已占满 max_tokens（{self._max_tokens}）")
        head = self._head(template, _cut(query, self._split(query), room // 2))
        rows = []
        for document in documents:
            # In one piece: how a document begins may be joined with the last characters before it.
            ids = self._split(head + document).ids[: self._max_tokens - len(tail)] + tail
            rows.append(Encoded(ids, [0] * len(ids)))
        return rows

    def _head(self, template: PairTemplate, query: str) -> str:
        return template.head.render({"query": query, "instruction": template.instruction})


def _cut(text: str, pieces: Encoding, num_pieces: int) -> str:
    """The beginning of `text` that its first pieces cover."""
    return text if len(pieces) <= num_pieces else text[: pieces.offsets[num_pieces][0]]
