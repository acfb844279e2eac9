"""Files as they are found in the wild, through the real command; they are not part of the project."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("CG_RAG_AWKWARD_FILES", ROOT.parent / "shared" / "data" / "awkward"))
MANIFEST = FOLDER / "manifest.json"
ENTRIES: list[dict[str, Any]] = json.loads(MANIFEST.read_text("utf-8")) if MANIFEST.exists() else []

pytestmark = pytest.mark.skipif(not ENTRIES, reason="the files lie outside of the project")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the command reads out of each file, all in one run."""
    index_dir = tmp_path_factory.mktemp("awkward") / "index"
    sources = [f"f{number}={FOLDER / entry['file']}" for number, entry in enumerate(ENTRIES)]
    command = [
        sys.executable,
        "cg_rag.py",
        "index",
        "build",
        *sources,
        "--dry-run",
        "--json",
        "--index-dir",
        index_dir,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert not index_dir.exists()
    return {Path(file["file"]).name: file for file in json.loads(done.stdout)["files"]}


def numbers(file: dict[str, Any]) -> list[str]:
    return [number for law in file["laws"] for number in law["articles"]]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["file"])
def test_a_file_parses_as_its_manifest_says(files: dict[str, dict[str, Any]], entry: dict[str, Any]) -> None:
    expect, file = entry["expect"], files[entry["file"]]
    found = numbers(file)
    assert found, file
    assert file["rejected"] == 0
    if expect.get("whole_document"):
        assert found == ["全文"]
    elif "articles" in expect:
        assert [number for number in found if not number.startswith("附")] == expect["articles"]
    if "articles_include" in expect:
        assert set(expect["articles_include"]) <= set(found)
        assert len(found) == len(set(found))
    if "first_article" in expect:
        assert found[0] == expect["first_article"]
    if "law_name" in expect:
        assert [law["law_name"] for law in file["laws"]] == [expect["law_name"]]
    if expect.get("annex"):
        assert [number for number in found if number.startswith("附件")]


def test_what_the_notes_of_the_manifest_ask_for(files: dict[str, dict[str, Any]]) -> None:
    def first(name: str, number: int = 0) -> dict[str, Any]:
        article: dict[str, Any] = files[name]["laws"][0]["first"][number]
        return article

    assert "①" not in first("02_footnote_and_annex.md")["contents"]
    assert "脚注" in files["02_footnote_and_annex.md"]["reasons"]
    assert numbers(files["08_decision_yi_dun.md"])[:3] == ["一、", "二、", "三、"]
    assert any("U+E723" in note["reason"] for note in files["13_private_use_char.md"]["notes"])
    assert numbers(files["15_annex_glued_to_last_article.json"]) == ["第二十九条", "附表一", "附表二"]
    assert first("15_annex_glued_to_last_article.json")["contents"] == "本法自2018年1月1日起施行。"
    assert first("24_gbk_bytes.txt")["contents"].startswith("为了加强建设工程安全生产监督管理")
    assert files["24_gbk_bytes.txt"]["laws"][0]["law_name"] == "建设工程安全生产管理条例"
    assert first("20_ministry_rule_txt.txt")["chapter"] == "第一章 总则"
