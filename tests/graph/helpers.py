"""Small builders shared by the graph tests."""

from __future__ import annotations

import numpy as np

import tilewright.graph.ops  # noqa: F401  (registers the operators)
from tilewright.graph.ir.expr import Call, Function, GraphExpr, Var
from tilewright.graph.ir.op import call
from tilewright.ir.types import tensor_type
from tilewright.support.span import Span


def var(name: str, *shape, dtype: str = "float32") -> Var:
    return Var(name, tensor_type(shape, dtype))


def op(name: str, *args: GraphExpr, span: str | None = None, **attributes: object) -> Call:
    return call(name, *args, span=Span(span) if span else None, **attributes)


def function(params, body, name: str = "main", **more) -> Function:
    return Function(name, tuple(params), body, **more)


def random(seed: int, *shape, dtype: str = "float32"):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def inputs_for(function: Function, seed: int = 0) -> list:
    rng = np.random.default_rng(seed)
    values = []
    for param in function.params:
        dtype = param.annotation.dtype.numpy()
        shape = param.annotation.static_shape
        if dtype.kind == "f":
            values.append(rng.standard_normal(shape).astype(dtype))
        elif dtype.kind == "b":
            values.append(rng.integers(0, 2, shape).astype(bool))
        else:
            values.append(rng.integers(0, 5, shape).astype(dtype))
    return values
