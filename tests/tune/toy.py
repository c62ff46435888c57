"""A small space for the tests: a matrix product whose template asks questions, and made-up times of points."""

from __future__ import annotations

from math import log2

from tilewright import te
from tilewright.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule.schedule import Schedule
from tilewright.topi.schedule.choices import Choices
from tilewright.tune.space import Point, Space

TARGET = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512 -num-cores=1")
SIZE = 64


def matmul() -> PrimFunc:
    a = te.placeholder((SIZE, SIZE), "float32", "a")
    b = te.placeholder((SIZE, SIZE), "float32", "b")
    k = te.reduce_axis((0, SIZE), "k")
    c = te.compute((SIZE, SIZE), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "c")
    return te.create_schedule(c.op).func([a, b, c])


class ToySpace(Space):
    """Tiles of the matrix product; `depth` is only asked when the reduction is inside."""

    def __init__(self) -> None:
        super().__init__(matmul(), TARGET)

    def schedule(self, choices: Choices) -> PrimFunc:
        sch = Schedule(self.func)
        i, j, k = sch.get_loops(sch.get_block("c"))
        rows = choices.choose("rows", (1, 2, 4, 8, 16, 32), 1)
        columns = choices.choose("columns", (1, 2, 4, 8, 16, 32), 4)
        i0, i1 = sch.split(i, [None, rows])
        j0, j1 = sch.split(j, [None, columns])
        if choices.choose("inside", (False, True), False):
            depth = choices.choose("depth", (1, 2, 4), 1)
            k0, k1 = sch.split(k, [None, depth])
            sch.reorder(i0, j0, k0, i1, j1, k1)
        else:
            sch.reorder(i0, j0, k, i1, j1)
        sch.vectorize(j1) if columns > 1 and not choices.answers["inside"] else None
        return sch.func


def seconds(point: Point) -> float | None:
    """A made-up time: best at 8 x 16 tiles with the reduction outside; 32 x 32 fails."""
    rows, columns = point["rows"], point["columns"]
    assert isinstance(rows, int) and isinstance(columns, int)
    if rows == columns == 32:
        return None
    time = 1.0 + 0.3 * (log2(rows) - 3) ** 2 + 0.4 * (log2(columns) - 4) ** 2
    return time + (0.5 if point["inside"] else 0.0)
