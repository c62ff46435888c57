"""The interpreter: every statement form, arguments and their checks, failures with their place."""

from __future__ import annotations

import contextlib
import re

import numpy as np
import pytest
from hypothesis import given, settings

from tests.tir.programs import functions
from tilewright.ir import expr as e
from tilewright.ir import intrinsics
from tilewright.ir.build import const
from tilewright.ir.dtype import DataType
from tilewright.ir.expr import Range, Var
from tilewright.ir.small_floats import FORMATS, code_of
from tilewright.ir.structural import assert_same_ir
from tilewright.support.errors import CompilerBug, UnsupportedError, UserError
from tilewright.tir import stmt as s
from tilewright.tir.buffer import Buffer, BufferLoad, make_buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import _compiled, interpret
from tilewright.tir.numbers import InterpreterError
from tilewright.tir.script import parse_script, to_script
from tilewright.tir.stmt import Block, BlockIter, For, IterKind, LoopKind


def program(text: str) -> PrimFunc:
    func = parse_script("@script.function\n" + text.strip())
    assert isinstance(func, PrimFunc)
    return func


def test_reduction_block_with_predicate() -> None:
    func = program("""
def f(A: Buffer[(5, 7), "int32"], R: Buffer[(5,), "int32"]):
    for i, ko, ki in grid(5, 2, 4):
        with block("R"):
            vi, vk = spatial(5, i), reduce(7, ko * 4 + ki)
            where(ko * 4 + ki < 7)
            with init():
                R[vi] = 0
            R[vi] = R[vi] + A[vi, vk]
""")
    a = np.arange(35, dtype=np.int32).reshape(5, 7)
    r = np.full(5, -1, np.int32)
    interpret(func, a, r)
    np.testing.assert_array_equal(r, a.sum(1))


def test_iterators_must_stay_in_their_domain() -> None:
    func = program("""
def f(A: Buffer[(8,), "float32"]):
    for i, j in grid(2, 4):
        with block("A"):
            vi = spatial(7, i * 4 + j)
            A[vi] = 1.0
""")
    with pytest.raises(
        InterpreterError, match=r"iterator vi of block A is bound to 7, outside its domain \[0, 7\)"
    ) as caught:
        interpret(func, np.zeros(8, np.float32))
    assert "i = 1, j = 3" in str(caught.value)


def test_bounds_are_checked_and_explained() -> None:
    func = program("""
def f(A: Buffer[(4, 4), "float32"], B: Buffer[(4, 4), "float32"]):
    for i, j in grid(4, 4):
        B[i, j] = A[i, j + 1]
""")
    with pytest.raises(InterpreterError) as caught:
        interpret(func, np.zeros((4, 4), np.float32), np.zeros((4, 4), np.float32))
    text = str(caught.value)
    assert "buffer A is indexed with 4 in dimension 1 of extent 4" in text
    assert "i = 0, j = 3" in text
    assert "<script>:4:9" in text
    store = program("""
def f(A: Buffer[(4,), "float32"], n: int64):
    A[n - 1] = 1.0
""")
    with pytest.raises(InterpreterError, match="indexed with -1"):
        interpret(store, np.zeros(4, np.float32), 0)
    unchecked = np.zeros(4, np.float32)
    interpret(store, unchecked, 0, check_bounds=False)


def test_guarded_accesses_are_not_evaluated() -> None:
    func = program("""
def pad(A: Buffer[(4,), "float32"], B: Buffer[(8,), "float32"]):
    for i in range(8):
        B[i] = A[i - 2] if 2 <= i and i < 6 else 0.0
""")
    out = np.ones(8, np.float32)
    interpret(func, np.arange(4, dtype=np.float32), out)
    np.testing.assert_array_equal(out, [0, 0, 0, 1, 2, 3, 0, 0])


@pytest.mark.parametrize("kind", list(LoopKind))
def test_loop_kinds(kind: LoopKind) -> None:
    a, i = make_buffer("A", (6,), "int32"), Var("i")
    thread = "threadIdx.x" if kind is LoopKind.THREAD else None
    loop = For(i, const(2), const(3), kind, s.BufferStore(a, (i,), e.Cast(i, DataType.of("int32"))), thread)
    out = np.zeros(6, np.int32)
    interpret(PrimFunc("f", (a,), loop), out)
    np.testing.assert_array_equal(out, [0, 0, 2, 3, 4, 0])


def test_integers_are_computed_outside_of_loops_that_they_do_not_depend_on() -> None:
    func = program("""
def f(A: Buffer[(2, 4, 8), "int32"], R: Buffer[(4, 2), "int32"]):
    for i, k in grid(8, 8):
        with block("R"):
            vi, vk = spatial(8, i), reduce(8, k)
            with init():
                R[vi // 2, vi % 2] = 0
            R[vi // 2, vi % 2] = R[vi // 2, vi % 2] + A[vi // 4, vi % 4, vk]
""")
    inner = _compiled(func, check_bounds=True).source.partition("range(8)")[2].partition("range(8)")[2]
    assert not re.search("//|%", inner), inner
    a, r = np.arange(64, dtype=np.int32).reshape(2, 4, 8), np.zeros((4, 2), np.int32)
    interpret(func, a, r)
    np.testing.assert_array_equal(r.reshape(-1), a.sum(2).reshape(-1))


def test_values_of_variables_that_are_bound_again_are_new() -> None:
    """The iterator of a block that stands twice in a loop, a definition, and a value of one branch in the other."""
    a, i, j, v, x = make_buffer("A", (4, 4, 4), "int32"), Var("i"), Var("j"), Var("v"), Var("x")
    zero, four = const(0), const(4)
    amount = e.Cast(v, DataType.of("int32"))

    def stored(first: e.PrimExpr, second: e.PrimExpr) -> s.Stmt:
        place = (first, e.FloorMod(e.Add(second, const(1)), four), j)
        return s.BufferStore(a, place, e.Add(BufferLoad(a, place), amount))

    def block(value: e.PrimExpr) -> s.Stmt:
        inner = For(j, zero, four, LoopKind.SERIAL, s.LetStmt(x, e.FloorMod(e.Add(v, i), four), stored(v, x)))
        both = s.IfThenElse(e.LT(i, const(2)), inner, inner)
        return Block("B", (BlockIter(v, Range(zero, four), IterKind.SPATIAL, value),), (), (), both)

    turned = e.FloorMod(e.Add(i, const(2)), four)
    body = For(i, zero, four, LoopKind.SERIAL, s.SeqStmt((block(i), block(turned))))
    out = np.zeros((4, 4, 4), np.int32)
    interpret(PrimFunc("f", (a,), body), out)
    expected = np.zeros((4, 4), np.int32)
    for outer in range(4):
        for value in (outer, (outer + 2) % 4):
            expected[value, (value + outer + 1) % 4] += value
    np.testing.assert_array_equal(out, expected[:, :, None].repeat(4, 2))


def test_symbolic_shapes() -> None:
    func = program("""
def f(A: Buffer[(n, m), "float32"], B: Buffer[(m, n), "float32"], C: Buffer[(n * m,), "float32"]):
    T = alloc_buffer((n, m), "float32")
    for i, j in grid(n, m):
        T[i, j] = A[i, j] + 1.0
    for i, j in grid(n, m):
        B[j, i] = T[i, j]
        C[i * m + j] = T[i, j]
""")
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    b, c = np.zeros((3, 2), np.float32), np.zeros(6, np.float32)
    interpret(func, a, b, c)
    np.testing.assert_array_equal(b, (a + 1).T)
    np.testing.assert_array_equal(c, (a + 1).reshape(-1))
    with pytest.raises(UserError, match=r"buffer B has shape \(3, 2\), the array has \(2, 3\)"):
        interpret(func, a, a, c)


def test_dimensions_can_be_given() -> None:
    func = program("""
def f(A: Buffer[(n * m,), "float32"], B: Buffer[(m,), "float32"]):
    for i, j in grid(n, m):
        A[i * m + j] = B[j]
""")
    a, b = np.zeros(6, np.float32), np.arange(3, dtype=np.float32)
    with pytest.raises(UserError, match="the dimensions n do not follow from the shapes"):
        interpret(func, a, b)
    interpret(func, a, b, 2, 3)
    np.testing.assert_array_equal(a, [0, 1, 2, 0, 1, 2])


def test_arguments_are_checked() -> None:
    func = program("""
def f(A: Buffer[(4,), "float32"], n: int64, x: float32):
    A[n] = x
""")
    a = np.zeros(4, np.float32)
    interpret(func, a, np.int64(2), np.array(1.5))
    assert a[2] == 1.5
    interpret(func, a.reshape(2, 2), 3, 2)
    assert a[3] == 2
    for arguments, message in [
        ((a, 1), "f takes 3 arguments, 2 were given"),
        ((1, 1, 1.0), "parameter A is a buffer, 1 was given"),
        ((a.astype(np.float64), 1, 1.0), "buffer A holds float32, an array of float64 was given"),
        ((np.zeros(5, np.float32), 1, 1.0), "buffer A has shape"),
        ((a, a, 1.0), "parameter n is a scalar, an array was given"),
        ((a, 1.5, 1.0), r"1\.5 is not a int64"),
    ]:
        with pytest.raises(UserError, match=message):
            interpret(func, *arguments)  # type: ignore[arg-type]


def test_arrays_need_not_be_contiguous_and_may_alias() -> None:
    func = program("""
def f(A: Buffer[(2, 2), "float32"], B: Buffer[(2, 2), "float32"]):
    for i, j in grid(2, 2):
        B[i, j] = A[i, j] + 1.0
""")
    base = np.zeros((4, 4), np.float32)
    interpret(func, base[::2, ::2], base[1::2, 1::2])
    assert base.sum() == 4
    same = np.zeros((2, 2), np.float32)
    interpret(func, same, same)
    assert (same == 1).all()


@pytest.mark.parametrize(
    "name", ["bfloat16", *FORMATS, "int4", "uint4", "int2", "uint2", "int1", "uint1", "float16", "bool"]
)
def test_small_types(name: str) -> None:
    dtype = DataType.of(name)
    a, b, i = make_buffer("A", (4,), name), make_buffer("B", (4,), name), Var("i")
    value = BufferLoad(a, (i,)) if dtype.is_bool else e.Add(BufferLoad(a, (i,)), const(1, dtype))
    func = PrimFunc("f", (a, b), For(i, e.ZERO, const(4), LoopKind.SERIAL, s.BufferStore(b, (i,), value)))
    array = np.zeros(4, dtype.numpy())
    out = np.ones_like(array)
    interpret(func, array, out)
    if dtype.name == "bfloat16":
        assert (out == 0x3F80).all()
    elif dtype.is_small_float:
        # The least power of two is nothing beside 1.
        assert (out == code_of(1.0, name)).all()
    else:
        assert (out == (0 if dtype.is_bool else -1 if name == "int1" else 1)).all()


def test_fresh_memory_is_poisoned() -> None:
    func = program("""
def f(A: Buffer[(2,), "float32"], B: Buffer[(2,), "int32"]):
    for i in range(2):
        T = allocate((1,), "float32", "local")
        U = allocate((1,), "int32", "local")
        A[i] = T[0]
        B[i] = U[0]
        T[0] = 1.0
        U[0] = 1
""")
    a, b = np.zeros(2, np.float32), np.zeros(2, np.int32)
    interpret(func, a, b)
    assert np.isnan(a).all()
    assert (b == np.int32(-1515870811)).all()


def test_definitions_conditionals_assertions() -> None:
    func = program("""
def f(A: Buffer[(4,), "float32"], n: int64):
    assert n < 4, "n is too large"
    for i in range(4):
        x = float32(i) * 2.0
        if i < n:
            A[i] = x
        elif i == n:
            y = x + x
            A[i] = y
        else:
            A[i] = -1
""")
    a = np.zeros(4, np.float32)
    interpret(func, a, 2)
    np.testing.assert_array_equal(a, [0, 2, 8, -1])
    with pytest.raises(InterpreterError, match="assertion failed: n is too large"):
        interpret(func, a, 9)


def test_vectors() -> None:
    func = program("""
def f(A: Buffer[(16,), "float32"], B: Buffer[(16,), "float32"]):
    for i in range(4):
        v = A[ramp(i * 4, 1, 4)]
        B[ramp(i * 4, 1, 4)] = v * broadcast(float32(2), 4) + cast(ramp(0, 1, 4), "float32x4")
    B[ramp(1, 1, 4)] = B[ramp(0, 1, 4)]
    evaluate(B[ramp(0, 1, 4)])
""")
    a, b = np.arange(16, dtype=np.float32), np.zeros(16, np.float32)
    interpret(func, a, b)
    expected = a * 2 + np.tile(np.arange(4, dtype=np.float32), 4)
    expected[1:5] = expected[0:4].copy()
    np.testing.assert_array_equal(b, expected)


def test_vector_conditions_mask_a_store() -> None:
    func = program("""
def f(A: Buffer[(8,), "float32"], B: Buffer[(4,), "float32"]):
    if ramp(0, 1, 8) < broadcast(int64(4), 8):
        A[ramp(0, 1, 8)] = B[ramp(0, 1, 8)]
""")
    a = np.zeros(8, np.float32)
    interpret(func, a, np.ones(4, np.float32))
    np.testing.assert_array_equal(a, [1, 1, 1, 1, 0, 0, 0, 0])
    assert_same_ir(parse_script(to_script(func)), func)
    condition = func.body.condition
    store = func.body.then_body
    for body in (s.IfThenElse(condition, store, store), s.IfThenElse(condition, s.SeqStmt((store, store)))):
        with pytest.raises(CompilerBug, match="a vector condition guards a single store"):
            interpret(func.replace(body=body), a, np.ones(4, np.float32))
    one = s.BufferStore(func.buffers[0], (e.ZERO,), const(1.0))
    with pytest.raises(CompilerBug, match="a vector condition has the lanes of the store"):
        interpret(func.replace(body=s.IfThenElse(condition, one)), a, np.ones(4, np.float32))


def test_shared_values_in_vector_stores_are_per_lane() -> None:
    func = program("""
def f(A: Buffer[(8,), "float32"], B: Buffer[(8,), "float32"]):
    e = alias(A[ramp(0, 1, 8)] * A[ramp(0, 1, 8)] + broadcast(float32(1), 8))
    B[ramp(0, 1, 8)] = e * e + e
""")
    a, b = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    interpret(func, a, b)
    np.testing.assert_array_equal(b, (a * a + 1) ** 2 + a * a + 1)


def test_threads_meet_at_barriers() -> None:
    func = program("""
def reverse(A: Buffer[(2, 4), "int32"], B: Buffer[(2, 4), "int32"]):
    for b in thread_binding("blockIdx.x", 2):
        T = allocate((4,), "int32", "shared")
        for y in thread_binding("threadIdx.y", 2):
            for x in thread_binding("threadIdx.x", 2):
                for r in range(2):
                    T[y * 2 + x] = A[b, y * 2 + x] + int32(r)
                    barrier("shared")
                    B[b, y * 2 + x] = T[3 - (y * 2 + x)]
                    barrier("shared")
""")
    a = np.arange(8, dtype=np.int32).reshape(2, 4)
    b = np.zeros_like(a)
    interpret(func, a, b)
    np.testing.assert_array_equal(b, a[:, ::-1] + 1)


def test_barriers_in_divergent_code_are_reported() -> None:
    func = program("""
def f(A: Buffer[(4,), "int32"]):
    for x in thread_binding("threadIdx.x", 4):
        if x < 2:
            barrier("shared")
        A[x] = 1
""")
    with pytest.raises(InterpreterError, match="wait at different barriers"):
        interpret(func, np.zeros(4, np.int32))


def test_barriers_outside_threads_do_nothing() -> None:
    func = program("""
def f(A: Buffer[(4,), "int32"]):
    barrier("shared")
    for x in range(4):
        A[x] = 1
""")
    out = np.zeros(4, np.int32)
    interpret(func, out)
    assert (out == 1).all()


def test_deep_nests() -> None:
    a = make_buffer("A", (1,), "int64")
    loops = [Var(f"i{n}") for n in range(45)]
    total: e.PrimExpr = BufferLoad(a, (e.ZERO,))
    for var in loops:
        total = e.Add(total, var)
    body: s.Stmt = s.BufferStore(a, (e.ZERO,), total)
    for number, var in enumerate(loops):
        body = For(var, e.ZERO, const(2 if number % 20 == 0 else 1), LoopKind.SERIAL, body)
    out = np.zeros(1, np.int64)
    interpret(PrimFunc("f", (a,), body), out)
    assert out[0] == 12
    body = s.BufferStore(a, (e.ZERO,), e.Add(BufferLoad(a, (e.ZERO,)), const(1)))
    body = s.SeqStmt((body, s.Evaluate(intrinsics.barrier()), body))
    for number in range(40):
        kind, thread = (LoopKind.THREAD, "threadIdx.x") if number == 39 else (LoopKind.SERIAL, None)
        body = For(Var(f"i{number}"), e.ZERO, const(2 if number == 39 else 1), kind, body, thread)
    out = np.zeros(1, np.int64)
    interpret(PrimFunc("f", (a,), body), out)
    assert out[0] == 4


def test_integer_arithmetic_wraps() -> None:
    func = program("""
def f(A: Buffer[(3,), "int8"], B: Buffer[(3,), "int8"]):
    for i in range(3):
        B[i] = A[i] * A[i] + 100
""")
    a = np.array([10, 127, -128], np.int8)
    b = np.zeros_like(a)
    interpret(func, a, b)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(b, a * a + np.int8(100))


def test_division_by_zero_has_a_place() -> None:
    func = program("""
def f(A: Buffer[(4,), "int32"]):
    for i in range(4):
        A[i] = int32(12 // (i - 2))
""")
    with pytest.raises(InterpreterError, match="integer division by zero") as caught:
        interpret(func, np.zeros(4, np.int32))
    assert "i = 2" in str(caught.value)


def test_external_functions() -> None:
    func = program("""
def f(A: Buffer[(2,), "float32"]):
    A[0] = call_extern("float32", "half", A[1])
    evaluate(call_extern("int32", "note", 3))
""")
    a = np.array([0, 5], np.float32)
    notes: list[int] = []
    interpret(func, a, externs={"half": lambda x: x / 2, "note": lambda n: notes.append(n) or 0})
    assert a[0] == 2.5
    assert notes == [3]
    with pytest.raises(InterpreterError, match="the external function 'half' is not known"):
        interpret(func, a)


def test_places_without_spans() -> None:
    a, i = make_buffer("A", (2,)), Var("i")
    store = s.BufferStore(a, (i,), const(1.0))
    func = PrimFunc("f", (a,), For(i, e.ZERO, const(3), LoopKind.SERIAL, store))
    with pytest.raises(InterpreterError, match="f, the store to A, with i = 2"):
        interpret(func, np.zeros(2, np.float32))
    iters = (BlockIter(Var("v"), Range(e.ZERO, const(2)), IterKind.SPATIAL, i),)
    block = Block("b", iters, (), (), s.BufferStore(a, (e.ZERO,), const(1.0)))
    func = PrimFunc("f", (a,), For(i, e.ZERO, const(3), LoopKind.SERIAL, block))
    with pytest.raises(InterpreterError, match="f, block b, with i = 2"):
        interpret(func, np.zeros(2, np.float32))


def test_malformed_programs_are_refused() -> None:
    a, i = make_buffer("A", (4,)), Var("i")
    with pytest.raises(UserError, match="variable i is used where it is not defined"):
        interpret(PrimFunc("f", (a,), s.BufferStore(a, (i,), const(1.0))), np.zeros(4, np.float32))
    other = make_buffer("B", (4,))
    with pytest.raises(UserError, match="buffer B is used where it is not declared"):
        interpret(PrimFunc("f", (a,), s.BufferStore(other, (e.ZERO,), const(1.0))), np.zeros(4, np.float32))
    lanes = s.BufferStore(a, (e.Ramp(e.ZERO, e.ONE, 2),), const(1.0))
    with pytest.raises(CompilerBug, match="store of 1 lanes to 2 places of A"):
        interpret(PrimFunc("f", (a,), lanes), np.zeros(4, np.float32))
    unknown = s.Evaluate(e.Call("mystery", (), DataType.of("int32")))
    with pytest.raises(UnsupportedError, match="does not know the intrinsic mystery"):
        interpret(PrimFunc("f", (), unknown))


def test_strided_parameters_are_indexed_by_shape() -> None:
    n, stride = Var("n"), Var("stride")
    a = Buffer("A", (n, const(2)), DataType.of("float32"), "global", (stride, const(1)), Var("start"))
    i = Var("i")
    func = PrimFunc("f", (a,), For(i, e.ZERO, n, LoopKind.SERIAL, s.BufferStore(a, (i, e.ONE), const(3.0))))
    base = np.zeros((3, 5), np.float32)
    interpret(func, base[:, :2])
    assert (base[:, 1] == 3).all()
    assert base.sum() == 9


@given(functions())
@settings(max_examples=60)
def test_random_programs_run_or_explain(func: PrimFunc) -> None:
    arguments: list[object] = []
    for param in func.params:
        if isinstance(param, Buffer):
            shape = param.static_shape or (2, 3)
            arguments.append(np.zeros(shape, param.dtype.numpy()))
        else:
            arguments.append(1)
    small = all(_small(item) for item in _loops(func.body))
    if not small:
        return
    with contextlib.suppress(InterpreterError, MemoryError, OverflowError):
        interpret(func, *arguments, externs={"f": lambda *_: 0})  # type: ignore[arg-type]


def _loops(statement: s.Stmt) -> list[s.Stmt]:
    found: list[s.Stmt] = []
    stack: list[object] = [statement]
    while stack:
        item = stack.pop()
        if isinstance(item, (For, s.Allocate)):
            found.append(item)
        if isinstance(item, s.Stmt):
            stack.extend(item.children())
    return found


def _small(item: s.Stmt) -> bool:
    extents = (
        [item.extent] if isinstance(item, For) else list(item.buffer.shape) if isinstance(item, s.Allocate) else []
    )
    return all(isinstance(extent, e.IntImm) and extent.value < 10 for extent in extents)
