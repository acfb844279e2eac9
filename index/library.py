"""The index that a running service answers from: opened, verified, and replaced while questions are being answered.

Rule: what questions see is one immutable `Snapshot`. It is replaced as a whole, and only by one that is verified; a
question that began on the old one finishes on it, because its files stay open as long as somebody holds it.

Everything here blocks; a server calls `refresh` in a thread.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from cg_rag.index.corpus import LawRun, Scope, Selector, resolve_scope
from cg_rag.index.errors import IndexDamaged, IndexMissing, ScopeUnknown
from cg_rag.index.retriever import Retriever
from cg_rag.index.store import POINTER, Damage, IndexReader

State = Literal["loading", "ready", "degraded", "missing"]


@dataclass(frozen=True, slots=True)
class Profile:
    """What the configuration says about a scope."""

    label: str
    selectors: tuple[Selector, ...]


@dataclass(frozen=True, slots=True)
class ScopeState:
    """`fault` is "" when the scope can be asked, else the reason in Chinese, naming the file."""

    scope: Scope
    fingerprint: str
    fault: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One verified generation of the index. `faults` are sentences for the log, health and doctor."""

    state: State
    reader: IndexReader | None = None
    retriever: Retriever | None = None
    scopes: Mapping[str, ScopeState] = field(default_factory=dict)
    faults: tuple[str, ...] = ()


class IndexLibrary:
    """Follows the pointer of `index_dir`. `profiles` maps scope names to what they include."""

    def __init__(
        self, index_dir: Path, profiles: Mapping[str, Profile], min_score: float | None = None
    ) -> None:
        self.index_dir = index_dir
        self.profiles = profiles
        self._min_score = min_score
        self._snapshot = Snapshot("loading", scopes=self._all_broken("索引正在加载，请稍候。"))
        self._seen: tuple[int, int, int] | None = None

    @property
    def snapshot(self) -> Snapshot:
        return self._snapshot

    def find_scope(self, name: str) -> ScopeState:
        """The state of a scope; raises ScopeUnknown."""
        state = self._snapshot.scopes.get(name)
        if state is None:
            raise ScopeUnknown(name, list(self.profiles))
        return state

    def refresh(self, should_stop: Callable[[], bool] = lambda: False) -> Snapshot | None:
        """Open and verify what the pointer names. Returns the outcome when something new was there, else None.

        The outcome is also what questions see from now on, unless it is worse than what they see already: a
        working index is never given up for a damaged one. Not for two threads at once.
        """
        seen = self._pointer_identity()
        if self._snapshot.state != "loading" and seen == self._seen:
            return None
        outcome = self._load(should_stop)
        if should_stop():
            return None
        self._seen = seen
        if self._snapshot.retriever is None or not outcome.faults:
            self._snapshot = outcome
        return outcome

    def close(self) -> None:
        """Forget the index; its files are closed when the last question on it has ended."""
        self._snapshot = Snapshot("missing", scopes=self._all_broken("服务正在停止。"))

    def _pointer_identity(self) -> tuple[int, int, int] | None:
        """Changes with every build, also with one that makes the same content again (repair of a damaged one)."""
        try:
            status = os.stat(self.index_dir / POINTER)
        except OSError:
            return None
        return (status.st_ino, status.st_mtime_ns, status.st_size)

    def _load(self, should_stop: Callable[[], bool]) -> Snapshot:
        try:
            reader = IndexReader.open(self.index_dir)
        except IndexMissing as error:
            return Snapshot("missing", scopes=self._all_broken(str(error)), faults=(str(error),))
        except (IndexDamaged, OSError) as error:
            return Snapshot("degraded", scopes=self._all_broken(str(error)), faults=(str(error),))
        resolved = {
            name: resolve_scope(name, profile.selectors, reader.runs)
            for name, profile in self.profiles.items()
        }
        damages = reader.verify(should_stop)
        scopes = {name: self._judge(scope, reader, damages) for name, scope in resolved.items()}
        faults = [describe_damage(damage, reader.runs) for damage in damages]
        faults += [
            f"检索范围 {name}：{EMPTY_SCOPE}" for name, scope in resolved.items() if not scope.num_docs
        ]
        usable = {name: state.scope for name, state in scopes.items() if not state.fault}
        if not usable:
            return Snapshot("degraded", reader, None, scopes, tuple(faults))
        try:
            retriever = Retriever(reader, usable, min_score=self._min_score)
        except IndexDamaged as error:  # whole, but built by another tokeniser
            return Snapshot("degraded", reader, None, self._all_broken(str(error)), (str(error),))
        return Snapshot("degraded" if faults else "ready", reader, retriever, scopes, tuple(faults))

    def _judge(self, scope: Scope, reader: IndexReader, damages: Sequence[Damage]) -> ScopeState:
        fault = "" if scope.num_docs else EMPTY_SCOPE
        for damage in damages:
            if damage.runs is None or _overlaps(scope, [reader.runs[index] for index in damage.runs]):
                fault = f"索引文件 {damage.file} 与清单不符"
        return ScopeState(scope, self._scope_fingerprint(reader.fingerprint, scope), fault)

    def _scope_fingerprint(self, index_fingerprint: str, scope: Scope) -> str:
        """Part of every cache key: changes with the index, the rows of the scope and what ranks them."""
        parts = [
            index_fingerprint,
            scope.name,
            list(scope.ranges),
            Retriever.retrieval_method,
            self._min_score,
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def _all_broken(self, fault: str) -> dict[str, ScopeState]:
        return {name: ScopeState(Scope(name, ()), "", fault) for name in self.profiles}


EMPTY_SCOPE = "索引中没有属于该范围的条文，请检查 profiles 的 include 与已构建的来源"


def describe_damage(damage: Damage, runs: Sequence[LawRun]) -> str:
    """One sentence with the file, both digests and, where known, the laws that are hit."""
    laws = ""
    if damage.runs is not None:
        names = [runs[index].law_name for index in damage.runs[:3]]
        laws = f"，涉及 {'、'.join(names)}" + (f" 等 {len(damage.runs)} 部" if len(damage.runs) > 3 else "")
    return f"索引文件 {damage.file} 与清单不符（应为 {damage.expected}，实为 {damage.found}）{laws}"


def _overlaps(scope: Scope, runs: Sequence[LawRun]) -> bool:
    return any(
        start < run.start + run.count and run.start < stop for run in runs for start, stop in scope.ranges
    )
