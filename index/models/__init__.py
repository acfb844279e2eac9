"""The models that come with the package, each in its own folder with its card and its recorded digests."""

from __future__ import annotations

from pathlib import Path

E5_SMALL_ZH = Path(__file__).resolve().parent / "e5-small-zh"
