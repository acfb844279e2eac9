"""What a model file may point at, before any runtime has opened it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cg_rag.index.external_data import check_inside, list_external_files
from cg_rag.index.model_errors import IndexLibraryError, ModelInvalid, ModelMissing
from cg_rag.index.models import E5_SMALL_ZH
from cg_rag.index.models.onnx_writer import ElementType, OnnxWriter
from cg_rag.index.onnx import OnnxSession


def write_model(folder: Path, location: str) -> Path:
    """A graph whose one constant lies at `location`; nothing is written there."""
    folder.mkdir(parents=True, exist_ok=True)
    writer = OnnxWriter("x" * len(location))
    writer.add_input("input_ids", ElementType.INT64, ["batch", "length"])
    writer.add_constant("table", np.zeros((64, 64), np.float32))
    writer.add_named_node("last_hidden_state", "Gather", ["table", "input_ids"])
    writer.add_output("last_hidden_state", ElementType.FLOAT, ["batch", "length", 64])
    model = folder / "model.onnx"
    writer.save(model)
    model.write_bytes(model.read_bytes().replace(b"x" * len(location), location.encode()))
    (folder / ("x" * len(location))).unlink()
    return model


def varint(value: int) -> bytes:
    head = bytearray()
    while value > 0x7F:
        head.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*head, value])


def field(number: int, payload: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def test_the_bundled_model_names_its_data_file() -> None:
    assert [path.name for path in list_external_files(E5_SMALL_ZH / "model.onnx")] == ["model.onnx.data"]


@pytest.mark.parametrize(
    "location",
    [
        "/etc/passwd",
        "../secret.bin",
        "sub/../../secret.bin",
        "..",
        ".",
        "a\\..\\b",
        "link.bin",
        "linked/secret.bin",
    ],
)
def test_a_location_outside_the_folder_is_refused(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret.bin").write_bytes(bytes(64 * 64 * 4))
    model = write_model(tmp_path / "model", location)
    (model.parent / "link.bin").symlink_to(tmp_path / "secret.bin")
    (model.parent / "linked").symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(ModelInvalid, match="目录"):
        list_external_files(model)
    with pytest.raises(ModelInvalid, match="目录"):
        OnnxSession(model)


@pytest.mark.parametrize("location", ["weights.bin", "*/_ORT_MEM_ADDR_/*"])
def test_a_location_that_is_no_file_is_missing(tmp_path: Path, location: str) -> None:
    with pytest.raises(ModelMissing):
        list_external_files(write_model(tmp_path, location))


def test_a_file_in_a_subfolder_and_a_link_inside_the_folder_are_fine(tmp_path: Path) -> None:
    model = write_model(tmp_path, "sub/w.bin")
    (tmp_path / "sub").mkdir()
    (tmp_path / "real.bin").write_bytes(bytes(64 * 64 * 4))
    (tmp_path / "sub" / "w.bin").symlink_to(tmp_path / "real.bin")
    assert list_external_files(model) == [tmp_path / "sub/w.bin"]


@pytest.mark.parametrize(
    "path",
    [
        (7, 5),  # initializer
        (7, 15, 1),  # values of a sparse initializer
        (7, 15, 2),
        (7, 1, 5, 5),  # tensor attribute of a node
        (7, 1, 5, 10),
        (7, 1, 5, 6, 5),  # initializer of a subgraph, as in If and Loop
        (7, 1, 5, 11, 1, 5, 6, 5),
        (25, 7, 5, 5),  # node of a local function
        (20, 1, 5),  # training graph
    ],
)
def test_tensors_are_found_at_every_place_of_the_format(tmp_path: Path, path: tuple[int, ...]) -> None:
    data = field(13, field(1, b"location") + field(2, b"/etc/passwd"))
    for number in reversed(path):
        data = field(number, data)
    model = tmp_path / "model.onnx"
    model.write_bytes(field(7, b"") + data)
    with pytest.raises(ModelInvalid, match="passwd"):
        list_external_files(model)


def test_nesting_without_end_is_refused_and_does_not_exhaust_the_stack(tmp_path: Path) -> None:
    data = b""
    for _ in range(5000):
        data = field(1, field(5, field(6, data)))
    model = tmp_path / "model.onnx"
    model.write_bytes(field(7, data))
    with pytest.raises(ModelInvalid):
        list_external_files(model)


@pytest.mark.parametrize("keep", [0, 1, 10, 100, 5000, 29_000])
def test_a_cut_model_is_one_clear_error(tmp_path: Path, keep: int) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes((E5_SMALL_ZH / "model.onnx").read_bytes()[:keep])
    with pytest.raises(ModelInvalid, match="不是完整的 ONNX 模型"):
        list_external_files(model)


@given(data=st.binary(max_size=300))
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_random_bytes_never_raise_anything_else(tmp_path: Path, data: bytes) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(data)
    with suppress(IndexLibraryError):
        assert all(path.is_relative_to(tmp_path) for path in list_external_files(model))


@given(location=st.text(max_size=30))
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_no_location_leads_out_of_the_folder(tmp_path: Path, location: str) -> None:
    try:
        found = check_inside(tmp_path, location)
    except IndexLibraryError:
        return
    assert found.resolve().is_relative_to(tmp_path.resolve())
