"""A Tree-LSTM over an algebraic data type: the shape of the computation is the shape of each sentence's tree.

Recursion, matching and data stay what they are; all arithmetic of a node of the tree is one native call. Run it with
`python examples/tree_lstm.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

import tilewright as tw
from tilewright.graph.interpreter import DataValue as GraphValue
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import (
    Call,
    Clause,
    ConstructorPattern,
    Function,
    GlobalVar,
    GraphExpr,
    Match,
    Tuple,
    TupleGet,
    Var,
    VarPattern,
    constant,
)
from tilewright.graph.ir.op import call
from tilewright.graph.ir.prelude import BRANCH, LEAF, tree_of, with_prelude
from tilewright.graph.ops import host  # noqa: F401  (registers all operators)
from tilewright.ir.function import IRModule
from tilewright.ir.types import TupleType, tensor_type
from tilewright.runtime import DataValue

INPUT, HIDDEN = 16, 32
Array = npt.NDArray[np.float32]


def build(seed: int = 0) -> IRModule:
    """The model: `main(tree) -> hidden state of the root`."""
    rng = np.random.default_rng(seed)

    def weights(*shape: int) -> GraphExpr:
        return constant((rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32))

    state = tensor_type((1, HIDDEN), "float32")
    tree = tree_of(tensor_type((1, INPUT), "float32"))
    subtree, left, word, right = Var("subtree", tree), Var("left"), Var("word"), Var("right")
    zeros = constant(np.zeros((1, HIDDEN), np.float32))
    # The states of both children, then one product for all five gates.
    below = [Call(GlobalVar("node"), (child,)) for child in (left, right)]
    hidden = call("concatenate", TupleGet(below[0], 0), TupleGet(below[1], 0), axis=1)
    gates = call(
        "add",
        call("matmul", word, weights(INPUT, 5 * HIDDEN)),
        call("add", call("matmul", hidden, weights(2 * HIDDEN, 5 * HIDDEN)), weights(1, 5 * HIDDEN)),
    )
    parts = call("split", gates, sizes=(HIDDEN,) * 5, axis=1)
    kept = [call("sigmoid", TupleGet(parts, n)) for n in range(4)]
    cell = call("multiply", kept[0], call("tanh", TupleGet(parts, 4)))
    for gate, child in zip(kept[1:3], below, strict=True):
        cell = call("add", cell, call("multiply", gate, TupleGet(child, 1)))
    branch = Tuple((call("multiply", kept[3], call("tanh", cell)), cell))
    clauses = (
        Clause(ConstructorPattern(LEAF, ()), Tuple((zeros, zeros))),
        Clause(ConstructorPattern(BRANCH, (VarPattern(left), VarPattern(word), VarPattern(right))), branch),
    )
    node = Function("node", (subtree,), Match(subtree, clauses), TupleType((state, state)))
    sentence = Var("sentence", tree)
    main = Function("main", (sentence,), TupleGet(Call(GlobalVar("node"), (sentence,)), 0))
    return with_prelude(IRModule([main, node]))


def random_tree(words: int, rng: np.random.Generator, make: Callable[..., object]) -> object:
    """A random tree; `make(constructor, fields)` builds its nodes."""
    if words == 0:
        return make(LEAF, ())
    before = int(rng.integers(0, words))
    left = random_tree(before, rng, make)
    word = rng.standard_normal((1, INPUT)).astype(np.float32)
    return make(BRANCH, (left, word, random_tree(words - 1 - before, rng, make)))


def for_runtime(constructor: object, fields: tuple[object, ...]) -> DataValue:
    """Values as a deployed model takes them: constructors by name."""
    return DataValue(getattr(constructor, "name", ""), fields)


def main() -> None:
    """Compile, run on random trees, compare with the graph interpreter."""
    module = build()
    exe = tw.compile(module, threads=1)
    for words in (0, 1, 7, 25):
        found = exe(random_tree(words, np.random.default_rng(words), for_runtime))
        expected = evaluate(module, random_tree(words, np.random.default_rng(words), GraphValue))
        error = float(np.abs(found - np.asarray(expected)).max())
        assert error < 1e-5, error
        print(f"{words:3} words: largest difference from the interpreter {error:.1e}")


if __name__ == "__main__":
    main()
