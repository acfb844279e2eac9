"""The models that come with the package, each in its own folder with its card and its recorded digests."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).resolve().parent
E5_SMALL_ZH = _HERE / "e5-small-zh"
# Reads the tokenizer of e5-small-zh, whose vocabulary it shares.
STATUTE_CE_6L = _HERE / "statute-ce-6l"
