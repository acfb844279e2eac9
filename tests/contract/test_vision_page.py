"""docs/vision.md and docs/mcp.md held to a running service: each printed command, each code, each MCP tool."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartServer
from tests.fake_upstream import Hang, Reply, Script, error, says
from tests.generating import streaming, wait_for
from tests.mcp_wire import checked_result, post, tool_call
from tests.pictures import jpeg, text_of
from tests.seeing import PICTURE, REPORT, Service, seeing
from tests.sse_checker import StreamChecker

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "vision.md").read_text("utf-8")
COMMANDS = [block for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) if "curl" in block]
ANSWERS = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)]
OBSERVED = {
    "description": "图中可见施工区域地面存在积水。",
    "hazard_label": "场地积水问题",
    "hazard_description": "场地中部积水未排除。",
    "suggestions": ["及时排除积水。"],
    "is_non_scene": False,
}
OWN = {"request_id", "runtime_stats", "elapsed_ms", "system_prompt_sha256", "model"}
MCP_ON = "  mcp: {enabled: true}\n"


@pytest.fixture(scope="module")
def service(start_server: StartServer) -> Iterator[Service]:
    with seeing(start_server, MCP_ON) as service:
        yield service


def run(service: Service, command: str, folder: Path, size: int, *replies: Script) -> bytes:
    """A command as printed, beside a site.jpg of `size` bytes."""
    (folder / "site.jpg").write_bytes(jpeg(size=size))
    service.upstream.forget()
    service.upstream.enqueue(*replies)
    command = command.replace("127.0.0.1:8864", f"127.0.0.1:{service.server.port}")
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def shared(payload: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in payload.items() if key not in OWN}


def test_the_page_prints_these_commands() -> None:
    routes = [re.findall(r"/cg-rag/(\S+)", command)[0] for command in COMMANDS]
    assert routes == [
        "vision/answer",
        "vision/answer",
        "vision/agentic",
        "vision/observe",
        "vision/hybrid",  # tests/contract/test_vision_hybrid.py
        "vision/answer/stream",
        "vision/agentic/stream",
    ]
    assert "--data-binary @-" in COMMANDS[1]


@pytest.mark.parametrize(("place", "size"), [(0, 95_000), (1, 3_000_000)])
def test_the_commands_for_answer_answer_as_printed(
    service: Service, tmp_path: Path, place: int, size: int
) -> None:
    printed = ANSWERS[0]
    reply = says(printed["answer"], usage=printed["usage"])
    payload = json.loads(run(service, COMMANDS[place], tmp_path, size, reply))
    assert shared(payload) == shared(printed)
    assert payload.keys() == printed.keys()
    assert place or payload["request_id"] == printed["request_id"]


def test_the_command_for_observe_answers_as_printed(service: Service, tmp_path: Path) -> None:
    printed = ANSWERS[2]
    reply = says(json.dumps(OBSERVED, ensure_ascii=False), usage=printed["usage"])
    payload = json.loads(run(service, COMMANDS[3], tmp_path, 2000, reply))
    assert shared(payload) == shared(printed)
    assert payload.keys() == printed.keys()
    schema = service.upstream.requests[-1].json["response_format"]["json_schema"]["schema"]
    assert len(schema["properties"]["hazard_label"]["enum"]) == 63


def test_the_command_for_the_stream_streams_as_printed(service: Service, tmp_path: Path) -> None:
    stream = StreamChecker(run(service, COMMANDS[5], tmp_path, 2000, says(REPORT)))
    printed = re.search(r"```text\n(event: progress.*?)```", PAGE, re.DOTALL)
    assert printed
    names = re.findall(r"^event: (\w+)$", printed[1], re.MULTILINE)
    assert list(dict.fromkeys(stream.names)) == list(dict.fromkeys(names))
    for line in re.findall(r"^data: (.*)$", printed[1], re.MULTILINE):
        if '"stage"' in line:
            assert line.encode() in [event.raw for event in stream.events]


# Code -> what brings it about.
FAILURES: list[tuple[str, int, tuple[Script, ...], dict[str, Any]]] = [
    ("invalid_image", 400, (), {"images": [{"data": text_of(b"GIF89a" + bytes(9))}]}),
    ("invalid_request", 400, (), {"question": 5}),
    ("vision_upstream_error", 502, (error(401),), {}),
    ("vision_response_invalid", 502, (says(""), says("")), {}),
]


@pytest.mark.parametrize(("code", "status", "replies", "fields"), FAILURES)
def test_each_code_of_the_table_through_http_stream_and_mcp(
    service: Service, code: str, status: int, replies: tuple[Script, ...], fields: dict[str, Any]
) -> None:
    for path in ("/vision/answer", "/vision/observe"):
        answer = service.post(*replies, path=path, **fields)
        assert (answer.status, answer.code) == (status, code)
    streamed = service.stream(*replies, **fields)
    assert streamed.error_code == code
    service.upstream.forget()
    service.upstream.enqueue(*replies)
    envelope = call_tool(service, "cg_vision_answer", {"images": [PICTURE]} | fields)
    assert (envelope["ok"], envelope["error"]["code"]) == (False, code)
    assert "operation_ok" not in envelope


def call_tool(service: Service, name: str, arguments: dict[str, Any]) -> Any:
    return checked_result(post(service.server, tool_call(name, arguments)).json)


def test_the_codes_of_service_and_load_through_http_stream_and_mcp(start_server: StartServer) -> None:
    bare = start_server(f"  embedding: {{provider: none}}\n{MCP_ON}")
    bare.wait_ready()
    body = {"images": [PICTURE]}
    assert (bare.post("/vision/answer", body).status, bare.post("/vision/answer", body).code) == (
        503,
        "vision_not_configured",
    )
    assert bare.post("/vision/observe", body).code == "vision_not_configured"
    assert StreamChecker(bare.post("/vision/answer/stream", body).body).error_code == "vision_not_configured"
    envelope = checked_result(post(bare, tool_call("cg_vision_observe", body)).json)
    assert envelope["error"]["code"] == "vision_not_configured"
    capacity = "  capacity: {generation: {max: 1}, wait_timeout_seconds: 0.1}\n"
    with seeing(start_server, capacity + MCP_ON) as service:
        service.upstream.enqueue(Reply([Hang()]))
        with streaming(service.server, "/vision/answer", body) as response:
            response.read1()
            wait_for(lambda: len(service.upstream.requests) == 1)
            assert service.server.post("/vision/observe", body).code == "capacity.exceeded"
            assert service.stream().error_code == "capacity.exceeded"
            assert call_tool(service, "cg_vision_answer", body)["error"]["details"]["max"] == 1
    with seeing(start_server, total_budget_seconds=1) as service:
        assert service.stream(Reply([Hang()])).error_code == "vision_budget_exceeded"


def test_the_message_for_a_picture_that_is_too_large_is_the_printed_one(service: Service) -> None:
    answer = service.post(images=[{"data": text_of(jpeg(size=20_971_520))}])
    printed = ANSWERS[-1]
    assert answer.status == 400
    assert answer.json["error"] == printed["error"]


def test_the_mcp_tools_answer_what_http_answers(service: Service) -> None:
    service.upstream.forget()
    service.upstream.enqueue(says(REPORT), says(json.dumps(OBSERVED, ensure_ascii=False)), says("看不懂。"))
    arguments = {"images": [PICTURE], "question": "请检测图中的安全隐患"}
    answered = call_tool(service, "cg_vision_answer", arguments)
    assert (answered["ok"], answered["operation_ok"], answered["message"]) == (True, True, "")
    assert (answered["data"]["answer"], answered["data"]["mode"]) == (REPORT, "free_form")
    observed = call_tool(service, "cg_vision_observe", arguments)
    assert observed["data"]["hazard_label"] == "场地积水问题"
    failed = call_tool(service, "cg_vision_observe", arguments)
    assert (failed["operation_ok"], failed["data"]["parse_status"]) == (True, "failed")
    assert failed["data"]["text"] == "看不懂。"


def test_health_tells_that_photos_can_be_looked_at(service: Service) -> None:
    vision = service.server.get("/health").json["vision"]
    assert (vision["configured"], vision["model"]) == (True, "vlm")
    assert len(vision["prompt_sha256"]) == len(vision["criteria_sha256"]) == 64
