from __future__ import annotations

import asyncio

import pytest

from cg_rag.core.cache import Cache, Computed


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Work:
    """A computation that tells when it begins and ends when it is told to."""

    def __init__(self, value: str = "answer", num_bytes: int = 10, cacheable: bool = True) -> None:
        self.runs = 0
        self.began = asyncio.Event()
        self.may_end = asyncio.Event()
        self.cancelled = False
        self._computed = Computed(value, num_bytes, cacheable)

    async def __call__(self) -> Computed[str]:
        self.runs += 1
        self.began.set()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return self._computed


def done(value: str = "answer", num_bytes: int = 10, cacheable: bool = True) -> Work:
    work = Work(value, num_bytes, cacheable)
    work.may_end.set()
    return work


async def test_second_question_is_a_hit_and_does_no_work() -> None:
    cache: Cache[str] = Cache(100, 60)
    work = done()
    assert await cache.get_or_compute("k", work) == ("answer", False)
    assert await cache.get_or_compute("k", work) == ("answer", True)
    assert work.runs == 1
    assert cache.snapshot() == {"entries": 1, "bytes": 10, "hits": 1, "misses": 1}


async def test_entry_is_computed_again_after_its_lifetime() -> None:
    clock = Clock()
    cache: Cache[str] = Cache(100, 60, clock)
    work = done()
    await cache.get_or_compute("k", work)
    clock.now = 60.0
    assert await cache.get_or_compute("k", work) == ("answer", False)
    assert cache.snapshot()["bytes"] == 10


async def test_least_recently_used_entry_leaves_first() -> None:
    cache: Cache[str] = Cache(20, 60)
    for key in ("a", "b", "a", "c"):
        await cache.get_or_compute(key, done(key))
    assert (await cache.get_or_compute("a", done("again")))[0] == "a"
    assert (await cache.get_or_compute("b", done("again")))[0] == "again"


async def test_value_above_the_bound_is_not_stored_and_pushes_nothing_out() -> None:
    cache: Cache[str] = Cache(20, 60)
    await cache.get_or_compute("small", done())
    await cache.get_or_compute("large", done(num_bytes=21))
    assert cache.snapshot()["entries"] == 1
    assert (await cache.get_or_compute("small", done("new")))[1] is True


async def test_bound_of_zero_stores_nothing() -> None:
    cache: Cache[str] = Cache(0, 60)
    work = done()
    await cache.get_or_compute("k", work)
    await cache.get_or_compute("k", work)
    assert work.runs == 2


async def test_degraded_answer_is_not_stored() -> None:
    cache: Cache[str] = Cache(100, 60)
    work = done(cacheable=False)
    await cache.get_or_compute("k", work)
    assert (await cache.get_or_compute("k", work))[1] is False


async def test_identical_questions_in_flight_share_one_computation() -> None:
    cache: Cache[str] = Cache(100, 60)
    work = Work()
    tasks = [asyncio.create_task(cache.get_or_compute("k", work)) for _ in range(5)]
    await work.began.wait()
    work.may_end.set()
    assert await asyncio.gather(*tasks) == [("answer", False)] * 5
    assert work.runs == 1


async def test_first_asker_leaving_does_not_disturb_the_others() -> None:
    cache: Cache[str] = Cache(100, 60)
    work = Work()
    first = asyncio.create_task(cache.get_or_compute("k", work))
    await work.began.wait()
    second = asyncio.create_task(cache.get_or_compute("k", work))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    work.may_end.set()
    assert await second == ("answer", False)
    assert work.runs == 1
    assert not work.cancelled


async def test_work_is_cancelled_when_the_last_asker_has_left() -> None:
    cache: Cache[str] = Cache(100, 60)
    work = Work()
    tasks = [asyncio.create_task(cache.get_or_compute("k", work)) for _ in range(3)]
    await work.began.wait()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert work.cancelled
    assert await cache.get_or_compute("k", done("new")) == ("new", False)


async def test_failure_reaches_everybody_and_is_not_kept() -> None:
    cache: Cache[str] = Cache(100, 60)
    may_fail = asyncio.Event()

    async def fail() -> Computed[str]:
        await may_fail.wait()
        raise ValueError("broken")

    tasks = [asyncio.create_task(cache.get_or_compute("k", fail)) for _ in range(2)]
    await asyncio.sleep(0)
    may_fail.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [str(result) for result in results] == ["broken", "broken"]
    assert await cache.get_or_compute("k", done()) == ("answer", False)


async def test_asker_after_a_cancelled_flight_starts_a_new_one() -> None:
    cache: Cache[str] = Cache(100, 60)
    stubborn_may_end = asyncio.Event()
    began = asyncio.Event()

    async def stubborn() -> Computed[str]:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            await stubborn_may_end.wait()  # a thread that cannot be stopped
        raise AssertionError

    first = asyncio.create_task(cache.get_or_compute("k", stubborn))
    await began.wait()
    first.cancel()
    await asyncio.sleep(0)
    assert await cache.get_or_compute("k", done("new")) == ("new", False)
    stubborn_may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert (await cache.get_or_compute("k", done("newer")))[0] == "new"
