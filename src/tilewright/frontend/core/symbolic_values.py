"""Small integer tensors whose elements are sizes: the shape arithmetic of models, done while they are imported.

Exporters write `Shape -> Gather -> Mul -> Concat -> Reshape` where a framework had a Python expression. A value of the
graph that consists of sizes is a constant or a call to `dimensions`; an operator applied to such values gives another
one, by the rules below, so nothing of the arithmetic is left to do at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tilewright.graph.ir import dimensions as sizes
from tilewright.graph.ir.dimensions import Size, as_dim, normal
from tilewright.graph.ir.expr import Call, Constant, GraphExpr
from tilewright.graph.ir.op import Operator, is_call_to
from tilewright.graph.ops.reduce import ReduceAttributes
from tilewright.graph.ops.symbolic import DimensionsAttributes
from tilewright.ir.build import floordiv
from tilewright.ir.dtype import DataType
from tilewright.ir.expr import PrimExpr
from tilewright.ir.types import TensorType

MOST_ELEMENTS = 1024
"""Values of more elements are data, not shapes."""

SymbolicArray = npt.NDArray[np.object_]
"""An array of sizes (and truth values): Python integers and bools, and expressions."""


def symbolic_value(value: GraphExpr) -> SymbolicArray | None:
    """The elements of a value that consists of sizes or truth values, else None."""
    if isinstance(value, Constant):
        if value.data.size > MOST_ELEMENTS or not (value.dtype.is_bool or value.dtype.is_integer):
            return None
        return _array(value.data.reshape(-1).tolist(), value.data.shape)
    if is_call_to(value, "dimensions"):
        assert isinstance(value, Call)
        assert isinstance(value.attributes, DimensionsAttributes)
        return _array(value.attributes.values, value.attributes.shape)
    return None


def _array(items: Sequence[object], shape: tuple[int, ...]) -> SymbolicArray:
    made = np.empty(len(items), object)
    made[:] = items
    return made.reshape(shape)


def apply_symbolic(
    operator: Operator, args: Sequence[GraphExpr], attributes: Any
) -> SymbolicArray | tuple[SymbolicArray, ...] | None:
    """The result of an operator on values of sizes; None where there is no rule or it is not known."""
    rule = _RULES.get(operator.name)
    if rule is None or sizes.symbols_of(attributes):
        return None
    values: list[SymbolicArray] = []
    for arg in args:
        found = symbolic_value(arg)
        if found is None:
            return None
        values.append(found)
    result = rule(values, attributes, operator)
    if isinstance(result, tuple):
        return result
    if result is None or any(item is None for item in result.reshape(-1)):
        return None
    return result


Rule = Callable[[list[SymbolicArray], Any, Operator], "SymbolicArray | tuple[SymbolicArray, ...] | None"]


def _move(
    values: list[SymbolicArray], attributes: Any, operator: Operator
) -> SymbolicArray | tuple[SymbolicArray, ...]:
    """Operators that move elements: the reference moves objects as well."""
    moved = operator.reference(list(values), attributes)
    return tuple(np.asarray(item, object) for item in moved) if isinstance(moved, tuple) else np.asarray(moved, object)


def _take(values: list[SymbolicArray], attributes: Any, operator: Operator) -> SymbolicArray | None:
    if not all(isinstance(item, int) for item in values[1].reshape(-1)):
        return None
    return np.asarray(operator.reference([values[0], values[1].astype(np.int64)], attributes), object)


def _each(function: Callable[..., object]) -> Rule:
    """An elementwise operator."""

    def rule(values: list[SymbolicArray], attributes: Any, operator: Operator) -> SymbolicArray:
        broadcast = np.broadcast_arrays(*values)
        items = [function(*parts) for parts in zip(*(part.reshape(-1) for part in broadcast), strict=True)]
        return _array(items, broadcast[0].shape)

    return rule


def _divide(a: Size, b: Size) -> Size | None:
    """Division toward zero; the same as rounding down where neither is negative."""
    if isinstance(a, int) and isinstance(b, int):
        return int(abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1) if b else None
    exact = sizes.divide_exactly(a, b)
    if exact is not None:
        return exact
    return normal(floordiv(as_dim(a), as_dim(b))) if sizes.at_least(a, 0) and sizes.at_least(b, 1) else None


def _floor_divide(a: Size, b: Size) -> Size | None:
    if b == 0:
        return None
    exact = sizes.divide_exactly(a, b)
    if exact is not None:
        return exact
    return sizes.floor_divide(a, b) if isinstance(b, int) or sizes.at_least(b, 1) else None


def _floor_mod(a: Size, b: Size) -> Size | None:
    if not isinstance(b, int) or b == 0:
        return None
    return normal(a % b)


def _compare(test: Callable[[PrimExpr, PrimExpr], PrimExpr], plain: Callable[[Any, Any], bool]) -> Rule:
    """A comparison that holds, or does not, whatever the symbols are."""

    def decide(a: Size, b: Size) -> bool | None:
        if isinstance(a, int) and isinstance(b, int):
            return plain(a, b)
        condition = test(as_dim(a), as_dim(b))
        if sizes.certainly(condition):
            return True
        return None if sizes.can_be(condition) else False

    return _each(decide)


def _choose(condition: object, a: object, b: object) -> object:
    return None if not isinstance(condition, (bool, int)) else a if condition else b


def _cast(values: list[SymbolicArray], attributes: Any, operator: Operator) -> SymbolicArray | None:
    wanted = attributes.dtype
    assert isinstance(wanted, DataType)
    if wanted.is_integer and wanted.bits >= 32:
        return _array([_as_size(item) for item in values[0].reshape(-1)], values[0].shape)
    if wanted.is_bool:
        return _array([_is_true(item) for item in values[0].reshape(-1)], values[0].shape)
    return None


def _as_size(item: object) -> object:
    return int(item) if isinstance(item, bool) else item


def _is_true(item: Any) -> bool | None:
    if isinstance(item, int):
        return bool(item)
    return True if sizes.different(item, 0) else None


def _reduce(function: Callable[[Size, Size], Size], first: int | None) -> Rule:
    def rule(values: list[SymbolicArray], attributes: ReduceAttributes, operator: Operator) -> SymbolicArray | None:
        data = values[0]
        axes = tuple(sorted(attributes.axes))
        kept = [axis for axis in range(data.ndim) if axis not in axes]
        outer = tuple(data.shape[axis] for axis in kept)
        rows = data.transpose((*kept, *axes)).reshape((int(np.prod(outer, dtype=np.int64)), -1)) if data.size else None
        if rows is None:
            return None
        results: list[object] = []
        for row in rows:
            total: Size | None = first
            for item in row:
                total = item if total is None else function(total, item)
            results.append(total)
        shape = tuple(1 if axis in axes else size for axis, size in enumerate(data.shape))
        return _array(results, shape if attributes.keepdims else outer)

    return rule


_RULES: Final[dict[str, Rule]] = {
    **dict.fromkeys(("reshape", "transpose", "broadcast_to", "concatenate", "split", "slice", "tile"), _move),
    "take": _take,
    "cast": _cast,
    "add": _each(sizes.add),
    "subtract": _each(sizes.subtract),
    "multiply": _each(sizes.multiply),
    "divide": _each(_divide),
    "floor_divide": _each(_floor_divide),
    "floor_mod": _each(_floor_mod),
    "fmod": _each(lambda a, b: _floor_mod(a, b) if sizes.at_least(a, 0) and sizes.at_least(b, 0) else None),
    "minimum": _each(sizes.minimum),
    "maximum": _each(sizes.maximum),
    "negative": _each(lambda a: sizes.subtract(0, a)),
    "equal": _compare(lambda a, b: a.eq(b), lambda a, b: bool(a == b)),
    "not_equal": _compare(lambda a, b: a.ne(b), lambda a, b: bool(a != b)),
    "less": _compare(lambda a, b: a < b, lambda a, b: bool(a < b)),
    "less_equal": _compare(lambda a, b: a <= b, lambda a, b: bool(a <= b)),
    "greater": _compare(lambda a, b: a > b, lambda a, b: bool(a > b)),
    "greater_equal": _compare(lambda a, b: a >= b, lambda a, b: bool(a >= b)),
    "where": _each(_choose),
    "sum": _reduce(sizes.add, 0),
    "prod": _reduce(sizes.multiply, 1),
    "max": _reduce(sizes.maximum, None),
    "min": _reduce(sizes.minimum, None),
}
"""What operators do to sizes."""


def partial_value(value: GraphExpr) -> list[Size | None] | None:
    """The elements of a list of whole numbers as far as they are sizes: None for each that only a run knows.

    None as a whole if even the number of elements is not known.
    """
    whole = symbolic_value(value)
    if whole is not None:
        return list(whole.reshape(-1))
    kind = value.type
    if not isinstance(kind, TensorType) or kind.static_shape is None or len(kind.static_shape) > 1:
        return None
    count = int(np.prod(kind.static_shape, dtype=np.int64))
    if isinstance(value, Call) and isinstance(value.callee, Operator):
        if value.callee.name == "concatenate":
            parts = [partial_value(arg) for arg in value.args]
            joined = [item for part in parts for item in part or ()]
            if len(joined) == count:
                return joined
        if value.callee.name in ("reshape", "cast") and dtype_is_whole(value.args[0].type):
            inner = partial_value(value.args[0])
            if inner is not None and len(inner) == count:
                return inner
    return [None] * count


def dtype_is_whole(kind: object) -> bool:
    """Whether a type is a tensor of whole numbers."""
    return isinstance(kind, TensorType) and kind.dtype.is_integer
