"""Models of one operator each, at the sizes that networks have: the table that `bench.operators` runs.

Sizes are such that a call takes between 0.05 and 5 ms; the family `small` has calls that are all overhead.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import helper

from bench.operator_cases import OPSET, Array, Case, Make, flags, floats, integers, positive, signed_bytes

_IMAGE = (1, 64, 56, 56)
_ROWS = (128, 768)


def _numbers(*values: int) -> Array:
    return np.array(values, np.int64)


def _value(value: float, dtype: type[np.generic] = np.float32) -> Array:
    return np.array(value, dtype)


def _divisors(*shape: int) -> Make:
    return lambda rng: rng.integers(1, 100, shape, dtype=np.int64)


def _unary(operator: str, make: Make | None = None) -> Case:
    return Case(operator.lower(), "elementwise", operator, {"x": make or floats(*_ROWS)})


def _elementwise() -> list[Case]:
    return [
        _unary("Relu", floats(*_IMAGE)),
        _unary("Sigmoid"),
        _unary("Tanh"),
        _unary("Erf"),
        _unary("Exp"),
        _unary("Log", positive(*_ROWS)),
        _unary("Sqrt", positive(*_ROWS)),
        _unary("Sin"),
        _unary("Softplus"),
        _unary("Elu"),
        _unary("HardSwish", floats(*_IMAGE)),
        _unary("LeakyRelu", floats(*_IMAGE)),
        _unary("Round"),
        _unary("Reciprocal", positive(*_ROWS)),
        Case("gelu", "elementwise", "Gelu", {"x": floats(*_ROWS)}),
        Case("gelu_tanh", "elementwise", "Gelu", {"x": floats(*_ROWS)}, attributes={"approximate": "tanh"}),
        Case("mish", "elementwise", "Mish", {"x": floats(*_ROWS)}),
        Case("prelu", "elementwise", "PRelu", {"x": floats(*_IMAGE)}, {"slope": floats(64, 1, 1)}),
        Case(
            "clip",
            "elementwise",
            "Clip",
            {"x": floats(*_IMAGE)},
            {"low": _value(0), "high": _value(6)},
        ),
        Case("add", "elementwise", "Add", {"a": floats(*_IMAGE), "b": floats(*_IMAGE)}),
        Case("add_row", "elementwise", "Add", {"a": floats(*_ROWS), "b": floats(768)}),
        Case("mul_column", "elementwise", "Mul", {"a": floats(*_ROWS), "b": floats(128, 1)}),
        Case("mul_channels", "elementwise", "Mul", {"a": floats(*_IMAGE), "b": floats(1, 64, 1, 1)}),
        Case("add_outer", "elementwise", "Add", {"a": floats(512, 1), "b": floats(1, 512)}),
        Case("div", "elementwise", "Div", {"a": floats(*_ROWS), "b": positive(*_ROWS)}),
        Case("div_int", "elementwise", "Div", {"a": integers(1000, 512, 512), "b": _divisors(512, 512)}),
        Case("mod_int", "elementwise", "Mod", {"a": integers(1000, 512, 512), "b": _divisors(512, 512)}),
        Case("pow_2", "elementwise", "Pow", {"a": floats(*_ROWS)}, {"b": _value(2)}),
        Case("pow", "elementwise", "Pow", {"a": positive(*_ROWS), "b": floats(*_ROWS)}),
        Case("max", "elementwise", "Max", {"a": floats(*_ROWS), "b": floats(*_ROWS)}),
        Case("greater", "elementwise", "Greater", {"a": floats(*_ROWS), "b": floats(*_ROWS)}),
        Case("and", "elementwise", "And", {"a": flags(512, 512), "b": flags(512, 512)}),
        Case("where", "elementwise", "Where", {"c": flags(*_ROWS), "a": floats(*_ROWS), "b": floats(*_ROWS)}),
        Case(
            "where_mask",
            "elementwise",
            "Where",
            {"c": flags(1, 1, 128, 128), "a": floats(1, 12, 128, 128)},
            {"b": _value(-1e9)},
        ),
        Case("add_int64", "elementwise", "Add", {"a": integers(100, *_ROWS), "b": integers(100, *_ROWS)}),
    ]


def _cast() -> list[Case]:
    def cast(name: str, make: Make, to: type[np.generic]) -> Case:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(to))
        return Case(f"cast_{name}", "cast", "Cast", {"x": make}, attributes={"to": kind})

    def halves(generator: np.random.Generator) -> Array:
        return generator.standard_normal((512, 768)).astype(np.float16)

    return [
        cast("float_half", floats(512, 768), np.float16),
        cast("half_float", halves, np.float32),
        cast("float_int32", floats(512, 768, scale=100), np.int32),
        cast("int64_float", integers(1000, 512, 768), np.float32),
        cast("bool_float", flags(512, 768), np.float32),
        cast("float_uint8", positive(512, 768), np.uint8),
    ]


def _reductions() -> list[Case]:
    def reduce(operator: str, name: str, shape: tuple[int, ...], *axes: int, keep: int = 1) -> Case:
        label = f"{operator.removeprefix('Reduce').lower()}_{name}"
        return Case(
            f"reduce_{label}",
            "reduce",
            operator,
            {"x": floats(*shape)},
            {"axes": _numbers(*axes)} if axes else {},
            {"keepdims": keep},
        )

    def arg(operator: str, name: str, shape: tuple[int, ...], axis: int) -> Case:
        attributes = {"axis": axis, "keepdims": 0}
        return Case(f"{operator.lower()}_{name}", "reduce", operator, {"x": floats(*shape)}, attributes=attributes)

    return [
        reduce("ReduceSum", "last", (512, 768), 1),
        reduce("ReduceSum", "first", (512, 768), 0),
        reduce("ReduceSum", "middle", (16, 128, 256), 1),
        reduce("ReduceSum", "all", (512, 768)),
        reduce("ReduceSum", "short", (32768, 12), 1),
        reduce("ReduceMean", "last", (512, 768), 1),
        reduce("ReduceMean", "image", (1, 256, 28, 28), 2, 3),
        reduce("ReduceMean", "channels", _IMAGE, 1),
        reduce("ReduceMax", "last", (512, 768), 1),
        reduce("ReduceMax", "first", (512, 768), 0),
        reduce("ReduceMin", "middle", (16, 128, 256), 1, keep=0),
        reduce("ReduceProd", "last", (512, 768), 1),
        reduce("ReduceL2", "last", (512, 768), 1),
        reduce("ReduceSumSquare", "last", (512, 768), 1),
        reduce("ReduceLogSumExp", "last", (512, 768), 1),
        reduce("ReduceSum", "outer_two", (8, 256, 16, 16), 0, 2),
        arg("ArgMax", "last", (128, 1000), 1),
        arg("ArgMax", "channels", (1, 21, 128, 128), 1),
        arg("ArgMin", "first", (512, 768), 0),
        Case("cumsum_last", "reduce", "CumSum", {"x": floats(64, 4096)}, {"axis": _numbers(1).reshape(())}),
        Case("cumsum_first", "reduce", "CumSum", {"x": floats(512, 256)}, {"axis": _numbers(0).reshape(())}),
    ]


def _normalization() -> list[Case]:
    def rows(name: str, operator: str, shape: tuple[int, ...], axis: int = -1, opset: int = OPSET) -> Case:
        return Case(name, "normalize", operator, {"x": floats(*shape)}, attributes={"axis": axis}, opset=opset)

    def images(name: str, operator: str, shape: tuple[int, ...], groups: int = 0) -> Case:
        attributes = {"num_groups": groups} if groups else {}
        weights = {"scale": positive(shape[1]), "bias": floats(shape[1])}
        return Case(name, "normalize", operator, {"x": floats(*shape)}, weights, attributes)

    width = {"scale": positive(768), "bias": floats(768)}
    statistics = {"scale": positive(64), "bias": floats(64), "mean": floats(64), "variance": positive(64)}
    return [
        rows("softmax_attention", "Softmax", (12, 128, 128)),
        rows("softmax_1000", "Softmax", (64, 1000)),
        rows("softmax_long", "Softmax", (16, 32768)),
        rows("softmax_channels", "Softmax", (1, 21, 128, 128), 1),
        rows("softmax_short", "Softmax", (16384, 10)),
        rows("log_softmax_1000", "LogSoftmax", (64, 1000)),
        rows("log_softmax_long", "LogSoftmax", (16, 32768)),
        Case("layer_norm", "normalize", "LayerNormalization", {"x": floats(*_ROWS)}, width),
        Case(
            "layer_norm_short",
            "normalize",
            "LayerNormalization",
            {"x": floats(3136, 96)},
            {"scale": positive(96), "bias": floats(96)},
        ),
        Case("rms_norm", "normalize", "RMSNormalization", {"x": floats(*_ROWS)}, {"scale": positive(768)}, opset=23),
        images("instance_norm", "InstanceNormalization", _IMAGE),
        images("instance_norm_large", "InstanceNormalization", (1, 32, 128, 128)),
        images("group_norm", "GroupNormalization", (1, 128, 32, 32), 32),
        Case("batch_norm", "normalize", "BatchNormalization", {"x": floats(*_IMAGE)}, statistics),
        Case("lrn", "normalize", "LRN", {"x": floats(1, 96, 28, 28)}, attributes={"size": 5}),
        Case("lp_norm", "normalize", "LpNormalization", {"x": floats(512, 768)}, attributes={"axis": -1, "p": 2}),
    ]


def _pooling() -> list[Case]:
    def pool(name: str, operator: str, shape: tuple[int, ...], kernel: int, stride: int, **attributes: object) -> Case:
        rank = len(shape) - 2
        named = {"kernel_shape": [kernel] * rank, "strides": [stride] * rank, **attributes}
        return Case(name, "pool", operator, {"x": floats(*shape)}, attributes=named, opset=20)

    large = (1, 64, 112, 112)
    return [
        pool("max_pool_2", "MaxPool", large, 2, 2),
        pool("max_pool_3_s2_padded", "MaxPool", large, 3, 2, pads=[1, 1, 1, 1]),
        pool("max_pool_3_s1_padded", "MaxPool", _IMAGE, 3, 1, pads=[1, 1, 1, 1]),
        pool("max_pool_5_s1_padded", "MaxPool", (1, 128, 20, 20), 5, 1, pads=[2, 2, 2, 2]),
        pool("max_pool_ceil", "MaxPool", (1, 64, 55, 55), 3, 2, ceil_mode=1),
        pool("max_pool_dilated", "MaxPool", _IMAGE, 3, 1, dilations=[2, 2]),
        pool("max_pool_1d", "MaxPool", (1, 64, 4096), 4, 4),
        pool("max_pool_3d", "MaxPool", (1, 16, 16, 32, 32), 2, 2),
        pool("average_pool_2", "AveragePool", large, 2, 2),
        pool("average_pool_3_padded", "AveragePool", _IMAGE, 3, 1, pads=[1, 1, 1, 1]),
        pool(
            "average_pool_3_counted",
            "AveragePool",
            _IMAGE,
            3,
            1,
            pads=[1, 1, 1, 1],
            count_include_pad=1,
        ),
        pool("average_pool_3_s2_padded", "AveragePool", large, 3, 2, pads=[1, 1, 1, 1]),
        pool("average_pool_1d", "AveragePool", (1, 64, 4096), 5, 1, pads=[2, 2]),
        pool("average_pool_3d", "AveragePool", (1, 16, 16, 32, 32), 2, 2),
        pool("lp_pool", "LpPool", _IMAGE, 3, 2),
        Case("global_average_pool", "pool", "GlobalAveragePool", {"x": floats(1, 512, 14, 14)}),
        Case("global_max_pool", "pool", "GlobalMaxPool", {"x": floats(1, 512, 14, 14)}),
    ]


def _resize() -> list[Case]:
    def resize(name: str, shape: tuple[int, ...], factor: float, mode: str, coordinates: str) -> Case:
        return Case(
            f"resize_{name}",
            "resize",
            "Resize",
            {"x": floats(*shape)},
            {"scales": np.array([1, 1, factor, factor], np.float32)},
            {"mode": mode, "coordinate_transformation_mode": coordinates},
            ("x", "", "scales"),
        )

    image = (1, 32, 56, 56)
    return [
        resize("nearest", image, 2, "nearest", "asymmetric"),
        resize("linear", image, 2, "linear", "half_pixel"),
        resize("linear_corners", image, 2, "linear", "align_corners"),
        resize("linear_down", (1, 32, 112, 112), 0.5, "linear", "half_pixel"),
        resize("cubic", (1, 3, 112, 112), 2, "cubic", "half_pixel"),
        Case(
            "grid_sample",
            "resize",
            "GridSample",
            {"x": floats(1, 32, 56, 56), "grid": floats(1, 56, 56, 2, scale=0.5)},
        ),
        Case("depth_to_space", "resize", "DepthToSpace", {"x": floats(1, 128, 56, 56)}, attributes={"blocksize": 2}),
        Case("space_to_depth", "resize", "SpaceToDepth", {"x": floats(1, 32, 112, 112)}, attributes={"blocksize": 2}),
    ]


def _movement() -> list[Case]:
    def pad(name: str, mode: str, shape: tuple[int, ...], *pads: int) -> Case:
        attributes = {"mode": mode}
        return Case(f"pad_{name}", "move", "Pad", {"x": floats(*shape)}, {"pads": _numbers(*pads)}, attributes)

    def transpose(name: str, shape: tuple[int, ...], *axes: int, make: Callable[..., Make] = floats) -> Case:
        return Case(f"transpose_{name}", "move", "Transpose", {"x": make(*shape)}, attributes={"perm": list(axes)})

    border = (0, 0, 1, 1, 0, 0, 1, 1)
    return [
        pad("constant", "constant", _IMAGE, *border),
        pad("reflect", "reflect", _IMAGE, *border),
        pad("edge", "edge", _IMAGE, *border),
        pad("wrap", "wrap", _IMAGE, *border),
        transpose("matrix", (768, 512), 1, 0),
        transpose("heads", (1, 128, 12, 64), 0, 2, 1, 3),
        transpose("keys", (1, 128, 12, 64), 0, 2, 3, 1),
        transpose("to_last", _IMAGE, 0, 2, 3, 1),
        transpose("to_first", (1, 56, 56, 64), 0, 3, 1, 2),
        transpose("reversed", (64, 48, 80), 2, 1, 0),
        transpose("bytes", (768, 512), 1, 0, make=signed_bytes),
        Case("concat_channels", "move", "Concat", {"a": floats(*_IMAGE), "b": floats(*_IMAGE)}, attributes={"axis": 1}),
        Case("concat_last", "move", "Concat", {"a": floats(512, 256), "b": floats(512, 128)}, attributes={"axis": 1}),
        Case(
            "split_last",
            "move",
            "Split",
            {"x": floats(128, 2304)},
            {"split": _numbers(768, 768, 768)},
            {"axis": 1},
            outputs=3,
        ),
        Case(
            "slice_step",
            "move",
            "Slice",
            {"x": floats(1, 64, 112, 112)},
            {"starts": _numbers(0, 0), "ends": _numbers(112, 112), "axes": _numbers(2, 3), "steps": _numbers(2, 2)},
        ),
        Case(
            "slice_last",
            "move",
            "Slice",
            {"x": floats(512, 768)},
            {"starts": _numbers(100), "ends": _numbers(500), "axes": _numbers(1)},
        ),
        Case("expand", "move", "Expand", {"x": floats(1, 64, 1, 1)}, {"shape": _numbers(*_IMAGE)}),
        Case("tile", "move", "Tile", {"x": floats(128, 64)}, {"repeats": _numbers(4, 4)}),
        Case(
            "gather_rows",
            "move",
            "Gather",
            {"x": floats(30522, 128), "i": integers(30522, 1, 512)},
            attributes={"axis": 0},
        ),
        Case(
            "gather_columns",
            "move",
            "Gather",
            {"x": floats(512, 768), "i": integers(768, 256)},
            attributes={"axis": 1},
        ),
        Case(
            "gather_elements",
            "move",
            "GatherElements",
            {"x": floats(512, 768), "i": integers(768, 512, 256)},
            attributes={"axis": 1},
        ),
        Case("gather_nd", "move", "GatherND", {"x": floats(64, 64, 128), "i": integers(64, 512, 2)}),
        Case(
            "scatter_elements",
            "move",
            "ScatterElements",
            {"x": floats(512, 256), "i": _permuted(512, 64, 256), "u": floats(512, 64)},
            attributes={"axis": 1},
        ),
        Case(
            "scatter_nd", "move", "ScatterND", {"x": floats(1024, 128), "i": _places(256, 1024), "u": floats(256, 128)}
        ),
        Case(
            "onehot",
            "move",
            "OneHot",
            {"i": integers(1000, 128)},
            {"d": _value(1000, np.int64), "v": np.array([0, 1], np.float32)},
        ),
        Case("trilu", "move", "Trilu", {"x": floats(12, 128, 128)}, attributes={"upper": 0}),
        Case("nonzero", "move", "NonZero", {"x": flags(256, 256)}),
        Case("compress", "move", "Compress", {"x": floats(1024, 128), "c": flags(1024)}, attributes={"axis": 0}),
        Case(
            "reverse_sequence",
            "move",
            "ReverseSequence",
            {"x": floats(128, 16, 64)},
            {"l": np.full(16, 100, np.int64)},
            {"time_axis": 0, "batch_axis": 1},
        ),
    ]


def _permuted(rows: int, chosen: int, size: int) -> Make:
    """In each row, different places of a number."""
    return lambda generator: np.stack([generator.permutation(size)[:chosen] for _ in range(rows)]).astype(np.int64)


def _places(chosen: int, size: int) -> Make:
    """Different rows, as coordinates."""
    return lambda generator: generator.permutation(size)[:chosen, None].astype(np.int64)


def _order() -> list[Case]:
    def top(name: str, shape: tuple[int, ...], count: int, axis: int = -1, largest: int = 1) -> Case:
        attributes = {"axis": axis, "largest": largest}
        return Case(
            f"topk_{name}", "order", "TopK", {"x": floats(*shape)}, {"k": _numbers(count)}, attributes, outputs=2
        )

    return [
        top("5_of_1000", (1, 1000), 5),
        top("50_of_10000", (1, 10000), 50),
        top("1_of_32000", (4, 32000), 1),
        top("100_of_8400", (1, 8400), 100),
        top("rows", (128, 512), 8),
        top("first", (256, 64), 4, 0),
        top("least", (16, 1000), 10, largest=0),
        top("sort_1024", (8, 1024), 1024),
        top("half_of_4096", (1, 4096), 2048),
    ]


def _products() -> list[Case]:
    def matmul(name: str, a: tuple[int, ...], b: tuple[int, ...], *, weights: bool = True) -> Case:
        other = floats(*b, scale=0.1)
        given = {"a": floats(*a)} if weights else {"a": floats(*a), "b": other}
        return Case(f"matmul_{name}", "product", "MatMul", given, {"b": other} if weights else {})

    def einsum(name: str, equation: str, a: tuple[int, ...], b: tuple[int, ...]) -> Case:
        return Case(
            f"einsum_{name}", "product", "Einsum", {"a": floats(*a), "b": floats(*b)}, attributes={"equation": equation}
        )

    def gemm(name: str, a: tuple[int, int], b: tuple[int, int], **attributes: object) -> Case:
        columns = b[0] if attributes.get("transB") else b[1]
        weights = {"b": floats(*b, scale=0.1), "c": floats(columns)}
        return Case(f"gemm_{name}", "product", "Gemm", {"a": floats(*a)}, weights, attributes)

    return [
        matmul("256", (256, 256), (256, 256)),
        matmul("odd", (127, 251), (251, 193)),
        matmul("row", (1, 1024), (1024, 1000)),
        matmul("few_rows", (8, 768), (768, 768)),
        matmul("narrow", (512, 256), (256, 10)),
        matmul("column", (512, 768), (768, 1)),
        matmul("shallow", (512, 8), (8, 512)),
        matmul("batch", (12, 128, 64), (12, 64, 128), weights=False),
        matmul("batch_odd", (12, 77, 40), (12, 40, 77), weights=False),
        matmul("both_computed", (192, 192), (192, 192), weights=False),
        matmul("row_computed", (1, 512), (512, 512), weights=False),
        matmul("batch_row", (12, 1, 64), (12, 64, 256), weights=False),
        gemm("bias", (64, 512), (512, 256)),
        gemm("transposed", (64, 512), (256, 512), transB=1),
        gemm("transposed_row", (1, 512), (1000, 512), transB=1),
        gemm("transposed_both", (512, 64), (256, 512), transA=1, transB=1),
        einsum("attention", "bhid,bhjd->bhij", (1, 12, 128, 64), (1, 12, 128, 64)),
        einsum("heads", "bhij,bjhd->bihd", (1, 12, 128, 128), (1, 128, 12, 64)),
        einsum("outer", "i,j->ij", (512,), (512,)),
        einsum("trace", "ij,ij->i", (512, 768), (512, 768)),
    ]


def _convolutions() -> list[Case]:
    def convolution(
        name: str, shape: tuple[int, ...], weight: tuple[int, ...], operator: str = "Conv", **attributes: object
    ) -> Case:
        channels = weight[1] * int(str(attributes.get("group", 1))) if operator == "ConvTranspose" else weight[0]
        constants = {"w": floats(*weight, scale=0.1), "b": floats(channels)}
        return Case(f"conv_{name}", "convolution", operator, {"x": floats(*shape)}, constants, attributes)

    ones = [1, 1, 1, 1]
    return [
        convolution("3x3", (1, 64, 28, 28), (64, 64, 3, 3), pads=ones),
        convolution("1x1", (1, 256, 28, 28), (64, 256, 1, 1)),
        convolution("1x1_s2", (1, 128, 28, 28), (256, 128, 1, 1), strides=[2, 2]),
        convolution("stem", (1, 3, 112, 112), (32, 3, 3, 3), pads=ones, strides=[2, 2]),
        convolution("5x5", (1, 32, 28, 28), (64, 32, 5, 5), pads=[2, 2, 2, 2]),
        convolution("dilated", (1, 64, 28, 28), (64, 64, 3, 3), pads=[2, 2, 2, 2], dilations=[2, 2]),
        convolution("grouped", (1, 128, 28, 28), (128, 4, 3, 3), pads=ones, group=32),
        convolution("depthwise", (1, 128, 28, 28), (128, 1, 3, 3), pads=ones, group=128),
        convolution("depthwise_7", (1, 96, 28, 28), (96, 1, 7, 7), pads=[3, 3, 3, 3], group=96),
        convolution("1x7", (1, 64, 17, 17), (64, 64, 1, 7), pads=[0, 3, 0, 3]),
        convolution("1d", (1, 64, 1024), (64, 64, 3), pads=[1, 1]),
        convolution("1d_depthwise", (1, 256, 1024), (256, 1, 3), pads=[1, 1], group=256),
        convolution("3d", (1, 16, 8, 28, 28), (16, 16, 3, 3, 3), pads=[1] * 6),
        convolution("batch", (4, 32, 28, 28), (32, 32, 3, 3), pads=ones),
        convolution("transposed", (1, 64, 14, 14), (64, 32, 4, 4), "ConvTranspose", pads=ones, strides=[2, 2]),
        convolution("transposed_2", (1, 64, 28, 28), (64, 32, 2, 2), "ConvTranspose", strides=[2, 2]),
        convolution("transposed_1d", (1, 64, 256), (64, 32, 4), "ConvTranspose", pads=[1, 1], strides=[2]),
    ]


def _recurrent() -> list[Case]:
    def layer(
        name: str, operator: str, gates: int, steps: int, batch: int, size: int, hidden: int, *, both: bool = False
    ) -> Case:
        ways = 2 if both else 1
        weights = {
            "w": floats(ways, gates * hidden, size, scale=0.1),
            "r": floats(ways, gates * hidden, hidden, scale=0.1),
            "b": floats(ways, 2 * gates * hidden, scale=0.1),
        }
        attributes: dict[str, object] = {"hidden_size": hidden}
        if both:
            attributes["direction"] = "bidirectional"
        if operator == "GRU":
            attributes["linear_before_reset"] = 1
        return Case(name, "recurrent", operator, {"x": floats(steps, batch, size)}, weights, attributes)

    return [
        layer("lstm", "LSTM", 4, 32, 1, 128, 128),
        layer("lstm_both", "LSTM", 4, 32, 1, 128, 128, both=True),
        layer("lstm_batch", "LSTM", 4, 16, 8, 128, 128),
        layer("gru", "GRU", 3, 32, 1, 128, 128),
        layer("gru_both", "GRU", 3, 32, 1, 128, 128, both=True),
        layer("rnn", "RNN", 1, 32, 1, 128, 128),
    ]


def _quantized() -> list[Case]:
    scale, zero = _value(0.02), _value(128, np.uint8)
    unsigned: Make = integers(256, 128, 768, dtype=np.uint8)
    return [
        Case("quantize", "quantized", "QuantizeLinear", {"x": floats(*_IMAGE)}, {"s": scale, "z": zero}),
        Case(
            "dequantize",
            "quantized",
            "DequantizeLinear",
            {"x": integers(256, *_IMAGE, dtype=np.uint8)},
            {"s": scale, "z": zero},
        ),
        Case("dynamic_quantize", "quantized", "DynamicQuantizeLinear", {"x": floats(*_IMAGE)}, outputs=3),
        Case(
            "matmul_integer",
            "quantized",
            "MatMulInteger",
            {"a": unsigned},
            {"b": signed_bytes(768, 768), "z": zero},
            order=("a", "b", "z"),
        ),
        Case(
            "qlinear_matmul",
            "quantized",
            "QLinearMatMul",
            {"a": unsigned},
            {
                "sa": scale,
                "za": zero,
                "b": signed_bytes(768, 768),
                "sb": scale,
                "zb": _value(0, np.int8),
                "sy": _value(1.0),
                "zy": zero,
            },
            tolerance=1e-2,
        ),
        Case(
            "qlinear_conv",
            "quantized",
            "QLinearConv",
            {"x": integers(256, 1, 64, 28, 28, dtype=np.uint8)},
            {
                "sx": scale,
                "zx": zero,
                "w": signed_bytes(64, 64, 3, 3),
                "sw": scale,
                "zw": _value(0, np.int8),
                "sy": _value(1.0),
                "zy": zero,
            },
            {"pads": [1, 1, 1, 1]},
            tolerance=1e-2,
        ),
    ]


def _small() -> list[Case]:
    return [
        Case("small_add", "small", "Add", {"a": floats(16), "b": floats(16)}),
        Case("small_relu", "small", "Relu", {"x": floats(1, 64)}),
        Case("small_softmax", "small", "Softmax", {"x": floats(1, 10)}),
        Case("small_matmul", "small", "MatMul", {"a": floats(1, 32)}, {"b": floats(32, 32)}),
        Case("small_sum", "small", "ReduceSum", {"x": floats(8, 8)}, {"axes": _numbers(1)}),
        Case("small_argmax", "small", "ArgMax", {"x": floats(1, 10)}, attributes={"axis": 1}),
        Case("small_conv", "small", "Conv", {"x": floats(1, 4, 8, 8)}, {"w": floats(8, 4, 3, 3)}),
    ]


CASES: dict[str, Case] = {
    case.name: case
    for make in (
        _elementwise,
        _cast,
        _reductions,
        _normalization,
        _pooling,
        _resize,
        _movement,
        _order,
        _products,
        _convolutions,
        _recurrent,
        _quantized,
        _small,
    )
    for case in make()
}
FAMILIES = tuple(dict.fromkeys(case.family for case in CASES.values()))
