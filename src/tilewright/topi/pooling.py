"""Maximum and average pooling of images."""

from __future__ import annotations

from typing import Any

from tilewright.ir import build
from tilewright.ir.build import cast, const
from tilewright.ir.expr import ExprLike, PrimExpr
from tilewright.ir.types import Type
from tilewright.te import reduction
from tilewright.te.language import compute, reduce_axis
from tilewright.te.reduction import min_value
from tilewright.te.tensor import Axis, Tensor
from tilewright.tir.annotations import ANCHOR, LAYOUT, Anchor, Layout
from tilewright.topi.reduce import mean_type
from tilewright.topi.registry import compute_of, result_shape


def misses_data(attributes: Any) -> bool:
    """Whether a window of a pool, which counts no padding, may lie wholly in it."""
    (top, left, bottom, right), (height, width) = attributes.padding, attributes.kernel
    by_padding = max(top, bottom) >= height or max(left, right) >= width
    # Taps that are apart may lie on both sides of the data.
    return not attributes.count_include_pad and any(attributes.padding) and (by_padding or max(attributes.dilation) > 1)


class Window:
    """The window of one output element: positions in the input and whether they are inside it."""

    def __init__(self, x: Tensor, attributes: Any) -> None:
        self.x = x
        self.layout: str = attributes.layout
        self.attributes = attributes
        self.kh = reduce_axis((0, attributes.kernel[0]), "kh")
        self.kw = reduce_axis((0, attributes.kernel[1]), "kw")
        self.height = x.shape[self.layout.index("H")]
        self.width = x.shape[self.layout.index("W")]

    @property
    def axes(self) -> list[Axis]:
        """The rows and columns of the window."""
        return [self.kh, self.kw]

    def position(self, i: tuple[ExprLike, ...]) -> tuple[PrimExpr, PrimExpr]:
        """Row and column (padding makes them negative or too large)."""
        at = dict(zip(self.layout, i, strict=True))
        a = self.attributes
        y = build.as_expr(at["H"]) * a.strides[0] + self.kh * a.dilation[0] - a.padding[0]
        x = build.as_expr(at["W"]) * a.strides[1] + self.kw * a.dilation[1] - a.padding[1]
        return y, x

    def inside(self, i: tuple[ExprLike, ...]) -> PrimExpr:
        """Whether the position is in the input."""
        y, x = self.position(i)
        return build.all_of([build.le(0, y), build.lt(y, self.height), build.le(0, x), build.lt(x, self.width)])

    def load(self, i: tuple[ExprLike, ...], outside: PrimExpr) -> PrimExpr:
        """The input element, or `outside` in the padding."""
        y, x = self.position(i)
        at = dict(zip(self.layout, i, strict=True))
        source: dict[str, ExprLike] = {**at, "H": y, "W": x}
        value = self.x[tuple(source[c] for c in self.layout)]
        return build.select(self.inside(i), value, outside) if any(self.attributes.padding) else value


def window_count(attributes: Any, index: ExprLike, axis: int, size: PrimExpr) -> PrimExpr:
    """How many positions of the window along an axis are counted at an output index (dilation included)."""
    kernel, stride, step = attributes.kernel[axis], attributes.strides[axis], attributes.dilation[axis]
    low, high = attributes.padding[axis], attributes.padding[axis + 2]
    if attributes.count_include_pad or not (low or high):
        return const(kernel)
    start = build.as_expr(index) * stride - low
    skipped = build.maximum(build.floordiv(const(step - 1) - start, step), 0)
    reached = build.minimum(build.floordiv(size - start + (step - 1), step), kernel)
    return build.maximum(reached - skipped, 0)


@compute_of("nn.max_pool2d")
def _max_pool2d(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    (x,) = inputs
    window = Window(x, attributes)
    least = min_value(x.dtype)
    return compute(
        result_shape(result),
        lambda *i: reduction.max(window.load(i, least), window.axes),
        "max_pool2d",
        ANCHOR.entry(Anchor.POOL2D) | LAYOUT.entry(Layout(attributes.layout)),
    )


@compute_of("nn.avg_pool2d")
def _avg_pool2d(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    (x,) = inputs
    window = Window(x, attributes)
    shape = result_shape(result)
    wide = mean_type(x.dtype)
    total = compute(
        shape,
        lambda *i: reduction.sum(cast(window.load(i, const(0, x.dtype)), wide), window.axes),
        "avg_pool2d_sum",
        ANCHOR.entry(Anchor.POOL2D) | LAYOUT.entry(Layout(attributes.layout)),
    )
    h, w = attributes.layout.index("H"), attributes.layout.index("W")

    def mean(*i: ExprLike) -> PrimExpr:
        counts = (window_count(attributes, i[h], 0, window.height), window_count(attributes, i[w], 1, window.width))
        number = counts[0] * counts[1]
        if not wide.is_float or misses_data(attributes):
            # A window wholly in the padding averages nothing: 0.
            number = build.maximum(number, 1)
        return cast(total[i] / cast(number, wide), x.dtype)

    return compute(shape, mean, "avg_pool2d")
