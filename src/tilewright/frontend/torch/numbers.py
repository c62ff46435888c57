"""Numbers that tensors hold (`x.max().item()`): tensors of one element, and torch's arithmetic of them as operators.

Torch computes with such numbers in Python, as whole numbers, doubles and truth values; so does what is built here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.frontend.core.arithmetic import Operand
from tilewright.frontend.core.builder import dtype_of
from tilewright.frontend.torch.builder import TorchBuilder, common_type
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import BOOL, FLOAT32, FLOAT64, INT64, DataType
from tilewright.support.errors import UnsupportedError

ITEMS = frozenset({"item", "_local_scalar_dense"})
"""Operators that give the element of a tensor as a number."""
_COMPARISONS = {
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "eq": "equal",
    "ne": "not_equal",
}
_ARITHMETIC = {"add": "add", "sub": "subtract", "mul": "multiply", "sym_max": "maximum", "sym_min": "minimum"}
_WHOLE = {"floordiv": "floor_divide", "mod": "floor_mod"}
_LOGIC = {"and_": "logical_and", "or_": "logical_or"}


def known_number(value: Any) -> bool | int | float | None:
    """The number that torch knows a symbolic one to be, because the program asserts so; None if it does not."""
    if isinstance(value, (bool, int, float)):
        return value
    expression = getattr(getattr(value, "node", None), "expr", None)
    if expression is None or expression.free_symbols:
        return None
    kind: type[bool | int | float] = value.node.pytype
    return kind(expression)


def item(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """The element of a tensor."""
    return b.reshape(b.cast(x, _python_type(dtype_of(x))), ())


def _python_type(dtype: DataType) -> DataType:
    """The type of what Python makes of an element."""
    return BOOL if dtype.is_bool else INT64 if dtype.is_integer else FLOAT64


def compute(b: TorchBuilder, target: Callable[..., Any], arguments: Sequence[Operand | Size]) -> GraphExpr:
    """A function of Python's or torch's, of numbers that tensors hold and sizes."""
    name = target.__name__
    values = [_held(b, value) for value in arguments]
    whole = all(dtype_of(value).is_integer for value in values)
    if name in _COMPARISONS:
        return b.compare(_COMPARISONS[name], *values)
    if name in _ARITHMETIC:
        return b.binary(_ARITHMETIC[name], *values)
    if name in _WHOLE and whole:
        return b.binary(_WHOLE[name], *values)
    if name in _LOGIC and all(dtype_of(value).is_bool for value in values):
        return b.call(_LOGIC[name], *values)
    match name:
        case "truediv":
            return b.call("divide", *(b.cast(value, FLOAT64) for value in values))
        case "neg":
            return b.call("negative", *values)
        case "sym_not":
            return b.call("logical_not", *values)
        case "sym_float":
            return b.cast(values[0], FLOAT64)
        case "sym_ite":
            return b.where(values[0], values[1], values[2])
    raise UnsupportedError(f"{name} of a number that a tensor holds", hint="compute it as a tensor, without item()")


def _held(b: TorchBuilder, value: Operand | Size) -> GraphExpr:
    if isinstance(value, GraphExpr):
        return value
    return b.scalar(value, BOOL if isinstance(value, bool) else FLOAT64 if isinstance(value, float) else INT64)


def as_operand(b: TorchBuilder, number: GraphExpr, others: Sequence[GraphExpr]) -> GraphExpr:
    """A number as a tensor that raises the type of an operator's other inputs as a number of Python's would."""
    plain: Operand = {"bool": False, "int": 0}.get(dtype_of(number).code, 0.0)
    wanted = common_type([*others, plain])
    return b.cast(number, wanted if others else FLOAT32 if isinstance(plain, float) else dtype_of(number))
