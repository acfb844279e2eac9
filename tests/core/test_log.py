from __future__ import annotations

import json
import logging

import pytest

from cg_rag.core.log import JsonFormatter, TextFormatter, request_id_var


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
