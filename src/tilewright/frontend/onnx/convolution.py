"""Converters of convolutions."""

from __future__ import annotations

from tilewright.frontend.builder import rank_of, shape_of
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.registry import converter
from tilewright.frontend.onnx.windows import Window, from_planes, read_window, to_planes
from tilewright.graph.expr import GraphExpr
from tilewright.support.errors import UnsupportedError, UserError


def spatial_rank(value: GraphExpr, op_type: str, most: int = 2) -> int:
    """The number of dimensions a window moves along: 1 or 2 (or more where it can be composed)."""
    rank = rank_of(value) - 2
    if rank < 1:
        raise UserError(f"{op_type} needs data of at least 3 dimensions, it is {shape_of(value)}")
    if rank > most:
        raise UnsupportedError(f"{op_type} in {rank} dimensions is not supported (data of shape {shape_of(value)})")
    return rank


def add_bias(node: NodeContext, value: GraphExpr, bias: GraphExpr | None) -> GraphExpr:
    """Add one number a channel to NCHW data."""
    if bias is None:
        return value
    channels = shape_of(value)[1]
    if shape_of(bias) != (channels,):
        raise UserError(f"the bias has shape {shape_of(bias)}, the result has {channels} channels")
    return node.call("add", value, node.builder.reshape(bias, (channels, 1, 1)))


def build_conv(node: NodeContext, data: GraphExpr, weight: GraphExpr, bias: GraphExpr | None) -> GraphExpr:
    """A convolution with the node's window attributes."""
    rank = spatial_rank(data, node.node.op_type)
    if rank_of(weight) != rank + 2:
        raise UserError(f"data of shape {shape_of(data)} does not fit a weight of shape {shape_of(weight)}")
    kernel = shape_of(weight)[2:]
    declared = node.ints("kernel_shape", kernel)
    if declared != kernel:
        raise UserError(f"kernel_shape {declared} does not fit the weight, whose kernel is {kernel}")
    window = read_window(node, kernel, shape_of(data)[2:])
    result = node.call(
        "nn.conv2d",
        to_planes(node, data, rank),
        to_planes(node, weight, rank),
        strides=window.strides,
        padding=window.padding,
        dilation=window.dilation,
        groups=node.integer("group", 1),
    )
    return from_planes(node, add_bias(node, result, bias), rank)


@converter("Conv")
def conv(node: NodeContext) -> GraphExpr:
    """In one or two dimensions."""
    return build_conv(node, node.input(0), node.input(1), node.optional(2))


@converter("ConvTranspose")
def conv_transpose(node: NodeContext) -> GraphExpr:
    """In one or two dimensions; the padding may follow from the shape of the result."""
    data, weight = node.input(0), node.input(1)
    rank = spatial_rank(data, node.node.op_type)
    if rank_of(weight) != rank + 2:
        raise UserError(f"data of shape {shape_of(data)} does not fit a weight of shape {shape_of(weight)}")
    kernel = shape_of(weight)[2:]
    declared = node.ints("kernel_shape", kernel)
    if declared != kernel:
        raise UserError(f"kernel_shape {declared} does not fit the weight, whose kernel is {kernel}")
    window, extra = _transposed_window(node, kernel, shape_of(data)[2:])
    result = node.call(
        "nn.conv2d_transpose",
        to_planes(node, data, rank),
        to_planes(node, weight, rank),
        strides=window.strides,
        padding=window.padding,
        output_padding=extra,
        dilation=window.dilation,
        groups=node.integer("group", 1),
    )
    return from_planes(node, add_bias(node, result, node.optional(2)), rank)


def _transposed_window(
    node: NodeContext, kernel: tuple[int, ...], size: tuple[int, ...]
) -> tuple[Window, tuple[int, int]]:
    rank = len(kernel)
    ones = (1,) * rank
    strides, dilation = node.ints("strides", ones), node.ints("dilations", ones)
    extra = list(node.ints("output_padding", (0,) * rank))
    mode = node.text("auto_pad", "NOTSET")
    pads = node.ints("pads", (0,) * (2 * rank))
    for values, count, what in (
        (strides, rank, "strides"),
        (dilation, rank, "dilations"),
        (extra, rank, "output_padding"),
    ):
        if len(values) != count:
            raise UserError(f"{what} must have {count} entries, it is {tuple(values)}")
    if len(pads) != 2 * rank:
        raise UserError(f"pads must have {2 * rank} entries, it is {pads}")
    if mode not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise UserError(f"unknown auto_pad {mode!r}")
    wanted: tuple[int, ...] | None = None
    if node.has_attribute("output_shape"):
        wanted = node.ints("output_shape")[-rank:]
        if len(wanted) != rank:
            raise UserError(f"output_shape must have {rank} entries, it is {wanted}")
    elif mode.startswith("SAME"):
        wanted = tuple(length * stride for length, stride in zip(size, strides, strict=True))
    before, after = list(pads[:rank]), list(pads[rank:])
    if mode == "VALID":
        before, after = [0] * rank, [0] * rank
    if wanted is not None:
        for axis in range(rank):
            full = (size[axis] - 1) * strides[axis] + (kernel[axis] - 1) * dilation[axis] + 1 + extra[axis]
            total = full - wanted[axis]
            if total < 0:
                # The result is larger than what the kernel reaches: the rest is rows that only hold the bias.
                extra[axis] -= total
                total = 0
            small, large = total // 2, total - total // 2
            before[axis], after[axis] = (small, large) if mode == "SAME_UPPER" else (large, small)
    window = Window.of(kernel, strides, before, after, dilation)
    padded = [0] * (2 - rank) + extra
    return window, (padded[0], padded[1])
