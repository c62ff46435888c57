"""Transposed convolutions in forms that waste less: a single pixel is a product, few channels share a vector.

Before:  nn.conv2d_transpose(x[n, 1, 1, i], w[4, 4, i, o], strides=(1, 1))
After:   nn.conv2d_transpose(x[n, 1, 1, i], w[4, 4, i, o], strides=(4, 4))

The stride between the prints of one pixel means nothing; where it is the kernel's size, each pixel of the result has
one tap, and its own weights: nothing is padded, and no product with zero is computed.

Before:  nn.conv2d_transpose(x[n, h, w, i], w[4, 4, i, 3], strides=(2, 2), padding=(1, 1, 1, 1))
After:   reshape(transpose(reshape(slice(nn.conv2d(x, w'[3, 3, i, 16], padding=(1, 1, 1, 1)), :12))))

The stride x stride results that start at one place of the input are channels of one convolution (its weights hold zeros
where a phase does not reach), and are put side by side afterwards. Three channels alone would leave most lanes of a
vector idle; where channels are many, Winograd's algorithm may compute that convolution in less time. On CPUs what was
measured (`graph/choices.py`) goes before both estimates. An infinity that meets such a zero is a NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilewright.graph.choices import GraphChoices
from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr
from tilewright.graph.ir.infer import fill_type, keep_type
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.rewrite import make, static_shape
from tilewright.graph.ir.traverse import map_functions, rewrite
from tilewright.graph.ops.convolution import Conv2dTransposeAttributes
from tilewright.graph.ops.winograd import KERNEL
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.choose_algorithm import ConvolutionSize, best_tile, product_cycles, winograd_cycles
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.function import IRModule
from tilewright.target import Target
from tilewright.target.machine import cpu_parameters, gpu_parameters


def transposed_convolution(module: IRModule, options: GraphOptions) -> IRModule:
    """Rewrite transposed convolutions (channels last, constant weights) where the other form has less work.

    Infinities and NaN spread from phase to phase where these are one convolution.
    """
    target, winograd, infinities = options.machine, options.may_use_winograd, options.infinities

    def visit(function: Function) -> Function:
        changed = rewrite(function, lambda old, item: _visit(old, item, target, winograd, infinities, options.choices))
        assert isinstance(changed, Function)
        return changed

    return map_functions(module, visit)


def _visit(
    old: GraphExpr, item: GraphExpr, target: Target, winograd: bool, infinities: bool, choices: GraphChoices
) -> GraphExpr | None:
    keep_type(old, item)
    if not isinstance(item, Call) or not is_call_to(item, "nn.conv2d_transpose"):
        return None
    attributes, (data, weight) = item.attributes, item.args
    assert isinstance(attributes, Conv2dTransposeAttributes)
    source, result = static_shape(data), static_shape(item)
    if attributes.data_layout != "NHWC" or attributes.groups != 1 or tuple(attributes.dilation) != (1, 1):
        return None
    if not isinstance(weight, Constant) or source is None or result is None or 0 in (*source, *result):
        return None
    if source[1:3] == (1, 1):
        return _single_pixel(item, weight, attributes)
    return None if infinities else _all_phases(item, weight, attributes, target, winograd, choices)


def _single_pixel(item: Call, weight: Constant, attributes: Conv2dTransposeAttributes) -> GraphExpr | None:
    """The transposed convolution of one pixel, with a stride as large as what is left of the kernel."""
    top, left, bottom, right = attributes.padding
    height, width = weight.data.shape[:2]
    taps = weight.data[top : height - bottom, left : width - right]
    if any(attributes.output_padding) or tuple(attributes.strides) == taps.shape[:2]:
        return None
    return make(
        "nn.conv2d_transpose",
        item.args[0],
        _constant(taps, weight),
        strides=taps.shape[:2],
        padding=(0, 0, 0, 0),
        data_layout="NHWC",
        kernel_layout="HWIO",
        span=item.span,
    )


@dataclass(frozen=True)
class _Axis:
    """One spatial axis: the input elements that results s * i ... s * i + s - 1 need are i + first ... i + last."""

    kernel: int
    stride: int
    padding: int

    @property
    def first(self) -> int:
        return -max((self.kernel - 1 - self.remainder(p)) // self.stride - self.quotient(p) for p in range(self.stride))

    @property
    def last(self) -> int:
        return self.quotient(self.stride - 1)

    def quotient(self, phase: int) -> int:
        return (phase + self.padding) // self.stride

    def remainder(self, phase: int) -> int:
        return (phase + self.padding) % self.stride

    def tap(self, phase: int, place: int) -> int | None:
        """The kernel element that meets the input at `place` after `first`, for results of a phase."""
        steps = self.quotient(phase) - (place + self.first)
        tap = self.remainder(phase) + steps * self.stride
        return tap if steps >= 0 and tap < self.kernel else None


def _all_phases(
    item: Call,
    weight: Constant,
    attributes: Conv2dTransposeAttributes,
    target: Target,
    winograd: bool,
    choices: GraphChoices,
) -> GraphExpr | None:
    """A transposed convolution as a convolution to the channels of all phases, where vectors are better filled."""
    shape, source = static_shape(item), static_shape(item.args[0])
    assert shape is not None and source is not None
    batch, height, width, channels = shape
    strides = tuple(attributes.strides)
    if height % strides[0] or width % strides[1] or strides == (1, 1):
        return None
    axes = [_Axis(weight.data.shape[n], strides[n], attributes.padding[n]) for n in range(2)]
    sizes = [axis.last - axis.first + 1 for axis in axes]
    before = [-axis.first for axis in axes]
    after = [shape[n + 1] // strides[n] + axes[n].last - source[n + 1] for n in range(2)]
    if min(*before, *after, *sizes) < 0:
        return None
    lanes = target.lanes(item.tensor_type.dtype.bits)
    outputs = strides[0] * strides[1] * channels
    apart = axes[0].kernel * axes[1].kernel * -(-channels // lanes)
    together = sizes[0] * sizes[1] * -(-outputs // lanes)
    if target.is_cpu:
        least_gain = cpu_parameters(target).convolution.phases_least_gain
        pays = together * least_gain <= apart or (winograd and _is_quicker_by_winograd(item, weight, axes, target))
        estimated = "together" if pays else "apart"
        if choices.choose([item], ("apart", "together"), estimated) == "apart":
            return None
    # GPUs compute each phase by tiles of its own where it has channels enough; else tiles make up for zeros.
    if not target.is_cpu and item.tensor_type.dtype is FLOAT32:
        fills_tiles = channels >= gpu_parameters(target).convolution.phase_channels
        if fills_tiles and all(axis.kernel % axis.stride == 0 for axis in axes):
            return None
    # Whole vectors are faster than short or masked ones: the channels that fill the last one are computed for nothing.
    unused = -outputs % lanes
    taps = np.pad(_phase_weights(weight.data, axes, sizes), [(0, 0), (0, 0), (0, 0), (0, unused)])
    padding = (before[0], before[1], after[0], after[1])
    phases: GraphExpr = make(
        "nn.conv2d",
        item.args[0],
        _constant(taps, weight),
        padding=padding,
        data_layout="NHWC",
        kernel_layout="HWIO",
        span=item.span,
    )
    if unused:
        end = (batch, height // strides[0], width // strides[1], outputs)
        phases = make("slice", phases, begin=(0, 0, 0, 0), end=end, strides=(1, 1, 1, 1), span=item.span)
    return _depth_to_space(phases, (strides[0], strides[1]), shape)


def _depth_to_space(phases: GraphExpr, strides: tuple[int, int], shape: Sequence[int]) -> GraphExpr:
    """The channels of all phases moved to the pixels that they belong to."""
    batch, height, width, channels = shape
    apart = (batch, height // strides[0], width // strides[1], *strides, channels)
    split = make("reshape", phases, shape=apart, span=phases.span)
    placed = make("transpose", split, axes=(0, 1, 3, 2, 4, 5), span=phases.span)
    return make("reshape", placed, shape=tuple(shape), span=phases.span)


def _is_quicker_by_winograd(item: Call, weight: Constant, axes: list[_Axis], target: Target) -> bool:
    """Whether Winograd's algorithm is estimated to be quicker for all phases than the phases are one by one."""
    shape, source = static_shape(item), static_shape(item.args[0])
    assert shape is not None and source is not None
    if item.tensor_type.dtype is not FLOAT32 or any(axis.last - axis.first + 1 != KERNEL for axis in axes):
        return False
    vertical, horizontal = axes
    lanes = target.lanes(FLOAT32.bits)
    outputs = vertical.stride * horizontal.stride * shape[3]
    rows, columns = shape[1] // vertical.stride, shape[2] // horizontal.stride
    size = ConvolutionSize(shape[0], rows, columns, source[3], outputs + -outputs % lanes)
    tile = best_tile(size, target)
    weights = weight.data.size // shape[3] * (shape[3] + -shape[3] % lanes)
    apart = product_cycles(shape[0] * rows * columns * weights, weights, 0.0, target)
    least_gain = cpu_parameters(target).convolution.phases_least_gain
    return tile is not None and winograd_cycles(size, tile, target) * least_gain < apart


def _phase_weights(taps: npt.NDArray[np.generic], axes: list[_Axis], sizes: list[int]) -> npt.NDArray[np.generic]:
    """Weights [place_y, place_x, input, (phase_y, phase_x, output)] from [tap_y, tap_x, input, output]."""
    vertical, horizontal = axes
    inputs, outputs = taps.shape[2:]
    result = np.zeros((*sizes, inputs, vertical.stride, horizontal.stride, outputs), taps.dtype)
    for y, x, p, q in np.ndindex(*sizes, vertical.stride, horizontal.stride):
        row, column = vertical.tap(p, y), horizontal.tap(q, x)
        if row is not None and column is not None:
            result[y, x, :, p, q] = taps[row, column]
    return result.reshape(*sizes, inputs, -1)


def _constant(data: npt.NDArray[np.generic], like: Constant) -> Constant:
    result = Constant(np.ascontiguousarray(data), like.dtype)
    result.span = like.span
    fill_type(result)
    return result
