"""Results over inputs: kernels that may work so run right on shared memory; those that may not are named."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.compiled import HOST, call, integers
from tests.graph.helpers import function, op, var
from tilewright.backends.backend import lower
from tilewright.backends.host import compile_lowered
from tilewright.backends.llvm.emit import emit_module
from tilewright.backends.llvm.jit import JitLibrary
from tilewright.backends.llvm.pool import runtime_imports
from tilewright.graph.ir.expr import Tuple
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.passes.joint_results import JOINT
from tilewright.ir.build import const, lt, select
from tilewright.ir.dtype import INDEX, DataType
from tilewright.ir.expr import Broadcast, IntImm, Ramp, Var
from tilewright.ir.function import IRModule
from tilewright.lower.primitive import lower_primitive
from tilewright.lower.schedules import schedule_kernel
from tilewright.tir.analysis import in_place
from tilewright.tir.analysis.in_place import could_share, in_place_pairs, may_share, with_in_place
from tilewright.tir.analysis.index import statements
from tilewright.tir.buffer import BufferLoad, make_buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.stmt import BufferStore, For, IfThenElse, LetStmt, LoopKind, seq


def program(params, body, constants=()):
    """The unscheduled loop program of a graph function."""
    module = infer_types(IRModule([function(params, body)]))
    return lower_primitive(module["main"], "kernel", constants)


def image(name="x", channels=16, size=10):
    return var(name, 1, size, size, channels)


def convolution(x, weight):
    return op("nn.conv2d", x, weight, strides=(1, 1), padding=(1, 1, 1, 1), data_layout="NHWC", kernel_layout="HWIO")


def with_residual():
    x, weight, bias, other = image(), var("w", 3, 3, 16, 16), var("b", 16), image("r")
    return [x, weight, bias, other], op("nn.relu", op("add", op("add", convolution(x, weight), bias), other))


def product_with_residual():
    x, weight, other = var("x", 33, 40), var("w", 40, 50), var("r", 33, 50)
    return [x, weight, other], op("add", op("matmul", x, weight), other)


def two(shape=(7, 33)):
    x, y = var("x", *shape), var("y", *shape)
    return x, y


def elementwise():
    x, y = two()
    return [x, y], op("maximum", op("multiply", op("add", x, y), x), y)


def converted():
    x = var("x", 130, dtype="int32")
    return [x], op("cast", x, dtype=DataType.of("float32"))


def two_results():
    x, y = two()
    return [x, y], Tuple((op("add", x, y), op("subtract", y, x)))


SAFE = {
    "elementwise, first": (elementwise, (0, 2)),
    "elementwise, second": (elementwise, (1, 2)),
    "conversion": (converted, (0, 1)),
    "convolution and residual": (with_residual, (3, 4)),
    "product and residual": (product_with_residual, (2, 3)),
}


def arguments_of(func):
    return [
        integers(*param.static_shape, seed=number, low=-3, high=4, dtype=str(param.dtype))
        for number, param in enumerate(func.params)
    ]


@pytest.mark.parametrize("name", SAFE)
@pytest.mark.parametrize("threads", [1, 4])
def test_safe_kernels_run_on_shared_memory(name, threads):
    make, pair = SAFE[name]
    func = program(*make())
    assert could_share(func, pair)
    scheduled = schedule_kernel(with_in_place(func, (pair,)), HOST.replace(cores=threads)).func
    lowered = lower(scheduled, HOST)
    assert in_place_pairs(lowered) == (pair,)
    arguments = arguments_of(func)
    expected = [item.copy() for item in arguments]
    interpret(func, *expected)
    source, result = pair
    memory = arguments[source].view(expected[result].dtype)
    arguments[result] = memory
    library = JitLibrary([compile_lowered(lowered, HOST)], runtime_imports())
    assert call(library, lowered, arguments) == 0
    np.testing.assert_array_equal(memory, expected[result])


def transposed():
    x = var("x", 9, 9)
    return [x], op("transpose", x, axes=(1, 0))


def broadcast():
    x, y = var("x", 8, 8), var("y", 1, 8)
    return [x, y], op("add", x, y)


def self_broadcast():
    # Every row is the first one: row 0 is read again after it was written.
    x = var("x", 8, 8)
    first = op("slice", x, begin=(0, 0), end=(1, 8), strides=(1, 1))
    return [x], op("add", x, first)


def running_sum():
    x = var("x", 8, 8)
    return [x], op("cumsum", x, axis=0)


def normalised():
    x = var("x", 8, 32)
    return [x], op("nn.softmax", x, axis=1)


def convolved():
    x, weight = image(), var("w", 3, 3, 16, 16)
    return [x, weight], op("nn.relu", convolution(x, weight))


def multiplied():
    x, y = var("x", 16, 16), var("y", 16, 16)
    return [x, y], op("matmul", x, y)


def input_as_residual():
    x, weight = image(), var("w", 3, 3, 16, 16)
    return [x, weight], op("add", convolution(x, weight), x)


def joined():
    x, y = var("x", 4, 8), var("y", 4, 8)
    left = op("slice", x, begin=(0, 4), end=(4, 8), strides=(1, 1))
    right = op("slice", y, begin=(0, 0), end=(4, 4), strides=(1, 1))
    return [x, y], op("concatenate", left, right, axis=1)


def narrowed():
    x = var("x", 64)
    return [x], op("cast", x, dtype=DataType.of("float16"))


MUST_NOT = {
    "transposed": (transposed, [(0, 1)]),
    "broadcast": (broadcast, [(1, 2)]),
    "broadcast of itself": (self_broadcast, [(0, 1)]),
    "running sum": (running_sum, [(0, 1)]),
    "softmax": (normalised, [(0, 1)]),
    "convolution's input": (convolved, [(0, 2)]),
    "convolution's input that is also the residual": (input_as_residual, [(0, 2)]),
    "product's operands": (multiplied, [(0, 2), (1, 2)]),
    "weights and bias": (with_residual, [(0, 4), (1, 4), (2, 4)]),
    "joined parts": (joined, [(0, 2), (1, 2)]),
    "elements of another size": (narrowed, [(0, 1)]),
    "a result that another needs": (two_results, []),
}


@pytest.mark.parametrize("name", MUST_NOT)
def test_unsafe_kernels_are_refused_before_and_after_scheduling(name):
    make, pairs = MUST_NOT[name]
    func = program(*make())
    lowered = lower(schedule_kernel(func, HOST).func, HOST)
    for pair in pairs:
        assert not could_share(func, pair)
        assert not may_share(lowered, pair)
    assert in_place_pairs(lower(schedule_kernel(with_in_place(func, tuple(pairs)), HOST).func, HOST)) == ()


def test_a_second_result_must_not_see_what_the_first_one_wrote():
    # Each result alone could lie over an input as long as the other is computed first: the schedule decides.
    func = program(*two_results())
    lowered = lower(schedule_kernel(func, HOST).func, HOST)
    for pair in [(0, 2), (0, 3), (1, 2), (1, 3)]:
        assert not may_share(lowered, pair)


def test_results_that_are_stored_together_may_both_lie_over_inputs():
    params, body = two_results()
    module = infer_types(IRModule([function(params, body)]))
    func = lower_primitive(module["main"].replace(notes={JOINT: True}), "kernel")
    pairs = ((0, 2), (1, 3))
    assert all(could_share(func, pair) for pair in pairs)
    lowered = lower(schedule_kernel(with_in_place(func, pairs), HOST).func, HOST)
    assert in_place_pairs(lowered) == pairs
    apart = arguments_of(func)
    interpret(func, *apart)
    given = arguments_of(func)[:2]
    library = JitLibrary([compile_lowered(lowered, HOST)], runtime_imports())
    assert call(library, lowered, [*given, *given]) == 0
    np.testing.assert_array_equal(given, apart[2:])


# Flat programs: what schedules and lowering make of a kernel.

A, B = make_buffer("A", (16,)), make_buffer("B", (16,))
N, J = Var("i", INDEX), Var("j", INDEX)


def loop(var, extent, body, start=0):
    return For(var, IntImm(start), IntImm(extent), LoopKind.SERIAL, body)


def flat(body):
    return PrimFunc("flat", (A, B), body)


def copy(index, read=None):
    return BufferStore(B, (index,), BufferLoad(A, (index if read is None else read,)))


ONE, LANES = const(1, "float32"), Ramp(N * 6, IntImm(1), 6)
FLAT = {
    "once each": (loop(N, 16, copy(N)), True),
    "some never": (loop(N, 7, copy(N)), True),
    "vectors": (loop(N, 2, copy(Ramp(N * 8, IntImm(1), 8))), True),
    "vectors that overlap": (loop(N, 2, copy(Ramp(N * 5, IntImm(1), 8))), False),
    "vectors side by side": (
        loop(N, 2, seq(copy(Ramp(N * 8, IntImm(1), 4)), copy(Ramp(N * 8 + 4, IntImm(1), 4)))),
        True,
    ),
    "vectors inside others": (
        loop(N, 2, seq(copy(Ramp(N * 8, IntImm(1), 8)), copy(Ramp(N * 8 + 4, IntImm(1), 4)))),
        False,
    ),
    "vectors that end in others": (loop(N, 2, copy(Ramp(N * 4 + 2, IntImm(1), 8))), False),
    "two loops apart": (seq(loop(N, 8, copy(N)), loop(J, 8, copy(J), start=8)), True),
    "two loops that meet": (seq(loop(N, 9, copy(N)), loop(J, 8, copy(J), start=8)), False),
    "tiles": (loop(N, 4, loop(J, 4, copy(J * 4 + N))), True),
    "guarded tiles": (loop(N, 6, loop(J, 3, IfThenElse(lt(N * 3 + J, 16), copy(N * 3 + J)))), True),
    "both branches": (loop(N, 16, IfThenElse(lt(N, 5), copy(N), copy(N))), True),
    "lanes under a mask": (
        loop(
            N, 3, IfThenElse(lt(Ramp(N * 6, IntImm(1), 6), Broadcast(IntImm(16), 6)), copy(Ramp(N * 6, IntImm(1), 6)))
        ),
        True,
    ),
    "stored again": (loop(N, 3, loop(J, 16, copy(J))), False),
    "turned round": (loop(N, 16, copy(N, IntImm(15) - N)), False),
    "the neighbour": (loop(N, 15, copy(N, N + 1)), False),
    "a choice of elements": (loop(N, 16, copy(N, select(lt(N, 4), N, IntImm(0)))), False),
    "an accumulation": (loop(N, 16, BufferStore(B, (N,), B[N] + A[N])), False),
    "read ahead": (loop(N, 16, LetStmt(Var("v", A.dtype), A[N], copy(N))), True),
    "the neighbour read ahead": (loop(N, 15, LetStmt(Var("v", A.dtype), A[N + 1], copy(N))), False),
    "read ahead of a loop": (loop(N, 4, LetStmt(Var("v", A.dtype), A[N], loop(J, 4, copy(N * 4 + J)))), False),
    "a condition on the data": (loop(N, 16, IfThenElse(lt(A[N], ONE), copy(N))), False),
    "ends that vary": (
        loop(N, 4, For(J, IntImm(0), N + 1, LoopKind.SERIAL, copy(N * 4 + J))),
        False,
    ),
}


@pytest.mark.parametrize("name", FLAT)
def test_elements_are_counted(name):
    body, expected = FLAT[name]
    func = flat(body)
    assert may_share(func, (0, 1)) is expected
    if expected:
        apart = [integers(16, seed=1), np.zeros(16, np.float32)]
        apart[1][:] = apart[0]
        together = apart[0].copy()
        interpret(func, *apart)
        interpret(func, together, together)
        np.testing.assert_array_equal(together, apart[1])


@pytest.mark.parametrize("name", FLAT)
def test_large_results_are_not_counted(name, monkeypatch):
    """The index of the one store says whether places differ; what it does not say is refused."""
    monkeypatch.setattr(in_place, "_MOST_ELEMENTS", 1)
    body, expected = FLAT[name]
    alone = sum(isinstance(item, BufferStore) for item in statements(body)) == 1
    # The tail of a row is masked: lanes are next to each other all the same.
    assert may_share(flat(body), (0, 1)) is (expected and alone)


@pytest.mark.parametrize(
    ("name", "length"),
    {"vectors": 8, "vectors side by side": 4, "vectors that overlap": 1, "lanes under a mask": 1}.items(),
)
def test_what_is_stored_together_counts_once(name, length, monkeypatch):
    """An image of 512 x 512 pixels of 64 channels was 17 million numbers, half a second, for each residual layer."""
    counted = []
    writes = in_place._Writes
    monkeypatch.setattr(in_place, "_Writes", lambda *args: counted.append(args[1:]) or writes(*args))
    assert may_share(flat(FLAT[name][0]), (0, 1)) is FLAT[name][1]
    assert counted == [(16 // length, length)]


def test_only_the_pair_gives_up_its_promise():
    func = program(*elementwise())
    plain = compile_text(func)
    assert plain.count("noalias") == 3
    shared = compile_text(with_in_place(func, ((1, 2),)))
    assert shared.count("noalias") == 1 and "ptr noalias noundef align 4 %a0" in shared


def compile_text(func):
    text = emit_module([lower(schedule_kernel(func, HOST.replace(cores=1)).func, HOST)], HOST)
    return text[: text.index("{")]
