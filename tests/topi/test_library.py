"""The library as a whole: every operator of the graph IR has a computation, and the other way round."""

from __future__ import annotations

import pytest

import tilewright.graph.ops
import tilewright.topi.library  # noqa: F401  (registers the computations)
from tilewright.graph.ir.op import operators
from tilewright.ir.types import TensorType, tensor_type
from tilewright.support.errors import UnsupportedError
from tilewright.topi.registry import registered, result_shape


def test_operators_and_computations_match() -> None:
    assert set(registered()) == {name for name, operator in operators().items() if not operator.host}


def test_kernels_need_known_dimensions() -> None:
    for kind in (TensorType(None, tensor_type((), "float32").dtype), tensor_type((2, None), "float32")):
        with pytest.raises(UnsupportedError, match="known or symbolic"):
            result_shape(kind)
