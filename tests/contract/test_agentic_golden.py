"""Whole streams of the agentic mode, and what the model was told, held to the files in tests/golden/agentic.

`pytest --update-golden` writes them anew; the difference is reviewed like code.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.agentic_app import agentic_app, told, without_times
from tests.agentic_invariants import check_answer, check_stream
from tests.agentic_scenarios import SCENARIOS
from tests.sse_checker import StreamChecker

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "agentic"
BETWEEN = "\n======== 模型收到 ========\n"


@pytest.mark.parametrize("name", SCENARIOS)
async def test_stream_is_as_reviewed(
    name: str, tmp_path: Path, small_index: Path, request: pytest.FixtureRequest
) -> None:
    scenario = SCENARIOS[name]
    async with agentic_app(tmp_path, small_index, scenario) as app:
        _, body = await app.post("/vision/agentic/stream", **scenario.request)
        assert app.upstream.num_left == 0, "the model was not asked as often as the scenario says"
        assert app.services.vision_slots.in_use == app.services.retrieval_slots.in_use == 0
        written = without_times(body) + BETWEEN + told(app.upstream, app.services)
        rules = app.services.vision_texts.rules
    stream = StreamChecker(body)
    assert stream.terminal.name == ("final" if scenario.ending == "final" else "error")
    check_stream(stream, rules)
    if scenario.ending == "final":
        check_answer(stream.final, rules)
    else:
        assert stream.error_code == scenario.ending
    file = GOLDEN / f"{name}.txt"
    if request.config.getoption("--update-golden"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(written, "utf-8")
    assert written == file.read_text("utf-8")


def test_every_golden_file_has_its_scenario() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(SCENARIOS)


@pytest.mark.parametrize("name", ["clean", "salvage", "no_site", "controller", "failed_retrieval_strict"])
async def test_plain_route_answers_what_the_stream_ends_with(
    name: str, tmp_path: Path, small_index: Path
) -> None:
    scenario = SCENARIOS[name]
    async with agentic_app(tmp_path, small_index, scenario) as app:
        _, streamed = await app.post("/vision/agentic/stream", **scenario.request)
        app.upstream.enqueue(*scenario.replies)
        status, plain = await app.post(**scenario.request)
    ended = StreamChecker(streamed).terminal.data
    answer = json.loads(plain)
    if scenario.ending == "final":
        assert status == 200
        times = {"runtime_stats": None}
        assert answer | times == ended | times
    else:
        assert (status, answer["error"]) == (502, ended["error"])
