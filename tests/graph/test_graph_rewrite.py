"""Graph rewrite rules: patterns, captures, the driver, its guards."""

from __future__ import annotations

import pytest

from tests.graph.helpers import function, op, var
from tilewright.graph.ir.expr import Tuple, TupleGet, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.rewrite import P, Rule, apply_rules, make
from tilewright.graph.ir.traverse import free_variables, post_order, settling, substitute, with_children
from tilewright.support.errors import CompilerBug


def run(body, *rules, params=None):
    x = var("x", 4)
    main = infer_types(function(params or [x], body(x)))
    return apply_rules(main, rules).body


def names(expression):
    return [item.callee.name for item in post_order(expression) if hasattr(item, "callee")]


def test_shared_captures_must_be_the_same_node():
    rule = Rule(
        "double", P.op("add", P.any("a"), P.any("a")), lambda b: make("multiply", b["a"], constant(2.0, "float32"))
    )
    assert names(run(lambda x: op("add", x, x), rule)) == ["multiply"]
    assert names(run(lambda x: op("add", op("exp", x), op("exp", x)), rule)) == ["exp", "exp", "add"]


def test_commutative_operators_match_both_ways():
    rule = Rule("drop", P.op("add", P.const("c"), P.op("exp", P.any("x"))), lambda b: b["x"])
    one = constant(1.0, "float32")
    assert names(run(lambda x: op("add", one, op("exp", x)), rule)) == []
    assert names(run(lambda x: op("add", op("exp", x), one), rule)) == []
    minus = Rule("drop", P.op("subtract", P.const("c"), P.op("exp", P.any("x"))), lambda b: b["x"])
    assert names(run(lambda x: op("subtract", op("exp", x), one), minus)) == ["exp", "subtract"]


def test_alternatives_and_conditions():
    either = P.op("exp", P.any("x")) | P.op("log", P.any("x"))
    rule = Rule("negate", P.op("negative", either), lambda b: b["x"])
    assert names(run(lambda x: op("negative", op("log", x)), rule)) == []
    assert names(run(lambda x: op("negative", op("tanh", x)), rule)) == ["tanh", "negative"]
    never = Rule("never", P.op("exp", P.any("x")), lambda b: None)
    assert names(run(lambda x: op("exp", x), never)) == ["exp"]


def test_uses_are_counted():
    rule = Rule(
        "once",
        P.op("negative", P.op("exp", P.any("x"), name="inner")),
        lambda b: make("log", b["x"]) if b.used_once("inner") else None,
    )
    assert names(run(lambda x: op("negative", op("exp", x)), rule)) == ["log"]

    def twice(x):
        inner = op("exp", x)
        return op("add", op("negative", inner), inner)

    assert "negative" in names(run(twice, rule))


def test_new_nodes_are_rewritten_again():
    rules = [
        Rule("a", P.op("exp", P.any("x")), lambda b: make("log", make("tanh", b["x"]))),
        Rule("b", P.op("tanh", P.any("x")), lambda b: make("sigmoid", b["x"])),
    ]
    assert names(run(lambda x: op("exp", x), *rules)) == ["sigmoid", "log"]


def test_tuples():
    rule = Rule("item", P.tuple_get(P.tuple_of("t")), lambda b: b["t"].items[b.root.index])
    result = run(lambda x: TupleGet(Tuple((x, op("exp", x))), 1), rule)
    assert names(result) == ["exp"]


def test_any_root_and_values():
    rule = Rule("zero", P.any("n", where=lambda item: item.type is not None and hasattr(item, "data")), lambda b: None)
    assert names(run(lambda x: op("add", x, constant(0.0, "float32")), rule)) == ["add"]
    zeros = Rule("zeros", P.op("add", P.any("x"), P.value(0)), lambda b: b["x"])
    assert names(run(lambda x: op("add", x, constant([0.0] * 4, "float32")), zeros)) == []


def test_bad_rules_are_bugs():
    grow = Rule("grow", P.op("exp", P.any("x")), lambda b: make("exp", make("exp", b["x"])))
    with pytest.raises(CompilerBug, match="do not come to an end"):
        run(lambda x: op("exp", x), grow)
    wrong = Rule("wrong", P.op("exp", P.any("x")), lambda b: make("reshape", b["x"], shape=(2, 2)))
    with pytest.raises(CompilerBug, match=r"'wrong' .*changes the type"):
        run(lambda x: op("exp", x), wrong)


def test_substitute_and_free_variables():
    x, y = var("x", 4), var("y", 4)
    body = op("add", x, op("exp", y))
    assert free_variables(body) == [x, y]
    assert free_variables(substitute(body, {x: y})) == [y]
    assert free_variables(function([x], body)) == [y]


def test_rules_for_other_operators_leave_a_function_alone():
    x = var("x", 4)
    main = infer_types(function([x], Tuple((op("exp", x), op("sqrt", x)))))
    tried = []
    rule = Rule("sine", P.op("sin", P.any("x")), lambda b: tried.append(b) or b["x"])
    assert apply_rules(main, [rule]) is main and not tried
    # Kinds of nodes that are no operators are roots too.
    assert apply_rules(main, [Rule("tuple", P.tuple_of("t"), lambda b: None)]) is main


def test_what_settles_is_not_visited_again():
    visited = []

    @settling
    def without_sines(item):
        visited.append(item)
        return apply_rules(item, [Rule("sine", P.op("sin", P.any("x")), lambda b: b["x"])])

    x = var("x", 4)
    untyped = function([x], op("exp", op("sin", x)))
    assert without_sines(untyped) is not None and without_sines(untyped) is not None
    assert len(visited) == 2  # a function without types may change once it has some
    main = infer_types(function([x], op("exp", op("sin", x))))
    once = without_sines(main)
    assert names(once.body) == ["exp"]
    assert without_sines(once) is once and without_sines(once) is once
    assert visited[2:] == [main, once]


def test_types_stay_where_those_of_the_children_do():
    x, y, z = var("x", 4), var("y", 4), var("z", 5)
    call = infer_types(function([x], op("exp", x))).body
    assert with_children(call, [x]) is call
    assert with_children(call, [y]).type is call.type
    assert with_children(call, [z]).type is None
