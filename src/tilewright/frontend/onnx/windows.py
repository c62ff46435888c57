"""Windows that move over data (convolutions, pooling): what nodes say of them."""

from __future__ import annotations

from dataclasses import replace

from tilewright.frontend.core.builder import sizes_of
from tilewright.frontend.core.windows import Extents, known_sizes, open_same_padding, same_padding
from tilewright.frontend.onnx.context import NodeContext
from tilewright.graph.ir.dimensions import Size, Sizes, floor_divide, subtract
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UserError


def read_extents(node: NodeContext, kernel: tuple[int, ...], size: Sizes) -> Extents:
    """The attributes strides, dilations, pads and auto_pad for data of a spatial size."""
    rank = len(kernel)
    ones = (1,) * rank
    strides, dilation = node.ints("strides", ones), node.ints("dilations", ones)
    pads = node.ints("pads", (0,) * (2 * rank))
    mode = node.text("auto_pad", "NOTSET")
    for values, count, what in ((strides, rank, "strides"), (dilation, rank, "dilations"), (pads, 2 * rank, "pads")):
        if len(values) != count:
            raise UserError(f"{what} must have {count} entries, it is {values}")
    if any(item < 1 for item in (*kernel, *strides, *dilation)):
        raise UserError(f"kernel {kernel}, strides {strides} and dilations {dilation} must be positive")
    before, after = pads[:rank], pads[rank:]
    match mode:
        case "NOTSET":
            pass
        case "VALID":
            before, after = (0,) * rank, (0,) * rank
        case "SAME_UPPER" | "SAME_LOWER":
            total = [
                same_padding(known_sizes((length,), f"{mode} with strides")[0] if step > 1 else 1, step, taps, space)
                for length, step, taps, space in zip(size, strides, kernel, dilation, strict=True)
            ]
            small, large = tuple(item // 2 for item in total), tuple(item - item // 2 for item in total)
            before, after = (small, large) if mode == "SAME_UPPER" else (large, small)
        case _:
            raise UserError(f"unknown auto_pad {mode!r}", hint="one of NOTSET, VALID, SAME_UPPER, SAME_LOWER")
    return Extents(kernel, strides, before, after, dilation)


def read_padded(
    node: NodeContext, kernel: tuple[int, ...], data: GraphExpr, fill: float = 0.0
) -> tuple[GraphExpr, Extents]:
    """The data and the window attributes for it.

    SAME padding of a size that only a run knows depends on what steps leave over of it: it becomes part of the data.
    """
    size = sizes_of(data)[2:]
    mode, strides = node.text("auto_pad", "NOTSET"), node.ints("strides", (1,) * len(kernel))
    is_open = any(not isinstance(length, int) and stride > 1 for length, stride in zip(size, strides, strict=False))
    if mode not in ("SAME_UPPER", "SAME_LOWER") or not is_open:
        return data, read_extents(node, kernel, size)
    plain = replace(read_extents(node, kernel, (1,) * len(kernel)), before=(0,) * len(kernel), after=(0,) * len(kernel))
    small: list[Size] = [0, 0]
    large: list[Size] = [0, 0]
    for length, stride, taps, space in zip(size, plain.strides, plain.kernel, plain.dilation, strict=True):
        total = open_same_padding(length, stride, taps, space)
        small.append(floor_divide(total, 2))
        large.append(subtract(total, small[-1]))
    before, after = (small, large) if mode == "SAME_UPPER" else (large, small)
    return node.call("pad", data, before=tuple(before), after=tuple(after), value=fill), plain
