"""Windows that move over data (convolutions, pooling): their attributes, and one dimension seen as two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.frontend.core.builder import sizes_of
from tilewright.frontend.onnx.context import NodeContext
from tilewright.graph.ir.dimensions import (
    Size,
    Sizes,
    add,
    ceil_divide,
    constants,
    floor_divide,
    maximum,
    multiply,
    subtract,
)
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import sizes_text
from tilewright.support.errors import UnsupportedError, UserError


@dataclass(frozen=True, slots=True)
class Window:
    """A window in two dimensions."""

    kernel: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int, int, int]
    """Top, left, bottom, right."""
    dilation: tuple[int, int]

    @staticmethod
    def of(
        kernel: Sequence[int],
        strides: Sequence[int],
        before: Sequence[int],
        after: Sequence[int],
        dilation: Sequence[int],
    ) -> Window:
        """From one or two dimensions; a missing first one is a unit."""
        missing = 2 - len(kernel)
        kernel, strides, dilation = ([1] * missing + list(item) for item in (kernel, strides, dilation))
        before, after = ([0] * missing + list(item) for item in (before, after))
        return Window(
            (kernel[0], kernel[1]),
            (strides[0], strides[1]),
            (before[0], before[1], after[0], after[1]),
            (dilation[0], dilation[1]),
        )


@dataclass(frozen=True, slots=True)
class Extents:
    """The window attributes of a node in as many dimensions as it has."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    dilation: tuple[int, ...]

    def part(self, axes: slice) -> Extents:
        """The window along some of its dimensions."""
        return Extents(self.kernel[axes], self.strides[axes], self.before[axes], self.after[axes], self.dilation[axes])

    def fields(self) -> tuple[tuple[int, ...], ...]:
        """Kernel, strides, padding before and after, dilation."""
        return self.kernel, self.strides, self.before, self.after, self.dilation

    def with_unit(self) -> Extents:
        """The window with one more dimension at the end, along which it takes one element at a time."""
        return Extents((*self.kernel, 1), (*self.strides, 1), (*self.before, 0), (*self.after, 0), (*self.dilation, 1))


def known_sizes(size: Sizes, what: str) -> tuple[int, ...]:
    """Spatial sizes that must be numbers."""
    found = constants(size)
    if found is None:
        raise UnsupportedError(
            f"{what} of data of symbolic size {sizes_text(size)}",
            hint="export with explicit padding, or give the size: shapes={...}",
        )
    return found


def _same_padding(mode: str, length: Size, stride: int, kernel: int, dilation: int) -> int:
    """The padding with which there are as many windows as steps; with steps of 1 it is the same for all lengths."""
    reach = (kernel - 1) * dilation + 1
    if stride == 1:
        return reach - 1
    (known,) = known_sizes((length,), f"{mode} with strides")
    return max(0, (-(-known // stride) - 1) * stride + reach - known)


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
            total = [_same_padding(mode, *item) for item in zip(size, strides, kernel, dilation, strict=True)]
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
        end = add(multiply(subtract(ceil_divide(length, stride), 1), stride), (taps - 1) * space + 1)
        total = maximum(subtract(end, length), 0)
        small.append(floor_divide(total, 2))
        large.append(subtract(total, small[-1]))
    before, after = (small, large) if mode == "SAME_UPPER" else (large, small)
    return node.call("pad", data, before=tuple(before), after=tuple(after), value=fill), plain


def to_planes(node: NodeContext, value: GraphExpr, rank: int) -> GraphExpr:
    """Data (or a weight) of one spatial dimension as one row of two."""
    if rank == 2:
        return value
    first, second, length = sizes_of(value)
    return node.builder.reshape(value, (first, second, 1, length))


def from_planes(node: NodeContext, value: GraphExpr, rank: int) -> GraphExpr:
    """Undo `to_planes`."""
    if rank == 2:
        return value
    first, second, _, length = sizes_of(value)
    return node.builder.reshape(value, (first, second, length))
