"""Writes TFLite files for tests: a small flatbuffer writer on the importer's own tables, and models as Python objects.

graph = Graph()
x = graph.input("x", (1, 4), "float32")
y = graph.add("RELU", [x], [Tensor("y", (1, 4))])
data = write([graph.output(y)])
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.frontend.tflite.flatbuffer import fields_of
from tilewright.frontend.tflite.schema import OPERATORS, OPTIONS, OPTIONS_2, TYPES

_SIZES = {kind: struct.calcsize("<" + kind) for kind in "bBhHiIqQfd?"}
_OPTION_NAMES = {
    "ADD": "AddOptions",
    "AVERAGE_POOL_2D": "Pool2DOptions",
    "MAX_POOL_2D": "Pool2DOptions",
    "L2_POOL_2D": "Pool2DOptions",
    "LOGISTIC": "",
    "REDUCE_PROD": "ReducerOptions",
    "REDUCE_MAX": "ReducerOptions",
    "REDUCE_MIN": "ReducerOptions",
    "REDUCE_ANY": "ReducerOptions",
    "REDUCE_ALL": "ReducerOptions",
    "MEAN": "ReducerOptions",
    "SUM": "ReducerOptions",
    "TOPK_V2": "TopKV2Options",
    "L2_NORMALIZATION": "L2NormOptions",
    "UNIDIRECTIONAL_SEQUENCE_RNN": "SequenceRNNOptions",
    "MAXIMUM": "MaximumMinimumOptions",
    "MINIMUM": "MaximumMinimumOptions",
    "PADV2": "PadV2Options",
    "RANDOM_UNIFORM": "RandomOptions",
    "RANDOM_STANDARD_NORMAL": "RandomOptions",
    "MULTINOMIAL": "RandomOptions",
    "CONV_3D_TRANSPOSE": "Conv3DOptions",
    "RELU": "",
    "RELU6": "",
    "TANH": "",
    "STABLEHLO_COMPOSITE": "StableHLOCompositeOptions",
}


def _options_name(operator: str) -> str:
    """The table of an operator's options; empty if it has none."""
    if operator in _OPTION_NAMES:
        return _OPTION_NAMES[operator]
    flat = operator.replace("_", "").lower() + "options"
    return next((name for name in (*OPTIONS, *OPTIONS_2) if name.lower() == flat), "")


class _Flat:
    """A flatbuffer written from front to back: references go to what comes later."""

    def __init__(self) -> None:
        self.data = bytearray(8)

    def align(self, size: int, ahead: int = 0) -> None:
        while (len(self.data) + ahead) % size:
            self.data.append(0)

    def refer(self, place: int) -> None:
        struct.pack_into("<I", self.data, place, len(self.data) - place)

    def table(self, name: str, values: Mapping[str, Any], patch: int) -> None:
        """Write a table and all it refers to; `patch` is the place of the reference to it."""
        kinds = fields_of(name)
        given = [(kinds[key], key, value) for key, value in values.items() if value is not None]
        slots = 1 + max((item[0].slot for item in given), default=-1)
        # Fields by falling size, after the offset of the table of offsets.
        inline = sorted(given, key=lambda item: -_SIZES.get(item[0].kind, 4))
        offsets, at = [0] * slots, 4
        for item, _, _ in inline:
            size = _SIZES.get(item.kind, 4)
            at = -(-at // size) * size
            offsets[item.slot] = at
            at += size
        self.align(2)
        vtable_size = 4 + 2 * slots
        self.align(8, vtable_size)
        vtable = len(self.data)
        self.data += struct.pack(f"<HH{slots}H", vtable_size, at, *offsets)
        start = len(self.data)
        self.refer(patch)
        self.data += bytes(at)
        struct.pack_into("<i", self.data, start, start - vtable)
        later: list[tuple[int, str, Any]] = []
        for item, _, value in inline:
            place = start + offsets[item.slot]
            if item.kind in _SIZES:
                struct.pack_into("<" + item.kind, self.data, place, value)
            else:
                later.append((place, item.kind, value))
        for place, kind, value in later:
            self.reference(place, kind, value)

    def reference(self, place: int, kind: str, value: Any) -> None:
        if kind == "s":
            self.align(4)
            self.refer(place)
            raw = value.encode()
            self.data += struct.pack("<I", len(raw)) + raw + b"\0"
        elif kind.startswith("["):
            self.vector(place, kind[1:-1], value)
        elif kind == "union":
            self.table(value[0], value[1], place)
        else:
            self.table(kind, value, place)

    def vector(self, place: int, kind: str, items: Any) -> None:
        size = _SIZES.get(kind, 4)
        if kind == "B":
            self.align(16, 4)
            self.refer(place)
            self.data += struct.pack("<I", len(items)) + bytes(items)
            return
        self.align(max(size, 4), 4)
        self.refer(place)
        if kind in _SIZES:
            self.data += struct.pack(f"<I{len(items)}{kind}", len(items), *items)
            return
        self.data += struct.pack("<I", len(items)) + bytes(4 * len(items))
        first = len(self.data) - 4 * len(items)
        for at, item in enumerate(items):
            self.reference(first + 4 * at, kind, item)


@dataclass
class Tensor:
    """A tensor to be written; scales and zero points make it a quantised one."""

    name: str
    shape: Sequence[int]
    dtype: str = "float32"
    scale: float | Sequence[float] | None = None
    zero: int | Sequence[int] = 0
    axis: int = 0
    data: np.ndarray | bytes | None = None
    signature: Sequence[int] | None = None
    variable: bool = False
    sparsity: Mapping[str, Any] | None = None


@dataclass
class Operator:
    """An operator to be written."""

    name: str
    inputs: list[int]
    outputs: list[int]
    options: Mapping[str, Any]
    custom: bytes | None = None
    intermediates: Sequence[int] = ()
    version: int = 1


@dataclass
class Graph:
    """A graph to be written: tensors go by their numbers."""

    name: str = "main"
    tensors: list[Tensor] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    operators: list[Operator] = field(default_factory=list)

    def tensor(self, item: Tensor) -> int:
        """Add a tensor; gives its number."""
        self.tensors.append(item)
        return len(self.tensors) - 1

    def input(self, name: str, shape: Sequence[int], dtype: str = "float32", **quantization: Any) -> int:
        """Add an input; gives its number."""
        self.inputs.append(self.tensor(Tensor(name, shape, dtype, **quantization)))
        return self.inputs[-1]

    def constant(self, value: Any, name: str = "", dtype: str | None = None, **quantization: Any) -> int:
        """Add a constant; gives its number."""
        array = np.asarray(value)
        kind = dtype or array.dtype.name
        shape = quantization.pop("shape", array.shape)
        return self.tensor(Tensor(name or f"constant_{len(self.tensors)}", shape, kind, data=array, **quantization))

    def add(
        self,
        name: str,
        inputs: Sequence[int],
        outputs: Sequence[Tensor | int],
        options: Mapping[str, Any] | None = None,
        custom: bytes | None = None,
        **rest: Any,
    ) -> int:
        """Add an operator; gives the number of its first output."""
        places = [item if isinstance(item, int) else self.tensor(item) for item in outputs]
        self.operators.append(Operator(name, list(inputs), places, options or {}, custom, **rest))
        return places[0] if places else -1

    def output(self, *places: int) -> Graph:
        """Say which tensors are results."""
        self.outputs.extend(places)
        return self


def _bytes(tensor: Tensor) -> bytes:
    data = tensor.data
    if isinstance(data, bytes) or data is None:
        return data or b""
    if tensor.dtype == "string":
        texts = [str(item).encode() for item in data.ravel()]
        starts = np.cumsum([4 * (len(texts) + 2), *map(len, texts)])
        return struct.pack(f"<i{len(texts) + 1}i", len(texts), *starts) + b"".join(texts)
    if tensor.dtype in ("int4", "uint4"):
        codes = data.ravel().astype(np.uint8) & 15
        codes = np.append(codes, np.uint8(0)) if codes.size % 2 else codes
        return (codes[::2] | codes[1::2] << 4).tobytes()
    return np.ascontiguousarray(data).tobytes()


def _quantization(tensor: Tensor) -> dict[str, Any] | None:
    if tensor.scale is None:
        return None
    scales = [tensor.scale] if isinstance(tensor.scale, (int, float)) else list(tensor.scale)
    zeros = [tensor.zero] * len(scales) if isinstance(tensor.zero, int) else list(tensor.zero)
    return {"scale": scales, "zero_point": zeros, "quantized_dimension": tensor.axis}


def write(
    graphs: Sequence[Graph],
    signatures: Sequence[Mapping[str, Any]] = (),
    metadata: Mapping[str, bytes] | None = None,
) -> bytes:
    """The bytes of a model."""
    buffers: list[dict[str, Any]] = [{}]
    codes: list[tuple[str, bool, int]] = []
    tables: list[dict[str, Any]] = []
    for graph in graphs:
        tensors: list[dict[str, Any]] = []
        for item in graph.tensors:
            raw = _bytes(item)
            tensors.append(
                {
                    "shape": list(item.shape),
                    "type": TYPES.index(item.dtype),
                    "name": item.name,
                    "buffer": len(buffers) if raw else 0,
                    "quantization": _quantization(item),
                    "is_variable": item.variable,
                    "shape_signature": item.signature,
                    "sparsity": item.sparsity,
                    "has_rank": True,
                }
            )
            if raw:
                buffers.append({"data": raw})
        operators = [_operator(item, codes) for item in graph.operators]
        tables.append(
            {
                "tensors": tensors,
                "inputs": graph.inputs,
                "outputs": graph.outputs,
                "operators": operators,
                "name": graph.name,
            }
        )
    stored = [{"name": name, "buffer": len(buffers) + at} for at, name in enumerate(metadata or {})]
    buffers.extend({"data": raw} for raw in (metadata or {}).values())
    flat = _Flat()
    flat.data[4:8] = b"TFL3"
    flat.table(
        "Model",
        {
            "version": 3,
            "operator_codes": [_code(*item) for item in codes],
            "subgraphs": tables,
            "description": "tests",
            "buffers": buffers,
            "metadata": stored or None,
            "signature_defs": [_signature(item) for item in signatures] or None,
        },
        0,
    )
    return bytes(flat.data)


def _code(name: str, custom: bool, version: int) -> dict[str, Any]:
    number = OPERATORS.index("CUSTOM" if custom else name)
    return {
        "deprecated_builtin_code": min(number, 127),
        "builtin_code": number,
        "custom_code": name if custom else None,
        "version": version,
    }


def _operator(item: Operator, codes: list[tuple[str, bool, int]]) -> dict[str, Any]:
    key = (item.name, item.custom is not None, item.version)
    if key not in codes:
        codes.append(key)
    table = "" if item.custom is not None else _options_name(item.name)
    first = OPTIONS.index(table) if table in OPTIONS else 0
    second = OPTIONS_2.index(table) if table in OPTIONS_2 else 0
    options = dict(item.options)
    if "fused_activation_function" in fields_of(table):
        options.setdefault("fused_activation_function", 0)
    return {
        "opcode_index": codes.index(key),
        "inputs": item.inputs,
        "outputs": item.outputs,
        "builtin_options_type": first,
        "builtin_options": (table, options) if first else None,
        "builtin_options2_type": second or None,
        "builtin_options2": (table, options) if second else None,
        "custom_options": item.custom or None,
        "intermediates": list(item.intermediates) or None,
    }


def _signature(item: Mapping[str, Any]) -> dict[str, Any]:
    maps = {
        key: [{"name": name, "tensor_index": place} for name, place in item[key].items()]
        for key in ("inputs", "outputs")
    }
    return {**maps, "signature_key": item["key"], "subgraph_index": item.get("graph", 0)}
