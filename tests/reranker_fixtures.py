"""Reranker folders of a few kilobytes whose logits NumPy computes a second time, in float64 and without padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cg_rag.index.models.onnx_writer import ElementType, OnnxWriter
from tests.onnx_fixtures import (
    HEADS,
    HIDDEN,
    VOCABULARY,
    WIDTH,
    Array,
    bert_reference,
    bert_states,
    build_tokenizer,
    causal_states,
    make_slow_model,
    make_tables,
    qwen_reference,
    write_folder,
)

YES, NO = VOCABULARY["y"], VOCABULARY["n"]
CHAT = (
    "<|im_start|>system: yes or no<|im_end|><|im_start|>user i: {instruction} q: {query} d: {document}"
    "<|im_end|><|im_start|>"
)
BASE: dict[str, Any] = {
    "kind": "reranker",
    "document_template": "{short_law_name}{article_number} {contents}",
    # keys of an embedder that write_folder fills in
    "dim": ...,
    "query_template": ...,
    "passage_template": ...,
}


@dataclass(frozen=True)
class RerankerFixture:
    """`logit` of one row of token ids (and type ids): the slow twin."""

    folder: Path
    logit: Callable[[Sequence[int], Sequence[int]], float]


def make_pair_model(
    folder: Path, width: int = 1, spoil: float | None = None, **settings: Any
) -> RerankerFixture:
    """input_ids, attention_mask, token_type_ids -> logits [batch, width] of the first token. `spoil` is added."""
    folder.mkdir()
    tables, head = make_tables(5), _head(width)
    writer = OnnxWriter()
    states = bert_states(writer, tables, "states")
    first = writer.add_node("Gather", [states, writer.add_constant("first", np.array(0, np.int64))], axis=1)
    logits = writer.add_node("MatMul", [first, writer.add_constant("head", head)])
    added = np.array([0.0 if spoil is None else spoil], np.float32)
    writer.add_named_node("logits", "Add", [logits, writer.add_constant("added", added)])
    # Another output in front: the scores are chosen by name.
    writer.add_output(states, ElementType.FLOAT, ["batch", "length", HIDDEN])
    writer.add_output("logits", ElementType.FLOAT, ["batch", width])
    writer.save(folder / "model.onnx")
    output = "logit" if width == 1 else "no_yes"
    _write(folder, {"output": output, "max_tokens": 48, **settings})

    def logit(ids: Sequence[int], types: Sequence[int]) -> float:
        row = np.array([ids])
        found = bert_reference(tables, row, np.ones_like(row), np.array([types]))[0, 0] @ head
        return float(found[0] if width == 1 else found[1] - found[0])

    return RerankerFixture(folder, logit)


def make_chat_model(folder: Path, vocabulary: bool = True, **settings: Any) -> RerankerFixture:
    """Qwen3's inputs -> logits [batch, length, vocabulary], or [batch, 2] of the last place (padding on the left)."""
    folder.mkdir()
    tables, head = make_tables(6), _head(len(VOCABULARY))
    tables["places"] = np.resize(tables["places"], (256, HIDDEN))
    writer = OnnxWriter()
    for name in ("input_ids", "attention_mask", "position_ids"):
        writer.add_input(name, ElementType.INT64, ["batch", "length"])
    for name in ("past_key_values.0.key", "past_key_values.0.value"):
        writer.add_input(name, ElementType.FLOAT, ["batch", HEADS, "past_length", WIDTH])
    words = writer.add_node("Gather", [writer.add_constant("words", tables["words"]), "input_ids"])
    places = writer.add_node("Gather", [writer.add_constant("places", tables["places"]), "position_ids"])
    states = causal_states(writer, tables, writer.add_node("Add", [words, places]))
    columns = head if vocabulary else head[:, [NO, YES]]
    if not vocabulary:
        states = writer.add_node(
            "Gather", [states, writer.add_constant("end", np.array(-1, np.int64))], axis=1
        )
    writer.add_named_node("logits", "MatMul", [states, writer.add_constant("head", columns)])
    shape: list[int | str] = ["batch", "length", len(VOCABULARY)] if vocabulary else ["batch", 2]
    writer.add_output("logits", ElementType.FLOAT, shape)
    writer.save(folder / "model.onnx")
    ids = {"no_id": NO, "yes_id": YES} if vocabulary else {}
    defaults = {
        "output": "token_logits" if vocabulary else "no_yes",
        "max_tokens": 160,
        "padding_side": "left",
    }
    asked = {"pair_template": CHAT, "instruction": "脚手架"}
    _write(folder, {**defaults, **ids, **asked, **settings}, "")

    def logit(ids: Sequence[int], types: Sequence[int]) -> float:
        row = np.array([ids])
        found = qwen_reference(tables, row, np.ones_like(row))[0, -1] @ head
        return float(found[YES] - found[NO])

    return RerankerFixture(folder, logit)


def make_slow_reranker(folder: Path, **settings: Any) -> Path:
    """As `make_slow_model`: so much work for one pair, to be stopped in the middle of it."""
    make_slow_model(folder)
    _write(folder, {"output": "token_logits", "no_id": 1, "yes_id": 2, "max_tokens": 512, **settings})
    return folder


def pair_ids(query: str, document: str, max_tokens: int = 48) -> tuple[list[int], list[int]]:
    """<s> q </s></s> d </s>, one token a character, the document cut: written out once more."""
    room = max_tokens - 4
    first = [VOCABULARY.get(letter, VOCABULARY["<unk>"]) for letter in query][: room // 2]
    second = [VOCABULARY.get(letter, VOCABULARY["<unk>"]) for letter in document][: room - len(first)]
    ids = [0, *first, 2, 2, *second, 2]
    return ids, [0] * (len(first) + 3) + [1] * (len(second) + 1)


def _head(width: int) -> Array:
    head: Array = np.random.default_rng(7).standard_normal((HIDDEN, width)).astype(np.float32)
    return head


def _write(folder: Path, settings: dict[str, Any], template: str = "<s> $A </s>") -> None:
    write_folder(folder, {**BASE, **settings}, build_tokenizer(template))
