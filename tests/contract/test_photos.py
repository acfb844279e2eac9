"""Pictures through the real interface: what arrives at the model, what is refused, and when."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import StartServer
from tests.fake_upstream import Hang, Reply, error, says
from tests.mcp_wire import receive_until
from tests.pictures import jpeg, png, text_of, tiff_orientation
from tests.seeing import PICTURE, PLAIN_QUESTION, Service, seeing
from tests.server_process import ServerProcess


@pytest.fixture(scope="module")
def service(start_server: StartServer) -> Iterator[Service]:
    with seeing(start_server) as service:
        yield service


@pytest.fixture(scope="module")
def unconfigured(start_server: StartServer) -> ServerProcess:
    server = start_server("  embedding: {provider: none}\n  server: {max_inflight_body_bytes: 4000000}\n")
    server.wait_ready()
    return server


def test_a_large_picture_arrives_byte_for_byte_with_its_length_declared(service: Service) -> None:
    picture = jpeg(size=3_000_000, exif=tiff_orientation(8))
    service.upstream.forget()
    service.upstream.enqueue(says("看到了"))
    lines = base64.encodebytes(picture).decode()
    body = json.dumps({"images": [{"data": lines}], "question": "图里有什么？"}).replace("/", "\\/")
    answer = service.server.post("/vision/answer", body)
    assert (answer.status, answer.json["answer"], answer.json["image_count"]) == (200, "看到了", 1)
    sent = service.upstream.requests[-1]
    assert int(sent.headers["content-length"]) == len(sent.body)
    assert service.content == [
        {"type": "text", "text": "（照片方向：需顺时针旋转 270°）"},
        {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{text_of(picture)}"}},
        {"type": "text", "text": "图里有什么？"},
    ]


def test_turns_and_pictures_arrive_in_order_and_the_receipt_comes_back(service: Service) -> None:
    history = [{"query": "先前", "answer": "答过", "turn_index": 0}]
    images = [{"data": text_of(png()), "source_turn_index": 0}, PICTURE]
    answer = service.post(says("好"), images=images, question=PLAIN_QUESTION, history=history)
    assert answer.json["history_turn_count"] == 1
    assert [message["role"] for message in service.messages] == ["system", "user", "assistant", "user"]
    texts = [part["text"] for part in service.content if part["type"] == "text"]
    assert texts == ["图1：", "（来自第 1 轮）", "图2：", PLAIN_QUESTION]


def test_without_history_there_is_no_receipt(service: Service) -> None:
    answer = service.post(says("好"), question=PLAIN_QUESTION)
    assert "history_turn_count" not in answer.json


FAULTS = [
    ({"images": [{"data": "https://example.com/a.png"}]}, "invalid_image"),
    ({"images": [PICTURE] * 5}, "invalid_image"),
    ({"images": [{"data": text_of(b"GIF89a" + bytes(9))}]}, "invalid_image"),
    ({"images": [PICTURE, {"data": 5}]}, "invalid_request"),
    ({"images": [PICTURE], "topk": 5, "question": None}, "invalid_request"),
    ({"images": [{"data": "!"}], "history": 5}, "invalid_request"),  # fields before pictures
    ({}, "invalid_request"),
]


@pytest.mark.parametrize(("body", "code"), FAULTS)
def test_nothing_of_a_refused_request_reaches_the_model(
    service: Service, body: dict[str, Any], code: str
) -> None:
    before = len(service.upstream.requests)
    answer = service.server.post("/vision/answer", body)
    assert (answer.status, answer.code) == (400, code)
    streamed = service.server.post("/vision/answer/stream", body)
    assert streamed.status == 200
    assert f'"code":"{code}"' in streamed.body.decode()
    assert len(service.upstream.requests) == before


def test_not_configured_is_said_after_the_json_and_before_the_fields(unconfigured: ServerProcess) -> None:
    for body, status, code in (
        ("{", 400, "invalid_request"),
        ("{}", 503, "vision_not_configured"),
        ('{"images":[{"data":"!"}],"question":5}', 503, "vision_not_configured"),
    ):
        answer = unconfigured.post("/vision/answer", body)
        assert (answer.status, answer.code) == (status, code)
    assert (
        "CG_RAG_VISION_ENDPOINT 和 CG_RAG_VISION_MODEL"
        in unconfigured.post("/vision/answer", "{}").json["error"]["message"]
    )


def test_a_photo_route_takes_more_than_the_others_and_not_more_than_may_be_in_flight(
    service: Service, unconfigured: ServerProcess
) -> None:
    large = json.dumps({"images": [PICTURE], "question": PLAIN_QUESTION, "padding": "A" * 3_000_000})
    service.upstream.forget()
    service.upstream.enqueue(says("好"))
    assert service.server.post("/vision/answer", large).status == 200
    for server, size, limit in (
        (service.server, 96 * 1024 * 1024 + 1, 96 * 1024 * 1024),
        (unconfigured, 4_000_001, 4_000_000),
    ):
        with server.connect() as client:
            head = f"POST /cg-rag/vision/answer HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n\r\n"
            client.sendall(head.encode())
            wanted = f'"max_bytes":{limit}'.encode()
            answer = receive_until(client, lambda received: wanted in received).decode()  # noqa: B023
        assert answer.startswith("HTTP/1.1 413")


@pytest.mark.parametrize(
    ("reply", "status", "code"),
    [
        (error(401), 502, "vision_upstream_error"),
        (says(""), 502, "vision_response_invalid"),
    ],
)
def test_a_failing_model_is_a_failure_of_its_own_code(
    service: Service, reply: Reply, status: int, code: str
) -> None:
    answer = service.post(*[reply] * 5)
    assert (answer.status, answer.code) == (status, code)
    details = answer.json["error"]["details"]
    assert details["attempts"] >= 1
    assert "127.0.0.1" not in answer.body.decode()


def test_the_budget_ends_waiting_for_slots_and_for_the_model(start_server: StartServer) -> None:
    capacity = "  capacity: {generation: {max: 1}, wait_timeout_seconds: 30}\n"
    with seeing(start_server, capacity, total_budget_seconds=1) as service:
        service.upstream.enqueue(Reply([Hang()]), Reply([Hang()]))
        body = {"images": [PICTURE]}
        answers = []
        threads = [
            threading.Thread(target=lambda: answers.append(service.server.post("/vision/answer", body)))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [(answer.status, answer.code) for answer in answers] == [(504, "vision_budget_exceeded")] * 2
        stages = {answer.json["error"]["details"]["stage"] for answer in answers}
        assert stages <= {"排队", "看图"}
        assert service.slots_in_use == 0


def test_no_picture_and_no_base64_ever_stands_in_the_log(service: Service) -> None:
    large = [{"data": text_of(jpeg(size=200_000))}]
    service.post(error(500), error(500), says("好"), images=large, question=PLAIN_QUESTION)
    service.post(images=[{"data": text_of(jpeg())[:-1] + "!"}])
    assert text_of(jpeg())[:40].encode() not in service.server.raw_log


def test_limits_of_pictures_are_those_that_are_set(start_server: StartServer) -> None:
    fits, large = png(200, 100), png(201, 100)
    heavy = jpeg(size=5001)
    limits = {"max_images": 2, "max_image_bytes": 5000, "max_image_pixels": 20000}
    with seeing(start_server, **limits) as small:
        told = small.server.get("/health").json["vision"]
        assert (told["max_images"], told["max_image_bytes"]) == (2, 5000)
        pictures = [{"data": text_of(fits)}] * 2
        assert small.post(says("好"), images=pictures, question=PLAIN_QUESTION).status == 200
        for images, limit, words in (
            ([*pictures, PICTURE], "max_images", "2"),
            ([{"data": text_of(large)}], "max_image_pixels", "20000"),
            (
                [{"data": text_of(heavy)}],
                "max_image_bytes",
                f"第 1 张图片为 {len(heavy)} 字节，超过上限 5000 字节。",
            ),
        ):
            answer = small.post(images=images, question=PLAIN_QUESTION)
            assert (answer.status, answer.code) == (400, "invalid_image"), limit
            assert words in answer.json["error"]["message"]
            assert answer.json["error"]["details"][limit] == limits[limit]
            assert len(small.upstream.requests) == 1  # the one that fits
