"""Converters of convolutions: any order of dimensions, groups of features and batches, dilation, reversal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.core.complex_values import Complex
from tilewright.frontend.stablehlo.builder import StableBuilder, Tensor
from tilewright.frontend.stablehlo.complex_numbers import whole
from tilewright.frontend.stablehlo.program import Operation
from tilewright.frontend.stablehlo.registry import converter
from tilewright.frontend.stablehlo.scanner import numbers
from tilewright.frontend.stablehlo.shapes import padded, spaced
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UnsupportedError, UserError


@dataclass(frozen=True, slots=True)
class _Window:
    """How windows lie on the data; one entry a spatial dimension."""

    strides: list[int]
    low: list[Size]
    high: list[Size]
    base: list[int]
    """Distance of elements of the data, with zeros between."""
    dilation: list[int]
    reversal: list[bool]
    groups: int


@converter("convolution", of_complex="taken")
def convolution(b: StableBuilder, operation: Operation, x: Tensor, weight: Tensor) -> Tensor:
    """A convolution with padding that is known."""
    layout = _layout(operation)
    rank = len(numbers(layout["input_spatial_dimensions"]))
    pads = b.list_of("padding", [0] * 2 * rank)
    return _any(b, operation, x, weight, layout, pads[::2], pads[1::2])


@converter("dynamic_conv", of_complex="taken")
def dynamic_convolution(b: StableBuilder, operation: Operation, x: Tensor, weight: Tensor, pads: GraphExpr) -> Tensor:
    """A convolution whose padding is computed from sizes."""
    amounts = b.sizes_in(pads)
    return _any(b, operation, x, weight, _layout(operation), amounts[::2], amounts[1::2])


def _layout(operation: Operation) -> dict[str, Any]:
    given = operation.attributes.get("dimension_numbers")
    if not isinstance(given, dict):
        raise UserError("a convolution without dimension numbers")
    return given


def _any(
    b: StableBuilder,
    operation: Operation,
    x: Tensor,
    weight: Tensor,
    layout: dict[str, Any],
    low: Sequence[Size],
    high: Sequence[Size],
) -> Tensor:
    rank = len(numbers(layout["input_spatial_dimensions"]))
    window = _Window(
        b.list_of("window_strides", [1] * rank),
        list(low),
        list(high),
        b.list_of("lhs_dilation", [1] * rank),
        b.list_of("rhs_dilation", [1] * rank),
        [bool(item) for item in b.list_of("window_reversal", [0] * rank)],
        b.number_of("feature_group_count", 1),
    )
    batches = b.number_of("batch_group_count", 1)

    def product(data: GraphExpr, kernel: GraphExpr) -> GraphExpr:
        return _real(b, data, kernel, layout, window, batches)

    if not isinstance(x, Complex) and not isinstance(weight, Complex):
        return product(x, weight)
    first, second = whole(b, x), whole(b, weight)
    real = b.subtract(product(first.real, second.real), product(first.imaginary, second.imaginary))
    return Complex(real, b.add(product(first.real, second.imaginary), product(first.imaginary, second.real)))


def _orders(layout: dict[str, Any]) -> tuple[list[int], list[int], list[int]]:
    """Where batch, features and spatial dimensions of data and result are, and outputs, inputs, spatial of weights."""
    found = []
    for what, first, second in (
        ("input", "batch", "feature"),
        ("kernel", "output_feature", "input_feature"),
        ("output", "batch", "feature"),
    ):
        found.append(
            [
                layout[f"{what}_{first}_dimension"],
                layout[f"{what}_{second}_dimension"],
                *numbers(layout[f"{what}_spatial_dimensions"]),
            ]
        )
    return found[0], found[1], found[2]


def _real(
    b: StableBuilder,
    x: GraphExpr,
    weight: GraphExpr,
    layout: dict[str, Any],
    window: _Window,
    batches: int,
) -> GraphExpr:
    dtype = b.result_dtype
    data_order, weight_order, result_order = _orders(layout)
    shape = [size if size is not None else 1 for size in b.result.shape]
    if 0 in sizes_of(x) or 0 in sizes_of(weight) or 0 in shape:
        return b.empty(shape, dtype) if 0 in shape else b.filled(0, shape, dtype)
    x, weight = b.cast(x, dtype), b.cast(weight, dtype)
    weight = b.flip(weight, [weight_order[2 + at] for at, is_turned in enumerate(window.reversal) if is_turned])
    if _is_last(data_order, weight_order, result_order) and batches == 1 and _is_plain(window):
        return _channels_last(b, x, weight, window)
    data = b.transpose(x, data_order)
    kernel = b.transpose(weight, weight_order)
    if batches > 1:
        data, window = _batches_as_features(b, data, batches), replace(window, groups=batches)
    made = _channels_first(b, data, kernel, window)
    return b.transpose(made, [result_order.index(axis) for axis in range(len(result_order))])


def _is_last(data: list[int], weight: list[int], result: list[int]) -> bool:
    """Whether images are NHWC and weights HWIO."""
    return data == [0, 3, 1, 2] and result == data and weight == [3, 2, 0, 1]


def _is_plain(window: _Window) -> bool:
    """Whether the graph's own convolution does it: nothing between elements, nothing cut off."""
    return all(step == 1 for step in window.base) and all(
        isinstance(amount, int) and amount >= 0 for amount in (*window.low, *window.high)
    )


def _channels_last(b: StableBuilder, x: GraphExpr, weight: GraphExpr, window: _Window) -> GraphExpr:
    return b.call(
        "nn.conv2d",
        x,
        weight,
        strides=tuple(window.strides),
        padding=(*window.low, *window.high),
        dilation=tuple(window.dilation),
        groups=window.groups,
        data_layout="NHWC",
        kernel_layout="HWIO",
    )


def _batches_as_features(b: StableBuilder, data: GraphExpr, groups: int) -> GraphExpr:
    """Groups of images beside each other: their features are groups of features."""
    count, channels, *space = sizes_of(data)
    inner = dimensions.floor_divide(count, groups)
    apart = b.reshape(data, (groups, inner, channels, *space))
    turned = b.transpose(apart, (1, 0, *range(2, rank_of(apart))))
    return b.reshape(turned, (inner, dimensions.multiply(channels, groups), *space))


def _channels_first(b: StableBuilder, data: GraphExpr, kernel: GraphExpr, window: _Window) -> GraphExpr:
    """NCHW and OIHW, of any number of spatial dimensions."""
    rank = len(window.strides)
    zero = b.scalar(0, dtype_of(data))
    if rank == 2 and _is_transposed(window, kernel):
        return _transposed(b, data, kernel, window)
    for axis, step in enumerate(window.base):
        data = spaced(b, data, 2 + axis, step, zero)
    if not _is_plain(replace(window, base=[1] * rank)) or rank > 2:
        data = padded(b, data, zero, (0, 0, *window.low), (0, 0, *window.high), [0] * (rank + 2))
        window = replace(window, low=[0] * rank, high=[0] * rank)
    if rank == 0:
        data, kernel = b.expand_dims(data, (2, 3)), b.expand_dims(kernel, (2, 3))
        made = _plane(b, data, kernel, [1, 1], [0, 0], [0, 0], [1, 1], window.groups)
        return b.reshape(made, sizes_of(made)[:2])
    if rank == 1:
        data, kernel = b.expand_dims(data, (2,)), b.expand_dims(kernel, (2,))
        made = _plane(
            b,
            data,
            kernel,
            [1, *window.strides],
            [0, *window.low],
            [0, *window.high],
            [1, *window.dilation],
            window.groups,
        )
        sizes = sizes_of(made)
        return b.reshape(made, (*sizes[:2], sizes[3]))
    if rank == 2:
        return _plane(b, data, kernel, window.strides, window.low, window.high, window.dilation, window.groups)
    return _volume(b, data, kernel, window)


def _plane(
    b: StableBuilder,
    data: GraphExpr,
    kernel: GraphExpr,
    strides: Sequence[int],
    low: Sequence[Size],
    high: Sequence[Size],
    dilation: Sequence[int],
    groups: int,
) -> GraphExpr:
    return b.call(
        "nn.conv2d",
        data,
        kernel,
        strides=tuple(strides),
        padding=(*low, *high),
        dilation=tuple(dilation),
        groups=groups,
    )


def _is_transposed(window: _Window, kernel: GraphExpr) -> bool:
    """Whether a convolution of spread data is the transpose of a strided one."""
    if max(window.base) == 1 or max(window.strides) > 1:
        return False
    for axis in range(2):
        reach = (size_at(kernel, 2 + axis) - 1) * window.dilation[axis]
        low, high = window.low[axis], window.high[axis]
        if not isinstance(low, int) or not isinstance(high, int):
            return False
        pad, extra = reach - low, high - low
        if pad < 0 or not 0 <= extra < max(window.base[axis], window.dilation[axis]):
            return False
    return True


def _transposed(b: StableBuilder, data: GraphExpr, kernel: GraphExpr, window: _Window) -> GraphExpr:
    """By the kernel turned around: IOHW of each group."""
    outputs, inputs, *space = sizes_of(kernel)
    groups = window.groups
    turned = b.flip(kernel, (2, 3))
    apart = b.reshape(turned, (groups, dimensions.floor_divide(outputs, groups), inputs, *space))
    weights = b.reshape(
        b.transpose(apart, (0, 2, 1, 3, 4)),
        (dimensions.multiply(inputs, groups), dimensions.floor_divide(outputs, groups), *space),
    )
    reach = [(size_at(kernel, 2 + axis) - 1) * window.dilation[axis] for axis in range(2)]
    pads = [length - low for length, low in zip(reach, window.low, strict=True) if isinstance(low, int)]
    extra = [
        high - low
        for high, low in zip(window.high, window.low, strict=True)
        if isinstance(high, int) and isinstance(low, int)
    ]
    return b.call(
        "nn.conv2d_transpose",
        data,
        weights,
        strides=tuple(window.base),
        padding=(*pads, *pads),
        output_padding=tuple(extra),
        dilation=tuple(window.dilation),
        groups=groups,
    )


def _volume(b: StableBuilder, data: GraphExpr, kernel: GraphExpr, window: _Window) -> GraphExpr:
    """In three dimensions and more: a sum over the kernel's first one, of convolutions of one dimension less."""
    rank = len(window.strides)
    taps, step, spread = size_at(kernel, 2), window.strides[0], window.dilation[0]
    if taps ** (rank - 2) > 256:
        raise UnsupportedError(f"a convolution in {rank} dimensions of {taps} taps along the first")
    batch, channels, length, *space = sizes_of(data)
    count = dimensions.add(dimensions.floor_divide(dimensions.subtract(length, (taps - 1) * spread + 1), step), 1)
    span = dimensions.add(dimensions.multiply(dimensions.subtract(count, 1), step), 1)
    inner = replace(
        window,
        strides=window.strides[1:],
        low=window.low[1:],
        high=window.high[1:],
        base=[1] * (rank - 1),
        dilation=window.dilation[1:],
    )
    total: GraphExpr | None = None
    for tap in range(taps):
        chosen = b.slice(data, 2, tap * spread, dimensions.add(span, tap * spread), step)
        order = (0, 2, 1, *range(3, rank + 2))
        images = b.reshape(b.transpose(chosen, order), (dimensions.multiply(batch, count), channels, *space))
        part = _channels_first(b, images, b.select(kernel, 2, tap), inner)
        total = part if total is None else b.add(total, part)
    assert total is not None
    _, outputs, *result = sizes_of(total)
    apart = b.reshape(total, (batch, count, outputs, *result))
    return b.transpose(apart, (0, 2, 1, *range(3, rank + 2)))
