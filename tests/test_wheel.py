"""What is delivered: one top-level name, everything that the service reads, nothing else."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from cg_rag.core.console import PAGE, SCRIPTS, STYLES

ROOT = Path(__file__).resolve().parent.parent
MAX_WHEEL_BYTES = 60 * 1024 * 1024
MODEL_FILES = ("model.onnx", "model.onnx.data", "cg_rag_model.json", "MODEL_CARD.md")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)],
        check=True,
    )
    return next(folder.glob("*.whl"))


@pytest.mark.slow
def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"cg_rag"}
    inside = {name.removeprefix("cg_rag/") for name in names}
    assert {
        "__init__.py",
        "__main__.py",
        "config.yaml",
        "prompts/pins.json",
        *(f"core/console/{name}" for name in (PAGE, *STYLES, *SCRIPTS)),
        "index/sample/handbook.jsonl",
        *(f"index/models/e5-small-zh/{name}" for name in (*MODEL_FILES, "tokenizer.json")),
        *(f"index/models/statute-ce-6l/{name}" for name in MODEL_FILES),
    } <= inside
    assert sum(name.endswith("tokenizer.json") for name in names) == 1, "both models read one vocabulary"
    assert not [name for name in names if "/data/" in name or "test" in name or name.endswith(".pyc")]
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert wheel.stat().st_size < MAX_WHEEL_BYTES


@pytest.mark.slow
def test_building_twice_gives_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--wheel-dir",
            str(tmp_path),
            str(ROOT),
        ],
        check=True,
    )
    assert next(tmp_path.glob("*.whl")).read_bytes() == wheel.read_bytes()


@pytest.mark.slow
def test_installed_wheel_runs(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", str(wheel)], check=True)
    for command in ([str(python.with_name("cg-rag"))], [str(python), "-m", "cg_rag"]):
        done = subprocess.run(
            [*command, "--version"], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert done.stdout.startswith("CG_RAG ")
