"""Sessions: declared inputs, the chosen output, bounds, cancellation, and what is said when nothing fits."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from cg_rag.index.model_errors import Cancelled, ModelFailed, ModelInvalid, ModelMissing
from cg_rag.index.models.onnx_writer import ElementType, OnnxWriter
from cg_rag.index.onnx import CancelToken, OnnxSession, kernel_class, load_runtime, read_cpu_flags
from tests.onnx_fixtures import (
    HEADS,
    WIDTH,
    SignallingToken,
    make_bert,
    make_qwen,
    make_sentence_model,
    make_slow_model,
)

IDS = np.array([[0, 7, 8, 9, 2], [0, 10, 2, 1, 1]], np.int64)
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], np.int64)
TYPES = np.array([[0, 0, 0, 1, 1], [0, 1, 1, 0, 0]], np.int64)


def write_graph(
    folder: Path, inputs: dict[str, tuple[ElementType, list[int | str]]], output: str = "logits"
) -> Path:
    """A graph with the given inputs; the output is the first of them as float."""
    writer = OnnxWriter()
    for name, (element_type, shape) in inputs.items():
        writer.add_input(name, element_type, shape)
    writer.add_named_node(output, "Cast", [next(iter(inputs))], to=int(ElementType.FLOAT))
    writer.add_output(output, ElementType.FLOAT, ["batch", "length"])
    writer.save(folder / "model.onnx")
    return folder / "model.onnx"


def test_a_bert_graph_gives_what_numpy_computes(tmp_path: Path) -> None:
    fixture = make_bert(tmp_path / "m")
    session = OnnxSession(fixture.folder / "model.onnx")
    states = session.run(session.build_feeds(IDS, MASK, TYPES))
    assert states.dtype == np.float32
    np.testing.assert_allclose(states, fixture.hidden(IDS, MASK, TYPES), atol=1e-6)


@pytest.mark.parametrize("element_type", [ElementType.FLOAT, ElementType.FLOAT16])
def test_past_key_values_are_empty_and_of_the_declared_shape_and_type(
    tmp_path: Path, element_type: ElementType
) -> None:
    fixture = make_qwen(tmp_path / "m", element_type)
    session = OnnxSession(fixture.folder / "model.onnx")
    feeds = session.build_feeds(IDS, MASK, TYPES)
    past = feeds["past_key_values.0.key"]
    assert past.shape == (2, HEADS, 0, WIDTH)
    assert past.dtype == (np.float32 if element_type is ElementType.FLOAT else np.float16)
    real = MASK.astype(bool)
    expected = fixture.hidden(IDS, MASK, TYPES)
    np.testing.assert_allclose(
        session.run(feeds)[real], expected[real], atol=3e-3 if past.itemsize == 2 else 1e-6
    )


def test_positions_count_real_tokens_from_zero_on_either_side(tmp_path: Path) -> None:
    session = OnnxSession(make_qwen(tmp_path / "m").folder / "model.onnx")
    mask = np.array([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0]], np.int64)
    positions = session.build_feeds(IDS, mask, TYPES)["position_ids"]
    assert positions.tolist() == [[0, 0, 0, 1, 2], [0, 1, 2, 2, 2]]


def test_only_declared_inputs_are_fed_in_their_own_type(tmp_path: Path) -> None:
    model = write_graph(tmp_path, {"input_ids": (ElementType.INT32, ["batch", "length"])})
    session = OnnxSession(model)
    feeds = session.build_feeds(IDS, MASK, TYPES)
    assert {name: value.dtype for name, value in feeds.items()} == {"input_ids": np.dtype(np.int32)}
    assert session.run(feeds).tolist() == IDS.tolist()


def test_the_sentence_embedding_is_chosen_before_the_token_states(tmp_path: Path) -> None:
    session = OnnxSession(make_sentence_model(tmp_path / "m").folder / "model.onnx")
    assert list(session.outputs) == ["last_hidden_state", "sentence_embedding"]
    assert session.output.name == "sentence_embedding"


def test_an_output_of_another_name_is_taken_when_it_is_the_first(tmp_path: Path) -> None:
    session = OnnxSession(
        write_graph(tmp_path, {"input_ids": (ElementType.INT64, ["batch", "length"])}, "logits")
    )
    assert session.output.name == "logits"


@pytest.mark.parametrize(
    ("name", "element_type", "shape"),
    [
        ("use_cache_branch", ElementType.BOOL, [1]),
        ("pixel_values", ElementType.FLOAT, ["batch", 3, 8, 8]),
        ("attention_mask", ElementType.FLOAT, ["batch", "length"]),
        ("token_type_ids", ElementType.INT64, ["length"]),
        ("past_key_values.0.key", ElementType.FLOAT, ["batch", 8, 16, 128]),
        ("past_key_values.0.key", ElementType.INT8, ["batch", 8, "past", 128]),
        ("past_key_values.x.key", ElementType.FLOAT, ["batch", 8, "past", 128]),
    ],
)
def test_an_input_that_cannot_be_filled_is_refused_by_name(
    tmp_path: Path, name: str, element_type: ElementType, shape: list[int | str]
) -> None:
    model = write_graph(
        tmp_path, {"input_ids": (ElementType.INT64, ["batch", "length"]), name: (element_type, shape)}
    )
    with pytest.raises(ModelInvalid, match=name):
        OnnxSession(model)


def test_a_graph_without_input_ids_is_refused(tmp_path: Path) -> None:
    model = write_graph(tmp_path, {"attention_mask": (ElementType.INT64, ["batch", "length"])})
    with pytest.raises(ModelInvalid, match="input_ids"):
        OnnxSession(model)


def test_more_tokens_than_the_bound_are_refused_before_the_runtime_sees_them(tmp_path: Path) -> None:
    session = OnnxSession(make_bert(tmp_path / "m").folder / "model.onnx", max_cells=9)
    with pytest.raises(ValueError, match="2 x 5"):
        session.build_feeds(IDS, MASK, TYPES)


def test_shapes_that_differ_are_refused(tmp_path: Path) -> None:
    session = OnnxSession(make_bert(tmp_path / "m").folder / "model.onnx")
    with pytest.raises(ValueError, match="shapes differ"):
        session.build_feeds(IDS, MASK[:, :3], TYPES)


def test_a_missing_model_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match=r"model\.onnx"):
        OnnxSession(tmp_path / "model.onnx")


def test_a_graph_that_the_runtime_refuses_is_one_sentence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    writer = OnnxWriter()
    writer.add_input("input_ids", ElementType.INT64, ["batch", "length"])
    writer.add_named_node("logits", "NoSuchOperator", ["input_ids"])
    writer.add_output("logits", ElementType.FLOAT, ["batch"])
    writer.save(tmp_path / "model.onnx")
    with pytest.raises(ModelInvalid, match="NoSuchOperator") as caught:
        OnnxSession(tmp_path / "model.onnx")
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""


def test_a_failing_call_names_the_model_and_the_next_one_works(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    session = OnnxSession(make_bert(tmp_path / "bert").folder / "model.onnx")
    outside = np.full_like(IDS, 10_000)
    with pytest.raises(ModelFailed, match=r"bert/model\.onnx"):
        session.run(session.build_feeds(outside, MASK, TYPES))
    assert session.run(session.build_feeds(IDS, MASK, TYPES)).shape[:2] == IDS.shape
    assert capfd.readouterr().err == ""


def test_a_running_call_stops_when_another_thread_cancels(tmp_path: Path) -> None:
    session = OnnxSession(make_slow_model(tmp_path / "m").folder / "model.onnx")
    ids = np.ones((1, 512), np.int64)
    feeds = session.build_feeds(ids, ids, ids)
    token, outcome = SignallingToken(), []

    def work() -> None:
        try:
            session.run(feeds, token)
        except Cancelled as exc:
            outcome.append(exc)

    thread = threading.Thread(target=work)
    thread.start()
    assert token.entered.wait(30)
    token.cancel()
    thread.join(30)
    assert not thread.is_alive()
    # Where the runtime had come to its end, nothing would have been raised before the token was looked at.
    assert [type(exc.__context__) in session._failures for exc in outcome] == [True]
    assert token._running == []


def test_a_cancelled_token_starts_nothing_and_a_late_cancel_harms_nobody_else(tmp_path: Path) -> None:
    session = OnnxSession(make_bert(tmp_path / "m").folder / "model.onnx")
    feeds = session.build_feeds(IDS, MASK, TYPES)
    token = CancelToken()
    first = session.run(feeds, token)
    token.cancel()
    with pytest.raises(Cancelled):
        session.run(feeds, token)
    assert np.array_equal(session.run(feeds), first)


def test_threads_share_a_session(tmp_path: Path) -> None:
    session = OnnxSession(make_bert(tmp_path / "m").folder / "model.onnx")
    feeds = session.build_feeds(IDS, MASK, TYPES)
    expected = session.run(feeds)
    equal = []
    threads = [
        threading.Thread(target=lambda: equal.append(np.array_equal(session.run(feeds), expected)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert equal == [True] * 8


def test_importing_the_embedder_does_not_import_the_runtime() -> None:
    code = "import sys, cg_rag.index.embedder; print('onnxruntime' in sys.modules)"
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_runtime_that_cannot_be_imported_is_one_sentence() -> None:
    with pytest.raises(ModelInvalid, match="运行库未安装"):
        load_runtime(module="no_such_runtime")


def test_on_a_cpu_without_avx_a_child_tries_first() -> None:
    old = frozenset({"fpu", "sse2", "sse4_2"})
    with pytest.raises(ModelInvalid, match="AVX"):
        load_runtime(old, lambda: False)
    assert load_runtime(old).InferenceSession
    assert load_runtime(frozenset({"asimd"}), lambda: False).InferenceSession


@pytest.mark.parametrize(
    ("flags", "machine", "expected"),
    [
        ({"sse2", "avx2", "avx512bw", "avx512_vnni"}, "x86_64", "vnni"),
        ({"sse2", "avx2", "avx_vnni"}, "x86_64", "vnni"),
        ({"sse2", "avx2", "avx512bw"}, "x86_64", "avx512"),
        ({"sse2", "avx2"}, "x86_64", "avx2"),
        ({"sse2"}, "x86_64", "generic"),
        ({"asimd", "asimddp"}, "aarch64", "neon-dotprod"),
        ({"asimd"}, "aarch64", "neon"),
        (set(), "riscv64", "generic"),
    ],
)
def test_the_kernel_class_follows_the_flags(flags: set[str], machine: str, expected: str) -> None:
    assert kernel_class(frozenset(flags), machine) == expected


def test_flags_are_read_as_linux_writes_them(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nflags\t\t: fpu avx2 avx_vnni\n\nprocessor\t: 1\nflags\t\t: fpu\n")
    assert read_cpu_flags(file) == {"fpu", "avx2", "avx_vnni"}
    file.write_text("processor\t: 0\nFeatures\t: fp asimd asimddp\n")
    assert read_cpu_flags(file) == {"fp", "asimd", "asimddp"}
    assert read_cpu_flags(tmp_path / "absent") == frozenset()
