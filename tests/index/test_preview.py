"""Trying sources without building, the report of what was taken and left, and what a build remembers of it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from cg_rag.index.build import SourceSpec, build_index
from cg_rag.index.commands import add_build_arguments, run_build
from cg_rag.index.model_errors import Cancelled
from cg_rag.index.store import IndexReader
from tests.toy_embedder import ToyModel, toy_embedder

LAW = """样例条例
（2024年1月1日公布）
第一章 总则
第一条　为了安全，制定本条例。
① 脚注里的一句话，不是条文。
第二条　施工前应当交底。\ue723
"""
OLD = "name,no,text,status\n甲规定,1,旧的规定应当遵守。,已废止\n甲规定,2,,\n"
MAP = ("--map", "law_name=name,article_number=no", "--map", "contents=text")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "文件"
    path.mkdir()
    (path / "a.md").write_text(LAW, "utf-8")
    (path / "b.csv").write_text(OLD, "utf-8")
    (path / "c.pdf").touch()
    return path


@pytest.fixture
def index_dir(tmp_path: Path) -> Path:
    return tmp_path / "index"


def build(index_dir: Path, *words: str | Path) -> int:
    parser = argparse.ArgumentParser()
    add_build_arguments(parser)
    return run_build(parser.parse_args([str(word) for word in words]), index_dir, lambda: None)


def report_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_a_dry_run_shows_laws_articles_and_what_was_left_and_builds_nothing(
    folder: Path, index_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build(index_dir, folder, *MAP, "--dry-run") == 2
    out = capsys.readouterr().out
    for expected in (
        f"{folder}/a.md：2 条；不在条文中的",
        "《样例条例》2 条",
        "第一条［第一章 总则］ 为了安全，制定本条例。",
        f"提醒 {folder}/a.md:6：删去",
        f"留下 {folder}/a.md:5：脚注",
        "脚注里的一句话，不是条文。”",
        "1（已废止） 旧的规定应当遵守。",
        f"不合要求 {folder}/b.csv:3：缺少 contents",
        f"未导入 {folder}/c.pdf：PDF",
        "共 3 条，2 部法规；没有构建索引。",
    ):
        assert expected in out
    assert not index_dir.exists()


def test_a_dry_run_as_json_is_data_and_has_the_exit_code_of_a_build(
    folder: Path, index_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build(index_dir, folder, *MAP, "--dry-run", "--json") == 2
    data = json.loads(capsys.readouterr().out)
    assert (data["ok"], data["num_articles"], data["num_laws"]) == (False, 3, 2)
    files = {Path(file["file"]).name: file for file in data["files"]}
    [law] = files["a.md"]["laws"]
    assert (law["law_name"], law["num_articles"], law["articles"]) == ("样例条例", 2, ["第一条", "第二条"])
    assert law["first"][0]["chapter"] == "第一章 总则"
    assert files["a.md"]["left"] == sum(files["a.md"]["reasons"].values()) == 4
    assert {note["kind"] for note in files["a.md"]["notes"]} == {"left", "warning"}
    assert (files["b.csv"]["rejected"], files["c.pdf"]["unread"]) == (1, 1)
    assert build(index_dir, folder, *MAP, "--dry-run", "--json", "--skip-invalid") == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


def test_the_report_file_has_every_note_whole_and_a_summary_of_every_file(
    folder: Path, index_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "很长的一行，" * 200
    (folder / "a.md").write_text(LAW.replace("脚注里的一句话，", long), "utf-8")
    path = tmp_path / "report.jsonl"
    assert build(index_dir, folder, *MAP, "--skip-invalid", "--report", path) == 0
    records = report_of(path)
    assert [record["file"] for record in records if record["kind"] == "file"] == [
        f"{folder}/a.md",
        f"{folder}/b.csv",
    ]
    [text] = [record["text"] for record in records if record.get("place") == f"{folder}/a.md:5"]
    assert long in text
    assert {record["kind"] for record in records} == {"file", "left", "warning", "rejected", "unread"}
    out = capsys.readouterr().out
    assert "文件：3 条（已读取，跳过 1 行，4 处文字不在任何条文中，1 处提醒，1 条不是现行有效）" in out
    # Asked for a report, an unchanged source is read again.
    assert build(index_dir, folder, *MAP, "--skip-invalid", "--report", path) == 0
    assert report_of(path) == records


def test_a_report_is_written_even_when_the_build_stops(folder: Path, index_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.jsonl"
    assert build(index_dir, folder, *MAP, "--report", path) == 2
    assert [record["place"] for record in report_of(path) if record["kind"] == "rejected"] == [
        f"{folder}/b.csv:3"
    ]


def test_a_report_that_cannot_be_written_is_one_sentence(
    folder: Path, index_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build(index_dir, folder, "--report", tmp_path / "absent" / "x") == 1
    assert capsys.readouterr().err.startswith("无法写入报告")


def test_an_unchanged_source_is_not_read_again_and_its_counts_are_remembered(
    folder: Path, index_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (folder, *MAP, "--skip-invalid", "--json")
    assert build(index_dir, *words) == 0
    first = json.loads(capsys.readouterr().out)
    assert build(index_dir, *words) == 0
    second = json.loads(capsys.readouterr().out)
    assert (first["changed"], second["changed"]) == (True, False)
    assert [{**corpus, "reused": True} for corpus in first["corpora"]] == second["corpora"]
    assert first["corpora"][0]["not_in_force"] == 1
    assert (len(first["files"]), second["files"]) == (2, [])
    assert [note["place"] for note in second["unsupported"]] == [f"{folder}/c.pdf"]
    reader = IndexReader.open(index_dir)
    assert reader.holds_old_law
    reader.close()
    # Another map is another reading.
    assert build(index_dir, folder, "--map", "law_name=name,contents=text", "--skip-invalid", "--json") == 0
    assert json.loads(capsys.readouterr().out)["changed"] is True


def test_a_map_that_says_nothing_is_exit_code_2(
    folder: Path, index_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build(index_dir, folder, "--map", "x") == 2
    assert "格式为 字段=列名" in capsys.readouterr().err


def test_many_files_are_summed_up(
    tmp_path: Path, index_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(30):
        (folder / f"{number:02}.md").write_text(f"{LAW}第三条　第{number}份。\n", "utf-8")
    assert build(index_dir, folder, "--dry-run") == 0
    assert "……另有 10 个文件，用 --report 文件 查看全部。" in capsys.readouterr().out
    assert build(index_dir, folder) == 0
    assert "另有 10 个文件有不在条文中的文字或提醒" in capsys.readouterr().out


def test_a_build_of_documents_goes_on_where_it_was_interrupted(folder: Path, index_dir: Path) -> None:
    specs = [SourceSpec(folder / "a.md", "a", ())]
    done = 0

    def count(number: int) -> None:
        nonlocal done
        done = number

    with pytest.raises(Cancelled):
        build_index(
            specs,
            index_dir,
            None,
            embedder=toy_embedder(ToyModel(before=count)),
            should_stop=lambda: done >= 1,
        )
    report = build_index(specs, index_dir, None, embedder=toy_embedder())
    assert (report.num_docs, report.embedded + report.reused_vectors) == (2, 2)
    assert report.reused_vectors >= 1
    # A line put in front moves the others and changes none of them.
    path = folder / "a.md"
    path.write_text(path.read_text("utf-8").replace("第一章", "\n\n第一章"), "utf-8")
    moved = build_index(specs, index_dir, None, embedder=toy_embedder())
    assert (moved.added, moved.removed, moved.unchanged, moved.embedded) == (0, 0, 2, 0)
