"""Small nets of ncnn with random weights: what suites and fixtures are made of. The runtime is the package `ncnn`."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.frontend.ncnn.files import MAGIC, TYPES

_RANDOM = np.random.default_rng(0)


def random(*shape: int) -> Any:
    """Random numbers."""
    return _RANDOM.standard_normal(shape).astype(np.float32)


def plain(*arrays: Any) -> bytes:
    """Weights without a mark."""
    return b"".join(np.asarray(array, np.float32).tobytes() for array in arrays)


def marked(*arrays: Any, form: str = "float") -> bytes:
    """Weights with a mark of how they are stored before each."""
    parts: list[bytes] = []
    for array in arrays:
        match form:
            case "float":
                mark, content = 0, np.asarray(array, np.float32).tobytes()
            case "half":
                mark, content = 0x01306B47, np.asarray(array, np.float16).tobytes()
            case _:
                mark, content = 0x000D4B38, np.asarray(array, np.int8).tobytes()
        parts.append(struct.pack("<I", mark) + content + bytes(-len(content) % 4))
    return b"".join(parts)


@dataclass(frozen=True)
class NetCase:
    """Lines of layers, the bytes of their weights, and inputs."""

    lines: Sequence[str]
    inputs: Mapping[str, Any]
    weights: bytes = b""
    outputs: Sequence[str] = ("y",)
    tolerance: float = 1e-4
    text: str = field(init=False)

    def __post_init__(self) -> None:
        heads = [f"Input {name} 0 1 {name}" for name in self.inputs]
        body = [*heads, *self.lines]
        object.__setattr__(self, "text", "\n".join([str(MAGIC), f"{len(body)} {len(body) + 8}", *body]) + "\n")


def one(
    kind: str, params: str, *inputs: Any, weights: bytes = b"", outputs: int = 1, tolerance: float = 1e-4
) -> NetCase:
    """A net of one layer."""
    names = [f"x{at}" for at in range(len(inputs))]
    tops = ["y"] if outputs == 1 else [f"y{at}" for at in range(outputs)]
    line = f"{kind} layer {len(names)} {outputs} {' '.join([*names, *tops])} {params}"
    return NetCase([line], dict(zip(names, inputs, strict=True)), weights, tops, tolerance)


def binary(text: str) -> tuple[bytes, dict[str, str]]:
    """The binary form of a text, and the names of its blobs by their numbers."""
    lines = [line.split() for line in text.splitlines()[2:]]
    numbers: dict[str, int] = {}
    parts = [struct.pack("<iii", MAGIC, len(lines), len(lines) + 8)]
    for kind, _, bottoms, tops, *rest in lines:
        count = int(bottoms) + int(tops)
        for name in rest[:count]:
            numbers.setdefault(name, len(numbers))
        parts.append(struct.pack("<iii", TYPES.index(kind), int(bottoms), int(tops)))
        parts += [struct.pack("<i", numbers[name]) for name in rest[:count]]
        for word in rest[count:]:
            key, _, value = word.partition("=")
            parts.append(struct.pack("<i", int(key)))
            for item in value.split(","):
                parts.append(
                    struct.pack("<f", float(item)) if "." in item or "e" in item else struct.pack("<i", int(item))
                )
        parts.append(struct.pack("<i", -233))
    return b"".join(parts), {str(number): name for name, number in numbers.items()}


def _weighted() -> dict[str, NetCase]:
    image, kernel, bias = random(4, 9, 8), random(6, 4, 3, 3), random(6)
    groups = random(6, 2, 3, 3)
    deep = random(4, 1, 3, 3)
    table, row = random(5, 288), random(5)
    whole = _RANDOM.integers(-127, 128, (6, 4, 3, 3))
    cases = {
        "convolution": one("Convolution", "0=6 1=3 3=2 4=1 5=1 6=216", image, weights=marked(kernel) + plain(bias)),
        "convolution halves": one(
            "Convolution", "0=6 1=3 5=1 6=216", image, weights=marked(kernel, form="half") + plain(bias)
        ),
        "convolution odd": one(
            "Convolution",
            "0=6 1=3 11=2 2=2 3=1 13=2 4=1 15=0 14=2 16=1 5=0 6=144",
            image,
            weights=marked(random(6, 4, 2, 3)),
        ),
        "convolution same": one("Convolution", "0=6 1=3 3=2 4=-233 6=216", image, weights=marked(kernel)),
        "convolution same lower": one("Convolution", "0=6 1=3 3=2 4=-234 6=216", image, weights=marked(kernel)),
        "convolution integers": one(
            "Convolution",
            "0=6 1=3 4=1 5=1 6=216 8=2",
            image,
            weights=marked(whole, form="byte") + plain(bias, np.full(6, 100), [40]),
            tolerance=1e-3,
        ),
        "convolution groups": one(
            "ConvolutionDepthWise", "0=6 1=3 4=1 5=1 6=108 7=2", image, weights=marked(groups) + plain(bias)
        ),
        "convolution depthwise": one("ConvolutionDepthWise", "0=4 1=3 3=2 6=36 7=4", image, weights=marked(deep)),
        "convolution 1d": one(
            "Convolution1D", "0=5 1=3 4=1 5=1 6=60", random(4, 9), weights=marked(random(5, 4, 3)) + plain(random(5))
        ),
        "deconvolution": one(
            "Deconvolution", "0=6 1=4 3=2 4=1 5=1 6=384", image, weights=marked(random(6, 4, 4, 4)) + plain(bias)
        ),
        "deconvolution groups": one(
            "DeconvolutionDepthWise", "0=4 1=3 3=2 18=1 19=1 6=72 7=2", image, weights=marked(random(4, 2, 3, 3))
        ),
        "deconvolution depthwise": one(
            "DeconvolutionDepthWise", "0=4 1=3 3=2 4=1 6=36 7=4", image, weights=marked(deep)
        ),
        "inner product": one("InnerProduct", "0=5 1=1 2=1440 9=1", image, weights=marked(table) + plain(row)),
        "inner product rows": one(
            "InnerProduct", "0=5 1=1 2=60", random(3, 12), weights=marked(random(5, 12)) + plain(row)
        ),
        "inner product integers": one(
            "InnerProduct",
            "0=5 1=1 2=60 8=2",
            random(12),
            weights=marked(_RANDOM.integers(-127, 128, (5, 12)), form="byte") + plain(row, np.full(5, 90), [30]),
            tolerance=1e-3,
        ),
        "embed": one("Embed", "0=3 1=7 2=1 3=21", np.int32([1, 6, 0]), weights=marked(random(7, 3)) + plain(random(3))),
        "batch norm": one(
            "BatchNorm", "0=4 1=1e-3", image, weights=plain(random(4), random(4), np.abs(random(4)) + 0.5, random(4))
        ),
        "scale": one("Scale", "0=4 1=1", image, weights=plain(random(4), random(4))),
        "bias": one("Bias", "0=4", image, weights=plain(random(4))),
        "prelu": one("PReLU", "0=4", image, weights=plain(np.abs(random(4)))),
        "prelu shared": one("PReLU", "0=1", image, weights=plain([0.3])),
        "instance norm": one("InstanceNorm", "0=4 1=1e-3 2=1", image, weights=plain(random(4), random(4))),
        "group norm": one("GroupNorm", "0=2 1=4 2=1e-3 3=1", image, weights=plain(random(4), random(4))),
        "layer norm": one("LayerNorm", "0=8 1=1e-3 2=1", image, weights=plain(random(8), random(8))),
        "normalize": one("Normalize", "0=0 1=0 2=1e-5 3=4 4=1", image, weights=plain(random(4))),
        "memory data": NetCase(
            ["MemoryData m 0 1 m 0=8 1=9 2=4", "BinaryOp y 2 1 x m y 0=0"], {"x": image}, plain(random(4, 9, 8))
        ),
        "lstm": one("LSTM", "0=4 1=80 2=0", random(6, 5), weights=marked(random(16, 5), random(4, 4), random(16, 4))),
        "lstm both ways": one(
            "LSTM", "0=4 1=160 2=2", random(6, 5), weights=marked(random(2, 16, 5), random(2, 4, 4), random(2, 16, 4))
        ),
        "gru": one("GRU", "0=4 1=60 2=0", random(6, 5), weights=marked(random(12, 5), random(4, 4), random(12, 4))),
        "rnn": one("RNN", "0=4 1=20 2=1", random(6, 5), weights=marked(random(4, 5), random(4), random(4, 4))),
        "gemm": one("Gemm", "0=0.5 3=1 5=1 6=1 8=5 9=6 10=4", random(3, 6), weights=marked(random(5, 6), random(5))),
        "attention": one(
            "MultiHeadAttention",
            "0=8 1=2 2=64",
            random(5, 8),
            weights=b"".join(marked(random(8, 8) * 0.5) + plain(random(8)) for _ in range(4)),
        ),
    }
    for number, params in (
        (1, ""),
        (2, " -23310=1,0.2"),
        (3, " -23310=2,-0.5,0.7"),
        (4, ""),
        (5, ""),
        (6, " -23310=2,0.2,0.5"),
    ):
        cases[f"activation {number}"] = one(
            "Convolution", f"0=6 1=1 6=24 9={number}{params}", image, weights=marked(random(6, 4, 1, 1))
        )
    return cases


_LAYERS = """
AbsVal
BNLL
Sigmoid
TanH
Softplus
ReLU
ReLU 0=0.2
Clip 0=-0.3 1=0.4
ELU 0=0.7
SELU
GELU
Mish
Swish
HardSigmoid 0=0.3
HardSwish
Dropout 0=0.5
Threshold 0=0.1
Exp 0=2 1=0.5 2=0.1
Power 0=2 1=0.5
Softmax 0=0 1=1
Softmax 0=2 1=1
Noop
MVN 0=1 1=0 2=1e-4
LRN 1=3 2=0.5
LRN 0=1 1=3 2=0.5
Flatten
Reshape 0=8 1=-1
Reshape 0=-1 1=3 2=4
Reshape 0=-1
ShuffleChannel 0=2
PixelShuffle 0=2
Interp 0=1 1=2.0 2=2.0
Interp 0=2 3=13 4=5
Interp 0=2 1=2.0 2=1.5 6=1
Interp 0=3 3=14 4=12
Padding 0=1 1=2 2=3 3=0 5=0.5
Padding 0=1 1=1 2=1 3=1 4=2
Squeeze -23303=1,0
ExpandDims -23303=1,1
Tile 0=1 1=2
Crop 0=1 1=2 2=1 3=4 4=5 5=2
Crop -23309=2,1,-5 -23310=2,3,-1 -23311=2,0,2
Reduction 0=0 1=1
Reduction 0=3 1=0 -23303=2,1,2 4=1 5=1
Reduction 0=8 1=0 -23303=1,0 5=1
Reduction 0=4 1=0 -23303=1,2 5=1
CumulativeSum 0=1
GLU 0=0
"""
"""Layers without weights on an image, with their parameters."""


def _plain_layers() -> dict[str, NetCase]:
    image, other, positive = random(4, 9, 8), random(4, 9, 8), np.abs(random(4, 9, 8)) + 0.1
    cases: dict[str, NetCase] = {}
    for line in (*_LAYERS.strip().splitlines(), *(f"Permute 0={number}" for number in range(6))):
        kind, _, params = line.partition(" ")
        value = random(1, 9, 8) if kind == "Squeeze" else random(9, 8) if kind == "ExpandDims" else image
        cases[f"{kind} {params}".strip()] = one(kind, params, value)
    cases["Permute of a table"] = one("Permute", "0=1", random(3, 5))
    pools = {
        "max": "0=0 1=3 2=2",
        "max padded": "0=0 1=3 2=2 3=1 5=1",
        "mean": "0=1 1=3 2=2 3=1",
        "mean with padding": "0=1 1=3 2=2 3=1 6=1",
        "same": "0=1 1=2 11=3 2=2 5=2",
        "global": "0=1 4=1",
        "global max": "0=0 4=1",
        "adaptive": "0=1 7=1 8=3",
    }
    for name, params in pools.items():
        cases[f"pooling {name}"] = one("Pooling", params, image)
    for number in range(10):
        cases[f"binary {number}"] = one("BinaryOp", f"0={number}", positive, np.abs(other) + 0.1)
        cases[f"binary number {number}"] = one("BinaryOp", f"0={number} 1=1 2=1.5", positive)
    cases["binary channels"] = one("BinaryOp", "0=0", image, random(4))
    cases["binary columns"] = one("BinaryOp", "0=2", image, random(8))
    cases["binary table"] = one("BinaryOp", "0=2", image, random(4, 9))
    for number in range(20):
        value = positive if number not in (12, 13) else np.clip(image, -0.9, 0.9)
        cases[f"unary {number}"] = one("UnaryOp", f"0={number}", value)
    for number in range(3):
        cases[f"eltwise {number}"] = one("Eltwise", f"0={number}", image, other)
    cases["eltwise weighted"] = one("Eltwise", "0=1 -23301=2,0.5,-2.0", image, other)
    cases["concat"] = one("Concat", "0=1", image, other)
    cases["slice"] = one("Slice", "-23300=3,1,2,-233 1=0", image, outputs=3)
    cases["split"] = one("Split", "", image, outputs=2)
    cases["crop like"] = one("Crop", "0=1 1=2 2=0", image, random(4, 5, 4))
    cases["matmul"] = one("MatMul", "0=1", random(3, 4), random(5, 4))
    cases["roi pooling"] = one("ROIPooling", "0=3 1=2 2=0.5", image, np.float32([1, 2, 13, 16]))
    return cases


def _detection() -> dict[str, NetCase]:
    image, data = np.zeros((3, 70, 90), np.float32), random(4, 5, 6)
    sizes = "9=-233 10=-233 11=-233.0 12=-233.0 13=0.5"
    options = f"-23300=1,12.0 -23301=1,20.0 -23302=2,2.0,3.0 3=0.1 4=0.1 5=0.2 6=0.2 7=1 8=1 {sizes}"
    lines = [
        f"PriorBox p 2 1 map image p {options}",
        "Softmax s 1 1 scores s 0=1 1=1",
        "Flatten f 1 1 s f",
        "DetectionOutput y 3 1 codes f p y 0=3 1=0.45 2=30 3=8 4=0.4",
    ]
    inputs = {"map": data, "image": image, "scores": random(180, 3), "codes": random(720)}
    return {
        "prior boxes": one("PriorBox", options, data, image),
        "detection": NetCase(lines, inputs),
    }


def _network() -> NetCase:
    lines = [
        "Convolution c1 1 1 data c1 0=8 1=3 4=1 5=1 6=216 9=1",
        "Split s 1 2 c1 a b",
        "ConvolutionDepthWise c2 1 1 a c2 0=8 1=3 4=1 5=1 6=72 7=8 9=2 -23310=1,0.1",
        "BinaryOp add 2 1 c2 b sum 0=0",
        "Pooling p 1 1 sum p 0=0 1=3 2=2",
        "BatchNorm bn 1 1 p bn 0=8 1=1e-5",
        "Pooling g 1 1 bn g 0=1 4=1",
        "InnerProduct fc 1 1 g fc 0=5 1=1 2=40",
        "Softmax y 1 1 fc y 0=0 1=1",
    ]
    weights = (
        marked(random(8, 3, 3, 3) * 0.3) + plain(random(8)) + marked(random(8, 1, 3, 3), form="half") + plain(random(8))
        + plain(random(8), random(8), np.abs(random(8)) + 0.5, random(8)) + marked(random(5, 8)) + plain(random(5))
    )  # fmt: skip
    return NetCase(lines, {"data": random(3, 16, 16)}, weights)


CASES: dict[str, NetCase] = {**_weighted(), **_plain_layers(), **_detection(), "network": _network()}


def expected(case: NetCase) -> list[Any]:
    """What ncnn gives for the outputs of a net."""
    import ncnn

    net = ncnn.Net()
    for name in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_storage", "winograd_convolution"):
        setattr(net.opt, f"use_{name}", False)
    net.opt.num_threads = 1
    assert net.load_param_mem(case.text) == 0
    net.load_model_mem(case.weights or bytes(4))
    with net.create_extractor() as extractor:
        for name, value in case.inputs.items():
            extractor.input(name, ncnn.Mat(np.ascontiguousarray(value)).clone())
        results = []
        for name in case.outputs:
            code, value = extractor.extract(name)
            assert code == 0, f"ncnn does not run it ({code})"
            results.append(np.array(value))
    return results
