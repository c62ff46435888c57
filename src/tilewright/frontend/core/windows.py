"""Windows that move over data (convolutions, pooling), and padding that frameworks call SAME: shared by importers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.frontend.core.builder import Builder
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
from tilewright.support.errors import UnsupportedError


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


def same_padding(length: int, stride: int, kernel: int, dilation: int) -> int:
    """The padding, before and after, with which there are as many windows as steps.

    With steps of 1 it is the same for all lengths.
    """
    reach = (kernel - 1) * dilation + 1
    return reach - 1 if stride == 1 else max(0, (-(-length // stride) - 1) * stride + reach - length)


def open_same_padding(length: Size, stride: int, kernel: int, dilation: int) -> Size:
    """`same_padding` of a length that only a run knows."""
    end = add(multiply(subtract(ceil_divide(length, stride), 1), stride), (kernel - 1) * dilation + 1)
    return maximum(subtract(end, length), 0)


def same_paddings(extents: Extents, size: Sequence[Size]) -> tuple[list[Size], list[Size]]:
    """The padding called SAME before and after each dimension of data of a spatial size; an odd one is more after."""
    before: list[Size] = []
    after: list[Size] = []
    for length, stride, taps, space in zip(size, extents.strides, extents.kernel, extents.dilation, strict=True):
        total: Size
        if isinstance(length, int) or stride == 1:
            total = same_padding(length if isinstance(length, int) else 1, stride, taps, space)
        else:
            total = open_same_padding(length, stride, taps, space)
        before.append(floor_divide(total, 2))
        after.append(subtract(total, before[-1]))
    return before, after


def window_over(
    builder: Builder,
    data: GraphExpr,
    extents: Extents,
    paddings: tuple[Sequence[Size], Sequence[Size]],
    fill: float = 0.0,
) -> tuple[GraphExpr, Window]:
    """Data with channels last and the window over it; padding that only a run knows becomes part of the data."""
    before, after = paddings
    known = [item for item in (*before, *after) if isinstance(item, int)]
    if len(known) < 4:
        data = builder.call("pad", data, before=(0, *before, 0), after=(0, *after, 0), value=fill)
        known = [0] * 4
    return data, Window.of(extents.kernel, extents.strides, known[:2], known[2:], extents.dilation)


def transposed_window(size: Size, target: Size, taps: int, stride: int, is_same: bool) -> tuple[int, int, int]:
    """What a dimension of a transposed convolution loses before and after, and has more at the end.

    `taps` counts the gaps between them, if there are any.
    """
    if not isinstance(size, int) or not isinstance(target, int):
        if is_same:
            raise UnsupportedError(
                "a transposed convolution with SAME padding of open sizes",
                hint="give the shapes of inputs: shapes={...}",
            )
        return 0, 0, 0
    total = (size - 1) * stride + taps - target
    # As much as the convolution from the result back to the data pads before it.
    before = max(0, total) // 2 if is_same else 0
    return before, max(0, total - before), max(0, before - total)
