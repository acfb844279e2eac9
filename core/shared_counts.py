"""The counts of all workers of a service as one, so that a scrape need not know which of them it met.

Rule: a worker writes its counts where they outlive it (files mapped into memory, prometheus_client's multiprocess
mode) and is called by its number, so whoever is started in its place counts on from where it ended: no count ever goes
back while the service lives. What stands is written down once a second, read with that age, and ends with its worker.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from prometheus_client import Counter, Gauge, ProcessCollector, values
from prometheus_client.core import Metric
from prometheus_client.multiprocess import MultiProcessCollector

from cg_rag.core.roster import Roster

NOTE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Reading:
    """One number that stands, or a count that somebody else keeps. `merge` makes one of those of several workers."""

    name: str
    help: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    kind: Literal["gauge", "counter"] = "gauge"
    merge: Literal["sum", "max", "min"] = "sum"


class SharedCounts:
    """Make it before any metric: from then on all metrics of this process are written to `roster`'s folder. Raises
    OSError, and changes nothing, where the folder has no room."""

    def __init__(self, roster: Roster, number: int) -> None:
        roster.reserve(number)
        self._roster = roster
        self._gauges: dict[str, Gauge] = {}
        self._counters: dict[str, Counter] = {}
        self._counted: dict[tuple[str, ...], float] = {}
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(roster.folder)
        values.ValueClass = values.MultiProcessValue(lambda: number)  # type: ignore[no-untyped-call]

    def note(self, readings: Iterable[Reading]) -> None:
        """Write down what stands in this worker now."""
        for reading in readings:
            if reading.kind == "counter":
                self._count(reading)
            else:
                gauge = self._gauges.get(reading.name)
                if gauge is None:
                    gauge = self._gauges[reading.name] = Gauge(
                        reading.name,
                        reading.help,
                        tuple(reading.labels),
                        registry=None,
                        multiprocess_mode=_MODES[reading.merge],
                    )
                (gauge.labels(**reading.labels) if reading.labels else gauge).set(reading.value)

    def _count(self, reading: Reading) -> None:
        counter = self._counters.get(reading.name)
        if counter is None:
            labels = tuple(reading.labels)
            counter = self._counters[reading.name] = Counter(
                reading.name, reading.help, labels, registry=None
            )
        key = (reading.name, *reading.labels.values())
        child = counter.labels(**reading.labels) if reading.labels else counter
        child.inc(reading.value - self._counted.get(key, 0.0))
        self._counted[key] = reading.value

    def collect(self) -> Iterator[Metric]:
        """What all workers have counted and noted; of processes, one series for each that lives."""
        files = [str(path) for path in self._roster.folder.glob("*.db") if _is_begun(path)]
        yield from MultiProcessCollector.merge(files)  # type: ignore[no-untyped-call]
        yield from self._processes()

    def _processes(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for entry in self._roster.read():
            for found in _process(entry.pid) if entry.pid else ():
                labels = {"worker": str(entry.number)}
                samples = [sample._replace(labels=labels) for sample in found.samples]
                found.samples = []
                families.setdefault(found.name, found).samples += samples
        yield from families.values()


def _is_begun(path: Path) -> bool:
    """False for a file that has just been made, and is about to get its head, or has just gone with its worker."""
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False


def _process(pid: int) -> Iterable[Metric]:
    """Memory, times and open files of a process of ours; nothing of one that has ended."""
    return ProcessCollector(pid=lambda: pid, registry=None).collect()


_MODES: Final[Mapping[str, Literal["livesum", "livemax", "livemin"]]] = {
    "sum": "livesum",
    "max": "livemax",
    "min": "livemin",
}
