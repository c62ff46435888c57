"""Operators that check data when a model runs: indices that must lie inside an axis, divisors that must not be zero.

`check_values` looks at the values and says what is wrong with the first that is; `checked` is the data itself, which a
run gives only if nothing is. Both are there so that a check is part of the dataflow: it is done where its value is
used, and goes with it. `checked` is free (the memory of its first input), and what `check_values` costs is one pass
over the values.
"""

from __future__ import annotations

import numpy as np

from tilewright.graph.ir.dimensions import Sizes, numbers
from tilewright.graph.ir.expr import Attributes, Call, Function
from tilewright.graph.ir.op import Array, FusionKind, Types, is_call_to, operator
from tilewright.graph.ops.common import dims, require_integer, same_dtype, tensor
from tilewright.ir.dtype import INT64
from tilewright.ir.node import node
from tilewright.ir.types import TensorType, Type
from tilewright.runtime.core.checks import CHECKS, FINE, STATUS_SIZE, check_error
from tilewright.support.errors import UserError


@node()
class CheckAttributes(Attributes):
    """What is checked, and for indices the sizes that they must fit: one, or one for each column of the values.

    `index`: -size .. size - 1; `position`: 0 .. size - 1; `length`: 0 .. size; `divisor`: anything but 0.
    For messages: `axes` are the axes of the user's data that have the sizes, `shape` is the one of the user's values.
    """

    what: str
    sizes: Sizes = ()
    axes: tuple[int, ...] = ()
    shape: Sizes = ()


def _check_values(args: list[Array], attributes: CheckAttributes) -> Array:
    (values,) = args
    sizes = np.array(numbers(attributes.sizes) or (0,), object)
    wide = values.astype(object)
    if attributes.what == "divisor":
        wrong = wide == 0
    else:
        least = -sizes if attributes.what == "index" else 0 * sizes
        most = sizes if attributes.what == "length" else sizes - 1
        wrong = (wide < least) | (wide > most)
    found = np.flatnonzero(wrong)
    if not found.size:
        return np.array([FINE, 0, 0], np.int64)
    place = int(found[0])
    return np.array([place, _wrapped(int(wide.flat[place])), sizes[place % len(sizes)]], np.int64)


def _wrapped(value: int) -> int:
    """A value as 64 bits hold it."""
    return (value + 2**63) % 2**64 - 2**63


@operator(
    "check_values",
    inputs=("values",),
    kind=FusionKind.OPAQUE,
    reference=_check_values,
    attributes=CheckAttributes,
)
def check_values(types: Types, attributes: CheckAttributes) -> Type:
    """What is wrong with the first value that is: its place (-1: none is), the value, and the size it does not fit.

    The values have one dimension, or two where each column has a size of its own.
    """
    values = tensor(types, 0, "the values")
    require_integer(values.dtype, "the values")
    if attributes.what not in CHECKS:
        raise UserError(f"there is no check {attributes.what!r}", hint=f"one of {', '.join(CHECKS)}")
    count = len(attributes.sizes)
    if (count > 0) is (attributes.what == "divisor") or count != len(attributes.axes):
        raise UserError(f"the check {attributes.what!r} does not take {count} sizes of {len(attributes.axes)} axes")
    if values.shape is not None and len(values.shape) != (2 if count > 1 else 1):
        raise UserError("the values of a check have one dimension, or two if there are several sizes")
    return TensorType(dims((STATUS_SIZE,)), INT64)


@node()
class CheckedAttributes(Attributes):
    """What was checked, and the axes, for messages."""

    what: str
    axes: tuple[int, ...] = ()


def _checked(args: list[Array], attributes: CheckedAttributes) -> Array:
    data, status = args
    if status[0] != FINE:
        raise check_error(attributes.what, attributes.axes, data.shape, tuple(map(int, status)))
    return data


@operator(
    "checked",
    inputs=("data", "status"),
    kind=FusionKind.OPAQUE,
    reference=_checked,
    attributes=CheckedAttributes,
)
def checked(types: Types, attributes: CheckedAttributes) -> Type:
    """The data, if the status that `check_values` gave says that nothing is wrong; else the run is an error."""
    data, status = tensor(types, 0, "the data"), tensor(types, 1, "the status")
    same_dtype([status, TensorType(dims((STATUS_SIZE,)), INT64)], ("the status", "a status"))
    return data


def check_of(function: object) -> Call | None:
    """The call to `check_values` that a fused function is, if it is one."""
    body = function.body if isinstance(function, Function) else None
    return body if isinstance(body, Call) and is_call_to(body, "check_values") else None
