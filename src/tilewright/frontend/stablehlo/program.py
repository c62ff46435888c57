"""StableHLO programs as data: functions of blocks of operations, however they were written (text or bytecode).

Attributes have the names of the generic form and are Python values: numbers, texts (also for enumerations: `LT`),
lists, mappings (also for structures such as `#stablehlo.gather<...>`), `Dense` tensors, types and symbols.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.ir.dtype import DataType
from tilewright.support.errors import UnsupportedError, UserError

_FLOATS = {
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "bf16": "bfloat16",
    "f8E4M3FN": "float8_e4m3fn",
    "f8E5M2": "float8_e5m2",
    "f8E4M3FNUZ": "float8_e4m3fnuz",
    "f8E5M2FNUZ": "float8_e5m2fnuz",
    "f8E4M3B11FNUZ": "float8_e4m3b11fnuz",
    "f8E3M4": "float8_e3m4",
    "f8E4M3": "float8_e4m3",
    "f8E8M0FNU": "float8_e8m0fnu",
    "f4E2M1FN": "float4_e2m1fn",
}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The type of a tensor: sizes (None for one that is open) and the element type as StableHLO spells it."""

    shape: tuple[int | None, ...]
    element: str

    @property
    def is_complex(self) -> bool:
        """Whether elements are complex numbers."""
        return self.element.startswith("complex<")

    @property
    def part(self) -> TensorSpec:
        """The type of the real part of complex numbers; itself if they are real."""
        return TensorSpec(self.shape, self.element[8:-1]) if self.is_complex else self

    @property
    def dtype(self) -> DataType:
        """The data type of the elements (of a part of them where they are complex)."""
        return element_dtype(self.part.element)

    def __str__(self) -> str:
        sizes = "".join("?x" if size is None else f"{size}x" for size in self.shape)
        return f"tensor<{sizes}{self.element}>"


@dataclass(frozen=True, slots=True)
class TupleSpec:
    """The type of a tuple."""

    items: tuple[Spec, ...]


@dataclass(frozen=True, slots=True)
class OtherSpec:
    """A type that is only named: a token, an index, a function."""

    text: str


Spec = TensorSpec | TupleSpec | OtherSpec


def element_dtype(element: str) -> DataType:
    """The data type of a StableHLO element type."""
    if element == "i1":
        return DataType.of("bool")
    if element in _FLOATS:
        try:
            return DataType.of(_FLOATS[element])
        except UserError:
            raise UnsupportedError(f"elements of type {element} are not supported") from None
    if element == "index":
        return DataType.of("int64")
    signless = element.removeprefix("s")
    for prefix, code in (("ui", "uint"), ("i", "int")):
        if signless.startswith(prefix) and signless[len(prefix) :] in ("2", "4", "8", "16", "32", "64"):
            return DataType.of(code + signless[len(prefix) :])
    if element.startswith("!quant"):
        raise UnsupportedError(
            f"elements of the quantised type {element} are not supported",
            hint="convert the program with stablehlo-opt --stablehlo-legalize-quant-to-math, or use tw.quantize on the "
            "float program",
        )
    raise UnsupportedError(f"elements of type {element} are not supported")


@dataclass(frozen=True, slots=True)
class Dense:
    """A tensor among the attributes: `data` has its shape, in the numbers of numpy or the codes of small types."""

    spec: TensorSpec
    data: np.ndarray[Any, Any]


class Symbol(str):
    """The name of a function (`@main`)."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Location:
    """Where an operation comes from: what JAX calls it (`jit(f)/mul`), and the line of the user's program."""

    name: str = ""
    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{self.name}, {place}" if self.name and place else self.name or place


@dataclass(eq=False, slots=True)
class Value:
    """What an operation gives or a block takes."""

    spec: Spec
    name: str = ""
    location: Location | None = None

    @property
    def tensor(self) -> TensorSpec:
        """Its type, which is that of a tensor."""
        if not isinstance(self.spec, TensorSpec):
            raise UserError(f"a tensor is needed here, not {self.spec}")
        return self.spec


@dataclass(eq=False, slots=True)
class Block:
    """Operations in order, the last of which gives the results; `arguments` are what it takes."""

    arguments: list[Value]
    operations: list[Operation]

    @property
    def results(self) -> list[Value]:
        """The operands of the last operation."""
        return self.operations[-1].operands if self.operations else []


@dataclass(eq=False, slots=True)
class Operation:
    """An operation by its full name (`stablehlo.add`)."""

    name: str
    operands: list[Value]
    attributes: dict[str, Any]
    results: list[Value]
    regions: list[Block] = field(default_factory=list)
    location: Location | None = None

    @property
    def short(self) -> str:
        """The name without its dialect."""
        return self.name.split(".", 1)[-1]


@dataclass(eq=False, slots=True)
class FunctionDefinition:
    """A function; what JAX says of its arguments and results is in `argument_notes` and `result_notes`."""

    name: str
    body: Block
    argument_notes: list[dict[str, Any]]
    result_notes: list[dict[str, Any]]
    is_public: bool = True


def notes_of(value: object, count: int) -> list[dict[str, Any]]:
    """What a function says of its arguments or results; nothing where it is said in another form."""
    if not isinstance(value, list) or len(value) != count:
        return [{} for _ in range(count)]
    return [dict(item) if isinstance(item, dict) else {} for item in value]


@dataclass(eq=False, slots=True)
class Program:
    """A module: functions by name."""

    name: str
    functions: dict[str, FunctionDefinition]

    @property
    def main(self) -> FunctionDefinition:
        """The function that is called from outside: `main`, or the only public one."""
        if "main" in self.functions:
            return self.functions["main"]
        public = [function for function in self.functions.values() if function.is_public]
        if len(public) == 1:
            return public[0]
        raise UserError(
            f"the module '{self.name}' has no function 'main' and {len(public)} public ones",
            hint="name the function that is to be imported 'main'",
        )
