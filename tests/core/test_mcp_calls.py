from __future__ import annotations

from cg_rag.core.mcp_calls import CallsInFlight


class Call:
    num_cancelled = 0

    def cancel(self) -> None:
        self.num_cancelled += 1


def test_call_is_cancelled_by_its_own_key_and_forgotten_with_its_end() -> None:
    calls, call = CallsInFlight(), Call()
    calls.add(("a", "s", "1"), call)
    assert not calls.cancel(("b", "s", "1"))
    assert calls.cancel(("a", "s", "1"))
    assert call.num_cancelled == 1
    calls.remove(("a", "s", "1"), call)
    assert len(calls) == 0
    assert not calls.cancel(("a", "s", "1"))


def test_of_two_calls_with_one_key_both_are_meant_and_each_ends_alone() -> None:
    calls, first, second = CallsInFlight(), Call(), Call()
    calls.add(("a",), first)
    calls.add(("a",), second)
    assert calls.cancel(("a",))
    assert (first.num_cancelled, second.num_cancelled) == (1, 1)
    calls.remove(("a",), second)
    assert calls.cancel(("a",))
    assert (first.num_cancelled, second.num_cancelled) == (2, 1)


def test_call_without_a_key_is_nobodys() -> None:
    calls, call = CallsInFlight(), Call()
    calls.add(None, call)
    assert len(calls) == 0
    calls.remove(None, call)
