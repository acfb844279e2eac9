from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from cg_rag.core.log_file import LogFile


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord("cg_rag", logging.INFO, __file__, 1, text, (), None)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cg-rag.log"


def test_lines_are_there_as_soon_as_they_are_written(path: Path) -> None:
    log = LogFile(path)
    log.emit(record("一"))
    assert path.read_text("utf-8") == "一\n"
    log.close()


@pytest.mark.parametrize("how", ["rename", "remove", "replace"])
def test_file_that_is_moved_removed_or_replaced_is_opened_again(path: Path, how: str) -> None:
    log = LogFile(path)
    log.emit(record("before"))
    if how == "remove":
        path.unlink()
    else:
        path.rename(path.with_suffix(".1"))
        assert path.with_suffix(".1").read_text() == "before\n"
    if how == "replace":
        path.touch(0o600)
    log.emit(record("after"))
    assert path.read_text() == "after\n"
    log.close()


def test_file_is_appended_to_and_not_readable_by_everybody(path: Path) -> None:
    for _ in range(2):
        log = LogFile(path)
        log.emit(record("x"))
        log.close()
    assert path.read_text() == "x\nx\n"
    assert path.stat().st_mode & 0o007 == 0


def test_file_that_cannot_be_opened_at_first_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LogFile(tmp_path / "none" / "x.log")


def test_folder_that_vanishes_is_told_once_and_then_written_to_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    log = LogFile(folder / "x.log")
    folder.rename(tmp_path / "away")
    log.emit(record("lost"))
    log.emit(record("lost too"))
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "无法写入" in told
    folder.mkdir()
    log.emit(record("back"))
    assert (folder / "x.log").read_text() == "back\n"
    log.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_full_disk_fails_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.log"
    path.symlink_to("/dev/full")
    log = LogFile(path)
    log.emit(record("x"))
    log.emit(record("y"))
    assert capsys.readouterr().err.count("磁盘空间不足") == 1
    path.unlink()
    log.emit(record("z"))
    assert path.read_text() == "z\n"
    log.close()


def test_text_that_is_no_utf_8_is_written_escaped(path: Path) -> None:
    log = LogFile(path)
    log.emit(record("\ud800"))
    assert path.read_text() == "\\ud800\n"
    log.close()
