"""Cases of operators on quantised tensors, equal to the bit where LiteRT has a reference kernel."""

from __future__ import annotations

import numpy as np

from bench.tflite_cases import add, fixed, integers, levels, numbers

_SAME, _VALID = 0, 1
_X = integers(4, 33)
_Y = integers(4, 33, seed=1)
_ANY = np.arange(-128, 128, dtype=np.int8)
_UNSIGNED = np.arange(256, dtype=np.uint8)
_WORDS = integers(3, 50, low=-32768, high=32768, dtype=np.int16)
_MORE_WORDS = integers(3, 50, low=-32768, high=32768, dtype=np.int16, seed=1)

for _name in ("ADD", "SUB", "MUL"):
    for _activation in (0, 1, 3):
        add(
            f"{_name}/int8/{_activation}",
            _name,
            [levels(_X, 0.05, 3), levels(_Y, 0.02, -5)],
            ("int8", 0.031, 1),
            {"fused_activation_function": _activation, **({} if _name == "MUL" else {"pot_scale_int16": 0})},
            0,
        )
    add(
        f"{_name}/int8/broadcast",
        _name,
        [levels(_X, 0.05, 3), levels(_Y[0], 0.02, -5, True)],
        ("int8", 0.031, 1),
        {},
        0,
    )
    add(
        f"{_name}/uint8",
        _name,
        [levels(_X.view(np.uint8), 0.05, 130), levels(_Y.view(np.uint8), 0.02, 120)],
        ("uint8", 0.031, 127),
        {},
        0,
    )
    add(
        f"{_name}/int16",
        _name,
        [levels(_WORDS, 0.0005), levels(_MORE_WORDS, 0.0002)],
        ("int16", 0.0007 if _name != "MUL" else 0.004, 0),
        {} if _name == "MUL" else {"pot_scale_int16": 0},
        0,
        version=4 if _name == "MUL" else 3,
    )
for _name in ("MAXIMUM", "MINIMUM"):
    add(f"{_name}/int8", _name, [levels(_X, 0.05, 3), levels(_Y, 0.05, 3)], ("int8", 0.05, 3), {}, 0)
for _name in ("EQUAL", "LESS", "GREATER_EQUAL"):
    add(f"{_name}/int8", _name, [levels(_X, 0.05, 3), levels(_Y, 0.04, -5)], "bool", {}, 0)
add(
    "SQUARED_DIFFERENCE/int8",
    "SQUARED_DIFFERENCE",
    [levels(_X, 0.05, 3), levels(_Y, 0.02, -5)],
    ("int8", 0.3, -100),
    {},
    0,
)

for _name in ("RELU", "RELU6", "RELU_N1_TO_1"):
    add(f"{_name}/int8", _name, [levels(_ANY, 0.05, 3)], ("int8", 0.04, -10), {}, 0)
    add(f"{_name}/uint8", _name, [levels(_UNSIGNED, 0.05, 100)], ("uint8", 0.04, 90), {}, 0)
add("LOGISTIC/int8", "LOGISTIC", [levels(_ANY, 0.05, 3)], ("int8", 1 / 256, -128), {}, 0)
add("LOGISTIC/uint8", "LOGISTIC", [levels(_UNSIGNED, 0.05, 120)], ("uint8", 1 / 256, 0), {}, 0)
add("LOGISTIC/int16", "LOGISTIC", [levels(_WORDS, 0.0004)], ("int16", 1 / 32768, 0), {}, 0, version=3)
add("TANH/int8", "TANH", [levels(_ANY, 0.03, 3)], ("int8", 1 / 128, 0), {}, 0)
add("TANH/uint8", "TANH", [levels(_UNSIGNED, 0.03, 120)], ("uint8", 1 / 128, 128), {}, 0)
add("TANH/int16", "TANH", [levels(_WORDS, 0.0002)], ("int16", 1 / 32768, 0), {}, 0, version=3)
add("HARD_SWISH/int8", "HARD_SWISH", [levels(_ANY, 0.05, 3)], ("int8", 0.045, -100), {}, 0)
add("HARD_SWISH/uint8", "HARD_SWISH", [levels(_UNSIGNED, 0.03, 128)], ("uint8", 0.02, 20), {}, 0)
add("LEAKY_RELU/int8", "LEAKY_RELU", [levels(_ANY, 0.05, 3)], ("int8", 0.04, -10), {"alpha": 0.2}, 0)
add("LEAKY_RELU/int16", "LEAKY_RELU", [levels(_WORDS, 0.0005)], ("int16", 0.0004, 0), {"alpha": 0.2}, 0, version=2)
add(
    "PRELU/int8",
    "PRELU",
    [levels(integers(2, 3, 4, 5), 0.05, 3), levels(integers(1, 1, 5), 0.01, 7, True)],
    ("int8", 0.04, -10),
    {},
    0,
)
add("ELU/int8", "ELU", [levels(_ANY, 0.05, 3)], ("int8", 0.04, -60), {}, 0, optimized=True)
add("GELU/int8", "GELU", [levels(_ANY, 0.05, 3)], ("int8", 0.04, -60), {"approximate": 1}, 0, version=2)
for _name, _scale, _zero in (
    ("ABS", 0.04, -128),
    ("EXP", 0.1, -128),
    ("RSQRT", 0.1, -128),
    ("LOG", 0.05, 0),
    ("SQRT", 0.02, -128),
):
    _source = _ANY if _name in ("ABS", "EXP") else np.arange(-100, 128, dtype=np.int8)
    add(
        f"{_name}/int8",
        _name,
        [levels(_source, 0.03, 3 if _name in ("ABS", "EXP") else -120)],
        ("int8", _scale, _zero),
        {},
        0,
        version=2,
    )
add("SOFTMAX/int8", "SOFTMAX", [levels(integers(5, 17), 0.08, 3)], ("int8", 1 / 256, -128), {"beta": 1.0}, 0)
add(
    "SOFTMAX/uint8",
    "SOFTMAX",
    [levels(integers(5, 17).view(np.uint8), 0.08, 100)],
    ("uint8", 1 / 256, 0),
    {"beta": 0.7},
    0,
)
add("LOG_SOFTMAX/int8", "LOG_SOFTMAX", [levels(integers(5, 17), 0.08, 3)], ("int8", 16 / 256, 127), {}, 0)

for _stride, _dilation, _padding, _by_channel in ((1, 1, _SAME, True), (2, 1, _VALID, True), (1, 2, _SAME, False)):
    _options = {
        "padding": _padding,
        "stride_h": _stride,
        "stride_w": _stride,
        "dilation_h_factor": _dilation,
        "dilation_w_factor": _dilation,
        "fused_activation_function": 3 if _stride == 2 else 0,
    }
    _tag = f"{'SV'[_padding]}{_stride}{_dilation}"
    _scales = [0.01, 0.007, 0.02, 0.005, 0.013, 0.009] if _by_channel else [0.01]
    for _name, _kernel, _axis, _extra in (
        ("CONV_2D", (6, 3, 2, 3), 0, {}),
        ("DEPTHWISE_CONV_2D", (1, 3, 2, 6), 3, {"depth_multiplier": 2}),
    ):
        _bias = integers(6, low=-3000, high=3000, dtype=np.int32)
        _bias_scale = [0.05 * item for item in _scales]
        add(
            f"{_name}/int8/{_tag}",
            _name,
            [
                levels(integers(2, 8, 7, 3), 0.05, 3),
                levels(integers(*_kernel, low=-127), _scales, 0, True, _axis),
                levels(_bias, _bias_scale, 0, True),
            ],
            ("int8", 0.06, -4),
            {**_options, **_extra},
            0,
            version=3,
        )
        if not _by_channel:
            add(
                f"{_name}/uint8/{_tag}",
                _name,
                [
                    levels(integers(2, 8, 7, 3).view(np.uint8), 0.05, 130),
                    levels(integers(*_kernel).view(np.uint8), 0.01, 121, True),
                    levels(_bias, 0.0005, 0, True),
                ],
                ("uint8", 0.06, 100),
                {**_options, **_extra},
                0,
            )
        if _by_channel:
            add(
                f"{_name}/int16/{_tag}",
                _name,
                [
                    levels(integers(2, 8, 7, 3, low=-32768, high=32768, dtype=np.int16), 0.0005),
                    levels(integers(*_kernel, low=-127), _scales, 0, True, _axis),
                    levels(_bias.astype(np.int64) * 100, [item / 100 for item in _bias_scale], 0, True),
                ],
                ("int16", 0.0006, 0),
                {**_options, **_extra},
                0,
                version=5,
            )
add(
    "CONV_2D/int4",
    "CONV_2D",
    [
        levels(integers(1, 5, 5, 4), 0.05, 3),
        levels(integers(3, 3, 3, 4, low=-7, high=8), [0.01, 0.02, 0.03], 0, True, 0, "int4"),
        levels(integers(3, low=-300, high=300, dtype=np.int32), [0.0005, 0.001, 0.0015], 0, True),
    ],
    ("int8", 0.03, -4),
    {"padding": _SAME, "stride_h": 1, "stride_w": 1},
    0,
    version=7,
)
add(
    "TRANSPOSE_CONV/int8",
    "TRANSPOSE_CONV",
    [
        fixed([2, 8, 10, 3], np.int32),
        levels(integers(3, 3, 3, 4, low=-127), [0.01, 0.02, 0.03], 0, True),
        levels(integers(2, 4, 5, 4), 0.05, 3),
        levels(integers(3, low=-300, high=300, dtype=np.int32), [0.0005, 0.001, 0.0015], 0, True),
    ],
    ("int8", 0.06, -4),
    {"padding": _SAME, "stride_h": 2, "stride_w": 2},
    0,
    version=3,
)
for _name, _x, _zero, _weight in (
    ("int8", integers(5, 24), 3, levels(integers(7, 24, low=-127), 0.01, 0, True)),
    ("uint8", integers(5, 24).view(np.uint8), 130, levels(integers(7, 24).view(np.uint8), 0.01, 121, True)),
):
    add(
        f"FULLY_CONNECTED/{_name}",
        "FULLY_CONNECTED",
        [levels(_x, 0.05, _zero), _weight, levels(integers(7, low=-900, high=900, dtype=np.int32), 0.0005, 0, True)],
        (_name, 0.06, _zero),
        {"fused_activation_function": 1},
        0,
        version=4,
    )
add(
    "FULLY_CONNECTED/channels",
    "FULLY_CONNECTED",
    [
        levels(integers(5, 24), 0.05, 3),
        levels(integers(7, 24, low=-127), [0.01, 0.02, 0.005, 0.003, 0.01, 0.011, 0.02], 0, True),
        None,
    ],
    ("int8", 0.06, 3),
    {},
    0,
    version=12,
)
add(
    "FULLY_CONNECTED/int16",
    "FULLY_CONNECTED",
    [
        levels(integers(5, 24, low=-32768, high=32768, dtype=np.int16), 0.0005),
        levels(integers(7, 24, low=-127), 0.01, 0, True),
        levels(integers(7, low=-900, high=900, dtype=np.int64), 0.000005, 0, True),
    ],
    ("int16", 0.0006, 0),
    {},
    0,
    version=7,
)
add(
    "BATCH_MATMUL/int8",
    "BATCH_MATMUL",
    [levels(integers(2, 3, 8), 0.05, 3), levels(integers(2, 8, 5), 0.02, -4)],
    ("int8", 0.2, -4),
    {},
    0,
    version=3,
)
add(
    "FULLY_CONNECTED/hybrid",
    "FULLY_CONNECTED",
    [numbers(5, 24), levels(integers(7, 24, low=-127), 0.01, 0, True), fixed(numbers(7))],
    "float32",
    {},
    2e-6,
    version=3,
)
add(
    "FULLY_CONNECTED/hybrid/asymmetric",
    "FULLY_CONNECTED",
    [numbers(5, 24), levels(integers(7, 24, low=-127), 0.01, 0, True), fixed(numbers(7))],
    "float32",
    {"asymmetric_quantize_inputs": 1},
    2e-6,
    version=9,
)
add(
    "CONV_2D/hybrid",
    "CONV_2D",
    [numbers(2, 5, 5, 4), levels(integers(3, 3, 3, 4, low=-127), [0.01, 0.02, 0.03], 0, True), fixed(numbers(3))],
    "float32",
    {"padding": _SAME, "stride_h": 1, "stride_w": 1},
    2e-6,
    version=5,
)
add(
    "CONV_2D/hybrid/tensor",
    "CONV_2D",
    [numbers(2, 5, 5, 4), levels(integers(3, 3, 3, 4, low=-127), 0.01, 0, True), fixed(numbers(3))],
    "float32",
    {"padding": _SAME, "stride_h": 1, "stride_w": 1},
    2e-6,
    version=2,
)
add(
    "DEPTHWISE_CONV_2D/hybrid",
    "DEPTHWISE_CONV_2D",
    [numbers(2, 5, 5, 3), levels(integers(1, 3, 3, 3, low=-127), [0.01, 0.02, 0.03], 0, True, 3), fixed(numbers(3))],
    "float32",
    {"padding": _SAME, "stride_h": 1, "stride_w": 1, "depth_multiplier": 1},
    2e-6,
    version=6,
)

for _stride, _padding in ((1, _SAME), (2, _VALID)):
    _pool = {"padding": _padding, "stride_h": _stride, "stride_w": _stride, "filter_height": 3, "filter_width": 2}
    for _name in ("AVERAGE_POOL_2D", "MAX_POOL_2D"):
        add(
            f"{_name}/int8/{_padding}",
            _name,
            [levels(integers(2, 8, 7, 3), 0.05, 3)],
            ("int8", 0.05, 3),
            {**_pool, "fused_activation_function": 1 - _padding},
            0,
        )
        add(
            f"{_name}/uint8/{_padding}",
            _name,
            [levels(integers(2, 8, 7, 3).view(np.uint8), 0.05, 3)],
            ("uint8", 0.05, 3),
            _pool,
            0,
        )
for _tag, _scale, _zero, _axes, _keep in (
    ("image", 0.04, -3, [1, 2], 1),
    ("same", 0.05, 3, [1, 2], 1),
    ("drop", 0.04, -3, [1, 2], 0),
    ("last", 0.04, -3, [3], 0),
    ("last/same", 0.05, 3, [3], 1),
):
    add(
        f"MEAN/int8/{_tag}",
        "MEAN",
        [levels(integers(2, 8, 7, 3), 0.05, 3), fixed(_axes, np.int32)],
        ("int8", _scale, _zero),
        {"keep_dims": _keep},
        0,
        version=2,
    )
for _name, _data in (("int8", integers(1, 7, 7, 400)), ("uint8", integers(1, 7, 7, 400).view(np.uint8))):
    # So many means that some lie next to a half, where the digits of the multiplier tell.
    add(
        f"MEAN/{_name}/many",
        "MEAN",
        [levels(_data, 0.00427945, 0), fixed([1, 2], np.int32)],
        (_name, 0.00425712, 0),
        {"keep_dims": 0},
        0,
        version=2,
    )
add(
    "SUM/int8",
    "SUM",
    [levels(integers(2, 8, 7, 3), 0.05, 3), fixed([3], np.int32)],
    ("int8", 0.4, -3),
    {},
    0,
    version=2,
    optimized=True,
)
for _name in ("REDUCE_MAX", "REDUCE_MIN"):
    add(
        f"{_name}/int8",
        _name,
        [levels(integers(2, 5, 3), 0.05, 3), fixed([1], np.int32)],
        ("int8", 0.05, 3),
        {},
        0,
        version=2,
    )
add(
    "CONCATENATION/int8",
    "CONCATENATION",
    [levels(_X, 0.05, 3), levels(_Y, 0.05, 3)],
    ("int8", 0.05, 3),
    {"axis": 1},
    0,
    version=2,
)
add(
    "CONCATENATION/uint8",
    "CONCATENATION",
    [levels(_X.view(np.uint8), 0.05, 3), levels(_Y.view(np.uint8), 0.03, 120)],
    ("uint8", 0.06, 30),
    {"axis": 1},
    0,
)
add("PAD/int8", "PAD", [levels(_X, 0.05, 3), fixed([[1, 0], [0, 2]], np.int32)], ("int8", 0.05, 3), {}, 0, version=2)
add("QUANTIZE", "QUANTIZE", [numbers(50, 40, low=-8, high=8)], ("int8", 0.05, 3), {}, 0)
add("QUANTIZE/uint8", "QUANTIZE", [numbers(50, 40, low=-8, high=8)], ("uint8", 0.05, 100), {}, 0)
add("QUANTIZE/int16", "QUANTIZE", [numbers(50, 40, low=-8, high=8)], ("int16", 0.0005, 0), {}, 0, version=2)
add("QUANTIZE/again", "QUANTIZE", [levels(_ANY, 0.05, 3)], ("int8", 0.04, -10), {}, 0, version=2)
add("QUANTIZE/sign", "QUANTIZE", [levels(_UNSIGNED, 0.05, 128)], ("int8", 0.05, 0), {}, 0, version=2)
add("QUANTIZE/wider", "QUANTIZE", [levels(_ANY, 0.05, 3)], ("int16", 0.0004, 0), {}, 0, version=2)
add("DEQUANTIZE", "DEQUANTIZE", [levels(_ANY, 0.05, 3)], "float32", {}, 0, version=2)
add("DEQUANTIZE/uint8", "DEQUANTIZE", [levels(_UNSIGNED, 0.05, 3)], "float32", {}, 0)
add(
    "DEQUANTIZE/channels",
    "DEQUANTIZE",
    [levels(integers(3, 4), [0.05, 0.1, 0.2], [1, 2, 3], True)],
    "float32",
    {},
    0,
    version=5,
)
for _corners, _half in ((0, 0), (1, 0), (0, 1)):
    for _target in ((7, 9), (3, 2)):
        _options = {"align_corners": _corners, "half_pixel_centers": _half}
        add(
            f"RESIZE_BILINEAR/int8/{_corners}{_half}/{_target[0]}",
            "RESIZE_BILINEAR",
            [levels(integers(1, 4, 5, 2), 0.05, 3), fixed(_target, np.int32)],
            ("int8", 0.05, 3),
            _options,
            0,
            version=3,
        )
        add(
            f"RESIZE_BILINEAR/uint8/{_corners}{_half}/{_target[0]}",
            "RESIZE_BILINEAR",
            [levels(integers(1, 4, 5, 2).view(np.uint8), 0.05, 3), fixed(_target, np.int32)],
            ("uint8", 0.05, 3),
            _options,
            1,
            version=3,
        )
add(
    "EMBEDDING_LOOKUP/int8",
    "EMBEDDING_LOOKUP",
    [np.int32([2, 0, 2]), levels(integers(4, 5), 0.03, 0, True)],
    "float32",
    {},
    2e-6,
    version=3,
)
add("SELECT_V2/int8", "SELECT_V2", [_X > 0, levels(_X, 0.05, 3), levels(_Y, 0.05, 3)], ("int8", 0.05, 3), {}, 0)
add(
    "L2_NORMALIZATION/int8",
    "L2_NORMALIZATION",
    [levels(integers(5, 16), 0.05, 3)],
    ("int8", 1 / 128, 0),
    {},
    0,
    version=2,
)
# LiteRT shifts small quotients by more than 31 places, and any number comes out: there are none.
_DIVIDEND = np.where(np.abs(_X.view(np.uint8).astype(int) - 130) < 8, np.uint8(138), _X.view(np.uint8))
add(
    "DIV/uint8",
    "DIV",
    [levels(_DIVIDEND, 0.05, 130), levels(integers(4, 33, low=130, high=256, dtype=np.uint8), 0.02, 120)],
    ("uint8", 0.5, 127),
    {},
    0,
    version=2,
)
add(
    "SOFTMAX/int16",
    "SOFTMAX",
    [levels(integers(5, 17, low=-32768, high=32768, dtype=np.int16), 0.0002)],
    ("int16", 1 / 32768, 0),
    {"beta": 1.0},
    0,
    version=3,
)
