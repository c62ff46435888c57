"""Mixed function variants in the same module: a graph function, a loop function and an extern function."""

from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright.graph import ops  # noqa: F401  (declares the operators)
from tilewright.graph.ir.expr import Function, Var, constant
from tilewright.graph.ir.op import call
from tilewright.ir.function import ExternFunc
from tilewright.ir.types import tensor_type

# def @main(%x : Tensor((10,), f32)): a function of the graph level, made of operators.
x = Var("x", tensor_type((10,), "float32"))
graph_add_one = Function("main", (x,), call("add", x, constant(1.0, "float32")))


@tw.hybrid
def te_add_one(a, b):
    n = var("n")  # noqa: F821
    A = bind_buffer(a, shape=[n])  # noqa: F821
    B = bind_buffer(b, shape=[n])  # noqa: F821
    for i in iter_range(n, iter_type="data_par"):  # noqa: F821
        B[i] = A[i] + 1.0


mod = tw.IRModule([graph_add_one, te_add_one, ExternFunc("library_add_one")])
for name in mod:
    print(f"{name}: {type(mod[name]).__name__}")
assert [type(mod[name]).__name__ for name in mod] == ["Function", "PrimFunc", "ExternFunc"]

# The two levels compute the same.
values = np.arange(10, dtype=np.float32)
from_loops = np.empty(10, np.float32)
tw.build(mod)["te_add_one"](values, from_loops)
from_graph = tw.compile(tw.IRModule([mod["main"]]))(values)
assert from_loops.tolist() == np.asarray(from_graph).tolist() == (values + 1).tolist()
