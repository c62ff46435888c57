"""Types of graph values."""

from __future__ import annotations

import pytest

from tilewright.ir.dtype import FLOAT32, DataType
from tilewright.ir.expr import Var
from tilewright.ir.types import (
    DataTypeCall,
    DataTypeName,
    FunctionType,
    TensorType,
    TupleType,
    TypeVariable,
    tensor_type,
)
from tilewright.support.errors import UserError


def test_types_are_interned() -> None:
    n = Var("n")
    assert tensor_type((1, 2), "float32") is tensor_type((1, 2), "float32")
    assert tensor_type((n,), "int8") is tensor_type((n,), "int8")
    assert tensor_type((n,), "int8") is not tensor_type((Var("n"),), "int8")
    image = tensor_type((1,), "float32")
    assert TupleType((image, image)) is TupleType((image, image))
    assert FunctionType((image,), image) is FunctionType((image,), image)
    assert DataTypeCall(DataTypeName("List"), (image,)) is DataTypeCall(DataTypeName("List"), (image,))
    assert TypeVariable("a") is not TypeVariable("a")


def test_shapes() -> None:
    assert tensor_type((1, 2), "float32").static_shape == (1, 2)
    assert tensor_type((Var("n"), 2), "float32").static_shape is None
    assert tensor_type((None, 2), "float32").static_shape is None
    assert tensor_type(None, "float32").static_shape is None
    assert tensor_type(None, "float32").rank is None
    assert tensor_type((), "float32").static_shape == ()
    assert tensor_type((None, 2), "float32").rank == 2
    assert TensorType(None, DataType.of("int8")).dtype.name == "int8"


def test_dimensions_of_a_type_are_expressions() -> None:
    with pytest.raises(UserError, match="is an expression, not 3"):
        TensorType((3,), FLOAT32)  # type: ignore[arg-type]
