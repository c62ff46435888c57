"""Programs of the virtual machine, compiled from graphs: against the graph interpreter."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tests.graph.helpers import function, op, random, var
from tilewright.backends.llvm import deploy
from tilewright.graph.interpreter import DataValue, evaluate
from tilewright.graph.ir import prelude
from tilewright.graph.ir.expr import (
    Call,
    Clause,
    ConstructorPattern,
    Function,
    GlobalVar,
    GraphExpr,
    If,
    Let,
    Match,
    Tuple,
    TupleGet,
    Var,
    VarPattern,
    WildcardPattern,
    constant,
)
from tilewright.graph.ir.prelude import CONS, NIL, construct, list_of, list_value
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.function import IRModule
from tilewright.ir.types import FunctionType, TensorType, tensor_type
from tilewright.runtime import DataValue as RunValue
from tilewright.runtime.vm import machine
from tilewright.support.errors import UserError

ROW = tensor_type((1, 8), "float32")
COUNT = tensor_type((), "int64")


def number(value: int) -> GraphExpr:
    return constant(np.int64(value))


def same(found: object, expected: object) -> None:
    """Values of the machine and of the interpreter are equal; as deep as they are nested."""
    stack = [(found, expected)]
    while stack:
        a, b = stack.pop()
        if isinstance(b, DataValue):
            assert isinstance(a, RunValue) and a.constructor == b.constructor.name
            stack.extend(zip(a.fields, b.fields, strict=True))
        elif isinstance(b, (tuple, list)):
            stack.extend(zip(a, b, strict=True))  # type: ignore[call-overload]
        else:
            assert np.shape(a) == np.shape(b)
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)  # type: ignore[arg-type]


def check(module: IRModule, *runs: tuple[object, ...]) -> tw.Executable:
    exe = tw.compile(module, threads=1)
    for arguments in runs:
        same(exe(*arguments), evaluate(module, *arguments))
    return exe


def kernels_of(exe: tw.Executable) -> list[int]:
    """The number of kernels of each segment."""
    return [len(segment.steps) for segment in exe.model.segments]


def test_branches_compute_only_what_is_chosen() -> None:
    c, x = var("c", dtype="bool"), var("x", 4, 8)
    shared = op("tanh", x)
    module = IRModule([function([c, x], op("add", If(c, op("exp", shared), op("negative", shared)), shared))])
    check(module, (np.True_, random(1, 4, 8)), (np.False_, random(1, 4, 8)))


def test_a_branch_gives_a_view_a_constant_or_an_input() -> None:
    c, d, x = var("c", dtype="bool"), var("d", dtype="bool"), var("x", 2, 8)
    inner = If(d, x, constant(random(2, 2, 8)))
    body = If(c, op("reshape", op("exp", op("reshape", x, shape=(16,))), shape=(2, 8)), inner)
    bits = [(np.bool_(a), np.bool_(b)) for a in (0, 1) for b in (0, 1)]
    exe = check(IRModule([function([c, d, x], body)]), *[(a, b, random(1, 2, 8)) for a, b in bits])
    data = random(1, 2, 8)
    assert not np.shares_memory(exe(np.False_, np.True_, data), data)
    exe(np.False_, np.False_, data)[:] = 0
    assert exe(np.False_, np.False_, data).any()


def loop_module(turns: int) -> IRModule:
    """Repeats `s = sin(s) + s`, by a function that calls itself last."""
    i, s, x = var("i", dtype="int64"), var("s", 1, 8), var("x", 1, 8)
    again = Call(GlobalVar("loop"), (op("add", i, number(1)), op("add", op("sin", s), s)))
    body = If(op("less", i, number(turns)), again, Tuple((i, s)))
    loop = function([i, s], body, "loop")
    return IRModule([function([x], Call(GlobalVar("loop"), (number(0), x))), loop])


def test_loops_are_calls_in_the_last_place() -> None:
    exe = check(loop_module(7), (random(1, 1, 8),))
    # The whole body of the loop is one native call.
    assert kernels_of(exe) == [1, 2]


def test_a_long_loop_takes_no_stack() -> None:
    count, _ = tw.compile(loop_module(3000), threads=1)(random(1, 1, 8))
    assert count == 3000


def test_deep_recursion_takes_no_python_stack() -> None:
    n = var("n", dtype="int64")
    rest = Call(GlobalVar("count"), (op("subtract", n, number(1)),))
    body = If(op("less_equal", n, number(0)), number(0), op("add", rest, number(1)))
    m = var("m", dtype="int64")
    module = IRModule([function([m], Call(GlobalVar("count"), (m,))), function([n], body, "count", result_type=COUNT)])
    exe = tw.compile(module, threads=1)
    assert exe(np.int64(5000)) == 5000


def map_module() -> IRModule:
    """map(f, list) with a closure that captures a value and a matrix product."""
    f_type = FunctionType((ROW,), ROW)
    f, items = Var("f", f_type), Var("items", list_of(ROW))
    head, tail = Var("head"), Var("tail")
    again = Call(GlobalVar("map"), (f, tail))
    clauses = (
        Clause(ConstructorPattern(NIL, ()), construct(NIL)),
        Clause(
            ConstructorPattern(CONS, (VarPattern(head), VarPattern(tail))),
            construct(CONS, Call(f, (head,)), again),
        ),
    )
    mapping = function([f, items], Match(items, clauses), "map", result_type=list_of(ROW))
    x, values = var("x", 1, 8), Var("values", list_of(ROW))
    y = var("y", 1, 8)
    scaled = op("exp", x)
    closure = Function("", (y,), op("add", op("matmul", y, constant(random(5, 8, 8))), scaled))
    main = function([x, values], Call(GlobalVar("map"), (closure, values)))
    return prelude.with_prelude(IRModule([main, mapping]))


def test_closures_over_lists() -> None:
    values = [list_value([random(n, 1, 8) for n in range(count)]) for count in (0, 1, 5)]
    exe = check(map_module(), *[(random(9, 1, 8), value) for value in values])
    runtime_list = RunValue("Cons", (random(0, 1, 8), RunValue("Nil")))
    same(exe(random(9, 1, 8), runtime_list), evaluate(map_module(), random(9, 1, 8), values[1]))


def test_what_users_pass_is_checked_to_the_last_leaf() -> None:
    exe = tw.compile(map_module(), threads=1)
    x = random(9, 1, 8)
    with pytest.raises(UserError, match=r"the input 'values' has the shape \[1, 9\].*axis 1 must be 8"):
        exe(x, RunValue("Cons", (random(0, 1, 9), RunValue("Nil"))))
    with pytest.raises(UserError, match="the input 'values' has the data type float64"):
        exe(x, RunValue("Cons", (np.zeros((1, 8)), RunValue("Nil"))))
    with pytest.raises(UserError, match="must be a value of the type List, not 'Leaf'"):
        exe(x, RunValue("Cons", (random(0, 1, 8), RunValue("Leaf"))))
    with pytest.raises(UserError, match="must be a value of the type List, not a ndarray"):
        exe(x, x)
    with pytest.raises(UserError, match="Cons has 2 fields, not 1"):
        exe(x, RunValue("Cons", (random(0, 1, 8),)))


def test_local_recursion_captures_and_constructors_are_values() -> None:
    x, n = var("x", 1, 8), var("n", dtype="int64")
    again = Var("again", FunctionType((COUNT, ROW), ROW))
    i, s = Var("i", COUNT), Var("s", ROW)
    step = op("add", op("sin", s), x)
    turn = Function("", (i, s), If(op("less", i, n), Call(again, (op("add", i, number(1)), step)), s), result_type=ROW)
    apply_type = FunctionType((ROW,), list_of(ROW))
    wrap = Var("wrap", apply_type)
    z = Var("z", ROW)
    single = Function("", (z,), construct(CONS, z, construct(NIL)))
    choose = If(op("less", n, number(2)), single, single)
    body = Let(again, turn, Let(wrap, choose, Call(wrap, (Call(again, (number(0), x)),))))
    module = prelude.with_prelude(IRModule([function([x, n], body)]))
    check(module, (random(1, 1, 8), np.int64(0)), (random(1, 1, 8), np.int64(4)))


def test_nested_closures_capture_through_one_another() -> None:
    x, y, z = var("x", 1, 8), Var("y", ROW), Var("z", ROW)
    inner = Function("", (z,), op("add", op("add", op("exp", x), y), z))
    outer = Function("", (y,), inner)
    f = Var("f")
    body = Let(f, Call(outer, (op("tanh", x),)), op("add", Call(f, (x,)), Call(f, (op("negative", x),))))
    check(IRModule([function([x], body)]), (random(1, 1, 8),))


def test_patterns_reach_deep_and_fall_through() -> None:
    values = Var("values", list_of(ROW))
    a, b = Var("a"), Var("b")
    two = ConstructorPattern(CONS, (VarPattern(a), ConstructorPattern(CONS, (VarPattern(b), WildcardPattern()))))
    one = ConstructorPattern(CONS, (VarPattern(a2 := Var("a2")), WildcardPattern()))
    clauses = (
        Clause(two, op("multiply", a, b)),
        Clause(one, op("exp", a2)),
        Clause(WildcardPattern(), constant(np.ones((1, 8), np.float32))),
    )
    module = prelude.with_prelude(IRModule([function([values], op("negative", Match(values, clauses)))]))
    check(module, *[(list_value([random(n, 1, 8) for n in range(count)]),) for count in (0, 1, 2, 3)])


def test_segments_are_as_long_as_needs_allow() -> None:
    c, x = var("c", dtype="bool"), var("x", 4, 8)
    early = op("matmul", x, constant(random(1, 8, 8)))
    chosen = If(c, early, op("tanh", early))
    late = op("cumsum", op("cumsum", op("add", chosen, op("matmul", early, constant(random(2, 8, 8)))), axis=0), axis=1)
    exe = check(IRModule([function([c, x], late)]), (np.True_, random(1, 4, 8)), (np.False_, random(1, 4, 8)))
    # Both products, then the branch's own kernel, then all the rest.
    assert sorted(kernels_of(exe)) in ([1, 2, 3], [1, 1, 3])


def test_tuples_as_values() -> None:
    c, x = var("c", dtype="bool"), var("x", 4, 8)
    pair = If(c, Tuple((x, op("exp", x))), Tuple((op("tanh", x), x)))
    body = Tuple((op("add", TupleGet(pair, 0), TupleGet(pair, 1)), TupleGet(pair, 1), pair))
    check(IRModule([function([c, x], body)]), (np.True_, random(1, 4, 8)), (np.False_, random(1, 4, 8)))


def test_sizes_from_data() -> None:
    k = Symbol("k")
    x = var("x", 6, 4)
    picked = Var("picked", TensorType((tensor_type((2,), "int64").shape[0], k), tensor_type((), "int64").dtype))  # type: ignore[index]
    found = op("host.nonzero", op("greater", x, constant(np.float32(0.5))), dims=(k,), dtype="bool", span="find")
    body = Let(picked, found, op("add", op("multiply", picked, number(3)), number(1)))
    data = random(3, 6, 4)
    exe = check(IRModule([function([x], body)]), (data,), (-np.abs(data),), (np.abs(data) + 1,))
    assert exe.output_info[0].shape == (2, "k")


def test_symbols_in_loops_and_closures() -> None:
    n = Symbol("n")
    kind = tensor_type((n, 8), "float32")
    m = Symbol("m")
    i, s = Var("i", COUNT), Var("s", tensor_type((m, 8), "float32"))
    again = Call(GlobalVar("loop"), (op("add", i, number(1)), op("tanh", op("add", s, s))))
    loop = function([i, s], If(op("less", i, number(3)), again, s), "loop", result_type=tensor_type((m, 8), "float32"))
    x, y = Var("x", kind), Var("y", kind)
    closure = Function("", (y,), op("add", op("sum", x, axes=(0,), keepdims=True), y))
    f = Var("f")
    body = Let(f, closure, Call(f, (Call(GlobalVar("loop"), (number(0), x)),)))
    module = IRModule([function([x], body), loop])
    check(module, *[(random(1, size, 8),) for size in (1, 3, 9)])


def test_a_damaged_library_is_refused() -> None:
    artifact = tw.compile(loop_module(2), threads=1).artifact
    assert artifact.model is not None
    for program, message in (("%%", "not base 64"), ("AAAAAAAA", "does not start as bytecode does")):
        damaged = replace(artifact, model=replace(artifact.model, program=program))
        with pytest.raises(UserError, match=message):
            deploy.executable(damaged)
    fewer = replace(artifact, model=replace(artifact.model, segments=artifact.model.segments[:1]))
    with pytest.raises(UserError, match="names segment 1 of 1"):
        deploy.executable(fewer)


def test_endless_recursion_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_DEEPEST", 100)
    n = var("n", dtype="int64")
    more = op("add", Call(GlobalVar("f"), (n,)), number(1))
    m = var("m", dtype="int64")
    main = function([m], Call(GlobalVar("f"), (m,)))
    exe = tw.compile(IRModule([main, function([n], more, "f", result_type=COUNT)]), threads=1)
    with pytest.raises(UserError, match="the program is 100 calls deep in 'f'"):
        exe(np.int64(1))


def test_calls_from_several_threads_do_not_mix() -> None:
    module = loop_module(20)
    exe = tw.compile(module, threads=1)
    expected = [evaluate(module, random(seed, 1, 8)) for seed in range(4)]
    wrong: list[int] = []

    def work(seed: int) -> None:
        for _ in range(20):
            found = exe(random(seed, 1, 8))
            if not np.allclose(found[1], expected[seed][1], rtol=1e-4):  # type: ignore[index]
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000))
def test_random_control_flow(seed: int) -> None:
    module = random_program(seed)
    exe = tw.compile(module, threads=1)
    for c in (0, 1):
        for d in (0, 1):
            arguments = (np.bool_(c), np.bool_(d), random(seed, 2, 4))
            same(exe(*arguments), evaluate(module, *arguments))


def random_program(seed: int) -> IRModule:
    """Branches, lets, closures, tuples, views and kernels over one shape, in a random graph with sharing."""
    rng = np.random.default_rng(seed)
    kind = tensor_type((2, 4), "float32")
    conditions = [var("c", dtype="bool"), var("d", dtype="bool")]
    x = Var("x", kind)

    def pick(pool: list[GraphExpr]) -> GraphExpr:
        return pool[int(rng.integers(len(pool)))]

    def grow(pool: list[GraphExpr], depth: int) -> GraphExpr:
        pool = list(pool)
        for _ in range(int(rng.integers(2, 5))):
            choice = int(rng.integers(0, 8 if depth < 2 else 4))
            a, b = pick(pool), pick(pool)
            if choice == 0:
                made: GraphExpr = op("tanh", a)
            elif choice == 1:
                made = op("add", a, b)
            elif choice == 2:
                made = op("reshape", op("reshape", a, shape=(8,)), shape=(2, 4))
            elif choice == 3:
                made = op("cumsum", a, axis=1)
            elif choice == 4:
                condition = conditions[int(rng.integers(2))]
                made = If(condition, grow(pool, depth + 1), grow(pool, depth + 1))
            elif choice == 5:
                name = Var(f"v{depth}", None)
                made = Let(name, a, grow([*pool, name], depth + 1))
            elif choice == 6:
                y = Var("y", kind)
                made = Call(Function("", (y,), grow([*pool, y], depth + 1)), (a,))
            else:
                pair = If(conditions[int(rng.integers(2))], Tuple((a, b)), Tuple((b, op("negative", a))))
                made = op("subtract", TupleGet(pair, 0), TupleGet(pair, 1))
            pool.append(made)
        return pool[-1]

    return IRModule([function([*conditions, x], grow([x, constant(random(seed, 2, 4))], 0))])
