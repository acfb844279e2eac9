"""`make bench`: the measuring scripts over the data that lies beside the project; skips where it does not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cg_rag.index.corpus import Article

HERE = Path(__file__).resolve().parent
DATA = HERE.parent.parent.parent / "shared" / "data"


def run(script: str, *arguments: object) -> str:
    command = [sys.executable, HERE / script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def article(number: int) -> Article:
    return Article(
        "工地规程",
        f"第{number}条",
        f"第{number}号脚手架须每{number % 30 + 1}日检查一次，由班组{number % 7}负责。",
    )


@pytest.mark.bench
@pytest.mark.parametrize(
    ("corpus", "questions"),
    [
        ("construction/corpus.jsonl.gz", "construction/queries.jsonl"),
        ("stard/corpus.jsonl.gz", "stard/queries.train.jsonl"),
    ],
)
def test_lexical_quality_and_speed(corpus: str, questions: str) -> None:
    if not (DATA / corpus).exists():
        pytest.skip("the data is not beside the project")
    found = run("lexical.py", "--corpus", DATA / corpus, "--queries", DATA / questions)
    print(f"\n{corpus}\n{found}")
    assert "MRR" in found


@pytest.mark.bench
def test_words_beside_their_peers_over_repeated_articles(tmp_path: Path) -> None:
    corpus, questions = tmp_path / "corpus.jsonl", tmp_path / "questions.jsonl"
    rows = [
        {"id": str(number), "law_name": "工地规程", "contents": article(number).contents}
        for number in range(200)
    ]
    corpus.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    asked = [{"query": f"第{number}号脚手架", "relevant": [str(number)]} for number in range(20)]
    questions.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in asked), "utf-8")
    found = run("lexical.py", "--corpus", corpus, "--queries", questions, "--peers", "--rows", 500)
    assert "500 articles, 20 queries" in found
    cells = [cell.strip() for cell in found.split("| ours, plain |")[1].splitlines()[0].split("|")]
    assert cells[4:6] == ["1.000", "1.000"], "overlap with itself, R@10"


@pytest.mark.bench
def test_reranking_at_every_weight(tmp_path: Path) -> None:
    if not (DATA / "construction").exists():
        pytest.skip("the data is not beside the project")
    program = HERE.parent.parent / "cg_rag.py"
    source = f"construction={DATA / 'construction' / 'corpus.jsonl.gz'}"
    build = [sys.executable, program, "index", "build", source, "--index-dir", tmp_path / "index"]
    subprocess.run(list(map(str, build)), capture_output=True, check=True)
    questions = DATA / "construction" / "queries.jsonl"
    found = run("rerank.py", "--index-dir", tmp_path / "index", "--questions", questions)
    rows = [line.split("|") for line in found.splitlines() if line.startswith("| 0.")]
    quality = {cells[1].strip(): (float(cells[2]), float(cells[3])) for cells in rows}
    mrr, recall = quality["0.4"]
    assert mrr >= 0.76
    assert recall >= 0.93
    assert mrr > quality["0.0"][0]


@pytest.mark.bench
def test_vectors_beside_their_peers(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for name, count in (("vectors", 3000), ("queries", 400)):
        made = random.standard_normal((count, 64)).astype(np.float32)
        np.save(tmp_path / f"{name}.npy", made / np.linalg.norm(made, axis=1, keepdims=True))
    found = run("dense.py", "--vectors", tmp_path / "vectors.npy", "--queries", tmp_path / "queries.npy")
    line = next(line for line in found.splitlines() if line.startswith("| numpy int8 + int16 |"))
    recall = [float(cell) for cell in line.split("|")[6:8]]
    assert min(recall) >= 0.999


@pytest.mark.bench
def test_everything_in_one_table(tmp_path: Path) -> None:
    """The demo's own small corpus would say nothing: as many articles as three laws have, all of it made here."""
    source, index_dir = tmp_path / "source.jsonl", tmp_path / "index"
    rows = [
        {"law_name": one.law_name, "article_number": one.article_number, "contents": one.contents}
        for one in map(article, range(1, 301))
    ]
    source.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    questions = tmp_path / "questions.jsonl"
    asked = [{"query": f"第{number}号脚手架多久检查一次"} for number in range(1, 401)]
    questions.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in asked), "utf-8")
    program = HERE.parent.parent / "cg_rag.py"
    build = [sys.executable, program, "index", "build", f"made={source}", "--index-dir", index_dir]
    subprocess.run(list(map(str, build)), capture_output=True, check=True)
    found = run("retrieval.py", "--index-dir", index_dir, "--questions", questions)
    for name in ("whole search call, numpy, warm, p50", "first answer after start", "numpy R@50"):
        assert f"| {name} |" in found
