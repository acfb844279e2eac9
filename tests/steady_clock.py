"""A clock for the loop on which a machine that stands still for a moment does not show.

Where client and server of a test share one loop, a stall stops both; yet on the wall clock the server's time-outs run
on meanwhile, and end what the client was about to go on with. On this clock no stall takes longer than LONGEST_GAP.
All time-outs of asyncio, of aiohttp and of the service are times of the loop, so they keep their proportions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest import mock

LONGEST_GAP_SECONDS = 0.01
TICK_SECONDS = 0.004  # a loop with nothing to do wakes so often, so that its waits are no gaps


@asynccontextmanager
async def steady_clock() -> AsyncIterator[None]:
    """The running loop's `time()` is that of the steady clock. Durations are to be measured with `loop_seconds`."""
    loop = asyncio.get_running_loop()
    shown, seen = loop.time(), time.monotonic()

    def steady_time() -> float:
        nonlocal shown, seen
        now = time.monotonic()
        shown, seen = shown + min(now - seen, LONGEST_GAP_SECONDS), now
        return shown

    def tick() -> None:
        nonlocal ticking
        ticking = loop.call_later(TICK_SECONDS, tick)

    with mock.patch.object(loop, "time", steady_time):
        ticking = loop.call_later(TICK_SECONDS, tick)
        try:
            yield
        finally:
            ticking.cancel()


def loop_seconds() -> float:
    """What `time.monotonic` is for a test on the wall clock."""
    return asyncio.get_running_loop().time()
