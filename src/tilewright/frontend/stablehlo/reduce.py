"""Converters of reductions: sums and their kin, extremes with their places, and any region."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.frontend.core.builder import dtype_of, evaluate, sizes_of
from tilewright.frontend.core.complex_values import Complex
from tilewright.frontend.stablehlo.builder import StableBuilder, Tensor, each_part, shape_of_tensor
from tilewright.frontend.stablehlo.program import Block, Operation, Value
from tilewright.frontend.stablehlo.registry import converter
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import Constant, GraphExpr
from tilewright.ir.dtype import DataType
from tilewright.support.errors import UnsupportedError

MONOIDS = {"add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min", "and": "all", "or": "any"}
"""Operations of two elements, and the reductions that apply them."""
_OF_TRUTH = {"sum": "any", "prod": "all", "max": "any", "min": "all", "all": "all", "any": "any"}


def monoid_of(block: Block) -> str | None:
    """The operation that a region of two elements applies to them, if that is all it does."""
    if len(block.arguments) != 2 or len(block.operations) != 2:
        return None
    inner, last = block.operations
    if inner.short not in MONOIDS or last.operands != inner.results:
        return None
    first, second = block.arguments
    return inner.short if inner.operands in ([first, second], [second, first]) else None


def reduction_of(name: str, dtype: DataType) -> str | None:
    """The graph's reduction that applies an operation; None where there is none (bits of numbers)."""
    reduction = MONOIDS[name]
    if dtype.is_bool:
        return _OF_TRUTH[reduction]
    return None if reduction in ("all", "any") else reduction


def neutral_of(reduction: str, dtype: DataType) -> float | int | bool:
    """What changes nothing."""
    if reduction in ("all", "any"):
        return reduction == "all"
    if reduction in ("sum", "prod"):
        return 0 if reduction == "sum" else 1
    if dtype.is_integer:
        return dtype.min_value() if reduction == "max" else dtype.max_value()
    return -math.inf if reduction == "max" else math.inf


_ELEMENTWISE = {
    "sum": "add",
    "prod": "multiply",
    "max": "maximum",
    "min": "minimum",
    "all": "logical_and",
    "any": "logical_or",
}


def combine(b: StableBuilder, reduction: str, x: GraphExpr, y: GraphExpr) -> GraphExpr:
    """What a reduction does to two elements."""
    return b.elementwise(_ELEMENTWISE[reduction], x, y)


def is_neutral(b: StableBuilder, start: GraphExpr, reduction: str) -> bool:
    """Whether a start is known to change nothing."""
    small = b.narrow(start)
    if not isinstance(small, Constant):
        return False
    number = neutral_of(reduction, dtype_of(start))
    item = decoded(small)
    return item is not None and bool((item == number).all())


def decoded(value: Constant) -> np.ndarray[Any, Any] | None:
    """The numbers of a constant; None for types that numpy lacks."""
    if value.dtype.name == "bfloat16":
        return (value.data.astype(np.uint32) << 16).view(np.float32)
    return None if value.dtype.is_small_float else value.data


@converter("reduce", of_complex="taken")
def reduce(b: StableBuilder, operation: Operation, *operands: Any) -> Any:
    """Elements along dimensions combined by a region, from a start."""
    count = len(operands) // 2
    inputs, starts = list(operands[:count]), list(operands[count:])
    axes = tuple(b.list_of("dimensions"))
    region = operation.regions[0]
    shape = shape_of_tensor(inputs[0])
    if not axes:
        return [b.run_wide(region, [*starts, *inputs])[at] for at in range(count)]
    if any(shape[axis] == 0 for axis in axes):
        return [_filled(b, start, [size for at, size in enumerate(shape) if at not in axes]) for start in starts]
    name = monoid_of(region)
    if count == 1 and name is not None:
        done = _by_monoid(b, name, inputs[0], starts[0], axes)
        if done is not None:
            return done
    places = _by_places(b, region, inputs, axes)
    if places is not None:
        return places
    return _by_region(b, region, inputs, starts, axes)


def _filled(b: StableBuilder, start: Tensor, shape: Sequence[Size]) -> Tensor:
    parts = [
        b.repeated(b.reshape(part, (1,) * len(shape)), shape) if shape and 0 not in shape else part
        for part in each_part(start)
    ]
    if 0 in shape:
        parts = [b.empty(shape, dtype_of(part)) for part in parts]
    return Complex(parts[0], parts[1]) if len(parts) == 2 else parts[0]


def _by_monoid(b: StableBuilder, name: str, x: Tensor, start: Tensor, axes: Sequence[int]) -> Tensor | None:
    if isinstance(x, Complex):
        if name != "add" or not isinstance(start, Complex):
            return None
        sums = [_by_monoid(b, name, p, q, axes) for p, q in zip(x.parts, start.parts, strict=True)]
        assert isinstance(sums[0], GraphExpr)
        assert isinstance(sums[1], GraphExpr)
        return Complex(sums[0], sums[1])
    assert isinstance(start, GraphExpr)
    reduction = reduction_of(name, dtype_of(x))
    if reduction is None:
        return None
    made = b.reduce(reduction, x, axes)
    return made if is_neutral(b, start, reduction) else combine(b, reduction, start, made)


# Extremes and their places


_ORDERED = frozenset({"compare", "select", "and", "or", "not", "return"})
"""Operations of regions that depend on nothing but which elements are greater."""


def is_order_only(block: Block) -> bool:
    """Whether a region looks at the order of its arguments alone."""
    known: set[Value] = set(block.arguments)
    for operation in block.operations:
        if operation.short not in _ORDERED or not known.issuperset(operation.operands):
            return False
        if operation.attributes.get("compare_type") == "TOTALORDER":
            return False
        known.update(operation.results)
    return True


def _by_places(b: StableBuilder, region: Block, inputs: list[Any], axes: Sequence[int]) -> list[GraphExpr] | None:
    """argmax and argmin: pairs of an element and its place, of which the extreme one is kept."""
    if len(inputs) != 2 or len(axes) != 1 or not is_order_only(region) or any(isinstance(x, Complex) for x in inputs):
        return None
    x, places = inputs
    if not _are_places(b, places, axes[0]) or dtype_of(x).is_bool:
        return None
    for name, reduction in (("argmax", "max"), ("argmin", "min")):
        if _keeps_extreme(b, region, x, places, reduction):
            place = b.call(name, x, axis=axes[0])
            return [b.reduce(reduction, x, axes), b.cast(place, dtype_of(places))]
    return None


def _are_places(b: StableBuilder, places: GraphExpr, axis: int) -> bool:
    small = b.narrow(places)
    if any(size != 1 for at, size in enumerate(sizes_of(small)) if at != axis):
        return False
    known = evaluate(small)
    return known is not None and bool((known.reshape(-1) == np.arange(known.size)).all())


def _keeps_extreme(b: StableBuilder, region: Block, x: GraphExpr, places: GraphExpr, reduction: str) -> bool:
    """Whether a region keeps the extreme of two elements, the first NaN, and the earlier of equal ones.

    It looks at nothing but the order of its arguments, so all orders that there are prove it.
    """
    is_float = dtype_of(x).is_float
    items = [0.0, 1.0, math.nan] if is_float else [0, 1]
    pairs = [(p, q) for p in items for q in items]
    kind = DataType.of("float32") if is_float else dtype_of(x)
    first, second = (b.constant(np.array(column), kind) for column in zip(*pairs, strict=True))
    index = [b.constant(np.full(len(pairs), number), dtype_of(places)) for number in (0, 1)]
    results = [evaluate(value) for value in b.run_wide(region, [first, index[0], second, index[1]])]
    if any(value is None for value in results):
        return False
    columns = [value.reshape(-1).tolist() for value in results if value is not None]
    for (p, q), value, place in zip(pairs, columns[0], columns[1], strict=True):
        earlier = math.isnan(p) or (not math.isnan(q) and (p >= q if reduction == "max" else p <= q))
        wanted = p if earlier else q
        if place != (0 if earlier else 1) or not (value == wanted or (math.isnan(value) and math.isnan(wanted))):
            return False
    return True


# Any region


def _by_region(b: StableBuilder, region: Block, inputs: list[Any], starts: list[Any], axes: Sequence[int]) -> list[Any]:
    """Neighbours are combined until one is left."""
    shape = shape_of_tensor(inputs[0])
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    total = dimensions.product([shape[axis] for axis in axes])
    if not isinstance(total, int):
        raise UnsupportedError(
            "a reduction by a region of its own over an open dimension", hint="give the dimension a size"
        )
    outer = [shape[axis] for axis in kept]

    def flat(value: Tensor) -> Tensor:
        parts = [b.reshape(b.transpose(part, (*kept, *axes)), (*outer, total)) for part in each_part(value)]
        return Complex(parts[0], parts[1]) if len(parts) == 2 else parts[0]

    values = [flat(value) for value in inputs]
    axis = len(outer)
    while total > 1:
        pairs = total - total % 2
        first, second = ([_stride(b, value, axis, at, pairs) for value in values] for at in (0, 1))
        joined = b.run_wide(region, [*first, *second])
        if total % 2:
            rest = [_stride(b, value, axis, total - 1, total) for value in values]
            joined = [_joined(b, p, q, axis) for p, q in zip(joined, rest, strict=True)]
        values, total = joined, pairs // 2 + total % 2
    last = [_reshaped(b, value, outer) for value in values]
    return b.run_wide(region, [*starts, *last])


def _stride(b: StableBuilder, value: Tensor, axis: int, start: int, end: int) -> Tensor:
    parts = [b.slice(part, axis, start, end, 2) for part in each_part(value)]
    return Complex(parts[0], parts[1]) if len(parts) == 2 else parts[0]


def _joined(b: StableBuilder, x: Tensor, y: Tensor, axis: int) -> Tensor:
    parts = [b.concatenate([p, q], axis) for p, q in zip(each_part(x), each_part(y), strict=True)]
    return Complex(parts[0], parts[1]) if len(parts) == 2 else parts[0]


def _reshaped(b: StableBuilder, value: Tensor, shape: Sequence[Size]) -> Tensor:
    parts = [b.reshape(part, shape) for part in each_part(value)]
    return Complex(parts[0], parts[1]) if len(parts) == 2 else parts[0]
