"""vision/observe through a real process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from cg_rag import prompts
from tests.conftest import StartServer
from tests.fake_upstream import error, says
from tests.pictures import png, text_of
from tests.seeing import PICTURE, Service, seeing

SAID = {
    "description": "地面有积水。",
    "hazard_label": "场地积水问题",
    "hazard_description": "中部积水。",
    "suggestions": ["排水。"],
    "is_non_scene": False,
}


@pytest.fixture(scope="module")
def service(start_server: StartServer) -> Iterator[Service]:
    with seeing(start_server) as service:
        yield service


def observe(service: Service, *replies: Any, **fields: Any) -> Any:
    answer = service.post(*replies, path="/vision/observe", **fields)
    assert answer.status == 200, answer.body.decode()
    return answer.json


def said(**changes: Any) -> Any:
    return says(json.dumps(SAID | changes, ensure_ascii=False))


def test_the_prompt_is_the_pinned_file_and_its_hash_is_in_the_answer(service: Service) -> None:
    prompt = prompts.load("vision/observe/system.txt")
    assert observe(service, said())["system_prompt_sha256"] == prompt.sha256
    assert service.messages[0] == {"role": "system", "content": prompt.text}
    assert "json" in prompt.text.lower()


def test_a_safe_picture_and_one_of_no_site_have_no_label(service: Service) -> None:
    for changes in ({"hazard_label": ""}, {"hazard_label": "", "is_non_scene": True}):
        payload = observe(service, said(suggestions=[], **changes))
        assert (payload["parse_status"], payload["hazard_label"]) == ("succeeded", "")
        assert payload["is_non_scene"] is changes.get("is_non_scene", False)
        assert payload["text"] == "图片描述：地面有积水。\n\n确定隐患描述：无\n\n整改建议：无"


def test_what_does_not_parse_is_a_normal_answer_after_one_call(service: Service) -> None:
    payload = observe(service, says("图中有积水[cite^1]。"), said())
    assert service.upstream.num_left == 1
    assert (payload["ok"], payload["parse_status"], payload["hazard_label"]) == (True, "failed", "")
    assert payload["parse_error"] == "回答中没有所要的 JSON 对象"
    assert payload["text"] == "图中有积水。"


def test_a_label_outside_the_list_is_none(service: Service) -> None:
    payload = observe(service, said(hazard_label="地面湿滑问题"))
    assert (payload["parse_status"], payload["hazard_label"]) == ("failed", "")
    assert "地面湿滑" not in payload["text"]


def test_several_pictures_and_earlier_turns_make_one_observation(service: Service) -> None:
    history = [{"query": "问", "answer": "答", "turn_index": 0}]
    payload = observe(service, said(), images=[PICTURE, {"data": text_of(png())}], history=history)
    assert (payload["image_count"], payload["history_turn_count"]) == (2, 1)
    assert [message["role"] for message in service.messages] == ["system", "user", "assistant", "user"]


def test_there_is_no_stream(service: Service) -> None:
    answer = service.post(path="/vision/observe/stream")
    assert (answer.status, answer.code) == (404, "not_found")


def test_a_server_that_refuses_the_schema_is_asked_for_less(service: Service) -> None:
    refusal = error(400, "response_format json_schema is not supported")
    payload = observe(service, refusal, said())
    assert payload["parse_status"] == "succeeded"
    asked = [request.json.get("response_format", {}).get("type") for request in service.upstream.requests]
    assert asked[-2:] == ["json_schema", "json_object"]
