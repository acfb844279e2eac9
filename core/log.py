"""One line per event, as JSON or as text, on standard error or in a file. A request writes exactly one line.

Rule: a line never holds keys, prompts or image data, and questions and answers only where `log.contents` says so. Times carry their offset from UTC, because sites read
logs in local time.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any, Literal, TextIO

import orjson

from cg_rag.core.log_file import LogFile

# The id of the request that the current task works for; "" outside of requests.
request_id_var: ContextVar[str] = ContextVar("request_id", default="")

logger = logging.getLogger("cg_rag")

# From syslog(3).
_SEVERITIES = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))


def log_event(level: int, event: str, **fields: Any) -> None:
    """Write one line with `event` and `fields` (JSON-able)."""
    if logger.isEnabledFor(level):
        logger.log(level, event, extra={"fields": fields})


class LineFormatter(logging.Formatter):
    """`zone` is that of the times, a fixed offset or None for the system's; `fixed` stands in every line."""

    def __init__(self, zone: tzinfo | None = None, fixed: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        offset = zone.utcoffset(None) if zone is not None else None
        self._offset_seconds = None if offset is None else int(offset.total_seconds())
        self.fixed = fixed or {}

    def time_of(self, record: logging.LogRecord) -> str:
        """ISO 8601 with milliseconds and offset.

        Not by an aware datetime: each question for its offset leaves a name in CPython's cache of attributes, and up
        to 4096 such names, one per line, keep apart the memory that a burst of requests has freed.
        """
        seconds, microseconds = divmod(round(record.created * 1_000_000), 1_000_000)
        if self._offset_seconds is None:
            moment = time.localtime(seconds)
            offset = moment.tm_gmtoff
        else:
            offset = self._offset_seconds
            moment = time.gmtime(seconds + offset)
        hours, minutes = divmod(abs(offset) // 60, 60)
        sign = "-" if offset < 0 else "+"
        text = time.strftime("%Y-%m-%dT%H:%M:%S", moment)
        return f"{text}.{microseconds // 1000:03d}{sign}{hours:02d}:{minutes:02d}"


def _record_fields(record: logging.LogRecord, formatter: LineFormatter) -> dict[str, Any]:
    line: dict[str, Any] = {
        "time": formatter.time_of(record),
        "level": record.levelname.lower(),
        "event": record.getMessage(),
        **formatter.fixed,
    }
    if record.name != logger.name:
        line["logger"] = record.name
    request_id = request_id_var.get()
    if request_id:
        line["request_id"] = request_id
    line.update(getattr(record, "fields", {}))
    if record.exc_info:
        line["traceback"] = formatter.formatException(record.exc_info)
    return line


# What a terminal obeys or a reader takes for a line end; JSON lets it through. All of it stands inside strings, where
# the escape means the same.
_UNPRINTABLE = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def _dump(value: object) -> str:
    """JSON on one line, whatever the value is: a log line must never raise."""
    try:
        text = orjson.dumps(value, default=repr).decode()
    except TypeError:  # lone surrogates, integers above 64 bit
        text = json.dumps(value, default=repr)
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


class JsonFormatter(LineFormatter):
    def format(self, record: logging.LogRecord) -> str:
        return _dump(_record_fields(record, self))


class TextFormatter(LineFormatter):
    """`time level event key=value …`; values are JSON, so that no text of a caller's breaks the line."""

    def format(self, record: logging.LogRecord) -> str:
        line = _record_fields(record, self)
        head = f"{line.pop('time')} {line.pop('level'):<7} {line.pop('event')}"
        traceback = line.pop("traceback", "")
        pairs = [f"{key}={_dump(value)}" for key, value in line.items()]
        return " ".join([head, *pairs]) + (f"\n{traceback}" if traceback else "")


def _make_formatter(
    style: Literal["json", "text"], zone: tzinfo | None, fixed: Mapping[str, Any]
) -> LineFormatter:
    return JsonFormatter(zone, fixed) if style == "json" else TextFormatter(zone, fixed)


class JournalFormatter(logging.Formatter):
    """The lines of another formatter with their severity in front, as journald takes it off again (sd-daemon(3))."""

    def __init__(self, lines: logging.Formatter) -> None:
        super().__init__()
        self._lines = lines

    def format(self, record: logging.LogRecord) -> str:
        severity = next((code for level, code in _SEVERITIES if record.levelno >= level), 7)
        return "\n".join(f"<{severity}>{line}" for line in self._lines.format(record).split("\n"))


def is_journal(stream: TextIO, told: str | None) -> bool:
    """Whether what is written to `stream` goes to journald; `told` is JOURNAL_STREAM (systemd.exec(5))."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return told == f"{status.st_dev}:{status.st_ino}"


def setup_logging(
    level: str,
    style: Literal["json", "text"],
    file: Path | None = None,
    utc_offset: str = "",
    **fixed: Any,
) -> None:
    """Send everything to standard error, or to `file`, in one form. Libraries are heard from `warning` on.

    `utc_offset` is "+08:00" and the like, "" for the system's; `fixed` are fields of every line. Raises OSError for a
    file that cannot be opened.
    """
    handler: logging.Handler = logging.StreamHandler(sys.stderr) if file is None else LogFile(file)
    formatter: logging.Formatter = _make_formatter(style, parse_utc_offset(utc_offset), fixed)
    if file is None and is_journal(sys.stderr, os.environ.get("JOURNAL_STREAM")):
        formatter = JournalFormatter(formatter)
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logger.setLevel(level)


def parse_utc_offset(text: str) -> tzinfo | None:
    """ "+08:00" as a zone; None for "", which is the system's."""
    if not text:
        return None
    hours, minutes = text[1:].split(":")
    offset = timedelta(hours=int(hours), minutes=int(minutes))
    return timezone(-offset if text[0] == "-" else offset)
