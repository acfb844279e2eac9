"""docs/vision.md, 智能生成, held to a running service: commands as printed, each row of its tables, each code, MCP."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cg_rag.core.profile import PROFILES
from tests.agentic_scenarios import (
    CORRECTED,
    FORGED,
    HALF_FORGED,
    INVENTORY,
    PICTURE,
    PLAN,
    SCENARIOS,
    WRITTEN,
)
from tests.conftest import StartServer, write_jsonl
from tests.contract.test_vision_page import ANSWERS, COMMANDS, MCP_ON, PAGE, call_tool, run, shared
from tests.fake_upstream import Script, error, says, upstream_in_thread
from tests.generating import wait_for, without_times
from tests.mcp_wire import checked_result, post, tool_call
from tests.pictures import text_of
from tests.seeing import PLAIN_QUESTION, Service, seeing
from tests.sse_checker import StreamChecker

PATH = "/vision/agentic"
PRINTED = next(answer for answer in ANSWERS if answer.get("mode") == "agentic")
COMMAND, STREAM_COMMAND = (command for command in COMMANDS if "vision/agentic" in command)
OVERALL = (INVENTORY, says(PLAN), says(WRITTEN))


@pytest.fixture(scope="module")
def service(start_server: StartServer) -> Iterator[Service]:
    """Over the small index of the tests."""
    with seeing(start_server, MCP_ON) as service:
        yield service


@pytest.fixture(scope="module")
def printed(start_server: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Over an index of the articles that the page prints."""
    from cg_rag.index.build import SourceSpec, build_index

    folder = tmp_path_factory.mktemp("printed")
    source = write_jsonl(folder / "codes.jsonl", PRINTED["retrieval_docs"])
    build_index([SourceSpec(source, "codes", ())], folder / "index", None)
    with seeing(lambda settings: start_server(settings, index_dir=folder / "index")) as service:
        yield service


SCENES = ["assessable", "unsupported_scene", "insufficient_visual_evidence"]


@pytest.mark.parametrize("scene", SCENES)
def test_a_question_that_asks_for_no_report_is_not_assessed_whatever_the_observation_says(
    service: Service, scene: str
) -> None:
    said = says(f"[OBSERVATION]\n室内会议桌。\n场景：{scene}\n[ANSWER]\n一张会议桌。\n")
    final = service.post(said, path=PATH, question=PLAIN_QUESTION).json
    assert (final["answer"], final["scene_status"]) == ("一张会议桌。", "not_assessed")
    assert (final["hazard_categories"], final["warnings"]) == ([], [])


def turns_of(payload: dict[str, Any]) -> tuple[Script, ...]:
    """What the model says so that this comes of it."""
    stages = {stage["label"]: stage["content"] for stage in payload["reasoning_stages"]}
    first = "".join(f"[{label}]\n{stages[label]}\n" for label in ("OBSERVATION", "SEARCH_PLAN"))
    second = "".join(f"[{label}]\n{stages[label]}\n" for label in ("EVIDENCE_REVIEW", "FINAL_REASONING"))
    usage = payload["usage"]
    nothing = dict.fromkeys(usage, 0)
    return (
        says("一、人员与防护\n未见", usage=nothing),
        says(first, usage=nothing),
        says(f"{second}[ANSWER]\n{payload['answer']}\n", usage=usage),
    )


def test_the_command_answers_as_printed(printed: Service, tmp_path: Path) -> None:
    payload = json.loads(run(printed, COMMAND, tmp_path, 2000, *turns_of(PRINTED)))
    assert payload.keys() == PRINTED.keys()
    assert shared(payload) == shared(PRINTED)
    assert payload["runtime_stats"].keys() == PRINTED["runtime_stats"].keys()


def test_the_command_for_the_stream_streams_as_printed(printed: Service, tmp_path: Path) -> None:
    stream = StreamChecker(run(printed, STREAM_COMMAND, tmp_path, 2000, *turns_of(PRINTED)))
    block = next(block for block in re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL) if "trace" in block)
    for line in re.findall(r"^data: (.*)$", block, re.MULTILINE):
        if "…" not in line:
            assert line.encode() in [event.raw for event in stream.events]
    assert shared(stream.final) == shared(PRINTED)
    assert "answer_reset" not in stream.names


def test_every_field_of_the_answer_is_in_the_tables(service: Service) -> None:
    answer = service.post(*OVERALL, path=PATH, history=[{"query": "a", "answer": "b", "turn_index": 0}])
    section = PAGE.split("## POST /cg-rag/vision/answer")[1].split("## POST /cg-rag/vision/observe")[0]
    rows = re.findall(r"^\| ([a-z_]+(?:, [a-z_]+)*) \|", section, re.MULTILINE)
    told = {name for row in rows for name in row.split(", ")} | {"ok", "request_id", "mode", "question"}
    assert set(answer.json) <= told


def test_every_step_that_is_announced_is_in_the_table(service: Service) -> None:
    stream = service.stream(*OVERALL[:2], says(FORGED), says(CORRECTED), path=PATH)
    told = re.findall(r"^\| (vision\.[a-zN.]+) \| (\w+) \|", PAGE, re.MULTILINE)
    seen = {
        (re.sub(r"\d", "N", event.data["event_id"]), event.data["kind"]) for event in stream.named("agent")
    }
    assert seen == set(told)
    running = {event.data["event_id"] for event in stream.named("agent") if event.data["status"] == "running"}
    done = {event.data["event_id"] for event in stream.named("agent") if event.data["status"] == "done"}
    assert running == done


def test_the_table_of_profiles_is_the_profiles() -> None:
    rows = re.findall(r"^\| (e10|continuous_base|controller|controller_wip) \|(.*)\|$", PAGE, re.MULTILINE)
    assert [name for name, _ in rows] == list(PROFILES)
    for name, row in rows:
        profile, cells = PROFILES[name], [cell.strip() for cell in row.split("|")]
        assert cells[0] == profile.workflow
        assert cells[1:6] == [
            "有" if profile.inventory else "无",
            "是" if profile.publishes else "否",
            str(profile.upstream_retries),
            "是" if profile.strict_retrieval_failure else "否",
            "是" if profile.aligns_citations else "否",
        ]
        assert ("二次观察" in cells[6]) == profile.second_look == profile.coverage_search
        assert float(cells[7]) == profile.total_budget_seconds


# --- failures ----------------------------------------------------------------------------------------------------

FAILURES: list[tuple[str, int, tuple[Script, ...], dict[str, Any]]] = [
    ("invalid_image", 400, (), {"images": [{"data": text_of(b"GIF89a" + bytes(9))}]}),
    ("invalid_request", 400, (), {"max_search_rounds": 4}),
    ("invalid_request", 400, (), {"topk": 0}),
    ("invalid_request", 400, (), {"scope": "nowhere"}),
    ("vision_upstream_error", 502, (error(401),), {}),
    ("vision_response_invalid", 502, (INVENTORY, *(says("看到了。") for _ in range(3))), {}),
]


@pytest.mark.parametrize(("code", "status", "replies", "fields"), FAILURES)
def test_each_code_through_http_stream_and_mcp(
    service: Service, code: str, status: int, replies: tuple[Script, ...], fields: dict[str, Any]
) -> None:
    answer = service.post(*replies, path=PATH, **fields)
    assert (answer.status, answer.code) == (status, code)
    streamed = service.stream(*replies, path=PATH, **fields)
    assert streamed.error_code == code
    assert streamed.terminal.data["error"] == answer.json["error"]
    service.upstream.forget()
    service.upstream.enqueue(*replies)
    envelope = call_tool(service, "cg_vision_agentic", {"images": [PICTURE]} | fields)
    assert (envelope["ok"], envelope["error"]["code"]) == (False, code)


def test_an_unknown_scope_is_told_with_those_there_are(service: Service) -> None:
    answer = service.post(path=PATH, scope="")
    assert answer.json["error"]["details"]["available_scopes"] == ["full", "usual", "usual_plus_law"]


def test_without_an_index_or_a_model_it_is_told_which(start_server: StartServer, tmp_path: Path) -> None:
    body = {"images": [PICTURE]}
    with upstream_in_thread() as upstream:
        vision = f"  vision: {{endpoint: '{upstream.url}', model: vlm}}\n"
        server = start_server(vision, index_dir=tmp_path / "none")
        wait_for(lambda: server.get("/health").json["index"]["state"] == "missing")
        assert (server.post(PATH, body).status, server.post(PATH, body).code) == (503, "index.not_ready")
        assert upstream.requests == []
    bare = start_server(f"  embedding: {{provider: none}}\n{MCP_ON}")
    bare.wait_ready()
    assert bare.post(PATH, body).code == "vision_not_configured"
    envelope = checked_result(post(bare, tool_call("cg_vision_agentic", body)).json)
    assert envelope["error"]["code"] == "vision_not_configured"


def test_the_mcp_tool_answers_what_http_answers(service: Service) -> None:
    answer = service.post(*OVERALL, path=PATH)
    service.upstream.enqueue(*OVERALL)
    envelope = call_tool(service, "cg_vision_agentic", {"images": [PICTURE]})
    assert (envelope["ok"], envelope["operation_ok"], envelope["message"]) == (True, True, "")
    assert without_times(envelope["data"]) == without_times(answer.json)


# --- the request -------------------------------------------------------------------------------------------------


def test_scope_rounds_and_topk_are_those_of_the_request(service: Service) -> None:
    answer = service.post(
        INVENTORY,
        says(PLAN),
        says(WRITTEN),
        path=PATH,
        scope="usual",
        topk=1,
        max_search_rounds=1,
    )
    assert answer.json["scope"] == "usual"
    assert len(answer.json["retrieval_docs"]) == 1
    assert "最多检索 1 轮" in service.upstream.requests[-2].json["messages"][-1]["content"]


def test_earlier_turns_and_their_pictures_come_before_the_question(service: Service) -> None:
    history = [{"query": "先前", "answer": "依据 [cite^7]。", "turn_index": 0}]
    images = [PICTURE | {"source_turn_index": 0}]
    answer = service.post(*OVERALL, path=PATH, history=history, images=images)
    assert answer.json["history_turn_count"] == 1
    assert answer.json["citations"] == [1]
    system, query, said, asked, *_ = service.upstream.requests[-1].json["messages"]
    assert (query["content"], said["content"]) == ("先前", "依据 [cite^7]。")
    assert asked["content"][0]["text"] == "（来自第 1 轮）"
    assert system["role"] == "system"


def test_the_system_message_is_the_pinned_file_then_the_criteria(service: Service) -> None:
    from cg_rag import prompts

    service.post(*OVERALL, path=PATH)
    criteria = prompts.load("vision/criteria_2024.txt").text
    for request in service.upstream.requests[-3:]:
        prompt = prompts.load("vision/agentic/continuous.txt")
        assert request.json["messages"][0]["content"] == f"{prompt.text}\n\n{criteria}"
    assert service.server.get("/health").json["vision"]["agentic_prompt_sha256"] == prompt.sha256


def test_a_salvaged_report_says_so_through_every_interface(service: Service) -> None:
    replies = SCENARIOS["salvage"].replies
    answer = service.post(*replies, path=PATH)
    assert answer.json["citations"] == [1]
    assert any("发布的是按规则修正后的草稿" in warning for warning in answer.json["warnings"])
    body = service.post(*replies, path=f"{PATH}/stream").body
    assert without_times(StreamChecker(body).final) == without_times(answer.json)
    assert "cite^9" in HALF_FORGED
    assert b"cite^9" not in body
