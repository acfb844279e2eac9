"""`cg-rag verify` as a shell runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cg_rag.index.verify import MAX_FILE_BYTES
from tests.server_process import PROGRAM

REPORT = "# 检查报告\n\n1. 依据《样例安全法》**第二十八条**。\n2. 违反 GB 99001-2025 第 6.0.5 条第1款。\n"

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture
def verify(small_index: Path, tmp_path: Path) -> Run:
    """`verify("file", …, given=b"…")` against the small index; `index_dir` for another one."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("CG_RAG_")}

    def command(
        *words: str, given: bytes = b"", index_dir: Path = small_index
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, str(PROGRAM), "verify", *words, "--index-dir", str(index_dir)],
            env=environ | {"XDG_DATA_HOME": str(tmp_path), "PYTHONIOENCODING": "utf-8"},
            cwd=tmp_path,
            input=given,
            capture_output=True,
            timeout=300,
        )

    return command


def test_a_report_whose_citations_are_all_there_is_exit_code_0(verify: Run, tmp_path: Path) -> None:
    (tmp_path / "report.md").write_text(REPORT, "utf-8")
    done = verify("report.md")
    assert (done.returncode, done.stderr) == (0, b"")
    lines = done.stdout.decode().splitlines()
    assert lines[0].split() == ["行", "结果", "引用", "条文库中"]
    assert lines[1].startswith("3   相符")
    assert "中华人民共和国样例安全法 第二十八条" in lines[1]
    assert lines[2].startswith("4   相符")
    assert "6.0.5(1) 现行" in lines[2]
    assert lines[-1] == "共 2 处引用：相符 2，无此条 0，无法核对 0。"


@pytest.mark.parametrize(
    ("text", "word"), [("《样例安全法》第99条", "无此条"), ("《不存在的办法》第一条", "无法核对")]
)
def test_a_citation_that_is_not_there_is_exit_code_1(verify: Run, text: str, word: str) -> None:
    done = verify("-", given=(REPORT + text).encode())
    assert done.returncode == 1
    assert f"{word} 1" in done.stdout.decode()


def test_a_text_without_citations_is_exit_code_0_and_says_so(verify: Run) -> None:
    done = verify("-", given="今日现场一切正常。".encode())
    assert (done.returncode, done.stdout.decode()) == (0, "没有找到引用。\n")


def test_json_is_the_answer_of_the_service_with_line_numbers(verify: Run) -> None:
    done = verify("-", "--json", given=(REPORT + "《不存在的办法》第一条").encode())
    assert done.returncode == 1
    body = json.loads(done.stdout)
    assert (body["ok"], body["scope"]) == (True, "full")
    assert [citation["line"] for citation in body["citations"]] == [3, 4, 5]
    assert body["citations"][0]["doc"]["contents"].startswith("生产经营单位")


def test_a_file_in_gb18030_and_one_with_a_mark_are_read(verify: Run, tmp_path: Path) -> None:
    for encoding in ("gb18030", "utf-8-sig"):
        (tmp_path / "report.txt").write_bytes(REPORT.encode(encoding))
        assert verify("report.txt").returncode == 0


@pytest.mark.parametrize(
    ("words", "given", "told"),
    [
        (("nope.md",), b"", "nope.md：文件不存在"),
        ((".",), b"", "是目录"),
        (("-",), "第三条".encode("gb18030"), "不是 UTF-8"),
        (("-",), b"a" * (MAX_FILE_BYTES + 1), "请分成几个文件"),
        (("-", "--scope", "nope"), b"", "检索范围 nope 不存在"),
        ((), b"", "缺少参数"),
    ],
)
def test_a_file_or_argument_that_cannot_be_used_is_exit_code_2(
    verify: Run, words: tuple[str, ...], given: bytes, told: str
) -> None:
    done = verify(*words, given=given)
    assert (done.returncode, done.stdout) == (2, b"")
    assert told in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()


def test_without_an_index_it_is_exit_code_3(verify: Run, tmp_path: Path) -> None:
    done = verify("-", given="第三条".encode(), index_dir=tmp_path / "none")
    assert done.returncode == 3
    assert "尚未构建索引" in done.stderr.decode()


def test_control_characters_of_a_file_do_not_reach_the_terminal(verify: Run) -> None:
    done = verify("-", given="《样例\x1b[2J\x07办法》第一条".encode())
    assert b"\x1b" not in done.stdout
    assert b"\x07" not in done.stdout


def test_a_pipe_is_refused_and_never_read_as_a_text_without_citations(verify: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.md")  # has no writer: opening it would wait for ever
    done = verify("pipe.md")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode() == "pipe.md：是管道或设备，不是文件，请先存成文件\n"
