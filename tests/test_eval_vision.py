"""`cg-rag eval vision` as its users have it: a labelled folder, a scripted model or service, the reports."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest

import cg_rag
from tests.agentic_scenarios import INVENTORY, PLAN, WRITTEN
from tests.evaluating import (
    agentic_body,
    by_photo,
    free_form,
    labelled_folder,
    scripted_service,
)
from tests.fake_upstream import FakeUpstream, Reply, error, raw, says, upstream_in_thread
from tests.test_ask import command

SCAFFOLD = "扣件式钢管脚手架"
ROWS = [
    *({"隐患等级": "一般隐患", "隐患分类": SCAFFOLD, "隐患": "积水"} for _ in range(6)),
    *({"隐患等级": "无隐患", "隐患分类": "", "隐患": ""} for _ in range(3)),
    {"隐患等级": "非施工现场", "隐患分类": "", "隐患": ""},
    {"隐患等级": "", "隐患分类": "施工用电", "隐患": "箱门|配电箱"},
    {"隐患等级": "", "隐患分类": "", "隐患": ""},
]
NO_SITE = "场景：非施工现场\n\n隐患描述：\n1. 画面为办公室。\n\n整改措施和建议：\n1. 请提交施工现场照片。"
NOT_CLEAR = "场景：画面不足以判定\n\n隐患描述：\n1. 画面过暗。\n\n整改措施和建议：\n1. 请补拍。"
ANSWERS = {
    1: free_form("一般隐患", SCAFFOLD),
    2: free_form("一般隐患", SCAFFOLD, "立杆底部悬空。"),
    3: free_form("一般隐患", "施工用电"),
    4: free_form("疑似重大事故隐患", SCAFFOLD),
    5: "我不知道。",  # twice no report: the service refuses to publish it
    6: NOT_CLEAR,
    7: free_form("无隐患", "无", "临边护栏完整。"),
    8: free_form("一般隐患", "高处作业", "临边无护栏。"),
    9: NO_SITE,
    10: NO_SITE,
    11: free_form("一般隐患", "施工用电", "配电箱敞开。"),
    12: free_form("一般隐患", "施工用电"),
}
# docs/vision-eval.md: 是、否、未识别、不计 of the photos above, by hand.
EXPECTED = {
    "both": (4, 3, 3, 2),  # 是 1 2 7 10, 否 3 4 8, 未识别 5 6 9, 不计 11 12
    "level": (5, 2, 3, 2),  # 是 1 2 3 7 10, 否 4 8, 未识别 5 6 9, 不计 11 12
    "category": (5, 2, 3, 2),  # 是 1 2 4 7 11, 否 3 8, 未识别 5 6 9, 不计 10 12
    "hazards": (4, 1, 2, 5),  # 是 1 3 4 11, 否 2, 未识别 5 6, 不计 7 8 9 10 12
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return labelled_folder(tmp_path / "photos", ROWS)


@pytest.fixture
def model() -> Iterator[FakeUpstream]:
    with upstream_in_thread() as upstream:
        yield upstream


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def words_of(folder: Path, *words: str) -> list[str]:
    return ["eval", "vision", str(folder), "--out", str(folder.parent / "out"), *words]


def environ_of(upstream: FakeUpstream | None) -> dict[str, str]:
    return {"CG_RAG_VISION_ENDPOINT": upstream.url, "CG_RAG_VISION_MODEL": "vlm"} if upstream else {}


def evaluate(folder: Path, *words: str, upstream: FakeUpstream | None = None) -> Done:
    """The command in this process: what starting Python costs is paid once, in the first test."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("CG_RAG_")}
    environ = {**clean, "CG_RAG_EMBEDDING_PROVIDER": "none", **environ_of(upstream)}
    told, wrong = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, environ, clear=True),
        redirect_stdout(told),
        redirect_stderr(wrong),
    ):
        try:
            code = cg_rag.main(words_of(folder, *words))
        except SystemExit as ended:
            code = int(str(ended.code))
    return Done(code, told.getvalue(), wrong.getvalue())


def service_url(upstream: FakeUpstream) -> str:
    return upstream.url.removesuffix("/v1")


def test_the_harness_reproduces_the_users_formula(folder: Path, model: FakeUpstream) -> None:
    asked: list[int] = []
    model.enqueue(*[by_photo(ANSWERS, asked)] * 20)
    done = command(*words_of(folder, "--json", "-"), **environ_of(model))
    assert (done.returncode, done.stderr) == (0, "")
    run = json.loads(done.stdout)["runs"][0]
    for match, (yes, no, unrecognised, uncounted) in EXPECTED.items():
        found = run["scores"][match]
        assert (found["yes"], found["no"], found["unrecognised"], found["uncounted"]) == EXPECTED[match], (
            match
        )
        assert found["measure"]["mean"] == round(yes / (yes + no), 4)
        assert found["measure"]["low"] <= found["measure"]["mean"] <= found["measure"]["high"]
        assert found["of_all"] == round(yes / (yes + no + unrecognised), 4)
        assert uncounted == len(ROWS) - yes - no - unrecognised
    assert sorted(asked) == sorted([*range(1, 13), 5])  # the broken report was corrected once
    codes = {answer["photo"]: answer["error_code"] for answer in run["answers"]}
    assert codes["05.jpg"] == "vision_response_invalid"
    columns, rows, counts = (run["levels"][name] for name in ("columns", "rows", "counts"))
    assert counts[rows.index("一般隐患")][columns.index("未识别")] == 1
    assert counts[rows.index("一般隐患")][columns.index("画面不足以判定")] == 1
    assert {"expected": SCAFFOLD, "read": "施工用电", "photos": 1} in run["category_confusions"]
    assert run["cost"]["total_tokens"] == 18.0
    assert run["cost"]["answered"] == 11


def test_nothing_is_asked_twice_and_restart_asks_again(folder: Path, model: FakeUpstream) -> None:
    asked: list[int] = []
    model.enqueue(*[by_photo(ANSWERS, asked)] * 60)
    first = evaluate(folder, upstream=model)
    assert "57.1%" in first.stdout  # 4 of 7
    journal = folder.parent / "out" / "answer.jsonl"
    whole = journal.read_bytes()
    asked.clear()
    assert evaluate(folder, upstream=model).stdout == first.stdout
    assert asked == []
    # A run that was killed in the middle of a line: its last photo is asked again, the others are not.
    journal.write_bytes(whole[:-20])
    evaluate(folder, upstream=model)
    assert len(set(asked)) == 1
    asked.clear()
    evaluate(folder, "--restart", upstream=model)
    assert set(asked) == set(range(1, 13))


def test_answers_under_other_settings_are_not_mixed(folder: Path, model: FakeUpstream) -> None:
    model.enqueue(*[by_photo(ANSWERS, [])] * 20)
    evaluate(folder, upstream=model)
    done = evaluate(folder, "--thinking", upstream=model)
    assert done.returncode == 1
    assert "不同之处：thinking" in done.stderr


def test_a_service_that_cannot_be_asked_stops_the_run_and_keeps_what_there_is(
    folder: Path, model: FakeUpstream
) -> None:
    asked: list[int] = []
    fails = raw(
        b'{"error":{"code":"vision_upstream_error","message":"\xe5\xa4\xb1\xe8\xb4\xa5\xe3\x80\x82"}}', 502
    )

    def answer(number: int) -> dict[str, Any] | Reply:
        return fails if number > 2 else agentic_body(free_form("一般隐患", SCAFFOLD), [])

    model.enqueue(*[scripted_service(answer, asked)] * 40)
    words = ("--mode", "agentic", "--url", service_url(model), "--concurrency", "1")
    done = evaluate(folder, *words)
    assert done.returncode == 1
    assert "连续 5 张失败（失败），已停止" in done.stderr
    assert asked == [1, 2, 3, 4, 5, 6, 7]
    asked.clear()
    evaluate(folder, *words)
    assert asked == [3, 4, 5, 6, 7]  # failures of the moment are asked again, answers are not


def test_a_service_without_a_free_place_is_waited_for(tmp_path: Path, model: FakeUpstream) -> None:
    folder = labelled_folder(tmp_path / "photos", ROWS[:1])
    full = error(429, code="capacity.exceeded", retry_after="0")
    right = agentic_body(free_form("一般隐患", SCAFFOLD), [])
    replies = [full, full, right]
    model.enqueue(*[scripted_service(lambda number: replies.pop(0), [])] * 4)
    done = evaluate(folder, "--mode", "agentic", "--url", service_url(model))
    assert (done.returncode, replies) == (0, [])
    assert "1/1 100.0%" in done.stdout


def test_profiles_stand_side_by_side_in_one_report_with_their_citations(
    folder: Path, model: FakeUpstream
) -> None:
    documents = [
        {
            "law_name": "GB99001-2025样例脚手架规范",
            "article_number": "2.0.1",
            "contents": "脚手架地基应平整坚实，四周设排水沟，基础处不得有积水。",
            "status": "现行有效",
        },
        {
            "law_name": "样例旧标准",
            "article_number": "3.1",
            "contents": "动火作业须办理动火证。",
            "status": "已废止",
        },
    ]
    report = (
        "## 隐患等级\n一般隐患\n\n## 隐患分类\n扣件式钢管脚手架\n\n## 隐患描述\n1. 立杆底部有积水。\n\n## 隐患判定依据\n"
        "1. 《样例脚手架规范》2.0.1：地基应平整坚实，基础处不得有积水[cite^1]。\n2. 架体立杆基础积水[cite^2]。\n"
        "3. 未按要求设置[cite^9]。\n\n## 整改措施及建议\n1. 排水。"
    )
    url = service_url(model)
    for profile, wrong in (("e10", 4), ("controller", 2)):
        body = agentic_body(report.replace("一般隐患", "重大事故隐患"), documents)
        model.enqueue(
            *[
                scripted_service(
                    lambda number, wrong=wrong, body=body: (
                        body if number <= wrong else agentic_body(report, documents, 300)
                    ),
                    [],
                    profile,
                )
            ]
            * 13
        )
        done = evaluate(folder, "--mode", "agentic", "--url", url, "--profile", profile, "--json", "-")
        assert done.returncode == 0, done.stderr
        model.forget()
    found = json.loads(done.stdout)
    assert [run["name"] for run in found["runs"]] == ["agentic-e10", "agentic-controller"]
    (difference,) = found["differences"]
    assert difference["only_other"] == 2
    assert difference["interval"]["mean"] < 0
    citations = found["runs"][0]["citations"]
    assert (citations["total"], citations["existing"], citations["supporting"]) == (36, 24, 12)
    assert citations["validity"]["in_force"] == citations["validity"]["repealed"] == 12
    model.enqueue(scripted_service(lambda number: agentic_body(report, []), [], "e10"))
    other = evaluate(folder, "--mode", "agentic", "--url", url, "--profile", "controller")
    assert (other.returncode, other.stderr) == (2, "该服务的视觉版本是 e10，不是 controller。\n")


def test_several_profiles_run_one_after_the_other_in_this_process(
    tmp_path: Path, model: FakeUpstream
) -> None:
    folder = labelled_folder(tmp_path / "photos", ROWS[:2], "gb18030")
    asked: list[int] = []
    model.enqueue(*[by_photo(ANSWERS, asked)] * 8)
    done = evaluate(folder, "--profile", "controller,e10", "--json", "-", upstream=model)
    assert (done.returncode, done.stderr) == (0, "")
    runs = json.loads(done.stdout)["runs"]
    assert [(run["name"], run["settings"]["profile"]) for run in runs] == [
        ("answer-e10", "e10"),
        ("answer-controller", "controller"),
    ]
    assert sorted(asked) == [1, 1, 2, 2]


def test_the_agentic_mode_itself_is_measured_with_its_evidence(
    tmp_path: Path, model: FakeUpstream, small_index: Path
) -> None:
    folder = labelled_folder(tmp_path / "photos", ROWS[:1])
    model.enqueue(INVENTORY, says(PLAN), says(WRITTEN))
    words = ("--mode", "agentic", "--profile", "e10", "--index-dir", str(small_index), "--json", "-")
    done = evaluate(folder, *words, upstream=model)
    assert (done.returncode, done.stderr) == (0, "")
    (run,) = json.loads(done.stdout)["runs"]
    assert run["name"] == "agentic-e10"
    assert run["scores"]["both"]["measure"]["mean"] == 1.0
    assert run["citations"]["total"] == run["citations"]["existing"] == run["citations"]["supporting"] == 1
    assert run["cost"]["total_tokens"] == 3 * 18


HOSTILE = '</pre><script>document.title="owned"</script><img src=x onerror="document.title=\'owned\'">&amp;\x00\x1b[2J'


def test_the_page_escapes_whatever_models_files_and_labels_say(tmp_path: Path, model: FakeUpstream) -> None:
    folder = labelled_folder(
        tmp_path / '照 片<b>&"', [{"等级": "一般隐患", "分类": SCAFFOLD, "隐患": "<i>积水"}]
    )
    answer = free_form("一般隐患", SCAFFOLD) + HOSTILE
    documents = [{"law_name": "<u>法", "article_number": "1", "contents": ""}]
    body = agentic_body(answer + "[cite^1]", documents)
    model.enqueue(*[scripted_service(lambda number: body, [])] * 2)
    done = evaluate(folder, "--mode", "agentic", "--url", service_url(model), "--embed-mib", "0")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    for tag in ("<script", "<img src=x", "<b>&", "<i>", "<u>", "\x00"):
        assert tag not in page
    assert "&lt;script&gt;" in page
    assert "default-src 'none'" in page
    assert 'src="./../%E7%85%A7%20%E7%89%87%3Cb%3E%26%22/01.jpg"' in page


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ("图片,等级\n01.jpg,较大隐患\n", "第 2 行的等级“较大隐患”不在四个等级之中"),
        ("图片,等级\n01.jpg,一般隐患\n01.jpg,无隐患\n", "第 3 行的图片 01.jpg 在第 2 行已经有了"),
        ("图片,等级\n../01.jpg,一般隐患\n", "相对路径"),
        ("图片,等级\n99.jpg,一般隐患\n", "标注中有 1 张照片不在文件夹中：99.jpg（第 2 行）"),
        ("等级\n一般隐患\n", "表头缺少图片一列"),
        ("图片,等级\n", "没有一张图片的标注"),
    ],
)
def test_wrong_labels_are_code_two_before_any_model_is_asked(folder: Path, labels: str, told: str) -> None:
    (folder / "labels.csv").write_text(labels, "utf-8")
    done = evaluate(folder)
    assert done.returncode == 2
    assert told in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--mode", "observe"], "observe 不给出等级"),
        (["--concurrency", "0"], "--concurrency"),
        (["--profile", "e11"], "e11"),
        (["--url", "file:///etc"], "--url"),
        (["--scope", "full"], "只用于 agentic 与 hybrid"),
        (["--name", "../x"], "--name"),
        (["--profile", "e10,controller", "--name", "x"], "逐个"),
        (["--labels", "nowhere.csv"], "nowhere.csv：文件不存在"),
    ],
)
def test_wrong_arguments_are_code_two(folder: Path, words: list[str], told: str) -> None:
    done = evaluate(folder, *words)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_no_model_and_no_service_are_code_one(folder: Path) -> None:
    done = evaluate(folder)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "vision.endpoint" in done.stderr
    done = evaluate(folder, "--url", "http://127.0.0.1:9")
    assert done.returncode == 1
    assert "无法连接" in done.stderr
    assert "连接被拒绝" in done.stderr
