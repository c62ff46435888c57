"""Default schedules and machine code on awkward shapes: single elements, odd sizes, empty dimensions, every family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.topi.differential import Array, operator_program, random_array, results_of, run_reference
from tests.topi.scheduling import schedule_cpu
from tilewright.compiler import build
from tilewright.ir.dtype import DataType
from tilewright.target import Target

RNG = np.random.default_rng(0)


def _(*shape: int, dtype: str = "float32", low: float = -4) -> Array:
    return random_array(RNG, shape, dtype, low)


PADDED = {"padding": (1, 1, 1, 1)}
CHANNELS_LAST = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
CASES: list[tuple[str, Sequence[Array], dict[str, Any]]] = [
    ("exp", [_()], {}),
    ("exp", [_(1, 1)], {}),
    ("exp", [_(3, 7)], {}),
    ("exp", [_(2, 5, 2)], {}),
    ("exp", [_(3, 3, 2)], {}),
    ("exp", [_(3, 5, 11, 2)], {}),
    ("exp", [_(3, 0, 2)], {}),
    ("sigmoid", [_(5, 3, dtype="float16")], {}),
    ("isnan", [_(3, 7)], {}),
    ("equal", [_(3, 7, dtype="bool"), _(7, dtype="bool")], {}),
    ("power", [_(3, 7, dtype="int32"), _(3, 7, dtype="int32", low=0)], {}),
    ("floor_divide", [_(3, 7), _(3, 1)], {}),
    ("where", [_(3, 5, dtype="bool"), _(3, 5), _(3, 1)], {}),
    ("nn.batch_norm", [_(1, 5, 3, 3), _(5), _(5), _(5), _(5, low=0.5)], {}),
    ("cast", [_(3, 7)], {"dtype": DataType.of("int8")}),
    ("concatenate", [_(3, 3, 2, dtype="int32")], {"axis": 0}),
    ("concatenate", [_(3, 1, 2), _(3, 0, 2), _(3, 4, 2)], {"axis": 1}),
    ("split", [_(2, 3, 5)], {"sizes": (2, 0, 3), "axis": 2}),
    ("transpose", [_(3, 5, 7)], {"axes": (2, 0, 1)}),
    ("reshape", [_(3, 5, 7)], {"shape": (7, 15)}),
    ("slice", [_(5, 7)], {"begin": (4, 1), "end": (-1, 7), "strides": (-2, 3)}),
    ("pad", [_(3, 5)], {"before": (1, 1), "after": (2, 0)}),
    ("pad", [_(3, 5)], {"before": (2, 1), "after": (1, 4), "mode": "reflect"}),
    ("tile", [_(3, 5)], {"repeats": (2, 3)}),
    ("take", [_(5, 3), np.array([[1, -1], [4, 9]])], {"axis": 0}),
    ("sum", [_(2, 5, 2, dtype="float16")], {"axes": ()}),
    ("sum", [_(3, 0)], {"axes": (1,)}),
    ("sum", [_(33, 17)], {"axes": (0, 1)}),
    ("mean", [_(1, 5, 1, 1)], {"axes": (2, 3), "keepdims": True}),
    ("max", [_(4, 9)], {"axes": (0,)}),
    ("all", [_(3, 7, dtype="bool")], {"axes": (1,)}),
    ("argmax", [_(1, 1)], {"axis": 1}),
    ("argmin", [_(4, 9, 3)], {"axis": 1, "select_last": True}),
    ("nn.softmax", [_(3, 0)], {"axis": 1}),
    ("nn.log_softmax", [_(3, 0)], {"axis": 1}),
    ("nn.softmax", [_(2, 3, 5)], {"axis": 1}),
    ("nn.layer_norm", [_(1, 1), _(1), _(1)], {"axis": 1}),
    ("nn.layer_norm", [_(4, 33), _(33), _(33)], {"axis": 1}),
    ("cumsum", [_(3, 5)], {"axis": 1, "exclusive": True}),
    ("matmul", [_(1, 1), _(1, 1)], {}),
    ("matmul", [_(1, 5), _(5, 1)], {}),
    ("matmul", [_(7, 1), _(1, 9)], {}),
    ("matmul", [_(3, 0), _(0, 4)], {}),
    ("matmul", [_(13, 17), _(19, 17)], {"transpose_b": True}),
    ("matmul", [_(2, 1, 3, 4), _(5, 4, 1)], {}),
    ("matmul", [_(5, 6, dtype="int8"), _(6, 7, dtype="int8")], {}),
    ("nn.conv2d", [_(1, 1, 1, 1), _(1, 1, 1, 1)], {}),
    ("nn.conv2d", [_(1, 1, 3, 3), _(1, 1, 1, 1)], {}),
    ("nn.conv2d", [_(1, 2, 3, 3), _(1, 2, 3, 3)], PADDED),
    ("nn.conv2d", [_(1, 1, 3, 3), _(4, 1, 3, 3)], PADDED),
    ("nn.conv2d", [_(2, 4, 5, 5), _(6, 2, 3, 3)], {**PADDED, "groups": 2}),
    ("nn.conv2d", [_(0, 2, 3, 3), _(4, 2, 3, 3)], PADDED),
    ("nn.conv2d", [_(1, 5, 7, 3), _(3, 3, 3, 17)], {**PADDED, **CHANNELS_LAST, "strides": (2, 2)}),
    ("nn.conv2d", [_(1, 1, 1, 1), _(1, 1, 1, 1)], CHANNELS_LAST),
    ("nn.conv2d", [_(1, 5, 7, 6), _(3, 3, 1, 6)], {**PADDED, **CHANNELS_LAST, "groups": 6}),
    ("nn.conv2d_transpose", [_(1, 1, 2, 2), _(1, 1, 2, 2)], {}),
    ("nn.conv2d_transpose", [_(1, 2, 1, 1), _(2, 1, 1, 1)], {}),
    ("nn.conv2d_transpose", [_(1, 2, 3, 3), _(2, 3, 4, 4)], {**PADDED, "strides": (2, 2)}),
    ("nn.conv2d_transpose", [_(1, 4, 3, 3), _(4, 3, 3, 3)], {"groups": 2, "dilation": (2, 1)}),
    ("nn.max_pool2d", [_(1, 1, 3, 3)], {"kernel": (3, 3)}),
    ("nn.max_pool2d", [_(1, 3, 7, 5)], {"kernel": (2, 3), "strides": (2, 1), **PADDED}),
    ("nn.avg_pool2d", [_(1, 7, 5, 3)], {"kernel": (3, 3), "strides": (2, 2), **PADDED, "layout": "NHWC"}),
]


def _label(case: tuple[str, Sequence[Array], dict[str, Any]]) -> str:
    name, arrays, _attributes = case
    return f"{name}-{'-'.join('x'.join(map(str, array.shape)) or 'scalar' for array in arrays)}"


@pytest.mark.grid
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("case", CASES, ids=_label)
def test_scheduled_and_compiled(case: tuple[str, Sequence[Array], dict[str, Any]], cores: int) -> None:
    name, arrays, attributes = case
    target = Target("native").replace(cores=cores)
    func = operator_program(name, arrays, **attributes)
    function = build(schedule_cpu(func, target), target=target)
    got: Sequence[Any] = results_of(func, arrays)
    function(*arrays, *got)
    expected: Sequence[Any] = run_reference(name, arrays, **attributes)
    for one, other in zip(got, expected, strict=True):
        if one.dtype.kind == "f":
            tolerance = 1e-2 if one.dtype == np.float16 else 1e-5
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(one, other)
