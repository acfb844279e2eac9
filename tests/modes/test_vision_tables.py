"""How the tables of `eval vision` write a measure."""

from __future__ import annotations

from cg_rag.index.metrics import Interval
from cg_rag.modes.vision_tables import interval


def test_an_interval_is_shown_only_where_resampling_can_show_one() -> None:
    assert interval(Interval(0.5, 0.25, 0.75)) == "50.0% [25.0, 75.0]"
    assert interval(Interval(1.0, 1.0, 1.0)) == "100.0% [—]"
    assert interval(Interval(-0.5, -0.75, 0.0), signed=True) == "-50.0 [-75.0, +0.0]"
    assert interval(Interval(0.0, 0.0, 0.0), signed=True) == "+0.0 [—]"
    assert interval(None) == "—"
