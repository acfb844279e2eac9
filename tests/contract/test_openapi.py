"""openapi.json against the service: every route is described, and what it describes is what comes.

Every other test that asks a real process holds each of its answers to the document too (tests/answer_checker.py).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from cg_rag.modes import MODES, STREAMS
from cg_rag.modes.answers import ANSWERS, STREAM_EVENTS
from tests.answer_checker import BASE_PATH, check, check_answer, closed, document, gets, pointer
from tests.conftest import StartServer
from tests.fake_upstream import FakeUpstream, error, says
from tests.generating import GENERATE, NO_VECTORS, RAG
from tests.server_process import ServerProcess

KEY = "key-of-the-site-0001"


@pytest.fixture(scope="module")
def server(start_server: StartServer, upstream: FakeUpstream) -> ServerProcess:
    server = start_server(
        f"  server: {{api_keys: {{site-a: {KEY}}}}}\n"
        f"  generation: {{endpoint: '{upstream.url}', model: m}}\n{NO_VECTORS}"
    )
    server.wait_ready()
    return server


def test_every_route_with_a_json_answer_has_its_type_and_every_stream_its_events() -> None:
    answering = {get.path for get in gets() if get.media_type == "application/json"}
    assert answering | set(MODES) <= set(ANSWERS)
    assert set(STREAMS) <= set(STREAM_EVENTS)


def test_document_is_what_the_service_gives(server: ServerProcess) -> None:
    given = server.get("/openapi.json", X_API_Key=KEY).json
    given["info"]["version"] = document()["info"]["version"]
    assert given == document()


def test_schemas_are_schemas_and_every_reference_leads_somewhere() -> None:
    for schema in document()["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    text = json.dumps(document())
    for name in {part.partition('"')[0] for part in text.split('"$ref": "#/components/')[1:]}:
        kind, _, entry = name.partition("/")
        assert entry in document()["components"][kind], name


def test_operation_ids_are_distinct_and_everything_is_said_in_chinese() -> None:
    operations = [operation for path in document()["paths"].values() for operation in path.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names)
    assert not [operation for operation in operations if operation["summary"].isascii()]
    assert not [text for text in descriptions(document()) if text.isascii()]


def descriptions(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for item in node:
            yield from descriptions(item)
    elif isinstance(node, dict):
        if isinstance(node.get("description"), str):
            yield node["description"]
        for value in node.values():
            yield from descriptions(value)


def test_stream_names_the_schema_of_each_event() -> None:
    content = document()["paths"][f"{BASE_PATH}/rag/stream"]["post"]["responses"]["200"]["content"]
    events = content["text/event-stream"]["x-events"]
    assert set(events) == {"progress", "token", "answer_reset", "retrieval", "final", "error"}
    assert events["final"] == {"$ref": "#/components/schemas/RagAnswer"}


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize(
    "replies",
    [
        [says('{"indices":[1]}', thinking="想")],
        [says("无"), says('{"indices":[]}')],
        [says("无"), says("无")],
        [error(401)],
    ],
    ids=["picked", "retried", "invalid", "refused"],
)
def test_answers_and_finals_of_generation_are_as_described(
    server: ServerProcess, upstream: FakeUpstream, replies: list[Any], debug: bool
) -> None:
    for path, body in (("/constrained-generate", GENERATE), ("/rag", RAG)):
        asked = body | {"include_debug": debug, "generation_enable_thinking": True}
        for streams in (False, True):
            upstream.enqueue(*replies)
            assert server.post(path + "/stream" * streams, asked, X_API_Key=KEY).status == 200


def test_answers_of_the_other_routes_are_as_described(server: ServerProcess) -> None:
    for path in ("/health", "/ready", "/profiles", "/metrics", "/openapi.json"):
        assert server.get(path, X_API_Key=KEY).status == 200
        server.get(path)
    for debug in (False, True):
        body = {"query": "脚手架", "include_debug": debug}
        assert server.post("/retrieve-rerank", body, X_API_Key=KEY).status == 200
    text = "《样例安全法》第二十八条、第九百条，GB 99001 6.0.5，《某某管理办法》第三条，《样例消防法》"
    found = server.post("/verify-citations", {"text": text}, X_API_Key=KEY).json["citations"]
    assert {citation["status"] for citation in found} == {"exact", "article_absent", "law_not_in_corpus"}


def test_checker_refuses_what_the_document_does_not_say() -> None:
    answer = {"ok": True, "active_scope": "full", "num_docs": 1}
    place = pointer("components", "schemas", "ReadyAnswer")
    check(place, answer)
    for wrong in (answer | {"more": 1}, {"ok": True}, answer | {"num_docs": -1}):
        with pytest.raises(AssertionError):
            check(place, wrong)
    headers = {"Content-Type": "text/event-stream; charset=utf-8", "X-Request-ID": "x"}
    for frame in (b"event: trace\ndata: {}\n\n", b'event: token\ndata: {"channel":"x","text":""}\n\n'):
        with pytest.raises(AssertionError):
            check_answer("POST", "/rag/stream", 200, headers, frame)
    article = closed(document())["components"]["schemas"]["FoundArticle"]
    assert article["additionalProperties"] is True


SCHEMATHESIS = os.environ.get("SCHEMATHESIS") or shutil.which("schemathesis")


@pytest.mark.skipif(not SCHEMATHESIS, reason="schemathesis is not installed; make api-fuzz brings it")
def test_made_up_requests_get_answers_that_are_as_described(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server(f"  generation: {{provider: local}}\n{NO_VECTORS}")
    server.wait_ready()
    assert SCHEMATHESIS is not None
    words = [SCHEMATHESIS, "--config-file", str(Path(__file__).with_name("schemathesis.toml")), "run"]
    words += [f"http://127.0.0.1:{server.port}/cg-rag/openapi.json", "--seed", "1"]
    words += ["--max-examples", os.environ.get("SCHEMATHESIS_EXAMPLES", "10")]
    environ = os.environ | {"NO_PROXY": "127.0.0.1"}
    run = subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=1200)
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    assert server.get("/health").status == 200
    assert not [line for line in server.lines if line["event"] == "internal_error"]
