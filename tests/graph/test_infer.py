"""Type inference: rules, unification, polymorphism, depth, and every message."""

from __future__ import annotations

import pytest

from tests.graph.helpers import function, op, var
from tilewright.graph.ir.expr import (
    Call,
    Clause,
    ConstructorPattern,
    ConstructorRef,
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
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.prelude import CONS, LIST, NIL, SOME, construct, list_of, option_of, with_prelude
from tilewright.ir.dtype import INT64
from tilewright.ir.expr import Var as Dimension
from tilewright.ir.function import Constructor, IRModule
from tilewright.ir.types import FunctionType, TupleType, TypeVariable, tensor_type
from tilewright.support.errors import UserError

F4 = tensor_type((4,), "float32")
SCALAR = tensor_type((), "float32")


def test_fills_every_node():
    x = var("x", 2, 3)
    y = op("nn.relu", x)
    z = op("add", y, constant(1.0, "float32"))
    main = infer_types(function([x], Tuple((y, z))))
    assert y.type is z.type is tensor_type((2, 3), "float32")
    assert main.type is FunctionType((x.annotation,), TupleType((y.type, z.type)))


def test_deep_graphs_do_not_recurse():
    x = var("x", 4)
    value = x
    for _ in range(10_000):
        value = op("add", value, x)
    assert infer_types(function([x], value)).body.type is F4


def test_errors_name_operator_and_place():
    x, y = var("x", 2), var("y", 3)
    with pytest.raises(UserError, match=r"add: shapes .* do not broadcast") as error:
        infer_types(function([x, y], op("add", x, y, span="Add_7")))
    assert error.value.where == "Add_7"
    assert x.type is not None
    bad = op("nn.relu", x)
    with pytest.raises(UserError, match="takes"):
        infer_types(function([x], Call(bad.callee, (x, x), bad.attributes)))


def test_no_types_are_filled_on_failure():
    x, y = var("x", 2), var("y", 3)
    good = op("nn.relu", x)
    with pytest.raises(UserError):
        infer_types(function([x, y], op("add", good, y)))
    assert good.type is None


def test_unannotated_parameters_are_inferred_from_calls():
    a = Var("a")
    closure = Function("", (a,), op("add", a, a))
    x = var("x", 4)
    f = Var("f")
    main = infer_types(function([x], Let(f, closure, Call(f, (x,)))))
    assert main.body.type is F4
    assert a.type is F4


def test_unknown_parameter_is_an_error():
    a = Var("a")
    with pytest.raises(UserError, match=r"inputs of the operator nn.relu cannot be inferred"):
        infer_types(function([a], op("nn.relu", a)))
    b = Var("b")
    with pytest.raises(UserError, match="the variable b cannot be inferred"):
        infer_types(function([b], b))


def test_tuple_get():
    x = var("x", 4)
    parts = op("split", x, sizes=(1, 3), axis=0)
    item = TupleGet(parts, 1)
    infer_types(function([x], item))
    assert item.type is tensor_type((3,), "float32")
    with pytest.raises(UserError, match="no item 2 of"):
        infer_types(function([x], TupleGet(parts, 2)))
    with pytest.raises(UserError, match="has no items"):
        infer_types(function([x], TupleGet(x, 0)))


def test_if_branches_must_unify():
    c, x, y = var("c", dtype="bool"), var("x", 4), var("y", 3)
    assert infer_types(function([c, x], If(c, x, op("nn.relu", x)))).body.type is F4
    assert infer_types(function([c, x, y], If(c, x, y))).body.type is tensor_type((None,), "float32")
    z = var("z", 4, dtype="int8")
    with pytest.raises(UserError, match=r"the else branch has type .* data types float32 and int8"):
        infer_types(function([c, x, z], If(c, x, z)))
    with pytest.raises(UserError, match="the condition has type"):
        infer_types(function([x], If(x, x, x)))
    anything = Var("z", tensor_type((None,), "float32"))
    assert infer_types(function([c, x, anything], If(c, x, anything))).body.type is anything.annotation


def test_recursive_let():
    n, x = var("n", dtype="int64"), var("x", 4)
    loop = Var("loop")
    count, value = Var("count", n.annotation), Var("value")
    again = Call(loop, (op("subtract", count, constant(1, "int64")), op("add", value, value)))
    body = Function("", (count, value), If(op("greater", count, constant(0, "int64")), again, value))
    main = infer_types(function([n, x], Let(loop, body, Call(loop, (n, x)))))
    assert main.body.type is F4
    assert loop.type is FunctionType((n.annotation, F4), F4)


def test_globals_and_symbolic_dimensions():
    n = Dimension("n", INT64)
    a = Var("a", tensor_type((n, 4), "float32"))
    double = function([a], op("add", a, a), "double")
    x = var("x", 3, 4)
    main = function([x], Call(GlobalVar("double"), (x,)))
    module = infer_types(IRModule([main, double]))
    assert module["main"].body.type is x.annotation
    assert double.type is FunctionType((a.annotation,), a.annotation)
    with pytest.raises(UserError, match="no graph function 'other'"):
        infer_types(function([x], Call(GlobalVar("other"), (x,))))
    with pytest.raises(UserError, match="double takes 1 arguments, got 2"):
        infer_types(IRModule([function([x], Call(GlobalVar("double"), (x, x))), double]))
    y = var("y", 3, 5)
    with pytest.raises(UserError, match="argument 0 of double has type"):
        infer_types(IRModule([function([y], Call(GlobalVar("double"), (y,))), double]))


def test_polymorphic_function():
    t = TypeVariable("t")
    a, b = Var("a", t), Var("b", t)
    second = function([a, b], b, "second", result_type=t, type_parameters=(t,))
    x, y = var("x", 4), var("y", 2, dtype="int64")
    calls = Tuple((Call(GlobalVar("second"), (x, x)), Call(GlobalVar("second"), (y, y))))
    main = function([x, y], calls)
    infer_types(IRModule([main, second]))
    assert main.body.type is TupleType((F4, y.annotation))
    with pytest.raises(UserError, match="argument 1 of second"):
        infer_types(IRModule([function([x, y], Call(GlobalVar("second"), (x, y))), second]))


def test_constructors_and_match():
    x = var("x", 4)
    xs = construct(CONS, x, construct(NIL))
    head, tail = Var("head"), Var("tail")
    cases = Match(
        xs,
        (
            Clause(ConstructorPattern(CONS, (VarPattern(head), VarPattern(tail))), construct(SOME, head)),
            Clause(ConstructorPattern(NIL, ()), construct(SOME, x)),
        ),
    )
    main = function([x], cases)
    infer_types(with_prelude(IRModule([main])))
    assert xs.type is list_of(F4)
    assert main.body.type is option_of(F4)
    assert (head.type, tail.type) == (F4, list_of(F4))


def test_match_messages():
    x = var("x", 4)
    xs = construct(CONS, x, construct(NIL))

    def check(value, *clauses):
        infer_types(with_prelude(IRModule([function([x], Match(value, clauses))])))

    with pytest.raises(UserError, match=r"the match does not cover Nil\(\)"):
        check(xs, Clause(ConstructorPattern(CONS, (WildcardPattern(), WildcardPattern())), x))
    nested = ConstructorPattern(CONS, (WildcardPattern(), ConstructorPattern(NIL, ())))
    with pytest.raises(UserError, match=r"does not cover Cons\(_, Cons\(_, _\)\)"):
        check(xs, Clause(nested, x), Clause(ConstructorPattern(NIL, ()), x))
    with pytest.raises(UserError, match="the pattern Cons takes 2 fields, got 1"):
        check(xs, Clause(ConstructorPattern(CONS, (WildcardPattern(),)), x))
    with pytest.raises(UserError, match="the matched value has type"):
        check(x, Clause(ConstructorPattern(NIL, ()), x), Clause(WildcardPattern(), x))
    with pytest.raises(UserError, match="a clause of the match has type"):
        check(xs, Clause(ConstructorPattern(NIL, ()), x), Clause(WildcardPattern(), xs))
    pair = Tuple((xs, x))
    pattern = TuplePattern((ConstructorPattern(NIL, ()), WildcardPattern()))
    with pytest.raises(UserError, match=r"does not cover \(Cons\(_, _\), _\)"):
        check(pair, Clause(pattern, x))
    foreign = Constructor("Odd", (), "Strange")
    with pytest.raises(UserError, match="type Strange of the constructor Odd is not defined"):
        infer_types(function([], Call(ConstructorRef(foreign), ())))


def test_ambiguous_type_is_an_error():
    with pytest.raises(UserError, match="cannot be inferred: List"):
        infer_types(IRModule([function([], construct(NIL))], [LIST]))


def test_scopes():
    x, stray = var("x", 4), Var("stray", F4)
    with pytest.raises(UserError, match="stray is used outside of the scope"):
        infer_types(function([x], op("add", x, stray)))
    y = Var("y")
    twice = Let(y, x, Let(y, x, y))
    with pytest.raises(UserError, match="y is bound twice"):
        infer_types(function([x], twice))
    with pytest.raises(UserError, match="is called"):
        infer_types(function([x], Call(x, ())))
    with pytest.raises(UserError, match="the value of y has type"):
        infer_types(function([x], Let(Var("y", SCALAR), x, x)))
    with pytest.raises(UserError, match="the result of main has type"):
        infer_types(function([x], x, result_type=SCALAR))


def test_self_application_is_refused():
    f = Var("f")
    with pytest.raises(UserError, match="the type would contain itself"):
        infer_types(function([f], Call(f, (f,))))
