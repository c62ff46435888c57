"""Cases of operators on floats, whole numbers and truth values."""

from __future__ import annotations

import numpy as np

from bench.tflite_cases import Value, add, fixed, integers, numbers

_SAME, _VALID = 0, 1
_POSITIVE = ("LOG", "RSQRT", "SQRT")
for _name in ("ABS", "CEIL", "COS", "EXP", "FLOOR", "LOG", "NEG", "ROUND", "RSQRT", "SIGN", "SIN", "SQRT", "SQUARE"):
    add(
        _name,
        _name,
        [numbers(3, 5, low=0.1 if _name in _POSITIVE else -3, high=3)],
        optimized=_name in ("CEIL", "ROUND"),
    )
for _name in ("RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1", "LOGISTIC", "TANH", "HARD_SWISH", "ELU"):
    add(_name, _name, [numbers(3, 5, low=-8, high=8)], optimized=_name == "ELU")
add("LEAKY_RELU", "LEAKY_RELU", [numbers(3, 5)], options={"alpha": 0.3})
add("PRELU", "PRELU", [numbers(2, 3, 4, 5), fixed(numbers(1, 1, 5))])
add("GELU", "GELU", [numbers(3, 5)], options={"approximate": 0})
add("GELU/tanh", "GELU", [numbers(3, 5)], options={"approximate": 1})
add("SOFTMAX", "SOFTMAX", [numbers(3, 5)], options={"beta": 1.0})
add("SOFTMAX/beta", "SOFTMAX", [numbers(2, 3, 5)], options={"beta": 0.4})
add("LOG_SOFTMAX", "LOG_SOFTMAX", [numbers(3, 5)])
add("LOGICAL_NOT", "LOGICAL_NOT", [numbers(3, 5) > 0], "bool")
for _name in ("ADD", "SUB", "MUL", "DIV"):
    add(_name, _name, [numbers(3, 5), numbers(5, low=1)], options={"fused_activation_function": 1})
    add(f"{_name}/int32", _name, [integers(3, 5, dtype=np.int32), integers(3, 5, low=1, dtype=np.int32)], "int32")
for _name in ("MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE", "FLOOR_DIV", "FLOOR_MOD"):
    add(_name, _name, [numbers(3, 5), numbers(5, seed=1, low=0.5)])
    if _name != "SQUARED_DIFFERENCE":
        add(f"{_name}/int32", _name, [integers(3, 5, dtype=np.int32), integers(5, low=1, dtype=np.int32)], "int32")
add("POW", "POW", [numbers(3, 5, low=0.1), numbers(3, 5, seed=1)])
add("ATAN2", "ATAN2", [np.float32([1, -1, 2, -2, 0, 3, -3]), np.float32([2, 2, -1, -1, -1, 0, 0])])
add("ADD_N", "ADD_N", [numbers(3, 5), numbers(3, 5, seed=1), numbers(3, 5, seed=2)])
for _name in ("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"):
    add(
        _name,
        _name,
        [integers(3, 5, low=0, high=3, dtype=np.int32), integers(5, low=0, high=3, dtype=np.int32)],
        "bool",
    )
for _name in ("LOGICAL_AND", "LOGICAL_OR"):
    add(_name, _name, [numbers(3, 5) > 0, numbers(3, 5, seed=1) > 0], "bool")
add("BITWISE_XOR", "BITWISE_XOR", [integers(6, dtype=np.int32), integers(6, dtype=np.int32, seed=1)], "int32")
add("RIGHT_SHIFT", "RIGHT_SHIFT", [integers(6, dtype=np.int32), integers(6, dtype=np.int32, low=0, high=6)], "int32")
add("SELECT", "SELECT", [np.array([True, False, True]), numbers(3, 5), numbers(3, 5, seed=1)])
add("SELECT_V2", "SELECT_V2", [numbers(3, 1) > 0, numbers(3, 5), numbers(5, seed=1)])
add("CAST", "CAST", [numbers(3, 5, high=9)], "int32", {"in_data_type": 0, "out_data_type": 2})
add(
    "CAST/bool",
    "CAST",
    [integers(3, 5, low=-1, high=2, dtype=np.int32)],
    "bool",
    {"in_data_type": 2, "out_data_type": 6},
)
add("BITCAST", "BITCAST", [numbers(3, 5)], "int32")
add("CUMSUM", "CUMSUM", [numbers(3, 5), fixed(1, np.int32)], options={"exclusive": 1, "reverse": 1})
add("BUCKETIZE", "BUCKETIZE", [numbers(3, 5)], "int32", {"boundaries": [-1.0, 0.0, 0.5]})
add("FAKE_QUANT", "FAKE_QUANT", [numbers(3, 5)], options={"min": -1.5, "max": 1.3, "num_bits": 8})
add("SIGN/int32", "SIGN", [integers(7, dtype=np.int32)], "int32")

for _stride, _dilation, _padding in ((1, 1, _SAME), (2, 1, _SAME), (2, 1, _VALID), (1, 2, _SAME)):
    _options = {
        "padding": _padding,
        "stride_h": _stride,
        "stride_w": _stride,
        "dilation_h_factor": _dilation,
        "dilation_w_factor": _dilation,
        "fused_activation_function": 3,
    }
    _tag = f"{'SV'[_padding]}{_stride}{_dilation}"
    add(
        f"CONV_2D/{_tag}",
        "CONV_2D",
        [numbers(2, 8, 7, 3), fixed(numbers(5, 3, 2, 3)), fixed(numbers(5))],
        options=_options,
    )
    add(
        f"DEPTHWISE_CONV_2D/{_tag}",
        "DEPTHWISE_CONV_2D",
        [numbers(2, 8, 7, 3), fixed(numbers(1, 3, 2, 6)), fixed(numbers(6))],
        options={**_options, "depth_multiplier": 2},
    )
    if _dilation == 1:
        _pool = {"padding": _padding, "stride_h": _stride, "stride_w": _stride, "filter_height": 3, "filter_width": 2}
        for _name in ("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D"):
            add(f"{_name}/{_tag}", _name, [numbers(2, 8, 7, 3)], options=_pool)
        for _shape, _target in (((2, 4, 5, 4), (2, 4 * _stride + 2 * _padding, 5 * _stride + _padding, 3)),):
            if _padding == _VALID or _stride == 2:
                add(
                    f"TRANSPOSE_CONV/{_tag}",
                    "TRANSPOSE_CONV",
                    [fixed(_target, np.int32), fixed(numbers(3, 4, 3, 4)), numbers(*_shape)],
                    options={"padding": _padding, "stride_h": _stride, "stride_w": _stride},
                )
add(
    "CONV_2D/groups",
    "CONV_2D",
    [numbers(1, 5, 5, 4), fixed(numbers(6, 3, 3, 2)), fixed(numbers(6))],
    options={"padding": _SAME, "stride_h": 1, "stride_w": 1},
)
add("FULLY_CONNECTED", "FULLY_CONNECTED", [numbers(3, 6), fixed(numbers(4, 6)), fixed(numbers(4))])
add(
    "FULLY_CONNECTED/rank",
    "FULLY_CONNECTED",
    [numbers(2, 3, 6), fixed(numbers(4, 6)), None],
    options={"keep_num_dims": 1},
)
add("FULLY_CONNECTED/flat", "FULLY_CONNECTED", [numbers(2, 3, 4), fixed(numbers(4, 12)), None])
add("BATCH_MATMUL", "BATCH_MATMUL", [numbers(2, 3, 4), numbers(2, 4, 5)])
add("BATCH_MATMUL/adj", "BATCH_MATMUL", [numbers(2, 1, 4, 3), numbers(3, 5, 4)], options={"adj_x": 1, "adj_y": 1})

for _name in ("MEAN", "SUM", "REDUCE_PROD", "REDUCE_MAX", "REDUCE_MIN"):
    add(f"{_name}", _name, [numbers(2, 3, 4), fixed([1, -1], np.int32)], options={"keep_dims": 1})
    add(f"{_name}/drop", _name, [numbers(2, 3, 4), fixed([0], np.int32)])
    add(f"{_name}/int32", _name, [integers(2, 3, 4, dtype=np.int32), fixed([1], np.int32)], "int32")
for _name in ("REDUCE_ANY", "REDUCE_ALL"):
    add(_name, _name, [numbers(3, 4) > 0, fixed([1], np.int32)], "bool")
for _name in ("ARG_MAX", "ARG_MIN"):
    add(_name, _name, [numbers(3, 5), fixed(-1, np.int32)], "int64", {"output_type": 4})
add("TOPK_V2", "TOPK_V2", [numbers(3, 7), fixed(3, np.int32)], ["float32", "int32"])

add("RESHAPE", "RESHAPE", [numbers(2, 6), fixed([3, -1], np.int32)], options={"new_shape": [3, -1]})
add("RESHAPE/option", "RESHAPE", [numbers(2, 6)], options={"new_shape": [3, 4]}, shapes=[(3, 4)])
add("SQUEEZE", "SQUEEZE", [numbers(1, 3, 1, 2)], options={"squeeze_dims": [0]})
add("SQUEEZE/all", "SQUEEZE", [numbers(1, 3, 1, 2)])
add("EXPAND_DIMS", "EXPAND_DIMS", [numbers(3, 2), fixed(-1, np.int32)])
add("TRANSPOSE", "TRANSPOSE", [numbers(2, 3, 4), fixed([2, 0, 1], np.int32)])
add("SHAPE", "SHAPE", [numbers(2, 3)], "int32", {"out_type": 2})
add("RANK", "RANK", [numbers(2, 3)], "int32")
add("CONCATENATION", "CONCATENATION", [numbers(2, 3), numbers(2, 4)], options={"axis": -1})
add("PACK", "PACK", [numbers(2, 3), numbers(2, 3, seed=1)], options={"axis": 1, "values_count": 2})
add("UNPACK", "UNPACK", [numbers(3, 2)], ["float32"] * 3, {"axis": 0, "num": 3})
add("SPLIT", "SPLIT", [fixed(1, np.int32), numbers(2, 6)], ["float32"] * 3, {"num_splits": 3})
add(
    "SPLIT_V",
    "SPLIT_V",
    [numbers(2, 6), fixed([1, -1, 2], np.int32), fixed(1, np.int32)],
    ["float32"] * 3,
    {"num_splits": 3},
)
add("SPACE_TO_DEPTH", "SPACE_TO_DEPTH", [numbers(1, 4, 6, 3)], options={"block_size": 2})
add("DEPTH_TO_SPACE", "DEPTH_TO_SPACE", [numbers(1, 2, 3, 8)], options={"block_size": 2})
add(
    "SPACE_TO_BATCH_ND",
    "SPACE_TO_BATCH_ND",
    [numbers(1, 4, 5, 2), fixed([2, 3], np.int32), fixed([[0, 0], [1, 0]], np.int32)],
)
add(
    "BATCH_TO_SPACE_ND",
    "BATCH_TO_SPACE_ND",
    [numbers(6, 2, 2, 2), fixed([2, 3], np.int32), fixed([[0, 1], [1, 0]], np.int32)],
)
add("BROADCAST_TO", "BROADCAST_TO", [numbers(3, 1), fixed([2, 3, 4], np.int32)], optimized=True, version=2)
add("BROADCAST_ARGS", "BROADCAST_ARGS", [fixed([3, 1], np.int32), fixed([2, 1, 4], np.int32)], "int32")
add("TILE", "TILE", [numbers(2, 3), fixed([2, 1], np.int32)])
add("SLICE", "SLICE", [numbers(4, 5), fixed([1, 2], np.int32), fixed([2, -1], np.int32)])
add("SLICE/data", "SLICE", [numbers(4, 5), np.int32([1, 2]), fixed([2, 3], np.int32)])
for _tag, _masks, _begin, _end, _steps in (
    ("plain", {}, [1, 0], [4, 5], [2, 1]),
    ("masks", {"begin_mask": 1, "end_mask": 2}, [1, 2], [3, 4], [1, 2]),
    ("shrink", {"shrink_axis_mask": 1}, [-1, 0], [0, 5], [1, 1]),
    ("back", {}, [3, 4], [-5, 0], [-1, -2]),
    ("ellipsis", {"ellipsis_mask": 1, "new_axis_mask": 2}, [0, 0, 1], [0, 0, 3], [1, 1, 1]),
):
    add(
        f"STRIDED_SLICE/{_tag}",
        "STRIDED_SLICE",
        [numbers(4, 5), *(fixed(item, np.int32) for item in (_begin, _end, _steps))],
        options=_masks,
    )
add(
    "STRIDED_SLICE/data",
    "STRIDED_SLICE",
    [numbers(4, 5), np.int32([1, 0]), np.int32([3, 4]), fixed([1, 2], np.int32)],
    options={"end_mask": 2},
)
add("PAD", "PAD", [numbers(2, 3), fixed([[1, 0], [0, 2]], np.int32)])
add("PADV2", "PADV2", [numbers(2, 3), fixed([[1, 0], [0, 2]], np.int32), fixed(7.0, np.float32)])
add("MIRROR_PAD", "MIRROR_PAD", [numbers(3, 4), fixed([[1, 2], [0, 3]], np.int32)], options={"mode": 0})
add("MIRROR_PAD/symmetric", "MIRROR_PAD", [numbers(3, 4), fixed([[1, 3], [0, 4]], np.int32)], options={"mode": 1})
add("REVERSE_V2", "REVERSE_V2", [numbers(3, 4), fixed([1], np.int32)])
add("DYNAMIC_UPDATE_SLICE", "DYNAMIC_UPDATE_SLICE", [numbers(4, 5), numbers(2, 3, seed=1), np.int32([1, 9])])
add("ZEROS_LIKE", "ZEROS_LIKE", [numbers(3, 4)])
add("FILL", "FILL", [fixed([2, 3], np.int32), np.float32(4.5)])
add("RANGE", "RANGE", [fixed(1, np.int32), fixed(9, np.int32), fixed(3, np.int32)], "int32")
add("RANGE/data", "RANGE", [np.int32(1), np.int32(9), np.int32(3)], "int32")

add("GATHER", "GATHER", [numbers(4, 5), np.int32([[3, 0], [1, 1]])], options={"axis": 0})
add(
    "GATHER/batch",
    "GATHER",
    [numbers(2, 3, 4, 5), integers(2, 6, low=0, high=4, dtype=np.int32)],
    options={"axis": 2, "batch_dims": 1},
)
add("GATHER_ND", "GATHER_ND", [numbers(4, 5, 2), np.int32([[3, 0], [1, 4]])])
add("SCATTER_ND", "SCATTER_ND", [np.int32([[1], [3], [1]]), numbers(3, 4), fixed([5, 4], np.int32)])
add(
    "SPARSE_TO_DENSE",
    "SPARSE_TO_DENSE",
    [np.int32([[0, 1], [2, 3]]), fixed([3, 4], np.int32), np.float32([5, 6]), fixed(-1, np.float32)],
)
add("EMBEDDING_LOOKUP", "EMBEDDING_LOOKUP", [np.int32([2, 0, 2]), fixed(numbers(4, 5))])
add(
    "HASHTABLE_LOOKUP",
    "HASHTABLE_LOOKUP",
    [np.int32([7, 1, 4]), fixed([1, 4, 9], np.int32), fixed(numbers(3, 2))],
    ["float32", "uint8"],
)
add(
    "ONE_HOT",
    "ONE_HOT",
    [np.int32([0, 2, 9, -1]), fixed(4, np.int32), fixed(5.0, np.float32), fixed(1.0, np.float32)],
    options={"axis": 0},
)
add("WHERE", "WHERE", [numbers(3, 4) > 0], "int64")
add("UNIQUE", "UNIQUE", [np.int32([3, 1, 3, 2, 1])], ["int32", "int32"], {"idx_out_type": 2})
add(
    "REVERSE_SEQUENCE",
    "REVERSE_SEQUENCE",
    [numbers(2, 3, 4), np.int32([2, 4, 1])],
    options={"seq_dim": 2, "batch_dim": 1},
)
add("MATRIX_DIAG", "MATRIX_DIAG", [numbers(2, 3)])
add("MATRIX_SET_DIAG", "MATRIX_SET_DIAG", [numbers(2, 3, 4), numbers(2, 3, seed=1)])
add("SEGMENT_SUM", "SEGMENT_SUM", [numbers(5, 2), np.int32([0, 0, 1, 2, 2])], optimized=True)
for _name in ("SUM", "PROD", "MAX", "MIN"):
    add(
        f"UNSORTED_SEGMENT_{_name}",
        f"UNSORTED_SEGMENT_{_name}",
        [numbers(5, 2), np.int32([2, 0, 1, 2, -1]), fixed(4, np.int32)],
    )
_boxes = np.float32([[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, -0.1, 1, 0.9], [0, 10, 1, 11], [0, 10.1, 1, 11.1]])
_scores = np.float32([0.9, 0.75, 0.6, 0.95, 0.5])
add(
    "NON_MAX_SUPPRESSION_V4",
    "NON_MAX_SUPPRESSION_V4",
    [_boxes, _scores, fixed(4, np.int32), fixed(0.5, np.float32), fixed(0.4, np.float32)],
    ["int32", "int32"],
)
add(
    "NON_MAX_SUPPRESSION_V5",
    "NON_MAX_SUPPRESSION_V5",
    [_boxes, _scores, fixed(4, np.int32), fixed(0.5, np.float32), fixed(0.4, np.float32), fixed(0.0, np.float32)],
    ["int32", "float32", "int32"],
)

for _corners, _half in ((0, 0), (1, 0), (0, 1)):
    _options = {"align_corners": _corners, "half_pixel_centers": _half}
    for _name in ("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"):
        for _target in ((7, 9), (3, 2)):
            add(
                f"{_name}/{_corners}{_half}/{_target[0]}",
                _name,
                [numbers(1, 4, 5, 2), fixed(_target, np.int32)],
                options=_options,
            )
add("L2_NORMALIZATION", "L2_NORMALIZATION", [numbers(3, 5)])
add(
    "LOCAL_RESPONSE_NORMALIZATION",
    "LOCAL_RESPONSE_NORMALIZATION",
    [numbers(1, 2, 3, 8)],
    options={"radius": 2, "bias": 1.5, "alpha": 0.3, "beta": 0.6},
    optimized=True,
)
add("DEQUANTIZE/float16", "DEQUANTIZE", [fixed(numbers(3, 4).astype(np.float16))])
_CSR = {
    "traversal_order": [0, 1],
    "block_map": None,
    "dim_metadata": [
        {"format": 0, "dense_size": 3},
        {
            "format": 1,
            "array_segments_type": 1,
            "array_segments": ("Int32Vector", {"values": [0, 2, 2, 3]}),
            "array_indices_type": 1,
            "array_indices": ("Int32Vector", {"values": [0, 3, 2]}),
        },
    ],
}
add("DENSIFY", "DENSIFY", [Value(np.float32([1, 2, 3]), True, {"shape": (3, 4), "sparsity": _CSR})])
for _stride, _padding in ((1, _SAME), (2, _VALID)):
    _options = {"padding": _padding, "stride_d": _stride, "stride_h": _stride, "stride_w": 1}
    add(
        f"CONV_3D/{_padding}",
        "CONV_3D",
        [numbers(1, 4, 5, 6, 2), fixed(numbers(2, 3, 3, 2, 4)), fixed(numbers(4))],
        options={**_options, "fused_activation_function": 1},
    )
    _target = (1, 3 * _stride + _padding, 4 * _stride + _padding, 5 + 2 * _padding, 3)
    add(
        f"CONV_3D_TRANSPOSE/{_padding}",
        "CONV_3D_TRANSPOSE",
        [fixed(_target, np.int32), fixed(numbers(2 if _padding else 3, 3, 3, 3, 2)), numbers(1, 3, 4, 5, 2)],
        options=_options,
    )
for _combiner in range(3):
    add(
        f"EMBEDDING_LOOKUP_SPARSE/{_combiner}",
        "EMBEDDING_LOOKUP_SPARSE",
        [
            np.int32([1, 3, 0, 3]),
            np.int32([[0, 0], [2, 0], [2, 1], [1, 0]]),
            fixed([4, 2], np.int32),
            np.float32([1, 2, 4, 0.5]),
            fixed(numbers(4, 3)),
        ],
        options={"combiner": _combiner},
    )
for _number, _start in ((1, 0.0), (3, 9.0), (4, -9.0)):
    add(
        f"REDUCE_WINDOW/{_number}",
        "REDUCE_WINDOW",
        [numbers(6, 7), fixed(_start, np.float32), *(fixed(item, np.int64) for item in ([2, 3], [2, 1], [1, 2]))],
        options={"reduce_function": _number},
    )
