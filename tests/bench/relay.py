"""Measures what our streaming adds between a model's tokens and the reader's; prints one table.

    python tests/bench/relay.py [--streams 20] [--tokens 300] [--pause-ms 5] [--first 300] [--rounds 3]

Three processes on the loopback: a model that streams tokens, a relay, and this one as the reader. The relays are

    none   the reader asks the model itself
    bare   aiohttp alone: whatever bytes arrive are written on, not even looked at
    ours   read by the chat client (core/upstream.py) as every mode does, yielded as Token, sent by stream_events with
           a heartbeat

first   ms from the model's sending of its first token to the reader's having it, one stream at a time
later   the same for all tokens of --streams streams at once
cpu     CPU time of the relay's process per token of those; the median of --rounds
"""

from __future__ import annotations

import argparse
import asyncio
import re
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import orjson
from aiohttp import ClientSession, TCPConnector, web
from pydantic import SecretStr

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cg_rag.core.connection import make_runner
from cg_rag.core.events import Event, Final, Token
from cg_rag.core.sse_stream import follow_streams, stream_events
from cg_rag.core.upstream import ChatRequest, ChatUpstream, UpstreamSettings

SENT_AT = re.compile(
    rb"@(\d+)@"
)  # in every token: when the model sent it, on the clock that all processes share
SESSION: web.AppKey[ClientSession] = web.AppKey("session", ClientSession)
MODEL: web.AppKey[str] = web.AppKey("model", str)


async def model(request: web.Request) -> web.StreamResponse:
    pause = float(request.match_info["pause"])
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for number in range(int(request.match_info["tokens"])):
        await asyncio.sleep(pause)
        chunk = {
            "id": "chatcmpl-0123456789abcdef",
            "object": "chat.completion.chunk",
            "created": 1700000000,
            "model": "bench",
            "choices": [
                {
                    "index": 0,
                    "delta": {"content": f"脚{number}@{time.monotonic_ns()}@"},
                    "finish_reason": None,
                }
            ],
        }
        await response.write(b"data: " + orjson.dumps(chunk) + b"\n\n")
    await response.write(b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n')
    await response.write(b"data: [DONE]\n\n")
    return response


async def bare(request: web.Request) -> web.StreamResponse:
    async with request.app[SESSION].post(f"{request.app[MODEL]}{request.path}") as upstream:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        async for piece in upstream.content.iter_any():
            await response.write(piece)
    return response


async def ours(request: web.Request) -> web.StreamResponse:
    endpoint = f"{request.app[MODEL]}{request.path}"
    settings = UpstreamSettings(endpoint, "bench", SecretStr("sk-0123456789abcdef"), provider="openai")
    client = ChatUpstream(settings, request.app[SESSION])
    return await stream_events(request, lambda: mode(client), heartbeat_seconds=15, request_id="req_bench")


async def mode(client: ChatUpstream) -> AsyncIterator[Event]:
    request = ChatRequest([{"role": "user", "content": "脚手架"}])
    async with aclosing(client.stream(request, 120.0)) as deltas:
        async for delta in deltas:
            if delta.text:
                yield Token("answer", delta.text)
    yield Final({"ok": True})


async def tell_cpu(_request: web.Request) -> web.Response:
    return web.Response(text=str(time.process_time()))


async def serve(role: str, upstream: str) -> None:
    """One server process: prints its port, ends with its standard input."""
    app = web.Application()
    handler = {"model": model, "bare": bare, "ours": ours}[role]
    app.router.add_post("/{tokens}/{pause}/chat/completions", handler)
    app.router.add_get("/cpu", tell_cpu)
    follow_streams(app, 5.0)
    async with AsyncExitStack() as stack:
        if upstream:
            app[MODEL] = upstream
            app[SESSION] = await stack.enter_async_context(
                ClientSession(connector=TCPConnector(limit=0), auto_decompress=False)
            )
        runner = make_runner(
            app, header_timeout_seconds=10, write_timeout_seconds=60, shutdown_timeout_seconds=5
        )
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(runner.addresses[0][1], flush=True)
        await asyncio.to_thread(sys.stdin.read)


@asynccontextmanager
async def process(role: str, upstream: str = "") -> AsyncIterator[str]:
    """The base URL of a server process."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "--role", role, "--upstream", upstream,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdin is not None
    try:
        yield f"http://127.0.0.1:{int(await child.stdout.readline())}"
    finally:
        child.stdin.close()
        await child.wait()


@dataclass
class Figures:
    first_ms: list[float] = field(default_factory=list)
    later_ms: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)


async def read_stream(session: ClientSession, url: str, tokens: int, pause: float) -> list[float]:
    """Milliseconds from sending to arrival, for every token of one stream."""
    delays: list[float] = []
    async with session.post(f"{url}/{tokens}/{pause}/chat/completions") as response:
        async for piece in response.content.iter_any():
            now = time.monotonic_ns()
            delays += [(now - int(sent_at)) / 1e6 for sent_at in SENT_AT.findall(piece)]
    assert len(delays) == tokens, f"{len(delays)} of {tokens} tokens arrived whole"
    return delays


async def measure(session: ClientSession, base: str, args: argparse.Namespace, figures: Figures) -> None:
    for _ in range(args.first):
        figures.first_ms += await read_stream(session, base, 1, 0.001)
    before = await read_cpu(session, base)
    streams = [read_stream(session, base, args.tokens, args.pause_ms / 1000) for _ in range(args.streams)]
    for delays in await asyncio.gather(*streams):
        figures.later_ms += delays
    used = await read_cpu(session, base) - before
    figures.cpu_us.append(used * 1e6 / (args.streams * args.tokens))


async def read_cpu(session: ClientSession, base: str) -> float:
    async with session.get(base + "/cpu") as response:
        return float(await response.text())


async def compare(args: argparse.Namespace) -> dict[str, Figures]:
    results = {"none": Figures(), "bare": Figures(), "ours": Figures()}
    async with (
        process("model") as upstream,
        process("bare", upstream) as bare_,
        process("ours", upstream) as ours_,
        ClientSession() as session,
    ):
        for _ in range(args.rounds):  # turn about, so that a busy machine is busy for all of them
            for name, base in (("none", upstream), ("bare", bare_), ("ours", ours_)):
                await measure(session, base, args, results[name])
    return results


def show(results: dict[str, Figures]) -> None:
    print("| relay | first p50 ms | first p95 ms | later p50 ms | later p95 ms | cpu us/token |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, figures in results.items():
        times = [
            f"{value:.2f}"
            for values in (figures.first_ms, figures.later_ms)
            for value in middle_and_p95(values)
        ]
        cpu = "—" if name == "none" else f"{statistics.median(figures.cpu_us):.0f}"
        print(f"| {name} | " + " | ".join([*times, cpu]) + " |")
    none, bare_, ours_ = (results[name] for name in ("none", "bare", "ours"))
    added = statistics.median(ours_.first_ms) - statistics.median(none.first_ms)
    ratio = statistics.median(ours_.cpu_us) / statistics.median(bare_.cpu_us)
    print(
        f"added to the first token: {added:.2f} ms (target < 2), CPU per token: {ratio:.2f} x bare (target <= 2)"
    )


def middle_and_p95(values: list[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(values, n=20)
    return cuts[9], cuts[18]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--streams", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--pause-ms", type=float, default=5)
    parser.add_argument("--first", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--role", choices=["model", "bare", "ours"], help=argparse.SUPPRESS)
    parser.add_argument("--upstream", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.role:
        asyncio.run(serve(args.role, args.upstream))
        return 0
    show(asyncio.run(compare(args)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
