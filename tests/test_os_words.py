"""No English word of the operating system reaches whoever calls or runs the service."""

from __future__ import annotations

import ast
import errno
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cg_rag import main
from cg_rag.core import os_words as cores
from cg_rag.index import os_words as indexes
from cg_rag.index.errors import file_fault
from tests.conftest import ARTICLES, write_jsonl
from tests.test_imports import DIRECTORIES, ROOT

UNUSUAL = errno.EPROTO


@pytest.mark.parametrize("reason_of", [cores.reason_of, indexes.reason_of])
def test_every_number_has_words_or_its_symbol(reason_of: Callable[[OSError], str]) -> None:
    for number in errno.errorcode:
        error = OSError(number, os.strerror(number), "/a/path")
        reason = reason_of(error)
        assert os.strerror(number) not in reason
        assert re.search("[一-鿿]", reason)
        assert "/a/path" not in reason
    assert reason_of(OSError(UNUSUAL, "x")) == "系统错误 EPROTO"
    assert reason_of(OSError("no number")) == "系统错误 OSError"
    assert reason_of(OSError(99999, "x")) == "系统错误 OSError"


def test_a_fault_names_the_file_and_errors_of_ours_speak_for_themselves() -> None:
    assert indexes.fault_of(FileNotFoundError(errno.ENOENT, "No such file", "/a")) == "/a：文件或目录不存在"
    assert (
        indexes.fault_of(ConnectionRefusedError(errno.ECONNREFUSED, "refused"))
        == "连接被拒绝，该端口没有程序在听"
    )
    assert indexes.fault_of(ValueError("向量无方向")) == "向量无方向"
    assert indexes.fault_of(OSError("数据不全")) == "数据不全"
    assert file_fault(OSError(errno.ELOOP, "Too many levels")) == "无法读取：符号链接成环"


def test_no_message_is_made_of_the_systems_own_words() -> None:
    found = []
    for path in [ROOT / "cg_rag.py", *(file for name in DIRECTORIES for file in (ROOT / name).rglob("*.py"))]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr == "strerror":
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert found == []


def cases(folder: Path) -> dict[str, list[str]]:
    """Commands that meet a path which is not what it should be; none depends on rights, which root has all of."""
    source, index = str(write_jsonl(folder / "laws.jsonl", ARTICLES)), str(folder / "index")
    target = ["--platform", "linux_x86_64", "--python", "3.11", "--no-index"]
    loop = folder / "loop"
    loop.symlink_to(loop)
    return {
        "report": ["index", "build", source, "--index-dir", index, "--report", str(folder)],
        "source": ["index", "build", str(loop), "--index-dir", index],
        "index": ["index", "build", source, "--index-dir", f"{source}/index"],
        "archive": ["index", "install", str(folder), "--index-dir", index],
        "pointer": ["index", "info", "--index-dir", str(make_pointer(folder))],
        "text": ["verify", str(folder), "--index-dir", index],
        "python": ["wheelhouse", str(folder / "out"), *target, "--python-archive", str(folder)],
        "delivery": ["wheelhouse", f"{source}/out", *target],
        "log": ["serve", "--port", "0", "--config", str(make_config(folder, f"log: {{file: {folder}}}"))],
        "criteria": ["ask", "x", "--config", str(make_config(folder, f"criteria: {{file: {folder}}}"))],
    }


def make_pointer(folder: Path) -> Path:
    (folder / "broken" / "current").mkdir(parents=True)
    return folder / "broken"


def make_config(folder: Path, line: str) -> Path:
    path = folder / f"{line.partition(':')[0]}.yaml"
    index = json.dumps(str(folder / "index"))
    path.write_text(
        f"cg_rag:\n  index: {{dir: {index}}}\n  embedding: {{provider: none}}\n  {line}\n", "utf-8"
    )
    return path


@pytest.mark.parametrize(
    "name",
    ["report", "source", "index", "archive", "pointer", "text", "python", "delivery", "log", "criteria"],
)
def test_a_path_that_is_not_what_it_should_be_is_told_in_chinese(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("CG_RAG_EMBEDDING_PROVIDER", "none")
    words = cases(tmp_path)[name]
    assert main(words) in (1, 2, 3)
    told = capsys.readouterr().err.replace(str(tmp_path), "")
    assert re.search("[一-鿿]", told)
    assert not re.search(r"Errno|[A-Z][a-z]+ [a-z]+ [a-z]+|not a |is a |too many", told), told
