"""The index that a running service answers from: opened, verified, and replaced while questions are being answered.

Rule: what questions see is one immutable `Snapshot`. It is replaced as a whole, and only by one that is verified; a
question that began on the old one finishes on it, because its files stay open as long as somebody holds it.

Everything here blocks; a server calls `refresh` in a thread.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from cg_rag.index.corpus import LawRun, Scope, Selector, resolve_scope
from cg_rag.index.embedder import Embedder
from cg_rag.index.errors import (
    EngineFailed,
    EngineLacksIndex,
    IndexDamaged,
    IndexLibraryError,
    IndexMissing,
    ScopeUnknown,
)
from cg_rag.index.fusion import DENSE_WEIGHT
from cg_rag.index.os_words import fault_of, reason_of
from cg_rag.index.ranking import Ranker
from cg_rag.index.remote_vectors import VectorEngines
from cg_rag.index.rerank_stage import CANDIDATES, WEIGHT, RerankStage
from cg_rag.index.reranker import BrokenReranker, Reranker
from cg_rag.index.retriever import Retriever
from cg_rag.index.scan import KernelName
from cg_rag.index.store import POINTER, Damage, IndexReader
from cg_rag.index.vector_stage import VectorStage
from cg_rag.index.verification import Verifier

State = Literal["loading", "ready", "degraded", "missing"]
PointerIdentity = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Profile:
    """What the configuration says about a scope. `by_words_only` leaves out vectors and reranking."""

    label: str
    selectors: tuple[Selector, ...]
    by_words_only: bool = False


@dataclass(frozen=True, slots=True)
class RankingOptions:
    """How questions are answered; all of it is part of the scopes' fingerprints."""

    min_score: float | None = None
    degrade: bool = True
    dense_weight: float = DENSE_WEIGHT
    kernel: KernelName = "numpy"
    rerank_candidates: int = CANDIDATES
    rerank_weight: float = WEIGHT


def no_embedder() -> None:
    """For an index that is searched by words only."""


@dataclass(frozen=True, slots=True)
class RerankerSource:
    """`make` opens the reranker called `name`; it raises ModelMissing or ModelInvalid. `is_remote`: see Reranker."""

    name: str
    is_remote: bool
    make: Callable[[], Reranker]


@dataclass(frozen=True, slots=True)
class ScopeState:
    """`fault` is "" when the scope can be asked, else the reason in Chinese, naming the file. `method` is what searches
    it: the embedding model's name, or `lexical`."""

    scope: Scope
    fingerprint: str
    fault: str
    method: str = "lexical"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One verified generation of the index. `faults` are sentences for the log, health and doctor."""

    state: State
    reader: IndexReader | None = None
    retriever: Retriever | None = None
    scopes: Mapping[str, ScopeState] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    vector_fault: str = ""
    """Why an index with vectors is searched by words only; among `faults` too."""
    engine_fault: EngineFailed | EngineLacksIndex | None = None
    """What `vector_fault` is of, where that is the engine that should search the vectors."""
    rerank_fault: str = ""
    """Why answers are not reranked although they should be; among `faults` too."""
    kernel: str = ""
    """Which kernel scans the vectors, with the reason in brackets where it is not the one asked for."""
    verifier: Verifier | None = None
    """Looks citations up; there whenever `retriever` is."""

    def get_scope(self, name: str) -> ScopeState:
        """The state of a scope; raises ScopeUnknown."""
        state = self.scopes.get(name)
        if state is None:
            raise ScopeUnknown(name, list(self.scopes))
        return state


@dataclass(frozen=True, slots=True)
class Refresh:
    """What a look at the index directory brought. Refused means that what was usable before goes on being used."""

    outcome: Snapshot
    adopted: bool


# A fault may pass (no file descriptors left, a disk that comes back), so it is looked at again, less and less often.
FIRST_RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 60.0


class IndexLibrary:
    """Follows the pointer of `index_dir`. `profiles` maps scope names to what they include."""

    def __init__(
        self,
        index_dir: Path,
        profiles: Mapping[str, Profile],
        options: RankingOptions | None = None,
        make_embedder: Callable[[], Embedder | None] = no_embedder,
        clock: Callable[[], float] = time.monotonic,
        reranker: RerankerSource | None = None,
        engines: VectorEngines | None = None,
    ) -> None:
        """`engines` None: vectors are searched here."""
        self.index_dir = index_dir
        self._engines = engines
        self._sound: tuple[PointerIdentity, IndexReader] | None = None
        self.profiles = profiles
        self._options = options or RankingOptions()
        self._make_embedder = make_embedder
        self._embedder: Embedder | None = None
        self.reranker_source = reranker
        self._reranker: Reranker | None = None
        self._snapshot = Snapshot("loading", scopes=self._all_broken("索引正在加载，请稍候。"))
        self._clock = clock
        self._seen: PointerIdentity | None = None
        self._retry_at = -math.inf
        self._retry_seconds = FIRST_RETRY_SECONDS
        self._reported: tuple[str, ...] | None = None

    @property
    def snapshot(self) -> Snapshot:
        return self._snapshot

    @property
    def embedder(self) -> Embedder | None:
        """What turns questions into vectors, once an index with vectors was opened."""
        return self._embedder

    @property
    def reranker(self) -> Reranker | None:
        """What reorders answers, once an index was opened that it is used for."""
        return self._reranker

    def explain(self, scope: str) -> str:
        """For whoever asked on the command line and cannot be answered: why, and which directory was looked in."""
        fault = self._snapshot.get_scope(scope).fault
        return f"检索范围 {scope} 的索引尚不可用：{fault}\n{self.where}"

    @property
    def where(self) -> str:
        return f"所用的索引目录为 {self.index_dir}，可用 --index-dir 另指一个（演示的索引见 cg-rag demo 的输出）。"

    def refresh(self, should_stop: Callable[[], bool] = lambda: False) -> Refresh | None:
        """Open and verify what the pointer names. Returns None when there is nothing new to tell.

        The outcome is what questions see from now on, unless damage would take away a scope that works: a
        working index is never given up for a damaged one. Not for two threads at once.
        """
        seen = self._pointer_identity()
        if seen == self._seen and self._clock() < self._retry_at:
            return None
        outcome = self._load(seen, should_stop)
        if should_stop():
            return None
        adopted = not self._is_worse(outcome)
        # A refused index shows in health, while the scopes of the one before go on answering.
        self._snapshot = (
            outcome if adopted else replace(self._snapshot, state="degraded", faults=outcome.faults)
        )
        self._plan_retry(seen, outcome)
        news = seen != self._seen or outcome.faults != self._reported
        self._seen, self._reported = seen, outcome.faults
        return Refresh(outcome, adopted) if news else None

    def _is_worse(self, outcome: Snapshot) -> bool:
        """Whether a scope that works now would be lost to damage; one that a new build left empty is no loss. Nor is
        an index given up whose vectors are searched for one whose vectors were not pushed yet."""
        searches_vectors = self._snapshot.retriever is not None and self._snapshot.retriever.has_vectors
        if searches_vectors and isinstance(outcome.engine_fault, EngineLacksIndex):
            return True
        return any(
            outcome.scopes[name].fault not in ("", EMPTY_SCOPE)
            for name, state in self._snapshot.scopes.items()
            if not state.fault
        )

    def _plan_retry(self, seen: PointerIdentity | None, outcome: Snapshot) -> None:
        lasting = all(EMPTY_SCOPE in fault for fault in outcome.faults)
        if seen is None or lasting:
            self._retry_at, self._retry_seconds = math.inf, FIRST_RETRY_SECONDS
            return
        if seen != self._seen:
            self._retry_seconds = FIRST_RETRY_SECONDS
        self._retry_at = self._clock() + self._retry_seconds
        self._retry_seconds = min(MAX_RETRY_SECONDS, self._retry_seconds * 2)

    def close(self) -> None:
        """Forget the index; its files are closed when the last question on it has ended."""
        self._snapshot = Snapshot("missing", scopes=self._all_broken("服务正在停止。"))
        self._sound = None
        for model in (self._embedder, self._reranker, self._engines):
            if model is not None:
                model.close()

    def _pointer_identity(self) -> PointerIdentity | None:
        """Changes with every build, also with one that makes the same content again (repair of a damaged one)."""
        try:
            status = os.stat(self.index_dir / POINTER)
        except OSError:
            return None
        return (status.st_ino, status.st_mtime_ns, status.st_size)

    def _open_verified(
        self, seen: PointerIdentity | None, should_stop: Callable[[], bool]
    ) -> tuple[IndexReader, list[Damage]]:
        """The index that the pointer names, and its damages. One that was found sound, and that is looked at again for
        the sake of a model or an engine, is not read through once more."""
        if self._sound is not None and self._sound[0] == seen:
            return self._sound[1], []
        reader = IndexReader.open(self.index_dir)
        damages = reader.verify(should_stop)
        whole = seen is not None and not damages and not should_stop() and seen == self._pointer_identity()
        self._sound = (seen, reader) if whole and seen is not None else None
        return reader, damages

    def _load(self, seen: PointerIdentity | None, should_stop: Callable[[], bool]) -> Snapshot:
        try:
            reader, damages = self._open_verified(seen, should_stop)
        except IndexMissing as error:
            # Callers are told what to do, and only the log and doctor where.
            return Snapshot("missing", scopes=self._all_broken(NO_INDEX), faults=(str(error),))
        except IndexDamaged as error:
            return Snapshot("degraded", scopes=self._all_broken(str(error)), faults=(str(error),))
        except OSError as error:
            fault = f"索引无法读取：{reason_of(error)}"
            return Snapshot(
                "degraded", scopes=self._all_broken(fault), faults=(f"{fault}：{self.index_dir}",)
            )
        resolved = {
            name: resolve_scope(name, profile.selectors, reader.runs)
            for name, profile in self.profiles.items()
        }
        faults = [describe_damage(damage, reader.runs) for damage in damages]
        faults += [
            f"检索范围 {name}：{EMPTY_SCOPE}" for name, scope in resolved.items() if not scope.num_docs
        ]
        vectors, fault, engine_fault = self._open_vectors(reader)
        faults += [fault] if fault else []
        reranker, rerank_fault = self._open_reranker(vectors)
        faults += [rerank_fault] if rerank_fault else []
        # Callers are told what is missing; which model and where is for the log and doctor.
        refusal = ""
        if fault and not self._options.degrade:
            refusal = NO_ENGINE if engine_fault else NO_MODEL
        scopes = {
            name: self._judge(
                scope, reader, damages, vectors, "" if self.profiles[name].by_words_only else refusal
            )
            for name, scope in resolved.items()
        }
        usable = {name: state.scope for name, state in scopes.items() if not state.fault}
        if not usable:
            return Snapshot(
                "degraded", reader, None, scopes, tuple(faults), fault, engine_fault, rerank_fault
            )
        options = self._options
        ranker = Ranker(
            reader.lexical,
            vectors,
            min_score=options.min_score,
            degrade=options.degrade,
            dense_weight=options.dense_weight,
        )
        by_words = frozenset(name for name, profile in self.profiles.items() if profile.by_words_only)
        lacks_vectors = vectors is None and bool(fault)
        retriever = Retriever(
            reader, usable, ranker, by_words, lacks_vectors, reranker, holds_old_law=reader.holds_old_law
        )
        state: State = "degraded" if faults else "ready"
        return Snapshot(
            state=state,
            reader=reader,
            retriever=retriever,
            scopes=scopes,
            faults=tuple(faults),
            vector_fault=fault,
            engine_fault=engine_fault,
            rerank_fault=rerank_fault,
            kernel=_kernel(vectors),
            verifier=Verifier(reader, usable),
        )

    def _open_reranker(self, vectors: VectorStage | None) -> tuple[RerankStage | None, str]:
        """The last stage, and a sentence when its model cannot be opened: then the stage fails, question by question.
        A model of this machine is opened only where there are vectors, whose answers it reorders."""
        source = self.reranker_source
        if source is None or (vectors is None and not source.is_remote):
            return None, ""
        fault = ""
        try:
            used = self._reranker = self._reranker or source.make()
        except (IndexLibraryError, OSError, ValueError, RuntimeError) as error:
            fault = f"重排模型无法使用：{fault_of(error)}"
            used = BrokenReranker(source.name, fault)
        options = self._options
        stage = RerankStage(
            used, candidates=options.rerank_candidates, weight=options.rerank_weight, degrade=options.degrade
        )
        return stage, fault

    def _open_vectors(
        self, reader: IndexReader
    ) -> tuple[VectorStage | None, str, EngineFailed | EngineLacksIndex | None]:
        """The dense stage, and a sentence when it should be there and cannot, with the error where that is the
        engine's. An index without vectors is no fault."""
        if reader.vectors is None:
            return None, "", None
        try:
            embedder, fault = self._open_embedder(reader)
            if embedder is None:
                return None, fault, None
            engine = self._engines.collection(reader.fingerprint) if self._engines is not None else None
            return VectorStage(reader, embedder, self._options.kernel, engine), "", None
        except (EngineFailed, EngineLacksIndex) as error:
            return None, str(error), error
        except (IndexLibraryError, OSError, ValueError, RuntimeError) as error:
            return None, f"嵌入模型无法使用：{fault_of(error)}", None

    def _open_embedder(self, reader: IndexReader) -> tuple[Embedder | None, str]:
        """The model that the index was built with, or None with a sentence, "" where none is wanted."""
        if self._embedder is None:
            self._embedder = self._make_embedder()
        expected = reader.manifest["embedding"]
        if self._embedder is not None and self._embedder.fingerprint != expected["fingerprint"]:
            # The model may have been exchanged in its folder together with the index.
            self._embedder = self._make_embedder()
        found = self._embedder
        if found is None or found.fingerprint == expected["fingerprint"]:
            return found, ""
        return None, (
            f"索引由 {expected['model']}（{expected['fingerprint']}）构建，"
            f"当前嵌入模型为 {found.name}（{found.fingerprint}），请重新运行 cg-rag index build"
        )

    def _judge(
        self,
        scope: Scope,
        reader: IndexReader,
        damages: Sequence[Damage],
        vectors: VectorStage | None,
        refusal: str,
    ) -> ScopeState:
        fault = refusal if scope.num_docs else EMPTY_SCOPE
        for damage in damages:
            if damage.runs is None or _overlaps(scope, [reader.runs[index] for index in damage.runs]):
                fault = f"索引文件 {damage.file} 与清单不符"
        method = vectors.name if vectors and not self.profiles[scope.name].by_words_only else "lexical"
        engine = vectors.kernel if vectors and self._engines is not None else ""
        return ScopeState(scope, self._scope_fingerprint(reader, scope, method, engine), fault, method)

    def _scope_fingerprint(self, reader: IndexReader, scope: Scope, method: str, engine: str) -> str:
        """Part of every cache key: changes with the index, the rows of the scope and what ranks them."""
        embedding = (reader.manifest["embedding"] or {}).get("fingerprint", "")
        ranking = asdict(self._options)
        reranker = self._reranker.fingerprint if self._reranker else ""
        parts = [reader.fingerprint, scope.name, list(scope.ranges), method, embedding, reranker, ranking]
        parts += [engine] if engine else []
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def _all_broken(self, fault: str) -> dict[str, ScopeState]:
        return {name: ScopeState(Scope(name, ()), "", fault) for name in self.profiles}


def _kernel(vectors: VectorStage | None) -> str:
    if vectors is None:
        return ""
    return vectors.kernel + (f"（{vectors.kernel_fault}）" if vectors.kernel_fault else "")


NO_MODEL = "嵌入模型无法使用，且未允许只按字面检索（retrieval.degrade）"
NO_ENGINE = "向量引擎无法使用，且未允许只按字面检索（retrieval.degrade）"
NO_INDEX = "尚未构建索引，请先运行 cg-rag index build"
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
