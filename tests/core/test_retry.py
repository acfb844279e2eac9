"""How long is waited before a request is sent again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cg_rag.core.retry import MAX_BACKOFF_SECONDS, backoff_seconds, parse_retry_after, wait_seconds

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("3", 3.0),
        (" 0 ", 0.0),
        ("1.5", 1.5),
        ("Sun, 01 Mar 2026 12:00:07 GMT", 7.0),
        ("Sun, 01 Mar 2026 11:00:00 GMT", 0.0),
        ("Sunday, 01-Mar-26 12:00:07 GMT", 7.0),
        ("-3", None),
        ("soon", None),
        ("9" * 30, None),
        ("1e9", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str | None, seconds: float | None) -> None:
    assert parse_retry_after(value, None, NOW) == seconds


def test_a_date_is_counted_from_the_servers_own_clock() -> None:
    server = NOW - timedelta(hours=8)
    until = format_datetime(server + timedelta(seconds=5), usegmt=True)
    assert parse_retry_after(until, format_datetime(server, usegmt=True), NOW) == 5.0


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_header_gives_seconds_or_nothing(value: str, date: str) -> None:
    seconds = parse_retry_after(value, date, NOW)
    assert seconds is None or seconds >= 0


@given(st.integers(1, 10_000), st.floats(0, 1), st.none() | st.floats(0, 1e6))
def test_a_wait_is_bounded_and_never_shorter_than_asked(
    attempt: int, dice: float, asked: float | None
) -> None:
    wait = wait_seconds(attempt, asked, dice)
    assert (asked or 0.0) <= wait <= (asked or 0.0) + MAX_BACKOFF_SECONDS


def test_waits_double_and_differ() -> None:
    assert [backoff_seconds(attempt, 1.0) for attempt in (1, 2, 3, 9)] == [0.5, 1.0, 2.0, 8.0]
    assert backoff_seconds(1, 0.0) == 0.3
    assert backoff_seconds(2, 0.0) > backoff_seconds(1, 1.0)
