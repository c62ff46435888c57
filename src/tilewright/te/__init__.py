"""Floor 5: the tensor-expression language: say what to compute; schedules say how.

A = te.placeholder((n, m), name="A")
k = te.reduce_axis((0, m), name="k")
B = te.compute((n,), lambda i: te.sum(A[i, k], axis=k), name="B")
s = te.create_schedule(B.op)
"""

from tilewright.ir.build import all_of, any_of, cast, const, select
from tilewright.ir.build import maximum as maximum
from tilewright.ir.build import minimum as minimum
from tilewright.te.language import (
    compute,
    compute_many,
    extern,
    placeholder,
    reduce_axis,
    scan,
    thread_axis,
    var,
)
from tilewright.te.program import create_prim_func
from tilewright.te.reduction import (
    all,
    any,
    argmax,
    argmin,
    comm_reducer,
    max,
    max_value,
    min,
    min_value,
    prod,
    sum,
)
from tilewright.te.schedule import Schedule, Stage, create_schedule, lower
from tilewright.te.tensor import Axis, Tensor

__all__ = [
    "Axis",
    "Schedule",
    "Stage",
    "Tensor",
    "all",
    "all_of",
    "any",
    "any_of",
    "argmax",
    "argmin",
    "cast",
    "comm_reducer",
    "compute",
    "compute_many",
    "const",
    "create_prim_func",
    "create_schedule",
    "extern",
    "lower",
    "max",
    "max_value",
    "maximum",
    "min",
    "min_value",
    "minimum",
    "placeholder",
    "prod",
    "reduce_axis",
    "scan",
    "select",
    "sum",
    "thread_axis",
    "var",
]
