"""Fixtures of the tests that ask a real process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fake_upstream import FakeUpstream, upstream_in_thread


@pytest.fixture(scope="module")
def upstream() -> Iterator[FakeUpstream]:
    """A scripted upstream for all tests of the file; each leaves no reply in it for the next."""
    with upstream_in_thread() as fake:
        yield fake
