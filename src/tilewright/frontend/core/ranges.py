"""What is known of whole numbers before a model runs: bounds of values by how they are computed.

An index that certainly lies inside its axis (a number of a range, the place of a maximum, a remainder, a clipped value)
needs no check when the model runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from tilewright.frontend.core.symbolic_values import symbolic_value
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import Call, Constant, GraphExpr, TupleGet
from tilewright.graph.ir.op import Operator, is_call_to
from tilewright.ir.types import TensorType

Bounds = tuple["Size | None", "Size | None"]
"""The least and the greatest that a value may be, both included; None is unknown."""
_UNKNOWN: Final[Bounds] = (None, None)
_MOST_STEPS: Final = 256
"""Expressions that are looked at for one value."""


def fits(value: GraphExpr, least: Size, most: Size) -> bool:
    """Whether all elements of a value certainly lie between two sizes, both included."""
    low, high = _Reader().bounds(value)
    if low is None or high is None:
        return False
    return dimensions.at_least(low, least) and dimensions.at_least(most, high)


def is_never_zero(value: GraphExpr) -> bool:
    """Whether no element of a value is certainly 0."""
    if isinstance(value, Constant):
        return bool(value.data.all())
    low, high = _Reader().bounds(value)
    return (low is not None and dimensions.at_least(low, 1)) or (high is not None and dimensions.at_least(-1, high))


class _Reader:
    """Looks at the expressions that a value is computed by; of too many of them, nothing is known."""

    def __init__(self) -> None:
        self._left = _MOST_STEPS

    def bounds(self, value: GraphExpr) -> Bounds:
        self._left -= 1
        kind = value.type
        if self._left < 0 or not isinstance(kind, TensorType) or not kind.dtype.is_integer:
            return _UNKNOWN
        if isinstance(value, Constant):
            return (int(value.data.min()), int(value.data.max())) if value.data.size else _UNKNOWN
        symbolic = symbolic_value(value)
        if symbolic is not None:
            items = symbolic.reshape(-1)
            return (items[0], items[0]) if items.size == 1 else _UNKNOWN
        if isinstance(value, TupleGet) and value.index == 1 and is_call_to(value.value, "topk"):
            assert isinstance(value.value, Call)
            return _places(value.value)
        if not isinstance(value, Call) or not isinstance(value.callee, Operator):
            return _UNKNOWN
        rule = _RULES.get(value.callee.name)
        return _UNKNOWN if rule is None else rule(self, value, value.attributes)

    def union(self, values: Sequence[GraphExpr]) -> Bounds:
        found = [self.bounds(value) for value in values]
        lows, highs = [low for low, _ in found], [high for _, high in found]
        return _extreme(lows, at_most=True), _extreme(highs, at_most=False)


def _extreme(values: Sequence[Size | None], *, at_most: bool) -> Size | None:
    """The least (or greatest) of bounds, if it is known which that is."""
    best = values[0]
    for value in values[1:]:
        if best is None or value is None:
            return None
        below = dimensions.at_least(best, value)
        if not below and not dimensions.at_least(value, best):
            return None
        best = value if below is at_most else best
    return best


def _places(call: Call) -> Bounds:
    """Places along the axis that an operator looks along."""
    attributes: Any = call.attributes
    shape = call.args[0].tensor_type.shape
    size = None if shape is None else shape[attributes.axis]
    return (0, None) if size is None else (0, dimensions.subtract(dimensions.as_size(size), 1))


Rule = Callable[[_Reader, Call, Any], Bounds]


def _first(reader: _Reader, call: Call, attributes: Any) -> Bounds:
    return reader.bounds(call.args[0])


def _cast(reader: _Reader, call: Call, attributes: Any) -> Bounds:
    low, high = reader.bounds(call.args[0])
    dtype = call.tensor_type.dtype
    holds = isinstance(low, int) and isinstance(high, int) and dtype.min_value() <= low and high <= dtype.max_value()
    given = call.args[0].tensor_type.dtype
    widens = given.is_integer and dtype.min_value() <= given.min_value() and given.max_value() <= dtype.max_value()
    return (low, high) if holds or widens else _UNKNOWN


def _arange(reader: _Reader, call: Call, attributes: Any) -> Bounds:
    steps = dimensions.multiply(dimensions.subtract(attributes.count, 1), attributes.step)
    last = dimensions.add(attributes.start, steps)
    return (attributes.start, last) if attributes.step > 0 else (last, attributes.start)


def _clip(reader: _Reader, call: Call, attributes: Any) -> Bounds:
    low, high = reader.bounds(call.args[0])
    if attributes.minimum is not None and math.isfinite(attributes.minimum) and not isinstance(low, int):
        low = math.ceil(attributes.minimum)
    elif attributes.minimum is not None and math.isfinite(attributes.minimum) and isinstance(low, int):
        low = max(low, math.ceil(attributes.minimum))
    if attributes.maximum is not None and math.isfinite(attributes.maximum):
        most = math.floor(attributes.maximum)
        high = min(high, most) if isinstance(high, int) else most
    return low, high


def _remainder(reader: _Reader, call: Call, attributes: Any) -> Bounds:
    low, high = reader.bounds(call.args[1])
    if low is None or high is None or not dimensions.at_least(low, 1):
        return _UNKNOWN
    return 0, dimensions.subtract(high, 1)


def _minimum(reader: _Reader, call: Call, attributes: Any) -> Bounds:
    pairs = [reader.bounds(arg) for arg in call.args]
    highs = [high for _, high in pairs if high is not None]
    return _extreme([low for low, _ in pairs], at_most=True), highs[-1] if highs else None


def _maximum(reader: _Reader, call: Call, attributes: Any) -> Bounds:
    pairs = [reader.bounds(arg) for arg in call.args]
    lows = [low for low, _ in pairs if low is not None]
    return lows[-1] if lows else None, _extreme([high for _, high in pairs], at_most=False)


def _add(reader: _Reader, call: Call, attributes: Any) -> Bounds:
    (a, b), (c, d) = (reader.bounds(arg) for arg in call.args)
    if a is None or b is None or c is None or d is None:
        return _UNKNOWN
    found = dimensions.add(a, c), dimensions.add(b, d)
    return found if _is_held(call, found) else _UNKNOWN


def _is_held(call: Call, found: tuple[Size, Size]) -> bool:
    """Whether sums do not wrap around: symbols are sizes, which 64 bits hold with room to spare."""
    dtype = call.tensor_type.dtype
    low, high = found
    if isinstance(low, int) and isinstance(high, int):
        return dtype.min_value() <= low and high <= dtype.max_value()
    return dtype.bits == 64


def _where(reader: _Reader, call: Call, attributes: Any) -> Bounds:
    return reader.union(call.args[1:])


def _all(reader: _Reader, call: Call, attributes: Any) -> Bounds:
    return reader.union(call.args)


def _place(reader: _Reader, call: Call, attributes: Any) -> Bounds:
    return _places(call)


_RULES: Final[dict[str, Rule]] = {
    **dict.fromkeys(
        ["reshape", "transpose", "broadcast_to", "slice", "take", "checked", "assume_shape", "tile"], _first
    ),
    "cast": _cast,
    "arange": _arange,
    "clip": _clip,
    "floor_mod": _remainder,
    "minimum": _minimum,
    "maximum": _maximum,
    "add": _add,
    "where": _where,
    "concatenate": _all,
    "argmax": _place,
    "argmin": _place,
}
