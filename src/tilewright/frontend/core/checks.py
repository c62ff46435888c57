"""Checks that importers put on data: indices that must lie inside an axis, divisors that must not be zero.

What is known while importing is checked at once; what is certain needs no check; the rest is checked when the model
runs (`graph/ops/checks.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontend.core.builder import Builder, dtype_of, evaluate, sizes_of
from tilewright.frontend.core.ranges import fits, is_never_zero
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import Call, GraphExpr
from tilewright.graph.ir.op import Array, get_operator, is_call_to
from tilewright.graph.ops.checks import CheckAttributes, CheckedAttributes


def checked_index(
    builder: Builder,
    indices: GraphExpr,
    sizes: Sequence[Size],
    axes: Sequence[int],
    *,
    negative: bool = True,
    is_length: bool = False,
) -> GraphExpr:
    """Indices that a run is an error for unless they lie inside axes of sizes; several are for the last dimension.

    `negative`: whether negative ones count from the end. `is_length`: they are lengths, up to the size itself.
    """
    sizes = [dimensions.normal(size) for size in sizes]
    what = "length" if is_length else "index" if negative else "position"
    return _checked(builder, indices, what, tuple(sizes), tuple(axes))


def checked_divisor(builder: Builder, divisor: GraphExpr) -> GraphExpr:
    """Whole numbers to divide by, none of which is zero in a run that is no error; floats as they are."""
    # Sizes stay sizes, so that arithmetic on shapes goes on.
    if not dtype_of(divisor).is_integer or is_call_to(divisor, "dimensions"):
        return divisor
    return _checked(builder, divisor, "divisor", (), ())


def _checked(
    builder: Builder, values: GraphExpr, what: str, sizes: tuple[Size, ...], axes: tuple[int, ...]
) -> GraphExpr:
    if 0 in sizes_of(values) or _is_certain(values, what, sizes):
        return values
    if is_call_to(values, "cast") and _widens(values):
        assert isinstance(values, Call)
        # What is there already is checked, not a copy of it that nothing else needs.
        return builder.cast(_checked(builder, values.args[0], what, sizes, axes), dtype_of(values))
    shape = sizes_of(values)
    columns = len(sizes)
    rows = dimensions.product(shape[:-1] if columns > 1 else shape)
    flat = builder.reshape(values, (rows, columns) if columns > 1 else (rows,))
    known = evaluate(flat)
    if known is not None and dimensions.is_constant(sizes):
        _checked_now(known, CheckAttributes(what, sizes, axes, shape))
        return values
    status = builder.call("check_values", flat, what=what, sizes=sizes, axes=axes, shape=shape)
    return builder.call("checked", values, status, what=what, axes=axes)


def _checked_now(known: Array, check: CheckAttributes) -> None:
    """Check values that are known while importing."""
    status = get_operator("check_values").reference([known], check)
    given = known.reshape(dimensions.numbers(check.shape))
    get_operator("checked").reference([given, np.asarray(status)], CheckedAttributes(check.what, check.axes))


def _is_certain(values: GraphExpr, what: str, sizes: tuple[Size, ...]) -> bool:
    if what == "divisor":
        return is_never_zero(values)
    if len(sizes) == 1:
        return _fits(values, what, sizes[0])
    # Of several columns each must fit the least, which is known where all are numbers.
    known = dimensions.constants(sizes)
    return known is not None and _fits(values, what, min(known))


def _fits(values: GraphExpr, what: str, size: Size) -> bool:
    least = dimensions.multiply(size, -1) if what == "index" else 0
    return fits(values, least, size if what == "length" else dimensions.subtract(size, 1))


def _widens(values: GraphExpr) -> bool:
    """Whether a cast gives whole numbers of a type that holds all of the type before."""
    assert isinstance(values, Call)
    given, wanted = dtype_of(values.args[0]), dtype_of(values)
    if not given.is_integer:
        return False
    return wanted.min_value() <= given.min_value() and given.max_value() <= wanted.max_value()
