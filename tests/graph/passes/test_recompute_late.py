"""Second computations of training steps, where the kernel that reads them on the way back reads nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.helpers import function, op, random, var
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Call, Function, Tuple
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes import recompute_late as recomputation
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.passes.recompute_late import recompute_late
from tilewright.graph.state import with_state
from tilewright.ir.function import IRModule
from tilewright.target import Target


def test_operands_that_are_turned_round_are_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """In tf32 the gradient of a weight reads `transpose(g)`, a kernel with no other argument."""
    for name, value in {"_LEAST_BYTES": 1, "_LAUNCH_BYTES": 0, "_MOST_MOVED": 1}.items():
        monkeypatch.setattr(recomputation, name, value)
    options = GraphOptions(target=Target("cuda -arch=sm_90a"))
    x, w, v, wide = var("x", 8, 8), var("w", 8, 8), var("v", 8, 8), var("wide", 8, 64)
    u = op("matmul", x, w)
    g = op("tanh", u)
    y = op("matmul", g, v)
    total = op("sum", op("exp", op("matmul", y, wide)), axes=(1,), keepdims=True)
    dy = op("multiply", y, total)
    gradient = op("matmul", op("transpose", g, axes=(1, 0)), op("transpose", dy, axes=(1, 0)), transpose_b=True)
    result = Tuple((op("multiply", u, op("matmul", dy, v)), op("subtract", w, gradient)))
    module = infer_types(IRModule([function([x, w, v, wide], result)]))
    fused = with_state(fuse(module, options), {"w": 1})
    changed = recompute_late(fused, options)

    def activations(item: IRModule) -> int:
        kernels = [part.callee for part in post_order(item["main"], closures=False) if isinstance(part, Call)]
        return sum(isinstance(kernel, Function) and "tanh" in str(kernel.notes["name"]) for kernel in kernels)

    assert (activations(fused), activations(changed)) == (1, 2)
    values = [random(number, *shape) for number, shape in enumerate(((8, 8), (8, 8), (8, 8), (8, 64)))]
    for got, wanted in zip(evaluate(changed, *values), evaluate(module, *values), strict=True):
        np.testing.assert_array_equal(got, wanted)
