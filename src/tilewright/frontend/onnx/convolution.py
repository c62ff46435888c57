"""Converters of convolutions."""

from __future__ import annotations

from tilewright.frontend.core.builder import rank_of, shape_of, sizes_of
from tilewright.frontend.core.layers import add_bias, convolve, deconvolve
from tilewright.frontend.core.windows import Extents, known_sizes
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.registry import converter
from tilewright.frontend.onnx.windows import read_padded
from tilewright.graph.ir.dimensions import Sizes
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UnsupportedError, UserError


def spatial_rank(value: GraphExpr, op_type: str, most: int = 3) -> int:
    """The number of dimensions a window moves along: 1, 2 or 3."""
    rank = rank_of(value) - 2
    if rank < 1:
        raise UserError(f"{op_type} needs data of at least 3 dimensions, it is {shape_of(value)}")
    if rank > most:
        raise UnsupportedError(f"{op_type} in {rank} dimensions is not supported (data of shape {shape_of(value)})")
    return rank


def _kernel_of(node: NodeContext, data: GraphExpr, weight: GraphExpr) -> tuple[int, tuple[int, ...]]:
    """The number of dimensions of a convolution and the sizes of its kernel, which fit the data and the attributes."""
    rank = spatial_rank(data, node.node.op_type)
    if rank_of(weight) != rank + 2:
        raise UserError(f"data of shape {shape_of(data)} does not fit a weight of shape {shape_of(weight)}")
    kernel = shape_of(weight)[2:]
    declared = node.ints("kernel_shape", kernel)
    if declared != kernel:
        raise UserError(f"kernel_shape {declared} does not fit the weight, whose kernel is {kernel}")
    return rank, kernel


def build_conv(node: NodeContext, data: GraphExpr, weight: GraphExpr, bias: GraphExpr | None) -> GraphExpr:
    """A convolution with the node's window attributes."""
    _, kernel = _kernel_of(node, data, weight)
    data, extents = read_padded(node, kernel, data)
    return convolve(node.builder, data, weight, bias, extents, node.integer("group", 1))


@converter("Conv")
def conv(node: NodeContext) -> GraphExpr:
    """In one, two or three dimensions."""
    return build_conv(node, node.input(0), node.input(1), node.optional(2))


@converter("ConvTranspose")
def conv_transpose(node: NodeContext) -> GraphExpr:
    """In one, two or three dimensions; the padding may follow from the shape of the result."""
    data, weight = node.input(0), node.input(1)
    _, kernel = _kernel_of(node, data, weight)
    extents, extra, ahead = _transposed_window(node, kernel, sizes_of(data)[2:])
    groups = node.integer("group", 1)
    result = deconvolve(node.builder, data, weight, None, extents, extra, groups)
    return add_bias(node.builder, _zeros_ahead(node, result, ahead), node.optional(2))


def _zeros_ahead(node: NodeContext, value: GraphExpr, amounts: tuple[int, ...]) -> GraphExpr:
    """Zeros before the first elements of spatial dimensions: what negative padding at the begin asks for."""
    if not any(amounts):
        return value
    return node.call("pad", value, before=(0, 0, *amounts), after=(0,) * (2 + len(amounts)))


def _transposed_window(
    node: NodeContext, kernel: tuple[int, ...], size: Sizes
) -> tuple[Extents, tuple[int, ...], tuple[int, ...]]:
    """The window of a transposed convolution, what is added at the end of its result, and at the begin."""
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
        wanted = tuple(length * stride for length, stride in zip(known_sizes(size, mode), strides, strict=True))
    before, after = list(pads[:rank]), list(pads[rank:])
    if mode == "VALID":
        before, after = [0] * rank, [0] * rank
    ahead = [0] * rank
    if wanted is not None:
        lengths = known_sizes(size, "output_shape")
        for axis in range(rank):
            full = (lengths[axis] - 1) * strides[axis] + (kernel[axis] - 1) * dilation[axis] + 1 + extra[axis]
            total = full - wanted[axis]
            if total < 0 and not mode.startswith("SAME"):
                # The result is larger than what the kernel reaches: the rest is rows that only hold the bias.
                extra[axis] -= total
                total = 0
            small, large = total // 2, total - total // 2
            first, last = (small, large) if mode == "SAME_UPPER" else (large, small)
            # With strides over the kernel, SAME pads by less than nothing: rows are added on both sides.
            before[axis], after[axis] = max(0, first), max(0, last)
            ahead[axis], extra[axis] = max(0, -first), extra[axis] + max(0, -last)
    return Extents(kernel, strides, tuple(before), tuple(after), dilation), tuple(extra), tuple(ahead)
