"""Keeps a secret out of a text that comes in pieces. No I/O.

Rule: a server may say what it was sent, key included, and what models say is shown to callers. What comes out, joined,
does not depend on how the text was cut.
"""

from __future__ import annotations

from typing import Final

MASK: Final = "***"
# Shorter ones are no secrets (servers without keys are given `none`, `x`, `EMPTY`) and stand in ordinary words.
MIN_SECRET_CHARS: Final = 8


def masked(text: str, secret: str) -> str:
    """`text` with MASK in place of `secret`, however often."""
    return text.replace(secret, MASK) if len(secret) >= MIN_SECRET_CHARS else text


class SecretMask:
    """Feed a text as it comes, then `finish`; both return what is certain now."""

    def __init__(self, secret: str) -> None:
        self._secret = secret if len(secret) >= MIN_SECRET_CHARS else ""
        self._held = ""  # may be the beginning of the secret

    def feed(self, text: str) -> str:
        if not self._secret or not (self._held or self._secret[0] in text):
            return text
        *before, rest = (self._held + text).split(self._secret)
        self._held = _begun(rest, self._secret)
        return MASK.join([*before, rest[: len(rest) - len(self._held)]])

    def finish(self) -> str:
        held, self._held = self._held, ""
        return held


def _begun(text: str, secret: str) -> str:
    """The longest end of `text` that is a beginning of `secret`."""
    longest = min(len(text), len(secret) - 1)
    return next((secret[:size] for size in range(longest, 0, -1) if text.endswith(secret[:size])), "")
