"""Sizes hidden from schedules: those that are at least 0 by their form, where nothing else has their symbols."""

from __future__ import annotations

import numpy as np
from onnx import numpy_helper
from onnx.parser import parse_model

from tilewright.compiler import Compilation
from tilewright.ir import build
from tilewright.ir.expr import PrimExpr, Var
from tilewright.ir.structural import structural_equal
from tilewright.lower.opaque_sizes import hide_sizes, show_sizes
from tilewright.te.language import compute, placeholder
from tilewright.te.program import create_prim_func
from tilewright.tir.function import PrimFunc


def program(size: PrimExpr, result: PrimExpr) -> PrimFunc:
    x = placeholder((size, 3), "float32", "x")
    return create_prim_func([x, compute((result, 3), lambda i, j: x[i, j] * 2.0, "y")], "f")


def test_sizes_are_hidden_and_shown_again() -> None:
    n = Var("n")
    size = build.maximum(build.floordiv(n, 384) - 1, 0)
    func = program(size, build.floordiv(size + 1, 2))
    plain, hidden = hide_sizes(func)
    assert list(hidden.values()) == [size]
    assert plain.symbolic_dims() == tuple(hidden)
    assert structural_equal(plain, program(*[(m := next(iter(hidden))), build.floordiv(m + 1, 2)]))
    shown = show_sizes(plain, hidden)
    assert structural_equal(shown, func) and shown.symbolic_dims() == (n,)


def test_what_relates_sizes_stays() -> None:
    n = Var("n")
    func = program(n, build.maximum(n - 2, 0))
    assert hide_sizes(func) == (func, {})


def test_a_size_that_a_buffer_has_is_not_negative() -> None:
    n = Var("n")
    size = build.floordiv(n, 384) - 2
    func = program(size, build.maximum(size, 0))
    plain, hidden = hide_sizes(func)
    (var,) = hidden
    assert structural_equal(plain, program(var, var))
    assert show_sizes(plain, hidden).symbolic_dims() == (n,)


def test_other_sizes_stay() -> None:
    n = Var("n")
    for size in (n, n * 2 + 1, build.minimum(n, 1), build.maximum(n, 2)):
        func = program(size, size)
        assert hide_sizes(func) == (func, {})


def test_the_outermost_size_is_hidden() -> None:
    n = Var("n")
    inner = build.maximum(n - 2, 0)
    outer = build.maximum(build.floordiv(inner, 3) - 1, 0)
    func = program(outer, outer)
    _, hidden = hide_sizes(func)
    assert list(hidden.values()) == [outer]


def test_rows_that_were_joined_are_one_size() -> None:
    frames, batch = Var("frames"), Var("batch")
    rows = (frames - 6) * batch
    func = program(rows, rows)
    _, hidden = hide_sizes(func)
    assert list(hidden.values()) == [rows]
    for plain in (frames * batch, (frames - 6) * 2):
        func = program(plain, plain)
        assert hide_sizes(func) == (func, {})


def test_products_of_joined_rows_keep_their_template() -> None:
    """A recurrent layer after a convolution over an open number of frames, of an open number of signals."""
    text = """
        <ir_version: 10, opset_import: ["" : 17]>
        rows (float[batch, 1, frames, 8] x) => (float[] y)
        <float[4, 1, 7, 1] w = {WEIGHTS}, float[1, 72, 32] u = {WEIGHTS}, float[1, 72, 24] r = {WEIGHTS}> {
            c = Conv (x, w)
            s = Transpose <perm = [2, 0, 1, 3]> (c)
            shape = Constant <value_ints = [0, 0, -1]> ()
            z = Reshape (s, shape)
            y, h = GRU <hidden_size = 24> (z, u, r)
        }
    """
    model = parse_model(text.replace("WEIGHTS", "0.5"))
    for item in model.graph.initializer:
        item.CopyFrom(numpy_helper.from_array(np.ones(tuple(item.dims), np.float32), item.name))
    assert Compilation(model, threads=1).failed_templates == {}


def test_a_buffer_of_no_elements_gives_no_zero_another_name() -> None:
    n = Var("n")
    x = placeholder((build.maximum(n - 2, 0), 0), "float32", "x")
    func = create_prim_func([x, compute((build.maximum(n - 2, 0), 0), lambda i, j: x[i, j] * 2.0, "y")], "f")
    plain, hidden = hide_sizes(func)
    assert all(buffer.shape[1] is build.const(0) for buffer in plain.buffers)
    assert structural_equal(show_sizes(plain, hidden), func)
