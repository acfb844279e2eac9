"""Vectors in an engine beyond the process: same answers, and what happens without it. The engine is of tests; Milvus
itself is in test_milvus.py."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cg_rag.index.build import SourceSpec, build_index
from cg_rag.index.corpus import Selector
from cg_rag.index.errors import EngineFailed, EngineLacksIndex
from cg_rag.index.exact_scores import num_candidates
from cg_rag.index.library import IndexLibrary, Profile, RankingOptions
from cg_rag.index.model_errors import Cancelled
from cg_rag.index.onnx import CURRENT_TOKEN, CancelToken
from cg_rag.index.progress import Silence
from cg_rag.index.push import NoVectors, push_vectors
from cg_rag.index.ranking import WITHOUT_VECTORS, StageFailed
from cg_rag.index.store import IndexReader
from tests.conftest import write_jsonl
from tests.index.engine_fixtures import MemoryEngine, MemoryEngines
from tests.toy_embedder import toy_embedder, vector_of

NUM_ARTICLES = 600
WORDS = ("脚手架", "基坑", "塔吊", "配电箱", "动火", "模板", "临边", "吊篮")
PROFILES = {
    "full": Profile("全库", (Selector(),)),
    "codes": Profile("规范", (Selector(corpus="codes"),)),
}


def build(folder: Path, num_articles: int = NUM_ARTICLES, salt: str = "") -> Path:
    def record(number: int) -> dict[str, str]:
        text = f"{WORDS[number % 8]}第{number}项{WORDS[number * 5 % 7]}{salt}"
        return {"law_name": f"规范{number // 50}", "article_number": f"{number}.0.1", "contents": text}

    records = [record(number) for number in range(num_articles)]
    codes = write_jsonl(folder / "codes.jsonl", records[: num_articles // 2])
    laws = write_jsonl(folder / "laws.jsonl", records[num_articles // 2 :])
    specs = [SourceSpec(codes, "codes", ()), SourceSpec(laws, "laws", ())]
    build_index(specs, folder / "index", None, embedder=toy_embedder(batch=64))
    return folder / "index"


@pytest.fixture(scope="module")
def index_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be changed."""
    return build(tmp_path_factory.mktemp("remote"))


def open_library(
    index_dir: Path,
    engines: MemoryEngines | None,
    clock: Callable[[], float] = lambda: 0.0,
    degrade: bool = True,
) -> IndexLibrary:
    library = IndexLibrary(
        index_dir, PROFILES, RankingOptions(degrade=degrade), toy_embedder, clock, engines=engines
    )
    library.refresh()
    return library


def pushed(index_dir: Path) -> tuple[MemoryEngines, MemoryEngine]:
    engines = MemoryEngines()
    reader = IndexReader.open(index_dir)
    engine = engines.collection(reader.fingerprint)
    push_vectors(reader, engine, "flat", Silence())
    return engines, engine


def search(library: IndexLibrary, query: str, scope: str = "full", topk: int = 10) -> list[tuple[int, float]]:
    retriever = library.snapshot.retriever
    assert retriever is not None
    result = retriever.search(query, scope, topk)
    assert not result.warnings
    return [(hit.row, hit.score) for hit in result.hits]


@pytest.mark.parametrize("scope", ["full", "codes"])
def test_answers_are_those_of_the_scan_score_for_score(index_dir: Path, scope: str) -> None:
    engines, engine = pushed(index_dir)
    here, there = open_library(index_dir, None), open_library(index_dir, engines)
    for number, word in enumerate(WORDS):
        query = f"{word}的检查要求{number}"
        assert search(there, query, scope, 20) == search(here, query, scope, 20)
    expected = [] if scope == "full" else [(0, NUM_ARTICLES // 2)]
    assert {(tuple(ranges), limit) for ranges, limit in engine.asked} == {
        (tuple(expected), num_candidates(100))
    }
    assert there.snapshot.kernel == "memory"
    assert there.snapshot.scopes[scope].fingerprint != here.snapshot.scopes[scope].fingerprint


def test_engine_that_goes_away_leaves_words_and_comes_back(
    index_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cg_rag.index.endpoint_pause.PAUSE_SECONDS", 3600.0)
    engines, engine = pushed(index_dir)
    library = open_library(index_dir, engines)
    retriever = library.snapshot.retriever
    assert retriever is not None
    engine.is_away = True
    first = retriever.search("塔吊检查", "full", 5)
    assert (first.warnings, first.degraded) == ([WITHOUT_VECTORS], True)
    assert "向量引擎 memory 不可用" in first.fault
    num_asked = len(engine.asked)
    assert retriever.search("塔吊检查", "full", 5).degraded
    assert len(engine.asked) == num_asked, "nobody waits for it again so soon"
    engine.is_away = False
    later = time.monotonic() + 3600.0
    monkeypatch.setattr("cg_rag.index.endpoint_pause.time.monotonic", lambda: later)
    assert not retriever.search("塔吊检查", "full", 5).degraded


def test_without_degrade_a_missing_engine_is_a_failure(index_dir: Path) -> None:
    engines, engine = pushed(index_dir)
    library = open_library(index_dir, engines, degrade=False)
    retriever = library.snapshot.retriever
    assert retriever is not None
    engine.is_away = True
    with pytest.raises(StageFailed, match="向量无法检索"):
        retriever.search("塔吊检查", "full", 5)


def test_engine_that_is_away_at_the_start_is_looked_for_again_without_reading_the_index_through(
    index_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines, engine = pushed(index_dir)
    engine.is_away = True
    now = [0.0]
    library = open_library(index_dir, engines, lambda: now[0])
    snapshot = library.snapshot
    assert snapshot.state == "degraded"
    assert isinstance(snapshot.engine_fault, EngineFailed)
    assert snapshot.retriever is not None
    assert snapshot.retriever.search("塔吊", "full", 5).warnings == [WITHOUT_VECTORS]
    engine.is_away = False
    verified: list[object] = []
    monkeypatch.setattr(IndexReader, "verify", lambda *_: verified.append(1) or [])
    now[0] = 2.0
    library.refresh()
    assert library.snapshot.state == "ready"
    assert not verified
    assert search(library, "塔吊")


def test_without_degrade_no_scope_answers_while_the_engine_is_away(index_dir: Path) -> None:
    engines, engine = pushed(index_dir)
    engine.is_away = True
    scopes = open_library(index_dir, engines, degrade=False).snapshot.scopes
    assert all(state.fault.startswith("向量引擎无法使用") for state in scopes.values())


def test_index_that_was_not_pushed_is_told_with_the_command(index_dir: Path) -> None:
    snapshot = open_library(index_dir, MemoryEngines()).snapshot
    assert isinstance(snapshot.engine_fault, EngineLacksIndex)
    assert "尚未推送，请运行 cg-rag index push" in snapshot.faults[0]


def test_new_build_is_taken_only_when_it_was_pushed_and_the_old_one_answers_until_then(
    tmp_path: Path,
) -> None:
    index_dir = build(tmp_path)
    engines, _ = pushed(index_dir)
    now = [0.0]
    library = open_library(index_dir, engines, lambda: now[0])
    before = library.snapshot.reader
    build(tmp_path, salt="新")
    refresh = library.refresh()
    assert refresh is not None
    assert not refresh.adopted
    assert library.snapshot.reader is before
    assert "尚未推送" in library.snapshot.faults[0]
    assert search(library, "塔吊")
    reader = IndexReader.open(index_dir)
    push_vectors(reader, engines.collection(reader.fingerprint), "flat", Silence())
    now[0] = 2.0
    refresh = library.refresh()
    assert refresh is not None
    assert refresh.adopted
    assert library.snapshot.state == "ready"
    assert search(library, "塔吊")


def test_caller_who_leaves_does_not_wait_for_the_engine(index_dir: Path) -> None:
    engines, engine = pushed(index_dir)
    library = open_library(index_dir, engines)
    retriever = library.snapshot.retriever
    assert retriever is not None
    engine.hangs = threading.Event()
    token = CancelToken()
    context = contextvars.copy_context()
    context.run(CURRENT_TOKEN.set, token)
    engine.when_asked = token.cancel
    with pytest.raises(Cancelled):
        context.run(retriever.search, "塔吊检查", "full", 5)
    assert not engine.hangs.is_set()
    engine.hangs.set()
    engine.hangs = None
    assert search(library, "塔吊"), "that somebody left says nothing of the engine"


# --- push ------------------------------------------------------------------------------------------------------------


def test_interrupted_push_goes_on_where_it_ended(index_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cg_rag.index.push.BATCH_BYTES", 4 * 8 * 60)  # 60 rows of 8
    reader, engine = IndexReader.open(index_dir), MemoryEngine()
    engine.fails_after = 3
    with pytest.raises(EngineFailed):
        push_vectors(reader, engine, "flat", Silence())
    assert engine.count() == 180
    del engine.rows[170]  # type: ignore[union-attr]
    del engine.rows[171]  # type: ignore[union-attr]
    engine.fails_after = 1 << 30
    report = push_vectors(reader, engine, "flat", Silence())
    assert engine.puts == [0, 60, 120, *range(120, NUM_ARTICLES, 60)]
    assert (report.num_docs, report.pushed) == (NUM_ARTICLES, NUM_ARTICLES - 120)
    again = push_vectors(reader, engine, "flat", Silence())
    assert again.pushed == 0
    assert push_vectors(reader, engine, "flat", Silence(), force=True).pushed == NUM_ARTICLES


def test_pushed_vectors_are_those_of_the_index(index_dir: Path) -> None:
    _, engine = pushed(index_dir)
    reader = IndexReader.open(index_dir)
    assert engine.rows is not None
    for row in (0, 299, 599):
        article = reader.read_articles([row])[0]
        expected = vector_of(f"{article.law_name}{article.article_number} {article.contents}")
        assert float(engine.rows[row] @ expected) > 0.9999


def test_index_without_vectors_is_not_pushed(small_index: Path) -> None:
    with pytest.raises(NoVectors):
        push_vectors(IndexReader.open(small_index), MemoryEngine(), "flat", Silence())


def test_ranges_of_few_rows_never_reach_the_engine(index_dir: Path) -> None:
    engines, engine = pushed(index_dir)
    library = open_library(index_dir, engines)
    assert np.isfinite([score for _, score in search(library, "规范3 150.0.1", topk=3)]).all()
    assert all(not ranges for ranges, _ in engine.asked)
