"""Gradients of random programs against central differences: `python -m tests.fuzz.gradients --count 1000 --seed 0`.

A program is made of smooth operators on small tensors of one shape and on scalars, of branches, recursive functions,
lists, tuples, closures and shared values. Its gradient, its tangent, and every fifth time the gradient of its gradient
and the compiled gradient must be what they are by other means.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from dataclasses import dataclass

import numpy as np

import tilewright as tw
from tests.graph.gradient.checks import check_forward, check_reverse, cotangents_for
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
    Var,
    VarPattern,
    constant,
)
from tilewright.graph.ir.op import call
from tilewright.graph.ir.prelude import CONS, NIL, construct, list_of, with_prelude
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType, tensor_type

UNARY = ("sin", "cos", "tanh", "sigmoid", "atan", "erf", "nn.softplus", "negative")
BINARY = ("add", "subtract", "multiply")
WHOLE = tensor_type((), "int64")
EVERY = 5
"""One program of so many is differentiated twice, and one of twice as many compiled."""


@dataclass
class Maker:
    """Makes one random program."""

    rng: np.random.Generator

    def __post_init__(self) -> None:
        shape = [(), (2,), (2, 3)][self.rng.integers(3)]
        self.kind: TensorType = tensor_type(shape, "float64")
        self.functions: list[Function] = []
        self.used: Counter[str] = Counter()

    def pick(self, values: list[GraphExpr]) -> GraphExpr:
        return values[self.rng.integers(len(values))]

    def var(self, name: str) -> Var:
        return Var(name, self.kind)

    def condition(self, values: list[GraphExpr]) -> GraphExpr:
        value = self.pick(values)
        rank = self.kind.rank or 0
        total = call("sum", value, axes=tuple(range(rank))) if rank else value
        return call("less", total, constant(float(self.rng.normal()), "float64"))

    def straight(self, values: list[GraphExpr], steps: int) -> GraphExpr:
        known = list(values)
        for _ in range(steps):
            if self.rng.random() < 0.5:
                known.append(call(UNARY[self.rng.integers(len(UNARY))], self.pick(known)))
            else:
                known.append(call(BINARY[self.rng.integers(len(BINARY))], self.pick(known), self.pick(known)))
        # All inputs matter.
        result = known[-1]
        for value in values[:3]:
            result = call("add", result, call("sin", value))
        return result

    def value(self, values: list[GraphExpr], depth: int) -> GraphExpr:
        forms = [self.branch, self.recursion, self.listed, self.closure, self.tupled, self.local]
        if depth == 0 or self.rng.random() < 0.25:
            return self.straight(values, int(self.rng.integers(1, 5)))
        form = forms[self.rng.integers(len(forms))]
        self.used[form.__name__] += 1
        return call("tanh", form(values, depth - 1))

    def branch(self, values: list[GraphExpr], depth: int) -> GraphExpr:
        return If(self.condition(values), self.value(values, depth), self.value(values, depth))

    def tupled(self, values: list[GraphExpr], depth: int) -> GraphExpr:
        pair = If(
            self.condition(values),
            Tuple((self.value(values, depth), self.pick(values))),
            Tuple((self.pick(values), self.value(values, depth))),
        )
        return call("multiply", TupleGet(pair, 0), TupleGet(pair, 1))

    def recursion(self, values: list[GraphExpr], depth: int) -> GraphExpr:
        name = f"again_{len(self.functions)}"
        state, beside, turns = self.var("state"), self.var("beside"), Var("turns", WHOLE)
        self.functions.append(Function(name, (state,), state))  # keeps the name
        place = len(self.functions) - 1
        after = self.value([state, beside], depth)
        again = Call(GlobalVar(name), (after, beside, call("subtract", turns, constant(1, "int64"))))
        inside = call("add", again, beside) if self.rng.random() < 0.5 else again
        body = If(call("less_equal", turns, constant(0, "int64")), state, inside)
        self.functions[place] = Function(name, (state, beside, turns), body, self.kind)
        count = constant(int(self.rng.integers(0, 4)), "int64")
        return Call(GlobalVar(name), (self.pick(values), self.pick(values), count))

    def listed(self, values: list[GraphExpr], depth: int) -> GraphExpr:
        name = f"fold_{len(self.functions)}"
        items, state = Var("items", list_of(self.kind)), self.var("state")
        head, tail = Var("head"), Var("tail")
        head.type = self.kind
        self.functions.append(Function(name, (state,), state))
        place = len(self.functions) - 1
        after = self.value([state, head], depth)
        clauses = (
            Clause(ConstructorPattern(NIL, ()), state),
            Clause(
                ConstructorPattern(CONS, (VarPattern(head), VarPattern(tail))), Call(GlobalVar(name), (after, tail))
            ),
        )
        self.functions[place] = Function(name, (state, items), Match(items, clauses), self.kind)
        whole: GraphExpr = construct(NIL)
        for _ in range(int(self.rng.integers(0, 4))):
            whole = construct(CONS, self.pick(values), whole)
        return Call(GlobalVar(name), (self.pick(values), whole))

    def closure(self, values: list[GraphExpr], depth: int) -> GraphExpr:
        f, x = Var("f"), self.var("x")
        body = Function("", (x,), self.value([x, self.pick(values)], depth))
        return Let(f, body, Call(f, (Call(f, (self.pick(values),)),)))

    def local(self, values: list[GraphExpr], depth: int) -> GraphExpr:
        f, x, turns = Var("f"), self.var("x"), Var("turns", WHOLE)
        after = self.value([x, self.pick(values)], depth)
        again = Call(f, (after, call("subtract", turns, constant(1, "int64"))))
        body = Function("", (x, turns), If(call("less_equal", turns, constant(0, "int64")), x, again), self.kind)
        return Let(f, body, Call(f, (self.pick(values), constant(int(self.rng.integers(0, 3)), "int64"))))

    def program(self) -> IRModule:
        params = [self.var(f"x{place}") for place in range(int(self.rng.integers(1, 4)))]
        shared = self.straight(list(params), 2)
        values = [*params, shared]
        result = call("add", self.value(values, int(self.rng.integers(0, 4))), call("sin", self.value(values, 1)))
        main = Function("main", tuple(params), result)
        return with_prelude(IRModule([*self.functions, main]))


def check(seed: int) -> Counter[str]:
    """Make and check one program; gives what it is made of."""
    maker = Maker(np.random.default_rng(seed))
    module = maker.program()
    main = module["main"]
    assert isinstance(main, Function)
    shape = maker.kind.static_shape
    assert shape is not None
    values = [np.asarray(maker.rng.uniform(-1, 1, shape)) for _ in main.params]
    backward = check_reverse(module, values, seed, tolerance=2e-5)
    check_forward(module, values, seed)
    given = cotangents_for(module, values, seed)
    if seed % EVERY == 0:
        check_reverse(backward, [*values, *given], seed, tolerance=5e-4)
    if seed % (2 * EVERY) == 1:
        expected = evaluate(backward, *values, *given)
        assert isinstance(expected, tuple)
        for found, wanted in zip(tw.compile(backward, threads=1)(*values, *given), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)
    return maker.used


def main(arguments: list[str] | None = None) -> int:
    """Check many programs; the exit status says whether all are right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    wrong: list[int] = []
    used: Counter[str] = Counter()
    begin = time.monotonic()
    for seed in range(chosen.seed, chosen.seed + chosen.count):
        try:
            used += check(seed)
        except Exception as error:
            wrong.append(seed)
            print(f"seed {seed}: {type(error).__name__}: {str(error).strip()[:400]}", flush=True)
    forms = ", ".join(f"{count} {name}" for name, count in sorted(used.items()))
    print(f"{chosen.count} programs ({forms}) in {time.monotonic() - begin:.0f} s: {len(wrong)} are wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
