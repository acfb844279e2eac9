"""One line per event, as JSON or as text, on standard error. A request writes exactly one line.

Rule: a line never holds keys, prompts, questions or image data. Times carry their offset from UTC, because sites read
logs in local time.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Literal

import orjson

# The id of the request that the current task works for; "" outside of requests.
request_id_var: ContextVar[str] = ContextVar("request_id", default="")

logger = logging.getLogger("cg_rag")


def log_event(level: int, event: str, **fields: Any) -> None:
    """Write one line with `event` and `fields` (JSON-able)."""
    if logger.isEnabledFor(level):
        logger.log(level, event, extra={"fields": fields})


def _record_fields(record: logging.LogRecord, formatter: logging.Formatter) -> dict[str, Any]:
    line: dict[str, Any] = {
        "time": datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds"),
        "level": record.levelname.lower(),
        "event": record.getMessage(),
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


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return _dump(_record_fields(record, self))


class TextFormatter(logging.Formatter):
    """`time level event key=value …`; values are JSON, so that no text of a caller's breaks the line."""

    def format(self, record: logging.LogRecord) -> str:
        line = _record_fields(record, self)
        head = f"{line.pop('time')} {line.pop('level'):<7} {line.pop('event')}"
        traceback = line.pop("traceback", "")
        pairs = [f"{key}={_dump(value)}" for key, value in line.items()]
        return " ".join([head, *pairs]) + (f"\n{traceback}" if traceback else "")


def setup_logging(level: str, style: Literal["json", "text"]) -> None:
    """Send everything to standard error in one form. Libraries are heard from `warning` on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logger.setLevel(level)
