"""What can go wrong with an upstream, as one tree of exceptions.

UpstreamError
├── UpstreamUnreachable   no connection, or it went before the answer began
├── UpstreamTimeout       connect, first byte, between bytes, the call, or the caller's budget
├── UpstreamRefused       an answer of 4xx
├── UpstreamFailed        an answer of 5xx, or the server's own word that it failed
├── UpstreamBroken        no answer that can be used: cut, malformed, redirected, compressed, too large
├── UpstreamFiltered      the server withholds the answer because of its content
└── UpstreamEmpty         a complete answer without text and without tool calls

Rule: `str` of one never holds a URL, a key or a prompt; it is made of a code of `Reason` and numbers alone.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal

import orjson

Reason = Literal[
    "connect_failed",
    "tls_failed",
    "disconnected",
    "connect_timeout",
    "first_byte_timeout",
    "between_bytes_timeout",
    "call_timeout",
    "budget_spent",
    "unauthorized",
    "not_found",
    "rate_limited",
    "refused",
    "server_error",
    "overloaded",
    "error_in_stream",
    "redirected",
    "cut",
    "malformed",
    "html",
    "compressed",
    "too_large",
    "content_filter",
    "empty",
]

# RFC 9110 and the vendors' pages: what may succeed when it is sent again unchanged.
_RETRYABLE: Final = frozenset({408, 409, 429})
_CODE: Final = re.compile(r"[A-Za-z_.]{1,48}")
_MAX_DETAIL_CHARS: Final = 4096
_FILTERED: Final = re.compile(r"content_?filter|data_inspection_failed|datainspectionfailed|sensitive", re.I)
_CALLERS_FAULT: Final = re.compile(
    r"invalid|authentication|permission|not_?found|badrequest|bad_request|arrearage", re.I
)


class UpstreamError(Exception):
    """`status` is the HTTP status if one came, `attempts` how many requests were sent.

    `code` is the upstream's own name for the failure when it looks like one, else "". `detail` are its own words:
    they may quote the prompt, so they serve decisions and stay out of logs and answers. `may_retry` tells whether
    the same request may succeed later, `retry_after_seconds` what the upstream asked to wait.
    """

    def __init__(
        self,
        reason: Reason,
        *,
        status: int | None = None,
        may_retry: bool = False,
        retry_after_seconds: float | None = None,
        code: str = "",
        detail: str = "",
    ) -> None:
        super().__init__(reason)
        self.reason: Reason = reason
        self.status = status
        self.attempts = 0
        self.may_retry = may_retry
        self.retry_after_seconds = retry_after_seconds
        self.code = code
        self.detail = detail

    def __str__(self) -> str:
        status = f", status {self.status}" if self.status is not None else ""
        return f"{self.reason}{status}, {self.attempts} attempts"


class UpstreamUnreachable(UpstreamError):
    pass


class UpstreamTimeout(UpstreamError):
    pass


class UpstreamRefused(UpstreamError):
    pass


class UpstreamFailed(UpstreamError):
    pass


class UpstreamBroken(UpstreamError):
    pass


class UpstreamFiltered(UpstreamError):
    pass


class UpstreamEmpty(UpstreamError):
    pass


def status_error(status: int, body: bytes, retry_after_seconds: float | None) -> UpstreamError:
    """The error that an answer outside of 2xx means; `body` is the beginning of what came with it."""
    code, detail = _told(body)
    if status < 400:
        return UpstreamBroken("redirected" if status >= 300 else "malformed", status=status)
    if status < 500 and _FILTERED.search(code):
        return UpstreamFiltered("content_filter", status=status, code=code)
    kind, reason = _kind(status)
    return kind(
        reason,
        status=status,
        may_retry=status in _RETRYABLE or status >= 500,
        retry_after_seconds=retry_after_seconds,
        code=code,
        detail=detail,
    )


def stream_error(told: Any) -> UpstreamError:
    """The error that an error object inside of an answer with status 200 means."""
    code, detail = _names(told)
    status = _status_in(told)
    if _FILTERED.search(code):
        return UpstreamFiltered("content_filter", code=code)
    if status is not None and status >= 400:
        kind, reason = _kind(status)
        may_retry = status in _RETRYABLE or status >= 500
        return kind(reason, status=status, may_retry=may_retry, code=code, detail=detail)
    may_retry = not _CALLERS_FAULT.search(code)
    return UpstreamFailed("error_in_stream", may_retry=may_retry, code=code, detail=detail)


def _kind(status: int) -> tuple[type[UpstreamError], Reason]:
    if status >= 500:
        return UpstreamFailed, "server_error"
    reasons: dict[int, Reason] = {
        401: "unauthorized",
        403: "unauthorized",
        404: "not_found",
        429: "rate_limited",
    }
    return UpstreamRefused, reasons.get(status, "refused")


def _told(body: bytes) -> tuple[str, str]:
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return "", body[:_MAX_DETAIL_CHARS].decode("utf-8", "replace")
    if isinstance(answer, dict) and answer.get("error"):
        return _names(answer["error"])
    return _names(answer)


def _names(told: Any) -> tuple[str, str]:
    """(code, detail) of `{"code", "type", "param", "message"}`, FastAPI's `{"detail"}`, or a mere text."""
    if not isinstance(told, dict):
        return "", str(told)[:_MAX_DETAIL_CHARS] if isinstance(told, str) else ""
    names = [told.get(key) for key in ("code", "type")]
    code = next((name for name in names if isinstance(name, str) and _CODE.fullmatch(name)), "")
    words = [*names, *(told.get(key) for key in ("param", "message", "msg")), *_problems(told.get("detail"))]
    return code, " ".join(word for word in words if isinstance(word, str))[:_MAX_DETAIL_CHARS]


def _problems(detail: Any) -> list[Any]:
    """The words of a FastAPI `detail`. Its `input` is left out: it quotes the request, prompt and all."""
    if isinstance(detail, str):
        return [detail]
    if not isinstance(detail, list):
        return []
    entries = [entry for entry in detail[:8] if isinstance(entry, dict)]
    places = [entry["loc"] for entry in entries if isinstance(entry.get("loc"), list)]
    return [entry.get("msg") for entry in entries] + [part for place in places for part in place[:8]]


def _status_in(told: Any) -> int | None:
    if not isinstance(told, dict):
        return None
    for key in ("status", "status_code", "code"):
        value = told.get(key)
        if isinstance(value, str) and re.fullmatch(r"[1-5]\d\d", value):
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and 100 <= value < 600:
            return value
    return None
