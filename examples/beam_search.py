"""Beam search: a decode loop whose sequences grow by a token each turn and which ends when data says so.

The loop is a function that calls itself last, so it takes no stack; each turn is two native calls (the step, and the
test whether to go on). The length of the sequences is a symbol that every turn binds anew. Run it with
`python examples/beam_search.py`.
"""

from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Call, Function, GlobalVar, GraphExpr, If, Let, Tuple, TupleGet, Var, constant
from tilewright.graph.ir.op import call
from tilewright.graph.ops import host  # noqa: F401  (registers all operators)
from tilewright.ir.expr import IntImm
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.function import IRModule
from tilewright.ir.types import TupleType, tensor_type

BEAMS, HIDDEN, VOCABULARY, END = 4, 32, 50, 0
LONGEST = 20


def build(seed: int = 0) -> IRModule:
    """The model: `main(state) -> (tokens, scores)` of the best beams."""
    rng = np.random.default_rng(seed)

    def weights(*shape: int) -> GraphExpr:
        return constant(rng.standard_normal(shape).astype(np.float32) / np.float32(np.sqrt(shape[0]) / 2))

    def number(value: int) -> GraphExpr:
        return constant(np.int64(value))

    length, final = Symbol("length"), Symbol("final")
    tokens = Var("tokens", tensor_type((BEAMS, length), "int64"))
    state = Var("state", tensor_type((BEAMS, HIDDEN), "float32"))
    scores = Var("scores", tensor_type((BEAMS,), "float32"))
    turn = Var("turn", tensor_type((), "int64"))
    # One step: new states, scores of all continuations, the best of them over all beams.
    last = call("take", tokens, call("dimensions", values=(length - 1,), shape=()), axis=1)
    embedded = call("take", weights(VOCABULARY, HIDDEN), last, axis=0)
    moved = call("tanh", call("add", embedded, call("matmul", state, weights(HIDDEN, HIDDEN))))
    logits = call("nn.log_softmax", call("matmul", moved, weights(HIDDEN, VOCABULARY)), axis=1)
    totals = call("add", call("reshape", scores, shape=(BEAMS, 1)), logits)
    best = call("topk", call("reshape", totals, shape=(BEAMS * VOCABULARY,)), k=BEAMS, axis=0)
    beam = call("floor_divide", TupleGet(best, 1), number(VOCABULARY))
    token = call("floor_mod", TupleGet(best, 1), number(VOCABULARY))
    grown = call("concatenate", call("take", tokens, beam, axis=0), call("reshape", token, shape=(BEAMS, 1)), axis=1)
    again = Call(
        GlobalVar("decode"),
        (call("add", turn, number(1)), grown, call("take", moved, beam, axis=0), TupleGet(best, 0)),
    )
    ended = call("all", call("equal", last, number(END)), axes=(0,), keepdims=False)
    stop = call("logical_or", call("greater_equal", turn, number(LONGEST)), ended)
    result = TupleType((tensor_type((BEAMS, None), "int64"), tensor_type((BEAMS,), "float32")))
    decode = Function("decode", (turn, tokens, state, scores), If(stop, Tuple((tokens, scores)), again), result)
    # All beams start with token 1; only the first counts, or they would all be the same.
    start = Var("start", tensor_type((BEAMS, HIDDEN), "float32"))
    first = constant(np.array([0.0] + [-1e9] * (BEAMS - 1), np.float32))
    found = Call(GlobalVar("decode"), (number(0), constant(np.ones((BEAMS, 1), np.int64)), start, first))
    sized = Var("sized", tensor_type((BEAMS, final), "int64"))
    matched = call("shape.match", TupleGet(found, 0), dims=(IntImm(BEAMS), final))
    main = Function("main", (start,), Let(sized, matched, Tuple((sized, TupleGet(found, 1)))))
    return IRModule([main, decode], attributes={"output_names": ("tokens", "scores")})


def main() -> None:
    """Compile, decode from random states, compare with the graph interpreter."""
    module = build()
    exe = tw.compile(module, threads=1)
    for seed in range(3):
        start = np.random.default_rng(seed).standard_normal((BEAMS, HIDDEN)).astype(np.float32)
        tokens, scores = exe(start)
        expected = evaluate(module, start)
        assert isinstance(expected, tuple)
        assert np.array_equal(tokens, expected[0])  # type: ignore[arg-type]
        assert np.allclose(scores, expected[1], rtol=1e-4)  # type: ignore[arg-type]
        print(f"best of {BEAMS}: {' '.join(map(str, tokens[0]))}  score {scores[0]:.3f}")


if __name__ == "__main__":
    main()
