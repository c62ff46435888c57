"""Rewrite rules: matching, conditions, the driver, and what is refused."""

from __future__ import annotations

import pytest

from tilewright.ir import build
from tilewright.ir import expr as e
from tilewright.ir.dtype import BOOL, FLOAT32, INDEX, INT32
from tilewright.ir.expr import FALSE, FloatImm, IntImm, Var
from tilewright.ir.node import node
from tilewright.ir.rewrite import Rule, RuleSet, instantiate, is_constant_name, rewrite, rule, truth
from tilewright.support.errors import CompilerBug

X, Y, Z = Var("x"), Var("y"), Var("z")
F = Var("f", FLOAT32)
P = Var("p", BOOL)


def one(pattern: str, replacement: str, where: str = "") -> RuleSet:
    return RuleSet("test", [rule(pattern, replacement, where=where)])


def test_a_repeated_name_is_one_expression():
    rules = one("x - x", "0", "integer(x)")
    assert rules.apply(e.Sub(X, X)) is IntImm(0)
    assert rules.apply(e.Sub(X, Y)) is None
    assert rules.apply(e.Sub(F, F)) is None
    assert rules.apply(e.Sub(Var("i", INT32), IntImm(1, INT32))) is None


def test_constants_and_conditions():
    rules = one("(x * c1) // c2", "x * (c1 // c2)", "c2 > 0 and c1 % c2 == 0")
    assert rules.apply(e.FloorDiv(e.Mul(X, IntImm(8)), IntImm(4))) is X * 2
    assert rules.apply(e.FloorDiv(e.Mul(IntImm(8), X), IntImm(4))) is X * 2
    assert rules.apply(e.FloorDiv(e.Mul(X, IntImm(6)), IntImm(4))) is None
    assert rules.apply(e.FloorDiv(e.Mul(X, Y), IntImm(4))) is None
    assert is_constant_name("c") and is_constant_name("c12") and not is_constant_name("cond")


def test_commutative_operators_match_in_either_order():
    rules = one("min(x, max(x, y))", "x")
    assert rules.apply(e.Min(X, e.Max(X, Y))) is X
    assert rules.apply(e.Min(e.Max(Y, X), X)) is X
    assert rules.apply(e.Min(e.Max(Y, Z), X)) is None


def test_and_or_keep_their_order():
    rules = one("p and (not p)", "False")
    assert rules.apply(e.And(P, e.Not(P))) is FALSE
    assert rules.apply(e.And(e.Not(P), P)) is None


def test_literals():
    assert one("x * 2", "x + x").apply(e.Mul(X, IntImm(2))) is X + X
    assert one("x * 2", "x + x").apply(e.Mul(X, IntImm(3))) is None
    assert one("x - 0.0", "x").apply(e.Sub(F, FloatImm(0.0, FLOAT32))) is F
    assert one("x - 0.0", "x").apply(e.Sub(F, FloatImm(-0.0, FLOAT32))) is None
    assert one("x * -1.0", "x").apply(e.Mul(F, FloatImm(-1.0, FLOAT32))) is F
    assert one("p == 1", "p").apply(e.EQ(P, build.const(True))) is None
    assert one("p == True", "p").apply(e.EQ(P, build.const(True))) is P
    assert one("x // y", "0").apply(e.FloorDiv(Var("a", INT32), Var("b", INT32))) is IntImm(0, INT32)


def test_types_and_proofs_in_conditions():
    class Context:
        def prove(self, condition):
            return condition is (X >= 0)

    rules = one("x % y", "x", "index(x) and prove(0 <= x)")
    assert rules.apply(e.FloorMod(X, Y), Context()) is X
    assert rules.apply(e.FloorMod(Y, X), Context()) is None
    assert rules.apply(e.FloorMod(X, Y)) is None
    assert one("x + y", "y + x", "floating(x)").apply(e.Add(F, F)) is None
    assert one("x == y", "y == x", "boolean(x)").apply(e.EQ(P, P)) is None


@node(interned=True)
class Wrap(e.PrimExpr):
    """A node of an upper floor."""

    inner: e.PrimExpr

    def _post_init(self) -> None:
        self.dtype = self.inner.dtype


def test_nodes_of_upper_floors():
    rules = RuleSet("test", [rule("Wrap(Wrap(x))", "Wrap(x)")], {"Wrap": Wrap})
    assert rewrite(Wrap(Wrap(Wrap(X))), rules) is Wrap(X)
    assert rewrite(Wrap(Wrap(X)) + 1, rules) is Wrap(X) + 1
    assert instantiate("Wrap(x)", {"x": X}, {"Wrap": Wrap}) is Wrap(X)


def test_the_driver_reaches_a_fixpoint_and_reports_steps():
    rules = RuleSet("sums", [rule("(x + c1) + c2", "x + (c1 + c2)"), rule("min(x, x)", "x", name="same")])
    steps: list[Rule] = []
    expr = e.Min(e.Add(e.Add(e.Add(X, IntImm(1)), IntImm(2)), IntImm(3)), e.Add(X, IntImm(6)))
    memo: dict[e.PrimExpr, e.PrimExpr] = {}
    result = rewrite(expr, rules, memo=memo, watch=lambda step, before, after: steps.append(step))
    assert result is X + 6
    assert [step.name for step in steps] == ["(x + c1) + c2", "(x + c1) + c2", "same"]
    assert memo[expr] is result
    assert rewrite(expr, rules, memo=memo) is result


def test_rule_sets_join():
    both = one("x - x", "0", "integer(x)") + one("x * 2", "x + x")
    assert both.apply(e.Mul(X, IntImm(2))) is X + X
    assert both.apply(e.Sub(X, X)) is IntImm(0)
    assert both.name == "test+test"


def test_rules_describe_themselves():
    example = rule("select(p, x, y)", "x", where="prove(p)")
    assert example.names() == ["p", "x", "y"]
    assert str(example).startswith("select(p, x, y) -> x where prove(p)  (test_rewrite.py:")


def test_comparisons_and_logic_in_texts():
    text = "(x < y and x <= z) or not (x > z or x >= y or x != y)"
    expr = instantiate(text, {"x": X, "y": Y, "z": Z})
    inner = e.Or(e.Or(e.LT(Z, X), e.LE(Y, X)), e.NE(X, Y))
    assert expr is e.Or(e.And(e.LT(X, Y), e.LE(X, Z)), e.Not(inner))
    assert instantiate("x + 1", {"x": Var("s", INT32)}).b is IntImm(1, INT32)
    assert instantiate("3", {}) is IntImm(3, INDEX)
    assert truth(True) is build.const(True)


@pytest.mark.parametrize(
    ("pattern", "replacement", "where", "message"),
    [
        ("x +", "x", "", "is not an expression"),
        ("f(x) + y", "x", "", r"not understood: f\(x\)"),
        ("min(x, y, z)", "x", "", "not understood"),
        ("x", "x", "", "is not an operation"),
        ("x + y", "z", "", "uses z, which its pattern does not bind"),
    ],
)
def test_wrong_rules_are_refused(pattern, replacement, where, message):
    with pytest.raises(CompilerBug, match=message):
        one(pattern, replacement, where).apply(e.Add(X, Y))


def test_rules_that_never_rest_are_reported():
    rules = RuleSet("loop", [rule("x + y", "y + x")])
    with pytest.raises(CompilerBug, match="the rules loop do not come to rest"):
        rewrite(X + Y, rules)
