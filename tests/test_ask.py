"""`cg-rag ask` as its users have it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import write_jsonl
from tests.fake_upstream import error, says, upstream_in_thread
from tests.server_process import PROGRAM

QUESTION = "脚手架搭设后怎么验收"


def command(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("CG_RAG_")}
    return subprocess.run(
        [sys.executable, str(PROGRAM), *words],
        env=clean | {"CG_RAG_EMBEDDING_PROVIDER": "none"} | environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def ask(index_dir: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return command("ask", QUESTION, "--index-dir", str(index_dir), *words, **environ)


def test_ask_prints_the_answer(small_index: Path) -> None:
    with upstream_in_thread(says('{"indices":[1]}')) as upstream:
        done = ask(small_index, CG_RAG_GENERATION_ENDPOINT=upstream.url, CG_RAG_GENERATION_MODEL="m")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "我根据在线检索与候选筛选结果，整理出以下最相关条文：\n1. GB99001-2025样例脚手架规范 6.0.5(1)\n"
    )


def test_ask_json_is_the_body_of_rag(small_index: Path) -> None:
    with upstream_in_thread(says('{"indices":[1,2]}')) as upstream:
        done = ask(
            small_index,
            "--json",
            "--topk=2",
            "--max-items=1",
            CG_RAG_GENERATION_ENDPOINT=upstream.url,
            CG_RAG_GENERATION_MODEL="m",
        )
    body = json.loads(done.stdout)
    assert done.returncode == 0
    assert body["retrieval"]["num_docs"] == 2
    assert body["generation"]["pred_indices"] == [1]


def test_ask_streams_to_a_terminal_and_says_what_is_void(small_index: Path) -> None:
    cut = says(['{"indices":[2,', "1]}"], cut_after=2)
    with upstream_in_thread(cut) as upstream:
        read, write = pty.openpty()
        environ = os.environ | {
            "CG_RAG_EMBEDDING_PROVIDER": "none",
            "CG_RAG_GENERATION_ENDPOINT": upstream.url,
            "CG_RAG_GENERATION_MODEL": "m",
        }
        words = [sys.executable, str(PROGRAM), "ask", QUESTION, "--index-dir", str(small_index)]
        done = subprocess.run(words, env=environ, stdout=write, stderr=write, timeout=300, check=False)
        os.close(write)
        told = b""
        while piece := read_piece(read):
            told += piece
        os.close(read)
    text = told.decode().replace("\r\n", "\n")
    assert done.returncode == 1
    first, void, second = text.partition("以上作废）\n")
    assert "样例脚手架规范 2.0.1" in first
    assert void
    assert "生成模型调用失败" in second


def read_piece(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # a terminal whose other end is closed
        return b""


def test_ask_without_a_model_says_what_to_set(small_index: Path) -> None:
    done = ask(small_index)
    assert done.returncode == 1
    assert "CG_RAG_GENERATION_ENDPOINT" in done.stderr
    assert done.stdout == ""


def test_ask_of_a_model_that_fails_is_one_line(small_index: Path) -> None:
    with upstream_in_thread(error(401)) as upstream:
        done = ask(small_index, CG_RAG_GENERATION_ENDPOINT=upstream.url, CG_RAG_GENERATION_MODEL="m")
    assert done.returncode == 1
    assert done.stderr == "生成模型调用失败：密钥未被接受，请检查密钥与权限。\n"


def test_ask_needs_no_model_with_the_local_provider(small_index: Path) -> None:
    done = ask(small_index, CG_RAG_GENERATION_PROVIDER="local")
    assert done.returncode == 0
    assert "1. GB99001-2025样例脚手架规范 6.0.5(1)" in done.stdout
    assert "没有经过模型判断" in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--scope", "nowhere"], "scope 须为 full 之一"),
        (["--topk", "0"], "topk 须为 1..200 的整数，收到 0。"),
        (["--max-items", "51"], "max_items 须为 1..50 的整数，收到 51。"),
        (["--max-items", "x"], "--max-items：须为整数，收到 'x'"),
    ],
)
def test_wrong_arguments_of_ask_are_code_two(small_index: Path, words: list[str], told: str) -> None:
    done = ask(small_index, *words)
    assert done.returncode == 2
    assert told in done.stderr


def test_ask_without_an_index_is_code_one(tmp_path: Path) -> None:
    done = ask(tmp_path / "none")
    assert done.returncode == 1
    assert "索引尚不可用" in done.stderr
    assert str(tmp_path / "none") in done.stderr


@pytest.fixture(scope="module")
def old_law_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from cg_rag.index.build import SourceSpec, build_index

    folder = tmp_path_factory.mktemp("old")
    articles = [
        {
            "law_name": "样例旧规范",
            "article_number": "6.0.5",
            "contents": "脚手架搭设后怎么验收由旧规范定。",
            "status": "已废止",
        },
        {
            "law_name": "样例新规范",
            "article_number": "6.0.6",
            "contents": "脚手架搭设后组织验收。",
            "effective_date": "2999-01-01",
        },
    ]
    build_index([SourceSpec(write_jsonl(folder / "a.jsonl", articles), "codes", ())], folder / "index", None)
    return folder / "index"


def test_what_was_chosen_and_is_not_in_force_is_told_beside_the_answer(old_law_index: Path) -> None:
    with upstream_in_thread(says('{"indices":[1,2]}')) as upstream:
        done = ask(old_law_index, CG_RAG_GENERATION_ENDPOINT=upstream.url, CG_RAG_GENERATION_MODEL="m")
    lines = done.stdout.splitlines()[1:]
    told = {
        "样例旧规范 6.0.5": "标注为“已废止”",
        "样例新规范 6.0.6": "施行日期为 2999-01-01，尚未施行",
    }
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        f"注意：第 {place} 条{told[line.partition('. ')[2]]}，请核对现行规定。"
        for place, line in enumerate(lines, start=1)
    ]


def test_search_marks_what_is_not_in_force(old_law_index: Path) -> None:
    done = command("search", QUESTION, "--index-dir", str(old_law_index))
    assert "样例旧规范 6.0.5（标注为“已废止”）　得分 " in done.stdout
    assert "样例新规范 6.0.6（施行日期为 2999-01-01，尚未施行）　得分 " in done.stdout
