from __future__ import annotations

import asyncio

import pytest

from cg_rag.core.budget import Budget
from cg_rag.core.capacity import Limiter
from cg_rag.core.errors import CgError


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_what_is_left_runs_down_and_never_below_zero() -> None:
    clock = Clock()
    budget = Budget(150.0, clock)
    assert budget.remaining() == 150.0
    clock.now += 149.5
    budget.check("看图")
    assert budget.remaining() == pytest.approx(0.5)
    clock.now += 10
    assert budget.remaining() == 0.0
    with pytest.raises(CgError) as caught:
        budget.check("看图")
    assert (caught.value.code, caught.value.status) == ("vision_budget_exceeded", 504)
    assert "150 秒已在“看图”阶段用完" in caught.value.message
    assert caught.value.details == {"stage": "看图", "total_budget_seconds": 150.0}


async def test_a_block_ends_when_the_budget_does() -> None:
    budget = Budget(0.05)
    with pytest.raises(CgError) as caught:
        async with budget.bounding("检索"):
            await asyncio.Event().wait()
    assert caught.value.details["stage"] == "检索"
    with pytest.raises(CgError):
        async with budget.bounding("成文"):
            raise AssertionError("nothing begins once it is spent")


async def test_a_time_out_of_something_inside_keeps_its_name() -> None:
    with pytest.raises(TimeoutError):
        async with Budget(60.0).bounding("检索"):
            raise TimeoutError


async def test_waiting_for_a_slot_ends_with_the_limiters_time_or_with_the_budget() -> None:
    for wait, total, code in ((0.02, 60.0, "capacity.exceeded"), (60.0, 0.02, "vision_budget_exceeded")):
        limiter = Limiter("generation", 1, wait)
        taken = await limiter.take()
        with pytest.raises(CgError) as caught:
            async with Budget(total).slot(limiter, "排队"):
                raise AssertionError("there was no slot")
        assert caught.value.code == code
        assert limiter.snapshot()["waiting"] == 0
        taken.release()
        assert limiter.in_use == 0


async def test_a_patient_wait_outlasts_the_limiters_time() -> None:
    limiter = Limiter("retrieval", 1, 0.01)
    taken = await limiter.take()
    asyncio.get_running_loop().call_later(0.1, taken.release)
    async with Budget(60.0).slot(limiter, "检索", patient=True):
        assert limiter.in_use == 1
    assert limiter.in_use == 0
    taken = await limiter.take()
    with pytest.raises(CgError, match="整单时限"):
        async with Budget(0.05).slot(limiter, "检索", patient=True):
            raise AssertionError("there was no slot")
    taken.release()


async def test_a_slot_comes_back_when_its_block_fails() -> None:
    limiter = Limiter("generation", 1, 1.0)
    with pytest.raises(ZeroDivisionError):
        async with Budget(60.0).slot(limiter, "看图"):
            raise ZeroDivisionError
    assert limiter.in_use == 0
