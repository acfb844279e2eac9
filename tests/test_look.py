"""`cg-rag look` as its users have it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fake_upstream import FakeUpstream, error, says, upstream_in_thread
from tests.hybrid_bench import BASES, KEY, QUESTIONS, calls, draft
from tests.pictures import jpeg, png
from tests.seeing import REPORT
from tests.server_process import PROGRAM
from tests.test_ask import command, read_piece


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "site.jpg"
    path.write_bytes(jpeg(size=5000))
    return path


def environ_of(upstream: FakeUpstream) -> dict[str, str]:
    return {"CG_RAG_VISION_ENDPOINT": upstream.url, "CG_RAG_VISION_MODEL": "vlm"}


def test_look_prints_the_report(photo: Path) -> None:
    with upstream_in_thread(says(REPORT.replace("排水措施。", "排水措施[cite^1]。"))) as upstream:
        done = command("look", str(photo), **environ_of(upstream))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{REPORT}\n", "")


def test_look_at_several_photos_with_a_question(photo: Path, tmp_path: Path) -> None:
    second = tmp_path / "二.png"
    second.write_bytes(png())
    with upstream_in_thread(says("两张都是基坑。")) as upstream:
        done = command("look", str(photo), str(second), "--question", "图里有什么？", **environ_of(upstream))
        content = upstream.requests[0].json["messages"][-1]["content"]
    assert (done.returncode, done.stdout) == (0, "两张都是基坑。\n")
    assert [part["text"] for part in content if part["type"] == "text"] == ["图1：", "图2：", "图里有什么？"]


def test_look_json_is_the_body_of_the_interface_and_warnings_go_to_stderr(photo: Path) -> None:
    major = REPORT.replace("一般隐患", "重大事故隐患")
    with upstream_in_thread(says(major)) as upstream:
        done = command("look", str(photo), "--json", **environ_of(upstream))
    body = json.loads(done.stdout)
    assert (done.returncode, body["mode"], len(body["warnings"])) == (0, "free_form", 1)
    assert done.stderr == f"注意：{body['warnings'][0]}\n"


def test_look_observes(photo: Path) -> None:
    with upstream_in_thread(says("看不懂。")) as upstream:
        done = command("look", str(photo), "--mode", "observe", **environ_of(upstream))
    assert (done.returncode, done.stdout) == (0, "看不懂。\n")
    assert "没有得到隐患标签" in done.stderr


def test_look_searches_with_two_models(photo: Path, small_index: Path) -> None:
    text = draft((1, 2, 1), (*BASES[:2], BASES[0]))
    with upstream_in_thread(says(REPORT)) as eyes, upstream_in_thread(calls(QUESTIONS[0]), says(text)) as pen:
        environ = environ_of(eyes) | {
            "CG_RAG_HYBRID_GENERATION_ENDPOINT": pen.url,
            "CG_RAG_HYBRID_GENERATION_MODEL": "pen",
            "CG_RAG_HYBRID_GENERATION_API_KEY": KEY,
            "CG_RAG_EMBEDDING_PROVIDER": "none",
        }
        words = ("--mode", "hybrid", "--rounds", "1", "--index-dir", str(small_index))
        done = command("look", str(photo), *words, **environ)
        assert ["tools" in request.json for request in pen.requests] == [True, False]
        unknown = command("look", str(photo), *words, "--scope", "no_such", **environ)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"{text}\n")
    assert (unknown.returncode, "scope" in unknown.stderr) == (2, True)


def test_look_streams_to_a_terminal_and_says_what_is_void(photo: Path) -> None:
    sloppy = REPORT.replace("隐患等级：", "**隐患等级：** ")
    with upstream_in_thread(says(sloppy)) as upstream:
        read, write = pty.openpty()
        words = [sys.executable, str(PROGRAM), "look", str(photo)]
        environ = os.environ | environ_of(upstream)
        done = subprocess.run(words, env=environ, stdout=write, stderr=write, timeout=300, check=False)
        os.close(write)
        told = b""
        while piece := read_piece(read):
            told += piece
        os.close(read)
    text = told.decode().replace("\r\n", "\n")
    first, void, second = text.partition("以上作废）\n")
    assert done.returncode == 0
    assert "**隐患等级：**" in first
    assert void
    assert second.strip() == REPORT


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nowhere.jpg"], "nowhere.jpg：文件不存在"),
        (["PHOTO", "--mode", "guess"], "不支持"),
        (["PHOTO", "--question", "问" * 2001], "question"),
        (["PHOTO"] * 5, "共 5 张图片，超过上限 4 张。"),
        (["HEIC"], "HEIC"),
        (["."], "是目录，不是文件"),
    ],
)
def test_wrong_arguments_and_pictures_are_code_two(
    photo: Path, tmp_path: Path, words: list[str], told: str
) -> None:
    heic = tmp_path / "a.heic"
    heic.write_bytes(b"\0\0\0\x18ftypheic" + bytes(60))
    names = {"PHOTO": str(photo), "HEIC": str(heic)}
    environ = {"CG_RAG_VISION_ENDPOINT": "http://127.0.0.1:9/v1", "CG_RAG_VISION_MODEL": "vlm"}
    done = command("look", *[names.get(word, word) for word in words], **environ)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_a_photo_above_the_limit_is_told_with_both_sizes(photo: Path) -> None:
    environ = {
        "CG_RAG_VISION_ENDPOINT": "http://127.0.0.1:9/v1",
        "CG_RAG_VISION_MODEL": "vlm",
        "CG_RAG_VISION_MAX_IMAGE_BYTES": "4999",
    }
    done = command("look", str(photo), **environ)
    assert (done.returncode, done.stderr) == (2, "第 1 张图片为 5000 字节，超过上限 4999 字节。\n")


def test_look_without_a_model_or_with_one_that_fails_is_code_one(photo: Path) -> None:
    done = command("look", str(photo))
    assert done.returncode == 1
    assert "CG_RAG_VISION_ENDPOINT" in done.stderr
    with upstream_in_thread(error(401)) as upstream:
        done = command("look", str(photo), **environ_of(upstream))
    assert (done.returncode, done.stderr) == (1, "视觉模型调用失败：密钥未被接受，请检查密钥与权限。\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--rounds", "2"), "--rounds 只用于 --mode agentic 与 hybrid，本次为 --mode answer。"),
        (
            ("--mode", "observe", "--scope", "full"),
            "--scope 只用于 --mode agentic 与 hybrid，本次为 --mode observe。",
        ),
        (("--mode", "hybrid", "--topk", "5"), "--topk 只用于 --mode agentic，本次为 --mode hybrid。"),
    ],
)
def test_look_refuses_an_option_of_another_mode(photo: Path, words: tuple[str, ...], said: str) -> None:
    done = command("look", str(photo), *words)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{said}\n")
