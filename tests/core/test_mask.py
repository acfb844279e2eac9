"""A secret in a text that comes in pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cg_rag.core.mask import SecretMask, masked

SECRET = "sk-sk-sk-12"
PIECES = st.sampled_from([SECRET, "sk-", "sk-sk-", "s", "k", "1", "2", "脚手架", "***", ""])


@given(st.lists(PIECES, max_size=20))
def test_what_comes_out_is_the_masked_text_however_it_was_cut(pieces: list[str]) -> None:
    mask = SecretMask(SECRET)
    out = "".join(mask.feed(piece) for piece in pieces) + mask.finish()
    assert out == masked("".join(pieces), SECRET)
    assert SECRET not in out


def test_nothing_is_held_back_that_cannot_become_the_secret() -> None:
    mask = SecretMask(SECRET)
    assert mask.feed("Bearer sk-") == "Bearer "
    assert mask.feed("x") == "sk-x"
    assert mask.feed("sk-sk-sk-1") == ""
    assert mask.feed("2 ") == "*** "


@pytest.mark.parametrize("secret", ["", "x", "EMPTY", "1234567"])
def test_what_is_no_secret_is_left_as_it_is(secret: str) -> None:
    text = f"x EMPTY {secret} 1234567"
    assert SecretMask(secret).feed(text) == masked(text, secret) == text
