"""verify-citations over real HTTP, against the service as a process."""

from __future__ import annotations

import http.client
import json
import statistics
import threading
import time
from contextlib import closing

import pytest

from tests.server_process import ServerProcess

LAW = "中华人民共和国样例安全法"
CODE = "GB99001-2025样例脚手架规范"


def verify(server: ServerProcess, text: str, **fields: object) -> list[dict[str, object]]:
    answer = server.post("/verify-citations", {"text": text, **fields})
    assert answer.status == 200, answer.body
    citations: list[dict[str, object]] = answer.json["citations"]
    return citations


def test_an_answer_holds_each_citation_with_its_status_and_article(server: ServerProcess) -> None:
    text = " 依据《样例安全法》第28条、第99条，GB 99001-2025 6.0.5（1），以及《不存在的办法》第一条。\n"
    answer = server.post("/verify-citations", {"text": text}, X_Request_ID="check-1")
    body = answer.json
    assert list(body) == ["ok", "request_id", "scope", "citations", "warnings", "runtime_stats"]
    assert (body["ok"], body["request_id"], body["scope"], body["warnings"]) == (True, "check-1", "full", [])
    assert set(body["runtime_stats"]) == {"scan_ms", "read_ms", "total_time_ms"}
    statuses = [citation["status"] for citation in body["citations"]]
    assert statuses == ["exact", "article_absent", "exact", "law_not_in_corpus"]
    assert all(citation["raw"] in text for citation in body["citations"])
    assert body["citations"][0] == {
        "raw": "《样例安全法》第28条",
        "law_name": LAW,
        "article_number": "第28条",
        "status": "exact",
        "doc": {
            "effective_date": "2025-01-01",
            "law_name": LAW,
            "article_number": "第二十八条",
            "contents": "生产经营单位应当对新进场人员进行安全教育和培训，考核合格后方可上岗。",
        },
    }
    assert body["citations"][2]["standing"] == "in_force"
    assert "doc" not in body["citations"][1]


def test_a_text_without_citations_has_none(server: ServerProcess) -> None:
    assert verify(server, "今日现场一切正常。") == []


def test_only_articles_of_the_scope_count(server: ServerProcess) -> None:
    text = "《样例安全法》第二十八条，GB99001 2.0.1"
    assert [one["status"] for one in verify(server, text, scope="full")] == ["exact", "exact"]
    assert [one["status"] for one in verify(server, text, scope="usual")] == ["law_not_in_corpus", "exact"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "缺少必填字段 text"),
        ({"text": ""}, "text 须为 1..20000 个字符"),
        ({"text": " \n"}, "text 须为 1..20000 个字符"),
        ({"text": "条" * 20_001}, "收到 20001 个字符"),
        ({"text": "条" * 60_000}, "text 须为 1..20000 个字符"),
        ({"text": None}, "收到 null"),
        ({"text": ["第三条"]}, "收到 1 项的数组"),
        ({"text": "第三条", "scope": 3}, "scope 须为字符串"),
        ({"text": "第三条", "scope": ""}, "scope 须为"),
        ({"text": "第三条", "scope": "nope"}, "scope 须为"),
    ],
)
def test_a_bad_field_is_named_with_its_rule(server: ServerProcess, fields: object, words: str) -> None:
    answer = server.post("/verify-citations", json.dumps(fields, ensure_ascii=False))
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert words in answer.json["error"]["message"]


def test_an_unknown_scope_is_answered_with_those_there_are(server: ServerProcess) -> None:
    answer = server.post("/verify-citations", {"text": "第三条", "scope": "nope"})
    assert set(answer.json["error"]["details"]["available_scopes"]) == {"full", "usual", "usual_plus_law"}


@pytest.mark.parametrize("ensure_ascii", [True, False])
def test_20000_characters_are_taken_however_they_are_written(
    server: ServerProcess, ensure_ascii: bool
) -> None:
    text = ("《样例安全法》第二十八条，" * 2000)[:20_000]
    body = json.dumps({"text": f"\n{text} "}, ensure_ascii=ensure_ascii)
    answer = server.post("/verify-citations", body)
    assert answer.status == 200
    assert {one["status"] for one in answer.json["citations"][:-1]} == {"exact"}
    assert len(answer.json["citations"]) == 20_000 // 13 + 1


def test_texts_full_of_citations_do_not_hold_the_others_up(server: ServerProcess) -> None:
    text = ("样例安全法第1、2、3、4、5、6、7、8、9条；" * 2000)[:20_000]
    over = threading.Event()
    answers: list[bytes] = []

    def send() -> None:
        """One behind the other, no answer looked at before the end: the service always has one to work on."""
        body = json.dumps({"text": text})
        with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
            while not over.is_set():
                path, headers = "/cg-rag/verify-citations", {"Content-Type": "application/json"}
                connection.request("POST", path, body, headers)
                answers.append(connection.getresponse().read())

    sender = threading.Thread(target=send)
    sender.start()
    waits: list[float] = []
    try:
        while len(waits) < 30 or not answers:
            started = time.perf_counter()
            assert server.get("/health").status == 200
            waits.append(time.perf_counter() - started)
    finally:
        over.set()
        sender.join()
    texts = [json.loads(answer)["runtime_stats"]["total_time_ms"] / 1000 for answer in answers]
    # Each text takes hundreds of milliseconds; on the loop itself health would wait for all of it.
    assert statistics.median(waits) < statistics.median(texts) / 4


def test_without_an_index_it_is_not_ready(
    start_server: object, tmp_path_factory: pytest.TempPathFactory
) -> None:
    server: ServerProcess = start_server(index_dir=tmp_path_factory.mktemp("none"))  # type: ignore[operator]
    answer = server.post("/verify-citations", {"text": "第三条"})
    assert (answer.status, answer.code) == (503, "index.not_ready")
