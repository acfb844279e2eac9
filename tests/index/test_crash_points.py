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

import pytest

from cg_rag.index.build import SourceSpec, build_index
from cg_rag.index.store import IndexReader, remove_leftovers

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")

WRITER = """
import os, sys
from pathlib import Path
from cg_rag.index.build import SourceSpec, build_index
from cg_rag.index.errors import BuildFailed
try:
    build_index([SourceSpec(Path(sys.argv[1]), "laws", ())], Path(sys.argv[2]), None)
except BuildFailed as error:
    print(error, file=sys.stderr)
    os._exit(1)
os._exit(0)
"""
CALLS = ("write", "pwrite64", "fsync", "rename", "renameat2", "mkdir", "unlink", "unlinkat", "rmdir", "flock")
MAX_POINTS = 200


class Stage:
    """An index of version 1 on the disk, sources of version 2 beside it, and a writer under strace."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "laws.jsonl"
        self.index_dir = folder / "index"
        self._pristine = folder / "pristine"
        for version in (0, 1):
            self._write_source(version)
            build_index([SourceSpec(self.source, "laws", ())], self._pristine, None)
        self.old = IndexReader.open(self._pristine).fingerprint
        self._write_source(2)
        shutil.copytree(self._pristine, folder / "expected")
        self.new = build_index([SourceSpec(self.source, "laws", ())], folder / "expected", None).fingerprint

    def _write_source(self, version: int) -> None:
        records = [
            {
                "law_name": f"样例法{law}",
                "article_number": str(number),
                "contents": f"第{version}版，应当验收。",
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
        return subprocess.run([*trace, *writer], cwd=ROOT, capture_output=True, text=True, timeout=60)

    def check_whole(self) -> str:
        """Old or new, never a mixture; returns which. Leftovers go at the next start and the next build succeeds."""
        reader = IndexReader.open(self.index_dir)
        assert reader.verify() == []
        assert reader.fingerprint in (self.old, self.new)
        version = 1 if reader.fingerprint == self.old else 2
        texts = {article.contents for article in reader.read_articles(range(reader.num_docs))}
        assert texts == {f"第{version}版，应当验收。"}
        return reader.fingerprint

    def check_recovery(self) -> None:
        remove_leftovers(self.index_dir)
        assert not list(self.index_dir.glob(".tmp-*"))
        self.check_whole()
        assert (
            build_index([SourceSpec(self.source, "laws", ())], self.index_dir, None).fingerprint == self.new
        )
        assert self.check_whole() == self.new
        # Current and previous, and the one before where the kill came just before its removal.
        assert len([path for path in self.index_dir.iterdir() if path.is_dir()]) <= 3


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    stage = Stage(tmp_path_factory.mktemp("crash"))
    if stage.run("fsync", "signal=KILL:when=1").returncode == 0:
        pytest.skip("strace may not trace here")
    return stage


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
        ("fsync", "EIO", "磁盘读写错误"),
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
@pytest.mark.parametrize("call", ["write", "fsync", "rename", "mkdir"])
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
            assert number > 1
            return
        assert "无法" in outcome.stderr
        stage.check_recovery()
    pytest.fail(f"more than {MAX_POINTS} calls of {call}: the walk did not reach the end")
