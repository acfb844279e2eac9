"""Milvus as milvus-lite, the one that comes as a package: pip install pymilvus milvus-lite. Skipped where it is not."""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cg_rag.index.errors import EngineFailed
from cg_rag.index.milvus import KINDS, Milvus, MilvusOptions, row_filter
from cg_rag.index.progress import Silence
from cg_rag.index.push import prune, push_vectors
from cg_rag.index.store import IndexReader
from tests.index.test_remote_vectors import NUM_ARTICLES, WORDS, build, open_library, search
from tests.server_process import PROGRAM

HAS_MILVUS = all(importlib.util.find_spec(name) for name in ("pymilvus", "milvus_lite"))
needs_milvus = pytest.mark.skipif(not HAS_MILVUS, reason="pymilvus and milvus-lite are not installed")
pytestmark = pytest.mark.milvus


def test_rows_of_ranges_are_written_as_milvus_reads_them() -> None:
    assert row_filter([]) == ""
    assert row_filter([(3, 9), (20, 21)]) == "(row >= 3 and row < 9) or (row >= 20 and row < 21)"


@pytest.mark.skipif(HAS_MILVUS, reason="pymilvus is installed")
def test_without_pymilvus_the_command_that_installs_it_is_told() -> None:
    with pytest.raises(EngineFailed, match="pip install"):
        Milvus(MilvusOptions("http://127.0.0.1:1")).collection("x").count()


@pytest.fixture(scope="module")
def index_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be changed."""
    return build(tmp_path_factory.mktemp("milvus"))


@pytest.fixture(scope="module")
def milvus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Milvus]:
    opened = Milvus(MilvusOptions(str(tmp_path_factory.mktemp("milvus") / "milvus.db"), timeout_seconds=30))
    yield opened
    opened.close()


@needs_milvus
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivf_sq8"])
def test_top_ten_are_those_of_numpy(index_dir: Path, milvus: Milvus, kind: str) -> None:
    reader = IndexReader.open(index_dir)
    report = push_vectors(reader, milvus.collection(reader.fingerprint), kind, Silence(), force=True)
    assert (report.num_docs, report.pushed) == (NUM_ARTICLES, NUM_ARTICLES)
    here, there = open_library(index_dir, None), open_library(index_dir, milvus)  # type: ignore[arg-type]
    assert there.snapshot.faults == ()
    assert there.snapshot.kernel == f"milvus {KINDS[kind].milvus_name}"
    for scope in ("full", "codes"):
        for number, word in enumerate(WORDS):
            query = f"{word}的检查要求{number}"
            expected, found = search(here, query, scope), search(there, query, scope)
            if kind != "ivf_sq8":
                assert found == expected
            # Quantised, the last of the candidates may be others, and through the fusion they move those before them.
            assert len({row for row, _ in expected} & {row for row, _ in found}) >= 9


@needs_milvus
@pytest.mark.filterwarnings("ignore")
def test_pushing_twice_moves_nothing_and_collections_of_no_build_go_when_asked(
    index_dir: Path, milvus: Milvus
) -> None:
    reader = IndexReader.open(index_dir)
    current = milvus.collection(reader.fingerprint)
    push_vectors(reader, current, "flat", Silence(), force=True)
    assert push_vectors(reader, current, "flat", Silence()).pushed == 0
    old = milvus.collection("0123456789abcdef")
    old.create(8, 1, "flat")
    assert old.count() == 0
    assert prune(milvus, index_dir) == [old.collection]
    assert milvus.collections() == [current.collection]


@needs_milvus
def test_command_pushes_the_current_index_and_says_what_it_did(index_dir: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    settings = {
        "index": {"dir": str(index_dir), "milvus": {"uri": str(tmp_path / "m.db"), "timeout_seconds": 30}}
    }
    config.write_text(json.dumps({"cg_rag": settings}))
    command = [sys.executable, str(PROGRAM), "index", "push", "--config", str(config)]

    def push(*more: str) -> str:
        return subprocess.run([*command, *more], capture_output=True, text=True, check=True).stdout

    name = f"cg_rag_{IndexReader.open(index_dir).fingerprint}"
    assert f"集合 {name}：{NUM_ARTICLES} 条，推送 {NUM_ARTICLES} 条，用时" in push("--index-type", "hnsw")
    report = json.loads(push("--json", "--prune"))
    assert (report["ok"], report["collection"], report["pushed"], report["dropped"]) == (True, name, 0, [])


def test_push_wants_to_be_told_where_to(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("cg_rag: {}\n")
    command = [sys.executable, str(PROGRAM), "index", "push", "--config", str(config)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (2, "推送须设置 index.milvus.uri。\n")


@needs_milvus
@pytest.mark.filterwarnings("ignore")
def test_server_that_is_not_there_is_told_without_its_address() -> None:
    with socket.socket() as placeholder:
        placeholder.bind(("127.0.0.1", 0))
        port = placeholder.getsockname()[1]
        away = Milvus(MilvusOptions(f"http://127.0.0.1:{port}", token="root:secret", timeout_seconds=0.5))
        started = time.monotonic()
        with pytest.raises(EngineFailed) as caught:
            away.collection("x").check(1)
    assert time.monotonic() - started < 5
    assert "无法连接" in str(caught.value)
    assert str(port) not in str(caught.value)
    assert "secret" not in str(caught.value)
