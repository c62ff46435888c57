"""Types and attributes in bytecode: those of MLIR itself (locations, lists, mappings) and those of the VHLO dialect."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilewright.frontend.stablehlo.bytes_reader import BytesReader
from tilewright.frontend.stablehlo.literals import from_bytes
from tilewright.frontend.stablehlo.program import Dense, Location, OtherSpec, Spec, Symbol, TensorSpec, TupleSpec
from tilewright.support.errors import UserError

_DYNAMIC = -(1 << 63)
"""How an open dimension is written."""
_ELEMENTS = {
    0: "i1",
    2: "bf16",
    3: "f16",
    4: "f32",
    5: "f64",
    6: "f8E4M3FN",
    7: "f8E5M2",
    9: "index",
    10: "i4",
    11: "i8",
    12: "i16",
    13: "i32",
    14: "i64",
    15: "ui4",
    16: "ui8",
    17: "ui16",
    18: "ui32",
    19: "ui64",
    27: "f8E4M3FNUZ",
    28: "f8E5M2FNUZ",
    29: "f8E4M3B11FNUZ",
    31: "i2",
    32: "ui2",
    34: "tf32",
    35: "f8E4M3",
    36: "f8E3M4",
    37: "f4E2M1FN",
    38: "f6E2M3FN",
    39: "f6E3M2FN",
    40: "f8E8M0FNU",
}
"""Element types of VHLO by their codes."""
_OTHERS = {22: "!stablehlo.token", 26: "!shape.witness", 33: "none"}
_ENUMERATIONS: dict[int, tuple[str, ...]] = {
    3: ("EQ", "NE", "GE", "GT", "LE", "LT"),
    4: ("NOTYPE", "FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED"),
    5: ("UNSPECIFIED", "ORIGINAL", "STATUS_RETURNING", "STATUS_RETURNING_UNIFIED", "TYPED_FFI"),
    7: ("FFT", "IFFT", "RFFT", "IRFFT"),
    11: ("DEFAULT", "HIGH", "HIGHEST"),
    12: ("DEFAULT", "THREE_FRY", "PHILOX"),
    13: ("", "UNIFORM", "NORMAL"),
    16: ("TRANSPOSE_INVALID", "NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"),
    19: ("DEFAULT", "HIGHEST", "TOLERANCE"),
}
_BUILTIN_FLOATS = {3: "bf16", 4: "f16", 5: "f32", 6: "f64"}
_MOST_NESTED = 100


@dataclass(frozen=True, slots=True)
class _Entry:
    """Where an attribute or a type is written."""

    dialect: str
    start: int
    end: int
    is_encoded: bool
    """Whether its dialect encodes it; else it is a text."""


class Entries:
    """The attributes and types of a module, read when they are asked for."""

    def __init__(self, content: BytesReader, offsets: BytesReader, dialects: list[str], strings: list[str]) -> None:
        self.content, self.strings = content, strings
        counts = offsets.number(), offsets.number()
        if max(counts) > offsets.end:
            offsets.fail(f"{max(counts)} attributes or types")
        place = content.at
        tables: list[list[_Entry]] = [[], []]
        for table, count in zip(tables, counts, strict=True):
            while len(table) < count:
                dialect = offsets.number()
                if dialect >= len(dialects):
                    offsets.fail(f"there is no dialect {dialect}")
                for _ in range(offsets.count()):
                    word = offsets.number()
                    end = place + (word >> 1)
                    if end > content.end:
                        offsets.fail("an attribute lies outside of its section")
                    table.append(_Entry(dialects[dialect], place, end, bool(word & 1)))
                    place = end
        self.attributes, self.types = tables
        self._known: dict[tuple[bool, int], Any] = {}
        self._depth = 0

    def type(self, number: int) -> Spec:
        """A type by its number."""
        found: Spec = self._entry(number, True)
        return found

    def attribute(self, number: int) -> Any:
        """An attribute by its number."""
        return self._entry(number, False)

    def location(self, number: int) -> Location | None:
        """A location by its number."""
        found = self._entry(number, False)
        return found if isinstance(found, Location) else None

    def mapping(self, number: int) -> dict[str, Any]:
        """A mapping by its number."""
        found = self._entry(number, False)
        if not isinstance(found, dict):
            raise UserError("a mapping is missing in MLIR bytecode")
        return found

    def _entry(self, number: int, is_type: bool) -> Any:
        key = (is_type, number)
        if key in self._known:
            return self._known[key]
        table = self.types if is_type else self.attributes
        if number >= len(table):
            raise UserError(f"the MLIR bytecode has no {'type' if is_type else 'attribute'} {number}")
        self._depth += 1
        if self._depth > _MOST_NESTED:
            raise UserError("attributes of the MLIR bytecode are nested too deeply")
        found = self._read(table[number], is_type)
        self._depth -= 1
        self._known[key] = found
        return found

    def _read(self, entry: _Entry, is_type: bool) -> Any:
        reader = BytesReader(self.content.data, entry.start, entry.end)
        if not entry.is_encoded:
            return OtherSpec(reader.text())
        decode: Callable[[BytesReader, int], Any]
        match entry.dialect:
            case "vhlo":
                decode = self._vhlo_type if is_type else self._vhlo_attribute
            case "builtin":
                decode = self._builtin_type if is_type else self._builtin_attribute
            case _:
                return OtherSpec(f"#{entry.dialect}")  # of a dialect that says nothing about results
        return decode(reader, reader.number())

    # Pieces

    def string(self, reader: BytesReader) -> str:
        """A text by its number."""
        number = reader.number()
        if number >= len(self.strings):
            reader.fail(f"there is no text {number}")
        return self.strings[number]

    def _attributes(self, reader: BytesReader) -> list[Any]:
        return [self.attribute(reader.number()) for _ in range(reader.count())]

    def _named(self, reader: BytesReader) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in range(reader.count()):
            name = str(self.attribute(reader.number()))
            found[name] = self.attribute(reader.number())
        return found

    def _types(self, reader: BytesReader) -> list[Spec]:
        return [self.type(reader.number()) for _ in range(reader.count())]

    def _shape(self, reader: BytesReader) -> tuple[int | None, ...]:
        sizes = [reader.signed() for _ in range(reader.count())]
        if any(size < 0 and size != _DYNAMIC for size in sizes):
            reader.fail("a negative dimension")
        return tuple(None if size == _DYNAMIC else size for size in sizes)

    def _whole(self, reader: BytesReader, bits: int) -> int:
        """A whole number of so many bits."""
        if bits <= 8:
            value = reader.byte()
            return value - (1 << 8) if value >> 7 and bits == 8 else value
        if bits <= 64:
            return reader.signed()
        words = [reader.signed() & ((1 << 64) - 1) for _ in range(reader.count())]
        return sum(word << (64 * at) for at, word in enumerate(words))

    def _float(self, reader: BytesReader, element: str) -> float:
        formats = {"f16": ("<H", "<e", 16), "f32": ("<I", "<f", 32), "f64": ("<Q", "<d", 64)}
        if element == "bf16":
            bits = self._whole(reader, 16) & 0xFFFF
            return float(struct.unpack("<f", struct.pack("<I", bits << 16))[0])
        if element not in formats:
            reader.fail(f"a number of type {element}")
        packed, plain, width = formats[element]
        bits = self._whole(reader, width) & ((1 << width) - 1)
        return float(struct.unpack(plain, struct.pack(packed, bits))[0])

    # VHLO

    def _vhlo_type(self, reader: BytesReader, code: int) -> Spec:
        if code in _ELEMENTS:
            return OtherSpec(_ELEMENTS[code])
        if code in _OTHERS:
            return OtherSpec(_OTHERS[code])
        match code:
            case 1:
                return OtherSpec(f"complex<{_element(self.type(reader.number()))}>")
            case 8:
                inputs, outputs = self._types(reader), self._types(reader)
                return OtherSpec(f"({len(inputs)}) -> ({len(outputs)})")
            case 20 | 21:
                if code == 21:
                    self.attribute(reader.number())
                shape = self._shape(reader)
                return TensorSpec(shape, _element(self.type(reader.number())))
            case 23:
                return TupleSpec(tuple(self._types(reader)))
            case 24 | 30:
                return OtherSpec("!quant.uniform")
        return OtherSpec(f"!vhlo.{code}")

    def _vhlo_attribute(self, reader: BytesReader, code: int) -> Any:
        if code in _ENUMERATIONS:
            names, number = _ENUMERATIONS[code], reader.number()
            return names[number] if number < len(names) else str(number)
        match code:
            case 1:
                return self._attributes(reader)
            case 2:
                return reader.number() != 0
            case 6:
                pairs = [
                    (self.attribute(reader.number()), self.attribute(reader.number())) for _ in range(reader.count())
                ]
                return {str(name): value for name, value in pairs}
            case 8:
                return self._float(reader, _element(self.type(reader.number())))
            case 9:
                element = _element(self.type(reader.number()))
                bits = 64 if element == "index" else int(re.sub(r"\D", "", element) or 64)
                return self._whole(reader, bits)
            case 14:
                return self.string(reader)
            case 15:
                spec = self.type(reader.number())
                blob = reader.take(reader.number())
                if not isinstance(spec, TensorSpec):
                    reader.fail("a constant has no type")
                return Dense(spec, from_bytes(blob, spec))
            case 17:
                return self.type(reader.number())
        return OtherSpec(f"#vhlo.{code}")

    # MLIR's own

    def _builtin_type(self, reader: BytesReader, code: int) -> Spec:
        if code in _BUILTIN_FLOATS:
            return OtherSpec(_BUILTIN_FLOATS[code])
        match code:
            case 0:
                word = reader.number()
                return OtherSpec(f"{'ui' if word & 3 == 2 else 'i'}{word >> 2}")
            case 1:
                return OtherSpec("index")
            case 9:
                return OtherSpec(f"complex<{_element(self.type(reader.number()))}>")
            case 13:
                shape = self._shape(reader)
                return TensorSpec(shape, _element(self.type(reader.number())))
            case 15:
                return TupleSpec(tuple(self._types(reader)))
        return OtherSpec(f"!builtin.{code}")

    def _builtin_attribute(self, reader: BytesReader, code: int) -> Any:
        match code:
            case 0:
                return self._attributes(reader)
            case 1:
                pairs = [
                    (self.attribute(reader.number()), self.attribute(reader.number())) for _ in range(reader.count())
                ]
                return {str(name): value for name, value in pairs}
            case 2 | 3:
                return self.string(reader)
            case 4 | 5:
                return Symbol(self.attribute(reader.number()))
            case 6:
                return self.type(reader.number())
            case 7:
                return True
            case 8:
                element = _element(self.type(reader.number()))
                return self._whole(reader, 64 if element == "index" else int(re.sub(r"\D", "", element) or 64))
            case 9:
                return self._float(reader, _element(self.type(reader.number())))
        return self._builtin_location(reader, code)

    def _builtin_location(self, reader: BytesReader, code: int) -> Any:
        match code:
            case 10:
                callee, caller = self.attribute(reader.number()), self.attribute(reader.number())
                return callee if isinstance(callee, Location) and callee.file else caller
            case 11:
                return Location(file=str(self.attribute(reader.number())), line=reader.number())
            case 12 | 13:
                found = [item for item in self._attributes(reader) if isinstance(item, Location)]
                return found[0] if found else Location()
            case 14:
                name = str(self.attribute(reader.number())).rstrip(":")
                child = self.attribute(reader.number())
                if not isinstance(child, Location):
                    return Location(name)
                return Location(name or child.name, child.file, child.line)
            case 15:
                return Location()
            case 22:
                file = str(self.attribute(reader.number()))
                numbers = [reader.number() for _ in range(reader.count())]
                return Location(file=file, line=numbers[0] if numbers else 0)
            case 17 | 18:
                return self._builtin_dense(reader, code)
        return OtherSpec(f"#builtin.{code}")

    def _builtin_dense(self, reader: BytesReader, code: int) -> Any:
        """A list or a tensor of numbers."""
        spec = self.type(reader.number())
        if code == 17:
            spec = TensorSpec((reader.number(),), _element(spec))
        blob = reader.take(reader.number())
        if not isinstance(spec, TensorSpec):
            reader.fail("a constant has no type")
        return Dense(spec, from_bytes(blob, spec))


def _element(spec: Spec) -> str:
    """The name of an element type."""
    if not isinstance(spec, OtherSpec):
        raise UserError(f"an element type is needed in MLIR bytecode, not {spec}")
    return spec.text


# Names


_VERSION = re.compile(r"_v\d+$")
_FUNCTIONS = {"func": "func.func", "call": "func.call", "return": "func.return"}
_STRUCTURES: dict[str, tuple[str, tuple[str, ...]]] = {
    "dot_general": (
        "dot_dimension_numbers",
        (
            "lhs_batching_dimensions",
            "rhs_batching_dimensions",
            "lhs_contracting_dimensions",
            "rhs_contracting_dimensions",
        ),
    ),
    "gather": (
        "dimension_numbers",
        (
            "offset_dims",
            "collapsed_slice_dims",
            "operand_batching_dims",
            "start_indices_batching_dims",
            "start_index_map",
            "index_vector_dim",
        ),
    ),
    "scatter": (
        "scatter_dimension_numbers",
        (
            "update_window_dims",
            "inserted_window_dims",
            "input_batching_dims",
            "scatter_indices_batching_dims",
            "scatter_dims_to_operand_dims",
            "index_vector_dim",
        ),
    ),
    "convolution": (
        "dimension_numbers",
        (
            "input_batch_dimension",
            "input_feature_dimension",
            "input_spatial_dimensions",
            "kernel_input_feature_dimension",
            "kernel_output_feature_dimension",
            "kernel_spatial_dimensions",
            "output_batch_dimension",
            "output_feature_dimension",
            "output_spatial_dimensions",
        ),
    ),
}
"""Attributes that StableHLO has as one structure, and VHLO one by one."""
_STRUCTURES["dynamic_gather"] = _STRUCTURES["gather"]
_STRUCTURES["dynamic_conv"] = _STRUCTURES["convolution"]


def as_stablehlo(name: str, attributes: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name and attributes that an operation of VHLO has in StableHLO."""
    dialect, _, rest = name.partition(".")
    if dialect != "vhlo":
        return name, attributes
    plain = _VERSION.sub("", rest)
    structure = _STRUCTURES.get(plain)
    if structure is not None:
        key, fields = structure
        given = {field: attributes[field] for field in fields if field in attributes}
        attributes = {**{k: v for k, v in attributes.items() if k not in given}, key: given}
    return _FUNCTIONS.get(plain, f"stablehlo.{plain}"), attributes
