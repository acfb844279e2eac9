"""What was paid for is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cg_rag.core.answer_journal import AnswerJournal, JournalUnusable, read_journal

HEAD = {"mode": "answer"}


def record(photo: str, **more: Any) -> dict[str, Any]:
    return {"photo": photo, "sha256": "ab", "question": "", "settled": True, **more}


def test_a_torn_end_costs_its_own_record_only(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with AnswerJournal(path, HEAD, restart=False) as journal:
        journal.append(record("1"))
        journal.append(record("2", payload={"answer": "\ud800 \u2028 \n"}))
    whole = path.read_bytes()
    for length in range(whole.index(b"\n") + 1, len(whole)):
        path.write_bytes(whole[:length])
        with AnswerJournal(path, HEAD, restart=False) as journal:
            journal.append(record("3"))
        assert {key[0] for key in read_journal(path)[1]} >= {"3"}
    path.write_bytes(whole)
    assert read_journal(path)[1]["2", "ab", ""]["payload"] == {"answer": "\ud800 \u2028 \n"}


def test_a_second_writer_another_head_and_a_foreign_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with AnswerJournal(path, HEAD, restart=False), pytest.raises(JournalUnusable, match="正由另一次评测写入"):
        AnswerJournal(path, HEAD, restart=False)
    with pytest.raises(JournalUnusable, match="不同之处：mode"):
        AnswerJournal(path, {"mode": "agentic"}, restart=False)
    path.write_text("图片,等级\n", "utf-8")
    with pytest.raises(JournalUnusable, match="不是视觉评测的记录"):
        AnswerJournal(path, HEAD, restart=False)
    with AnswerJournal(path, HEAD, restart=True) as journal:
        assert journal.records == {}


@given(st.binary())
def test_any_bytes_are_a_journal_or_refused(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.mktemp("journal") / "x.jsonl"
    path.write_bytes(raw)
    with pytest.raises(JournalUnusable):
        read_journal(path)
