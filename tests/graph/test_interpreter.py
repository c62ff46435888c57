"""The graph interpreter: all language features, depth, laziness, messages."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.helpers import function, op, random, var
from tilewright.graph.interpreter import DataValue, evaluate, to_bfloat16, to_float32
from tilewright.graph.ir import op as op_registry
from tilewright.graph.ir.expr import (
    Call,
    Clause,
    ConstructorPattern,
    Function,
    GlobalVar,
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
from tilewright.graph.ir.op import FusionKind, operator
from tilewright.graph.ir.prelude import (
    BRANCH,
    CONS,
    LEAF,
    NIL,
    NOTHING,
    SOME,
    construct,
    list_items,
    list_of,
    list_value,
    tree_of,
    with_prelude,
)
from tilewright.ir.function import IRModule
from tilewright.ir.types import FunctionType, TupleType, TypeVariable, tensor_type
from tilewright.support.errors import CompilerBug, UserError

SCALAR = tensor_type((), "float32")
INTEGER = tensor_type((), "int64")


def number(value, dtype="int64"):
    return constant(np.asarray(value, dtype), dtype)


def test_operators_and_sharing():
    x = var("x", 2, 3)
    y = op("nn.relu", x)
    data = random(0, 2, 3)
    result = evaluate(function([x], Tuple((y, op("add", y, y)))), data)
    np.testing.assert_array_equal(result[0], np.maximum(data, 0))
    np.testing.assert_array_equal(result[1], 2 * np.maximum(data, 0))


@pytest.fixture
def own_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators that a test registers are gone after it."""
    monkeypatch.setattr(op_registry, "_REGISTRY", dict(op_registry._REGISTRY))


@pytest.mark.usefixtures("own_operators")
def test_each_node_runs_once():
    calls = []

    @operator("test.count", inputs=("data",), kind=FusionKind.OPAQUE, reference=lambda a, _: (calls.append(1), a[0])[1])
    def count(types, attributes):
        """The input."""
        return types[0]

    x = var("x", 2)
    y = op("test.count", x)
    c = var("c", dtype="bool")
    other = op("test.count", op("negative", x))
    evaluate(function([x, c], If(c, op("add", y, y), other)), random(0, 2), np.asarray(True))
    assert len(calls) == 1


def test_deep_graph():
    x = var("x")
    value = x
    for _ in range(10_000):
        value = op("add", value, x)
    assert evaluate(function([x], value), np.float32(1)) == 10_001


def test_closures_capture():
    x, y = var("x"), Var("y", SCALAR)
    add_x = Function("", (y,), op("add", x, y))
    f = Var("f")
    body = Let(f, add_x, op("multiply", Call(f, (number(1, "float32"),)), Call(f, (number(2, "float32"),))))
    assert evaluate(function([x], body), np.float32(3)) == 20


def test_recursion_length_of_list():
    xs = Var("xs", list_of(SCALAR))
    tail = Var("tail")
    body = Match(
        xs,
        (
            Clause(ConstructorPattern(NIL, ()), number(0)),
            Clause(
                ConstructorPattern(CONS, (WildcardPattern(), VarPattern(tail))),
                op("add", number(1), Call(GlobalVar("main"), (tail,))),
            ),
        ),
    )
    module = with_prelude(IRModule([function([xs], body, result_type=INTEGER)]))
    assert evaluate(module, list_value([np.float32(0)] * 5000)) == 5000


def test_map_and_fold():
    a, b = TypeVariable("a"), TypeVariable("b")
    f, xs = Var("f", FunctionType((a,), b)), Var("xs", list_of(a))
    head, tail = Var("head"), Var("tail")
    mapped = Match(
        xs,
        (
            Clause(ConstructorPattern(NIL, ()), construct(NIL)),
            Clause(
                ConstructorPattern(CONS, (VarPattern(head), VarPattern(tail))),
                construct(CONS, Call(f, (head,)), Call(GlobalVar("map"), (f, tail))),
            ),
        ),
    )
    map_function = function([f, xs], mapped, "map", result_type=list_of(b), type_parameters=(a, b))
    c, d = TypeVariable("c"), TypeVariable("d")
    g, start, ys = Var("g", FunctionType((c, d), c)), Var("start", c), Var("ys", list_of(d))
    first, rest = Var("first"), Var("rest")
    folded = Match(
        ys,
        (
            Clause(ConstructorPattern(NIL, ()), start),
            Clause(
                ConstructorPattern(CONS, (VarPattern(first), VarPattern(rest))),
                Call(GlobalVar("fold"), (g, Call(g, (start, first)), rest)),
            ),
        ),
    )
    fold_function = function([g, start, ys], folded, "fold", result_type=c, type_parameters=(c, d))
    items = Var("items", list_of(SCALAR))
    x, p, q = Var("x"), Var("p"), Var("q")
    squares = Call(GlobalVar("map"), (Function("", (x,), op("multiply", x, x)), items))
    total = Call(GlobalVar("fold"), (Function("", (p, q), op("add", p, q)), number(0, "float32"), squares))
    main = function([items], Tuple((squares, total)))
    module = with_prelude(IRModule([main, map_function, fold_function]))
    result = evaluate(module, list_value([np.float32(i) for i in range(4)]))
    assert [float(item) for item in list_items(result[0])] == [0, 1, 4, 9]
    assert result[1] == 14


def test_tree_sum():
    tree = Var("tree", tree_of(INTEGER))
    left, value, right = Var("left"), Var("value"), Var("right")
    again = GlobalVar("main")
    body = Match(
        tree,
        (
            Clause(ConstructorPattern(LEAF, ()), number(0)),
            Clause(
                ConstructorPattern(BRANCH, (VarPattern(left), VarPattern(value), VarPattern(right))),
                op("add", op("add", Call(again, (left,)), value), Call(again, (right,))),
            ),
        ),
    )
    module = with_prelude(IRModule([function([tree], body, result_type=INTEGER)]))
    leaf = DataValue(LEAF)

    def build(depth):
        return leaf if depth == 0 else DataValue(BRANCH, (build(depth - 1), np.asarray(depth), build(depth - 1)))

    assert evaluate(module, build(4)) == 1 * 8 + 2 * 4 + 3 * 2 + 4


def test_tuple_patterns_and_nested_options():
    x = var("x")
    a, b = Var("a"), Var("b")
    pair = Tuple((construct(SOME, x), x))
    body = Match(
        pair,
        (
            Clause(TuplePattern((ConstructorPattern(NOTHING, ()), WildcardPattern())), x),
            Clause(TuplePattern((ConstructorPattern(SOME, (VarPattern(a),)), VarPattern(b))), op("add", a, b)),
        ),
    )
    assert evaluate(with_prelude(IRModule([function([x], body)])), np.float32(2)) == 4


def test_bfloat16_rounds_after_each_operator():
    x = var("x", 3, dtype="bfloat16")
    values = np.array([1.0, 3.140625, -2.5], np.float32)
    result = evaluate(function([x], op("cast", op("multiply", x, x), dtype=SCALAR.dtype)), to_bfloat16(values))
    np.testing.assert_array_equal(result, to_float32(to_bfloat16(values * values)))
    special = np.array([np.nan, np.inf, -np.inf], np.float32)
    np.testing.assert_array_equal(to_float32(to_bfloat16(special)), special)


def test_argument_messages():
    x = var("x", 2)
    main = function([x], TupleGet(Tuple((x, x)), 0))
    with pytest.raises(UserError, match=r"takes \(x\), got 0"):
        evaluate(main)
    with pytest.raises(UserError, match="x has shape"):
        evaluate(main, random(0, 3))
    with pytest.raises(UserError, match="x has data type float64"):
        evaluate(main, np.zeros(2))
    unknown = Var("u", tensor_type((None, 2), "float32"))
    with pytest.raises(UserError, match="u has 1 dimensions, expected 2"):
        evaluate(function([unknown], unknown), random(0, 3))
    pair = Var("p", TupleType((SCALAR, SCALAR)))
    assert evaluate(function([pair], TupleGet(pair, 1)), (1.0, 2.0)) == 2
    with pytest.raises(UserError, match="p must be a tuple of 2 values"):
        evaluate(function([pair], pair), random(0, 2))
    items = Var("xs", list_of(SCALAR))
    with pytest.raises(UserError, match="xs must be a List"):
        evaluate(with_prelude(IRModule([function([items], items)])), random(0, 2))
    with pytest.raises(UserError, match="no function 'main'"):
        evaluate(IRModule([]))


@pytest.mark.usefixtures("own_operators")
def test_wrong_reference_is_a_bug():
    @operator("test.liar", inputs=("data",), kind=FusionKind.OPAQUE, reference=lambda a, _: a[0].astype(np.float64))
    def liar(types, attributes):
        """Says float32, gives float64."""
        return types[0]

    x = var("x", 2)
    with pytest.raises(CompilerBug, match=r"test\.liar gave float64"):
        evaluate(function([x], op("test.liar", x)), random(0, 2))
