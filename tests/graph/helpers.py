"""Small builders shared by the graph tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

import tilewright.graph.ops  # noqa: F401  (registers the operators)
from tilewright.graph.ir.expr import Call, Function, GraphExpr, Var
from tilewright.graph.ir.op import call
from tilewright.ir.expr import PrimExpr
from tilewright.ir.types import TensorType, tensor_type
from tilewright.support.span import Span


def var(name: str, *shape: PrimExpr | int, dtype: str = "float32") -> Var:
    return Var(name, tensor_type(shape, dtype))


def op(name: str, *args: GraphExpr, span: str | None = None, **attributes: object) -> Call:
    return call(name, *args, span=Span(span) if span else None, **attributes)


def function(params: Iterable[Var], body: GraphExpr, name: str = "main", **more: Any) -> Function:
    return Function(name, tuple(params), body, **more)


def random(seed: int, *shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def inputs_for(function: Function, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    values = []
    for param in function.params:
        assert isinstance(param.annotation, TensorType)
        dtype = param.annotation.dtype.numpy()
        shape = param.annotation.static_shape
        assert shape is not None, f"the size of {param.name} is open"
        if dtype.kind == "f":
            values.append(rng.standard_normal(shape).astype(dtype))
        elif dtype.kind == "b":
            values.append(rng.integers(0, 2, shape).astype(bool))
        else:
            values.append(rng.integers(0, 5, shape).astype(dtype))
    return values
