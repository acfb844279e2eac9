"""ONNX sessions: what a graph declares is what it is fed, and a call can be stopped from another thread.

Rule: this is the only module that imports onnxruntime, and it does so when the first session is opened: a
service without models never pays for the import.
"""

from __future__ import annotations

import importlib
import platform
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cg_rag.index.external_data import list_external_files
from cg_rag.index.model_errors import Cancelled, ModelFailed, ModelInvalid, ModelMissing
from cg_rag.index.models.onnx_writer import ElementType, OnnxWriter

__all__ = [
    "CancelToken",
    "Cancelled",
    "IntegerMatMul",
    "ModelFailed",
    "ModelInvalid",
    "ModelMissing",
    "OnnxSession",
    "TensorSpec",
    "kernel_class",
    "load_runtime",
    "read_cpu_flags",
]

Array = np.ndarray[Any, np.dtype[Any]]

# Memory grows with batch x length, and to the largest shape ever seen: the product is bounded, not a factor.
MAX_CELLS = 8192
PREFERRED_OUTPUTS = ("sentence_embedding", "last_hidden_state", "token_embeddings")
TOKEN_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
DTYPES: dict[str, np.dtype[Any]] = {
    "tensor(int64)": np.dtype(np.int64),
    "tensor(int32)": np.dtype(np.int32),
    "tensor(float)": np.dtype(np.float32),
    "tensor(float16)": np.dtype(np.float16),
}
UNSUPPORTED: np.dtype[Any] = np.dtype(np.void)
SESSION_ENTRIES = {
    "session.intra_op.allow_spinning": "0",  # a spinning pool burns a core between two questions
    "session.inter_op.allow_spinning": "0",
    "session.disable_prepacking": "0",  # prepacking off is 2 to 7 times slower
    "session.load_model_format": "ONNX",  # never guess another format from the bytes
}
# CPUs without VNNI (AVX2, AVX-512 before it) add pairs of int8 products in 16 bits, which overflow, unless the runtime
# takes its slower unsigned kernels. With them the bundled models give the same on every x86-64 CPU, but for roundings.
# It has no effect elsewhere. (onnxruntime_session_options_config_keys.h, session.x64quantprecision)
NO_OVERFLOW = ("session.x64quantprecision", "1")
LOG_FATAL = 4  # every failure arrives as an exception; standard error stays ours
PROBE_SECONDS = 60.0


class _Stoppable(Protocol):
    terminate: bool


# The token of the work that the current context does; a server sets it before it hands a search to a thread.
CURRENT_TOKEN: ContextVar[CancelToken | None] = ContextVar("cancel_token", default=None)


class CancelToken:
    """Stops computations that it was handed to, from any thread, once and for all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = False
        self._running: list[_Stoppable] = []

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            for options in self._running:
                options.terminate = True

    def check(self) -> None:
        """Raise Cancelled when the token is cancelled."""
        if self._cancelled:
            raise Cancelled

    @contextmanager
    def watch(self, options: _Stoppable) -> Iterator[None]:
        """Within the block, cancel() sets `options.terminate`. Raises Cancelled when it came before."""
        with self._lock:
            self.check()
            self._running.append(options)
        try:
            yield
        finally:
            with self._lock:
                self._running.remove(options)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A declared input or output. None in `shape` is an axis that the caller chooses."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]


class OnnxSession:
    """One opened graph. `run` may be called from several threads at once.

    `output` is the declared output that `run` returns: the first of `preferred` that exists, else the first. Only
    that one is computed.
    """

    def __init__(
        self,
        model: Path,
        *,
        threads: int = 1,
        max_cells: int = MAX_CELLS,
        preferred: Sequence[str] = PREFERRED_OUTPUTS,
    ) -> None:
        """Raises ModelMissing, or ModelInvalid with the reason in one sentence."""
        list_external_files(model)
        self.name = model.parent.name + "/" + model.name
        self.max_cells = max_cells
        self._runtime = load_runtime()
        self._failures = _runtime_errors(self._runtime)
        self._session = self._open(model, threads)
        self.inputs = _specs(self._session.get_inputs(), self.name)
        self.outputs = _specs(self._session.get_outputs(), self.name)
        self.output = _choose_output(self.outputs, preferred)
        _check_inputs(self.inputs, self.name)

    def build_feeds(self, ids: Array, mask: Array, type_ids: Array) -> dict[str, Array]:
        """int64 [batch, length] each -> what the graph declares, in its dtypes.

        Raises ValueError above `max_cells`. Positions count real tokens: padding on the left moves nothing.
        """
        if ids.shape != mask.shape or ids.shape != type_ids.shape or ids.ndim != 2:
            raise ValueError(f"shapes differ: {ids.shape}, {mask.shape}, {type_ids.shape}")
        if ids.size > self.max_cells:
            raise ValueError(f"{ids.shape[0]} x {ids.shape[1]} tokens exceed the bound of {self.max_cells}")
        positions = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
        known = dict(zip(TOKEN_INPUTS, (ids, mask, type_ids, positions), strict=True))
        return {
            spec.name: np.ascontiguousarray(known[spec.name], dtype=spec.dtype)
            if spec.name in known
            else _empty_past(spec, len(ids))
            for spec in self.inputs.values()
        }

    def run(self, feeds: Mapping[str, Array], cancel: CancelToken | None = None) -> Array:
        """The chosen output, as the graph computes it. Raises Cancelled, or ModelFailed with a reason."""
        options = self._runtime.RunOptions()
        options.log_severity_level = LOG_FATAL
        token = cancel or CancelToken()
        try:
            with token.watch(options):
                result: Array = self._session.run([self.output.name], dict(feeds), options)[0]
        except self._failures as exc:
            token.check()
            raise ModelFailed(self.name, _first_line(exc)) from exc
        token.check()
        return result

    def _open(self, model: Path, threads: int) -> Any:
        options = _session_options(self._runtime, threads)
        options.add_session_config_entry(*NO_OVERFLOW)
        try:
            return self._runtime.InferenceSession(
                str(model.absolute()), options, providers=["CPUExecutionProvider"]
            )
        except self._failures as exc:
            raise ModelInvalid(str(model), f"运行库无法打开它（{_first_line(exc)}）") from exc


class IntegerMatMul:
    """Dot products of int8 rows with int8 queries, the rows a constant in the runtime's own layout.

    Exact where the CPU adds four products to 32 bits (VNNI and its like); elsewhere pairs of products may be
    cut off at 16 bits, which the caller finds out.
    """

    _SHIFT = 128  # uint8 queries are the fast case: 6 ms become 0.1 ms at 24,000 x 384

    def __init__(self, rows: NDArray[np.int8], threads: int = 1) -> None:
        """`rows` int8 [N, D], of which nothing is kept. Raises ModelInvalid."""
        self.name = "MatMulInteger"
        self._runtime = load_runtime()
        self._failures = _runtime_errors(self._runtime)
        writer = OnnxWriter()
        writer.add_input("query", ElementType.UINT8, ["queries", rows.shape[1]])
        columns = writer.add_constant("rows", rows.T)
        shift = writer.add_constant("shift", np.array(self._SHIFT, np.uint8))
        writer.add_named_node("dots", "MatMulInteger", ["query", columns, shift])
        writer.add_output("dots", ElementType.INT32, ["queries", len(rows)])
        try:
            self._session = self._runtime.InferenceSession(
                writer.encode(), _session_options(self._runtime, threads), providers=["CPUExecutionProvider"]
            )
        except self._failures as exc:
            raise ModelInvalid(self.name, f"运行库无法打开它（{_first_line(exc)}）") from exc

    def __call__(self, queries: NDArray[np.int8]) -> NDArray[np.int32]:
        """int8 [Q, D], -127 .. 127 -> int32 [Q, N]. Raises ModelFailed."""
        shifted = (queries.view(np.uint8) + np.uint8(self._SHIFT)).astype(np.uint8, copy=False)
        try:
            dots: NDArray[np.int32] = self._session.run(["dots"], {"query": shifted})[0]
        except self._failures as exc:
            raise ModelFailed(self.name, _first_line(exc)) from exc
        return dots


def load_runtime(
    flags: frozenset[str] | None = None, probe: Callable[[], bool] | None = None, module: str = "onnxruntime"
) -> Any:
    """The module onnxruntime, or ModelInvalid where it cannot work.

    `flags` are those of the CPU. Builds of the runtime have run AVX code while being loaded, which kills the
    process; so on an x86 CPU without AVX a child process tries first.
    """
    found = read_cpu_flags() if flags is None else flags
    if "sse2" in found and "avx" not in found and not (probe or _probe_runtime)():
        raise ModelInvalid(module, "本机 CPU 没有运行库所需的 AVX 指令集，请改用接口方式或关闭向量检索")
    try:
        return importlib.import_module(module)
    except (ImportError, OSError) as exc:
        raise ModelInvalid(module, f"运行库未安装，或与本机的系统库不兼容（{_first_line(exc)}）") from exc


def read_cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Instruction sets of the first CPU as Linux names them; empty where that file does not exist."""
    try:
        lines = cpuinfo.read_text("utf-8", "replace").splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def kernel_class(flags: frozenset[str] | None = None, machine: str | None = None) -> str:
    """The class of integer kernels that the runtime picks on this CPU: vectors differ between classes (cosine at least
    0.998 for dynamic int8, where another order of adding lets a rounding fall the other way).
    """
    found = read_cpu_flags() if flags is None else flags
    if found & {"avx512_vnni", "avx_vnni"}:
        return "vnni"
    for flag in ("avx512bw", "avx2"):
        if flag in found:
            return flag.removesuffix("bw")
    if (machine or platform.machine()).lower() in ("aarch64", "arm64"):
        return "neon-dotprod" if "asimddp" in found else "neon"
    return "generic"


def runtime_version() -> str:
    """major.minor of the runtime."""
    return ".".join(load_runtime().__version__.split(".")[:2])


def _probe_runtime() -> bool:
    command = [sys.executable, "-c", "import onnxruntime"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=PROBE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return (
        done.returncode >= 0
    )  # negative: killed by a signal; a failing import is reported by the real import


def _runtime_errors(runtime: Any) -> tuple[type[Exception], ...]:
    """The runtime's exceptions have no common base of their own."""
    state = runtime.capi.onnxruntime_pybind11_state
    own = [
        value for value in vars(state).values() if isinstance(value, type) and issubclass(value, Exception)
    ]
    return (*own, RuntimeError, ValueError)


def _session_options(runtime: Any, threads: int) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False  # the arena keeps the largest shape ever seen
    options.enable_mem_pattern = False  # one plan would be kept for every length ever seen
    options.log_severity_level = LOG_FATAL
    for key, value in SESSION_ENTRIES.items():
        options.add_session_config_entry(key, value)
    return options


def _specs(declared: Sequence[Any], name: str) -> dict[str, TensorSpec]:
    specs = {}
    for item in declared:
        dtype = DTYPES.get(item.type, UNSUPPORTED)
        shape = tuple(size if isinstance(size, int) else None for size in item.shape)
        specs[item.name] = TensorSpec(item.name, dtype, shape)
    if not specs:
        raise ModelInvalid(name, "计算图没有声明输入或输出")
    return specs


def _check_inputs(inputs: Mapping[str, TensorSpec], name: str) -> None:
    if "input_ids" not in inputs:
        raise ModelInvalid(name, f"计算图没有输入 input_ids，只有 {'、'.join(inputs)}")
    for spec in inputs.values():
        fits = _is_token_input(spec) if spec.name in TOKEN_INPUTS else _is_past(spec)
        if not fits:
            raise ModelInvalid(
                name, f"不支持计算图的输入 {spec.name}（形状 {spec.shape}，类型 {spec.dtype}）"
            )


def _is_token_input(spec: TensorSpec) -> bool:
    return spec.dtype.kind == "i" and len(spec.shape) == 2


def _is_past(spec: TensorSpec) -> bool:
    """past_key_values.{layer}.key/.value of shape [batch, heads, past length, width], the length free."""
    stem, _, last = spec.name.rpartition(".")
    prefix, _, layer = stem.rpartition(".")
    named = prefix == "past_key_values" and layer.isdecimal() and last in ("key", "value")
    return named and spec.dtype.kind == "f" and len(spec.shape) == 4 and None in spec.shape[1:]


def _empty_past(spec: TensorSpec, batch: int) -> Array:
    """No earlier tokens: the batch first, declared sizes kept, free axes zero."""
    return np.zeros((batch, *(size or 0 for size in spec.shape[1:])), dtype=spec.dtype)


def _choose_output(outputs: Mapping[str, TensorSpec], preferred: Sequence[str]) -> TensorSpec:
    name = next((name for name in preferred if name in outputs), next(iter(outputs)))
    return outputs[name]


def _first_line(exc: BaseException) -> str:
    """The runtime appends stack traces of several lines."""
    return (str(exc).strip().splitlines() or [type(exc).__name__])[0][:300]
