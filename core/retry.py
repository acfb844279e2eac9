"""How long to wait before a request is sent again. No I/O; the clock and the dice are handed in.

Rule: the upstream's Retry-After is a lower bound, never shortened. What does not fit into the budget is not
waited for at all.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

BACKOFF_SECONDS: Final = 0.5  # before the second attempt; doubled for each one after it
MAX_BACKOFF_SECONDS: Final = 8.0
# Without a budget nobody wants to wait longer than a limiter's usual window of one minute.
MAX_RETRY_AFTER_SECONDS: Final = 60.0


def parse_retry_after(value: str | None, date: str | None, now: datetime) -> float | None:
    """Seconds that a Retry-After header asks for, or None if there is none that can be read.

    `value` holds seconds or an HTTP-date; `date` is the answer's Date header, from which a date is counted so that
    clocks need not agree, else `now` (aware).
    """
    if value is None:
        return None
    value = value.strip()
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", value):
        return float(value)
    until = _moment(value)
    if until is None:
        return None
    start = _moment(date) if date else None
    return max(0.0, (until - (start or now)).total_seconds())


def backoff_seconds(attempt: int, dice: float, base_seconds: float = BACKOFF_SECONDS) -> float:
    """The wait after the `attempt`-th failure (from 1): doubled each time, between 60 % and all of it by `dice`
    (0..1), so that callers part and a wait is still longer than the one before."""
    full = min(MAX_BACKOFF_SECONDS, base_seconds * 2.0 ** min(attempt - 1, 30))
    return full * (0.6 + 0.4 * dice)


def wait_seconds(
    attempt: int, retry_after_seconds: float | None, dice: float, base_seconds: float = BACKOFF_SECONDS
) -> float:
    """The wait before the next attempt: back-off, and at least Retry-After, spread so that callers part."""
    wait = backoff_seconds(attempt, dice, base_seconds)
    if retry_after_seconds is None:
        return wait
    return max(wait, retry_after_seconds + min(wait, 0.1 * retry_after_seconds))


def _moment(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
