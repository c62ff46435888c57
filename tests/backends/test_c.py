"""The back end `c`: what a C compiler makes of programs is what the interpreter says; so are models."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from bench.page_models import save_image_model, save_text_model
from tests.codegen.c.test_c_expressions import COUNT, SPECIAL, TYPES, _float_program, _integers
from tests.codegen.compiled import call, integers, run
from tests.requirements import need
from tests.tir.schedule.test_schedule_random import _step, programs
from tilewright import te
from tilewright.backends.c import compiler
from tilewright.backends.c.compiler import COMPILER
from tilewright.backends.host import compile_lowered, host_source
from tilewright.backends.llvm.jit import JitLibrary
from tilewright.backends.llvm.pool import runtime_imports
from tilewright.ir import expr as e
from tilewright.ir import intrinsics
from tilewright.ir.dtype import DataType
from tilewright.ir.expr import ZERO, Call, IntImm, Ramp, StringImm, Var
from tilewright.support.errors import UserError
from tilewright.target import Target
from tilewright.tir.buffer import BufferLoad, make_buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.schedule import Schedule, ScheduleError
from tilewright.tir.stmt import Allocate, Assert, BufferStore, Evaluate, For, IfThenElse, LetStmt, LoopKind, While, seq

C = Target("c")


@pytest.fixture(autouse=True)
def _has_compiler(request: pytest.FixtureRequest) -> Iterator[None]:
    if "without_compiler" not in request.node.name:
        need("c-compiler")
    yield
    compiler.find_c_compiler.cache_clear()


def _agrees(func: PrimFunc, *arguments: np.ndarray | int | float, tolerance: float = 0.0) -> list[np.ndarray]:
    expected = [item.copy() if isinstance(item, np.ndarray) else item for item in arguments]
    interpret(func, *expected)
    actual = run(func, *arguments, target=C)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)
    return actual


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_random_programs_under_random_schedules(data: st.DataObject) -> None:
    schedule = Schedule(data.draw(programs()))
    for _ in range(data.draw(st.integers(2, 12))):
        try:
            _step(data.draw, schedule)
        except ScheduleError:
            continue
    random = np.random.default_rng(0)
    _agrees(
        schedule.func,
        *[random.integers(-5, 6, b.static_shape).astype(b.dtype.numpy()) for b in schedule.func.buffers],
    )


def test_floats_and_conversions() -> None:
    func, results, exact = _float_program()
    a = np.array(SPECIAL, np.float32)
    expected = [a, np.roll(a, 5), *(np.zeros(COUNT, buffer.dtype.numpy()) for buffer in results)]
    actual = run(func, *expected, target=C)
    interpret(func, *expected)
    for number, (one, other) in enumerate(zip(actual[2:], expected[2:], strict=True)):
        if number < exact:
            np.testing.assert_array_equal(one, other, err_msg=results[number].name)
        else:
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6, err_msg=results[number].name)


def test_integers_of_every_width() -> None:
    """Division that never traps, wrapping sums, shifts, counts, and conversions to every other type."""
    i = Var("i")
    inputs, stores, outputs = [], [], []
    names = [name for name in TYPES if name != "bool"]
    for name in names:
        a, b = make_buffer(f"a_{name}", (COUNT,), name), make_buffer(f"b_{name}", (COUNT,), name)
        x, y = a[i], b[i]
        values = [kind(x, y) for kind in (e.Add, e.Sub, e.Mul, e.Min, e.Max, e.LT, e.EQ)]
        values += [kind(x, e.Max(y, IntImm(1, y.dtype))) for kind in (e.Div, e.Mod, e.FloorDiv, e.FloorMod)]
        values += [intrinsics.call(one, x) for one in ("popcount", "clz", "bitwise_not", "abs")]
        values += [intrinsics.call(one, x, y) for one in ("shift_left", "shift_right", "bitwise_xor")]
        values += [e.Cast(x, DataType.of(other)) for other in (*names, "bool", "float64", "float16") if other != name]
        results = [make_buffer(f"{name}_{number}", (COUNT,), value.dtype) for number, value in enumerate(values)]
        inputs += [a, b]
        outputs += results
        stores += [BufferStore(buffer, (i,), value) for buffer, value in zip(results, values, strict=True)]
    func = PrimFunc("integers", (*inputs, *outputs), For(i, ZERO, IntImm(COUNT), LoopKind.SERIAL, seq(*stores)))
    rng = np.random.default_rng(1)
    arrays = [_integers(rng, buffer.dtype.name) for buffer in inputs]
    _agrees(func, *arrays, *(np.zeros(COUNT, buffer.dtype.numpy()) for buffer in outputs))


def test_vectors_are_computed_before_they_are_stored() -> None:
    a, b = make_buffer("A", (16,)), make_buffer("B", (16,), "bool")
    reversed_lanes = BufferLoad(a, (Ramp(IntImm(15), IntImm(-1), 16),))
    whole = BufferStore(a, (Ramp(ZERO, IntImm(1), 16),), reversed_lanes)
    masked = IfThenElse(BufferLoad(b, (Ramp(ZERO, IntImm(1), 16),)), whole)
    named = Var("v", DataType.of("float32x16"))
    let = LetStmt(named, reversed_lanes, BufferStore(a, (Ramp(ZERO, IntImm(1), 16),), named))
    summed = BufferStore(a, (Ramp(IntImm(3), IntImm(0), 16),), BufferLoad(a, (Ramp(IntImm(3), IntImm(0), 16),)) + 1.0)
    place = e.Cast(e.Max(reversed_lanes, e.Broadcast(e.FloatImm(0.0, a.dtype), 16)), DataType.of("int64x16"))
    scattered = BufferStore(a, (place,), reversed_lanes)
    for number, body in enumerate((whole, masked, let, summed, scattered)):
        func = PrimFunc(f"turn{number}", (a, b), body)
        expected, actual, mask = integers(16), integers(16), np.arange(16) % 3 == 0
        interpret(func, expected, mask)
        assert call(JitLibrary([compile_lowered(func, C)], runtime_imports()), func, [actual, mask]) == 0
        np.testing.assert_array_equal(actual, expected)


def test_memory_status_and_parallel_loops() -> None:
    """Heap and stack, a loop of threads inside another, captured scalars of every kind of register, a `while`."""
    n, half, flag = Var("n"), Var("half", DataType.of("float16")), Var("flag", DataType.of("bool"))
    a, big, small = make_buffer("A", (40,)), make_buffer("big", (n * 1000,)), make_buffer("small", (8,))
    i, j = Var("i"), Var("j")
    scaled = e.Select(flag, a[i] * e.Cast(half, DataType.of("float32")), a[i])
    fill = For(i, ZERO, IntImm(40), LoopKind.PARALLEL, BufferStore(big, (i * 25,), scaled))
    k = Var("k")
    inner = For(j, IntImm(2), IntImm(6), LoopKind.PARALLEL, BufferStore(small, (j,), big[k * 25] + 1.0))
    double = While(e.LT(small[IntImm(3)], e.FloatImm(50.0, a.dtype)), BufferStore(small, (IntImm(3),), small[3] * 2.0))
    use = For(
        k, IntImm(1), IntImm(39), LoopKind.PARALLEL, Allocate(small, seq(inner, double, BufferStore(a, (k,), small[3])))
    )
    body = seq(Assert(e.LT(ZERO, n), StringImm("n")), Allocate(big, seq(fill, use)))
    func = PrimFunc("memory", (a, n, half, flag), body)
    _agrees(func, integers(40, low=1), 1, 1.5, True)
    with pytest.raises(AssertionError, match="returned 1"):
        run(func, integers(40), 0, 1.5, True, target=C)


def test_calls_of_other_functions() -> None:
    a = make_buffer("A", (3,), "float64")
    pointer = Call("access_ptr", (StringImm("r"), a[IntImm(1)], a[IntImm(2)]), DataType.of("handle"))
    other = Call("call_extern", (StringImm("labs"), IntImm(-7)), DataType.of("int64"))
    failing = Call("call_extern", (StringImm("memcmp"), pointer, pointer, IntImm(8)), DataType.of("int32"))
    func = PrimFunc("calls", (a,), seq(Evaluate(other), Evaluate(failing), BufferStore(a, (ZERO,), a[2] + 1.0)))
    (result,) = run(func, np.array([1.0, 2.0, 3.0]), target=C)
    np.testing.assert_array_equal(result, [4, 2, 3])


@pytest.mark.parametrize("name", ["main", "int", "exp"])
def test_functions_may_have_names_that_are_words_of_c(name: str) -> None:
    x = te.placeholder((8,), name="double")
    double = tw.build(
        te.create_schedule((y := te.compute((8,), lambda i: te.exp(x[i]), name="for")).op), [x, y], C, name
    )
    out = np.zeros(8, "float32")
    double(np.arange(8, dtype="float32"), out)
    np.testing.assert_allclose(out, np.exp(np.arange(8)), rtol=1e-5)


def test_models(tmp_path: Path) -> None:
    image = save_image_model(tmp_path / "image.onnx")
    compilation = tw.Compilation(tmp_path / "image.onnx", target="c", threads=2)
    exe = compilation.executable()
    expected = tw.compile(tmp_path / "image.onnx")(image)
    np.testing.assert_allclose(exe(image), expected, rtol=1e-4, atol=1e-5)
    assert not compilation.failed_templates
    kernel = compilation.kernels[0]
    assert f'__asm__("{kernel.symbol}")' in compilation.source(kernel)
    assert COMPILER.assembly is not None
    assembly = COMPILER.assembly.emit(compilation.source(kernel), C)
    assert COMPILER.assembly.assemble(assembly, C).startswith(b"\x7fELF")
    with pytest.raises(UserError, match="the target kind 'c' have no LLVM IR"):
        compilation.llvm_ir(kernel)
    assert f"{kernel.symbol}:" in compilation.assembly(kernel)
    exe.export_library(tmp_path / "image.so")
    np.testing.assert_array_equal(tw.load(tmp_path / "image.so")(image), exe(image))


def test_models_of_any_size(tmp_path: Path) -> None:
    save_text_model(tmp_path / "text.onnx")
    exe, other = (tw.compile(tmp_path / "text.onnx", target=target, threads=2) for target in ("c", "native"))
    for shape in ((1, 3), (2, 9)):
        words = np.random.default_rng(0).integers(0, 100, shape)
        np.testing.assert_allclose(exe(words), other(words), rtol=1e-4, atol=1e-6)


def test_source_is_ordinary_c(tmp_path: Path) -> None:
    """What is emitted compiles with all warnings of a C compiler, and without the pool's own declarations."""
    a = te.placeholder((64, 64), name="A")
    k = te.reduce_axis((0, 64), name="k")
    c = te.compute((64, 64), lambda i, j: te.sum(a[i, k] * a[k, j], axis=k), name="C")
    schedule = te.create_schedule(c.op)
    row, column = c.op.axis
    schedule[c].vectorize(schedule[c].split(column, 16)[1])
    schedule[c].parallel(row)
    source = tmp_path / "product.c"
    source.write_text(host_source([schedule.func([a, c])], C), encoding="utf-8")
    command = [compiler.find_c_compiler(), "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-c", str(source)]
    done = subprocess.run([*command, "-o", str(tmp_path / "product.o")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda command: None)
    compiler.find_c_compiler.cache_clear()
    a = te.placeholder((8,), name="A")
    with pytest.raises(UserError, match=r"needs a C compiler, and none is installed \(looked for cc, gcc, clang\)"):
        tw.build(te.create_prim_func([a, te.compute((8,), lambda i: a[i] + 1.0)]), target="c")


def test_other_machines_are_refused() -> None:
    a = te.placeholder((8,), name="A")
    func = te.create_prim_func([a, te.compute((8,), lambda i: a[i] + 1.0)])
    other = "aarch64" if C.arch == "x86_64" else "x86_64"
    with pytest.raises(UserError, match=f"compiles for {C.arch}, not for {other}"):
        tw.build(func, target=f"c -mtriple={other}-linux-gnu")
