"""The words of the tensor-expression language, and their messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.te.running import run
from tilewright import te
from tilewright.ir import intrinsics
from tilewright.support.errors import UserError
from tilewright.te.tensor import Tensor
from tilewright.tir.stmt import BufferStore, For, IterKind, LoopKind, SeqStmt, Stmt


def test_elementwise_computation() -> None:
    a = te.placeholder((2, 3), name="A")
    b = te.compute((2, 3), lambda i, j: a[i, j] * 2 + 1, name="B")
    (out,) = run([a, b], np.arange(6, dtype=np.float32).reshape(2, 3))
    np.testing.assert_array_equal(out, np.arange(6, dtype=np.float32).reshape(2, 3) * 2 + 1)


def test_a_scalar_shape_and_a_single_dimension() -> None:
    a = te.placeholder(4, name="A")
    b = te.compute(4, lambda i: a[3 - i], name="B")
    c = te.compute((), lambda: a[0] + a[1], name="C")
    reversed_a, total = run([a, b, c], np.arange(4, dtype=np.float32))
    assert reversed_a.tolist() == [3, 2, 1, 0]
    assert total.item() == 1


def test_symbolic_dimensions() -> None:
    n, m = te.var("n"), te.var("m")
    a = te.placeholder((n, m), name="A")
    k = te.reduce_axis((0, m), "k")
    b = te.compute((n,), lambda i: te.sum(a[i, k], axis=k), name="B")
    for shape in ((2, 3), (4, 1), (0, 5)):
        values = np.random.default_rng(0).random(shape).astype(np.float32)
        (out,) = run([a, b], values)
        np.testing.assert_allclose(out, values.sum(axis=1), rtol=1e-6)


def test_scalar_parameters() -> None:
    a = te.placeholder((3,), name="A")
    scale = te.var("scale", "float32")
    b = te.compute((3,), lambda i: a[i] * scale, name="B")
    (out,) = run([a, scale, b], np.ones(3, np.float32), 2.5)
    assert out.tolist() == [2.5] * 3


def test_stages_and_several_outputs() -> None:
    a = te.placeholder((4,), "int32", "A")
    b = te.compute((4,), lambda i: a[i] + 1, name="B")
    c = te.compute((4,), lambda i: b[i] * b[3 - i], name="C")
    d = te.compute((4,), lambda i: b[i] - a[i], name="D")
    values = np.array([1, 2, 3, 4], np.int32)
    got_c, got_d = run([a, c, d], values)
    assert got_c.tolist() == [10, 12, 12, 10]
    assert got_d.tolist() == [1] * 4
    # The intermediate as an output too.
    got_b, got_c = run([a, b, c], values)
    assert got_b.tolist() == [2, 3, 4, 5]


def test_variadic_indices_and_axis_names() -> None:
    a = te.placeholder((2, 3), name="A")
    b = te.compute((2, 3), lambda *i: a[i], name="B")
    assert [axis.name for axis in b.op.axis] == ["i0", "i1"]
    c = te.compute((2, 3), lambda row, *rest: a[(row, *rest)], name="C")
    assert [axis.name for axis in c.op.axis] == ["row", "i1"]
    assert all(axis.kind is IterKind.SPATIAL for axis in c.op.axis)


def test_intrinsics_selection_and_conversion() -> None:
    a = te.placeholder((3,), name="A")
    b = te.compute((3,), lambda i: te.select(a[i] > 0, intrinsics.sqrt(a[i]), te.const(-1.0)), name="B")
    c = te.compute((3,), lambda i: te.cast(te.maximum(a[i], 0), "int8"), name="C")
    got_b, got_c = run([a, b, c], np.array([4, -3, 9], np.float32))
    assert got_b.tolist() == [2, -1, 3]
    assert got_c.tolist() == [4, 0, 9]


def test_loops_use_the_axis_variables() -> None:
    a = te.placeholder((2, 3), name="A")
    k = te.reduce_axis((0, 3), "k")
    b = te.compute((2,), lambda i: te.sum(a[i, k], axis=k), name="B")
    func = te.create_prim_func([a, b])
    loop = func.root.body
    assert isinstance(loop, For)
    assert loop.var is b.op.axis[0].var
    assert isinstance(loop.body, For)
    assert loop.body.var is k.var
    assert b.op.reduce_axis == (k,)


def test_notes_reach_the_block() -> None:
    a = te.placeholder((2,), name="A")
    b = te.compute((2,), lambda i: a[i], name="B", notes={"anchor": "matmul", "mine": [1]})
    loop = te.create_prim_func([a, b]).root.body
    assert isinstance(loop, For)
    assert loop.body.annotations == {"anchor": "matmul", "mine": [1]}  # type: ignore[attr-defined]


def test_repeated_names_become_unique() -> None:
    a = te.placeholder((2,), name="x")
    b = te.compute((2,), lambda i: a[i] + 1, name="x")
    c = te.compute((2,), lambda i: b[i] + 1, name="x")
    func = te.create_prim_func([a, c])
    assert [buffer.name for buffer in func.buffers] == ["x", "x_1"]
    (out,) = run([a, c], np.zeros(2, np.float32))
    assert out.tolist() == [2, 2]


def test_extern_statement() -> None:
    a = te.placeholder((4,), name="A")

    def body(inputs: list[Any], outputs: list[Any]) -> Stmt:
        i = te.var("i")
        one = te.const(1)
        step = BufferStore(outputs[0], (i,), outputs[0][i - 1] + inputs[0][i])
        start = BufferStore(outputs[0], (te.const(0),), inputs[0][0])
        return SeqStmt((start, For(i, one, te.const(3), LoopKind.SERIAL, step)))

    b = te.extern((4,), [a], body, name="cumulate")
    assert isinstance(b, Tensor)
    c = te.compute((4,), lambda i: b[i] * 2, name="C")
    (out,) = run([a, c], np.array([1, 2, 3, 4], np.float32))
    assert out.tolist() == [2, 6, 12, 20]


def test_extern_with_several_outputs() -> None:
    a = te.placeholder((2,), "int32", "A")

    def body(inputs: list[Any], outputs: list[Any]) -> Stmt:
        zero, one = te.const(0), te.const(1)
        return SeqStmt(
            (
                BufferStore(outputs[0], (zero,), inputs[0][0]),
                BufferStore(outputs[1], (zero,), te.cast(inputs[0][one], "int64")),
            )
        )

    b, c = te.extern([(1,), (1,)], [a], body, name="take_both", dtype=["int32", "int64"])  # type: ignore[misc]
    got_b, got_c = run([a, b, c], np.array([5, 6], np.int32))
    assert (got_b.tolist(), got_c.tolist(), got_c.dtype.name) == ([5], [6], "int64")


def test_extern_rows() -> None:
    a = te.placeholder((3, 4, 2), name="A")

    def running(inputs: list[Any], outputs: list[Any], place: tuple[Any, ...]) -> Stmt:
        i = te.var("i")
        before = outputs[0][place[0], i - 1, place[2]]
        step = BufferStore(outputs[0], (place[0], i, place[2]), before + inputs[0][place[0], i, place[2]])
        start = BufferStore(outputs[0], place, inputs[0][place])
        return SeqStmt((start, For(i, te.const(1), te.const(3), LoopKind.SERIAL, step)))

    (b,) = te.extern_rows([(3, 4, 2)], 1, [a], running, "running", [a.dtype])
    data = np.arange(24, dtype=np.float32).reshape(3, 4, 2)
    (out,) = run([a, b], data)
    np.testing.assert_array_equal(out, np.cumsum(data, axis=1))

    def turned(inputs: list[Any], outputs: list[Any], place: tuple[Any, ...]) -> Stmt:
        i, j = te.var("i"), te.var("j")
        store = BufferStore(outputs[0], (i, place[1], j), inputs[0][2 - i, place[1], 1 - j])
        return For(
            i, te.const(0), te.const(3), LoopKind.SERIAL, For(j, te.const(0), te.const(2), LoopKind.SERIAL, store)
        )

    (c,) = te.extern_rows([(3, 4, 2)], (0, 2), [a], turned, "turned", [a.dtype])
    (out,) = run([a, c], data)
    np.testing.assert_array_equal(out, data[::-1, :, ::-1])
    with pytest.raises(UserError, match=r"te\.extern_rows f: the shapes of the outputs differ beside axes \(0,\)"):
        te.extern_rows([(2, 3), (2, 4)], 0, [a], running, "f", [a.dtype, a.dtype])
    for along in (2, -1, (0, 0), ()):
        with pytest.raises(UserError, match="are not different axes of 2 dimensions"):
            te.extern_rows([(2, 3)], along, [a], running, "f", [a.dtype])
    with pytest.raises(UserError, match=r"1 outputs .* but 2 dtypes"):
        te.extern_rows([(2, 3)], 0, [a], running, "f", [a.dtype, a.dtype])
    (wrong,) = te.extern_rows([(2, 3)], 0, [a], lambda inputs, outputs, place: "text", "f", [a.dtype])
    with pytest.raises(UserError, match="the function must give a statement, not 'text'"):
        te.create_prim_func([a, wrong])


def test_thread_axes() -> None:
    assert te.thread_axis("blockIdx.x") == "blockIdx.x"
    assert te.thread_axis(tag="threadIdx.y") == "threadIdx.y"
    assert te.thread_axis((0, 8), "threadIdx.x") == "threadIdx.x"


def test_reprs_are_short() -> None:
    a = te.placeholder((2, te.var("n")), name="A")
    assert repr(a) == "Tensor(A, (2, n), float32)"
    assert repr(a.op) == "PlaceholderOp(A)"
    assert a.op.output(0) is a
    assert a.ndim == 2


A = te.placeholder((2, 3), name="A")
K = te.reduce_axis((0, 3), "k")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: te.placeholder((-1,)), "a dimension cannot be negative: -1"),
        (lambda: te.placeholder((te.var("x", "float32"),)), "a dimension must be an integer, not float32"),
        (lambda: te.placeholder(("x",)), "'x' is not a number or an expression"),
        (lambda: te.compute((2, 3), lambda i: A[i, i]), "the shape has 2 dimensions, the function takes 1 indices"),
        (lambda: A[1], "tensor A has 2 dimensions, indexed with 1"),
        (lambda: A[1.5, 0], "the constant 1.5 is not a int64"),
        (lambda: A[te.var("x", "float32"), 0], "tensor A is indexed with a float32"),
        (
            lambda: te.compute((2,), lambda i: te.sum(A[i, K], axis=K) + 1, name="B"),
            "te.compute B: a reduction must be the whole body",
        ),
        (
            lambda: te.compute_many((2,), lambda i: (te.sum(A[i, K], axis=K), A[i, 0]), name="B"),
            "te.compute B: a reduction must be the whole body",
        ),
        (
            lambda: te.compute_many((2,), lambda i: (te.sum(A[i, K], axis=K), te.max(A[i, K], axis=K)), name="B"),
            "te.compute B: the values must come from one reduction",
        ),
        (
            lambda: te.compute((2,), lambda i: te.argmax((K, A[i, K]), axis=K)[0], name="B"),
            "te.compute B: all 2 values of the reduction must be outputs",
        ),
        (lambda: te.compute((2,), lambda i: te.argmax((K, A[i, K]), axis=K)), "this computation gives several values"),
        (lambda: te.sum(A[0, 0], axis=[te.compute((2,), lambda i: A[i, 0]).op.axis[0]]), "axes made by te.reduce_axis"),
        (lambda: te.create_prim_func([A]), "there is nothing to compute"),
        (
            lambda: te.create_prim_func([te.compute((2,), lambda i: A[i, 0])]),
            "input A is used but is not among the arguments",
        ),
        (
            lambda: te.create_prim_func([A, A, te.compute((2,), lambda i: A[i, 0])]),
            "tensor A is given twice among the arguments",
        ),
        (
            lambda: te.extern((2,), [A, te.placeholder((1,), "int8")], lambda i, o: te.const(0), name="f"),
            "te.extern f: give dtype",
        ),
        (
            lambda: te.extern([(2,), (3,)], [A], lambda i, o: te.const(0), name="f", dtype=["int8"]),
            "te.extern f: 2 outputs but 1 dtypes",
        ),
        (
            lambda: te.create_prim_func([A, te.extern((2,), [A], lambda i, o: "text", name="f")]),  # type: ignore[list-item, return-value, arg-type]
            "te.extern f: the function must give a statement or a call, not 'text'",
        ),
    ],
)
def test_messages(make: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        make()
    assert message in str(caught.value)


def test_expressions_have_no_truth_value() -> None:
    with pytest.raises(UserError, match="no truth value"):
        te.compute((2,), lambda i: A[i, 0] if A[i, 0] > 0 else A[i, 1])
