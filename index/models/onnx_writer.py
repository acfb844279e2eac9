"""Writes ONNX models: graph, constants inside or beside the file, and nothing that depends on the machine.

Rule: the same calls give the same bytes. Names are counted, fields are in the order of the calls, and no time
or host is written. The format is protobuf, with the field numbers of the public onnx.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Attribute = float | int | str | Sequence[int]

IR_VERSION = 10
OPSETS = {"": 21, "com.microsoft": 1}
MICROSOFT = "com.microsoft"
PAGE_BYTES = 4096  # the runtime maps external data instead of copying it when it begins on a page
MIN_EXTERNAL_BYTES = 1024


class ElementType(IntEnum):
    """TensorProto.DataType."""

    FLOAT = 1
    UINT8 = 2
    INT8 = 3
    INT32 = 6
    INT64 = 7
    BOOL = 9
    FLOAT16 = 10
    INT4 = 22


ELEMENT_TYPES = {
    "float32": ElementType.FLOAT,
    "uint8": ElementType.UINT8,
    "int8": ElementType.INT8,
    "int32": ElementType.INT32,
    "int64": ElementType.INT64,
    "bool": ElementType.BOOL,
    "float16": ElementType.FLOAT16,
}


class OnnxWriter:
    """Collects one graph; `save` writes it. With `external_file` (a name beside the model) constants
    of 1 KiB and more go there.
    """

    def __init__(self, external_file: str | None = None) -> None:
        self._external_file = external_file
        self._external = bytearray()
        self._nodes: list[bytes] = []
        self._constants: list[bytes] = []
        self._inputs: list[bytes] = []
        self._outputs: list[bytes] = []
        self._num_values = 0

    def add_input(self, name: str, element_type: ElementType, shape: Sequence[int | str]) -> str:
        """A str in `shape` names an axis that the caller chooses. Returns `name`."""
        self._inputs.append(_value_info(name, element_type, shape))
        return name

    def add_output(self, name: str, element_type: ElementType, shape: Sequence[int | str]) -> None:
        """`name` is what some node gives."""
        self._outputs.append(_value_info(name, element_type, shape))

    def add_constant(
        self,
        name: str,
        values: Array,
        element_type: ElementType | None = None,
        shape: Sequence[int] | None = None,
    ) -> str:
        """Store `values` under `name`, which is returned. Packed int4 differs from its array in both."""
        raw = np.ascontiguousarray(values).tobytes()
        kind = element_type or ELEMENT_TYPES[values.dtype.name]
        dims = values.shape if shape is None else shape
        head = b"".join(_number(1, size) for size in dims) + _number(2, kind) + _bytes(8, name)
        self._constants.append(head + self._place(raw))
        return name

    def add_node(self, op_type: str, inputs: Sequence[str], domain: str = "", **attributes: Attribute) -> str:
        """One operator with one output, whose name is returned. An input "" is left out."""
        return self.add_nodes(op_type, inputs, 1, domain, **attributes)[0]

    def add_nodes(
        self, op_type: str, inputs: Sequence[str], num_outputs: int, domain: str = "", **attributes: Attribute
    ) -> list[str]:
        """One operator with several outputs."""
        outputs = [self.new_name() for _ in range(num_outputs)]
        self._append_node(op_type, inputs, outputs, domain, attributes)
        return outputs

    def add_named_node(
        self, output: str, op_type: str, inputs: Sequence[str], domain: str = "", **attributes: Attribute
    ) -> str:
        """One operator whose output has a name of its own, so that it can be an output of the graph."""
        self._append_node(op_type, inputs, [output], domain, attributes)
        return output

    def new_name(self) -> str:
        """A name that no other value of the graph has."""
        self._num_values += 1
        return f"v{self._num_values - 1}"

    def save(self, model: Path, metadata: Mapping[str, str] | None = None) -> None:
        """Write the model file, and the external file into the same folder."""
        model.write_bytes(self.encode(metadata))
        if self._external_file:
            (model.parent / self._external_file).write_bytes(self._external)

    def encode(self, metadata: Mapping[str, str] | None = None) -> bytes:
        """The bytes of the model file."""
        graph = (
            b"".join(_bytes(1, node) for node in self._nodes)
            + _bytes(2, "g")
            + b"".join(_bytes(5, constant) for constant in self._constants)
            + b"".join(_bytes(11, value) for value in self._inputs)
            + b"".join(_bytes(12, value) for value in self._outputs)
        )
        parts = [_number(1, IR_VERSION), _bytes(2, "cg_rag"), _bytes(7, graph)]
        parts += [_bytes(8, _bytes(1, domain) + _number(2, version)) for domain, version in OPSETS.items()]
        parts += [_bytes(14, _bytes(1, key) + _bytes(2, value)) for key, value in (metadata or {}).items()]
        return b"".join(parts)

    def _append_node(
        self,
        op_type: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        domain: str,
        attributes: Mapping[str, Attribute],
    ) -> None:
        node = b"".join(_bytes(1, name) for name in inputs) + b"".join(_bytes(2, name) for name in outputs)
        node += _bytes(3, f"n{len(self._nodes)}_{op_type}") + _bytes(4, op_type)
        node += b"".join(_bytes(5, _attribute(key, value)) for key, value in attributes.items())
        self._nodes.append(node + (_bytes(7, domain) if domain else b""))

    def _place(self, raw: bytes) -> bytes:
        """The field of a tensor that holds `raw`, or says where in the external file it lies."""
        if not self._external_file or len(raw) < MIN_EXTERNAL_BYTES:
            return _bytes(9, raw)
        self._external += bytes(-len(self._external) % PAGE_BYTES)
        entries = {"location": self._external_file, "offset": len(self._external), "length": len(raw)}
        self._external += raw
        placed = b"".join(
            _bytes(13, _bytes(1, key) + _bytes(2, str(value))) for key, value in entries.items()
        )
        return placed + _number(14, 1)


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # negative numbers are ten bytes of two's complement
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes | str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _attribute(name: str, value: Attribute) -> bytes:
    """AttributeProto; field 20 says which of the others holds the value."""
    head = _bytes(1, name)
    if isinstance(value, float):
        return head + _varint(2 << 3 | 5) + struct.pack("<f", value) + _number(20, 1)
    if isinstance(value, int):
        return head + _number(3, value) + _number(20, 2)
    if isinstance(value, str):
        return head + _bytes(4, value) + _number(20, 3)
    return head + b"".join(_number(8, item) for item in value) + _number(20, 7)


def _value_info(name: str, element_type: ElementType, shape: Sequence[int | str]) -> bytes:
    axes = b"".join(
        _bytes(1, _bytes(2, axis) if isinstance(axis, str) else _number(1, axis)) for axis in shape
    )
    return _bytes(1, name) + _bytes(2, _bytes(1, _number(1, element_type) + _bytes(2, axes)))
