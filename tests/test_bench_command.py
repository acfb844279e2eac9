"""`cg-rag bench` as a shell runs it. No number of milliseconds is judged: only what was counted, and who was refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.server_process import PROGRAM

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def bench(small_index: Path, tmp_path: Path) -> Run:
    """`bench("--topk", "3", …)` against the small index; `index_dir` for another one, `extra` for the environment."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("CG_RAG_")}

    def command(*words: str, index_dir: Path = small_index, **extra: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(PROGRAM), "bench", *words, "--index-dir", str(index_dir)],
            env=environ | {"XDG_DATA_HOME": str(tmp_path), "PYTHONIOENCODING": "utf-8"} | extra,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )

    return command


def as_json(done: subprocess.CompletedProcess[str]) -> Any:
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_each_number_of_callers_is_measured_once(bench: Run) -> None:
    report = as_json(bench("--callers", "1,3,1", "--seconds", "0.2", "--topk", "2", "--json"))
    assert [run["callers"] for run in report["runs"]] == [1, 3]
    for run in report["runs"]:
        assert run["searches"] >= run["callers"]
        assert 0 < run["p50_ms"] <= run["p95_ms"] <= run["p99_ms"] <= run["max_ms"]
        assert run["degraded"] == 0
        assert {"lexical_ms", "read_ms"} <= run["stages_p50_ms"].keys()
    assert (report["scope"], report["topk"], report["retrieval_method"]) == ("full", 2, "lexical")
    assert report["num_questions"] == report["num_docs"] > 0
    assert report["peak_rss_bytes"] > 10e6


def test_more_seconds_are_more_searches(bench: Run) -> None:
    def count(seconds: str) -> int:
        report = as_json(bench("--callers", "1", "--seconds", seconds, "--json"))
        return int(report["runs"][0]["searches"])

    few = count("0.001")
    # A second in which the machine stood still holds no searches.
    assert any(few < count(seconds) for seconds in ("1", "4", "16"))


def test_questions_of_a_file_are_asked(bench: Run, tmp_path: Path) -> None:
    (tmp_path / "questions.txt").write_text("\ufeff脚手架地基积水\n\n  动火证 \n", "utf-8")
    report = as_json(bench("--questions", "questions.txt", "--seconds", "0.1", "--callers", "2", "--json"))
    assert report["num_questions"] == 2


def test_table_for_people(bench: Run) -> None:
    done = bench("--callers", "2", "--seconds", "0.1")
    assert (done.returncode, done.stderr) == (0, "")
    first, opened, head, row, stages = done.stdout.splitlines()
    assert first.startswith("范围 full：")
    assert "第一次检索" in opened
    assert head.split()[0] == "同时"
    assert row.split()[0] == "2"
    assert "lexical_ms" in stages


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--callers", "0"), "--callers"),
        (("--callers", "1,x"), "--callers"),
        (("--callers", "65"), "--callers"),
        (("--topk", "201"), "--topk"),
        (("--seconds", "0"), "--seconds"),
        (("--seconds", "nan"), "--seconds"),
        (("--scope", "nowhere"), "nowhere"),
        (("--questions", "absent.txt"), "absent.txt"),
        (("--questions", "/dev/null"), "/dev/null"),
    ],
)
def test_wrong_arguments_are_exit_code_2(bench: Run, words: tuple[str, ...], told: str) -> None:
    done = bench(*words, "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_index_that_is_not_there_is_exit_code_1(bench: Run, tmp_path: Path) -> None:
    done = bench(index_dir=tmp_path / "none")
    assert (done.returncode, done.stdout) == (1, "")
    assert "cg-rag index build" in done.stderr
