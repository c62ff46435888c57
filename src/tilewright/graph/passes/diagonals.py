"""Masks that let a query see the keys of some diagonals: causal ones, sliding windows.

Query i sees key j where first <= j - i <= last. Such masks come as comparisons of places, or as constants of truth
values or of 0 and -inf; attention that knows the diagonals reads no mask, and skips keys that no query sees.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Final

import numpy as np

from tilewright.graph.interpreter import apply_operator
from tilewright.graph.ir.expr import Call, Constant, GraphExpr
from tilewright.graph.ir.op import Array, Operator, is_call_to
from tilewright.graph.ir.rewrite import known_sizes
from tilewright.graph.ops.attention import ANY_DIAGONAL, Diagonals

_MOST_PLACES: Final = 1 << 20
"""Elements of what is computed here."""
_BOUNDS: Final[dict[str, Callable[[int], Diagonals]]] = {
    # By how much a place of the first operand is ahead of that of the second: i + ahead against j.
    "greater_equal": lambda ahead: (-ANY_DIAGONAL, ahead),
    "greater": lambda ahead: (-ANY_DIAGONAL, ahead - 1),
    "less_equal": lambda ahead: (ahead, ANY_DIAGONAL),
    "less": lambda ahead: (ahead + 1, ANY_DIAGONAL),
}
_TURNED: Final = {
    "greater_equal": "less_equal",
    "less_equal": "greater_equal",
    "greater": "less",
    "less": "greater",
}


def diagonals_of(mask: GraphExpr) -> Diagonals | None:
    """The diagonals that a mask shows; None where it is of another kind."""
    if isinstance(mask, Constant):
        return _of_constant(mask.data)
    if not isinstance(mask, Call) or not isinstance(mask.callee, Operator):
        return None
    if is_call_to(mask, "logical_and"):
        first, second = (diagonals_of(arg) for arg in mask.args)
        return None if first is None or second is None else common_diagonals(first, second)
    if is_call_to(mask, "logical_not"):
        hidden = diagonals_of(mask.args[0])
        return None if hidden is None else _complement(hidden)
    if is_call_to(mask, "reshape") or is_call_to(mask, "broadcast_to"):
        sizes, inner = known_sizes(mask), known_sizes(mask.args[0])
        if sizes is None or inner is None or sizes[-2:] != inner[-2:] or any(size != 1 for size in inner[:-2]):
            return None
        return diagonals_of(mask.args[0])
    if mask.callee.name in _BOUNDS:
        return _of_comparison(mask.callee.name, *mask.args)
    return None


def common_diagonals(one: Diagonals, other: Diagonals) -> Diagonals:
    """What two masks both show."""
    return max(one[0], other[0]), min(one[1], other[1])


def _complement(hidden: Diagonals) -> Diagonals | None:
    first, last = hidden
    if first == -ANY_DIAGONAL:
        return last + 1, ANY_DIAGONAL
    return (-ANY_DIAGONAL, first - 1) if last == ANY_DIAGONAL else None


def _of_comparison(name: str, one: GraphExpr, other: GraphExpr) -> Diagonals | None:
    """Places of queries, which lie along the second axis from the end, against those of keys, along the last."""
    places = [_places(one), _places(other)]
    if None in places:
        return None
    (axis, start), (other_axis, other_start) = (item for item in places if item is not None)
    if axis == other_axis:
        return None
    if axis == -1:
        return _BOUNDS[_TURNED[name]](other_start - start)
    return _BOUNDS[name](start - other_start)


def _places(item: GraphExpr) -> tuple[int, int] | None:
    """Along which axis from the end numbers lie that grow by 1, and the first of them."""
    sizes = known_sizes(item)
    if not sizes or not all(isinstance(size, int) for size in sizes) or not item.tensor_type.dtype.is_integer:
        return None
    long = [axis - len(sizes) for axis, size in enumerate(sizes) if size != 1]
    if len(long) != 1 or long[0] < -2:
        return None
    numbers = _value(item)
    if numbers is None or not bool((np.diff(numbers.ravel()) == 1).all()):
        return None
    return long[0], int(numbers.ravel()[0])


def _value(item: GraphExpr) -> Array | None:
    """The value of an expression of constants and of `arange`, where it is small."""
    sizes = known_sizes(item)
    if isinstance(item, Constant):
        return item.data
    if not isinstance(item, Call) or not isinstance(item.callee, Operator) or item.callee.host or sizes is None:
        return None
    known = [size for size in sizes if isinstance(size, int)]
    if len(known) < len(sizes) or prod(known) > _MOST_PLACES:
        return None
    if not item.args and item.callee.name != "arange":
        return None
    given = [_value(arg) for arg in item.args]
    if any(value is None for value in given):
        return None
    value = apply_operator(item, [value for value in given if value is not None])
    return value if isinstance(value, np.ndarray) else None


def _of_constant(data: Array) -> Diagonals | None:
    """Of truth values, or of numbers that are 0 and -inf."""
    if data.ndim < 2 or any(size != 1 for size in data.shape[:-2]) or min(data.shape[-2:]) < 2:
        return None
    table = data.reshape(data.shape[-2:])
    if table.dtype.kind == "f" and bool(((table == 0) | (table == -np.inf)).all()):
        table = table == 0
    if table.dtype != np.bool_ or bool(table.all()) or not bool(table.any()):
        return None
    rows, columns = data.shape[-2:]
    distance = np.arange(columns) - np.arange(rows)[:, np.newaxis]
    seen = distance[table]
    first, last = int(seen.min()), int(seen.max())
    if not np.array_equal(table, (first <= distance) & (distance <= last)):
        return None
    return (-ANY_DIAGONAL if first == 1 - rows else first), (ANY_DIAGONAL if last == columns - 1 else last)
