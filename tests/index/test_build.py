"""Building: what is read again, what is written, what stands when the disk refuses, and what the operator is told."""

from __future__ import annotations

import argparse
import io
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cg_rag.index import build as build_module
from cg_rag.index.build import RowsInvalid, SourceSpec, build_index, parse_source_spec
from cg_rag.index.commands import (
    add_build_arguments,
    add_info_arguments,
    add_verify_arguments,
    run_build,
    run_info,
    run_verify,
)
from cg_rag.index.durable import build_lock
from cg_rag.index.errors import IndexBusy, SourceInvalid
from cg_rag.index.importers import Source
from cg_rag.index.model_errors import ModelInvalid
from cg_rag.index.progress import TerminalProgress
from cg_rag.index.store import IndexReader, current_fingerprint
from tests.toy_embedder import DIM, ToyModel, toy_embedder

ROOT = Path(__file__).resolve().parents[2]


def record(law: str, number: int | str, text: str = "样例条文，应当验收。") -> dict[str, Any]:
    return {"law_name": law, "article_number": str(number), "contents": f"{text}（{law}{number}）"}


def write(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(item, ensure_ascii=False) + "\n" for item in records), "utf-8")
    return path


def rows(index_dir: Path) -> list[tuple[str, str, str, tuple[str, ...]]]:
    reader = IndexReader.open(index_dir)
    assert reader.verify() == []
    return [
        (run.corpus, article.law_name, article.article_number, article.tags)
        for run in reader.runs
        for article in reader.read_articles(range(run.start, run.start + run.count))
    ]


@pytest.fixture
def index_dir(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "index"


@pytest.fixture
def laws(tmp_path: Path) -> Path:
    return write(tmp_path / "laws.jsonl", record("甲法", 1), record("甲法", 2), record("乙法", 1))


@pytest.fixture
def codes(tmp_path: Path) -> Path:
    return write(tmp_path / "codes.jsonl", record("丙规范", "1.0.1"))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the sources that were read, in order."""
    names: list[str] = []
    real = build_module.read_source

    def note(source: Source, reject: Any) -> Iterator[Any]:
        names.append(source.files[0].name)
        return real(source, reject)

    monkeypatch.setattr(build_module, "read_source", note)
    return names


# --- order ---------------------------------------------------------------------------------------------------------


def test_scattered_laws_are_gathered_and_duplicates_are_kept(tmp_path: Path, index_dir: Path) -> None:
    source = write(
        tmp_path / "a.jsonl",
        *(record(law, number) for law, number in (("甲", 2), ("乙", 1), ("甲", 1), ("乙", 1), ("甲", 2))),
    )
    report = build_index([SourceSpec(source, "a", ())], index_dir, None)
    assert [row[1:3] for row in rows(index_dir)] == [
        ("甲", "2"),
        ("甲", "1"),
        ("甲", "2"),
        ("乙", "1"),
        ("乙", "1"),
    ]
    assert (report.num_docs, report.num_laws) == (5, 2)


def test_rows_are_ordered_by_tags_then_corpus_then_law(tmp_path: Path, index_dir: Path) -> None:
    tagged = {**record("丁", 1), "tags": ["x"]}
    first = write(tmp_path / "first.jsonl", record("甲", 1), tagged, record("乙", 1))
    second = write(tmp_path / "second.jsonl", record("甲", 1), {**record("丁", 2), "tags": ["x", "y"]})
    build_index([SourceSpec(first, "b", ()), SourceSpec(second, "a", ("x",))], index_dir, None)
    assert rows(index_dir) == [
        ("b", "甲", "1", ()),
        ("b", "乙", "1", ()),
        ("b", "丁", "1", ("x",)),
        ("a", "甲", "1", ("x",)),
        ("a", "丁", "2", ("x", "y")),
    ]


def test_only_articles_of_a_wanted_tag_are_taken(tmp_path: Path, index_dir: Path) -> None:
    source = write(tmp_path / "a.jsonl", record("甲", 1), {**record("乙", 1), "tags": ["x"]})
    build_index([SourceSpec(source, "a", ("own",), only_tags=("x", "y"))], index_dir, None)
    assert rows(index_dir) == [("a", "乙", "1", ("own", "x"))]


# --- incremental -------------------------------------------------------------------------------------------------------


def test_nothing_is_written_when_nothing_changed(index_dir: Path, laws: Path, reads: list[str]) -> None:
    first = build_index([SourceSpec(laws, "laws", ())], index_dir, None)
    before = {path: path.stat().st_mtime_ns for path in index_dir.rglob("*") if path.is_file()}
    second = build_index([SourceSpec(laws, "laws", ())], index_dir, None)
    assert (first.changed, second.changed) == (True, False)
    assert (second.added, second.removed, second.unchanged) == (0, 0, 3)
    assert {path: path.stat().st_mtime_ns for path in index_dir.rglob("*") if path.is_file()} == before
    assert reads == ["laws.jsonl"]


def test_only_the_source_that_changed_is_read_again(
    index_dir: Path, laws: Path, codes: Path, reads: list[str]
) -> None:
    specs = [SourceSpec(laws, "laws", ("t",)), SourceSpec(codes, "codes", ())]
    build_index(specs, index_dir, None)
    write(codes, record("丙规范", "1.0.1"), record("丙规范", "1.0.2"))
    report = build_index(specs, index_dir, None)
    assert reads == ["laws.jsonl", "codes.jsonl", "codes.jsonl"]
    assert (report.added, report.removed, report.unchanged) == (1, 0, 4)
    assert [(corpus.name, corpus.reused) for corpus in report.corpora] == [("laws", True), ("codes", False)]
    fresh = build_index(specs, index_dir.with_name("fresh"), None)
    assert fresh.fingerprint == report.fingerprint


@pytest.mark.parametrize(
    "again",
    [
        lambda laws: SourceSpec(laws, "laws", ("new",)),
        lambda laws: SourceSpec(laws, "other", ()),
        lambda laws: SourceSpec(laws.rename(laws.with_suffix(".ndjson")), "renamed", ()),
    ],
)
def test_other_tags_or_another_name_read_the_source_again(
    index_dir: Path, laws: Path, reads: list[str], again: Callable[[Path], SourceSpec]
) -> None:
    build_index([SourceSpec(laws, "laws", ())], index_dir, None)
    assert build_index([again(laws)], index_dir, None).changed
    assert len(reads) == 2


def test_a_source_left_out_is_removed_and_one_with_changed_text_counts_twice(
    index_dir: Path, laws: Path, codes: Path
) -> None:
    build_index([SourceSpec(laws, "laws", ()), SourceSpec(codes, "codes", ())], index_dir, None)
    write(laws, record("甲法", 1), record("甲法", 2, "改动后的条文。"), record("乙法", 1))
    report = build_index([SourceSpec(laws, "laws", ())], index_dir, None)
    assert (report.added, report.removed, report.unchanged) == (1, 2, 2)


def test_force_reads_everything_and_gives_the_same_fingerprint(
    index_dir: Path, laws: Path, reads: list[str]
) -> None:
    specs = [SourceSpec(laws, "laws", ())]
    first = build_index(specs, index_dir, None)
    second = build_index(specs, index_dir, None, force=True)
    assert len(reads) == 2
    assert first.fingerprint == second.fingerprint
    assert second.changed


def test_changing_back_and_forth_keeps_the_previous_generation_and_no_older_one(
    index_dir: Path, laws: Path
) -> None:
    specs = [SourceSpec(laws, "laws", ())]
    names = []
    for number in range(4):
        write(laws, record("甲法", number))
        names.append(build_index(specs, index_dir, None).fingerprint)
    build_index(specs, index_dir, None, force=True)
    kept = {path.name for path in index_dir.iterdir()}
    assert kept == {"current", ".lock", names[-1], names[-2]}
    write(laws, record("甲法", 2))
    assert build_index(specs, index_dir, None).fingerprint == names[2]
    assert current_fingerprint(index_dir) == names[2]


def test_a_damaged_index_is_rebuilt_beside_itself_from_all_sources(
    index_dir: Path, laws: Path, reads: list[str]
) -> None:
    specs = [SourceSpec(laws, "laws", ())]
    first = build_index(specs, index_dir, None)
    articles = index_dir / first.fingerprint / "articles.jsonl"
    articles.write_bytes(articles.read_bytes().replace("验收".encode(), "检查".encode(), 1))
    report = build_index(specs, index_dir, None)
    assert report.fingerprint == f"{first.fingerprint}.1"
    assert "articles.jsonl" in report.notes[0]
    assert len(reads) == 2
    assert len(rows(index_dir)) == 3
    assert not build_index(specs, index_dir, None).changed


def test_a_pointer_that_names_nothing_is_repaired_by_building(index_dir: Path, laws: Path) -> None:
    specs = [SourceSpec(laws, "laws", ())]
    name = build_index(specs, index_dir, None).fingerprint
    (index_dir / "current").write_text("../evil")
    report = build_index(specs, index_dir, None)
    assert report.fingerprint == name
    assert report.notes
    assert len(rows(index_dir)) == 3


# --- bad rows and sources ------------------------------------------------------------------------------------------------


def test_bad_rows_stop_the_build_and_the_old_index_stands(index_dir: Path, laws: Path) -> None:
    specs = [SourceSpec(laws, "laws", ())]
    name = build_index(specs, index_dir, None).fingerprint
    write(laws, record("甲法", 1), *({"law_name": "", "contents": "x"} for _ in range(30)))
    with pytest.raises(RowsInvalid) as caught:
        build_index(specs, index_dir, None)
    assert caught.value.count == 30
    assert [row.place for row in caught.value.rows] == [f"{laws}:{line}" for line in range(2, 22)]
    assert "另有 10 行" in str(caught.value)
    assert current_fingerprint(index_dir) == name
    assert sorted(path.name for path in index_dir.iterdir()) == sorted([".lock", "current", name])


def test_skipped_rows_need_consent_each_time(index_dir: Path, laws: Path) -> None:
    specs = [SourceSpec(laws, "laws", ())]
    write(laws, record("甲法", 1), {"law_name": ""})
    report = build_index(specs, index_dir, None, skip_invalid=True)
    assert (report.num_docs, report.num_bad_rows, report.corpora[0].skipped) == (1, 1, 1)
    again = build_index(specs, index_dir, None, skip_invalid=True)
    assert (again.changed, again.corpora[0].skipped) == (False, 1)
    with pytest.raises(RowsInvalid):
        build_index(specs, index_dir, None)


def test_sources_without_a_name_of_their_own_or_without_articles_are_refused(
    tmp_path: Path, index_dir: Path, laws: Path
) -> None:
    for specs, reason in (
        ([], "没有给出"),
        ([SourceSpec(laws, "a", ()), SourceSpec(laws, "a", ())], "重复"),
        ([SourceSpec(laws, "a/b", ())], "语料名"),
        ([SourceSpec(write(tmp_path / "empty.jsonl"), "a", ())], "没有任何条文"),
        ([SourceSpec(tmp_path / "absent.jsonl", "a", ())], "不存在"),
    ):
        with pytest.raises(SourceInvalid, match=reason):
            build_index(specs, index_dir, None)
    assert current_fingerprint(index_dir) is None


@pytest.mark.parametrize(
    ("text", "path", "corpus", "tags"),
    [
        ("a.jsonl", "a.jsonl", "a", ()),
        ("dir/a.csv.gz", "dir/a.csv.gz", "a", ()),
        ("国标=dir/a.csv#b,a", "dir/a.csv", "国标", ("a", "b")),
        ("a.csv#常用", "a.csv", "a", ("常用",)),
        ("./x=y.csv", "./x=y.csv", "x=y", ()),
    ],
)
def test_a_source_is_named_and_tagged_on_the_command_line(
    text: str, path: str, corpus: str, tags: tuple[str, ...]
) -> None:
    assert parse_source_spec(text) == SourceSpec(Path(path), corpus, tags)


def test_a_path_that_exists_is_taken_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a=b.csv", "a#b.csv"):
        Path(name).touch()
        assert parse_source_spec(name).path == Path(name)
    assert parse_source_spec("x=a#b.csv#t") == SourceSpec(Path("a#b.csv"), "x", ("t",))


@pytest.mark.parametrize("text", ["", "a=", "a=#t", "a.csv#b c/d"])
def test_a_source_without_a_path_or_with_bad_tags_is_refused(text: str) -> None:
    with pytest.raises(SourceInvalid):
        parse_source_spec(text)


# --- the lock and the disk -------------------------------------------------------------------------------------------------


def test_two_builds_at_once_are_refused_and_a_killed_one_blocks_nobody(index_dir: Path, laws: Path) -> None:
    specs = [SourceSpec(laws, "laws", ())]
    with build_lock(index_dir), pytest.raises(IndexBusy):
        build_index(specs, index_dir, None)
    assert build_index(specs, index_dir, None).changed


FULL_DISK = """
import resource, sys
from pathlib import Path
from cg_rag.index.build import SourceSpec, build_index
from cg_rag.index.errors import BuildFailed
from cg_rag.index.store import IndexReader
source, index_dir = Path(sys.argv[1]), Path(sys.argv[2])
name = IndexReader.open(index_dir).fingerprint
source.write_text(source.read_text("utf-8").replace("甲法", "丁法"), "utf-8")
failed = 0
for limit in [*range(0, 4000, 61), *range(4000, 40000, 999)]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        build_index([SourceSpec(source, "laws", ())], index_dir, None)
    except BuildFailed as error:
        assert "文件大小超出限制" in str(error), error
        failed += 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    reader = IndexReader.open(index_dir)
    assert reader.verify() == []
    if reader.fingerprint != name:
        break
    assert sorted(path.name for path in index_dir.iterdir()) == sorted([".lock", "current", name]), limit
else:
    raise SystemExit("never enough room")
assert failed > 20, failed
"""


def run_python(code: str, *arguments: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        # -B: a byte code file that a limit on sizes cuts off would be there for whoever imports the module next.
        [sys.executable, "-B", "-c", code, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_disk_that_is_full_at_any_size_of_file_leaves_the_old_index(
    tmp_path: Path, index_dir: Path
) -> None:
    laws = write(tmp_path / "laws.jsonl", *(record("甲法", number) for number in range(60)))
    build_index([SourceSpec(laws, "laws", ())], index_dir, None)
    outcome = run_python(FULL_DISK, laws, index_dir)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 200 KiB."""
    point = tmp_path / "disk"
    point.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(point)]
    try:
        mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("this user may not mount; the limit on file sizes is tested above")
    yield point
    subprocess.run(["umount", str(point)], check=True)


def test_a_full_file_system_fails_with_one_sentence_and_keeps_the_old_index(
    tmp_path: Path, small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index_dir = small_disk / "index"
    laws = write(tmp_path / "laws.jsonl", record("甲法", 1))
    name = build_index([SourceSpec(laws, "laws", ())], index_dir, None).fingerprint
    write(laws, *(record("甲法", number, "很长的条文。" * 50) for number in range(300)))
    assert command("build", index_dir, str(laws)) == 1
    assert "磁盘空间不足" in capsys.readouterr().err
    assert sorted(path.name for path in index_dir.iterdir()) == sorted([".lock", "current", name])
    assert IndexReader.open(index_dir).verify() == []


def test_a_place_where_no_directory_can_be_made_is_an_error_of_one_sentence(
    tmp_path: Path, laws: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("build", laws / "index", str(laws)) == 1
    assert "无法" in capsys.readouterr().err


# --- commands --------------------------------------------------------------------------------------------------------------

COMMANDS = {
    "build": (add_build_arguments, run_build),
    "info": (add_info_arguments, run_info),
    "verify": (add_verify_arguments, run_verify),
}


def command(name: str, index_dir: Path, *words: str) -> int:
    add_arguments, run = COMMANDS[name]
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args(words), index_dir)


def test_build_info_and_verify_tell_their_story_in_chinese(
    tmp_path: Path, index_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "sources"
    folder.mkdir()
    write(folder / "a.jsonl", record("甲法", 1), {"law_name": "", "contents": "x"})
    (folder / "scan.pdf").touch()
    source = f"库={folder}#t"
    assert command("build", index_dir, source) == 2
    assert f"{folder / 'a.jsonl'}:2：law_name 为空" in capsys.readouterr().err
    assert command("build", index_dir, source, "--skip-invalid") == 0
    out = capsys.readouterr().out
    for expected in ("scan.pdf", "a.jsonl:2", "库：1 条", "跳过 1 行", "索引已构建", "新增 1"):
        assert expected in out
    assert command("build", index_dir, source, "--skip-invalid") == 0
    assert "没有变化" in capsys.readouterr().out
    assert command("info", index_dir) == 0
    assert "语料 库：1 条，来自 sources，标签 t" in capsys.readouterr().out
    assert command("verify", index_dir) == 0
    assert "索引完好" in capsys.readouterr().out


def test_json_output_is_data(index_dir: Path, laws: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def output(name: str, *words: str) -> tuple[int, dict[str, Any]]:
        code = command(name, index_dir, *words, "--json")
        return code, json.loads(capsys.readouterr().out)

    code, report = output("build", str(laws))
    assert (code, report["ok"], report["num_docs"], report["added"]) == (0, True, 3, 3)
    code, info = output("info")
    assert (code, info["num_docs"], info["fingerprint"]) == (0, 3, report["fingerprint"])
    assert info["corpora"][0]["path"] == "laws.jsonl"
    assert output("verify") == (0, {"ok": True, "fingerprint": report["fingerprint"], "damages": []})
    path = index_dir / report["fingerprint"] / "articles.jsonl"
    path.write_bytes(path.read_bytes().replace("乙法1".encode(), "乙法2".encode()))
    code, damaged = output("verify")
    assert (code, damaged["ok"]) == (1, False)
    assert damaged["damages"][0]["laws"] == ["乙法"]
    write(laws, {"law_name": 3})
    code, failed = output("build", str(laws))
    assert (code, failed["ok"], failed["num_bad_rows"]) == (2, False, 1)


def build_with(index_dir: Path, make_embedder: Callable[[], Any], *words: str) -> int:
    parser = argparse.ArgumentParser()
    add_build_arguments(parser)
    return run_build(parser.parse_args(words), index_dir, make_embedder)


def test_vectors_are_made_and_told_of_and_left_out_on_request(
    index_dir: Path, laws: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build_with(index_dir, toy_embedder, str(laws)) == 0
    assert "向量：生成 3 条，沿用 0 条，用时" in capsys.readouterr().out
    write(laws, record("甲法", 1), record("甲法", 3))
    assert build_with(index_dir, toy_embedder, str(laws)) == 0
    assert "向量：生成 1 条，沿用 1 条" in capsys.readouterr().out
    assert command("info", index_dir) == 0
    out = capsys.readouterr().out
    for expected in (f"toy，{DIM} 维", "CPU 类别 endpoint", "完整向量 0.0 MB"):
        assert expected in out
    assert build_with(index_dir, lambda: pytest.fail("not to be opened"), str(laws), "--no-vectors") == 0
    assert "不再保留" in capsys.readouterr().out
    assert command("info", index_dir) == 0
    assert "向量：无" in capsys.readouterr().out


def test_what_each_part_of_an_index_takes_adds_up(
    index_dir: Path, laws: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build_with(index_dir, toy_embedder, str(laws), "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["embedded"], report["reused_vectors"], report["embedding_seconds"] > 0) == (3, 0, True)
    assert command("info", index_dir, "--json") == 0
    info = json.loads(capsys.readouterr().out)
    parts = info["bytes_of_parts"]
    assert parts["scan"] == 3 * (DIM + 4) + 4 * DIM
    assert parts["full"] == 3 * (2 * DIM + 4)
    manifest = index_dir / info["fingerprint"] / "manifest.json"
    assert sum(parts.values()) == info["bytes_on_disk"] - manifest.stat().st_size
    assert info["embedding"]["model"] == "toy"
    assert (info["dim"], info["dtype"]) == (DIM, "int8+int16")


def test_a_model_that_cannot_be_opened_fails_the_build_in_one_sentence(
    index_dir: Path, laws: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def make_embedder() -> Any:
        raise ModelInvalid("toy", "没有权重")

    assert build_with(index_dir, make_embedder, str(laws)) == 1
    assert capsys.readouterr().err == "模型 toy 不可用：没有权重\n"


def test_a_build_that_is_interrupted_by_hand_says_that_it_can_be_resumed(
    index_dir: Path, laws: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(done: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    model = ToyModel(before=interrupt)
    assert build_with(index_dir, lambda: toy_embedder(model), str(laws)) == 130
    err = capsys.readouterr().err
    assert "再次运行同一命令即可继续" in err
    assert err.count("\n") == 1
    assert build_with(index_dir, toy_embedder, str(laws)) == 0
    out = capsys.readouterr().out
    assert "注意：接着上次中断的构建，已有 2 条向量" in out
    assert "向量：生成 1 条，沿用 2 条" in out


def test_exit_codes_tell_missing_from_damaged_from_wrong_use(
    index_dir: Path, laws: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("info", index_dir) == command("verify", index_dir) == 3
    assert command("build", index_dir, "absent.jsonl") == 2
    assert command("build", index_dir, str(laws)) == 0
    with build_lock(index_dir):
        assert command("build", index_dir, str(laws)) == 1
    (index_dir / str(current_fingerprint(index_dir)) / "laws.json").unlink()
    assert command("info", index_dir) == command("verify", index_dir) == 1
    assert "laws.json" in capsys.readouterr().err


def test_verify_names_the_laws_that_are_hit(
    index_dir: Path, laws: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command("build", index_dir, str(laws))
    path = index_dir / str(current_fingerprint(index_dir)) / "articles.jsonl"
    path.write_bytes(path.read_bytes().replace("乙法1".encode(), "乙法2".encode()))
    assert command("verify", index_dir) == 1
    assert "影响 《乙法》" in capsys.readouterr().err


# --- progress --------------------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_drawn_on_a_terminal_and_sparingly(
    index_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long the build takes here, hardly any time passes for what draws.
    clock = itertools.count(1.0, 0.001)
    monkeypatch.setattr("cg_rag.index.progress.time", SimpleNamespace(monotonic=lambda: next(clock)))
    laws = write(tmp_path / "laws.jsonl", *(record("甲法", number) for number in range(500)))
    terminal = Terminal()
    build_index([SourceSpec(laws, "laws", ())], index_dir, TerminalProgress(terminal))
    text = terminal.getvalue()
    for label in ("读取 laws 500", "建立字面索引", "写入", "500/500 100%"):
        assert label in text
    assert text.count("\r") < 60


def test_progress_says_nothing_to_a_file(index_dir: Path, laws: Path) -> None:
    stream = io.StringIO()
    build_index([SourceSpec(laws, "laws", ())], index_dir, TerminalProgress(stream))
    assert stream.getvalue() == ""
