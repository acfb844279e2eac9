"""Two pieces of work at the same time: what comes back, which error, and when there is no help."""

from __future__ import annotations

import contextvars
import threading

import pytest

from cg_rag.index import beside
from cg_rag.index.beside import Spare

WAIT_SECONDS = 30.0


def meet(barrier: threading.Barrier) -> int:
    """The thread it ran in; it ends when as many have come as `barrier` waits for."""
    barrier.wait(WAIT_SECONDS)
    return threading.get_ident()


def here() -> int:
    return threading.get_ident()


def test_both_run_at_the_same_time() -> None:
    barrier = threading.Barrier(2)
    first, second = Spare(2).both(lambda: meet(barrier), lambda: meet(barrier))
    assert (first, second != first) == (here(), True)


def test_one_processor_does_one_after_the_other() -> None:
    order: list[str] = []
    assert Spare(1).both(lambda: order.append("first"), lambda: (order.append("second"), here())[1]) == (
        None,
        here(),
    )
    assert order == ["first", "second"]


def test_pieces_of_a_piece_are_helped_while_there_are_processors() -> None:
    spare, barrier = Spare(4), threading.Barrier(3)
    (inner, other), beside = spare.both(
        lambda: spare.both(lambda: meet(barrier), lambda: meet(barrier)), lambda: meet(barrier)
    )
    assert len({inner, other, beside}) == 3
    four, whole = threading.Barrier(4), Spare(4)
    halves = whole.both(
        lambda: whole.both(lambda: meet(four), lambda: meet(four)),
        lambda: whole.both(lambda: meet(four), lambda: meet(four)),
    )
    assert len({thread for half in halves for thread in half}) == 4
    (inner, other), beside = Spare(2).both(lambda: Spare(1).both(here, here), here)
    assert inner == other != beside


def test_nobody_is_helped_while_others_are_at_work() -> None:
    spare, may_end = Spare(2), threading.Event()
    at_work = threading.Barrier(3)

    def work() -> None:
        at_work.wait(WAIT_SECONDS)
        may_end.wait(WAIT_SECONDS)

    other = threading.Thread(target=lambda: spare.both(work, work))
    other.start()
    at_work.wait(WAIT_SECONDS)
    try:
        assert spare.both(here, here) == (here(), here())
        assert spare.both(here, here) == (here(), here())
    finally:
        may_end.set()
        other.join(WAIT_SECONDS)
    barrier = threading.Barrier(2)
    assert len(set(spare.both(lambda: meet(barrier), lambda: meet(barrier)))) == 2


@pytest.mark.parametrize("num_processors", [1, 2])
@pytest.mark.parametrize(("faulty", "told"), [("first", "first"), ("second", "second"), ("both", "first")])
def test_error_is_raised_when_both_have_ended_and_help_comes_again(
    num_processors: int, faulty: str, told: str
) -> None:
    spare, ended = Spare(num_processors), threading.Event()

    def piece(name: str) -> None:
        if name == "second":
            ended.set()
        if faulty in (name, "both"):
            raise ValueError(name)

    for _ in range(5):
        with pytest.raises(ValueError, match=told):
            spare.both(lambda: piece("first"), lambda: piece("second"))
    assert ended.is_set() or num_processors == 1
    if num_processors == 2:
        barrier = threading.Barrier(2)
        assert len(set(spare.both(lambda: meet(barrier), lambda: meet(barrier)))) == 2


def test_the_other_thread_sees_what_the_caller_has_set() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    variable.set("the caller's")
    assert Spare(2).both(variable.get, variable.get) == ("the caller's", "the caller's")


def test_without_room_for_a_thread_the_caller_does_both(monkeypatch: pytest.MonkeyPatch) -> None:
    spare = Spare(2)
    reasons: list[Exception] = [MemoryError(), *[RuntimeError("can't start new thread")] * 3]

    def refuse(_thread: threading.Thread) -> None:
        raise reasons.pop()

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        for _ in range(3):
            assert spare.both(here, here) == (here(), here())
        with pytest.raises(MemoryError):
            spare.both(here, here)
    barrier = threading.Barrier(2)
    assert len(set(spare.both(lambda: meet(barrier), lambda: meet(barrier)))) == 2


def test_no_thread_is_left() -> None:
    barrier = threading.Barrier(2)
    Spare(4).both(lambda: meet(barrier), lambda: meet(barrier))
    # By name: threads that earlier tests have left end whenever they like.
    assert [thread for thread in threading.enumerate() if thread.name == "beside"] == []


@pytest.mark.parametrize(("processes", "share"), [(1, 4), (2, 2), (3, 1), (8, 1)])
def test_each_of_several_processes_takes_its_share(
    monkeypatch: pytest.MonkeyPatch, processes: int, share: int
) -> None:
    monkeypatch.setattr(beside, "NUM_PROCESSORS", 4)
    monkeypatch.setattr(beside, "SPARE", Spare(4))
    beside.share_processors(processes)
    assert beside.SPARE.num_processors == share
