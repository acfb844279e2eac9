"""The files that an ONNX model keeps its weights in, found before a runtime opens any of them.

Rule: a model reads nothing outside its own folder. The runtime follows whatever location the graph names, so
the graph is walked here first: every tensor at every depth, by the field numbers of the public onnx.proto.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

from cg_rag.index.model_errors import ModelInvalid, ModelMissing

MAX_DEPTH = 64  # Loop and If nest graphs; no exporter nests this deep, a hostile file might.
MAX_VARINT_BYTES = 10  # protobuf: 64 bits in groups of 7
MAX_TAG = (1 << 32) - 1

# message -> field number -> message inside it; what is not listed cannot hold a tensor.
SUBMESSAGES: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse_tensor"},
    "node": {5: "attribute"},
    "attribute": {
        5: "tensor",
        6: "graph",
        10: "tensor",
        11: "graph",
        22: "sparse_tensor",
        23: "sparse_tensor",
    },
    "sparse_tensor": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "entry": {},
}
GRAPH = 7  # of the model
FIXED_BYTES = {1: 8, 5: 4}
LENGTH_DELIMITED = 2


class _Malformed(ValueError):
    pass


def list_external_files(model: Path) -> list[Path]:
    """The distinct external data files of the ONNX file `model`, each a regular file inside its folder.

    Raises ModelMissing when `model` or a data file is absent, and ModelInvalid when the file is no ONNX model
    or names a location that is absolute, climbs with "..", or leaves the folder through a link.
    """
    try:
        with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if not any(number == GRAPH for number, *_ in _fields(data, 0, len(data))):
                raise _Malformed("no graph")
            locations = set(_walk(data, 0, len(data), "model", 0))
    except (_Malformed, UnicodeDecodeError, ValueError) as exc:  # ValueError: an empty file cannot be mapped
        raise ModelInvalid(str(model), "文件不是完整的 ONNX 模型") from exc
    except OSError as exc:
        raise ModelMissing(str(model)) from exc
    return [check_inside(model.parent, location) for location in sorted(locations)]


def check_inside(folder: Path, location: str) -> Path:
    """`folder / location` when it is a regular file inside the folder, else ModelInvalid or ModelMissing."""
    parts = Path(location).parts
    if not parts or "\\" in location or "\0" in location or Path(location).is_absolute() or ".." in parts:
        raise ModelInvalid(str(folder), f"文件位置 {location!r} 不在模型目录之内")
    path = folder / location
    try:
        inside = path.resolve().is_relative_to(folder.resolve())
    except (RuntimeError, OSError) as error:  # a link to itself: RuntimeError before Python 3.13
        raise ModelInvalid(str(folder), f"文件 {location} 的链接无法解析") from error
    if not inside:
        raise ModelInvalid(str(folder), f"文件 {location} 经链接指向模型目录之外，请把文件本身放入目录")
    if not path.is_file():
        raise ModelMissing(str(path))
    return path


def _walk(data: mmap.mmap, start: int, stop: int, message: str, depth: int) -> Iterator[str]:
    """Every external location below one message."""
    if depth > MAX_DEPTH:
        raise _Malformed("nested too deeply")
    if message == "entry":
        yield from _location(data, start, stop)
        return
    inner = SUBMESSAGES[message]
    for number, wire, first, last in _fields(data, start, stop):
        if wire == LENGTH_DELIMITED and number in inner:
            yield from _walk(data, first, last, inner[number], depth + 1)


def _location(data: mmap.mmap, start: int, stop: int) -> Iterator[str]:
    """The value of a key/value entry whose key is "location". Repeated fields: the last one counts."""
    entry = {
        number: data[first:last] for number, wire, first, last in _fields(data, start, stop) if wire == 2
    }
    if entry.get(1) == b"location":
        yield entry.get(2, b"").decode("utf-8")


def _fields(data: mmap.mmap, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """(field number, wire type, first byte, byte after the last) of each field; weights are not read."""
    position = start
    while position < stop:
        tag, position = _varint(data, position, stop)
        if tag > MAX_TAG:
            # protobuf cuts a tag to 32 bits and would read another field than this walk.
            raise _Malformed("tag above 32 bits")
        wire = tag & 7
        if wire == 0:
            _, last = _varint(data, position, stop)
        elif wire == LENGTH_DELIMITED:
            length, position = _varint(data, position, stop)
            last = position + length
        elif wire in FIXED_BYTES:
            last = position + FIXED_BYTES[wire]
        else:
            raise _Malformed(f"wire type {wire}")
        if last > stop:
            raise _Malformed("field longer than its message")
        yield tag >> 3, wire, position, last
        position = last


def _varint(data: mmap.mmap, position: int, stop: int) -> tuple[int, int]:
    """(value, position after it)."""
    value = 0
    for shift in range(MAX_VARINT_BYTES):
        if position >= stop:
            break
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, position
    raise _Malformed("varint without an end")
