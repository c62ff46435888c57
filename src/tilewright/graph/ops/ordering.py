"""An operator that says when, not what: a value that is there only after another one.

A value that is computed twice, early for one reader and again for a late one, is one computation to any pass that looks
for equal ones, and dataflow alone may begin the second early. `after` keeps the two apart, and the second late.
"""

from __future__ import annotations

from tilewright.graph.ir.op import Array, FusionKind, NoAttributes, Types, operator
from tilewright.graph.ops.common import tensor
from tilewright.ir.types import Type
from tilewright.support.errors import UserError


def _after(args: list[Array], attributes: NoAttributes) -> Array:
    return args[0]


@operator("after", inputs=("data", "other"), kind=FusionKind.OPAQUE, reference=_after, elementwise=True)
def after(types: Types, attributes: NoAttributes) -> Type:
    """The data, in its own memory, once the other value (a scalar) has been computed."""
    data, other = tensor(types, 0, "the data"), tensor(types, 1, "the other value")
    if other.static_shape != ():
        raise UserError(f"a value comes after a scalar, not after {other!r}")
    return data
