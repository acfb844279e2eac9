from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cg_rag.core.capacity import Lease, Limiter
from cg_rag.core.errors import CgError


async def waiting(limiter: Limiter, count: int) -> None:
    """Until `count` are in the queue."""
    while limiter.snapshot()["waiting"] != count:
        await asyncio.sleep(0)


async def test_units_come_back_at_the_end_of_a_slot() -> None:
    limiter = Limiter("retrieval", 2, 1)
    async with limiter.slot():
        assert limiter.snapshot() == {"max": 2, "in_use": 1, "available": 1, "waiting": 0}
    assert limiter.in_use == 0


async def test_slot_comes_back_when_the_work_raises() -> None:
    limiter = Limiter("retrieval", 1, 1)
    with pytest.raises(ZeroDivisionError):
        async with limiter.slot():
            raise ZeroDivisionError
    assert limiter.in_use == 0


async def test_waiting_in_vain_is_capacity_exceeded_with_its_details() -> None:
    limiter = Limiter("retrieval", 1, 0.01)
    lease = await limiter.take()
    with pytest.raises(CgError) as caught:
        await limiter.take()
    assert caught.value.code == "capacity.exceeded"
    assert caught.value.message == "服务当前请求过多，请稍后重试。"
    assert caught.value.details == {"resource": "retrieval", "max": 1, "wait_timeout_seconds": 0.01}
    assert caught.value.headers["Retry-After"] == "1"
    lease.release()
    assert limiter.snapshot() == {"max": 1, "in_use": 0, "available": 1, "waiting": 0}


async def test_first_come_is_first_served() -> None:
    limiter = Limiter("retrieval", 1, 60)
    order: list[int] = []

    async def work(number: int) -> None:
        async with limiter.slot():
            order.append(number)

    holder = await limiter.take()
    tasks = []
    for number in range(5):
        tasks.append(asyncio.create_task(work(number)))
        await waiting(limiter, number + 1)
    holder.release()
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2, 3, 4]


async def test_large_request_is_not_overtaken_by_small_ones() -> None:
    limiter = Limiter("request_body", 10, 60)
    holder = await limiter.take(5)
    large = asyncio.create_task(limiter.take(8))
    await waiting(limiter, 1)
    small = asyncio.create_task(limiter.take(1))
    await waiting(limiter, 2)
    assert not small.done()
    holder.release()
    (await large).release()
    (await small).release()
    assert limiter.in_use == 0


async def test_request_above_the_whole_is_refused_without_waiting() -> None:
    limiter = Limiter("request_body", 10, 3600)
    with pytest.raises(CgError, match="请求过多"):
        await limiter.take(11)


async def test_cancelled_waiter_leaves_nothing_and_lets_the_next_one_in() -> None:
    limiter = Limiter("request_body", 10, 60)
    holder = await limiter.take(5)
    large = asyncio.create_task(limiter.take(8))
    await waiting(limiter, 1)
    small = asyncio.create_task(limiter.take(2))
    await waiting(limiter, 2)
    large.cancel()
    lease = await small
    assert limiter.in_use == 7
    lease.release()
    holder.release()
    assert limiter.in_use == 0


async def test_waiter_cancelled_in_the_moment_of_its_turn_gives_the_unit_back() -> None:
    limiter = Limiter("retrieval", 1, 60)
    holder = await limiter.take()
    waiter = asyncio.create_task(limiter.take())
    await waiting(limiter, 1)
    holder.release()
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert limiter.snapshot() == {"max": 1, "in_use": 0, "available": 1, "waiting": 0}


async def test_waiter_cancelled_just_before_its_turn_is_passed_over() -> None:
    limiter = Limiter("retrieval", 1, 60)
    holder = await limiter.take()
    waiter = asyncio.create_task(limiter.take())
    await waiting(limiter, 1)
    waiter.cancel()
    holder.release()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert limiter.snapshot() == {"max": 1, "in_use": 0, "available": 1, "waiting": 0}


async def test_who_holds_already_goes_before_who_only_waits() -> None:
    limiter = Limiter("request_body", 10, 60)
    holder = await limiter.take(4)
    other = await limiter.take(5)
    newcomer = asyncio.create_task(limiter.take(3))
    await waiting(limiter, 1)
    growing = asyncio.create_task(holder.grow(2))
    await waiting(limiter, 2)
    other.release()
    await growing
    assert limiter.in_use == 9 if newcomer.done() else 6
    holder.release()
    (await newcomer).release()
    assert limiter.in_use == 0


async def test_growing_above_the_whole_is_refused_without_waiting() -> None:
    limiter = Limiter("request_body", 10, 3600)
    lease = await limiter.take(6)
    with pytest.raises(CgError, match="请求过多"):
        await lease.grow(5)
    assert limiter.in_use == 6
    lease.release()


async def test_release_twice_gives_back_once() -> None:
    limiter = Limiter("request_body", 10, 1)
    lease = await limiter.take(4)
    await lease.grow(3)
    assert limiter.in_use == 7
    lease.release()
    lease.release()
    assert limiter.in_use == 0


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 5), st.sampled_from(["keep", "release", "cancel"])), max_size=30))
def test_whatever_happens_the_sum_is_right_and_never_above_the_maximum(steps: list[tuple[int, str]]) -> None:
    asyncio.run(_play(steps))


async def _play(steps: list[tuple[int, str]]) -> None:
    limiter = Limiter("request_body", 6, 30)
    held: list[Lease] = []
    tasks: list[asyncio.Task[Lease]] = []
    for amount, action in steps:
        tasks.append(asyncio.create_task(limiter.take(amount)))
        await asyncio.sleep(0)
        if action == "cancel":
            tasks[-1].cancel()
        if action == "release" and held:
            held.pop(0).release()
        await asyncio.sleep(0)
        held += [task.result() for task in tasks if task.done() and not task.cancelled()]
        tasks = [task for task in tasks if not task.done()]
        assert 0 <= limiter.in_use <= 6
    for task in tasks:
        task.cancel()
    finished = await asyncio.gather(*tasks, return_exceptions=True)
    held += [lease for lease in finished if isinstance(lease, Lease)]
    for lease in held:
        lease.release()
    assert limiter.snapshot() == {"max": 6, "in_use": 0, "available": 6, "waiting": 0}
