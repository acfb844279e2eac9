"""Hundreds of streams against a process of their own: memory, descriptors, lines in the log."""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from tests.core.test_connection import connect_with_small_buffer
from tests.sse_checker import StreamChecker

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).resolve().parents[1] / "stream_process.py"
KIB = 1024


class StreamProcess:
    def __init__(self, port: int, pid: int, log: Path) -> None:
        self.port = port
        self._pid = pid
        self._log = log

    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self._pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def num_open_files(self) -> int:
        return len(os.listdir(f"/proc/{self._pid}/fd"))

    def events(self) -> list[str]:
        return [json.loads(line)["event"] for line in self._log.read_text().splitlines()]

    def request_head(self, path: str) -> bytes:
        return f"GET {path} HTTP/1.0\r\nHost: x\r\n\r\n".encode()

    async def read(self, path: str, bytes_per_turn: int = 65536, pause: float = 0.0) -> bytes:
        """The body; HTTP/1.0, so that it comes without chunks."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=4096)
        writer.write(self.request_head(path))
        received = b""
        while piece := await reader.read(bytes_per_turn):
            received += piece
            await asyncio.sleep(pause)
        writer.close()
        return received.partition(b"\r\n\r\n")[2]

    async def health_ms(self) -> float:
        started = time.monotonic()
        assert await self.read("/health") == b"{}"
        return (time.monotonic() - started) * 1000


@pytest.fixture
async def process() -> AsyncIterator[StreamProcess]:
    async with run_process() as started:
        for _ in range(50):  # what the first requests allocate once is not theirs to answer for
            await started.read("/stream?n=20&sz=60")
        yield started


@asynccontextmanager
async def run_process() -> AsyncIterator[StreamProcess]:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as stderr:
            child = await asyncio.create_subprocess_exec(
                sys.executable,
                str(PROGRAM),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
            )
        assert child.stdout is not None
        assert child.stdin is not None
        try:
            yield StreamProcess(int(await child.stdout.readline()), child.pid, log)
        finally:
            child.stdin.close()
            async with asyncio.timeout(20):
                assert await child.wait() == 0


async def until(condition: Callable[[], bool], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.05)


async def test_two_hundred_streams_half_of_them_at_5_kib_a_second_all_end_well(
    process: StreamProcess,
) -> None:
    base, highest = process.resident_bytes(), 0

    async def watch() -> None:
        nonlocal highest
        while True:
            highest = max(highest, process.resident_bytes())
            await asyncio.sleep(0.05)

    watching = asyncio.create_task(watch())
    path = "/stream?n=200&sz=60"
    bodies = await asyncio.gather(
        *(process.read(path, 1024, 0.2) if number % 2 else process.read(path) for number in range(200))
    )
    watching.cancel()
    for body in bodies:
        stream = StreamChecker(body, has_answer=False)
        assert [int(event.data["text"]) for event in stream.named("token")] == list(range(200))
    print(f"RSS +{(highest - base) // KIB} KiB")
    assert highest - base <= 32 << 20


async def test_two_hundred_readers_who_take_nothing_cost_little_and_are_dropped(
    process: StreamProcess,
) -> None:
    base, files = process.resident_bytes(), process.num_open_files()
    loop = asyncio.get_running_loop()
    with ExitStack() as peers:
        for _ in range(200):
            peer = peers.enter_context(await connect_with_small_buffer(process.port))
            await loop.sock_sendall(peer, process.request_head("/stream?n=2000000&sz=500"))
        await asyncio.sleep(3)
        grown = (process.resident_bytes() - base) / 200
        # Meanwhile all of them are still filling the system's buffers, as fast as the server can.
        health = statistics.median([await process.health_ms() for _ in range(5)])
        print(f"{grown / KIB:.0f} KiB each, /health {health:.0f} ms")
        assert grown <= 64 * KIB
        assert health < 100
        await until(lambda: process.events().count("reader_dropped") == 200, 20)
        await until(lambda: process.num_open_files() == files, 5)


async def test_five_hundred_readers_who_leave_at_random_moments_leave_nothing_behind(
    process: StreamProcess,
) -> None:
    files, lines = process.num_open_files(), len(process.events())
    gate = asyncio.Semaphore(100)

    async def leave(seed: int) -> None:
        random_ = random.Random(seed)
        async with gate:
            reader, writer = await asyncio.open_connection("127.0.0.1", process.port)
            writer.write(process.request_head("/stream?n=100000&sz=60&pause=0.001"))
            await reader.readexactly(random_.randrange(1, 20_000))
            if random_.random() < 0.5:
                writer.transport.abort()
            writer.close()

    await asyncio.gather(*(leave(seed) for seed in range(500)))
    await until(lambda: process.num_open_files() == files, 5)
    await until(lambda: len(process.events()) >= lines + 500, 1)
    assert process.events()[lines:] == ["request"] * 500
