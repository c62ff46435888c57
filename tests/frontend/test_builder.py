"""The builder that importers share: types at once, folding, sugar."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.frontend.core import builder as module
from tilewright.frontend.core.builder import Builder, dtype_of, evaluate, rank_of, shape_of
from tilewright.graph.ir.expr import Call, Constant, Tuple, Var
from tilewright.ir.dtype import BFLOAT16, FLOAT32
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.types import TupleType, tensor_type
from tilewright.support.errors import CompilerBug, UnsupportedError, UserError
from tilewright.support.span import Span


@pytest.fixture
def builder() -> Builder:
    made = Builder()
    made.span = Span("here")
    return made


def var(*shape, dtype="float32") -> Var:
    return Var("x", tensor_type(shape, dtype))


def test_calls_are_typed_and_named(builder):
    result = builder.call("add", var(2, 3), var(3))
    assert isinstance(result, Call)
    assert shape_of(result) == (2, 3)
    assert dtype_of(result) is FLOAT32
    assert rank_of(result) == 2
    assert str(result.span) == "here"


def test_small_constants_fold(builder):
    result = builder.call("add", builder.constant([1.0, 2.0], "float32"), builder.constant(1.0, "float32"))
    assert isinstance(result, Constant)
    assert result.data.tolist() == [2, 3]
    parts = builder.call("split", result, sizes=(1, 1), axis=0)
    assert isinstance(parts, Tuple)
    assert builder.item(parts, 1).data.tolist() == [3]


def test_large_constants_do_not_fold_but_can_be_evaluated(builder):
    big = builder.broadcast_to(builder.constant(1.0, "float32"), (1 << 18,))
    assert isinstance(big, Call)
    parts = builder.call("split", big, sizes=(1, (1 << 18) - 1), axis=0)
    total = builder.call("sum", builder.item(parts, 1), axes=(0,))
    value = evaluate(total)
    assert value is not None
    assert value == (1 << 18) - 1
    assert evaluate(builder.call("add", big, var(1))) is None
    assert evaluate(builder.tuple([big, big])) is None


def test_views_of_large_constants_fold(builder):
    big = builder.constant(np.zeros((1 << 10, 1 << 10), np.float32))
    assert isinstance(builder.reshape(big, (1 << 20,)), Constant)
    assert isinstance(builder.call("add", big, big), Call)


def test_types_numpy_lacks_do_not_fold(builder):
    half = Constant(np.zeros(3, np.uint16), BFLOAT16)
    assert isinstance(builder.call("add", half, half), Call)
    assert evaluate(half) is None
    assert dtype_of(builder.constant_like(1, half)) is BFLOAT16
    assert isinstance(builder.call("cast", builder.constant([1.0], "float32"), dtype=BFLOAT16), Call)


def test_sugar_leaves_alone_what_is_already_right(builder):
    x = var(2, 3)
    assert builder.reshape(x, (2, 3)) is x
    assert builder.transpose(x, (0, 1)) is x
    assert builder.cast(x, "float32") is x
    assert builder.broadcast_to(x, (2, 3)) is x
    assert builder.slice_axis(x, 0, 0, 2) is x
    assert builder.concatenate([x], 0) is x
    assert builder.tuple([x]) is x


def test_sugar(builder):
    x = var(2, 3)
    assert shape_of(builder.expand_dims(x, (0, 3))) == (1, 2, 3, 1)
    assert shape_of(builder.slice_axis(x, 1, 1, 3)) == (2, 2)
    assert shape_of(builder.concatenate([x, x], 1)) == (2, 6)
    assert shape_of(builder.filled(0, (4,), FLOAT32)) == (4,)
    assert builder.tuple([x, x]).type is TupleType((x.annotation, x.annotation))
    assert builder.count(3, 2).tolist() == [0, 2, 4]


def test_refusals(builder):
    with pytest.raises(UserError, match="constant shape"):
        shape_of(var(Symbol("n")))
    with pytest.raises(UserError, match="a tensor is needed"):
        shape_of(builder.tuple([var(1), var(1)]))
    with pytest.raises(UserError, match="a tensor is needed"):
        dtype_of(builder.tuple([var(1), var(1)]))
    with pytest.raises(UserError, match=r"cannot hold 0\.5"):
        builder.constant_like(0.5, var(1, dtype="int32"))
    with pytest.raises(UserError, match="cannot hold 300"):
        builder.constant_like(300, var(1, dtype="uint8"))
    with pytest.raises(UserError, match="elements is too large"):
        builder.broadcast_to(var(1), (1 << 40, 1 << 40))
    with pytest.raises(UnsupportedError, match="a table of"):
        builder.count(module.LARGEST_MADE + 1)
    with pytest.raises(CompilerBug, match="has no type"):
        builder.call("exp", Var("untyped"))
    with pytest.raises(CompilerBug, match="has no type"):
        builder.tuple([Var("untyped"), var(1)])
    with pytest.raises(CompilerBug, match="an item of"):
        builder.item(var(1), 0)
