"""`make bench`: the measuring scripts over the data that lies beside the project; skips where it does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
DATA = HERE.parent.parent.parent / "shared" / "data"


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
    command = [sys.executable, HERE / "lexical.py", "--corpus", DATA / corpus, "--queries", DATA / questions]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    print(f"\n{corpus}\n{done.stdout}")
    assert "MRR" in done.stdout
