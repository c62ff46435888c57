"""Converters of convolutions."""

from __future__ import annotations

from typing import Any

from tilewright.frontend.core.builder import rank_of, shape_of, size_at
from tilewright.frontend.paddle.context import NodeContext
from tilewright.frontend.paddle.registry import converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UnsupportedError, UserError

_CONVOLUTIONS = ("conv2d", "depthwise_conv2d", "conv3d")
_TRANSPOSED = ("conv2d_transpose", "depthwise_conv2d_transpose", "conv3d_transpose", "conv2d_transpose_bias")


def pads_of(node: NodeContext, rank: int) -> tuple[int, ...]:
    """Padding before and after each dimension, as ONNX has it: the file may give one number for both."""
    given = node.ints("paddings", default=(0,) * rank)
    if len(given) == rank:
        return (*given, *given)
    if len(given) == 2 * rank:
        return (*given[::2], *given[1::2])
    if len(given) == 2 * (rank + 2):
        return pads_of_spatial(given, rank, node.channels_last)
    raise UserError(f"paddings {given} of {rank} dimensions")


def pads_of_spatial(given: tuple[int, ...], rank: int, channels_last: bool) -> tuple[int, ...]:
    """The spatial part of paddings that name all dimensions."""
    first = 1 if channels_last else 2
    pairs = list(zip(given[::2], given[1::2], strict=True))[first : first + rank]
    return (*(low for low, _ in pairs), *(high for _, high in pairs))


def window(node: NodeContext, rank: int) -> dict[str, Any]:
    """What ONNX calls the attributes of a window."""
    algorithm = node.text("padding_algorithm", default="EXPLICIT")
    strides = node.ints("strides", default=(1,) * rank)
    dilations = node.ints("dilations", default=(1,) * rank)
    if algorithm == "SAME":
        return {"strides": strides, "dilations": (1,) * rank, "auto_pad": "SAME_UPPER"}
    pads = (0,) * (2 * rank) if algorithm == "VALID" else pads_of(node, rank)
    return {"strides": strides, "dilations": dilations, "pads": pads}


def channels_first(node: NodeContext, x: GraphExpr) -> GraphExpr:
    """Data with its channels in front of the spatial dimensions."""
    return node.builder.transpose(x, (0, rank_of(x) - 1, *range(1, rank_of(x) - 1))) if node.channels_last else x


def restored(node: NodeContext, x: GraphExpr) -> GraphExpr:
    """Data with its channels where the file has them."""
    return node.builder.transpose(x, (0, *range(2, rank_of(x)), 1)) if node.channels_last else x


@converter(*_CONVOLUTIONS, inputs="Input Filter Bias ResidualData", outputs="Output")
def convolution(node: NodeContext) -> GraphExpr:
    """A convolution, grouped or not."""
    if node.has_input(3):
        raise UnsupportedError(f"{node.node.kind} with a residual: the program was fused for one machine")
    x, weight = channels_first(node, node.input(0)), node.input(1)
    rank = rank_of(x) - 2
    result = node.onnx(
        "Conv", x, weight, node.optional(2), group=node.integer("groups", default=1), **window(node, rank)
    )
    return restored(node, result)


@converter(*_TRANSPOSED, inputs="Input Filter OutputSizeTensor Bias", outputs="Output")
def transposed(node: NodeContext) -> GraphExpr:
    """A transposed convolution, whose size may be given."""
    x, weight = channels_first(node, node.input(0)), node.input(1)
    bias = node.optional(3)
    rank = rank_of(x) - 2
    options = window(node, rank)
    kernel = shape_of(weight)[2:]
    if "auto_pad" in options:
        total = [max(size - step, 0) for size, step in zip(kernel, options["strides"], strict=True)]
        low = tuple(item // 2 for item in total)
        options = {**options, "pads": (*low, *(item - part for item, part in zip(total, low, strict=True)))}
        del options["auto_pad"]
    extra = node.ints("output_padding", default=()) or (0,) * rank
    wanted = node.wholes("its size", (2,), "output_size")
    if wanted:
        extra = tuple(_extra(x, at, size, kernel, options) for at, size in enumerate(wanted))
    result = node.onnx(
        "ConvTranspose", x, weight, bias, group=node.integer("groups", default=1), output_padding=extra, **options
    )
    return restored(node, result)


def _extra(x: GraphExpr, at: int, wanted: int, kernel: tuple[int, ...], options: dict[str, Any]) -> int:
    """What a size that is given has more than the least one."""
    rank = len(kernel)
    reach = (kernel[at] - 1) * options["dilations"][at] + 1
    least = (size_at(x, at + 2) - 1) * options["strides"][at] + reach
    extra: int = wanted - (least - options["pads"][at] - options["pads"][at + rank])
    return extra


@converter("deformable_conv", "deformable_conv_v1", inputs="Input Offset Filter Mask", outputs="Output")
def deformable(node: NodeContext) -> GraphExpr:
    """A convolution whose taps are moved by offsets."""
    rank = rank_of(node.input(0)) - 2
    options = window(node, rank)
    return node.onnx(
        "DeformConv",
        node.input(0),
        node.input(2),
        node.input(1),
        None,
        node.optional(3),
        group=node.integer("groups", default=1),
        offset_group=node.integer("deformable_groups", default=1),
        kernel_shape=shape_of(node.input(2))[2:],
        **options,
    )
