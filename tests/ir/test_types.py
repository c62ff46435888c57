"""Types of graph values."""

from __future__ import annotations

from tilewright.ir.dtype import DataType
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
