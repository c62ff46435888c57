"""Values of Keras: tensors with their masks, in lists, tuples and dictionaries as layers take and give them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.frontend.core.arithmetic import ArithmeticBuilder, Operand
from tilewright.frontend.core.builder import dtype_of, sizes_of
from tilewright.graph.ir.dimensions import product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, INT32, INT64, DataType
from tilewright.ir.expr import PrimExpr


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A tensor, and which of its steps count: a mask of truth values (batch, steps)."""

    expr: GraphExpr
    mask: GraphExpr | None = None


def leaves(structure: Any) -> Iterator[Any]:
    """What lists, tuples and dictionaries hold, in Keras' order: entries of dictionaries by their keys."""
    if isinstance(structure, (list, tuple)):
        for item in structure:
            yield from leaves(item)
    elif isinstance(structure, dict):
        for key in sorted(structure):
            yield from leaves(structure[key])
    else:
        yield structure


def mapped(function: Callable[[Any], Any], structure: Any) -> Any:
    """A structure with each leaf replaced."""
    if isinstance(structure, (list, tuple)):
        return type(structure)(mapped(function, item) for item in structure)
    if isinstance(structure, dict):
        return {key: mapped(function, item) for key, item in structure.items()}
    return function(structure)


def tensors(structure: Any) -> list[Value]:
    """The tensors of a structure, in order."""
    return [item for item in leaves(structure) if isinstance(item, Value)]


def as_values(structure: Any) -> Any:
    """A structure of tensors, each with a mask or none."""
    return mapped(lambda item: Value(item) if isinstance(item, GraphExpr) else item, structure)


_UNSIGNED_SUM = {8: 16, 16: 32, 32: 64, 64: 64}


def promoted(dtypes: Sequence[DataType]) -> DataType:
    """The type that tensors of types are computed in: floats before integers, the wider before the narrower."""
    result = dtypes[0]
    for dtype in dtypes[1:]:
        result = _promoted(result, dtype)
    return result


def _promoted(a: DataType, b: DataType) -> DataType:
    if a is b or b.is_bool:
        return a
    if a.is_bool:
        return b
    if a.is_float or b.is_float:
        if not a.is_float or not b.is_float:
            return a if a.is_float else b
        if {a, b} == {FLOAT16, BFLOAT16}:
            return FLOAT32
        return a if a.bits > b.bits else b
    if a.is_uint == b.is_uint:
        return a if a.bits > b.bits else b
    unsigned, signed = (a, b) if a.is_uint else (b, a)
    if unsigned.bits == 64:
        return FLOAT32
    return DataType.of(f"int{max(_UNSIGNED_SUM[unsigned.bits], signed.bits)}")


class KerasBuilder(ArithmeticBuilder):
    """A builder by Keras' rules: a number takes the type of tensors that can hold its kind."""

    def common_type(self, values: Sequence[Operand]) -> DataType:
        """The type that operands are computed in."""
        given = [dtype_of(value) for value in values if isinstance(value, GraphExpr)]
        result = promoted(given) if given else BOOL
        for value in values:
            if isinstance(value, (GraphExpr, bool)):
                continue
            if isinstance(value, float):
                result = result if result.is_float else FLOAT32
            elif result.is_bool:
                result = INT64 if isinstance(value, PrimExpr) else INT32
        return result

    def flatten_from(self, value: GraphExpr, axis: int) -> GraphExpr:
        """All dimensions from an axis on in one."""
        sizes = sizes_of(value)
        return self.reshape(value, (*sizes[:axis], product(sizes[axis:])))

    def floating(self, value: GraphExpr, *, wide: bool = False) -> GraphExpr:
        """A tensor as floats: whole numbers become float32; `wide`: those of 64 bits as well."""
        dtype = dtype_of(value)
        if dtype.is_float:
            return value
        return self.cast(value, FLOAT64 if wide and dtype is INT64 else FLOAT32)
