"""Transposed convolutions with computed weights as plain ones: most are gradients of convolutions for their data.

Before:  nn.conv2d_transpose(x[n, h, w, i], k[3, 3, i, o], padding=(1, 1, 1, 1))
After:   nn.conv2d(x, k[::-1, ::-1], padding=(1, 1, 1, 1))

With a stride, the results that begin at one element of the data are phases, each a convolution with its own part of the
taps; they are put side by side afterwards:

Before:  nn.conv2d_transpose(x[n, h, w, i], k[3, 3, i, o], strides=(2, 2), padding=(1, 1, 1, 1), output_padding=(1, 1))
After:   conv2d(x, k[1:2, 1:2]), conv2d(x, k[1:2, ::-2]), conv2d(x, k[::-2, 1:2]), conv2d(x, k[::-2, ::-2]) interleaved

The same for constant weights is `transposed_convolution`, which rearranges them as the model is compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.graph.ir.dimensions import Sizes
from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr, constant
from tilewright.graph.ir.infer import keep_type
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.rewrite import known_sizes, make, static_shape
from tilewright.graph.ir.traverse import map_functions, rewrite
from tilewright.graph.ops.convolution import Conv2dTransposeAttributes
from tilewright.ir.function import IRModule

_LAST = {"data_layout": "NHWC", "kernel_layout": "HWIO"}


def computed_kernels(module: IRModule) -> IRModule:
    """Rewrite transposed convolutions, channels last, whose weights are no constants."""

    def visit(function: Function) -> Function:
        changed = rewrite(function, _visit)
        assert isinstance(changed, Function)
        return changed

    return map_functions(module, visit)


def _visit(old: GraphExpr, item: GraphExpr) -> GraphExpr | None:
    keep_type(old, item)
    if not isinstance(item, Call) or not is_call_to(item, "nn.conv2d_transpose"):
        return None
    attributes, (data, weight) = item.attributes, item.args
    assert isinstance(attributes, Conv2dTransposeAttributes)
    taps, source, result = static_shape(weight), known_sizes(data), known_sizes(item)
    if attributes.data_layout != "NHWC" or isinstance(weight, Constant) or taps is None:
        return None
    if source is None or result is None or 0 in (*taps, *source, *result):
        return None
    if tuple(attributes.strides) == (1, 1):
        return _turned(item, attributes, taps)
    if attributes.groups != 1 or tuple(attributes.dilation) != (1, 1):
        return None
    return _phases(item, attributes, taps, source, result)


def _turned(item: Call, attributes: Conv2dTransposeAttributes, taps: Sequence[int]) -> GraphExpr | None:
    """Every element spreads the kernel: every result gathers it, from the last tap to the first."""
    data, weight = item.args
    reach = [(size - 1) * step for size, step in zip(taps[:2], attributes.dilation, strict=True)]
    top, left, bottom, right = attributes.padding
    more = attributes.output_padding
    padding = (reach[0] - top, reach[1] - left, reach[0] - bottom + more[0], reach[1] - right + more[1])
    if min(padding) < 0:
        return None
    kernel = _taps(weight, taps, (taps[0] - 1, taps[1] - 1), (-1, -1))
    return make(
        "nn.conv2d",
        data,
        _by_outputs(kernel, taps, attributes.groups),
        padding=padding,
        dilation=tuple(attributes.dilation),
        groups=attributes.groups,
        span=item.span,
        **_LAST,
    )


def _taps(weight: GraphExpr, taps: Sequence[int], begin: tuple[int, int], steps: tuple[int, int]) -> GraphExpr:
    """Taps of a kernel in reversed order, from one on."""
    whole = {"begin": (*begin, 0, 0), "end": (-1, -1, *taps[2:]), "strides": (*steps, 1, 1)}
    return weight if tuple(taps[:2]) == (1, 1) else make("slice", weight, span=weight.span, **whole)


def _by_outputs(kernel: GraphExpr, taps: Sequence[int], groups: int) -> GraphExpr:
    """Weights of groups [h, w, (group, input), output] as those of a convolution, [h, w, input, (group, output)]."""
    if groups == 1:
        return kernel
    height, width, inputs, outputs = taps
    apart = make("reshape", kernel, shape=(height, width, groups, inputs // groups, outputs))
    turned = make("transpose", apart, axes=(0, 1, 3, 2, 4))
    return make("reshape", turned, shape=(height, width, inputs // groups, groups * outputs))


@dataclass(frozen=True)
class _Phase:
    """Along an axis: results `stride * y + phase` take `count` taps, from `first` on, of elements from `start` on."""

    first: int
    count: int
    before: int
    after: int

    @staticmethod
    def of(phase: int, stride: int, padding: int, kernel: int, rows: int, size: int) -> _Phase:
        """For so many results of a phase, from data of a size."""
        first, ahead = (phase + padding) % stride, (phase + padding) // stride
        count = len(range(first, kernel, stride))
        return _Phase(first, count, count - 1 - ahead, rows + ahead - size)

    def last(self, stride: int) -> int:
        """The last of the taps."""
        return self.first + (self.count - 1) * stride


def _phases(
    item: Call, attributes: Conv2dTransposeAttributes, taps: Sequence[int], source: Sizes, result: Sizes
) -> GraphExpr | None:
    """A convolution a phase; the results of all phases side by side."""
    height, width, columns = source[1], source[2], result[1:3]
    if not all(isinstance(size, int) for size in (height, width, *columns)):
        return None
    strides, padding = tuple(attributes.strides), attributes.padding[:2]
    sizes = [(int(size), int(out)) for size, out in zip((height, width), columns, strict=True)]  # type: ignore[arg-type]
    rows = [-(-out // stride) for (_, out), stride in zip(sizes, strides, strict=True)]
    axes = [
        [_Phase.of(p, strides[n], padding[n], taps[n], rows[n], sizes[n][0]) for p in range(strides[n])]
        for n in range(2)
    ]
    if not any(a.count and b.count for a in axes[0] for b in axes[1]):
        return None
    shape = (source[0], rows[0], rows[1], taps[3])
    lines = []
    for a in axes[0]:
        parts = [_phase(item, a, b, strides, taps, shape, sizes) for b in axes[1]]
        apart = [make("reshape", part, shape=(*shape[:2], 1, shape[2], 1, taps[3]), span=item.span) for part in parts]
        lines.append(make("concatenate", *apart, axis=4, span=item.span))
    placed = make("concatenate", *lines, axis=2, span=item.span)
    whole = (shape[0], rows[0] * strides[0], rows[1] * strides[1], taps[3])
    image = make("reshape", placed, shape=whole, span=item.span)
    if whole[1:3] == tuple(out for _, out in sizes):
        return image
    return make("slice", image, begin=(0, 0, 0, 0), end=tuple(result), strides=(1, 1, 1, 1), span=item.span)


def _phase(
    item: Call,
    down: _Phase,
    across: _Phase,
    strides: Sequence[int],
    taps: Sequence[int],
    shape: Sizes,
    sizes: Sequence[tuple[int, int]],
) -> GraphExpr:
    data, weight = item.args
    if not down.count or not across.count:
        zero = make("cast", constant(0.0, "float32"), dtype=item.tensor_type.dtype)
        return make("broadcast_to", zero, shape=shape, span=item.span)
    kernel = _taps(weight, taps, (down.last(strides[0]), across.last(strides[1])), (-strides[0], -strides[1]))
    if tuple(taps[:2]) != (1, 1):
        # `end` of the slice above leaves the taps of other phases that come before the first one out by its steps.
        assert static_shape(kernel) == (down.count, across.count, *taps[2:])
    # What no result of the phase meets is cut off.
    begin = (0, max(0, -down.before), max(0, -across.before), 0)
    end = (shape[0], sizes[0][0] + min(0, down.after), sizes[1][0] + min(0, across.after), taps[2])
    if (begin[1], begin[2], end[1], end[2]) != (0, 0, sizes[0][0], sizes[1][0]):
        data = make("slice", data, begin=begin, end=end, strides=(1, 1, 1, 1), span=item.span)
    padding = tuple(max(0, amount) for amount in (down.before, across.before, down.after, across.after))
    return make("nn.conv2d", data, kernel, padding=padding, span=item.span, **_LAST)
