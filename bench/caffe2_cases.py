"""Small nets of Caffe2 with random weights, and what PyTorch gives for the same layers.

Caffe2 itself is no longer published: PyTorch, which took over its operators, says what is expected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.frontend.caffe2.files import SCHEMA

_RANDOM = np.random.default_rng(0)
X = (2, 4, 7, 6)


def argument(name: str, value: Any) -> Any:
    """An argument of an operator."""
    made = SCHEMA.message("Argument")(name=name)
    if isinstance(value, str):
        made.s = value.encode()
    elif isinstance(value, bytes):
        made.s = value
    elif isinstance(value, (list, tuple)):
        (made.floats if value and isinstance(value[0], float) else made.ints).extend(value)
    elif isinstance(value, float):
        made.f = value
    else:
        made.i = int(value)
    return made


def operator(kind: str, inputs: str, outputs: str = "y", **arguments: Any) -> Any:
    """An operator; names are words of a text."""
    made = SCHEMA.message("OperatorDef")(type=kind, input=inputs.split(), output=outputs.split())
    made.arg.extend(argument(name, value) for name, value in arguments.items())
    return made


def net(operators: list[Any], inputs: str = "", outputs: str = "y", name: str = "net") -> bytes:
    """The bytes of a net."""
    made = SCHEMA.message("NetDef")(
        name=name, op=operators, external_input=inputs.split(), external_output=outputs.split()
    )
    return bytes(made.SerializeToString())


def filling(weights: Mapping[str, Any]) -> bytes:
    """The bytes of a net of weights."""
    kinds = {"f": "GivenTensorFill", "i": "GivenTensorInt64Fill"}
    operators = [
        operator(kinds[value.dtype.kind], "", name, shape=list(value.shape), values=value.ravel().tolist())
        for name, value in weights.items()
    ]
    return net(operators, name="init")


def random(*shape: int) -> Any:
    """Random numbers."""
    return _RANDOM.standard_normal(shape).astype(np.float32)


@dataclass(frozen=True)
class NetCase:
    """A net, its weights and inputs, and what it should give (made by PyTorch)."""

    operators: list[Any]
    inputs: Mapping[str, Any]
    expected: Callable[[Any, Mapping[str, Any]], Any]
    weights: Mapping[str, Any] = field(default_factory=dict)
    outputs: str = "y"

    def files(self) -> tuple[bytes, bytes]:
        """The net that computes and the net of weights."""
        names = " ".join([*self.inputs, *self.weights])
        return net(self.operators, names, self.outputs), filling(self.weights)

    def results(self, torch: Any) -> list[Any]:
        """What PyTorch gives."""
        values = {name: torch.from_numpy(value) for name, value in {**self.inputs, **self.weights}.items()}
        found = self.expected(torch, values)
        return [np.asarray(item) for item in (found if isinstance(found, (list, tuple)) else [found])]


def _nhwc(torch: Any, value: Any) -> Any:
    return value.permute(0, *range(2, value.ndim), 1)


def _layers() -> dict[str, NetCase]:
    image, last = {"x": random(*X)}, {"x": random(2, 7, 6, 4)}
    kernel, bias = {"w": random(6, 4, 3, 3)}, {"b": random(6)}
    numbers = {name: random(4) for name in ("s", "b", "m")} | {"v": np.abs(random(4)) + 0.5}
    conv = NetCase
    return {
        "conv": conv(
            [operator("Conv", "x w b", kernel=3, stride=2, pad=1)],
            image,
            lambda t, v: t.conv2d(v["x"], v["w"], v["b"], 2, 1),
            kernel | bias,
        ),
        "conv asymmetric": conv(
            [operator("Conv", "x w", kernel_h=3, kernel_w=3, pad_t=0, pad_l=1, pad_b=2, pad_r=0, dilation=2)],
            image,
            lambda t, v: t.conv2d(t.nn.functional.pad(v["x"], (1, 0, 0, 2)), v["w"], dilation=2),
            kernel,
        ),
        "conv channels last": conv(
            [operator("Conv", "x w b", kernels=[3, 3], pads=[1, 1, 1, 1], order="NHWC", group=2)],
            last,
            lambda t, v: _nhwc(
                t, t.conv2d(v["x"].permute(0, 3, 1, 2), v["w"].permute(0, 3, 1, 2), v["b"], padding=1, groups=2)
            ),
            {"w": random(6, 3, 3, 2)} | bias,
        ),
        "conv same": conv(
            [operator("Conv", "x w", kernel=3, stride=2, legacy_pad=2)],
            image,
            lambda t, v: t.conv2d(t.nn.functional.pad(v["x"], (0, 1, 1, 1)), v["w"], stride=2),
            kernel,
        ),
        "conv transpose": conv(
            [operator("ConvTranspose", "x w", kernel=3, stride=2, pad=1, adj=1)],
            image,
            lambda t, v: t.conv_transpose2d(v["x"], v["w"], stride=2, padding=1, output_padding=1),
            {"w": random(4, 3, 3, 3)},
        ),
        "fc": conv(
            [operator("FC", "x w b")],
            image,
            lambda t, v: v["x"].flatten(1) @ v["w"].T + v["b"],
            {"w": random(5, 168), "b": random(5)},
        ),
        "spatial bn": conv(
            [operator("SpatialBN", "x s b m v", is_test=1, epsilon=1e-3)],
            image,
            lambda t, v: t.nn.functional.batch_norm(v["x"], v["m"], v["v"], v["s"], v["b"], eps=1e-3),
            numbers,
        ),
        "instance norm": conv(
            [operator("InstanceNorm", "x s b")],
            image,
            lambda t, v: t.nn.functional.instance_norm(v["x"], weight=v["s"], bias=v["b"]),
            {name: numbers[name] for name in "sb"},
        ),
        "group norm": conv(
            [operator("GroupNorm", "x s b", group=2)],
            image,
            lambda t, v: t.nn.functional.group_norm(v["x"], 2, v["s"], v["b"]),
            {name: numbers[name] for name in "sb"},
        ),
        "layer norm": conv(
            [operator("LayerNorm", "x")], image, lambda t, v: t.nn.functional.layer_norm(v["x"], v["x"].shape[1:])
        ),
        "affine channel": conv(
            [operator("AffineChannel", "x s b")],
            image,
            lambda t, v: v["x"] * v["s"].view(4, 1, 1) + v["b"].view(4, 1, 1),
            {name: numbers[name] for name in "sb"},
        ),
        "lrn": conv(
            [operator("LRN", "x", size=3, alpha=0.5, beta=0.75, bias=1.0)],
            image,
            lambda t, v: t.nn.functional.local_response_norm(v["x"], 3, 0.5, 0.75, 1.0),
        ),
        "max pool": conv(
            [operator("MaxPool", "x", kernel=3, stride=2, pad=1)],
            image,
            lambda t, v: t.nn.functional.max_pool2d(v["x"], 3, 2, 1),
        ),
        "max pool of caffe": conv(
            [operator("MaxPool", "x", kernel=3, stride=2, legacy_pad=3)],
            image,
            lambda t, v: t.nn.functional.max_pool2d(v["x"], 3, 2, ceil_mode=True),
        ),
        "average pool": conv(
            [operator("AveragePool", "x", kernel=3, stride=2, pad=1)],
            image,
            lambda t, v: t.nn.functional.avg_pool2d(v["x"], 3, 2, 1, count_include_pad=False),
        ),
        "average pool channels last": conv(
            [operator("AveragePool", "x", global_pooling=1, order="NHWC")],
            last,
            lambda t, v: v["x"].mean((1, 2), keepdim=True),
        ),
        "prelu": conv(
            [operator("PRelu", "x s")],
            image,
            lambda t, v: t.nn.functional.prelu(v["x"], v["s"]),
            {"s": np.abs(random(4))},
        ),
        "softmax": conv([operator("Softmax", "x")], {"x": random(3, 5)}, lambda t, v: v["x"].softmax(1)),
        "resize nearest": conv(
            [operator("ResizeNearest", "x", width_scale=2.0, height_scale=1.5)],
            image,
            lambda t, v: v["x"][:, :, [int(i / 1.5) for i in range(10)]].repeat_interleave(2, 3),
        ),
        "upsample bilinear": conv(
            [operator("UpsampleBilinear", "x", width_scale=2.0, height_scale=2.0)],
            image,
            lambda t, v: t.nn.functional.interpolate(v["x"], scale_factor=2, mode="bilinear", align_corners=True),
        ),
        "channel shuffle": conv(
            [operator("ChannelShuffle", "x", group=2)], image, lambda t, v: v["x"][:, [0, 2, 1, 3]]
        ),
        "pad image": conv(
            [operator("PadImage", "x", pad_t=1, pad_r=2, mode="reflect")],
            image,
            lambda t, v: t.nn.functional.pad(v["x"], (0, 2, 1, 0), mode="reflect"),
        ),
        "batch matmul": conv(
            [operator("BatchMatMul", "x z", trans_b=1)],
            {"x": random(2, 3, 4), "z": random(2, 5, 4)},
            lambda t, v: v["x"] @ v["z"].transpose(1, 2),
        ),
    }


def _moves() -> dict[str, NetCase]:
    image = {"x": random(*X)}
    both = {"x": random(*X), "z": random(*X)}
    one = NetCase
    return {
        "concat": one([operator("Concat", "x z", "y lengths")], both, lambda t, v: t.cat([v["x"], v["z"]], 1)),
        "concat lengths": one(
            [operator("Concat", "x z", "a y", axis=2)], both, lambda t, v: t.tensor([7, 7], dtype=t.int32)
        ),
        "concat new": one(
            [operator("Concat", "x z", "y l", axis=1, add_axis=1)], both, lambda t, v: t.stack([v["x"], v["z"]], 1)
        ),
        "split": one(
            [operator("Split", "x", "y z", axis=1, split=[1, 3])],
            image,
            lambda t, v: [v["x"][:, :1], v["x"][:, 1:]],
            outputs="y z",
        ),
        "slice": one(
            [operator("Slice", "x", starts=[0, 1, 2], ends=[-1, 3, -2])], image, lambda t, v: v["x"][:, 1:3, 2:6]
        ),
        "reshape": one(
            [operator("Reshape", "x", "y old", shape=[0, -1, 6])], image, lambda t, v: v["x"].reshape(2, 28, 6)
        ),
        "reshape by data": one(
            [operator("Shape", "x", "s"), operator("Flatten", "x", "f"), operator("Reshape", "f s", "y old")],
            image,
            lambda t, v: v["x"],
        ),
        "transpose": one(
            [operator("Transpose", "x", axes=[2, 0, 3, 1])], image, lambda t, v: v["x"].permute(2, 0, 3, 1)
        ),
        "nchw2nhwc": one([operator("NCHW2NHWC", "x")], image, lambda t, v: v["x"].permute(0, 2, 3, 1)),
        "squeeze": one([operator("Squeeze", "x", dims=[1])], {"x": random(2, 1, 3)}, lambda t, v: v["x"][:, 0]),
        "expand dims": one(
            [operator("ExpandDims", "x", dims=[0, 2])], {"x": random(2, 3)}, lambda t, v: v["x"][None, :, None]
        ),
        "tile": one([operator("Tile", "x", tiles=3, axis=1)], image, lambda t, v: v["x"].repeat(1, 3, 1, 1)),
        "gather": one(
            [operator("Gather", "w x")],
            {"x": np.float32([2, 0])},
            lambda t, v: v["w"][v["x"].long()],
            {"w": random(3, 4)},
        ),
        "sum": one([operator("Sum", "x z x")], both, lambda t, v: 2 * v["x"] + v["z"]),
        "mean": one([operator("Mean", "x z")], both, lambda t, v: (v["x"] + v["z"]) / 2),
        "max": one([operator("Max", "x z")], both, lambda t, v: t.maximum(v["x"], v["z"])),
        "mul old broadcast": one(
            [operator("Mul", "x s", broadcast=1, axis=1)],
            image,
            lambda t, v: v["x"] * v["s"].view(4, 1, 1),
            {"s": random(4)},
        ),
        "compare": one(
            [operator("GT", "x z", "g"), operator("Cast", "g", to=1)], both, lambda t, v: (v["x"] > v["z"]).float()
        ),
        "where": one(
            [operator("GT", "x z", "g"), operator("Where", "g x z")], both, lambda t, v: t.maximum(v["x"], v["z"])
        ),
        "reduce mean": one(
            [operator("ReduceMean", "x", axes=[2, 3], keepdims=0)], image, lambda t, v: v["x"].mean((2, 3))
        ),
        "reduce back": one(
            [operator("ReduceBackMean", "x", num_reduce_dim=2)], image, lambda t, v: v["x"].mean((2, 3))
        ),
        "reduce front": one([operator("ReduceFrontSum", "x")], image, lambda t, v: v["x"].sum(0)),
        "top k": one([operator("TopK", "x", "y z", k=3)], image, lambda t, v: list(v["x"].topk(3)), outputs="y z"),
        "arg max": one([operator("ArgMax", "x", axis=1, keepdims=0)], image, lambda t, v: v["x"].argmax(1)),
        "normalize": one(
            [operator("Normalize", "x", axis=1)], image, lambda t, v: t.nn.functional.normalize(v["x"], dim=1)
        ),
        "constant fill": one(
            [operator("ConstantFill", "x", "c", value=3.0), operator("Add", "x c")], image, lambda t, v: v["x"] + 3
        ),
        "dropout": one([operator("Dropout", "x", "y mask", is_test=1)], image, lambda t, v: v["x"]),
        "clip": one([operator("Clip", "x", min=-0.5, max=0.5)], image, lambda t, v: v["x"].clamp(-0.5, 0.5)),
        "pow": one([operator("Pow", "x", exponent=3.0)], image, lambda t, v: v["x"] ** 3),
        "glu": one([operator("Glu", "x", dim=1)], image, lambda t, v: t.nn.functional.glu(v["x"], 1)),
    }


def _units() -> dict[str, NetCase]:
    units: dict[str, Callable[[Any, Any], Any]] = {
        "Relu": lambda t, x: x.relu(),
        "LeakyRelu": lambda t, x: t.nn.functional.leaky_relu(x, 0.01),
        "Elu": lambda t, x: t.nn.functional.elu(x),
        "Selu": lambda t, x: t.nn.functional.selu(x),
        "Gelu": lambda t, x: t.nn.functional.gelu(x),
        "Sigmoid": lambda t, x: x.sigmoid(),
        "Tanh": lambda t, x: x.tanh(),
        "Softplus": lambda t, x: t.nn.functional.softplus(x),
        "Softsign": lambda t, x: t.nn.functional.softsign(x),
        "Swish": lambda t, x: t.nn.functional.silu(x),
        "HardSigmoid": lambda t, x: (0.2 * x + 0.5).clamp(0, 1),
        "Sqr": lambda t, x: x * x,
        "Cube": lambda t, x: x**3,
        "Abs": lambda t, x: x.abs(),
        "Negative": lambda t, x: -x,
        "Floor": lambda t, x: x.floor(),
        "Exp": lambda t, x: x.exp(),
    }
    return {
        kind: NetCase([operator(kind, "x")], {"x": random(3, 4)}, lambda t, v, of=unit: of(t, v["x"]))
        for kind, unit in units.items()
    }


def _network() -> NetCase:
    """A small network, whose net of weights fills its input with a placeholder, as those of the model zoo do."""
    weights = {
        "c_w": random(8, 3, 3, 3) * 0.3,
        "c_b": random(8),
        **{f"bn_{name}": random(8) for name in "sbm"},
        "bn_v": np.abs(random(8)) + 0.5,
        "fc_w": random(5, 8),
        "fc_b": random(5),
    }
    operators = [
        operator("Conv", "data c_w c_b", "c", kernel=3, pad=1),
        operator("SpatialBN", "c bn_s bn_b bn_m bn_v", "c", is_test=1),
        operator("Relu", "c", "c"),
        operator("MaxPool", "c", "p", kernel=3, stride=2, legacy_pad=3),
        operator("AveragePool", "p", "g", global_pooling=1),
        operator("FC", "g fc_w fc_b", "f"),
        operator("Softmax", "f", "y"),
    ]

    def expected(t: Any, v: Mapping[str, Any]) -> Any:
        nn = t.nn.functional
        c = t.conv2d(v["data"], v["c_w"], v["c_b"], padding=1)
        c = nn.batch_norm(c, v["bn_m"], v["bn_v"], v["bn_s"], v["bn_b"]).relu()
        return nn.linear(nn.max_pool2d(c, 3, 2, ceil_mode=True).mean((2, 3)), v["fc_w"], v["fc_b"]).softmax(1)

    return NetCase(operators, {"data": random(1, 3, 12, 12)}, expected, weights)


CASES: dict[str, NetCase] = {**_layers(), **_moves(), **_units(), "network": _network()}
