"""Dot products of runs of bytes: some rows against some columns, each as long as a whole reduction.

    c[r, j] += a[r, 0] * b[j, 0] + a[r, 1] * b[j, 1] + ...        (one function: `tw_run_dots_<rows>x<columns>`)

Runs of any length: processors that multiply vectors of bytes leave out the lanes past the end.
"""

from __future__ import annotations

from functools import cache
from math import prod

from tilewright import te
from tilewright.ir.build import cast
from tilewright.ir.dtype import INT32
from tilewright.te import reduction
from tilewright.tir.machine import RUN_DOTS
from tilewright.tir.tensor_intrin import HardwareCall, Operand, TensorIntrin, hardware_intrin


@cache
def run_dots(rows: int, columns: int, run: tuple[int, ...]) -> TensorIntrin:
    """The intrinsic for a tile of rows x columns; the run is what loops of these extents visit, in order."""
    a = te.placeholder((rows, *run), "int8", name="a")
    b = te.placeholder((columns, *run), "int8", name="b")
    steps = [te.reduce_axis((0, extent), name=f"k{number}") for number, extent in enumerate(run)]
    c = te.compute(
        (rows, columns),
        lambda r, j: reduction.sum(cast(a[(r, *steps)], INT32) * cast(b[(j, *steps)], INT32), steps),
        name="c",
    )
    inner = [prod(run[number + 1 :]) for number in range(len(run))]

    def rule(inputs: list[Operand], outputs: list[Operand]) -> tuple[HardwareCall | None, ...]:
        row, column = inputs
        update = hardware_intrin(
            f"{RUN_DOTS}_{rows}x{columns}",
            outputs[0].access_ptr("rw"),
            row.access_ptr("r"),
            row.strides[0],
            column.access_ptr("r"),
            prod(run),
        )
        return None, None, update

    name = f"{RUN_DOTS}_{rows}x{columns}_{'x'.join(map(str, run))}"
    return te.decl_tensor_intrin(c.op, rule, name=name, strides={a: (None, *inner)})
