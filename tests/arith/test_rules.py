"""Every rule of the table is an identity: both sides are evaluated for small values, in every type that it accepts."""

from __future__ import annotations

import itertools
import math

import pytest

from tests.arith.helpers import evaluate
from tilewright.arith import rules
from tilewright.ir.dtype import BOOL, FLOAT32, INDEX, DataType
from tilewright.ir.expr import IntImm, PrimExpr, Var
from tilewright.ir.rewrite import Rule, RuleSet, instantiate, is_constant_name
from tilewright.support.errors import CompilerBug, UserError

INT4, UINT4 = DataType.of("int4"), DataType.of("uint4")
VALUES = {
    INDEX: [-3, -1, 0, 1, 2, 5],
    INT4: [-8, -3, -1, 0, 1, 7],
    UINT4: [0, 1, 2, 7, 8, 15],
    FLOAT32: [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5, -2.0],
    BOOL: [0, 1],
}
CONSTANTS = [-4, -2, -1, 0, 1, 2, 3, 6]
LOGICAL_NAMES = frozenset("pqr")
LANES = 3


class Oracle:
    """Proves what is true at one point."""

    def __init__(self, env: dict[Var, object]) -> None:
        self.env = env

    def prove(self, condition: PrimExpr) -> bool:
        return bool(evaluate(condition, self.env))


def bindings_of(rule: Rule, dtype: DataType):
    """All choices of the constants of a rule, with fresh variables for its other names."""
    names = rule.names()
    texts = f"{rule.pattern} {rule.replacement}"
    constants = [name for name in names if is_constant_name(name)]
    if constants and not dtype.is_integer:
        return
    allowed = [c for c in CONSTANTS if not constants or dtype.min_value() <= c <= dtype.max_value()]
    for chosen in itertools.product(allowed, repeat=len(constants)):
        result: dict[str, object] = {}
        for name in names:
            if name in LOGICAL_NAMES:
                result[name] = Var(name, BOOL)
            elif name == "n" and "n)" in texts:
                result[name] = LANES
            elif not is_constant_name(name):
                # The operands of a selection by lanes are vectors.
                vector = "select(broadcast(p" in texts
                result[name] = Var(name, dtype.with_lanes(LANES) if vector else dtype)
        result.update({name: IntImm(value, dtype) for name, value in zip(constants, chosen, strict=True)})
        yield result


def values_of(dtype: DataType) -> list[object]:
    scalars = VALUES[dtype.element]
    if dtype.is_scalar:
        return list(scalars)
    return [[scalars[(first + lane) % len(scalars)] for lane in range(dtype.lanes)] for first in range(len(scalars))]


def same(a: object, b: object) -> bool:
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float):
        return repr(a) == repr(float(b))
    return a == b


def check(rule: Rule, dtype: DataType) -> int:
    alone = RuleSet("one", [rule])
    applied = 0
    for bindings in bindings_of(rule, dtype):
        try:
            before = instantiate(rule.pattern, bindings)
        except (CompilerBug, UserError, AttributeError):
            return 0
        variables = [v for v in bindings.values() if isinstance(v, Var)]
        for values in itertools.product(*(values_of(v.dtype) for v in variables)):
            env = dict(zip(variables, values, strict=True))
            try:
                expected = evaluate(before, env)
            except ZeroDivisionError:
                continue
            after = alone.apply(before, Oracle(env))
            if after is not None:
                applied += 1
                assert after.dtype is before.dtype
                assert same(expected, evaluate(after, env)), f"{rule}: {before!r} -> {after!r} at {values}"
    return applied


@pytest.mark.parametrize("rule", rules.ALL.rules, ids=str)
def test_rule_is_an_identity(rule):
    applied = {str(dtype): check(rule, dtype) for dtype in (INDEX, INT4, UINT4, FLOAT32, BOOL)}
    assert any(applied.values()), "the rule never matched"


def test_rules_know_where_they_were_written():
    assert all(rule.source.startswith("rules.py:") for rule in rules.ALL.rules)
    assert len({rule.source for rule in rules.ALL.rules}) == len(rules.ALL.rules)
