"""The chat client against a scripted server: what it asks, what it hands on, what it remembers."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import Any

import pytest
from pydantic import SecretStr

from cg_rag.core.json_parts import Slices
from cg_rag.core.log import request_id_var
from cg_rag.core.upstream import (
    ChatRequest,
    ChatUpstream,
    UpstreamFailed,
    UpstreamRefused,
    UpstreamSettings,
    open_session,
)
from tests.core.chat_bench import ASK, KEY, bench, streamed
from tests.fake_upstream import USAGE, Go, error, fake_upstream, raw, says, upstream_in_thread, whole

SCHEMA = {"type": "object", "properties": {"indices": {"type": "array"}}, "required": ["indices"]}
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"n":1}'}}


async def test_complete_and_stream_give_the_same_answer() -> None:
    reply = says("验收合格后方可使用", thinking="想", tool_calls=[CALL])
    async with bench(reply, reply) as b:
        result = await b.client.complete(ASK)
        deltas = await streamed(b.client)
        assert deltas[-1].result == result
        assert [request.json["stream"] for request in b.server.requests] == [False, True]
    assert (result.text, result.thinking, result.finish_reason) == ("验收合格后方可使用", "想", "tool_calls")
    assert [(call.id, call.name, call.arguments) for call in result.tool_calls] == [
        ("call_1", "look", '{"n":1}')
    ]
    assert (result.usage, result.model, result.attempts) == (USAGE, "m", 1)
    assert "".join(delta.text for delta in deltas) == result.text
    assert (deltas[-1].finish_reason, deltas[-1].usage) == ("tool_calls", USAGE)


async def test_a_token_is_handed_on_before_the_next_one_is_sent() -> None:

    async with bench(says("一二", cut_after=2, cut_by=[Go()])) as b, aclosing(b.client.stream(ASK)) as deltas:
        assert (await anext(deltas)).text == "一"
        b.server.go()
        assert "".join([delta.text async for delta in deltas]) == "二"


async def test_the_request_says_what_is_wanted_and_the_key_only_in_its_header() -> None:
    token = request_id_var.set("req_0123")
    try:
        async with bench(says("好")) as b:
            await b.client.complete(ASK)
            (request,) = b.server.requests
    finally:
        request_id_var.reset(token)
    assert (request.method, request.path) == ("POST", "/v1/chat/completions")
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.headers["x-request-id"] == "req_0123"
    assert request.headers["accept-encoding"] == "identity"
    assert request.headers["content-type"] == "application/json"
    assert int(request.headers["content-length"]) == len(request.body)
    assert KEY not in request.path + request.body.decode()
    assert request.json == {"model": "m", "messages": list(ASK.messages), "stream": False}


async def test_without_a_key_there_is_no_authorization() -> None:
    async with bench(says("好"), api_key=SecretStr("")) as b:
        await b.client.complete(ASK)
        assert "authorization" not in b.server.requests[0].headers
        assert "x-request-id" not in b.server.requests[0].headers


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/v1/chat/completions"])
async def test_an_endpoint_is_the_base_or_the_whole(path: str) -> None:
    async with fake_upstream(says("好")) as server:
        settings = UpstreamSettings(f"http://127.0.0.1:{server.port}{path}", "m")
        async with open_session(settings) as session:
            await ChatUpstream(settings, session).complete(ASK)
        assert server.requests[0].path == "/v1/chat/completions"


@pytest.mark.parametrize(
    "text",
    [
        "api.deepseek.com/v1",
        "ftp://host/v1",
        "http:///v1",
        "https://key@host/v1",
        "https://user:key@host/v1",
        "https://host/v1?key=1",
        "https://host/v1#a",
        "https://host:x/v1",
        "https://[host/v1",
        "https://ho st/v1",
        "https://host/\n",
        "https://" + "a" * 64 + ".example/v1",
        "",
    ],
)
def test_what_is_no_endpoint_is_refused_without_being_quoted(text: str) -> None:
    with pytest.raises(ValueError, match="endpoint") as raised:
        UpstreamSettings(text, "m")
    assert not text or text not in str(raised.value)


def test_settings_do_not_show_the_key() -> None:
    assert KEY not in repr(UpstreamSettings("http://host/v1", "m", SecretStr(KEY)))


async def test_pictures_go_out_as_the_slices_that_they_are() -> None:
    picture = Slices((b"data:image/jpeg;base64,", b"A" * 3_000_000, b"B" * 3_000_000))
    content = [{"type": "image_url", "image_url": {"url": picture}}]
    async with bench(error(503), says("看见了")) as b:
        result = await b.client.complete(ChatRequest([{"role": "user", "content": content}]))
        assert result.attempts == 2
        for request in b.server.requests:
            assert int(request.headers["content-length"]) == len(request.body)
            (message,) = request.json["messages"]
            assert message["content"][0]["image_url"]["url"].encode() == b"".join(picture.parts)


async def test_connections_are_kept_and_used_again() -> None:
    async with bench(says("一"), says("二"), error(503), says("三")) as b:
        await b.client.complete(ASK)
        await streamed(b.client)
        await b.client.complete(ASK)
        assert b.server.num_connections == 1


async def test_dashscope_thinks_only_while_streaming_so_complete_streams() -> None:
    reply = says("答", thinking="想")
    thinking = ChatRequest(ASK.messages, enable_thinking=True, schema=SCHEMA)
    async with bench(reply, reply, provider="dashscope") as b:
        result = await b.client.complete(thinking)
        assert (result.text, result.thinking, result.usage) == ("答", "想", USAGE)
        sent = b.server.requests[0].json
        assert (sent["stream"], sent["enable_thinking"]) == (True, True)
        assert sent["stream_options"] == {"include_usage": True}
        assert "response_format" not in sent
        await b.client.complete(ChatRequest(ASK.messages, enable_thinking=False, schema=SCHEMA))
        sent = b.server.requests[1].json
        assert (sent["stream"], sent["enable_thinking"]) == (False, False)
        assert sent["response_format"]["type"] == "json_schema"


async def test_settings_overrule_the_table_and_the_request_overrules_the_settings() -> None:
    options = {
        "thinking_control": "reasoning_effort",
        "structured_output": "guided_json",
        "enable_thinking": True,
    }
    async with bench(says("答"), says("答"), **options) as b:
        result = await b.client.complete(ChatRequest(ASK.messages, schema=SCHEMA))
        assert result.structured_output == "guided_json"
        assert b.server.requests[0].json["guided_json"] == SCHEMA
        assert b.server.requests[0].json["reasoning_effort"] == "medium"
        await b.client.complete(ChatRequest(ASK.messages, enable_thinking=False))
        assert b.server.requests[1].json["reasoning_effort"] == "none"


async def test_streaming_switched_off_gives_the_answer_in_one_piece() -> None:
    async with bench(says("一二三"), streaming=False) as b:
        deltas = await streamed(b.client)
        assert b.server.requests[0].json["stream"] is False
        assert [delta.text for delta in deltas] == ["一二三", ""]


REFUSED_FORMAT = error(400, "This response_format type is unavailable now", "invalid_request_error")


async def test_a_refused_constraint_is_stepped_down_from_once_and_remembered() -> None:
    wanted = ChatRequest(ASK.messages, schema=SCHEMA)
    async with bench(REFUSED_FORMAT, REFUSED_FORMAT, says("{}"), says("{}"), max_attempts=1) as b:
        first = await b.client.complete(wanted)
        second = await b.client.complete(wanted)
        formats = [request.json.get("response_format", {}).get("type") for request in b.server.requests]
    assert formats == ["json_schema", "json_object", None, None]
    assert (first.structured_output, first.attempts) == ("none", 3)
    assert (second.structured_output, second.attempts) == ("none", 1)


async def test_calls_that_are_refused_together_step_down_once() -> None:
    wanted = ChatRequest(ASK.messages, schema=SCHEMA)

    def answer(request: Any) -> Any:
        return (
            REFUSED_FORMAT
            if request.json["response_format"]["type"] == "json_schema"
            else raw(json.dumps(whole("{}")).encode())
        )

    async with bench(*[answer] * 16) as b:
        results = await asyncio.gather(*(b.client.complete(wanted) for _ in range(8)))
        assert {result.structured_output for result in results} == {"json_object"}
        assert b.client.structured_output == "json_object"
        assert len(b.server.requests) == 16


async def test_a_prompt_without_the_word_json_is_the_callers_fault_and_changes_nothing() -> None:
    message = "'messages' must contain the word 'json' in some form, to use 'response_format' of type 'json_object'."
    async with bench(error(400, message), provider="deepseek") as b:
        with pytest.raises(UpstreamRefused):
            await b.client.complete(ChatRequest(ASK.messages, schema=SCHEMA))
        assert b.client.structured_output == "json_object"


async def test_a_server_that_knows_no_stream_options_is_asked_without() -> None:
    refusal = error(422, "Extra inputs are not permitted: stream_options")
    async with bench(refusal, says("好", usage=None), says("好", usage=None)) as b:
        for _ in range(2):
            assert (await streamed(b.client))[-1].usage is None
        assert ["stream_options" in request.json for request in b.server.requests] == [True, False, False]


@pytest.mark.parametrize("field", ["code", "type"])
async def test_an_error_never_holds_key_url_or_prompt(field: str) -> None:
    echo = {"message": f"Bearer {KEY} at http://host/ said 脚手架何时验收", field: "canary"}
    async with bench(raw(json.dumps({"error": echo}).encode(), 401)) as b:
        with pytest.raises(UpstreamRefused) as raised:
            await b.client.complete(ASK)
    error_ = raised.value
    assert str(error_) == "unauthorized, status 401, 1 attempts"
    assert error_.code == ""
    assert KEY not in f"{error_!r} {error_.args} {error_.code} {error_.reason}"


async def test_the_servers_own_name_of_a_failure_is_kept() -> None:
    async with bench(error(404, "no such model", "model_not_found")) as b:
        with pytest.raises(UpstreamRefused) as raised:
            await b.client.complete(ASK)
    assert (raised.value.reason, raised.value.status, raised.value.code) == (
        "not_found",
        404,
        "model_not_found",
    )


async def test_proxies_of_the_environment_are_used_only_when_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with fake_upstream(says("好")) as proxy, fake_upstream(says("好")) as server:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.delenv("no_proxy", raising=False)
        for is_used in (False, True):
            settings = UpstreamSettings(server.url, "m", proxy_from_environment=is_used)
            async with open_session(settings) as session:
                await ChatUpstream(settings, session).complete(ASK)
        assert (len(server.requests), len(proxy.requests)) == (1, 1)
        assert proxy.requests[0].path.startswith("http://127.0.0.1")


async def test_a_mode_may_look_at_the_table() -> None:
    async with bench(provider="deepseek") as b:
        assert (b.client.provider.name, b.client.model) == ("deepseek", "m")
        assert b.client.provider.wants_thoughts_back


async def test_an_enqueued_nothing_is_a_failure() -> None:
    async with bench(max_attempts=1) as b:
        with pytest.raises(UpstreamFailed):
            await b.client.complete(ASK)


def test_the_scripted_server_also_serves_tests_without_a_loop() -> None:
    async def call(url: str) -> str:
        settings = UpstreamSettings(url, "m")
        async with open_session(settings) as session:
            return (await ChatUpstream(settings, session).complete(ASK)).text

    with upstream_in_thread(says("好")) as server:
        assert asyncio.run(call(server.url)) == "好"
        assert server.requests[0].json["model"] == "m"


@pytest.mark.parametrize("words", ["Bad Request", "invalid request body", "Unsupported parameter"])
async def test_terse_refusal_is_tried_once_without_the_constraint_and_remembered_when_that_is_taken(
    words: str,
) -> None:
    wanted = ChatRequest(ASK.messages, schema=SCHEMA)
    async with bench(error(400, words), says("{}"), says("{}"), max_attempts=1) as b:
        result = await b.client.complete(wanted)
        assert (result.text, result.attempts, result.structured_output) == ("{}", 2, "none")
        await b.client.complete(wanted)
        assert ["response_format" in request.json for request in b.server.requests] == [True, False, False]


async def test_refusal_of_one_prompt_does_not_cost_the_constraint() -> None:
    wanted = ChatRequest(ASK.messages, schema=SCHEMA)
    async with bench(error(400, "Bad Request"), error(400, "Bad Request"), says("{}"), max_attempts=1) as b:
        with pytest.raises(UpstreamRefused):
            await b.client.complete(wanted)
        await b.client.complete(wanted)
        assert ["response_format" in request.json for request in b.server.requests] == [True, False, True]


async def test_refusal_that_blames_something_else_is_not_tried_again() -> None:
    async with bench(error(400, "maximum context length is 4096 tokens"), max_attempts=1) as b:
        with pytest.raises(UpstreamRefused):
            await b.client.complete(ChatRequest(ASK.messages, schema=SCHEMA))
        assert len(b.server.requests) == 1
