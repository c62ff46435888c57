"""Agreement and broadcasting of constant, symbolic and unknown dimensions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.graph.ops.running import infer
from tilewright.graph.ir.op import operators
from tilewright.graph.ops.common import agree, broadcast_shapes, dim_text, dims, shape_text, window_dim
from tilewright.ir import build
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.expr import IntImm, Var
from tilewright.ir.types import TensorType, TupleType, tensor_type
from tilewright.support.errors import UserError

N, M = Var("n"), Var("m")


@given(st.lists(st.lists(st.sampled_from([1, 2, 3]), max_size=4), min_size=1, max_size=3))
def test_constant_shapes_broadcast_as_in_numpy(shapes):
    try:
        expected = np.broadcast_shapes(*(tuple(shape) for shape in shapes))
    except ValueError:
        with pytest.raises(UserError, match="do not broadcast"):
            broadcast_shapes([dims(shape) for shape in shapes])
    else:
        assert broadcast_shapes([dims(shape) for shape in shapes]) == dims(expected)


def test_symbolic_dimensions_broadcast():
    one, five = IntImm(1), IntImm(5)
    assert broadcast_shapes([(N, one), (one, M)]) == (N, M)
    assert broadcast_shapes([(N,), (N,)]) == (N,)
    assert broadcast_shapes([(N,), (five,)]) == (five,)
    assert broadcast_shapes([(N,), (M,)]) == (None,)
    assert broadcast_shapes([(None,), (five,)]) == (five,)
    assert broadcast_shapes([(None,), (one,)]) == (None,)
    assert broadcast_shapes([(N,), None]) is None


def test_dimensions_agree():
    assert agree(N, N, "x") is N
    assert agree(None, N, "x") is N
    assert agree(N, None, "x") is N
    assert agree(N, IntImm(4), "x") is IntImm(4)
    with pytest.raises(UserError, match="x: 3 and 4 must be equal"):
        agree(IntImm(3), IntImm(4), "x")


def test_texts_of_shapes():
    assert shape_text((N, IntImm(3), None)) == "(n, 3, ?)"
    assert shape_text((N,)) == "(n,)"
    assert shape_text(None) == "of unknown rank"
    assert dim_text(N + 1) == "(n + 1)"
    assert dim_text(build.minimum(N * 2, 8)) == "min((n * 2), 8)"


def test_windows_over_symbolic_dimensions():
    assert window_dim(N, 1, 1, 0, 0, 1, "x") is N
    assert window_dim(None, 3, 1, 0, 0, 1, "x") is None
    assert window_dim(IntImm(7), 3, 2, 1, 1, 1, "x") is IntImm(4)


def test_every_operator_is_described():
    for name, operator in operators().items():
        if name.startswith("test"):
            continue
        assert operator.description.endswith("."), name
        assert operator.inputs or name in ("arange", "dimensions", "host.fail", "random.key"), name


ONE_INPUT_KEEPS_SHAPE = ["exp", "nn.relu", "nn.gelu", "clip", "nn.softmax", "negative", "isnan", "cast"]


@pytest.mark.parametrize("name", ONE_INPUT_KEEPS_SHAPE)
@pytest.mark.parametrize("shape", [(N, 3), (None, 3), None])
def test_open_shapes_pass_through(name, shape):
    result = infer(name, tensor_type(shape, "float32"))
    assert isinstance(result, TensorType)
    assert result.shape == tensor_type(shape, "float32").shape


@pytest.mark.parametrize(
    ("name", "shapes", "attributes"),
    [
        ("add", [None, (3,)], {}),
        ("matmul", [None, (3, 4)], {}),
        ("sum", [None], {"axes": (0,)}),
        ("concatenate", [None, (3,)], {"axis": 0}),
        ("take", [None, (3,)], {}),
    ],
)
def test_unknown_ranks_stay_unknown(name, shapes, attributes):
    kinds = [tensor_type(shape, "float32") for shape in shapes]
    if name == "take":
        kinds[1] = tensor_type((3,), "int64")
    result = infer(name, *kinds, **attributes)
    assert isinstance(result, TensorType)
    assert result.shape is None


@pytest.mark.parametrize(
    ("name", "count", "attributes"),
    [
        ("nn.conv2d", 2, {}),
        ("nn.conv2d_transpose", 2, {}),
        ("nn.max_pool2d", 1, {"kernel": (2, 2)}),
        ("transpose", 1, {"axes": (1, 0)}),
        ("slice", 1, {"begin": (0,), "end": (1,), "strides": (1,)}),
        ("pad", 1, {"before": (0,), "after": (1,)}),
        ("tile", 1, {"repeats": (2,)}),
    ],
)
def test_unknown_ranks_become_known_where_the_operator_says(name, count, attributes):
    result = infer(name, *[TensorType(None, FLOAT32)] * count, **attributes)
    assert isinstance(result, TensorType)
    assert result.shape is not None
    assert set(result.shape) == {None}


def test_tuples_are_no_tensors():
    with pytest.raises(UserError, match="must be a tensor"):
        infer("exp", TupleType(()))
