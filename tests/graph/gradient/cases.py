"""A few calls of every differentiable operator, with values at which it has a derivative."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tilewright.graph.ir.expr import Function, Var
from tilewright.graph.ir.op import call
from tilewright.ir.dtype import FLOAT64
from tilewright.ir.types import tensor_type

Make = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(rng.standard_normal(shape))


def positive(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(rng.uniform(0.3, 2.0, shape))


def small(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(rng.uniform(-0.8, 0.8, shape))


def above_one(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(rng.uniform(1.2, 3.0, shape))


def apart(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """No two elements are near each other or near zero."""
    count = int(np.prod(shape))
    return np.asarray((rng.permutation(count) - count / 2 + 0.3).reshape(shape) * 0.37)


def truth(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(rng.integers(0, 2, shape).astype(bool))


def whole(most: int, least: int = 0) -> Make:
    return lambda rng, shape: np.asarray(rng.integers(least, most, shape))


Input = tuple[Make, tuple[int, ...]]


@dataclass(frozen=True)
class Case:
    operator: str
    inputs: tuple[Input, ...]
    attributes: dict[str, object] = field(default_factory=dict)
    second: bool = True
    """Whether the gradient of the gradient is checked too."""

    def __str__(self) -> str:
        return f"{self.operator}-{'-'.join(str(shape) for _, shape in self.inputs)}-{list(self.attributes.values())}"

    def function(self) -> Function:
        params = []
        for place, value in enumerate(self.values(0)):
            params.append(Var(f"x{place}", tensor_type(value.shape, str(value.dtype))))
        return Function("main", tuple(params), call(self.operator, *params, **self.attributes))

    def values(self, seed: int) -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        return [make(rng, shape) for make, shape in self.inputs]


def unary(*names: str, make: Make = normal) -> list[Case]:
    return [Case(name, ((make, (2, 3)),)) for name in names]


def binary(*names: str, make: Make = normal) -> list[Case]:
    shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
        ((2, 3), (2, 3)),
        ((2, 3), (3,)),
        ((2, 1), (3,)),
        ((), (2,)),
    ]
    return [Case(name, ((make, a), (make, b))) for name in names for a, b in shapes]


GATES = (("sigmoid", 0.0, 0.0), ("tanh", 0.0, 0.0), ("tanh", 0.0, 0.0))

CASES: list[Case] = [
    *unary("negative", "exp", "expm1", "sin", "cos", "sinh", "cosh", "tanh", "atan", "asinh", "erf", "sigmoid"),
    *unary("nn.softplus"),
    *unary("tan", "asin", "acos", "atanh", make=small),
    *unary("log", "log1p", "sqrt", "rsqrt", "reciprocal", make=positive),
    *unary("acosh", make=above_one),
    *unary("abs", "nn.relu", "nn.leaky_relu", "nn.elu", "nn.selu", "nn.hard_sigmoid", "nn.gelu", make=apart),
    Case("nn.gelu", ((normal, (3,)),), {"approximate": True}),
    Case("nn.leaky_relu", ((apart, (5,)),), {"alpha": 0.3}),
    Case("clip", ((apart, (7,)),), {"minimum": -0.5, "maximum": 0.6}),
    Case("clip", ((apart, (7,)),), {"maximum": 0.6}),
    Case("cast", ((normal, (3,)),), {"dtype": FLOAT64}),
    *binary("add", "subtract", "multiply"),
    *binary("divide", make=positive),
    *binary("power", make=positive),
    Case("maximum", ((apart, (3, 4)), (normal, (4,)))),
    Case("minimum", ((apart, (3, 4)), (normal, (4,)))),
    Case("floor_mod", ((positive, (3, 4)), (above_one, (4,)))),
    Case("fmod", ((normal, (3, 4)), (above_one, (4,)))),
    Case("where", ((truth, (2, 3)), (normal, (3,)), (normal, (2, 1)))),
    Case("nn.prelu", ((apart, (2, 3, 2)), (normal, (3, 1)))),
    Case("sum", ((normal, (2, 3, 2)),), {"axes": (0, 2)}),
    Case("sum", ((normal, (2, 3)),), {"axes": (1,), "keepdims": True}),
    Case("mean", ((normal, (2, 3, 2)),), {"axes": (1, 2)}),
    Case("max", ((apart, (2, 3, 2)),), {"axes": (1,)}),
    Case("min", ((apart, (2, 3)),), {"axes": (0, 1), "keepdims": True}),
    Case("prod", ((normal, (2, 3)),), {"axes": (1,)}),
    Case("cumsum", ((normal, (2, 4)),), {"axis": 1}),
    Case("cumsum", ((normal, (4, 2)),), {"axis": 0, "exclusive": True, "reverse": True}),
    Case("cumprod", ((normal, (2, 4)),), {"axis": 1}),
    Case("cumprod", ((normal, (2, 4)),), {"axis": 1, "exclusive": True}),
    Case("cumprod", ((normal, (4, 2)),), {"axis": 0, "exclusive": True, "reverse": True}),
    Case("reshape", ((normal, (2, 3)),), {"shape": (3, 2)}),
    Case("transpose", ((normal, (2, 3, 4)),), {"axes": (2, 0, 1)}),
    Case("broadcast_to", ((normal, (2, 1)),), {"shape": (3, 2, 4)}),
    Case("assume_shape", ((normal, (2, 3)),), {"shape": (2, 3)}),
    Case("concatenate", ((normal, (2, 3)), (normal, (2, 1)), (normal, (2, 2))), {"axis": 1}),
    Case("split", ((normal, (2, 5)),), {"sizes": (2, 3), "axis": 1}),
    Case("slice", ((normal, (5, 4)),), {"begin": (1, 0), "end": (4, 4), "strides": (1, 3)}),
    Case("slice", ((normal, (6, 4)),), {"begin": (5, 3), "end": (0, -1), "strides": (-2, -1)}),
    Case("slice", ((normal, (6,)),), {"begin": (3,), "end": (3,), "strides": (1,)}),
    Case("pad", ((normal, (2, 3)),), {"before": (1, 0), "after": (0, 2), "value": 3.0}),
    Case("pad", ((normal, (3, 4)),), {"before": (2, 1), "after": (1, 3), "mode": "reflect"}),
    Case("pad", ((normal, (3, 4)),), {"before": (2, 1), "after": (1, 3), "mode": "edge"}),
    Case("tile", ((normal, (2, 3)),), {"repeats": (3, 2)}),
    Case("take", ((normal, (5, 3)), (whole(5, -5), (2, 2))), {"axis": 0}),
    Case("take", ((normal, (2, 4, 3)), (whole(7, -2), (3,))), {"axis": 1, "mode": "clip"}),
    Case("take", ((normal, (2, 4)), (whole(4), ())), {"axis": 1, "mode": "inside"}),
    *(
        Case("scatter", ((normal, (4, 2)), (whole(6, -1), (5,)), (apart, (5, 2))), {"reduction": reduction})
        for reduction in ("none", "add", "mul", "max", "min")
    ),
    Case("segment_sum", ((normal, (5, 2)), (whole(6, -1), (5,))), {"count": 4}),
    Case("segment_sum", ((normal, (5,)), (whole(3), (5,))), {"count": 3, "inside": True}),
    *(
        Case(
            "scatter_elements",
            ((normal, (3, 4)), (whole(4, -4), (2, 5)), (apart, (2, 5))),
            {"axis": 1, "reduction": reduction},
        )
        for reduction in ("none", "add", "mul", "max", "min")
    ),
    Case("topk", ((apart, (3, 5)),), {"axis": 1, "k": 2}),
    Case("topk", ((apart, (5, 2)),), {"axis": 0, "k": 3, "largest": False}),
    Case("matmul", ((normal, (2, 3)), (normal, (3, 4)))),
    Case("matmul", ((normal, (3, 2)), (normal, (4, 3))), {"transpose_a": True, "transpose_b": True}),
    Case("matmul", ((normal, (2, 2, 3)), (normal, (3, 2)))),
    Case("matmul", ((normal, (2, 2, 3)), (normal, (2, 3))), {"transpose_b": True}),
    Case("matmul", ((normal, (2, 1, 3, 2)), (normal, (3, 3, 2))), {"transpose_a": True}),
    Case("grouped_matmul", ((normal, (4, 2)), (normal, (3, 2, 3)), (whole(5, -1), (4,)))),
    Case("nn.conv2d", ((normal, (2, 2, 5, 4)), (normal, (3, 2, 3, 2)))),
    Case(
        "nn.conv2d",
        ((normal, (1, 4, 6, 5)), (normal, (4, 2, 2, 3))),
        {"strides": (2, 3), "padding": (1, 0, 2, 1), "dilation": (2, 1), "groups": 2},
    ),
    Case(
        "nn.conv2d",
        ((normal, (1, 6, 5, 4)), (normal, (2, 2, 2, 4))),
        {"strides": (2, 1), "padding": (1, 1, 0, 1), "groups": 2, "data_layout": "NHWC", "kernel_layout": "HWIO"},
    ),
    Case("nn.conv2d_transpose", ((normal, (1, 2, 3, 3)), (normal, (2, 3, 2, 2))), {"strides": (2, 1)}),
    Case(
        "nn.conv2d_transpose",
        ((normal, (1, 4, 3, 2)), (normal, (4, 1, 3, 2))),
        {"strides": (2, 3), "padding": (1, 0, 1, 1), "output_padding": (1, 2), "dilation": (1, 2), "groups": 2},
    ),
    Case(
        "nn.conv2d_transpose",
        ((normal, (1, 3, 2, 2)), (normal, (2, 3, 2, 2))),
        {"strides": (2, 2), "padding": (0, 1, 1, 0), "data_layout": "NHWC", "kernel_layout": "HWIO"},
    ),
    Case(
        "nn.conv2d_transpose",
        ((normal, (1, 2, 2, 3)), (normal, (2, 2, 2, 2))),
        {"strides": (1, 2), "padding": (0, 0, 1, 0), "output_padding": (2, 1), "dilation": (3, 1)},
    ),
    Case(
        "nn.conv2d_weight_gradient",
        ((normal, (1, 4, 5, 4)), (normal, (1, 2, 3, 2))),
        {"strides": (2, 2), "padding": (1, 0, 1, 0), "groups": 2, "kernel": (3, 2)},
    ),
    Case("nn.avg_pool2d_gradient", ((normal, (1, 2, 3, 2)),), {"kernel": (2, 2), "strides": (2, 2), "size": (6, 5)}),
    Case(
        "nn.max_pool2d_gradient", ((apart, (1, 2, 5, 4)), (normal, (1, 2, 3, 2))), {"kernel": (3, 2), "strides": (1, 2)}
    ),
    Case("nn.avg_pool2d", ((normal, (1, 2, 5, 4)),), {"kernel": (2, 3), "strides": (2, 1)}),
    Case(
        "nn.avg_pool2d",
        ((normal, (1, 2, 5, 5)),),
        {"kernel": (3, 2), "strides": (2, 2), "padding": (1, 1, 1, 0), "dilation": (1, 2)},
    ),
    Case("nn.avg_pool2d", ((normal, (1, 5, 4, 2)),), {"kernel": (2, 2), "padding": (1, 0, 0, 1), "layout": "NHWC"}),
    Case("nn.max_pool2d", ((apart, (1, 2, 5, 4)),), {"kernel": (2, 3), "strides": (2, 1)}),
    Case(
        "nn.max_pool2d",
        ((apart, (1, 5, 5, 2)),),
        {"kernel": (3, 2), "strides": (1, 2), "padding": (1, 1, 1, 0), "dilation": (2, 1), "layout": "NHWC"},
    ),
    Case("nn.softmax", ((normal, (2, 3)),), {"axis": 1}),
    Case("nn.log_softmax", ((normal, (3, 2)),), {"axis": 0}),
    Case(
        "nn.layer_norm_gradient",
        ((normal, (2, 3)), (normal, (3,)), (normal, (2, 3)), (small, (2, 1)), (positive, (2, 1))),
        {"axis": 1},
        second=False,
    ),
    Case("moments", ((normal, (2, 3, 2)),), {"axes": (0, 2)}),
    Case("moments", ((normal, (3, 2)),), {"axes": (1,), "keepdims": True}),
    Case("nn.batch_norm_sums", ((normal, (2, 3, 2)), (normal, (3,)), (normal, (2, 3, 2)))),
    Case("nn.layer_norm", ((normal, (2, 3, 2)), (normal, (3, 2)), (normal, (2,))), {"axis": 1}),
    Case("nn.rms_norm", ((normal, (2, 3, 2)), (normal, (3, 2))), {"axis": 1}),
    Case("nn.batch_norm", ((normal, (2, 3, 2)), *([(normal, (3,))] * 3), (positive, (3,)))),
    Case("nn.attention", ((normal, (1, 2, 2, 3)), (normal, (1, 3, 2, 3)), (normal, (1, 3, 2, 2))), {"scale": 0.6}),
    Case(
        "nn.attention",
        ((normal, (1, 2, 2, 3)), (normal, (1, 3, 2, 3)), (normal, (1, 3, 2, 2)), (normal, (2, 3))),
        {"scale": 0.6},
    ),
    Case(
        "nn.attention",
        ((normal, (1, 2, 4, 2)), (normal, (1, 2, 3, 2)), (normal, (1, 3, 2, 2))),
        {"keys_by_head": True},
    ),
    Case(
        "nn.attention",
        ((normal, (1, 3, 2, 2)), (normal, (1, 4, 2, 2)), (normal, (1, 4, 2, 2))),
        {"first": -1, "last": 1},
    ),
    Case(
        "nn.attention",
        ((normal, (1, 2, 1, 2)), (normal, (1, 3, 1, 2)), (normal, (1, 3, 1, 2)), (truth, (2, 3))),
        {"blind_is_zero": True},
    ),
    Case(
        "nn.lstm",
        ((normal, (2, 2, 4, 2)), (normal, (4, 2, 2)), (normal, (2, 2)), (normal, (2, 2))),
        {"activations": GATES},
    ),
    Case(
        "nn.lstm",
        (
            (normal, (3, 2, 4, 2)),
            (normal, (4, 2, 2)),
            (normal, (2, 2)),
            (normal, (2, 2)),
            (whole(4, 1), (2,)),
            (normal, (3, 2)),
        ),
        {"activations": GATES, "backward": True, "clip": 2.0, "coupled": True},
        second=False,
    ),
    *(
        Case(
            "nn.gru",
            ((normal, (2, 2, 3, 2)), (normal, (3, 2, 2)), (normal, (2, 2)), (normal, (2,))),
            {"activations": GATES[:2], "reset_after": after, "backward": after},
            second=after,
        )
        for after in (True, False)
    ),
    Case(
        "nn.gru",
        ((normal, (3, 2, 3, 2)), (normal, (3, 2, 2)), (normal, (2, 2)), (normal, (2,)), (whole(4, 0), (2,))),
        {"activations": (("hard_sigmoid", 0.2, 0.5), ("softsign", 0.0, 0.0))},
        second=False,
    ),
    *(
        Case(
            "nn.rnn",
            ((normal, (2, 2, 1, 2)), (normal, (1, 2, 2)), (normal, (2, 2))),
            {"activations": ((name, 0.7, 0.4),)},
            second=False,
        )
        for name in ("affine", "elu", "leaky_relu", "relu", "scaled_tanh", "sigmoid", "softplus", "thresholded_relu")
    ),
]
"""Calls of tensors alone; sequences and sizes that are data have tests of their own."""

ELSEWHERE = {
    "after",
    "checked",
    "host.compress",
    "host.eigh",
    "host.svd",
    "sequence.concatenate",
    "sequence.insert",
    "sequence.make",
    "sequence.split",
    "sequence.stack",
    "shape.broadcast",
    "shape.match",
    "shape.reshape",
    "axes.insert",
    "axes.remove",
    "qnn.dequantize",
    "round_to_tf32",
    "stop_gradient",
}
"""Operators whose rules are tested in other files."""
