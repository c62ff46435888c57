"""Gradients through branches, recursion, data, closures and loops; and gradients of those."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.graph.gradient.checks import check_forward, check_reverse
from tests.graph.helpers import op
from tilewright.front import compile as compile_module
from tilewright.graph.gradient import custom_vjp, grad, jvp, value_and_grad, vjp
from tilewright.graph.interpreter import evaluate
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
    TuplePattern,
    Var,
    VarPattern,
    WildcardPattern,
    constant,
)
from tilewright.graph.ir.prelude import BRANCH, CONS, LEAF, NIL, construct, list_of, tree_of, with_prelude
from tilewright.graph.ir.traverse import graph_functions, post_order
from tilewright.graph.text import parse_text
from tilewright.ir.function import IRModule
from tilewright.ir.types import FunctionType, TupleType, tensor_type
from tilewright.support.errors import UserError

SCALAR = tensor_type((), "float64")
WHOLE = tensor_type((), "int64")


def scalar(name: str) -> Var:
    return Var(name, SCALAR)


def whole(name: str) -> Var:
    return Var(name, WHOLE)


def real(value: float) -> GraphExpr:
    return constant(value, "float64")


def integer(value: int) -> GraphExpr:
    return constant(value, "int64")


def applied(name: str, *args: GraphExpr) -> Call:
    return Call(GlobalVar(name), args)


def branches() -> IRModule:
    p, x = Var("p", tensor_type((), "bool")), scalar("x")
    inner = If(op("less", x, real(0.5)), op("exp", x), op("multiply", x, op("cos", x)))
    body = If(p, op("sin", op("multiply", x, inner)), op("multiply", op("exp", op("sin", x)), x))
    return IRModule([Function("main", (p, x), op("multiply", body, x))])


def tuples_of_branches() -> IRModule:
    p, x, y = Var("p", tensor_type((), "bool")), scalar("x"), scalar("y")
    pair = If(p, Tuple((op("sin", x), y)), Tuple((y, op("multiply", x, x))))
    return IRModule([Function("main", (p, x, y), op("multiply", TupleGet(pair, 0), op("exp", TupleGet(pair, 1))))])


def recursion() -> IRModule:
    x, n = scalar("x"), whole("n")
    again = applied("power", op("add", x, real(0.1)), op("subtract", n, integer(1)))
    power = Function("power", (x, n), If(op("less_equal", n, integer(0)), x, op("multiply", op("sin", x), again)))
    y, count = scalar("y"), whole("count")
    main = Function("main", (y, count), op("multiply", applied("power", op("exp", y), count), y))
    return IRModule([power, main])


def mutual_recursion() -> IRModule:
    a, n = scalar("a"), whole("n")
    b, m = scalar("b"), whole("m")
    less = op("subtract", n, integer(1))
    even = Function("even", (a, n), If(op("less_equal", n, integer(0)), a, applied("odd", op("sin", a), less)))
    fewer = op("subtract", m, integer(1))
    odd = Function("odd", (b, m), op("multiply", applied("even", op("exp", b), fewer), b))
    x, count = scalar("x"), whole("count")
    return IRModule([even, odd, Function("main", (x, count), applied("even", x, count))])


def entry_that_calls_itself() -> IRModule:
    x, n = scalar("x"), whole("n")
    again = applied("main", op("sin", x), op("subtract", n, integer(1)))
    return IRModule([Function("main", (x, n), If(op("less_equal", n, integer(0)), x, op("multiply", x, again)))])


def total_of_list() -> Function:
    items, head, tail = Var("items", list_of(SCALAR)), Var("head"), Var("tail")
    one = op("add", op("sin", head), real(1.0))
    clauses = (
        Clause(ConstructorPattern(NIL, ()), real(0.5)),
        Clause(
            ConstructorPattern(CONS, (VarPattern(head), VarPattern(tail))), op("multiply", one, applied("total", tail))
        ),
    )
    return Function("total", (items,), Match(items, clauses))


def lists() -> IRModule:
    x, y = scalar("x"), scalar("y")
    items = construct(CONS, op("multiply", x, y), construct(CONS, y, construct(CONS, x, construct(NIL))))
    first = Var("first")
    start = Match(
        items,
        (Clause(ConstructorPattern(CONS, (VarPattern(first), WildcardPattern())), first), Clause(WildcardPattern(), x)),
    )
    return with_prelude(
        IRModule([total_of_list(), Function("main", (x, y), op("add", applied("total", items), start))])
    )


def mapped_list() -> IRModule:
    f = Var("f", FunctionType((SCALAR,), SCALAR))
    items, head, tail = Var("items", list_of(SCALAR)), Var("head"), Var("tail")
    rest = applied("map", f, tail)
    clauses = (
        Clause(ConstructorPattern(NIL, ()), construct(NIL)),
        Clause(ConstructorPattern(CONS, (VarPattern(head), VarPattern(tail))), construct(CONS, Call(f, (head,)), rest)),
    )
    mapping = Function("map", (f, items), Match(items, clauses), list_of(SCALAR))
    x, y, z = scalar("x"), scalar("y"), scalar("z")
    scaled = Function("", (z,), op("multiply", op("sin", z), op("exp", y)))
    both = construct(CONS, x, construct(CONS, y, construct(NIL)))
    main = Function("main", (x, y), applied("total", applied("map", scaled, both)))
    return with_prelude(IRModule([total_of_list(), mapping, main]))


def trees_of_pairs() -> IRModule:
    pair = TupleType((SCALAR, WHOLE))
    tree, left, right = Var("tree", tree_of(pair)), Var("left"), Var("right")
    value, count = Var("value"), Var("count")
    node = ConstructorPattern(
        BRANCH, (VarPattern(left), TuplePattern((VarPattern(value), VarPattern(count))), VarPattern(right))
    )
    here = If(op("less", count, integer(2)), op("sin", value), op("exp", value))
    below = op("multiply", applied("walk", left), applied("walk", right))
    clauses = (Clause(ConstructorPattern(LEAF, ()), real(1.5)), Clause(node, op("multiply", here, below)))
    walk = Function("walk", (tree,), Match(tree, clauses), SCALAR)
    x, y = scalar("x"), scalar("y")
    leaf = construct(LEAF)
    inner = construct(BRANCH, leaf, Tuple((op("multiply", x, y), integer(1))), leaf)
    whole_tree = construct(BRANCH, inner, Tuple((y, integer(3))), leaf)
    return with_prelude(
        IRModule([walk, Function("main", (x, y), op("add", applied("walk", whole_tree), applied("walk", inner)))])
    )


def local_recursion() -> IRModule:
    x, k, a, i, f = scalar("x"), whole("k"), scalar("a"), whole("i"), Var("f")
    seen = op("sin", x)
    again = Call(f, (op("multiply", a, seen), op("subtract", i, integer(1))))
    body = Function("", (a, i), If(op("less_equal", i, integer(0)), op("multiply", a, seen), again))
    return IRModule([Function("main", (x, k), Let(f, body, op("add", Call(f, (op("exp", x), k)), seen)))])


def twice() -> IRModule:
    x, z, v, q, f = scalar("x"), scalar("z"), scalar("v"), Var("q"), Var("f")
    body = Function("", (q, z), Call(q, (Call(q, (z,)),)))
    scaled = Function("", (v,), op("multiply", op("sin", v), x))
    return IRModule([Function("main", (x,), Let(f, body, Call(f, (scaled, x))))])


P = np.array(True)
Case = tuple[Callable[[], IRModule], list[np.ndarray]]
PROGRAMS: dict[str, Case] = {
    "branch taken": (branches, [P, np.array(0.3)]),
    "branch not taken": (branches, [~P, np.array(0.3)]),
    "branch inside a branch": (branches, [P, np.array(0.8)]),
    "tuples of branches": (tuples_of_branches, [P, np.array(0.3), np.array(0.7)]),
    "other tuples of branches": (tuples_of_branches, [~P, np.array(0.3), np.array(0.7)]),
    "recursion": (recursion, [np.array(0.4), np.array(4)]),
    "recursion that ends at once": (recursion, [np.array(0.4), np.array(0)]),
    "mutual recursion": (mutual_recursion, [np.array(0.4), np.array(4)]),
    "entry that calls itself": (entry_that_calls_itself, [np.array(0.4), np.array(3)]),
    "lists": (lists, [np.array(0.3), np.array(0.8)]),
    "mapped list": (mapped_list, [np.array(0.3), np.array(0.8)]),
    "trees of pairs": (trees_of_pairs, [np.array(0.3), np.array(0.8)]),
    "local recursion": (local_recursion, [np.array(0.3), np.array(3)]),
    "twice": (twice, [np.array(0.3)]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_control_flow_has_gradients_and_these_have_gradients(name: str) -> None:
    build, values = PROGRAMS[name]
    backward = check_reverse(build(), values)
    check_forward(build(), values)
    check_reverse(backward, [*values, np.array(0.7)], tolerance=1e-4)


@pytest.mark.parametrize("name", ["branch taken", "recursion", "trees of pairs", "mapped list"])
def test_compiled_gradients_are_those_of_the_interpreter(name: str) -> None:
    build, values = PROGRAMS[name]
    program = value_and_grad(build(), [place for place, value in enumerate(values) if value.dtype.kind == "f"])
    expected = evaluate(program, *values)
    found = compile_module(program, threads=1)(*values)
    assert isinstance(expected, tuple)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_closure_is_left(name: str) -> None:
    build, values = PROGRAMS[name]
    moving = [place for place, value in enumerate(values) if value.dtype.kind == "f"]
    for function in graph_functions(vjp(build(), moving)).values():
        assert [item for item in post_order(function) if isinstance(item, Function) and item is not function] == []


def test_gradients_of_control_flow_are_text_that_can_be_read_again() -> None:
    build, values = PROGRAMS["trees of pairs"]
    program = value_and_grad(build())
    again = parse_text(str(program))
    expected, found = evaluate(program, *values), evaluate(again, *values)
    np.testing.assert_array_equal(found, expected)


def test_a_branch_without_a_derivative_stays_as_it_is() -> None:
    p, x = Var("p", tensor_type((), "bool")), scalar("x")
    factor = If(p, real(2.0), op("floor", x))
    program = grad(Function("main", (p, x), op("multiply", x, factor)), "x")
    assert program.types == {}
    assert evaluate(program, np.array(True), np.array(3.5)) == 2.0
    assert evaluate(program, np.array(False), np.array(3.5)) == 3.0


def chosen_closure() -> IRModule:
    p, x, a, b = Var("p", tensor_type((), "bool")), scalar("x"), scalar("a"), scalar("b")
    f = If(p, Function("", (a,), op("sin", a)), Function("", (b,), op("cos", b)))
    return IRModule([Function("main", (p, x), Call(f, (x,)))])


@pytest.mark.parametrize("transform", [vjp, jvp])
def test_a_closure_that_a_run_chooses_is_refused(transform: Callable[..., IRModule]) -> None:
    with pytest.raises(UserError, match="function that is itself a value of the run"):
        transform(chosen_closure(), "x")


def cube(name: str = "cube") -> Function:
    x = scalar("x")
    return Function(name, (x,), op("multiply", x, op("multiply", x, x)))


def custom(backward_body: Callable[[Var, Var], GraphExpr]) -> IRModule:
    x = scalar("x")
    forward = Function("cube_forward", (x,), Tuple((op("multiply", x, op("multiply", x, x)), x)))
    saved, given = scalar("saved"), scalar("given")
    backward = Function("cube_backward", (saved, given), backward_body(saved, given))
    y = scalar("y")
    main = Function("main", (y,), op("multiply", applied("cube", y), real(2.0)))
    return IRModule([main, *custom_vjp(cube(), forward, backward)])


def test_a_function_may_bring_its_own_rule() -> None:
    # A rule that is no derivative, so that it can be told from one.
    module = custom(lambda saved, given: Tuple((op("multiply", given, op("add", saved, real(100.0))),)))
    assert evaluate(grad(module), np.array(3.0)) == 2 * 103.0
    assert evaluate(grad(grad(module)), np.array(3.0)) == 2.0
    assert len(grad(module).functions) == 1


def test_a_rule_must_fit_its_function() -> None:
    x = scalar("x")
    with pytest.raises(UserError, match="takes 2 parameters, cube takes 1"):
        custom_vjp(cube(), Function("f", (x, scalar("y")), x), cube("b"))
    with pytest.raises(UserError, match="takes what was saved and a cotangent, not 1"):
        custom_vjp(cube(), cube("f"), cube("b"))
    with pytest.raises(UserError, match="need names"):
        custom_vjp(cube(""), cube("f"), cube("b"))
    with pytest.raises(UserError, match="must give a cotangent for each float parameter"):
        grad(custom(lambda saved, given: given))
    with pytest.raises(UserError, match="brings its own reverse rule"):
        jvp(custom(lambda saved, given: Tuple((given,))))
    y = scalar("y")
    main = Function("main", (y,), applied("cube", y))
    saved, given = scalar("saved"), scalar("given")
    backward = Function("b", (saved, given), Tuple((given,)))
    with pytest.raises(UserError, match="must give the value of cube and what is saved"):
        grad(IRModule([main, *custom_vjp(cube(), cube("f"), backward)]))
    noted = custom_vjp(cube(), cube("f"), backward)[0]
    with pytest.raises(UserError, match="which is not in the module"):
        grad(IRModule([main, noted]))
