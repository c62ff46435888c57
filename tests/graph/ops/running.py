"""Apply an operator to arrays: its type rule and its reference must agree."""

from __future__ import annotations

import numpy as np

import tilewright.graph.ops  # noqa: F401  (registers the operators)
from tilewright.graph.ir.op import get_operator
from tilewright.ir.types import TensorType, TupleType, Type, tensor_type

RANDOM = np.random.default_rng(3)


def data(*shape: int, dtype: str = "float32", low: float = -2.0, high: float = 2.0) -> np.ndarray:
    """Random numbers of a shape."""
    if dtype == "bool":
        return RANDOM.integers(0, 2, shape).astype(bool)
    if dtype.startswith(("int", "uint")):
        return RANDOM.integers(int(low), int(high) + 1, shape).astype(dtype)
    return RANDOM.uniform(low, high, shape).astype(dtype)


def infer(name: str, *types: Type, **attributes: object) -> Type:
    """The type that an operator's rule gives."""
    operator = get_operator(name)
    return operator.infer(list(types), operator.attributes_class(**attributes))


def apply(name: str, *arrays: np.ndarray, **attributes: object):
    """What an operator's reference gives, checked against its type rule."""
    operator = get_operator(name)
    values = operator.attributes_class(**attributes)
    result = operator.reference(list(arrays), values)
    kind = operator.infer([tensor_type(array.shape, array.dtype.name) for array in arrays], values)
    parts = result if isinstance(result, tuple) else (result,)
    kinds = kind.items if isinstance(kind, TupleType) else (kind,)
    for part, expected in zip(parts, kinds, strict=True):
        assert isinstance(expected, TensorType)
        assert isinstance(part, np.ndarray)
        assert (part.shape, part.dtype) == (expected.static_shape, expected.dtype.numpy())
    return result
