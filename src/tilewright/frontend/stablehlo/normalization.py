"""Converters of batch normalisation, in inference and training, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.stablehlo.builder import StableBuilder
from tilewright.frontend.stablehlo.program import Operation
from tilewright.frontend.stablehlo.registry import converter
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UserError


def _feature(b: StableBuilder, x: GraphExpr) -> int:
    axis = b.number_of("feature_index")
    if not 0 <= axis < rank_of(x):
        raise UserError(f"features along axis {axis} of {rank_of(x)} dimensions")
    return axis


def _epsilon(b: StableBuilder) -> float:
    value = b.operation.attributes.get("epsilon", 0.0)
    return float(value)


def _spread(b: StableBuilder, value: GraphExpr, x: GraphExpr, axis: int) -> GraphExpr:
    """One number a feature, beside all elements."""
    line: list[Size] = [1] * rank_of(x)
    line[axis] = sizes_of(x)[axis]
    return b.reshape(value, line)


def _others(x: GraphExpr, axis: int) -> Sequence[int]:
    return [at for at in range(rank_of(x)) if at != axis]


@converter("batch_norm_inference")
def inference(
    b: StableBuilder,
    operation: Operation,
    x: GraphExpr,
    scale: GraphExpr,
    offset: GraphExpr,
    mean: GraphExpr,
    variance: GraphExpr,
) -> GraphExpr:
    """With given statistics."""
    return b.call("nn.batch_norm", x, scale, offset, mean, variance, epsilon=_epsilon(b), axis=_feature(b, x))


@converter("batch_norm_training")
def training(
    b: StableBuilder, operation: Operation, x: GraphExpr, scale: GraphExpr, offset: GraphExpr
) -> list[GraphExpr]:
    """With statistics of the batch, which are results too."""
    axis = _feature(b, x)
    mean = b.reduce("mean", x, _others(x, axis))
    centred = b.subtract(x, _spread(b, mean, x, axis))
    variance = b.reduce("mean", b.multiply(centred, centred), _others(x, axis))
    done = b.call("nn.batch_norm", x, scale, offset, mean, variance, epsilon=_epsilon(b), axis=axis)
    return [done, mean, variance]


@converter("batch_norm_grad")
def gradient(
    b: StableBuilder,
    operation: Operation,
    x: GraphExpr,
    scale: GraphExpr,
    mean: GraphExpr,
    variance: GraphExpr,
    grad: GraphExpr,
) -> list[GraphExpr]:
    """The gradients of the operand, the scale and the offset."""
    axis = _feature(b, x)
    others = _others(x, axis)
    count = dimensions.product([sizes_of(x)[at] for at in others])
    number = b.cast(b.operand(b.size(count), dtype_of(x)), dtype_of(x))
    spread = [_spread(b, value, x, axis) for value in (scale, mean, variance)]
    inverse = b.call("rsqrt", b.add(spread[2], _epsilon(b)))
    centred = b.subtract(x, spread[1])
    products = b.reduce("sum", b.multiply(grad, centred), others)
    total = b.reduce("sum", grad, others)
    inner = b.subtract(b.multiply(grad, number), _spread(b, total, x, axis))
    share = b.multiply(centred, b.multiply(_spread(b, products, x, axis), b.multiply(inverse, inverse)))
    operand = b.multiply(b.divide(b.multiply(spread[0], inverse), number), b.subtract(inner, share))
    return [operand, b.multiply(products, b.reshape(inverse, sizes_of(scale))), total]
