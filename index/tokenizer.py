"""Text to token ids, by the tokenizer.json of a model folder.

Rule: control tokens come from templates and from the tokenizer itself, never from a question or an article. A
text that spells one, in any form that the tokenizer's own normalisation turns into one, is broken up first.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from weakref import WeakValueDictionary

import numpy as np
from tokenizers import Encoding, Tokenizer

from cg_rag.index.model_errors import ModelFailed, ModelInvalid, ModelMissing

Array = np.ndarray[Any, np.dtype[Any]]
Side = Literal["left", "right"]

# Chat models share these; a folder's own added tokens are joined to them.
CONTROL_TOKENS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<s>", "</s>")
PAD_TOKENS = ("<pad>", "[PAD]", "<|endoftext|>")
# A vocabulary piece has at most 16 characters in SentencePiece. Tokenising a megabyte takes 1.2 s and 230 MB,
# only to be cut afterwards.
MAX_CHARS_PER_TOKEN = 32
MAX_PASSES = 4

# By the digest of the file: the bundled models share one vocabulary, which takes 34 MB. Nobody changes what is in here;
# how long a text may be is up to each model, so each cuts for itself.
_LOADED: WeakValueDictionary[str, Tokenizer] = WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids and segment ids of one text, without padding."""

    ids: list[int]
    type_ids: list[int]

    def __len__(self) -> int:
        return len(self.ids)


class ModelTokenizer:
    """Cuts at `max_tokens` (control tokens included); appends `eos` where the tokenizer itself does not."""

    def __init__(self, path: Path, max_tokens: int, eos: str | None = None) -> None:
        """Raises ModelMissing or ModelInvalid."""
        self._place = path.parent.name
        self._tokenizer = _load(path)
        self._max_tokens = max_tokens
        self._max_chars = max_tokens * MAX_CHARS_PER_TOKEN
        self._eos_id = self._missing_eos(path, eos)
        added = [token.content for token in self._tokenizer.get_added_tokens_decoder().values()]
        self._control = _any_of((*CONTROL_TOKENS, *added))
        known = (self._tokenizer.token_to_id(token) for token in PAD_TOKENS)
        self.pad_id = next((token_id for token_id in known if token_id is not None), 0)

    def neutralise(self, text: str) -> str:
        """`text` in which no control token is left, also after the tokenizer's normalisation (full-width
        brackets, characters that it deletes). Other texts come back unchanged, but for their length.
        """
        text = _encodable(text[: self._max_chars])
        for _ in range(MAX_PASSES):
            normal = self._normalise(text)
            if not self._control.search(normal) and not self._control.search(text):
                return text
            text = self._control.sub(_break, self._control.sub(_break, normal))
        return re.sub(r"[<>|\[\]]", " ", self._normalise(text))

    def encode(self, text: str) -> Encoded:
        """The ids of a rendered text; control tokens in it are control tokens."""
        pieces = self._split(text)
        ends = self._tokenizer.num_special_tokens_to_add(False) + (self._eos_id is not None)
        pieces.truncate(self._max_tokens - ends)
        encoding = self._tokenizer.post_process(pieces)
        ids, type_ids = list(encoding.ids), list(encoding.type_ids)
        if self._eos_id is not None:
            ids.append(self._eos_id)
            type_ids.append(type_ids[-1] if type_ids else 0)
        return Encoded(ids, type_ids)

    def pad(self, texts: Sequence[Encoded], side: Side) -> tuple[Array, Array, Array]:
        """(ids, mask, type ids), int64 [batch, longest]; the mask is 1 on real tokens."""
        length = max(len(text) for text in texts)
        ids = np.full((len(texts), length), self.pad_id, dtype=np.int64)
        mask = np.zeros_like(ids)
        type_ids = np.zeros_like(ids)
        for row, text in enumerate(texts):
            place = slice(length - len(text), length) if side == "left" else slice(0, len(text))
            ids[row, place] = text.ids
            type_ids[row, place] = text.type_ids
            mask[row, place] = 1
        return ids, mask, type_ids

    def _split(self, text: str) -> Encoding:
        """The pieces of `text`, uncut, without the tokens that the tokenizer puts around it."""
        try:
            return self._tokenizer.encode(text, add_special_tokens=False)
        except Exception as error:  # the tokenizers package raises nothing more precise
            raise ModelFailed(self._place, f"分词失败：{error}") from error

    def _normalise(self, text: str) -> str:
        normalizer = self._tokenizer.normalizer
        return str(normalizer.normalize_str(text)) if normalizer else text

    def _missing_eos(self, path: Path, eos: str | None) -> int | None:
        """The id of `eos`, or None where none is wanted or the tokenizer's own template ends with it."""
        if eos is None:
            return None
        eos_id = self._tokenizer.token_to_id(eos)
        if eos_id is None:
            raise ModelInvalid(str(path), f"词表中没有结束符 {eos!r}")
        return None if self._tokenizer.encode("").ids[-1:] == [eos_id] else int(eos_id)


def _load(path: Path) -> Tokenizer:
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise ModelMissing(str(path)) from exc
    digest = hashlib.sha256(data).hexdigest()
    tokenizer = _LOADED.get(digest)
    if tokenizer is None:
        try:
            tokenizer = Tokenizer.from_buffer(data)
        except ValueError as exc:
            raise ModelInvalid(str(path), f"不是有效的分词器文件（{str(exc)[:200]}）") from exc
        tokenizer.no_padding()
        tokenizer.no_truncation()
        _LOADED[digest] = tokenizer
    return tokenizer


def _any_of(tokens: Sequence[str]) -> re.Pattern[str]:
    """Longest first: a token inside another one must not hide it. Single characters cannot be broken."""
    ordered = sorted({token for token in tokens if len(token) > 1}, key=lambda token: (-len(token), token))
    return re.compile("|".join(re.escape(token) for token in ordered))


def _break(match: re.Match[str]) -> str:
    token = match.group()
    return f"{token[0]} {token[1:]}"


def _encodable(text: str) -> str:
    """Lone surrogates, which no tokenizer takes, become U+FFFD."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
