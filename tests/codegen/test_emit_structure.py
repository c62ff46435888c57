"""The shape of the generated code: calling convention, parallel bodies, scratch memory, error codes, entries, names."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tests.codegen.compiled import HOST, assert_stages_agree, call, integers, run
from tilewright import te
from tilewright.backends.backend import lower
from tilewright.backends.host import compile_functions, host_source
from tilewright.backends.llvm.compiler import COMPILER
from tilewright.backends.llvm.emit import emit_module
from tilewright.backends.llvm.entry import emit_entry
from tilewright.backends.llvm.jit import JitLibrary
from tilewright.backends.llvm.pool import runtime_imports
from tilewright.ir import build, intrinsics
from tilewright.ir.dtype import DataType
from tilewright.ir.expr import ZERO, Call, IntImm, Ramp, StringImm, Var
from tilewright.runtime.core.artifact import ArgKind, ArgRef, KernelInfo, ModelInfo, Step, TensorInfo
from tilewright.support.errors import CompilerBug, UnsupportedError, UserError
from tilewright.tir.buffer import make_buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.stmt import Allocate, Assert, BufferStore, Evaluate, For, IfThenElse, LetStmt, LoopKind, seq

N = IntImm(40)


def loop(body, extent=N, kind=LoopKind.SERIAL, var=None):  # type: ignore[no-untyped-def]
    var = var or Var("i")
    return For(var, ZERO, extent, kind, body(var))


def test_scalar_parameters_of_every_type() -> None:
    names = ["bool", "int8", "uint8", "int16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]
    values = [True, -5, 250, -300, -70000, 4_000_000_000, -(2**40), 2**63 + 5, 1.5, -2.25, 1e100]
    scalars = [Var(f"s_{name}", DataType.of(name)) for name in names]
    buffers = [make_buffer(f"b_{name}", (1,), name) for name in names]
    body = seq(*[BufferStore(b, (ZERO,), s) for b, s in zip(buffers, scalars, strict=True)])
    func = PrimFunc("scalars", (*scalars, *buffers), body)
    result = run(func, *values, *[np.zeros(1, name) for name in names])
    for name, value, array in zip(names, values, result[len(names) :], strict=True):
        assert array[0] == np.array(value, name), name


def test_symbolic_dimensions_follow_the_parameters() -> None:
    n, m = Var("n"), Var("m")
    a, b = make_buffer("A", (n, m)), make_buffer("B", (m, n))
    i, j = Var("i"), Var("j")
    body = For(i, ZERO, n, LoopKind.PARALLEL, For(j, ZERO, m, LoopKind.SERIAL, BufferStore(b, (j, i), a[i, j] + 1.0)))
    func = PrimFunc("transpose", (a, b), body)
    data = integers(5, 7)
    assert_stages_agree(func, data, np.zeros((7, 5), "float32"), dims=(5, 7))
    assert_stages_agree(func, data[:0], np.zeros((7, 0), "float32"), dims=(0, 7))


def test_strides_and_offset() -> None:
    a = make_buffer("A", (3, 4), strides=(10, 2)).replace(offset=IntImm(1))
    b = make_buffer("B", (3, 4))
    i, j = Var("i"), Var("j")
    body = For(
        i,
        ZERO,
        IntImm(3),
        LoopKind.SERIAL,
        For(j, ZERO, IntImm(4), LoopKind.VECTORIZED, BufferStore(b, (i, j), a[i, j])),
    )
    memory = integers(28)
    out = run(PrimFunc("strided", (a, b), body), memory, np.zeros((3, 4), "float32"))[1]
    expected = np.array([[memory[1 + 10 * r + 2 * c] for c in range(4)] for r in range(3)])
    np.testing.assert_array_equal(out, expected)


def test_parallel_loop_with_a_start_captures_and_private_scratch() -> None:
    a, b = make_buffer("A", (40, 600)), make_buffer("B", (40, 600))
    scale = Var("scale", DataType.of("float32"))
    flag = Var("flag", DataType.of("bool"))
    i, j, k = Var("i"), Var("j"), Var("k")
    scratch = make_buffer("scratch", (9000,))
    body = seq(
        For(j, ZERO, IntImm(600), LoopKind.SERIAL, BufferStore(scratch, (j,), a[i, j] * scale)),
        For(
            k,
            ZERO,
            IntImm(600),
            LoopKind.SERIAL,
            BufferStore(b, (i, k), build.select(flag, scratch[599 - k], build.const(0.0))),
        ),
    )
    loops = For(i, IntImm(3), IntImm(37), LoopKind.PARALLEL, Allocate(scratch, body))
    func = PrimFunc("captures", (a, b, scale, flag), loops)
    ir = host_source([func], HOST)
    assert "tw_parallel" in ir
    assert_stages_agree(func, integers(40, 600), integers(40, 600), 2.0, True)


def test_large_scratch_comes_from_the_heap_once() -> None:
    scratch = make_buffer("scratch", (100_000,))
    a = make_buffer("A", (N,))
    inner = Var("j")
    body = loop(
        lambda i: Allocate(
            scratch,
            seq(
                For(inner, ZERO, IntImm(100_000), LoopKind.SERIAL, BufferStore(scratch, (inner,), build.const(1.0))),
                BufferStore(a, (i,), scratch[i] + scratch[99_999]),
            ),
        )
    )
    func = PrimFunc("heap", (a,), body)
    ir = host_source([func], HOST)
    assert ir.count("@tw_alloc(i64 400000)") == 1
    assert (run(func, np.zeros(40, "float32"))[0] == 2.0).all()


def test_scratch_of_symbolic_size() -> None:
    n = Var("n")
    a = make_buffer("A", (n,))
    scratch = make_buffer("scratch", (n,))
    i, j, k = Var("i"), Var("j"), Var("k")
    body = For(
        i,
        ZERO,
        IntImm(3),
        LoopKind.PARALLEL,
        Allocate(
            scratch,
            seq(
                For(j, ZERO, n, LoopKind.SERIAL, BufferStore(scratch, (j,), build.cast(j, "float32"))),
                For(k, ZERO, n, LoopKind.SERIAL, BufferStore(a, (k,), scratch[n - 1 - k])),
            ),
        ),
    )
    out = run(PrimFunc("symbolic", (a,), body), np.zeros(9, "float32"), dims=(9,))[0]
    np.testing.assert_array_equal(out, np.arange(9)[::-1])


def test_out_of_memory_is_a_code_and_not_a_crash() -> None:
    n = Var("n")
    a, scratch = make_buffer("A", (1,)), make_buffer("scratch", (n * n,))
    body = seq(
        BufferStore(scratch, (ZERO,), build.const(1.0)),
        BufferStore(scratch, (n,), build.const(1.0)),
        BufferStore(a, (ZERO,), scratch[n] + scratch[0]),
    )
    func = PrimFunc("huge", (a, n), Allocate(scratch, body))
    library = JitLibrary([compile_functions([func], HOST)], runtime_imports())
    assert call(library, func, [np.zeros(1, "float32"), 1 << 28]) == 2


def test_failed_assert_returns_one_and_frees_scratch() -> None:
    a, n = make_buffer("A", (1,)), Var("n")
    scratch = make_buffer("scratch", (100_000,))
    body = Allocate(
        scratch,
        seq(
            BufferStore(scratch, (n,), build.const(3.0)),
            Assert(build.lt(n, 10), "n is too large"),
            BufferStore(a, (ZERO,), scratch[n]),
        ),
    )
    func = PrimFunc("checked", (a, n), body)
    library = JitLibrary([compile_functions([func], HOST)], runtime_imports())
    array = np.zeros(1, "float32")
    assert call(library, func, [array, 11]) == 1
    assert array[0] == 0.0
    assert call(library, func, [array, 5]) == 0
    assert array[0] == 3.0


def test_failure_inside_a_parallel_loop_is_returned() -> None:
    a = make_buffer("A", (N,))
    body = loop(
        lambda i: seq(Assert(build.ne(i, 17), "not 17"), BufferStore(a, (i,), build.const(1.0))), kind=LoopKind.PARALLEL
    )
    func = PrimFunc("parallel_failure", (a,), body)
    library = JitLibrary([compile_functions([func], HOST)], runtime_imports())
    assert call(library, func, [np.zeros(40, "float32")]) == 1


def test_nested_parallel_loops_run_serially_inside() -> None:
    a = make_buffer("A", (8, 40))
    func = PrimFunc(
        "nested",
        (a,),
        loop(
            lambda i: loop(lambda j: BufferStore(a, (i, j), build.cast(i + j, "float32")), kind=LoopKind.PARALLEL),
            IntImm(8),
            LoopKind.PARALLEL,
        ),
    )
    assert host_source([func], HOST).count("call i32 @tw_parallel") == 1
    assert_stages_agree(func, np.zeros((8, 40), "float32"))


def test_let_if_else_and_extern_calls() -> None:
    a, b = make_buffer("A", (N,)), make_buffer("B", (N,))
    x = Var("x", DataType.of("float32"))
    body = loop(
        lambda i: LetStmt(
            x,
            a[i] * 2.0,
            IfThenElse(build.lt(x, 0.0), BufferStore(b, (i,), x - 1.0), BufferStore(b, (i,), x + 1.0)),
        )
    )
    func = PrimFunc("branches", (a, b), body)
    assert_stages_agree(func, integers(40), np.zeros(40, "float32"))
    vector = PrimFunc("branches", (a, b), body.replace(kind=LoopKind.VECTORIZED))
    assert_stages_agree(vector, integers(40), np.zeros(40, "float32"))


def test_extern_call_codes_are_passed_on() -> None:
    n = Var("n")
    inner = PrimFunc("inner", (n,), Assert(build.lt(n, 3), "small"))
    evaluate = Evaluate(Call("call_extern", (StringImm("inner"), n + 1), DataType.of("int32")))
    outer = PrimFunc("outer", (n,), evaluate)
    library = JitLibrary([compile_functions([inner, outer], HOST)], runtime_imports())
    assert call(library, outer, [1]) == 0
    assert call(library, outer, [2]) == 1


def test_model_entry_calls_kernels_in_order() -> None:
    x, y, w = make_buffer("X", (N,)), make_buffer("Y", (N,)), make_buffer("W", (N,))
    add = PrimFunc("add", (x, w, y), loop(lambda i: BufferStore(y, (i,), x[i] + w[i])))
    bound = Var("bound")
    check = PrimFunc(
        "check", (x, y, bound), seq(Assert(build.lt(bound, 5), "b"), loop(lambda i: BufferStore(y, (i,), x[i] * 2.0)))
    )

    def model(limit: int) -> ModelInfo:
        info = TensorInfo("x", (40,), "float32")
        workspace = ArgRef(ArgKind.WORKSPACE, 0, 64)
        steps = (
            Step(0, (ArgRef(ArgKind.INPUT, 0), ArgRef(ArgKind.CONSTANT, 0, 160), workspace)),
            Step(1, (workspace, ArgRef(ArgKind.OUTPUT, 0), ArgRef(ArgKind.SCALAR, limit))),
        )
        return ModelInfo("net", (info,), (info,), 1024, kernels=(KernelInfo("add"), KernelInfo("check")), steps=steps)

    data, constants, out = integers(40), integers(80, seed=4), np.zeros(40, "float32")
    for limit, code in ((4, 0), (7, 1)):
        text = emit_entry(model(limit))
        together = [
            COMPILER.compile(emit_module([lower(func, HOST) for func in (add, check)], HOST, entry_ir=text), HOST)
        ]
        apart = [compile_functions([add, check], HOST), COMPILER.compile(emit_module([], HOST, entry_ir=text), HOST)]
        for objects in (together, apart):
            library = JitLibrary(objects, runtime_imports())
            entry = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 4)(library.symbol("net_entry"))
            workspace = np.zeros(1024, np.uint8)
            inputs = (ctypes.c_void_p * 1)(data.ctypes.data)
            outputs = (ctypes.c_void_p * 1)(out.ctypes.data)
            assert entry(inputs, outputs, workspace.ctypes.data, constants.ctypes.data) == code
        np.testing.assert_array_equal(out, (data + constants[40:]) * 2)


def test_empty_model_does_nothing() -> None:
    text = emit_entry(ModelInfo("nothing", (), (), 0))
    library = JitLibrary([COMPILER.compile(emit_module([], HOST, entry_ir=text), HOST)], runtime_imports())
    entry = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 4)(library.symbol("nothing_entry"))
    assert entry(None, None, None, None) == 0


def test_entry_with_an_unknown_kernel_is_a_bug() -> None:
    with pytest.raises(CompilerBug, match="calls kernel 3"):
        emit_entry(ModelInfo("net", (), (), 0, steps=(Step(3, ()),)))


def test_names_that_cannot_be_symbols() -> None:
    func = PrimFunc("not a name", (), Assert(build.const(True), ""))
    with pytest.raises(UserError, match="'not a name' cannot be a symbol"):
        compile_functions([func], HOST)


def test_two_functions_of_one_name() -> None:
    a = make_buffer("A", (1,))
    func = PrimFunc("twice", (a,), BufferStore(a, (ZERO,), build.const(1.0)))
    with pytest.raises(UserError, match="two functions named twice"):
        emit_module([func, func], HOST)


def test_unknown_intrinsic() -> None:
    a = make_buffer("A", (1,))
    func = PrimFunc("mystery", (a,), BufferStore(a, (ZERO,), Call("mystery", (), a.dtype)))
    with pytest.raises(UnsupportedError, match="does not know the intrinsic 'mystery'"):
        compile_functions([func], HOST)


def test_vector_if_guards_one_store_only() -> None:
    a = make_buffer("A", (8,))
    lanes = Ramp(ZERO, IntImm(1), 8)
    store = BufferStore(a, (lanes,), build.const(1.0, "float32x8"))
    condition = build.lt(lanes, build.const(3, "int64x8"))
    with pytest.raises(CompilerBug, match="has no else"):
        emit_module([PrimFunc("f", (a,), IfThenElse(condition, store, store))], HOST)


def test_generated_text_is_the_same_for_the_same_program() -> None:
    """The object cache is keyed by the text."""

    def make() -> PrimFunc:
        a, b = make_buffer("A", (N,)), make_buffer("B", (N,))
        return PrimFunc(
            "same", (a, b), loop(lambda i: BufferStore(b, (i,), intrinsics.exp(a[i])), kind=LoopKind.PARALLEL)
        )

    assert host_source([make()], HOST) == host_source([make()], HOST)


def test_only_reductions_are_reassociated() -> None:
    a = te.placeholder((64,), name="A")
    k = te.reduce_axis((0, 64), name="k")
    total = te.create_prim_func([a, te.compute((1,), lambda i: te.sum(a[k], axis=k), name="B")])
    assert "reassoc" in host_source([total], HOST)
    x, y = make_buffer("X", (N,)), make_buffer("Y", (1,))
    running = PrimFunc("running", (x, y), loop(lambda i: BufferStore(y, (ZERO,), y[0] + x[i])))
    assert "reassoc" not in host_source([running], HOST)


def test_scratch_of_the_callers_sizes_is_taken_before_the_loops() -> None:
    n = Var("n")
    a, b, t = make_buffer("A", (4, n)), make_buffer("B", (4, n)), make_buffer("T", (n,))
    j = Var("j")

    def row(i: Var):  # type: ignore[no-untyped-def]
        fill = For(j, ZERO, n, LoopKind.SERIAL, BufferStore(t, (j,), a[i, j] * 2.0))
        k = Var("k")
        return Allocate(t, seq(fill, For(k, ZERO, n, LoopKind.SERIAL, BufferStore(b, (i, k), t[n - 1 - k]))))

    func = PrimFunc("rows", (a, b), loop(row, IntImm(4)))
    text = host_source([func], HOST)
    assert text.index("call noalias align 64 ptr @tw_alloc") < text.index("\nloop")
    assert_stages_agree(func, integers(4, 9), np.zeros((4, 9), "float32"), dims=(9,))


def test_masked_vectors_of_private_memory_are_written_whole() -> None:
    n = Var("n")
    a, b, t = make_buffer("A", (40,)), make_buffer("B", (8,)), make_buffer("T", (8,), scope="local")
    i, v, w, z = Var("i"), Var("v"), Var("w"), Var("z")
    start = For(z, ZERO, IntImm(8), LoopKind.VECTORIZED, BufferStore(t, (z,), build.const(0.0, "float32")))
    add = IfThenElse(build.lt(i * 8 + v, n), BufferStore(t, (v,), t[v] + a[i * 8 + v]))
    body = seq(
        start,
        For(i, ZERO, (n + 7) // 8, LoopKind.SERIAL, For(v, ZERO, IntImm(8), LoopKind.VECTORIZED, add)),
        For(w, ZERO, IntImm(8), LoopKind.VECTORIZED, BufferStore(b, (w,), t[w])),
    )
    func = PrimFunc("lanes", (n, a, b), Allocate(t, body))
    text = host_source([func], HOST)
    assert "llvm.masked.load" in text
    assert "llvm.masked.store" not in text
    for length in (0, 5, 8, 37):
        assert_stages_agree(func, length, integers(40), np.zeros(8, "float32"))


@pytest.mark.parametrize(("size", "masked"), [(16, False), (15, True)])
def test_selections_read_without_masks_what_lies_in_its_buffer(size: int, masked: bool) -> None:
    """All lanes of a read that is proven to be in its buffer may be read, chosen or not."""
    a, b, c = make_buffer("A", (16,)), make_buffer("B", (size,)), make_buffer("C", (16,))
    flags = make_buffer("M", (16,), "bool")

    def row(i: Var):  # type: ignore[no-untyped-def]
        v = Var("v")
        place = i * 8 + v
        wanted = build.logical_and(flags[place], build.lt(place, size))
        value = build.select(wanted, b[place], a[place])
        return For(v, ZERO, IntImm(8), LoopKind.VECTORIZED, BufferStore(c, (place,), value))

    func = PrimFunc("chosen", (flags, a, b, c), loop(row, IntImm(2)))
    assert ("llvm.masked.load.v8f32" in host_source([func], HOST)) == masked
    mask = np.arange(16) % 3 == 0
    assert_stages_agree(func, mask, integers(16), integers(size), np.zeros(16, "float32"))
