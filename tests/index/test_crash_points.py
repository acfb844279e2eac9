"""A build that is killed, or refused by the disk, at any system call leaves an index that is whole.

strace ends the writer before its n-th call of a kind, or makes that call fail, for every n until the writer makes
fewer. No hook in the product takes part.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cg_rag.index.build import BuildReport, SourceSpec, build_index
from cg_rag.index.journal import journal_path
from cg_rag.index.store import IndexReader, remove_leftovers
from cg_rag.index.vectors import quantise
from tests.toy_embedder import DIM, toy_embedder

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")

WRITER = """
import os, sys
from pathlib import Path
from cg_rag.index.build import SourceSpec, build_index
from cg_rag.index.errors import BuildFailed
embedder = None
if sys.argv[3] == "vectors":
    from tests.toy_embedder import toy_embedder
    embedder = toy_embedder()
try:
    build_index([SourceSpec(Path(sys.argv[1]), "laws", ())], Path(sys.argv[2]), None, embedder=embedder)
except BuildFailed as error:
    print(error, file=sys.stderr)
    os._exit(1)
os._exit(0)
"""
CALLS = (
    "write",
    "pwrite64",
    "ftruncate",
    "fsync",
    "rename",
    "renameat2",
    "mkdir",
    "unlink",
    "unlinkat",
    "rmdir",
    "flock",
)
MAX_POINTS = 200


class Stage:
    """An index of version 1 on the disk, sources of version 2 beside it, and a writer under strace.

    Of the 12 articles 4 are the same in every version, so `with_vectors` 8 have to be embedded.
    """

    def __init__(self, folder: Path, with_vectors: bool) -> None:
        self.with_vectors = with_vectors
        self.source = folder / "laws.jsonl"
        self.index_dir = folder / "index"
        self._pristine = folder / "pristine"
        for version in (0, 1):
            self._write_source(version)
            self.build(self._pristine)
        self.old = IndexReader.open(self._pristine).fingerprint
        self._write_source(2)
        shutil.copytree(self._pristine, folder / "expected")
        self.new = self.build(folder / "expected").fingerprint

    def build(self, index_dir: Path) -> BuildReport:
        embedder = toy_embedder() if self.with_vectors else None
        return build_index([SourceSpec(self.source, "laws", ())], index_dir, None, embedder=embedder)

    def _write_source(self, version: int) -> None:
        records = [
            {
                "law_name": f"样例法{law}",
                "article_number": str(number),
                "contents": f"第{version}版，应当验收。" if law else "各版相同。",
            }
            for law in range(3)
            for number in range(4)
        ]
        self.source.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")

    def run(self, call: str, injection: str) -> subprocess.CompletedProcess[str]:
        shutil.rmtree(self.index_dir, ignore_errors=True)
        shutil.copytree(self._pristine, self.index_dir)
        trace = [
            "strace",
            "-f",
            "-qq",
            "-o",
            os.devnull,
            "-e",
            f"trace={call}",
            "-e",
            f"inject={call}:{injection}",
        ]
        writer = [sys.executable, "-B", "-c", WRITER, str(self.source), str(self.index_dir)]
        writer.append("vectors" if self.with_vectors else "lexical")
        return subprocess.run([*trace, *writer], cwd=ROOT, capture_output=True, text=True, timeout=60)

    def check_whole(self) -> str:
        """Old or new, never a mixture; returns which. Leftovers go at the next start and the next build succeeds."""
        reader = IndexReader.open(self.index_dir)
        assert reader.verify() == []
        assert reader.fingerprint in (self.old, self.new)
        version = 1 if reader.fingerprint == self.old else 2
        texts = {article.contents for article in reader.read_articles(range(reader.num_docs))}
        assert texts == {f"第{version}版，应当验收。", "各版相同。"}
        if self.with_vectors:
            self._check_vectors(reader)
        return reader.fingerprint

    def _check_vectors(self, reader: IndexReader) -> None:
        articles = reader.read_articles(range(reader.num_docs))
        twin = quantise(toy_embedder().embed_articles(articles), DIM)
        assert reader.vectors is not None
        assert np.array_equal(reader.read_full(np.arange(reader.num_docs)), twin.full)
        assert np.array_equal(reader.vectors.scan, twin.scan)

    def num_waiting(self) -> int:
        """Whole records in the journal."""
        try:
            raw = journal_path(self.index_dir, toy_embedder().fingerprint).read_bytes()
        except FileNotFoundError:
            return 0
        return max(0, len(raw) - raw.find(b"\n") - 1) // (16 + 4 + 2 * DIM + 4)

    def check_recovery(self) -> None:
        remove_leftovers(self.index_dir)
        assert not list(self.index_dir.glob(".tmp-*"))
        was_old = self.check_whole() == self.old
        num_waiting = self.num_waiting()
        report = self.build(self.index_dir)
        assert report.fingerprint == self.new
        # Nothing that was embedded before the kill is embedded again.
        assert report.embedded == (8 - num_waiting if self.with_vectors and was_old else 0)
        assert self.check_whole() == self.new
        assert not list(self.index_dir.glob("*.journal"))
        # Current and previous, and the one before where the kill came just before its removal.
        assert len([path for path in self.index_dir.iterdir() if path.is_dir()]) <= 3


def make_stage(folder: Path, with_vectors: bool) -> Stage:
    stage = Stage(folder, with_vectors)
    if stage.run("fsync", "signal=KILL:when=1").returncode == 0:
        pytest.skip("strace may not trace here")
    return stage


@pytest.fixture(scope="module", params=["lexical", "vectors"])
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return make_stage(tmp_path_factory.mktemp("crash"), request.param == "vectors")


@pytest.fixture(scope="module")
def vector_stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return make_stage(tmp_path_factory.mktemp("crash"), with_vectors=True)


@pytest.mark.parametrize(
    ("call", "number"),
    [("mkdir", 1), ("write", 9), ("fsync", 7), ("rename", 1), ("rename", 2), ("rename", 3)],
)
def test_a_build_killed_at_a_telling_moment_leaves_a_whole_index(
    stage: Stage, call: str, number: int
) -> None:
    outcome = stage.run(call, f"signal=KILL:when={number}")
    assert outcome.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), outcome.stderr
    assert stage.check_whole() == (stage.new if (call, number) == ("rename", 3) else stage.old)
    stage.check_recovery()


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        ("fsync", "EIO", "读写出错，磁盘可能有故障"),
        ("rename", "ENOSPC", "磁盘空间不足"),
        ("mkdir", "EDQUOT", "超出磁盘配额"),
    ],
)
def test_a_disk_that_refuses_once_fails_the_build_and_leaves_nothing(
    stage: Stage, call: str, error: str, sentence: str
) -> None:
    outcome = stage.run(call, f"error={error}:when=1")
    assert (outcome.returncode, stage.check_whole()) == (1, stage.old)
    assert sentence in outcome.stderr
    assert outcome.stderr.count("\n") == 1
    assert not list(stage.index_dir.glob(".tmp-*"))


@pytest.mark.parametrize(("number", "num_waiting"), [(1, 0), (2, 0), (6, 4), (9, 7)])
def test_a_build_killed_while_it_embeds_goes_on_with_the_next_article(
    vector_stage: Stage, number: int, num_waiting: int
) -> None:
    """The first of these writes is the head of the journal, the others are one vector each."""
    assert vector_stage.run("pwrite64", f"signal=KILL:when={number}").returncode != 0
    assert vector_stage.check_whole() == vector_stage.old
    assert vector_stage.num_waiting() == num_waiting
    vector_stage.check_recovery()


@pytest.mark.parametrize(("call", "number"), [("pwrite64", 1), ("pwrite64", 5), ("ftruncate", 1)])
def test_a_disk_that_refuses_a_vector_fails_the_build_and_keeps_those_before_it(
    vector_stage: Stage, call: str, number: int
) -> None:
    outcome = vector_stage.run(call, f"error=ENOSPC:when={number}")
    assert (outcome.returncode, vector_stage.check_whole()) == (1, vector_stage.old)
    assert outcome.stderr.count("磁盘空间不足") == outcome.stderr.count("\n") == 1
    assert vector_stage.num_waiting() == max(0, number - 2)
    vector_stage.check_recovery()


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
def test_a_build_killed_before_any_of_its_calls_leaves_a_whole_index(stage: Stage, call: str) -> None:
    for number in range(1, MAX_POINTS):
        if stage.run(call, f"signal=KILL:when={number}").returncode == 0:
            return
        stage.check_whole()
        stage.check_recovery()
    pytest.fail(f"more than {MAX_POINTS} calls of {call}: the walk did not reach the end")


@pytest.mark.slow
@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
@pytest.mark.parametrize("call", ["write", "pwrite64", "fsync", "rename", "mkdir"])
def test_a_call_that_fails_anywhere_leaves_the_old_index_or_a_finished_new_one(
    stage: Stage, call: str, error: str
) -> None:
    for number in range(1, MAX_POINTS):
        outcome = stage.run(call, f"error={error}:when={number}")
        current = stage.check_whole()
        assert not list(stage.index_dir.glob(".tmp-*")) or outcome.returncode == 0
        assert current == (stage.new if outcome.returncode == 0 else stage.old), (number, outcome.stderr)
        if outcome.returncode == 0:
            # Removing what is no longer needed may fail without harm, but only after the new index is in place.
            # A build without vectors keeps no journal, which is all that is written at a place.
            assert number > 1 or (call == "pwrite64" and not stage.with_vectors)
            return
        assert "无法" in outcome.stderr
        stage.check_recovery()
    pytest.fail(f"more than {MAX_POINTS} calls of {call}: the walk did not reach the end")
