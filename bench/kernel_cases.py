"""The kernels that `bench.kernels` measures: one graph operator each, with the shapes of the ten models."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.graph.ir.expr import Function, GraphExpr, Var, constant
from tilewright.graph.ir.op import call
from tilewright.ir.dtype import FLOAT32, INT32, UINT8
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.target import Target

Graph = tuple[list[Var], GraphExpr]


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel: its graph (from a source of weights), its work, and what that work is held against.

    `work` counts operations of the direct algorithm, or bytes where `unit` is "read". `goal` is the fraction of the
    unit's peak to reach; `tolerance` bounds the error relative to the largest value of the reference.
    """

    name: str
    make: Callable[[np.random.Generator], Graph]
    work: float
    unit: str = "float32"
    goal: float | None = None
    winograd: bool = False
    tolerance: float = 1e-5
    without: tuple[str, ...] = ()
    """Features of the processor that are not used, to hold a kernel against the unit that it is about."""
    forms: tuple[tuple[float, int], ...] = ()
    """Other algorithms for the same: the part of the direct one's multiplications, and the bytes of the weights."""
    least: float = 1.0
    """What the ports that multiply do at least, in multiplications of the direct algorithm: more where sums are rounded
    to bytes."""

    def module(self, seed: int = 0) -> IRModule:
        """The kernel as a model of its own."""
        params, body = self.make(np.random.default_rng(seed))
        return IRModule([Function("main", tuple(params), body)], attributes={"model_name": self.name})


def _weights(random: np.random.Generator, shape: Sequence[int], fan_in: int, dtype: str = "float32") -> GraphExpr:
    return constant((random.standard_normal(shape) / math.sqrt(fan_in)).astype(dtype))


def _input(shape: Sequence[int], dtype: str = "float32") -> Var:
    return Var("x", tensor_type(tuple(shape), dtype))


def gemm(name: str, m: int, n: int, k: int, goal: float, dtype: str = "float32", tolerance: float = 1e-5) -> Case:
    """x[m, k] times constant weights [k, n]."""

    def make(random: np.random.Generator) -> Graph:
        x = _input((m, k), dtype)
        return [x], call("matmul", x, _weights(random, (k, n), k, dtype))

    return Case(name, make, 2.0 * m * n * k, dtype, goal, tolerance=tolerance)


_GROUP = 4
"""Products that a dot-product instruction adds to each lane."""
_ROUNDING = 4
"""Operations that a vector of sums takes at least on ports that multiply as well until it is bytes: to float, scaled,
to whole numbers, narrowed."""


def _least(unit: str, depth: int) -> float:
    """`Case.least` of sums that are rounded to bytes; matrix tiles multiply beside the ports."""
    return (-(-depth // _GROUP) + _ROUNDING) * _GROUP / depth if unit == "int8" else 1.0


def integer_gemm(name: str, m: int, n: int, k: int, goal: float, unit: str = "int8", requantize: bool = False) -> Case:
    """8-bit integers multiplied and added up in 32 bits, as importers spell quantised products.

    With `requantize` the result is scaled back to 8 bits, as in a quantised model. The unit "int8" is the vector dot
    product, "int8 tiles" the matrix tiles.
    """

    def make(random: np.random.Generator) -> Graph:
        x = _input((m, k), "uint8")
        w = constant(random.integers(-127, 128, (k, n)).astype(np.int8))
        product: GraphExpr = call("matmul", call("cast", x, dtype=INT32), call("cast", w, dtype=INT32))
        return [x], _requantized(product, k) if requantize else product

    without = ("amx-tile",) if unit == "int8" else ()
    least = _least(unit, k) if requantize else 1.0
    return Case(name, make, 2.0 * m * n * k, unit, goal, tolerance=0.0, without=without, least=least)


def _requantized(product: GraphExpr, depth: int) -> GraphExpr:
    """An integer product scaled so that it fills 8 bits."""
    scaled = call(
        "multiply", call("cast", product, dtype=FLOAT32), constant(np.float32(1.0 / (128 * math.sqrt(depth))))
    )
    moved = call("add", call("round", scaled), constant(np.float32(128)))
    return call("cast", call("clip", moved, minimum=0.0, maximum=255.0), dtype=UINT8)


def integer_convolution(
    name: str,
    size: int,
    channels: int,
    outputs: int,
    kernel: int,
    goal: float,
    unit: str,
    stride: int = 1,
    dtype: str = "uint8",
) -> Case:
    """A square NHWC convolution of bytes with a zero point, scaled back to 8 bits."""
    pad = kernel // 2

    def make(random: np.random.Generator) -> Graph:
        x = _input((1, size, size, channels), dtype)
        weight = constant(random.integers(-127, 128, (kernel, kernel, channels, outputs)).astype(np.int32))
        product = call(
            "nn.conv2d",
            call("subtract", call("cast", x, dtype=INT32), constant(np.int32(121))),
            weight,
            padding=(pad, pad, pad, pad),
            strides=(stride, stride),
            data_layout="NHWC",
            kernel_layout="HWIO",
        )
        return [x], _requantized(product, kernel * kernel * channels)

    work = 2.0 * (size // stride) ** 2 * outputs * kernel * kernel * channels
    without = ("amx-tile",) if unit == "int8" else ()
    least = _least(unit, kernel * kernel * channels)
    return Case(name, make, work, unit, goal, tolerance=0.0, without=without, least=least)


def resnet_convolutions() -> list[Case]:
    """The convolutions of ResNet-18 and ResNet-50 in bytes of the sign that this processor multiplies."""
    dtype = "uint8" if Target("native").has_vnni else "int8"
    layers = [(224, 3, 64, 7, 2)]
    for size, width in ((56, 64), (28, 128), (14, 256), (7, 512)):
        layers += [(size, width, width, 3, 1), (size, width, 4 * width, 1, 1), (size, 4 * width, width, 1, 1)]
    for size, width in ((56, 64), (28, 128), (14, 256)):
        layers += [(size, width, 2 * width, 3, 2), (size, width, 2 * width, 1, 2)]
    return [
        integer_convolution(
            f"int8_resnet_{kernel}x{kernel}{'s2' if stride == 2 else ''}_{size}_{channels}_{outputs}",
            size,
            channels,
            outputs,
            kernel,
            0.85,
            "int8",
            stride,
            dtype,
        )
        for size, channels, outputs, kernel, stride in layers
    ]


def gemv(name: str, n: int, k: int, goal: float) -> Case:
    """One row times a matrix, as in the recurrent part of an LSTM; bounded by reading the weights."""

    def make(random: np.random.Generator) -> Graph:
        x = _input((1, k))
        return [x], call("matmul", x, _weights(random, (k, n), k))

    return Case(name, make, 4.0 * n * k, "read", goal)


def convolution(
    name: str,
    size: int,
    channels: int,
    outputs: int,
    kernel: int,
    stride: int = 1,
    goal: float | None = None,
    *,
    groups: int = 1,
    winograd: bool = False,
    dtype: str = "float32",
) -> Case:
    """A square NHWC convolution with a bias and ReLU, as models have them after batch normalisation is folded."""
    pad = kernel // 2
    result = (size + 2 * pad - kernel) // stride + 1
    fan_in = kernel * kernel * channels // groups

    def make(random: np.random.Generator) -> Graph:
        x = _input((1, size, size, channels), dtype)
        weight = _weights(random, (kernel, kernel, channels // groups, outputs), fan_in, dtype)
        product = call(
            "nn.conv2d",
            x,
            weight,
            strides=(stride, stride),
            padding=(pad, pad, pad, pad),
            groups=groups,
            data_layout="NHWC",
            kernel_layout="HWIO",
        )
        return [x], call("nn.relu", call("add", product, _weights(random, (outputs,), 1, dtype)))

    work = 2.0 * result * result * outputs * fan_in
    forms = winograd_forms(size, channels, outputs) if winograd else ()
    tolerance = 2e-2 if dtype == "float16" else 2e-5 if winograd else 1e-5
    return Case(name, make, work, dtype, goal, winograd, tolerance, forms=forms)


def winograd_forms(size: int, channels: int, outputs: int) -> tuple[tuple[float, int], ...]:
    """All forms of a 3 x 3 convolution by Winograd's algorithm with tiles of up to 6 x 6 results.

    A tile of one result in a direction is the direct algorithm there. Larger tiles have less to multiply and more
    weights to read: which is best depends on how quickly those come. Weights that the kernel transforms itself (for
    tiles of 4, by 48 multiply-adds) are as many as the direct algorithm's.
    """
    found = []
    for height, width in itertools.product(range(1, 7), repeat=2):
        tiles = -(-size // height) * -(-size // width)
        window = (height + 2) * (width + 2)
        found.append((window * tiles / (9 * size * size), 4 * window * channels * outputs))
    points = (size + 2 * -(-size // 4)) ** 2
    found.append(((points + 48) / (9 * size * size), 4 * 9 * channels * outputs))
    return tuple(found)


def transposed_convolution(name: str, size: int, channels: int, outputs: int, goal: float | None = None) -> Case:
    """4 x 4 with stride 2, as in generators: doubles the size."""

    def make(random: np.random.Generator) -> Graph:
        x = _input((1, size, size, channels))
        weight = _weights(random, (4, 4, channels, outputs), 4 * channels)
        product = call(
            "nn.conv2d_transpose",
            x,
            weight,
            strides=(2, 2),
            padding=(1, 1, 1, 1),
            data_layout="NHWC",
            kernel_layout="HWIO",
        )
        return [x], call("nn.relu", product)

    # Each of the (2 * size)^2 results sums 2 x 2 taps.
    return Case(name, make, 2.0 * (2 * size) ** 2 * outputs * 4 * channels, "float32", goal)


def softmax(name: str, shape: Sequence[int]) -> Case:
    """Along the last axis; held against reading its input and writing its result."""

    def make(random: np.random.Generator) -> Graph:
        x = _input(shape)
        return [x], call("nn.softmax", x, axis=len(shape) - 1)

    return Case(name, make, 8.0 * math.prod(shape), "read")


def layer_norm(name: str, rows: int, columns: int) -> Case:
    """Over the last axis; held against reading its input and writing its result."""

    def make(random: np.random.Generator) -> Graph:
        x = _input((rows, columns))
        scale, bias = _weights(random, (columns,), 1), _weights(random, (columns,), 1)
        return [x], call("nn.layer_norm", x, scale, bias, axis=1)

    return Case(name, make, 8.0 * rows * columns, "read")


CASES: dict[str, Case] = {
    case.name: case
    for case in (
        gemm("sgemm_1024", 1024, 1024, 1024, 0.92),
        gemm("bert_768x768", 128, 768, 768, 0.90),
        gemm("bert_768x3072", 128, 3072, 768, 0.90),
        gemm("bert_3072x768", 128, 768, 3072, 0.90),
        convolution("conv1x1_56_64_256", 56, 64, 256, 1, goal=0.86),
        convolution("conv1x1_56_256_64", 56, 256, 64, 1, goal=0.86),
        convolution("conv1x1_28_512_128", 28, 512, 128, 1, goal=0.86),
        convolution("conv1x1_14_1024_256", 14, 1024, 256, 1, goal=0.86),
        convolution("conv1x1_7_512_2048", 7, 512, 2048, 1, goal=0.86),
        convolution("conv1x1_112_32_64", 112, 32, 64, 1, goal=0.86),
        convolution("conv1x1_14_512_512", 14, 512, 512, 1, goal=0.86),
        convolution("conv3x3_56_64", 56, 64, 64, 3, goal=0.92),
        convolution("conv3x3_28_128", 28, 128, 128, 3, goal=0.92),
        convolution("conv3x3_14_256", 14, 256, 256, 3, goal=0.92),
        convolution("conv3x3_7_512", 7, 512, 512, 3, goal=0.92),
        convolution("conv3x3_s2_56_64_128", 56, 64, 128, 3, 2, goal=0.90),
        convolution("conv3x3_s2_28_256", 28, 256, 256, 3, 2, goal=0.90),
        convolution("stem7x7_s2_224_3_64", 224, 3, 64, 7, 2, goal=0.90),
        convolution("stem3x3_s2_224_3_32", 224, 3, 32, 3, 2),
        convolution("winograd_56_64", 56, 64, 64, 3, goal=2.5, winograd=True),
        convolution("winograd_28_128", 28, 128, 128, 3, goal=2.5, winograd=True),
        convolution("winograd_14_256", 14, 256, 256, 3, goal=2.0, winograd=True),
        convolution("winograd_7_512", 7, 512, 512, 3, goal=2.0, winograd=True),
        convolution("depthwise_112_64", 112, 64, 64, 3, goal=0.60, groups=64),
        convolution("depthwise_14_512", 14, 512, 512, 3, goal=0.60, groups=512),
        convolution("depthwise_s2_112_64", 112, 64, 64, 3, 2, groups=64),
        convolution("depthwise_s2_28_256", 28, 256, 256, 3, 2, groups=256),
        transposed_convolution("transposed_8_256_128", 8, 256, 128),
        transposed_convolution("transposed_16_128_64", 16, 128, 64),
        gemv("gemv_650x2600", 2600, 650, 0.85),
        gemv("gemv_650x10000", 10000, 650, 0.85),
        integer_gemm("int8_gemm_512", 512, 512, 512, 0.85),
        integer_gemm("int8_gemm_128x768x768", 128, 768, 768, 0.85, requantize=True),
        integer_convolution("int8_conv3x3_56_64", 56, 64, 64, 3, 0.85, "int8"),
        integer_convolution("int8_conv1x1_14_1024_256", 14, 1024, 256, 1, 0.85, "int8"),
        *resnet_convolutions(),
        integer_gemm("int8_tiles_gemm_512", 512, 512, 512, 0.85, "int8 tiles"),
        integer_gemm("int8_tiles_gemm_requantized_512", 512, 512, 512, 0.85, "int8 tiles", requantize=True),
        integer_convolution("int8_tiles_conv3x3_56_64", 56, 64, 64, 3, 0.85, "int8 tiles"),
        gemm("fp16_gemm_1024", 1024, 1024, 1024, 0.90, "float16", 2e-2),
        convolution("fp16_conv1x1_14_1024_256", 14, 1024, 256, 1, dtype="float16"),
        convolution("fp16_conv3x3_28_128", 28, 128, 128, 3, dtype="float16"),
        convolution("fp16_conv3x3_56_64", 56, 64, 64, 3, dtype="float16"),
        softmax("softmax_12x128x128", (12, 128, 128)),
        layer_norm("layer_norm_128x768", 128, 768),
    )
}
