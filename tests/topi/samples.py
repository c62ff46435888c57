"""A few small inputs for every registered operator: what tests of whole back ends run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from tests.topi.differential import Array, random_array, specials
from tests.topi.test_scheduled import CASES
from tilewright.ir.dtype import DataType

Sample = tuple[str, Sequence[Array], dict[str, Any]]
RANDOM = np.random.default_rng(11)


def _(*shape: int, dtype: str = "float32", low: float = -4, high: float = 4) -> Array:
    return random_array(RANDOM, shape, dtype, low, high)


FLOATS = (
    "negative abs sign nn.relu nn.softplus exp sin cos tan atan sinh cosh tanh asinh erf sigmoid floor ceil round "
    "trunc expm1 isnan isinf clip nn.elu nn.selu nn.leaky_relu nn.hard_sigmoid nn.gelu"
).split()
UNIT = "asin acos atanh".split()
POSITIVE = "log sqrt rsqrt log1p reciprocal".split()
BINARY = (
    "add subtract multiply divide minimum maximum floor_divide floor_mod fmod equal not_equal less less_equal greater "
    "greater_equal"
).split()
LOGIC = "logical_and logical_or logical_xor".split()
BITS = "bitwise_and bitwise_or bitwise_xor left_shift right_shift".split()
GATE, LINE = ("sigmoid", 0.0, 0.0), ("tanh", 0.0, 0.0)


def _recurrent(kind: str, gates: int, more: Sequence[Array], size: int = 6) -> Sample:
    weights = random_array(RANDOM, (gates, size, size), "float32", -1, 1)
    activations = {"lstm": (GATE, LINE, LINE), "gru": (GATE, LINE), "rnn": (LINE,)}[kind]
    return f"nn.{kind}", [_(3, 2, gates, size), weights, _(2, size), *more], {"activations": activations}


def forest_tables(
    random: np.random.Generator, trees: int, features: int, targets: int, *, missing: bool = False
) -> list[Array]:
    """The tables of trees of 7 nodes: three that ask, four leaves."""
    count = 7 * trees
    own = np.arange(count).reshape(trees, 7)
    branches = np.stack([own, own], axis=2).astype("int32")
    for at, sides in enumerate(((1, 2), (3, 4), (5, 6))):
        branches[:, at] = own[:, :1] + np.array(sides)
    tables = [
        random.integers(0, features, count).astype("int32"),
        random.standard_normal(count).astype("float32"),
        branches.reshape(count, 2),
        random.standard_normal((count, targets)).astype("float32"),
        own[:, 0].astype("int32"),
        np.full(trees, 2, "int32"),
    ]
    return [*tables, random.integers(0, 2, count).astype(bool)] if missing else tables


_DIGITS = (np.arange(64) * 37 % 255 - 127).astype("int8").reshape(2, 1, 32)

SAMPLES: list[Sample] = [
    *((name, [_(3, 37)], {}) for name in FLOATS),
    *((name, [_(5, 7, low=-0.99, high=0.99)], {}) for name in UNIT),
    *((name, [_(5, 7, low=0.1)], {}) for name in POSITIVE),
    ("qnn.quantize", [_(3, 37), _(37, low=0.1), _(dtype="uint8", low=0, high=9)], {"dtype": DataType.of("uint8")}),
    ("qnn.quantize", [_(3, 37), _(3, 1, low=0.1), _(dtype="int8")], {"dtype": DataType.of("int8"), "bits": 8}),
    (
        "accel.conv2d",
        [
            _(2, 4, 5, 4, 1, 4, dtype="int8", low=-128, high=127),
            _(3, 2, 1, 1, 8, 4, dtype="int8", low=-128, high=127),
        ],
        {"kernel": (3, 2), "shared": True, "groups": 2, "strides": (2, 1)},
    ),
    (
        "accel.max_pool2d",
        [
            _(1, 4, 5, 4, 2, 4, dtype="int8", low=-128, high=127),
            _(1, 2, 1, 1, 8, 4, dtype="int8", low=-1, high=1),
            np.stack(
                [_(2, 8, dtype="int32", low=low, high=high) for low, high in ((-9, 9), (1, 9), (0, 1), (1, 4))], 1
            ),
        ],
        {"kernel": (3, 2), "strides": (2, 1), "padding": (1, 0, 1, 1), "groups": 2, "offset": -5, "low": -100},
    ),
    (
        "accel.spread",
        [_(2, 3, 2, 5, 2, 4, dtype="int8", low=-128, high=127)],
        {"strides": (3, 2), "size": (6, 10)},
    ),
    (
        "accel.spread",
        [_(1, 12, 3, 2, 1, 4, dtype="int8", low=-128, high=127)],
        {"strides": (3, 2), "size": (7, 3), "before": (2, 1), "phases": True},
    ),
    (
        "accel.conv2d",
        [
            _(1, 2, 5, 4, 1, 4, dtype="int8", low=-128, high=127),
            _(3, 2, 3, 2, 8, 4, dtype="int8", low=-128, high=127),
            np.stack(
                [
                    _(3, 8, dtype="int32", low=low, high=high)
                    for low, high in ((-999, 999), (1, 32767), (0, 1), (20, 24))
                ],
                1,
            ),
        ],
        {"strides": (2, 1), "padding": (1, 0, 1, 1), "pad": 3, "offset": -5, "low": -100},
    ),
    (
        "qnn.high_product",
        [_(3, 37, dtype="int32", low=-99999999, high=99999999), _(37, dtype="int32", low=1 << 30, high=(1 << 31) - 1)],
        {},
    ),
    (
        "qnn.rounded_shift",
        [_(3, 37, dtype="int32", low=-(1 << 31), high=(1 << 31) - 1), _(37, dtype="int32", low=-31, high=0)],
        {},
    ),
    (
        "qnn.fixed_point",
        [
            _(3, 37, dtype="int32", low=-99999, high=99999),
            _(37, dtype="int32", low=-9999, high=9999),
            _(37, dtype="int32", low=-32768, high=32767),
            _(37, dtype="int32", low=0, high=30),
        ],
        {"offset": 3, "low": -100},
    ),
    (
        "qnn.fixed_point",
        [
            _(3, 37, dtype="int32", low=-99999, high=99999),
            _(3, 1, dtype="int32", low=-9999, high=9999),
            _(3, 1, dtype="int32", low=1, high=32767),
            _(3, 1, dtype="int32", low=20, high=26),
            _(3, 37, dtype="int8", low=-128, high=127),
            _(3, 1, dtype="int32", low=-32768, high=32767),
            _(3, 1, dtype="int32", low=0, high=12),
        ],
        {},
    ),
    ("qnn.dequantize", [_(3, 37, dtype="int8"), _(low=0.1), _(dtype="int8")], {}),
    ("acosh", [_(5, 7, low=1.1)], {}),
    *((name, [_(3, 7), _(7)], {}) for name in BINARY),
    *((name, [_(3, 7, dtype="bool"), _(3, 1, dtype="bool")], {}) for name in LOGIC),
    ("logical_not", [_(3, 7, dtype="bool")], {}),
    *((name, [_(3, 7, dtype="int32", low=0), _(3, 7, dtype="int32", low=0)], {}) for name in BITS),
    ("bitwise_not", [_(3, 7, dtype="int32")], {}),
    ("reinterpret", [_(3, 7)], {"dtype": DataType.of("int32")}),
    ("abs", [specials("float32")], {}),
    ("nn.prelu", [_(2, 5, 3), _(5, 1)], {}),
    ("broadcast_to", [_(3, 1)], {"shape": (2, 3, 4)}),
    ("min", [_(70, 5)], {"axes": (0,)}),
    ("prod", [_(3, 9)], {"axes": (1,)}),
    ("any", [_(3, 7, dtype="bool")], {"axes": (0,)}),
    ("cumsum", [_(3, 50)], {"axis": 1}),
    ("cumprod", [_(4, 5)], {"axis": 0, "reverse": True}),
    ("nn.attention", [_(2, 5, 3, 4), _(2, 6, 3, 4), _(2, 6, 3, 5)], {"scale": 0.5}),
    ("nn.attention", [_(1, 20, 2, 8), _(1, 20, 2, 8), _(1, 20, 2, 8), _(1, 1, 1, 20)], {"scale": 0.35}),
    ("nn.attention", [_(2, 3, 6, 4), _(2, 5, 2, 4), _(2, 5, 2, 3), _(2, 6, 3, 5)], {"scale": 0.5}),
    (
        "nn.attention",
        [_(1, 1, 8, 32), _(1, 2, 64, 32), _(1, 64, 2, 32), _(1, 1, 1, 64)],
        {"scale": 0.2, "keys_by_head": True},
    ),
    (
        "nn.attention",
        [_(1, 32, 4, 32), _(1, 2, 64, 32), _(1, 2, 64, 32)],
        {"scale": 0.2, "keys_by_head": True, "values_by_head": True},
    ),
    ("nn.attention", [_(1, 3, 1, 4), _(1, 4, 1, 4), _(1, 4, 1, 4), np.tri(3, 4, dtype=bool)], {}),
    (
        "nn.conv2d_weight_gradient",
        [_(2, 5, 6, 8), _(2, 5, 6, 12)],
        {"kernel": (3, 3), "padding": (1, 1, 1, 1), "data_layout": "NHWC", "kernel_layout": "HWIO"},
    ),
    (
        "nn.conv2d_weight_gradient",
        [_(1, 6, 7, 5), _(1, 4, 3, 3)],
        {"kernel": (3, 2), "padding": (1, 0, 0, 1), "strides": (2, 2), "groups": 2},
    ),
    (
        "nn.max_pool2d_gradient",
        [_(1, 3, 6, 7), _(1, 3, 3, 4)],
        {"kernel": (3, 3), "strides": (2, 2), "padding": (1,) * 4},
    ),
    ("nn.avg_pool2d_gradient", [_(1, 3, 3, 4)], {"kernel": (2, 2), "strides": (2, 2), "size": (6, 8)}),
    _recurrent("lstm", 4, [_(2, 6)]),
    _recurrent("lstm", 4, [_(2, 40)], 40),
    ("nn.lstm_step", [_(1, 7), _(1, 6), _(1, 6), _(4, 6, 13), _(4, 6)], {"activations": (GATE, LINE, LINE)}),
    ("nn.lstm_step", [_(3, 64), _(3, 40), _(3, 40), _(4, 40, 104), _(4, 40)], {"activations": (GATE, LINE, LINE)}),
    _recurrent("gru", 3, [_(6)]),
    _recurrent("rnn", 1, []),
    ("scatter", [_(6, 3), np.array([2, 0, 2, -1, 6]), _(5, 3)], {"reduction": "add"}),
    ("scatter", [_(6, 3), np.array([2, 0, 2, -1, 6]), _(5, 3)], {"reduction": "none"}),
    ("nn.rms_norm", [_(6, 40), _(40)], {"axis": 1}),
    ("nn.rms_norm", [_(2, 3, 5), _(3, 5)], {"axis": 1}),
    ("nn.layer_norm_gradient", [_(6, 40), _(40), _(6, 40), _(6, 1), _(6, 1)], {"axis": 1}),
    ("nn.layer_norm_gradient", [_(2, 3, 5), _(5), _(2, 3, 5), _(2, 1, 1), _(2, 1, 1)], {"axis": 1}),
    ("moments", [_(6, 40)], {"axes": (1,)}),
    ("moments", [_(3, 40, 5, 8)], {"axes": (0, 1, 2), "keepdims": True}),
    ("nn.batch_norm_sums", [_(3, 40, 5, 8), _(8), _(3, 40, 5, 8)], {"axis": 3}),
    ("segment_sum", [_(5, 3), np.array([2, 0, 2, -1, 6])], {"count": 6}),
    ("segment_sum", [_(5), np.array([2, 0, 2, 1, 1])], {"count": 3, "inside": True}),
    ("scatter_elements", [_(4, 6), np.array([[2, -1, 9], [0, 0, 5]]), _(2, 3)], {"axis": 1, "reduction": "add"}),
    ("scatter_elements", [_(4, 6), np.array([[2, 2, -9], [0, 1, 0]]), _(2, 3)], {"axis": 1, "reduction": "none"}),
    ("scatter_elements", [_(4, 2, 3), np.array([[[3], [-4]]] * 3), _(3, 2, 1)], {"axis": 0, "reduction": "max"}),
    ("topk", [_(4, 5, 3, dtype="int32")], {"axis": 1, "k": 2, "largest": True}),
    ("topk", [_(40)], {"axis": 0, "k": 7, "largest": False}),
    ("trees.forest", [_(6, 4), *forest_tables(RANDOM, 11, 4, 2)], {}),
    ("trees.forest", [_(3, 4), *forest_tables(RANDOM, 3, 4, 1, missing=True)], {"aggregate": "min"}),
    (
        "nn.conv2d_by_filters",
        [_(1, 6, 5, 4), _(3, 3, 2, 4)],
        {"padding": (1, 0, 1, 1), "strides": (2, 1), "data_layout": "NHWC", "kernel_layout": "OHWI"},
    ),
    (
        "half.matmul",
        [_(6, 16, dtype="float16", low=-1, high=1), _(16, 8, dtype="float16", low=-1, high=1)],
        {"block": 8},
    ),
    (
        "half.conv2d",
        [_(1, 5, 4, 4, dtype="float16", low=-1, high=1), _(3, 3, 4, 6, dtype="float16", low=-1, high=1)],
        {"padding": (1, 1, 1, 1), "strides": (2, 1), "block": 2},
    ),
    (
        "half.conv2d",
        [_(1, 3, 5, 2, dtype="float16", low=-1, high=1), _(2, 3, 2, 4, dtype="float16", low=-1, high=1)],
        {"dilation": (1, 2), "block": 6},
    ),
    ("grouped_matmul", [_(7, 12), _(3, 12, 9), np.array([0, 0, 2, 2, 5, -1, 1])], {}),
    ("grouped_matmul", [_(5, 8, dtype="float16"), _(2, 8, 3, dtype="float16"), np.array([0, 1, 1, 0, 1], "int32")], {}),
    ("nn.bitpack", [_(3, 2, 37, dtype="uint8", low=0, high=255)], {"bits": 3}),
    (
        "nn.bitserial_dense",
        [_(5, 2, 8, dtype="uint8", low=0, high=255), _(3, 8, 6, dtype="uint8", low=0, high=255)],
        {"signed": True},
    ),
    (
        "nn.bitserial_dense",
        [_(5, 2, 8, dtype="uint8", low=0, high=255), _(3, 2, 6, dtype="int32", low=-(2**31), high=2**31 - 1)],
        {"signed": True},
    ),
    (
        "nn.bitserial_conv2d",
        [_(1, 5, 4, 1, 4, dtype="uint8", low=0, high=255), _(3, 3, 1, 4, 5, dtype="uint8", low=0, high=255)],
        {"mode": "xor", "padding": (1, 1, 0, 1), "strides": (2, 1), "border": 1, "channels": 27},
    ),
    ("qnn.matmul", [_(7, 12, dtype="uint8", low=0, high=255), _(12, 9, dtype="int8", low=-128, high=127)], {}),
    ("qnn.matmul", [_(2, 5, 12, dtype="uint8", low=0, high=255), _(2, 12, 8, dtype="uint8", low=0, high=255)], {}),
    ("qnn.words", [_(3, 8, dtype="int8", low=-128, high=127)], {}),
    (
        "qnn.word_matmul",
        [_(2, 3, 8, dtype="int8", low=-128, high=127), _(2, 5, 2, dtype="int32", low=-(2**31), high=2**31 - 1)],
        {},
    ),
    (
        "qnn.word_conv2d",
        [
            _(1, 5, 6, 4, dtype="int8", low=-128, high=127),
            _(3, 3, 1, 5, dtype="int32", low=-(2**31), high=2**31 - 1),
            np.array(-7, "int8"),
        ],
        {"padding": (1, 1, 1, 1)},
    ),
    (
        "qnn.depthwise_conv2d",
        [_(1, 7, 8, 6, dtype="uint8", low=0, high=255), _(3, 3, 1, 6, dtype="int8", low=-128, high=127)],
        {"padding": (1, 1, 0, 1), "strides": (2, 1), "zero": 5},
    ),
    *(
        (
            "qnn.window_dots",
            [
                _(1, 5, 7, 16, dtype="int8", low=-128, high=127),
                _(windows, 3, groups, 16, 4, dtype="int8", low=-128, high=127),
                np.array(-7, "int8"),
            ],
            {"padding": (1, 1, 0, 2), "strides": (1, stride), "width": width},
        )
        for width, stride, windows, groups in ((3, 1, 2, 1), (3, 2, 1, 1), (5, 1, 4, 2))
    ),
    *(
        (
            "qnn.grouped_conv2d",
            [
                _(2, 7, 6, groups, depth, dtype="int8", low=-128, high=127),
                _(groups, 3, 2, depth, width, dtype="int8", low=-128, high=127),
                np.array(-7, "int8"),
            ],
            {"padding": (1, 0, 2, 1), "strides": (2, 1), "dilation": (1, 2)},
        )
        for groups, depth, width in ((3, 4, 16), (2, 3, 5), (1, 16, 4))
    ),
    *(
        (
            "qnn.conv2d_transpose",
            [
                _(2, 4, 5, groups, 8, dtype="int8", low=-128, high=127),
                _(groups, 2, 3, 2, 2, 8, width, dtype="int8", low=-128, high=127),
                np.array(-7, "int8"),
            ],
            {"steps": (5, 6), "padding": (1, 0)},
        )
        for groups, width in ((1, 16), (2, 4), (1, 3))
    ),
    *(
        (
            "qnn.lstm",
            [
                _(3, batch, 4, size),
                _(4, size, depth, dtype="int8", low=-128, high=127),
                _(4, size, low=0.001, high=0.002),
                _(batch, size),
                _(batch, size),
            ],
            {"activations": (GATE, LINE, LINE), "offset": offset},
        )
        for batch, size, depth, offset in ((1, 40, 48, 0), (2, 9, 12, 100))
    ),
    *(
        (
            "qnn.scaled_matmul",
            [
                _(5, 20).astype(ml_dtypes.float8_e4m3fn),
                _(9, 20).astype(ml_dtypes.float8_e4m3fn),
                _(*scales[0], low=0.5, high=2),
                _(*scales[1], low=0.5, high=2),
            ],
            {"block_columns": 4, "block_depth": 8},
        )
        for scales in (((5, 3), (3, 3)), ((1, 1), (9, 1)))
    ),
    *(
        (
            "qnn.gru",
            [
                _(3, batch, 3, size),
                _(3, size, depth, dtype="int8", low=-128, high=127),
                _(3, size, low=0.001, high=0.002),
                _(batch, size),
                _(size),
            ],
            {"activations": (GATE, LINE), "offset": offset, "reset_after": reset_after},
        )
        for batch, size, depth, offset, reset_after in (
            (1, 40, 48, 0, True),
            (1, 40, 48, 0, False),
            (2, 9, 12, 100, False),
        )
    ),
    *(
        (
            "qnn.rnn",
            [
                _(3, batch, 1, size),
                _(1, size, depth, dtype="int8", low=-128, high=127),
                _(1, size, low=0.001, high=0.002),
                _(batch, size),
            ],
            {"activations": (LINE,), "offset": offset},
        )
        for batch, size, depth, offset in ((1, 40, 48, 0), (2, 9, 12, 100))
    ),
    (
        "qnn.line_conv2d",
        [
            _(2, 7, 24, dtype="uint8", low=0, high=255),
            _(3, 9, 8, dtype="int8", low=-128, high=127),
            _(dtype="uint8", low=0, high=9),
        ],
        {"padding": (1, 3, 1, 3), "strides": (2, 6)},
    ),
    (
        "qnn.conv2d",
        [
            _(1, 5, 6, 3, dtype="uint8", low=0, high=255),
            _(3, 3, 3, 4, dtype="int8", low=-128, high=127),
            np.array(7, "uint8"),
        ],
        {"padding": (1, 1, 1, 1)},
    ),
    (
        "packed.dequantize",
        [_(5, 2, dtype="uint32", low=0, high=99), _(5, 1), _(5, 1, dtype="uint8", low=0, high=9)],
        {"bits": 4, "group": 16, "axis": 1},
    ),
    *(
        (
            "packed.matmul",
            [_(rows, 32), _(4, 6, dtype="uint32", low=0, high=99), _(2, 6), _(1, 1, dtype="uint8", low=0, high=9)],
            {"bits": 4, "group": 16},
        )
        for rows in (2, 7)
    ),
    *(("packed.digits", [_(2, 64)], {"group": 32, "digits": digits}) for digits in (1, 2, 3)),
    (
        "packed.digit_matmul",
        [
            _(2, 3, 32, dtype="int8"),
            _(2, 2),
            _(4, 6, 4, dtype="uint8", low=0, high=255),
            _(2, 6),
            np.ones((2, 3, 2), "float32"),
            np.zeros((1, 1), "uint8"),
        ],
        {"bits": 4, "group": 16},
    ),
    (
        "packed.digit_matmul",
        [_DIGITS, _(2, 2), _(8, 8, 4, dtype="int8"), _(2, 16), _DIGITS.reshape(2, 1, 2, 16).sum(-1).astype("float32")],
        {"bits": 4, "group": 16, "signed": True, "paired": 4},
    ),
    ("nn.winograd_weight", [_(3, 3, 4, 5)], {"tile": 4}),
    ("nn.conv2d_winograd", [_(1, 7, 6, 4), _(6, 6, 4, 5, low=-1, high=1)], {"tile": 4, "padding": (1, 1, 1, 1)}),
    (
        "nn.conv2d_winograd_plain",
        [_(1, 7, 6, 4, low=-1, high=1), _(3, 3, 4, 5, low=-1, high=1)],
        {"tile": 4, "padding": (1, 1, 1, 1)},
    ),
    ("dimensions", [], {"values": (3, 5, 7), "dtype": DataType.of("int64"), "shape": (3,)}),
    ("assume_shape", [_(3, 4)], {"shape": (3, 4)}),
    ("arange", [], {"start": 3, "step": 2, "count": 9, "dtype": DataType.of("int32")}),
    *CASES,
    ("round_to_tf32", [_(3, 37)], {}),
    ("check_values", [_(40, dtype="int64", low=-9, high=9)], {"what": "index", "sizes": (7,), "axes": (0,)}),
    ("checked", [_(3, 7), np.array([-1, 0, 0], np.int64)], {"what": "index", "axes": (0,)}),
    ("after", [_(3, 7), np.array(0.5, np.float32)], {}),
    ("stop_gradient", [_(3, 7)], {}),
    ("random.bits", [np.array([3, 5], np.uint32)], {"shape": (4, 9)}),
    ("random.uniform", [np.array([3, 5], np.uint32)], {"shape": (37,)}),
    ("random.normal", [np.array([3, 5], np.uint32)], {"shape": (37,)}),
    ("random.fold_in", [np.array([3, 5], np.uint32), np.arange(4, dtype=np.uint32)], {}),
]
