"""Converters of the normalisations."""

from __future__ import annotations

from tilewright.frontend.core.builder import rank_of, size_at, sizes_of
from tilewright.frontend.openvino.context import NodeContext
from tilewright.frontend.openvino.registry import converter
from tilewright.graph.ir.dimensions import Size, product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UnsupportedError


def normalized(node: NodeContext, x: GraphExpr, axes: tuple[int, ...], epsilon: float, variance: bool = True,
               inside: bool = True) -> GraphExpr:  # fmt: skip
    """x without its mean over axes, divided by its deviation; epsilon is added to the variance or to its root."""
    b = node.builder
    centered = b.subtract(x, b.reduce("mean", x, axes, True))
    if not variance:
        return centered
    square = b.reduce("mean", b.multiply(centered, centered), axes, True)
    root = b.call("sqrt", b.add(square, epsilon)) if inside else b.add(b.call("sqrt", square), epsilon)
    return b.divide(centered, root)


@converter("MVN")
def mean_variance(node: NodeContext) -> GraphExpr:
    """By the statistics over axes."""
    x = node.input(0)
    rank = rank_of(x)
    if node.has_input(1):
        axes = tuple(sorted({node.axis(axis, rank) for axis in node.known(1, "the axes")}))
        inside = node.text("eps_mode", "inside_sqrt") == "inside_sqrt"
    else:
        across = node.flag("across_channels")
        axes = node.ints("reduction_axes", tuple(range(1 if across else 2, rank)))
        inside = False
    return normalized(node, x, axes, node.number("eps", 1e-9), node.flag("normalize_variance", True), inside)


@converter("BatchNormInference")
def batch_norm(node: NodeContext) -> GraphExpr:
    """By statistics that are given; the first opset has the data as its third input."""
    order = (2, 0, 1, 3, 4) if node.opset < 5 else (0, 1, 2, 3, 4)
    values = [node.input(at) for at in order]
    epsilon = node.number("epsilon" if node.has_option("epsilon") else "eps", 1e-5)
    return node.call("nn.batch_norm", *values, epsilon=epsilon, axis=1)


@converter("GroupNormalization")
def group_norm(node: NodeContext) -> GraphExpr:
    """By the statistics of groups of channels of each image."""
    b, x, groups = node.builder, node.input(0), node.integer("num_groups")
    sizes, channels = sizes_of(x), size_at(x, 1)
    parted = b.reshape(x, (sizes[0], groups, product((channels // groups, *sizes[2:]))))
    normal = b.reshape(normalized(node, parted, (2,), node.number("epsilon")), sizes)
    shape: list[Size] = [1] * rank_of(x)
    shape[1] = channels
    return b.add(b.multiply(normal, b.reshape(node.input(1), shape)), b.reshape(node.input(2), shape))


@converter("RMSNorm", "RMS")
def rms_norm(node: NodeContext) -> GraphExpr:
    """By the root of the mean square over axes."""
    b, x = node.builder, node.input(0)
    has_axes = node.layer.kind == "RMSNorm"
    given = node.known(1, "the axes") if has_axes else (-1,)
    axes = tuple(sorted({node.axis(axis, rank_of(x)) for axis in given}))
    square = b.reduce("mean", b.multiply(x, x), axes, True)
    shrunk = b.divide(x, b.call("sqrt", b.add(square, node.number("epsilon"))))
    scale = node.optional(2 if has_axes else 1)
    return shrunk if scale is None else b.multiply(shrunk, scale)


@converter("LRN")
def local_response(node: NodeContext) -> GraphExpr:
    """By the squares of neighbouring channels."""
    x, axes = node.input(0), node.known(1, "the axes")
    if [node.axis(axis, rank_of(x)) for axis in axes] != [1]:
        raise UnsupportedError(f"LRN over the axes {axes}", hint="over channels (axis 1) it is read")
    return node.onnx(
        "LRN",
        x,
        size=node.integer("size"),
        alpha=node.number("alpha"),
        beta=node.number("beta"),
        bias=node.number("bias", 1.0),
    )


@converter("NormalizeL2")
def normalize_l2(node: NodeContext) -> GraphExpr:
    """x divided by its length over axes; epsilon is added to the squares, or their least sum."""
    b, x = node.builder, node.input(0)
    axes = tuple(sorted({node.axis(axis, rank_of(x)) for axis in node.known(1, "the axes")}))
    total = b.reduce("sum", b.multiply(x, x), axes, True) if axes else b.multiply(x, x)
    epsilon = node.number("eps")
    if node.text("eps_mode") == "add":
        total = b.add(total, epsilon)
    else:
        total = b.call("maximum", total, b.scalar(epsilon, x.tensor_type.dtype))
    return b.divide(x, b.call("sqrt", total))


@converter("GRN")
def response_normalization(node: NodeContext) -> GraphExpr:
    """x divided by its length over channels."""
    b, x = node.builder, node.input(0)
    total = b.reduce("sum", b.multiply(x, x), (1,), True)
    return b.divide(x, b.call("sqrt", b.add(total, node.number("bias"))))
