from __future__ import annotations

import io
import json
import logging
import os
import sys
from datetime import datetime
from pathlib import Path

import pytest

from cg_rag.core.log import (
    JournalFormatter,
    JsonFormatter,
    TextFormatter,
    is_journal,
    parse_utc_offset,
    request_id_var,
)


def record(fields: dict[str, object] | None = None, **options: object) -> logging.LogRecord:
    made = logging.LogRecord("cg_rag", logging.INFO, __file__, 1, "request", (), None)
    made.__dict__.update({"fields": fields or {}}, **options)
    return made


@pytest.mark.parametrize(
    "value", ["\ud800", 2**70, object(), {"a": {1, 2}}, "line\nbreak\x1b[31m", float("nan")]
)
@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()], ids=["json", "text"])
def test_any_value_is_one_printable_line(formatter: logging.Formatter, value: object) -> None:
    line = formatter.format(record({"value": value}))
    assert "\n" not in line
    assert "\x1b" not in line
    line.encode("utf-8")


def test_line_carries_the_request_id_of_its_task() -> None:
    token = request_id_var.set("req_7")
    try:
        assert json.loads(JsonFormatter().format(record()))["request_id"] == "req_7"
    finally:
        request_id_var.reset(token)
    assert "request_id" not in json.loads(JsonFormatter().format(record()))


def test_time_has_an_offset() -> None:
    time = json.loads(JsonFormatter().format(record()))["time"]
    assert time[-6] in "+-"


def test_traceback_is_inside_the_line() -> None:
    try:
        raise ValueError("broken")
    except ValueError as error:
        made = record(exc_info=(ValueError, error, error.__traceback__))
    line = JsonFormatter().format(made)
    assert "\n" not in line
    assert "ValueError: broken" in json.loads(line)["traceback"]


@pytest.mark.parametrize(
    ("offset", "shown"), [("+08:00", "+08:00"), ("-03:30", "-03:30"), ("+00:00", "+00:00")]
)
def test_time_is_that_of_the_offset_whatever_the_system_says(offset: str, shown: str) -> None:
    made = record()
    time = json.loads(JsonFormatter(parse_utc_offset(offset)).format(made))["time"]
    assert time.endswith(shown)
    assert datetime.fromisoformat(time).timestamp() == pytest.approx(made.created, abs=0.001)


def test_no_offset_is_the_zone_of_the_system() -> None:
    made = record()
    time = json.loads(JsonFormatter(parse_utc_offset("")).format(made))["time"]
    assert datetime.fromisoformat(time).utcoffset() == datetime.now().astimezone().utcoffset()


@pytest.mark.parametrize(
    ("level", "severity"),
    [(logging.DEBUG, 7), (logging.INFO, 6), (logging.WARNING, 4), (logging.ERROR, 3), (logging.CRITICAL, 3)],
)
def test_journal_is_told_the_severity_of_every_line(level: int, severity: int) -> None:
    try:
        raise ValueError("broken")
    except ValueError as error:
        made = record(exc_info=(ValueError, error, error.__traceback__), levelno=level)
    lines = JournalFormatter(TextFormatter()).format(made).split("\n")
    assert len(lines) > 2
    assert all(line.startswith(f"<{severity}>") for line in lines)


def test_only_the_stream_that_the_journal_named_is_the_journal(tmp_path: Path) -> None:
    with (tmp_path / "x").open("w") as stream:
        status = os.fstat(stream.fileno())
        assert is_journal(stream, f"{status.st_dev}:{status.st_ino}")
        assert not is_journal(stream, f"{status.st_dev}:{status.st_ino + 1}")
        assert not is_journal(stream, None)
    assert not is_journal(io.StringIO(), "1:1")


def test_lines_leave_no_names_in_the_cache_of_attributes() -> None:
    # An aware datetime leaves one per line: 200 of these 3000, and each keeps a MiB of a burst's memory from being freed.
    formatter = JsonFormatter()
    formatter.format(record())
    before = sys.getallocatedblocks()
    for _ in range(3000):
        formatter.format(record())
    assert sys.getallocatedblocks() - before < 50
