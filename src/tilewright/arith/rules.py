"""The table of simplification rules for what is not a linear form: logic, selections, extrema, vectors, wrapping types.

Every rule is an identity for all values that its condition allows (a test enumerates them): integers wrap exactly,
floats keep NaN, infinities and the sign of zero, and no operand is evaluated where it was not before.
"""

from __future__ import annotations

from typing import Final

from tilewright.ir.rewrite import RuleSet, rule

LOGIC: Final = RuleSet(
    "logic",
    [
        rule("not (x < y)", "y <= x", where="not floating(x)"),
        rule("not (x <= y)", "y < x", where="not floating(x)"),
        rule("not (x == y)", "x != y"),
        rule("not (x != y)", "x == y"),
        rule("not (p and q)", "(not p) or (not q)"),
        rule("not (p or q)", "(not p) and (not q)"),
        rule("p and (not p)", "False"),
        rule("(not p) and p", "False"),
        rule("p or (not p)", "True"),
        rule("(not p) or p", "True"),
        rule("p and (p and q)", "p and q"),
        rule("(p and q) and p", "p and q"),
        rule("(p and q) and q", "p and q"),
        rule("p and (q and p)", "p and q"),
        rule("p or (p or q)", "p or q"),
        rule("(p or q) or p", "p or q"),
        rule("(p or q) or q", "p or q"),
        rule("p or (q or p)", "p or q"),
        rule("p and (p or q)", "p"),
        rule("(p or q) and p", "p"),
        rule("p or (p and q)", "p"),
        rule("(p and q) or p", "p"),
        rule("p and ((not p) or q)", "p and q"),
        rule("p or ((not p) and q)", "p or q"),
        rule("(p and q) or (p and r)", "p and (q or r)"),
        rule("(p or q) and (p or r)", "p or (q and r)"),
        rule("x < x", "False"),
        rule("x <= x", "True", where="not floating(x)"),
        rule("x == x", "True", where="not floating(x)"),
        rule("x != x", "False", where="not floating(x)"),
        rule("p == True", "p"),
        rule("p == False", "not p"),
        rule("p != False", "p"),
        rule("p != True", "not p"),
    ],
)

SELECTION: Final = RuleSet(
    "selection",
    [
        rule("select(not p, x, y)", "select(p, y, x)"),
        rule("select(x != y, z, w)", "select(x == y, w, z)"),
        rule("select(p, True, False)", "p"),
        rule("select(p, False, True)", "not p"),
        rule("select(p, True, q)", "p or q", where="boolean(q)"),
        rule("select(p, q, False)", "p and q", where="boolean(q)"),
        rule("select(p, False, q)", "(not p) and q", where="boolean(q)"),
        rule("select(p, q, True)", "(not p) or q", where="boolean(q)"),
        rule("select(p, x, select(p, y, z))", "select(p, x, z)"),
        rule("select(p, select(p, x, y), z)", "select(p, x, z)"),
        rule("select(p, select(q, x, y), y)", "select(p and q, x, y)"),
        rule("select(p, x, select(q, x, y))", "select(p or q, x, y)"),
        rule("select(p, select(q, x, y), x)", "select(p and (not q), y, x)"),
        rule("select(p, y, select(q, x, y))", "select(p or (not q), y, x)"),
        rule("select(x < y, x, y)", "min(x, y)", where="integer(x)"),
        rule("select(x < y, y, x)", "max(x, y)", where="integer(x)"),
        rule("select(x <= y, x, y)", "min(x, y)", where="integer(x)"),
        rule("select(x <= y, y, x)", "max(x, y)", where="integer(x)"),
        rule("select(x == y, x, y)", "y", where="integer(x)"),
        rule("select(x == y, y, x)", "x", where="integer(x)"),
    ],
)

EXTREMA: Final = RuleSet(
    "extrema",
    [
        rule("min(x, min(x, y))", "min(x, y)"),
        rule("max(x, max(x, y))", "max(x, y)"),
        rule("min(x, max(x, y))", "x", where="integer(x)"),
        rule("max(x, min(x, y))", "x", where="integer(x)"),
        rule("min(min(x, c1), c2)", "min(x, min(c1, c2))"),
        rule("max(max(x, c1), c2)", "max(x, max(c1, c2))"),
        rule("max(min(x, c1), c2)", "c2", where="c1 <= c2"),
        rule("min(max(x, c1), c2)", "c2", where="c1 >= c2"),
        rule("min(x, y)", "x", where="integer(x) and prove(x <= y)"),
        rule("min(x, y)", "y", where="integer(x) and prove(y <= x)"),
        rule("max(x, y)", "y", where="integer(x) and prove(x <= y)"),
        rule("max(x, y)", "x", where="integer(x) and prove(y <= x)"),
    ],
)

WRAPPING: Final = RuleSet(
    "wrapping integers",
    [
        rule("(x + c1) + c2", "x + (c1 + c2)"),
        rule("(x - c1) + c2", "x + (c2 - c1)"),
        rule("(x + c1) - c2", "x + (c1 - c2)"),
        rule("(x - c1) - c2", "x - (c1 + c2)"),
        rule("(x * c1) * c2", "x * (c1 * c2)"),
        rule("(c1 - x) + c2", "(c1 + c2) - x"),
        rule("c1 - (c2 - x)", "x + (c1 - c2)"),
        rule("c1 - (x + c2)", "(c1 - c2) - x"),
        rule("x - x", "0", where="integer(x)"),
        rule("(x + y) - y", "x", where="integer(x)"),
        rule("(x - y) + y", "x", where="integer(x)"),
        rule("x - (x - y)", "y", where="integer(x)"),
        rule("x - (x + y)", "0 - y", where="integer(x)"),
        rule("(x + y) - (x + z)", "y - z", where="integer(x)"),
        rule("x * c1 + x * c2", "x * (c1 + c2)", where="integer(x)"),
        rule("x * c1 - x * c2", "x * (c1 - c2)", where="integer(x)"),
        rule("(x // c1) // c2", "x // (c1 * c2)", where="c1 > 0 and c2 > 0 and c1 * c2 <= x.dtype.max_value()"),
        rule("(x % c1) % c2", "x % c2", where="c2 > 0 and c1 > 0 and c1 % c2 == 0"),
        rule("x % y", "x", where="integer(x) and prove(0 <= x) and prove(x < y)"),
        rule("x // y", "0", where="integer(x) and prove(0 <= x) and prove(x < y)"),
        rule("x / c1", "x // c1", where="integer(x) and c1 > 0 and prove(0 <= x)"),
        rule("truncmod(x, c1)", "x % c1", where="integer(x) and c1 > 0 and prove(0 <= x)"),
    ],
)

FLOATS: Final = RuleSet(
    "floats",
    [
        rule("x * 1.0", "x", where="floating(x)"),
        rule("x / 1.0", "x", where="floating(x)"),
        rule("x - 0.0", "x", where="floating(x)"),
        rule("(x * -1.0) * -1.0", "x", where="floating(x)"),
    ],
)

VECTORS: Final = RuleSet(
    "vectors",
    [
        rule("broadcast(x, n) + broadcast(y, n)", "broadcast(x + y, n)"),
        rule("broadcast(x, n) - broadcast(y, n)", "broadcast(x - y, n)"),
        rule("broadcast(x, n) * broadcast(y, n)", "broadcast(x * y, n)"),
        rule("broadcast(x, n) // broadcast(y, n)", "broadcast(x // y, n)", where="integer(x)"),
        rule("broadcast(x, n) % broadcast(y, n)", "broadcast(x % y, n)", where="integer(x)"),
        rule("min(broadcast(x, n), broadcast(y, n))", "broadcast(min(x, y), n)"),
        rule("max(broadcast(x, n), broadcast(y, n))", "broadcast(max(x, y), n)"),
        rule("broadcast(x, n) < broadcast(y, n)", "broadcast(x < y, n)"),
        rule("broadcast(x, n) <= broadcast(y, n)", "broadcast(x <= y, n)"),
        rule("broadcast(x, n) == broadcast(y, n)", "broadcast(x == y, n)"),
        rule("broadcast(x, n) != broadcast(y, n)", "broadcast(x != y, n)"),
        rule("broadcast(p, n) and broadcast(q, n)", "broadcast(p and q, n)"),
        rule("broadcast(p, n) or broadcast(q, n)", "broadcast(p or q, n)"),
        rule("not broadcast(p, n)", "broadcast(not p, n)"),
        rule("select(broadcast(p, n), x, y)", "select(p, x, y)"),
        rule(
            "select(p, broadcast(x, n), broadcast(y, n))",
            "broadcast(select(p, x, y), n)",
            where="p.dtype.lanes == 1",
        ),
        rule("ramp(x, y, n) + broadcast(z, n)", "ramp(x + z, y, n)", where="integer(x)"),
        rule("ramp(x, y, n) - broadcast(z, n)", "ramp(x - z, y, n)", where="integer(x)"),
        rule("broadcast(z, n) - ramp(x, y, n)", "ramp(z - x, 0 - y, n)", where="integer(x)"),
        rule("ramp(x, y, n) * broadcast(z, n)", "ramp(x * z, y * z, n)", where="integer(x)"),
        rule("ramp(x, y, n) + ramp(z, w, n)", "ramp(x + z, y + w, n)", where="integer(x)"),
        rule("ramp(x, y, n) - ramp(z, w, n)", "ramp(x - z, y - w, n)", where="integer(x)"),
        rule("ramp(x, 0, n)", "broadcast(x, n)", where="integer(x)"),
        rule(
            "ramp(x, c1, n) // broadcast(c2, n)",
            "ramp(x // c2, c1 // c2, n)",
            where="index(x) and c2 > 0 and c1 % c2 == 0",
        ),
        rule("ramp(x, c1, n) % broadcast(c2, n)", "broadcast(x % c2, n)", where="index(x) and c2 > 0 and c1 % c2 == 0"),
    ],
)

ALL: Final = LOGIC + SELECTION + EXTREMA + WRAPPING + FLOATS + VECTORS
"""Every rule, in the order in which they are tried."""
