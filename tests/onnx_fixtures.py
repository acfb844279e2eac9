"""Model folders of a few kilobytes, written by our own writer, whose vectors NumPy computes a second time.

One character is one token. Every graph ends in tanh, so that a wrong weight cannot hide in a scale.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from cg_rag.index.models.onnx_writer import ElementType, OnnxWriter
from cg_rag.index.onnx import CancelToken

Array = np.ndarray[Any, np.dtype[Any]]

HEADS, WIDTH = 2, 4
HIDDEN = HEADS * WIDTH
MAX_POSITIONS = 64
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "<|endoftext|>")
CHARACTERS = "脚手架立杆间距临时用电安全建筑法第一二三条 :<>|/s_imetard中华人民共和国queryonfxdp"
VOCABULARY = {token: place for place, token in enumerate(dict.fromkeys((*SPECIAL, *CHARACTERS)))}

Reference = Callable[
    [Array, Array, Array], Array
]  # ids, mask, type ids [batch, length] -> [batch, length, HIDDEN]


@dataclass(frozen=True)
class ModelFixture:
    """`hidden` is the slow twin of the graph: float64 states of every token."""

    folder: Path
    hidden: Reference


class SignallingToken(CancelToken):
    """Says when the computation has been handed to it."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()

    @contextmanager
    def watch(self, options: Any) -> Iterator[None]:
        with super().watch(options):
            self.entered.set()
            yield


def build_tokenizer(template: str = "<s> $A </s>", pair: str = "<s> $A </s> </s> $B:1 </s>:1") -> Tokenizer:
    """One token a character. NFKC, so that full-width forms of a control token become that token."""
    tokenizer = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(
        Regex(r"<\|?/?[a-z_]+\|?>|."), "isolated"
    )  # control tokens in one piece, as in a Unigram vocabulary
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    if template:
        ends = [(token, VOCABULARY[token]) for token in SPECIAL if token in template + pair]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=template, pair=pair, special_tokens=ends
        )
    return tokenizer


def write_folder(folder: Path, settings: Mapping[str, Any], tokenizer: Tokenizer | None = None) -> None:
    """tokenizer.json and cg_rag_model.json beside the graph that is already there; digests of every file. A setting
    that is ... is left out."""
    (folder / "tokenizer.json").write_text((tokenizer or build_tokenizer()).to_str(), "utf-8")
    names = [path.name for path in sorted(folder.iterdir()) if path.name != "cg_rag_model.json"]
    digests = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
    base = {
        "kind": "embedder",
        "name": folder.name,
        "file": "model.onnx",
        "tokenizer": "tokenizer.json",
        "dim": HIDDEN,
        "max_tokens": 32,
        "query_template": "q: {text}",
        "passage_template": "d: {short_law_name}{article_number} {contents}",
    }
    value = {key: item for key, item in {**base, **settings}.items() if item is not ...} | {"sha256": digests}
    (folder / "cg_rag_model.json").write_text(json.dumps(value, ensure_ascii=False), "utf-8")


def edit_settings(folder: Path, **changes: Any) -> None:
    """Change keys of cg_rag_model.json; ... removes one."""
    place = folder / "cg_rag_model.json"
    value = {**json.loads(place.read_text("utf-8")), **changes}
    place.write_text(json.dumps({key: item for key, item in value.items() if item is not ...}), "utf-8")


def make_bert(folder: Path, pooling: str = "mean", external: bool = False, **settings: Any) -> ModelFixture:
    """input_ids, attention_mask, token_type_ids -> last_hidden_state; tokens also see the masked mean."""
    folder.mkdir()
    tables = make_tables(1)
    writer = OnnxWriter("model.onnx.data" if external else None)
    states = bert_states(writer, tables, "last_hidden_state")
    writer.add_output(states, ElementType.FLOAT, ["batch", "length", HIDDEN])
    writer.save(folder / "model.onnx")
    write_folder(folder, {"pooling": pooling, **settings})
    return ModelFixture(folder, lambda ids, mask, types: bert_reference(tables, ids, mask, types))


def make_sentence_model(folder: Path, **settings: Any) -> ModelFixture:
    """Two outputs, token states first: sentence_embedding (the sum over real tokens) is to be chosen."""
    folder.mkdir()
    tables = make_tables(2)
    writer = OnnxWriter()
    states = bert_states(writer, tables, "last_hidden_state")
    mask = writer.add_node("Cast", ["attention_mask"], to=int(ElementType.FLOAT))
    mask = writer.add_node("Unsqueeze", [mask, writer.add_constant("axis", np.array([-1], np.int64))])
    total = writer.add_node("Mul", [states, mask])
    writer.add_named_node("sentence_embedding", "ReduceSum", [total, "one"], keepdims=0)
    writer.add_output("last_hidden_state", ElementType.FLOAT, ["batch", "length", HIDDEN])
    writer.add_output("sentence_embedding", ElementType.FLOAT, ["batch", HIDDEN])
    writer.save(folder / "model.onnx")
    write_folder(folder, {"pooling": "none", **settings})
    return ModelFixture(folder, lambda ids, mask, types: bert_reference(tables, ids, mask, types))


def make_qwen(folder: Path, element_type: ElementType = ElementType.FLOAT, **settings: Any) -> ModelFixture:
    """Qwen3's inputs: position_ids and past_key_values of length zero; causal; left padding, last token, EOS.

    The states leave through the concatenation with the past, so a past that is not empty, of another shape or
    of another type cannot pass.
    """
    folder.mkdir()
    tables = make_tables(3)
    writer = OnnxWriter()
    for name in ("input_ids", "attention_mask", "position_ids"):
        writer.add_input(name, ElementType.INT64, ["batch", "length"])
    for name in ("past_key_values.0.key", "past_key_values.0.value"):
        writer.add_input(name, element_type, ["batch", HEADS, "past_length", WIDTH])
    words = writer.add_node("Gather", [writer.add_constant("words", tables["words"]), "input_ids"])
    places = writer.add_node("Gather", [writer.add_constant("places", tables["places"]), "position_ids"])
    states = causal_states(writer, tables, writer.add_node("Add", [words, places]))
    _through_past(writer, states, element_type)
    writer.add_output("present.0.key", element_type, ["batch", HEADS, "total_length", WIDTH])
    writer.add_output("last_hidden_state", element_type, ["batch", "length", HIDDEN])
    writer.save(folder / "model.onnx")
    defaults = {"pooling": "last", "padding_side": "left", "eos": "<|endoftext|>", "batch": 4}
    write_folder(folder, {**defaults, **settings}, build_tokenizer(""))
    return ModelFixture(folder, lambda ids, mask, types: qwen_reference(tables, ids, mask))


def make_slow_model(folder: Path, num_layers: int = 3000, size: int = 512) -> ModelFixture:
    """A long row of matrix products: a quarter of a minute for 512 tokens on a fast machine, to be stopped between two
    of them. So it is still at work when whoever is to stop it was held up for seconds."""
    folder.mkdir()
    writer = OnnxWriter()
    writer.add_input("input_ids", ElementType.INT64, ["batch", "length"])
    generator = np.random.default_rng(4)
    square = (generator.standard_normal((size, size)) / np.sqrt(size)).astype(np.float32)
    table = generator.standard_normal((len(VOCABULARY), size)).astype(np.float32)
    writer.add_constant("square", square)
    states = writer.add_node("Gather", [writer.add_constant("table", table), "input_ids"])
    for _ in range(num_layers):
        states = writer.add_node("Tanh", [writer.add_node("MatMul", [states, "square"])])
    writer.add_named_node("last_hidden_state", "Identity", [states])
    writer.add_output("last_hidden_state", ElementType.FLOAT, ["batch", "length", size])
    writer.save(folder / "model.onnx")
    write_folder(folder, {"pooling": "mean", "dim": size, "max_tokens": 512})
    return ModelFixture(folder, lambda ids, mask, types: ids)


def bert_reference(tables: Mapping[str, Array], ids: Array, mask: Array, types: Array) -> Array:
    """float64 [batch, length, HIDDEN]."""
    states = tables["words"][ids] + tables["types"][types] + tables["places"][: ids.shape[1]]
    weights = mask[:, :, None]
    mean = (states * weights).sum(axis=1, keepdims=True) / weights.sum(axis=1, keepdims=True)
    return np.tanh((states + mean) @ tables["square"].astype(np.float64))


def qwen_reference(tables: Mapping[str, Array], ids: Array, mask: Array) -> Array:
    """float64 [batch, length, HIDDEN]; each row is computed without its padding."""
    states = np.zeros((*ids.shape, HIDDEN))
    for row, real in enumerate(mask.astype(bool)):
        words = tables["words"][ids[row, real]] + tables["places"][: real.sum()]
        states[row, real] = np.tanh(np.cumsum(words, axis=0) @ tables["square"].astype(np.float64))
    return states


def make_tables(seed: int) -> dict[str, Array]:
    generator = np.random.default_rng(seed)
    shapes = {"words": len(VOCABULARY), "places": MAX_POSITIONS, "types": 2, "square": HIDDEN}
    return {
        name: (generator.standard_normal((rows, HIDDEN)) / 3).astype(np.float32)
        for name, rows in shapes.items()
    }


def bert_states(writer: OnnxWriter, tables: Mapping[str, Array], output: str) -> str:
    for name in ("input_ids", "attention_mask", "token_type_ids"):
        writer.add_input(name, ElementType.INT64, ["batch", "length"])
    words = writer.add_node("Gather", [writer.add_constant("words", tables["words"]), "input_ids"])
    types = writer.add_node("Gather", [writer.add_constant("types", tables["types"]), "token_type_ids"])
    zero = writer.add_constant("zero", np.zeros(1, np.int64))
    length = writer.add_node("Shape", ["input_ids"], start=1, end=2)
    places = writer.add_node("Slice", [writer.add_constant("places", tables["places"]), zero, length, zero])
    states = writer.add_node("Add", [writer.add_node("Add", [words, types]), places])
    weights = writer.add_node("Cast", ["attention_mask"], to=int(ElementType.FLOAT))
    weights = writer.add_node("Unsqueeze", [weights, writer.add_constant("last", np.array([-1], np.int64))])
    one = writer.add_constant("one", np.array([1], np.int64))
    total = writer.add_node("ReduceSum", [writer.add_node("Mul", [states, weights]), one], keepdims=1)
    count = writer.add_node("ReduceSum", [weights, one], keepdims=1)
    mixed = writer.add_node("Add", [states, writer.add_node("Div", [total, count])])
    product = writer.add_node("MatMul", [mixed, writer.add_constant("square", tables["square"])])
    return writer.add_named_node(output, "Tanh", [product])


def causal_states(writer: OnnxWriter, tables: Mapping[str, Array], states: str) -> str:
    """tanh of the running sum over real tokens."""
    weights = writer.add_node("Cast", ["attention_mask"], to=int(ElementType.FLOAT))
    weights = writer.add_node("Unsqueeze", [weights, writer.add_constant("last", np.array([-1], np.int64))])
    axis = writer.add_constant("axis", np.array(1, np.int64))
    running = writer.add_node("CumSum", [writer.add_node("Mul", [states, weights]), axis])
    product = writer.add_node("MatMul", [running, writer.add_constant("square", tables["square"])])
    return writer.add_node("Tanh", [product])


def _through_past(writer: OnnxWriter, states: str, element_type: ElementType) -> None:
    """[batch, length, HIDDEN] to heads, behind the past, and back."""
    split = writer.add_constant("split", np.array([0, 0, HEADS, WIDTH], np.int64))
    heads = writer.add_node("Cast", [writer.add_node("Reshape", [states, split])], to=int(element_type))
    heads = writer.add_node("Transpose", [heads], perm=[0, 2, 1, 3])
    keys = writer.add_named_node("present.0.key", "Concat", ["past_key_values.0.key", heads], axis=2)
    both = writer.add_node("Concat", ["past_key_values.0.value", keys], axis=2)
    merged = writer.add_constant("merged", np.array([0, 0, HIDDEN], np.int64))
    back = writer.add_node("Transpose", [both], perm=[0, 2, 1, 3])
    writer.add_named_node("last_hidden_state", "Reshape", [back, merged])
