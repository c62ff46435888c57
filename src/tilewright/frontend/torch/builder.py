"""What a converter builds with: the shared builder, and torch's rules for scalars, data types and empty tensors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tilewright.frontend.core.arithmetic import ArithmeticBuilder, Operand
from tilewright.frontend.core.builder import dtype_of, rank_of
from tilewright.frontend.torch.sizes import TorchSizes
from tilewright.graph.ir.dimensions import Sizes
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import BOOL, FLOAT32, INT64, UINT8, DataType
from tilewright.ir.expr import PrimExpr, Var
from tilewright.support.errors import UnsupportedError, UserError

_BYTES = re.compile(r"float4_e2m1fn_x2|u?int[1-7]")
"""Types that are bytes to torch, of two floats or of one small integer: it only moves them."""
_CATEGORY = {"bool": 0, "int": 1, "uint": 1}


def from_torch_dtype(dtype: object) -> DataType:
    """The data type of a `torch.dtype`."""
    name = str(dtype).removeprefix("torch.")
    if _BYTES.fullmatch(name):
        return UINT8
    if "complex" in name:
        raise UnsupportedError(
            f"complex numbers ({name}) are not supported here", hint="use pairs: torch.view_as_complex, view_as_real"
        )
    try:
        return DataType.of(name)
    except UserError:
        raise UnsupportedError(f"the data type {name} is not supported") from None


def promote_types(a: DataType, b: DataType) -> DataType:
    """The least type that holds both, by torch's table."""
    if a is b:
        return a
    first, second = _category(a), _category(b)
    if first != second:
        return a if first > second else b
    if first == 2:
        if {a.name, b.name} == {"float16", "bfloat16"}:
            return FLOAT32
        return a if a.bits >= b.bits else b
    if a.is_int == b.is_int:
        return a if a.bits >= b.bits else b
    signed, unsigned = (a, b) if a.is_int else (b, a)
    if signed.bits > unsigned.bits:
        return signed
    if unsigned.bits >= 64:
        raise UnsupportedError(f"{a} together with {b}")
    return DataType.of(f"int{2 * unsigned.bits}")


def _category(dtype: DataType) -> int:
    return _CATEGORY.get(dtype.code, 2)


def common_type(values: Sequence[Operand]) -> DataType:
    """The type that operands are computed in: tensors decide, scalars only raise the kind (bool, integer, float)."""
    groups: list[DataType | None] = [None, None, None]
    for value in values:
        if isinstance(value, GraphExpr):
            level, dtype = (0 if rank_of(value) else 1), dtype_of(value)
        else:
            level = 2
            dtype = BOOL if isinstance(value, bool) else INT64 if isinstance(value, (int, PrimExpr)) else FLOAT32
        known = groups[level]
        groups[level] = dtype if known is None else promote_types(known, dtype)
    result: DataType | None = None
    for dtype_found in groups:
        if dtype_found is not None and (result is None or _category(dtype_found) > _category(result)):
            result = dtype_found
    assert result is not None
    return result


class TorchBuilder(ArithmeticBuilder):
    """The builder of one import. `meta` is what torch says about the result of the node that is converted."""

    def __init__(self) -> None:
        super().__init__()
        self.meta: Any = None
        self.operand_meta: Any = None
        """What torch says about the first operand of that node."""
        self.used: frozenset[int] | None = None
        """Which of several results of that node are used; None if all may be."""
        self.sizes = TorchSizes()
        self.seed: GraphExpr | None = None
        """What random numbers are drawn from, if the program may draw any."""
        self.draws = 0
        """How often the program has drawn."""
        self.counted: dict[int, tuple[GraphExpr, Var, GraphExpr]] = {}
        """Places where a value is not zero, and the symbol of their number, by the identity of the value."""

    # What torch says about the result

    @property
    def dtype(self) -> DataType:
        """The data type of the (first) result."""
        first = self.meta[0] if isinstance(self.meta, (tuple, list)) else self.meta
        return from_torch_dtype(first.dtype)

    @property
    def shape(self) -> Sizes:
        """The shape of the (first) result."""
        first = self.meta[0] if isinstance(self.meta, (tuple, list)) else self.meta
        return self.sizes.shape(first.shape)

    def is_used(self, place: int) -> bool:
        """Whether one of several results is used."""
        return self.used is None or place in self.used

    def common_type(self, values: Sequence[Operand]) -> DataType:
        """The type that operands are computed in, by torch's rules."""
        return common_type(values)
