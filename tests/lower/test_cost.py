"""The work of kernels: what counts as an operation."""

from __future__ import annotations

from tilewright import te
from tilewright.ir.build import floordiv, floormod, lt, maximum, select
from tilewright.ir.expr import Var
from tilewright.lower.cost import number_at, work_of


def product(dtype: str, total: str) -> tuple[int, int]:
    a = te.placeholder((4, 8), dtype, name="a")
    b = te.placeholder((8, 16), dtype, name="b")
    k = te.reduce_axis((0, 8), "k")
    c = te.compute((4, 16), lambda i, j: te.sum(a[i, k].astype(total) * b[k, j].astype(total), axis=k), name="c")
    return work_of(te.create_prim_func([a, b, c])).at(1)


def test_integer_products_count_as_float_ones_do() -> None:
    flops, moved = product("float32", "float32")
    assert flops == 2 * 4 * 8 * 16
    integer_operations, integer_bytes = product("int8", "int32")
    assert integer_operations == flops
    assert integer_bytes == 4 * 8 + 8 * 16 + 4 * 4 * 16 < moved


def test_indices_and_moves_are_no_operations() -> None:
    a = te.placeholder((8,), "int32", name="a")
    moved = te.compute((8,), lambda i: a[7 - i], name="moved")
    assert work_of(te.create_prim_func([a, moved])).at(1)[0] == 0
    places = te.compute((8,), lambda i: te.cast(i, "int32") * 2, name="places")
    assert work_of(te.create_prim_func([places])).at(1)[0] == 0


def test_sizes_as_numbers() -> None:
    n = Var("n")
    assert number_at(n * n * n * n, 1 << 20) == 1 << 80
    assert number_at(maximum(floordiv(n + 257, 384) - 2, 0), 128) == 0
    assert number_at(select(lt(n, 5), n, floormod(n, 5)), 128) == 3
    # Nothing is divided by zero, and nothing is known of what is.
    assert number_at(floordiv(n, n - 128) + 1, 128) == 0
