"""From a file or bytes to the plain data of `tilewright.frontend.tflite.model`. No package is needed for it."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.frontend.tflite.flatbuffer import Buffer, Table
from tilewright.frontend.tflite.model import (
    Quantization,
    Signature,
    TfliteGraph,
    TfliteModel,
    TfliteOperator,
    TfliteTensor,
)
from tilewright.frontend.tflite.schema import OPERATORS, OPTIONS, OPTIONS_2, TABLES, TYPES
from tilewright.frontend.tflite.sparse import dense_values
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import DataType
from tilewright.support.errors import UnsupportedError, UserError
from tilewright.support.text import kind_of

MAGIC = b"TFL3"
"""Bytes 4 to 7 of a file."""
_PACKED = {"int4": 4, "uint4": 4, "int2": 2}
"""Types of which several elements share a byte, and their bits."""
_NUMPY_TYPES = {"complex64": "complex64", "complex128": "complex128", "bfloat16": "uint16"}
_NO_DATA = ("resource", "variant")


def looks_like_tflite(head: bytes) -> bool:
    """Whether a file that begins so is one of TFLite."""
    return head[4:8] == MAGIC


def read_model(model: object) -> TfliteModel:
    """Read a path or bytes."""
    if isinstance(model, (bytes, bytearray, memoryview)):
        return _Reader(bytes(model), "the model").model()
    if isinstance(model, (str, os.PathLike)):
        path = Path(os.fspath(model))
        try:
            data = path.read_bytes()
        except FileNotFoundError as error:
            raise UserError(f"there is no file {path}", hint="check the path of the model") from error
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror or error}") from error
        return _Reader(data, str(path)).model()
    raise UserError(f"cannot import a TFLite model from {kind_of(model)}", hint="pass a path or the bytes of a file")


class _Reader:
    """The reading of one file."""

    def __init__(self, data: bytes, source: str) -> None:
        if not looks_like_tflite(data[:8]):
            raise UserError("this is no TFLite model: bytes 4 to 7 are not 'TFL3'", where=source)
        self.source = source
        self.buffer = Buffer(data, source)
        self._buffers: list[Table] = []
        self._codes: list[tuple[str, bool, int]] = []

    def model(self) -> TfliteModel:
        root = self.buffer.root("Model")
        if root.number("version") != 3:
            raise UnsupportedError(f"version {root.number('version')} of the format; 3 is read", where=self.source)
        if root.has("external_buffers") and root.tables("external_buffers"):
            raise UnsupportedError("weights in files of their own are not read", where=self.source)
        self._buffers = root.tables("buffers")
        self._codes = [self._code(item) for item in root.tables("operator_codes")]
        graphs = tuple(self._graph(item, number) for number, item in enumerate(root.tables("subgraphs")))
        if not graphs:
            raise UserError("the model has no graph", where=self.source)
        metadata = {item.text("name"): bytes(self._bytes(item.number("buffer"))) for item in root.tables("metadata")}
        signatures = tuple(self._signature(item, graphs) for item in root.tables("signature_defs"))
        return TfliteModel(self.source, root.text("description"), graphs, signatures, metadata)

    def _code(self, code: Table) -> tuple[str, bool, int]:
        """The name of an operator, whether it is a custom one, and its version."""
        # Codes beyond 127 came later and have a field of their own.
        number = max(code.number("deprecated_builtin_code"), code.number("builtin_code"))
        if not 0 <= number < len(OPERATORS):
            return f"number {number}", False, code.number("version")
        name = OPERATORS[number]
        custom = name == "CUSTOM"
        return (code.text("custom_code") if custom else name), custom, code.number("version")

    def _bytes(self, number: int) -> memoryview:
        if not 0 <= number < len(self._buffers):
            raise self.buffer.damaged(f"it has no buffer {number}")
        table = self._buffers[number]
        if table.number("offset") > 1:
            return self.buffer.part(table.number("offset"), table.number("size"))
        return table.bytes("data")

    def _graph(self, table: Table, number: int) -> TfliteGraph:
        tensors = tuple(self._tensor(item, place) for place, item in enumerate(table.tables("tensors")))
        name = table.text("name") or ("main" if number == 0 else f"subgraph_{number}")
        operators = tuple(self._operator(item, len(tensors)) for item in table.tables("operators"))
        inputs, outputs = (self._places(table.numbers(key), len(tensors), name) for key in ("inputs", "outputs"))
        return TfliteGraph(name, tensors, inputs, outputs, operators)

    def _places(self, numbers: Array, count: int, what: str, least: int = 0) -> tuple[int, ...]:
        places = tuple(int(item) for item in numbers)
        if any(not least <= item < count for item in places):
            raise self.buffer.damaged(f"'{what}' names tensors {places} of {count}")
        return places

    def _operator(self, table: Table, tensors: int) -> TfliteOperator:
        index = table.number("opcode_index")
        if not 0 <= index < len(self._codes):
            raise self.buffer.damaged(f"it has no operator code {index}")
        name, is_custom, version = self._codes[index]
        inputs, outputs, between = (
            self._places(table.numbers(key), tensors, name, -1) for key in ("inputs", "outputs", "intermediates")
        )
        custom = bytes(table.bytes("custom_options"))
        if table.number("large_custom_options_offset") > 1:
            place, size = table.number("large_custom_options_offset"), table.number("large_custom_options_size")
            custom = bytes(self.buffer.part(place, size))
        options = self._options(table, name)
        return TfliteOperator(name, is_custom, version, inputs, outputs, between, options, custom)

    def _options(self, table: Table, operator: str) -> Mapping[str, Any]:
        for number, field, names in (
            (table.number("builtin_options_type"), "builtin_options", OPTIONS),
            (table.number("builtin_options2_type"), "builtin_options2", OPTIONS_2),
        ):
            if number:
                if number >= len(names):
                    raise self.buffer.damaged(f"{operator} has options of the unknown kind {number}")
                options = table.union(field, names[number])
                return {} if options is None or names[number] not in TABLES else options.values()
        return {}

    def _tensor(self, table: Table, place: int) -> TfliteTensor:
        name = table.text("name") or f"tensor_{place}"
        number = table.number("type")
        kind = TYPES[number] if 0 <= number < len(TYPES) else f"number {number}"
        known = kind not in _NO_DATA and number < len(TYPES) and not kind.startswith("complex")
        dtype = DataType.of(kind) if known and number >= 0 else None
        shape = tuple(int(item) for item in table.numbers("shape"))
        if any(size < 0 for size in shape):
            raise self.buffer.damaged(f"the tensor '{name}' has the shape {shape}")
        raw = self._bytes(table.number("buffer"))
        data = self._values(raw, kind, shape, table, name) if len(raw) else None
        if data is None and 0 in shape and dtype is not None and table.number("buffer"):
            data = np.zeros(shape, _numpy_type(kind))
        signature = tuple(int(item) for item in table.numbers("shape_signature"))
        dims: tuple[int | None, ...] | None = shape
        if signature and len(signature) == len(shape) and data is None:
            dims = tuple(None if item < 0 else size for item, size in zip(signature, shape, strict=True))
        quantization = self._quantization(table.table("quantization"), shape, name)
        if quantization is not None and dtype is not None and dtype.is_integer:
            low, high = dtype.min_value(), dtype.max_value()
            if (quantization.zeros < low).any() or (quantization.zeros > high).any() or (quantization.scales < 0).any():
                raise self.buffer.damaged(f"scales or zero points of '{name}' are none of {dtype}")
        return TfliteTensor(name, kind, dtype, dims, data, quantization, bool(table.number("is_variable")))

    def _values(self, raw: memoryview, kind: str, shape: tuple[int, ...], table: Table, name: str) -> Array:
        """The data of a constant."""
        if kind == "string":
            return self._texts(raw, shape, name)
        if kind in _NO_DATA or kind.startswith("number"):
            raise self.buffer.damaged(f"the tensor '{name}' of type {kind} has data")
        sparsity = table.table("sparsity")
        array = _unpacked(raw, _PACKED[kind], kind) if kind in _PACKED else self._array(raw, kind, name)
        if sparsity is not None:
            return dense_values(sparsity, array, shape, name)
        count = math.prod(shape)
        if array.size < count or (kind not in _PACKED and array.size != count):
            raise self.buffer.damaged(f"the tensor '{name}' of shape {shape} has {array.size} elements")
        return array[:count].reshape(shape)

    def _array(self, raw: memoryview, kind: str, name: str) -> Array:
        dtype = np.dtype(_numpy_type(kind)).newbyteorder("<")
        if len(raw) % dtype.itemsize:
            raise self.buffer.damaged(f"the tensor '{name}' has {len(raw)} bytes of {kind}")
        array = np.frombuffer(raw, dtype)
        return array if sys.byteorder == "little" else array.astype(dtype.newbyteorder("="))

    def _texts(self, raw: memoryview, shape: tuple[int, ...], name: str) -> Array:
        """Texts: how many, where each begins and where the last ends, then their bytes."""
        part = Buffer(raw, self.source)
        count = int(part.number("i", 0))
        if count != math.prod(shape) or count < 0:
            raise self.buffer.damaged(f"the tensor '{name}' of shape {shape} has {count} texts")
        part.part(4, 4 * (count + 1))
        places = [int(part.number("i", 4 + 4 * at)) for at in range(count + 1)]
        texts = np.empty(count, object)
        for at in range(count):
            texts[at] = bytes(part.part(places[at], places[at + 1] - places[at])).decode(errors="replace")
        return texts.reshape(shape)

    def _quantization(self, table: Table | None, shape: tuple[int, ...], name: str) -> Quantization | None:
        if table is None:
            return None
        scales, zeros = table.numbers("scale"), table.numbers("zero_point")
        axis = table.number("quantized_dimension")
        if table.number("details_type") == 2:
            return self._blocks(table, name)
        if table.number("details_type"):
            raise UnsupportedError(f"the quantisation of '{name}' is of a kind that is not read", where=self.source)
        if not scales.size:
            return None
        if zeros.size == 0:
            zeros = np.zeros(scales.size, np.int64)
        if zeros.size == 1:
            zeros = np.repeat(zeros, scales.size)
        fits = scales.size == 1 or (0 <= axis < len(shape) and scales.size == shape[axis])
        if zeros.size != scales.size or not fits:
            raise self.buffer.damaged(f"'{name}' of shape {shape} has {scales.size} scales along dimension {axis}")
        if not np.isfinite(scales).all():
            raise UserError(f"a scale of '{name}' is no number", where=self.source)
        return Quantization(scales, zeros, axis)

    def _blocks(self, table: Table, name: str) -> Quantization:
        raise UnsupportedError(f"the scales of '{name}' are those of blocks, which is not read", where=self.source)

    def _signature(self, table: Table, graphs: Sequence[TfliteGraph]) -> Signature:
        key, graph = table.text("signature_key"), table.number("subgraph_index")
        if not 0 <= graph < len(graphs):
            raise self.buffer.damaged(f"the signature '{key}' is of the graph {graph}")
        maps: list[dict[str, int]] = []
        for field in ("inputs", "outputs"):
            maps.append({item.text("name"): item.number("tensor_index") for item in table.tables(field)})
            self._places(np.array(list(maps[-1].values()), np.int64), len(graphs[graph].tensors), key)
        return Signature(key, graph, maps[0], maps[1])


def _numpy_type(kind: str) -> str:
    return _NUMPY_TYPES.get(kind, "uint8" if kind.startswith("float8") else kind)


def _unpacked(raw: memoryview, bits: int, kind: str) -> Array:
    """Integers of few bits, one to a byte: the first in the lowest bits."""
    words = np.frombuffer(raw, np.uint8)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = (words[:, None] >> shifts & ((1 << bits) - 1)).reshape(-1)
    if kind.startswith("u"):
        return codes
    half = 1 << (bits - 1)
    return ((codes.astype(np.int16) + half) % (2 * half) - half).astype(np.int8)
