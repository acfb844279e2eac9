"""Constrained generation against a scripted model: every event, every kind of answer and of failure."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cg_rag import prompts
from cg_rag.core import pick_conversation
from cg_rag.core.body import BodyLexer
from cg_rag.core.config import load
from cg_rag.core.errors import CgError
from cg_rag.core.events import AnswerReset, Event, Final, Progress, Token, close, drain
from cg_rag.core.requests import parse_request
from cg_rag.modes import generate
from cg_rag.modes.services import Services, make_services
from cg_rag.modes.upstreams import Upstream
from tests.fake_upstream import (
    FakeUpstream,
    Go,
    Hang,
    Reset,
    Wait,
    chunk,
    error,
    fake_upstream,
    raw,
    says,
    sse,
    streams,
)
from tests.sse_checker import answer_of
from tests.steady_clock import loop_seconds, steady_clock

FIRST_LINE = "我根据在线检索与候选筛选结果，整理出以下最相关条文："
NOTHING_FOUND = "当前候选条文中未找到与问题直接相关的条文。"
KEYS = [
    "ok",
    "request_id",
    "generation_mode",
    "answer_text",
    "pred_indices",
    "pred_items",
    "pred_raw",
    "thinking",
    "generation_enable_thinking",
    "model",
    "provider",
    "usage",
    "runtime_stats",
]
DOCS: list[dict[str, Any]] = [
    {"law_name": "GB1样例脚手架规范", "article_number": "6.0.5(1)", "contents": "搭设完毕应组织验收。"},
    {"law_name": "GB1样例脚手架规范", "article_number": "2.0.1", "contents": "基础不得积水。"},
    {"law_name": "样例手册", "article_number": "", "contents": "动火须办证。", "source": "手册"},
]
BODY: dict[str, Any] = {"query": "脚手架怎么验收？", "retrieval_docs": DOCS, "max_items": 2}


def make(url: str, tmp_path: Path, **generation: Any) -> Services:
    config = tmp_path / "config.yaml"
    section = {"endpoint": url, "model": "m", "api_key": "sk-secret-of-the-test"} | generation
    config.write_text(
        json.dumps({"cg_rag": {"index": {"dir": str(tmp_path)}, "generation": section}}), "utf-8"
    )
    return make_services(load(config, {}).settings)


@asynccontextmanager
async def serving(url: str, tmp_path: Path, **generation: Any) -> AsyncIterator[Services]:
    services = make(url, tmp_path, **generation)
    if services.generation is not None:
        hasty = replace(services.generation.settings, backoff_seconds=0.001)
        services = replace(services, generation=Upstream(hasty))
    try:
        yield services
        assert services.generation_slots.in_use == 0
    finally:
        await services.close()
        services.threads.shutdown()


def run(services: Services, **fields: Any) -> AsyncIterator[Event]:
    return generate.run(parse_request(generate.Request, BODY | fields), services, "req_1")


async def collect(services: Services, **fields: Any) -> list[Event]:
    events = [event async for event in run(services, **fields)]
    check_stream(events)
    return events


def check_stream(events: Sequence[Event]) -> None:
    """What holds for every stream: one Final at the end, tokens that join to what it says."""
    *others, final = events
    assert isinstance(final, Final)
    assert not any(isinstance(event, Final) for event in others)
    assert answer_of(events) == final.payload["answer_text"]
    assert reasoning_of(events) == final.payload["thinking"]


def reasoning_of(events: Sequence[Event]) -> str:
    tokens = [event for event in events if isinstance(event, Token)]
    return "".join(token.text for token in tokens if token.channel == "reasoning")


def payload_of(events: Sequence[Event]) -> dict[str, Any]:
    final = events[-1]
    assert isinstance(final, Final)
    return final.payload


async def ask(tmp_path: Path, *replies: Any, generation: Any = None, **fields: Any) -> dict[str, Any]:
    async with (
        fake_upstream(*replies) as upstream,
        serving(upstream.url, tmp_path, **(generation or {})) as services,
    ):
        payload = payload_of(await collect(services, **fields))
        assert upstream.num_left == 0
    return payload


def error_of(payload: dict[str, Any]) -> dict[str, Any]:
    """The `error` of a failed answer, whose other keys are there and empty."""
    assert list(payload) == [*KEYS, "error"]
    assert payload["ok"] is False
    empty = (payload["answer_text"], payload["pred_indices"], payload["pred_items"], payload["pred_raw"])
    assert empty == ("", [], [], "")
    assert payload["usage"] is None
    assert "total_time_ms" in payload["runtime_stats"]
    told = payload["error"]
    assert list(told) == ["code", "message", "details"]
    shown = json.dumps(told, ensure_ascii=False)
    assert "127.0.0.1" not in shown
    assert "secret" not in shown
    return dict(told)


async def test_answer_is_made_of_the_chosen_candidates(tmp_path: Path) -> None:
    payload = await ask(tmp_path, says('{"indices":[3,1]}'))
    assert list(payload) == KEYS
    stats = payload.pop("runtime_stats")
    assert payload == {
        "ok": True,
        "request_id": "req_1",
        "generation_mode": "constrained",
        "answer_text": f"{FIRST_LINE}\n1. 样例手册\n2. GB1样例脚手架规范 6.0.5(1)",
        "pred_indices": [3, 1],
        "pred_items": ["样例手册", "GB1样例脚手架规范 6.0.5(1)"],
        "pred_raw": '{"indices":[3,1]}',
        "thinking": "",
        "generation_enable_thinking": False,
        "model": "m",
        "provider": "openai",
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
    }
    assert set(stats) == {"wait_ms", "model_ms", "total_time_ms"}


async def test_model_is_asked_with_the_pinned_prompt_and_the_strongest_constraint(tmp_path: Path) -> None:
    async with (
        fake_upstream(says('{"indices":[1]}')) as upstream,
        serving(upstream.url, tmp_path) as services,
    ):
        await collect(services)
    sent = upstream.requests[0].json
    prompt = prompts.load("generate/select.txt")
    assert sent["messages"][0] == {"role": "system", "content": prompt.text}
    assert "JSON" in prompt.text
    assert '{"indices":[' in prompt.text
    assert not prompts.verify()
    indices = sent["response_format"]["json_schema"]["schema"]["properties"]["indices"]
    assert indices["items"] == {"type": "integer", "enum": [1, 2, 3]}
    assert indices["maxItems"] == 2
    user = sent["messages"][1]["content"]
    assert "脚手架怎么验收？" in user
    assert "基础不得积水。" in user
    assert upstream.requests[0].headers["authorization"] == "Bearer sk-secret-of-the-test"


async def test_a_line_goes_out_before_the_model_says_the_next_index(tmp_path: Path) -> None:
    script = says(['{"indices":[', "3", ",", "1", "]}"], cut_after=4, cut_by=[Hang()])
    async with fake_upstream(script) as upstream, serving(upstream.url, tmp_path) as services:
        events = run(services)
        told = []
        async with asyncio.timeout(30):
            async for event in events:
                if isinstance(event, Token):
                    told.append(event.text)
                if len(told) == 2:
                    break
        assert told == [FIRST_LINE, "\n1. 样例手册"]
        assert services.generation_slots.in_use == 1
        await close(events)
        assert services.generation_slots.in_use == 0
        async with steady_clock(), asyncio.timeout(1):
            await upstream.until(lambda: upstream.num_disconnects == 1)


async def test_no_index_is_an_answer_of_its_own(tmp_path: Path) -> None:
    payload = await ask(tmp_path, says('{"indices":[]}'))
    assert payload["ok"] is True
    assert payload["answer_text"] == NOTHING_FOUND
    assert (payload["pred_indices"], payload["pred_items"]) == ([], [])


@pytest.mark.parametrize(
    ("text", "picks"),
    [
        ('```json\n{"indices":[2]}\n```', [2]),
        ('先看候选一。{"indices":["3",2.0,2,true]} 完', [3, 2]),
        ('{"indices":[0,-1,99,1]}', [1]),
        ('{"indices":[1,2,3]}', [1, 2]),
        ('<think>选 {"indices":[2]} 吗</think>{"indices":[1]}', [1]),
        ('选 {"indices":[2]} 吗</think>\n\n{"indices":[1]}', [1]),
    ],
)
async def test_whatever_stands_around_the_indices_they_are_found(
    tmp_path: Path, text: str, picks: list[int]
) -> None:
    payload = await ask(tmp_path, says(text))
    assert payload["pred_indices"] == picks
    assert payload["thinking"] == ""


async def test_one_more_attempt_with_the_reason_when_nothing_valid_came(tmp_path: Path) -> None:
    async with (
        fake_upstream(says("没有相关的。"), says('{"indices":[2]}')) as upstream,
        serving(upstream.url, tmp_path) as services,
    ):
        events = await collect(services)
    assert payload_of(events)["pred_indices"] == [2]
    assert payload_of(events)["pred_raw"] == '{"indices":[2]}'
    assert payload_of(events)["usage"]["total_tokens"] == 36
    assert not any(isinstance(event, AnswerReset) for event in events)
    first, second = (request.json["messages"] for request in upstream.requests)
    assert second[:2] == first
    assert second[2] == {"role": "assistant", "content": "没有相关的。"}
    assert "没有含 indices 数组的 JSON 对象" in second[3]["content"]


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (["没有", "还是没有"], "回答中没有含 indices 数组的 JSON 对象"),
        (['{"indices":[9]}', '{"indices":[0]}'], "indices 中没有 1..3 之间的整数"),
        (["", ""], "回答为空"),
        (["无", '<think>想</think>{"indices":["无"]}'], "indices 中没有 1..3 之间的整数"),
    ],
)
async def test_nothing_valid_twice_is_response_invalid(tmp_path: Path, texts: list[str], reason: str) -> None:
    told = error_of(await ask(tmp_path, *map(says, texts)))
    assert told["code"] == "generation_response_invalid"
    assert told["details"] == {"reason": reason, "attempts": 2}
    assert reason in told["message"]


@pytest.mark.parametrize(
    ("reply", "reason_code", "status"),
    [
        (error(400, "context length exceeded"), "refused", 400),
        (error(401, "key sk-secret-of-the-test"), "unauthorized", 401),
        (error(404, "no such model"), "not_found", 404),
        (raw(b"<html>"), "html", None),
        (raw(b"{}", 307, {"Location": "http://127.0.0.1:1/"}), "redirected", 307),
        (says("x", finish_reason="content_filter"), "content_filter", None),
    ],
)
async def test_what_the_model_server_refuses_is_an_upstream_error(
    tmp_path: Path, reply: Any, reason_code: str, status: int | None
) -> None:
    told = error_of(await ask(tmp_path, reply))
    assert told["code"] == "generation_upstream_error"
    assert told["details"]["reason_code"] == reason_code
    assert told["details"]["status"] == status
    assert told["details"]["attempts"] == 1
    assert told["details"]["reason"] in told["message"]


@pytest.mark.parametrize(
    ("reply", "reason_code"),
    [(error(503, retry_after="0"), "server_error"), (streams("not json"), "malformed")],
)
async def test_attempts_of_the_client_are_counted(tmp_path: Path, reply: Any, reason_code: str) -> None:
    told = error_of(await ask(tmp_path, *[reply] * 3))
    assert told["code"] == "generation_upstream_error"
    assert (told["details"]["reason_code"], told["details"]["attempts"]) == (reason_code, 3)


async def test_unreachable_server_is_an_upstream_error(tmp_path: Path) -> None:
    async with fake_upstream() as upstream:
        url = upstream.url
    async with serving(url, tmp_path) as services:
        told = error_of(payload_of(await collect(services)))
    assert told["code"] == "generation_upstream_error"
    assert told["details"]["reason_code"] == "connect_failed"


@pytest.mark.parametrize("cut_by", [[Reset()], []], ids=["reset", "clean early end"])
async def test_cut_after_a_line_is_an_upstream_error_and_nobody_is_asked_again(
    tmp_path: Path, cut_by: list[Any]
) -> None:
    first = says(['{"indices":[3,', "1]}"], cut_after=2, cut_by=cut_by)
    async with (
        fake_upstream(first, says('{"indices":[2]}')) as upstream,
        serving(upstream.url, tmp_path) as services,
    ):
        events = await collect(services)
    texts = [event.text if isinstance(event, Token) else None for event in events if not is_progress(event)]
    assert texts == [FIRST_LINE, "\n1. 样例手册", None, None]
    assert isinstance([event for event in events if not is_progress(event)][2], AnswerReset)
    assert answer_of(events) == ""
    told = error_of(payload_of(events))
    assert told["code"] == "generation_upstream_error"
    assert told["details"]["attempts"] == 1
    assert len(upstream.requests) == 1


def is_progress(event: Event) -> bool:
    return isinstance(event, Progress)


async def test_budget_is_one_for_both_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pick_conversation, "time", SimpleNamespace(monotonic=loop_seconds))
    slow, stall = (
        says("无", cut_after=2, cut_by=[step, *[Go()] * (step != Hang())]) for step in (Wait(0.5), Hang())
    )
    async with (
        steady_clock(),
        fake_upstream(slow, stall) as upstream,
        serving(upstream.url, tmp_path, timeout_seconds=0.8) as services,
    ):
        upstream.go()
        started = loop_seconds()
        told = error_of(payload_of(await collect(services)))
        assert 0.7 < loop_seconds() - started < 1.2
    assert told["code"] == "generation_upstream_error"
    assert len(upstream.requests) == 2


async def test_last_number_before_a_limit_of_tokens_is_not_trusted(tmp_path: Path) -> None:
    payload = await ask(tmp_path, says('{"indices":[3,1', finish_reason="length"))
    assert payload["pred_indices"] == [3]


async def test_thinking_goes_to_its_own_channel_when_it_is_asked_for(tmp_path: Path) -> None:
    script = says('{"indices":[1]}', thinking=["先看", "候选一"])
    async with (
        fake_upstream(script, script) as upstream,
        serving(upstream.url, tmp_path) as services,
    ):
        events = await collect(services, generation_enable_thinking=True)
        assert payload_of(events)["thinking"] == "先看候选一"
        assert payload_of(events)["generation_enable_thinking"] is True
        without = payload_of(await collect(services))
    assert (without["thinking"], without["generation_enable_thinking"]) == ("", False)


async def test_setting_says_whether_to_think_where_the_request_does_not(tmp_path: Path) -> None:
    script = says('{"indices":[1]}', thinking="想")
    payload = await ask(tmp_path, script, generation={"enable_thinking": True})
    assert (payload["thinking"], payload["generation_enable_thinking"]) == ("想", True)
    payload = await ask(
        tmp_path, script, generation={"enable_thinking": True}, generation_enable_thinking=False
    )
    assert (payload["thinking"], payload["generation_enable_thinking"]) == ("", False)


async def test_text_that_turns_out_to_be_thinking_is_taken_back(tmp_path: Path) -> None:
    text = 'x{"indices":[2]}</think>{"indices":[1]}'
    payload = await ask(
        tmp_path,
        streams(chunk({"reasoning_content": "先"}), chunk({"content": text}), chunk({}, "stop"), "[DONE]"),
        generation_enable_thinking=True,
    )
    assert payload["thinking"] == '先x{"indices":[2]}'
    assert payload["pred_indices"] == [1]
    assert payload["pred_raw"] == '{"indices":[1]}'


async def test_refused_schema_is_stepped_down_from_and_remembered(tmp_path: Path) -> None:
    refusal = error(400, "response_format json_schema is not supported")
    async with (
        fake_upstream(refusal, says('{"indices":[1]}'), says('{"indices":[1]}')) as upstream,
        serving(upstream.url, tmp_path) as services,
    ):
        for _ in range(2):
            assert payload_of(await collect(services))["pred_indices"] == [1]
    kinds = [request.json["response_format"]["type"] for request in upstream.requests]
    assert kinds == ["json_schema", "json_object", "json_object"]


async def test_upstream_without_streams_gives_the_same_answer(tmp_path: Path) -> None:
    payload = await ask(tmp_path, says('{"indices":[2,1]}'), generation={"streaming": False})
    assert payload["pred_indices"] == [2, 1]


async def test_not_configured_is_told_in_the_words_of_the_contract(tmp_path: Path) -> None:
    async with serving("", tmp_path, model="") as services:
        payload = payload_of(await collect(services))
    assert error_of(payload) == {
        "code": "generation_not_configured",
        "message": "CG_RAG 生成接口未配置，请设置 CG_RAG_GENERATION_ENDPOINT 和 CG_RAG_GENERATION_MODEL。",
        "details": {},
    }


async def test_full_service_is_an_error_and_not_a_result(tmp_path: Path) -> None:
    async with fake_upstream() as upstream, serving(upstream.url, tmp_path) as services:
        services = replace(services, generation_slots=type(services.generation_slots)("generation", 1, 0.05))
        async with services.generation_slots.slot():
            with pytest.raises(CgError) as refused:
                await drain(run(services))
        assert refused.value.code == "capacity.exceeded"
        assert refused.value.details["resource"] == "generation"
    assert not upstream.requests


async def test_one_slot_is_held_for_the_retry_too(tmp_path: Path) -> None:
    async with (
        fake_upstream(says("无"), says('{"indices":[1]}', cut_after=2, cut_by=[Hang()])) as upstream,
        serving(upstream.url, tmp_path) as services,
    ):
        task = asyncio.create_task(drain(run(services)))
        await upstream.until(lambda: len(upstream.requests) == 2)
        assert services.generation_slots.in_use == 1
        task.cancel()
        await asyncio.wait([task])
        assert services.generation_slots.in_use == 0
        async with steady_clock(), asyncio.timeout(1):
            await upstream.until(lambda: upstream.num_disconnects == 1)


async def test_debug_tells_what_was_said_and_returns_the_chosen_documents(tmp_path: Path) -> None:
    payload = await ask(tmp_path, says("无"), says('{"indices":[3]}'), include_debug=True)
    debug = payload["debug"]
    assert debug["calls"] == [
        {"raw": "无", "fault": "回答中没有含 indices 数组的 JSON 对象"},
        {"raw": '{"indices":[3]}', "fault": ""},
    ]
    assert debug["pred_docs"] == [DOCS[2]]
    assert debug["structured_output"] == "json_schema"
    assert debug["system_prompt_sha256"] == prompts.load("generate/select.txt").sha256


# --- without a model ---------------------------------------------------------------------------------------------


async def local(tmp_path: Path, docs: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    async with serving("", tmp_path, provider="local", model="") as services:
        return payload_of(await collect(services, retrieval_docs=docs, **fields))


async def test_local_provider_says_that_it_is_local(tmp_path: Path) -> None:
    payload = await local(tmp_path, DOCS, generation_enable_thinking=True)
    assert list(payload) == KEYS
    assert payload["ok"] is True
    assert (payload["provider"], payload["model"], payload["pred_raw"]) == ("local", "", "")
    assert payload["usage"] is None
    assert payload["generation_enable_thinking"] is False


async def test_local_provider_goes_by_the_scores_that_were_given(tmp_path: Path) -> None:
    docs = [doc | {"score": score} for doc, score in zip(DOCS, (1.0, 9.0, 1.5), strict=True)]
    assert (await local(tmp_path, docs))["pred_indices"] == [2]


@pytest.mark.parametrize("score", [None, True, "9", [9]])
async def test_local_provider_without_scores_goes_by_common_words(tmp_path: Path, score: Any) -> None:
    docs = [{**DOCS[0], "score": score}, DOCS[1] | {"score": 99}, DOCS[2] | {"score": 1}]
    payload = await local(tmp_path, docs, query="动火要办什么证？")
    assert payload["pred_indices"][0] == 3
    nothing = await local(tmp_path, docs, query="zzz")
    assert (nothing["answer_text"], nothing["pred_indices"]) == (NOTHING_FOUND, [])


# --- requests ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"query": " "}, "query 须为 1..2000 个字符"),
        ({"query": "问" * 2001}, "收到 2001 个字符的字符串"),
        ({"max_items": 0}, "max_items 须为 1..50 的整数，收到 0。"),
        ({"max_items": 51}, "max_items 须为 1..50 的整数，收到 51。"),
        ({"max_items": True}, "max_items 须为 1..50 的整数，收到布尔值 true。"),
        ({"retrieval_docs": []}, "retrieval_docs 须为 1..200 项的数组，收到 0 项的数组。"),
        ({"retrieval_docs": DOCS * 67}, "retrieval_docs 须为 1..200 项的数组，收到 201 项的数组。"),
        ({"retrieval_docs": [1]}, "retrieval_docs[0]"),
        (
            {"retrieval_docs": [{"law_name": "甲", "contents": "乙"}]},
            "缺少必填字段 retrieval_docs[0].article_number",
        ),
        ({"retrieval_docs": [DOCS[0] | {"law_name": " "}]}, "retrieval_docs[0].law_name"),
        ({"retrieval_docs": [DOCS[0] | {"contents": ""}]}, "retrieval_docs[0].contents"),
        ({"retrieval_docs": [DOCS[0] | {"contents": "字" * 20001}]}, "1..20000 个字符"),
        ({"retrieval_docs": [DOCS[0] | {"article_number": None}]}, "retrieval_docs[0].article_number"),
        ({"generation_enable_thinking": 1}, "generation_enable_thinking 须为布尔值"),
        ({"include_debug": None}, "include_debug 须为布尔值"),
    ],
)
def test_wrong_fields_are_named_with_their_rule(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(CgError) as refused:
        parse_request(generate.Request, BODY | fields)
    assert refused.value.code == "invalid_request"
    assert words in refused.value.message


def lexed(body: dict[str, Any]) -> dict[str, Any]:
    lexer = BodyLexer()
    lexer.feed(json.dumps(body).encode())
    return lexer.finish().value


def test_contents_of_twenty_thousand_characters_are_taken_however_they_are_escaped() -> None:
    text = "\U0001f600" * 10_000 + "字" * 10_000  # 180 kB of JSON
    request = parse_request(
        generate.Request, lexed(BODY | {"retrieval_docs": [DOCS[0] | {"contents": text}]})
    )
    assert request.retrieval_docs[0].contents == text


@pytest.mark.parametrize("text", ["字" * 20_001, "x" * 100_000])
def test_longer_contents_are_refused_with_the_limit(text: str) -> None:
    with pytest.raises(CgError) as refused:
        parse_request(generate.Request, lexed(BODY | {"retrieval_docs": [DOCS[0] | {"contents": text}]}))
    assert "1..20000 个字符" in refused.value.message


async def test_other_fields_come_back_as_they_were_parsed(tmp_path: Path) -> None:
    others = {"note": "长" * 30_000, "deep": {"a": ["长" * 30_000, 1.5, None]}, "score": 3}
    body = lexed(BODY | {"retrieval_docs": [DOCS[0] | others], "include_debug": True})
    async with (
        fake_upstream(says('{"indices":[1]}')) as upstream,
        serving(upstream.url, tmp_path) as services,
    ):
        payload = await drain(generate.run(parse_request(generate.Request, body), services, "r"))
    assert payload["debug"]["pred_docs"] == [DOCS[0] | others]


# --- properties --------------------------------------------------------------------------------------------------

PIECES = st.sampled_from(
    ['{"indices":[', "1", "2", "3", ",", "]", "}", "99", "-", '"', "<think>", "</think>", "```", "无", "true"]
)
TEXTS = st.one_of(st.lists(PIECES, max_size=20).map("".join), st.text(max_size=40))


def check_result(payload: dict[str, Any], max_items: int) -> None:
    picks = payload["pred_indices"]
    assert set(picks) <= {1, 2, 3}
    assert len(set(picks)) == len(picks) <= max_items
    items = [f"{DOCS[pick - 1]['law_name']} {DOCS[pick - 1]['article_number']}".strip() for pick in picks]
    assert payload["pred_items"] == items
    if payload["ok"]:
        lines = [FIRST_LINE, *(f"{place}. {item}" for place, item in enumerate(items, 1))]
        assert payload["answer_text"] == ("\n".join(lines) if picks else NOTHING_FOUND)
        assert list(payload) == KEYS
    else:
        code = error_of(payload)["code"]
        assert code in ("generation_response_invalid", "generation_upstream_error")


class Scripted:
    """One fake server and one service for all examples of a property test."""

    def __init__(self, upstream: FakeUpstream, services: Services) -> None:
        self.upstream = upstream
        self.services = services

    async def answer(self, *replies: Any, **fields: Any) -> list[Event]:
        self.upstream.enqueue(*replies)
        events = await collect(self.services, **fields)
        self.upstream.forget()
        return events


@pytest.fixture
def example(tmp_path: Path) -> Any:
    """`example(lambda scripted: coroutine)` runs it in a loop of its own: hypothesis knows no fixtures per example."""

    def run_one(make_coroutine: Callable[[Scripted], Any]) -> Any:
        async def whole() -> Any:
            async with fake_upstream() as upstream, serving(upstream.url, tmp_path) as services:
                return await make_coroutine(Scripted(upstream, services))

        return asyncio.run(whole())

    return run_one


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(texts=st.tuples(TEXTS, TEXTS), max_items=st.integers(1, 3), thinks=st.booleans())
def test_any_text_of_a_model_is_a_selection_or_a_failure_of_the_contract(
    example: Any, texts: tuple[str, str], max_items: int, thinks: bool
) -> None:
    async def one(scripted: Scripted) -> None:
        fields = {"max_items": max_items, "generation_enable_thinking": thinks}
        check_result(payload_of(await scripted.answer(*map(says, texts), **fields)), max_items)

    example(one)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(body=st.one_of(st.binary(max_size=80), TEXTS.map(lambda text: sse(chunk({"content": text})))))
def test_any_bytes_of_a_model_server_are_a_failure_of_the_contract(example: Any, body: bytes) -> None:
    async def one(scripted: Scripted) -> None:
        reply = raw(body, headers={"Content-Type": "text/event-stream"})
        check_result(payload_of(await scripted.answer(*[reply] * 6)), 2)

    example(one)


ODD_CHUNKS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from(["", "stop", '{"indices":[2]}', "</think>"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "delta",
                    "content",
                    "index",
                    "finish_reason",
                    "message",
                    "tool_calls",
                    "usage",
                    "error",
                    "reasoning_content",
                    "function",
                    "arguments",
                    "text",
                    "type",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(chunks=st.lists(ODD_CHUNKS, max_size=4), ends=st.sampled_from(["stop", "length", None]))
def test_chunks_of_any_shape_are_an_answer_or_a_failure_of_the_contract(
    example: Any, chunks: list[Any], ends: str | None
) -> None:
    async def one(scripted: Scripted) -> None:
        parts = [*map(json.dumps, chunks), *[chunk({}, ends)] * (ends is not None), "[DONE]"]
        check_result(payload_of(await scripted.answer(*[streams(*parts)] * 6)), 2)

    example(one)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(text=TEXTS, size=st.integers(1, 40))
def test_events_do_not_depend_on_how_the_stream_was_cut(example: Any, text: str, size: int) -> None:
    async def one(scripted: Scripted) -> None:
        told = []
        for options in ({}, {"slice_bytes": size}):
            reply = says(text, thinking="想一想", **options)
            events = await scripted.answer(reply, reply, generation_enable_thinking=True)
            told.append([event for event in events if isinstance(event, (Token, AnswerReset))])
            told[-1].append({**payload_of(events), "runtime_stats": {}})
        assert told[0] == told[1]

    example(one)
