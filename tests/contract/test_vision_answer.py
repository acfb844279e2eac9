"""vision/answer through a real process: what is published, what is streamed, and what becomes of everything else."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from cg_rag import prompts
from tests.conftest import StartServer
from tests.core.report_corpus import HAZARDS, SAFE, Case
from tests.fake_upstream import (
    SSE_HEADERS,
    Go,
    Hang,
    Reply,
    Reset,
    chunk,
    error,
    events,
    says,
    sse,
    streams,
)
from tests.generating import ONE_SECOND, read_until, seconds_until, streaming, wait_for, without_times
from tests.patience import assert_within
from tests.pictures import jpeg, png, text_of
from tests.seeing import PICTURE, PLAIN_QUESTION, REPORT, SAFE_REPORT, Service, seeing

MAJOR = REPORT.replace("一般隐患", "重大事故隐患", 1)
CLAUSE = "《房屋市政工程生产安全重大事故隐患判定标准（2024版）》第七条第（一）项"
BROKEN = "隐患等级：较大隐患\n隐患分类：脚手架\n隐患描述：\n1. 有积水。"


@pytest.fixture(scope="module")
def service(start_server: StartServer) -> Iterator[Service]:
    # Nobody is refused for having waited: how long requests wait for each other is the machine's affair.
    with seeing(start_server, "  capacity: {wait_timeout_seconds: 60}\n") as service:
        yield service


def final_of(service: Service, *replies: Any, **fields: Any) -> Any:
    """The answer as JSON, which is what the stream ends with."""
    answer = service.post(*replies, **fields)
    streamed = service.stream(*replies, **fields)
    assert answer.status == 200, answer.body.decode()
    assert without_times(streamed.final) == without_times(answer.json)
    return answer.json


# --- reports -----------------------------------------------------------------------------------------------------


def test_a_report_as_asked_for_streams_as_it_comes_and_is_published_as_it_is(service: Service) -> None:
    stream = service.stream(says(REPORT))
    assert stream.final["answer"] == REPORT
    assert "answer_reset" not in stream.names
    assert len(stream.named("token")) > 50
    assert stream.names[0] == "progress"
    assert stream.events[0].data == {"stage": "vision", "label": "正在识别图片隐患", "status": "running"}


def test_the_answer_has_the_fields_of_the_document(service: Service) -> None:
    payload = final_of(service, says(REPORT))
    assert without_times(payload) == {
        "ok": True,
        "mode": "free_form",
        "question": "请检测图中的安全隐患",
        "answer": REPORT,
        "reasoning": "",
        "thinking_enabled": False,
        "citations": [],
        "retrieval_docs": [],
        "hazard_categories": ["扣件式钢管脚手架"],
        "hazard_taxonomy_version": "construction-hazard-19-v1",
        "warnings": [],
        "image_count": 1,
        "model": "vlm",
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
    }
    assert set(payload["runtime_stats"]) == {"wait_ms", "model_ms", "total_time_ms"}


def test_the_model_is_told_the_pinned_prompt_and_the_criteria(service: Service) -> None:
    service.post(says(REPORT))
    files = [prompts.load(name).text for name in ("vision/answer/system.txt", "vision/criteria_2024.txt")]
    assert service.messages[0] == {"role": "system", "content": "\n\n".join(files)}
    health = service.server.get("/health").json["vision"]
    assert health["prompt_sha256"] == prompts.load("vision/answer/system.txt").sha256


def test_sloppy_writing_is_published_in_form_and_the_stream_says_so(service: Service) -> None:
    sloppy = (
        REPORT.replace("隐患等级：", "**隐患等级**: ").replace("1. 脚手架", "（1）脚手架")
        + "\n\n备注：仅供参考"
    )
    stream = service.stream(says(sloppy))
    assert [event.data for event in stream.named("answer_reset")] == [{"reason": "format"}]
    assert stream.final["answer"] == REPORT
    assert len(service.upstream.requests[-1].json["messages"]) == 2


@pytest.mark.parametrize("name", SAFE)
def test_safe_and_unfit_pictures_are_published_without_a_hazard(service: Service, name: str) -> None:
    hold_to_corpus(service, SAFE[name])


@pytest.mark.parametrize("name", HAZARDS)
def test_hazards_are_published(service: Service, name: str) -> None:
    hold_to_corpus(service, HAZARDS[name])


def hold_to_corpus(service: Service, case: Case) -> None:
    text, num_images, said = case
    if "《工贸企业" in text:
        said = None  # its only statement is the name of a law that nobody looked up
    answer = service.post(says(text), says(text), images=[PICTURE] * num_images)
    if said is None:
        assert (answer.status, answer.code) == (502, "vision_response_invalid")
        assert "。。" not in answer.json["error"]["message"]
        assert service.upstream.num_left == 0
        return
    assert answer.status == 200, answer.body.decode()
    assert service.upstream.num_left == 1
    levels = [None if entry[0] == "scene" else entry[0] for entry in said]
    categories = [None if entry[0] == "scene" else entry[1] for entry in said]
    assert answer.json["hazard_categories"] == categories
    for level in filter(None, levels):
        assert f"隐患等级：{level}" in answer.json["answer"]
    assert answer.json["answer"].count("隐患等级：") == len([*filter(None, levels)])


def test_several_pictures_have_a_block_each(service: Service) -> None:
    text = f"## 图1\n\n{REPORT}\n\n## 图2\n\n{SAFE_REPORT}\n\n## 图3\n\n场景：非施工现场\n\n隐患描述：\n1. 办公室。"
    payload = final_of(service, says(text), images=[PICTURE, {"data": text_of(png())}, PICTURE])
    assert payload["answer"] == text
    assert payload["hazard_categories"] == ["扣件式钢管脚手架", "无", None]
    assert payload["image_count"] == 3
    markers = [part["text"] for part in service.content if part["type"] == "text"]
    assert markers == ["图1：", "图2：", "图3：", "请检测图中的安全隐患"]


# --- correction --------------------------------------------------------------------------------------------------


def test_a_broken_report_is_corrected_once_and_the_stream_begins_anew(service: Service) -> None:
    stream = service.stream(says(BROKEN), says(REPORT))
    assert [event.data["reason"] for event in stream.named("answer_reset")] == ["correction"]
    assert stream.final["answer"] == REPORT
    assert stream.final["usage"] == {"prompt_tokens": 22, "completion_tokens": 14, "total_tokens": 36}
    system, pictures, said, asked = service.messages
    assert (system["role"], pictures["role"], said) == (
        "system",
        "user",
        {"role": "assistant", "content": BROKEN},
    )
    for fault in ("较大隐患", "脚手架", "整改措施和建议"):
        assert fault in asked["content"]


def test_a_report_that_stays_broken_is_an_error_with_the_reasons(service: Service) -> None:
    answer = service.post(says(BROKEN), says(BROKEN), says(REPORT))
    assert (answer.status, answer.code) == (502, "vision_response_invalid")
    assert service.upstream.num_left == 1
    details = answer.json["error"]["details"]
    assert details["attempts"] == 2
    assert "较大隐患" in details["reason"]
    assert service.stream(says(BROKEN), says(BROKEN)).error_code == "vision_response_invalid"


def test_an_empty_answer_is_asked_for_once_more(service: Service) -> None:
    payload = final_of(service, says(""), says(REPORT))
    assert payload["answer"] == REPORT
    assert service.messages[-2] == {"role": "assistant", "content": "（空）"}


def test_an_endless_answer_is_broken_off(service: Service) -> None:
    endless = says(["积水" * 500] * 100)
    before = len(service.upstream.requests)
    answer = service.post(endless, endless)
    assert (answer.status, answer.code) == (502, "vision_response_invalid")
    assert "16000" in answer.json["error"]["message"]
    assert answer.json["error"]["details"]["attempts"] == 2
    wait_for(lambda: service.upstream.was_left(before + 1))


def test_a_valid_report_that_the_limit_of_tokens_cut_is_published_when_nothing_better_comes(
    service: Service,
) -> None:
    cut = says(REPORT, finish_reason="length")
    for second in (cut, says(BROKEN), error(401)):
        payload = final_of(service, cut, second)
        assert payload["answer"] == REPORT
        assert any("可能不完整" in warning for warning in payload["warnings"])
    payload = final_of(service, cut, says(SAFE_REPORT))
    assert (payload["answer"], payload["warnings"]) == (SAFE_REPORT, [])


# --- marks, laws, levels -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mark", [" [cite^1]", "[cite ^１]", "【cite^1】", "〔3〕", "[cite^1,2]", "【9†source】"]
)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_no_citation_mark_is_ever_sent(service: Service, mark: str, size: int) -> None:
    text = REPORT.replace("排水措施。", f"排水措施{mark}。")
    stream = service.stream(says([text[start : start + size] for start in range(0, len(text), size)]))
    assert stream.final["answer"] == REPORT
    assert "answer_reset" not in stream.names
    assert "cite" not in "".join(event.data["text"] for event in stream.named("token"))


@pytest.mark.parametrize("remains", ["[cite^]", "[cite^n]", "[cite^编号]", "[cite^一]", "〔n〕"])
def test_what_only_begins_like_a_citation_mark_is_not_published(service: Service, remains: str) -> None:
    assert final_of(service, says(REPORT.replace("排水措施。", f"排水措施{remains}。")))["answer"] == REPORT


def test_a_law_that_nobody_looked_up_is_cut_and_a_warning_says_so(service: Service) -> None:
    text = REPORT.replace("1. 立即", "1. 按照《建设工程安全生产管理条例》第二十八条的规定，立即")
    payload = final_of(service, says(text))
    assert payload["answer"] == REPORT
    assert payload["warnings"] == ["已删去未经检索核对的法规引用：“《建设工程安全生产管理条例》第二十八条”。"]


def test_major_needs_a_clause_and_is_suspected_without_one(service: Service) -> None:
    stream = service.stream(says(MAJOR))
    assert [event.data["reason"] for event in stream.named("answer_reset")] == ["level"]
    assert stream.final["answer"] == REPORT.replace("一般隐患", "疑似重大事故隐患", 1)
    assert len(stream.final["warnings"]) == 1
    assert "没有指明" in stream.final["warnings"][0]
    assert service.upstream.num_left == 0
    founded = MAJOR.replace("1. 脚手架", f"1. 属于{CLAUSE}：脚手架")
    payload = final_of(service, says(founded))
    assert (payload["answer"], payload["warnings"]) == (founded, [])


def test_a_site_may_bring_its_own_criteria(start_server: StartServer, tmp_path: Any) -> None:
    file = tmp_path / "criteria.txt"
    file.write_text("《某市重大事故隐患判定标准（2025版）》\n第三条 脚手架\n（二）基础积水\n", "utf-8")
    own = MAJOR.replace("1. 脚手架", "1. 《某市重大事故隐患判定标准（2025版）》第三条（二）：脚手架")
    with seeing(start_server, f"  criteria: {{file: {json.dumps(str(file))}}}\n") as service:
        assert service.post(says(own)).json["answer"] == own
        theirs = MAJOR.replace("1. 脚手架", f"1. {CLAUSE}：脚手架")
        assert "隐患等级：疑似重大事故隐患" in service.post(says(theirs)).json["answer"]
        assert service.messages[0]["content"].endswith(file.read_text("utf-8"))


# --- questions that ask for no report ----------------------------------------------------------------------------


def test_a_question_about_something_else_is_answered_as_it_is_asked(service: Service) -> None:
    payload = final_of(service, says("两名工人在绑扎钢筋[cite^1]。"), question=PLAIN_QUESTION)
    assert (payload["answer"], payload["question"]) == ("两名工人在绑扎钢筋。", PLAIN_QUESTION)
    assert (payload["hazard_categories"], payload["warnings"]) == ([], [])


def test_a_report_on_such_a_question_is_checked_like_any_other(service: Service) -> None:
    payload = final_of(service, says(BROKEN), says(REPORT), question=PLAIN_QUESTION)
    assert payload["hazard_categories"] == ["扣件式钢管脚手架"]


def test_a_hazard_question_needs_a_report(service: Service) -> None:
    payload = final_of(service, says("看起来很安全。"), says(SAFE_REPORT), question="临边防护有风险吗？")
    assert payload["hazard_categories"] == ["无"]
    payload = final_of(service, says("看起来很安全。"), says(SAFE_REPORT), question="   ")
    assert payload["question"] == "请检测图中的安全隐患"


def test_a_plain_answer_that_names_laws_says_that_nobody_looked_them_up(service: Service) -> None:
    said = "这是配电箱，见《建设工程安全生产管理条例》第二十八条。\n等级：IP65"
    payload = final_of(service, says(said), question="这是什么设备？")
    assert payload["answer"] == said
    assert payload["warnings"] == ["回答提到的法规与条文未经检索核对。"]


# --- thinking ----------------------------------------------------------------------------------------------------


def test_thinking_is_asked_for_per_request_and_reasoning_is_what_was_streamed(service: Service) -> None:
    thoughtful = says(REPORT, thinking=["先看", "基础。"])
    stream = service.stream(thoughtful, enable_thinking=True)
    assert stream.final["thinking_enabled"] is True
    assert stream.final["reasoning"] == stream.reasoning_text == "先看基础。"
    silent = service.stream(thoughtful, enable_thinking=False)
    assert (silent.final["thinking_enabled"], silent.final["reasoning"]) == (False, "")
    assert not silent.reasoning_text


def test_the_thinking_of_both_calls_is_kept_in_order(service: Service) -> None:
    payload = final_of(
        service, says(BROKEN, thinking="一。"), says(REPORT, thinking="二。"), enable_thinking=True
    )
    assert payload["reasoning"] == "一。二。"


def test_text_that_turns_out_to_be_thinking_is_taken_back(service: Service) -> None:
    stream = service.stream(says(["先看看。", "</think>", REPORT]))
    assert [event.data["reason"] for event in stream.named("answer_reset")] == ["thinking"]
    assert (stream.final["answer"], stream.final["reasoning"]) == (REPORT, "")
    thinking = service.stream(says(["先看看。", "</think>", REPORT]), enable_thinking=True)
    assert thinking.final["reasoning"] == thinking.reasoning_text == "先看看。"


def test_the_setting_counts_where_the_request_says_nothing(start_server: StartServer) -> None:
    with seeing(start_server, enable_thinking=True, provider="dashscope") as service:
        assert service.post(says(REPORT, thinking="想。")).json["reasoning"] == "想。"
        assert service.upstream.requests[-1].json["enable_thinking"] is True
        assert service.post(says(REPORT), enable_thinking=False).json["thinking_enabled"] is False
        assert service.upstream.requests[-1].json["enable_thinking"] is False


# --- conversation ------------------------------------------------------------------------------------------------


def test_history_goes_to_the_model_in_order_and_its_receipt_comes_back(service: Service) -> None:
    history = [{"query": f"问{turn}[cite^1]", "answer": f"答{turn}", "turn_index": turn} for turn in range(6)]
    images = [{"data": text_of(jpeg()), "source_turn_index": 4}]
    payload = final_of(service, says(REPORT), history=history, images=images)
    assert payload["history_turn_count"] == 6
    told = [(message["role"], message["content"]) for message in service.messages[1:-1]]
    assert told[:2] == [("user", "问0[cite^1]"), ("assistant", "答0")]
    assert len(told) == 12
    assert service.content[0] == {"type": "text", "text": "（来自第 5 轮）"}
    answer = service.post(history=[*history, history[0]])
    assert (answer.status, answer.code) == (400, "invalid_request")


# --- failures ----------------------------------------------------------------------------------------------------


# Five attempts take eight seconds of waiting between them.
@pytest.mark.parametrize(
    ("profile", "attempts"), [("continuous_base", 2), pytest.param("e10", 5, marks=pytest.mark.slow)]
)
def test_upstream_failures_are_retried_before_the_first_token_as_often_as_the_profile_says(
    start_server: StartServer, profile: str, attempts: int
) -> None:
    with seeing(start_server, profile=profile) as service:
        answer = service.post(*[error(503)] * 6)
        assert (answer.status, answer.code) == (502, "vision_upstream_error")
        assert answer.json["error"]["details"]["attempts"] == attempts
        assert service.upstream.num_left == 6 - attempts
        assert service.post(error(503), says(REPORT)).json["answer"] == REPORT


def test_what_may_not_be_retried_is_not(service: Service) -> None:
    for status in (400, 401, 403, 404, 422):
        answer = service.post(error(status), says(REPORT))
        assert (answer.status, answer.code) == (502, "vision_upstream_error")
        assert answer.json["error"]["details"]["status"] == status
        assert service.upstream.num_left == 1


def test_a_stream_that_breaks_after_the_first_token_is_one_error_and_no_retry(service: Service) -> None:
    for cut_by in ((Reset(),), ()):
        stream = service.stream(says(REPORT, cut_after=20, cut_by=cut_by), says(REPORT))
        assert stream.error_code == "vision_upstream_error"
        assert REPORT.startswith(stream.answer_text)
        assert service.upstream.num_left == 1


def test_errors_say_no_address_no_key_and_no_prompt(start_server: StartServer) -> None:
    with seeing(start_server, api_key="sk-canary-1234") as service:
        told = service.post(error(401, "key sk-canary-1234 refused")).body.decode()
        told += service.server.raw_log.decode()
        assert "canary" not in told
        assert "你是房屋建筑" not in told
        assert f":{service.upstream.port}" not in told


def test_heartbeats_go_on_while_the_model_thinks(start_server: StartServer) -> None:
    with seeing(start_server, sse_heartbeat_seconds=0.1) as service:
        body = {"images": [PICTURE]}
        service.upstream.enqueue(says(REPORT, cut_after=1, cut_by=[Go()]))
        with streaming(service.server, "/vision/answer", body) as response:
            told = read_until(response, b'"heartbeat":true')
            service.upstream.go()
            told += response.read()
    assert b": keepalive\n\n" in told
    assert b'"stage":"vision"' in told.split(b": keepalive")[1]
    assert told.endswith(b"\n\n")
    assert b"event: final" in told


def test_a_full_service_says_so(start_server: StartServer) -> None:
    capacity = "  capacity: {generation: {max: 1}, wait_timeout_seconds: 0.1}\n"
    with seeing(start_server, capacity) as service:
        service.upstream.enqueue(Reply([Hang()]))
        with streaming(service.server, "/vision/answer", {"images": [PICTURE]}) as response:
            response.read1()
            wait_for(lambda: len(service.upstream.requests) == 1)
            answer = service.server.post("/vision/answer", {"images": [PICTURE]})
            assert (answer.status, answer.code) == (429, "capacity.exceeded")
            assert answer.json["error"]["message"] == "服务当前请求过多，请稍后重试。"
            assert answer.json["error"]["details"]["resource"] == "generation"
            assert answer.headers["Retry-After"]
            observed = service.server.post("/vision/observe", {"images": [PICTURE]})
            assert observed.code == "capacity.exceeded"


@pytest.mark.parametrize("route", ["/vision/answer", "/vision/answer/stream", "/vision/observe"])
def test_a_client_that_leaves_returns_the_slot_and_ends_the_call(service: Service, route: str) -> None:
    def leave() -> float:
        service.upstream.forget()
        service.upstream.enqueue(Reply([*events(REPORT)[:3], Hang()], headers=SSE_HEADERS))
        sent = len(service.upstream.requests)
        body = json.dumps({"images": [PICTURE]}).encode()
        with service.server.connect() as client:
            head = f"POST /cg-rag{route} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            wait_for(lambda: len(service.upstream.requests) > sent)
            assert service.slots_in_use == 1
        taken = seconds_until(lambda: service.slots_in_use == 0)
        taken += seconds_until(lambda: service.upstream.was_left(sent))
        return taken

    assert_within(ONE_SECOND, leave)


def test_the_budget_ends_a_stream_and_publishes_what_passed_before(start_server: StartServer) -> None:
    # Much more than a report takes, so that it is there before the end of the budget on a machine that stands still now
    # and then.
    budget_seconds = 4.0
    with seeing(start_server, total_budget_seconds=budget_seconds) as service:

        def seconds_until_it_ends() -> float:
            began = time.monotonic()
            stream = service.stream(Reply([*events(REPORT)[:9], Hang()], headers=SSE_HEADERS))
            assert stream.error_code == "vision_budget_exceeded"
            taken = time.monotonic() - began
            assert taken > budget_seconds - 0.1
            return taken

        # Three times at most: in the best of them the machine did not stand still.
        assert any(seconds_until_it_ends() < budget_seconds + 1 for _ in range(3))
        hanging = Reply([*events("隐患")[:2], Hang()], headers=SSE_HEADERS)
        stream = service.stream(says(REPORT, finish_reason="length"), hanging)
        assert stream.final["answer"] == REPORT
        assert any("整单时限" in warning for warning in stream.final["warnings"])


def test_servers_that_do_not_stream_are_read_whole(start_server: StartServer) -> None:
    with seeing(start_server, streaming=False) as service:
        assert service.stream(says(REPORT)).final["answer"] == REPORT
        assert not service.upstream.requests[-1].is_streamed


def test_a_content_filter_is_an_upstream_error(service: Service) -> None:
    filtered = streams(sse(chunk({"content": "隐"})), chunk({}, "content_filter"), "[DONE]")
    answer = service.post(filtered)
    assert (answer.status, answer.code) == (502, "vision_upstream_error")


def test_many_requests_at_once_get_their_own_answers(service: Service) -> None:
    service.upstream.forget()
    service.upstream.enqueue(*[says(REPORT)] * 12)
    answers: list[Any] = []

    def ask() -> None:
        with suppress(OSError):
            answers.append(service.server.post("/vision/answer", {"images": [PICTURE]}))

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer.status for answer in answers] == [200] * 12
    assert service.slots_in_use == 0
