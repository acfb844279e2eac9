"""`cg-rag prompts pin` on a copy of the program."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server_process import PROGRAM


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the program whose prompts may be changed."""
    for name in ("core", "modes", "index", "prompts"):
        shutil.copytree(
            PROGRAM.parent / name,
            tmp_path / name,
            ignore=shutil.ignore_patterns("__pycache__", "data", "models"),
        )
    for name in ("cg_rag.py", "config.yaml"):
        shutil.copy(PROGRAM.parent / name, tmp_path / name)
    return tmp_path


def pin(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    run = [sys.executable, str(checkout / "cg_rag.py"), "prompts", "pin", *words]
    return subprocess.run(run, capture_output=True, text=True, timeout=300, check=False)


def test_pin_records_a_changed_prompt_and_check_only_tells(checkout: Path) -> None:
    assert pin(checkout).stdout == "提示词文件与 pins.json 一致。\n"
    prompt = checkout / "prompts" / "generate" / "select.txt"
    prompt.write_bytes(prompt.read_bytes() + b"\n")
    pins = (checkout / "prompts" / "pins.json").read_bytes()
    checked = pin(checkout, "--check")
    assert (checked.returncode, checked.stdout) == (1, "generate/select.txt：已改动\n")
    assert (checkout / "prompts" / "pins.json").read_bytes() == pins
    done = pin(checkout)
    assert done.returncode == 0
    assert "generate/select.txt：已改动" in done.stdout
    assert pin(checkout, "--check").returncode == 0


def test_pins_that_are_no_json_are_written_anew(checkout: Path) -> None:
    (checkout / "prompts" / "pins.json").write_text("{", "utf-8")
    assert "pins.json 缺失或不是合法的 JSON" in pin(checkout).stdout
    assert pin(checkout, "--check").returncode == 0
