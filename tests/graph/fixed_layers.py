"""Layers in fixed point with random weights, as the pass `fixed_point` makes them of quantised models."""

from __future__ import annotations

import numpy as np

from tilewright.graph.ir.expr import GraphExpr, constant
from tilewright.graph.ir.op import call
from tilewright.ir.dtype import INT32


class RandomLayers:
    """Makes them, one after another."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def integers(self, low: int, high: int, *shape: int) -> GraphExpr:
        return constant(self.rng.integers(low, high, shape).astype(np.int32), "int32")

    def layer(
        self,
        x: GraphExpr,
        outputs: int,
        inputs: int,
        kernel: tuple[int, ...],
        residual: GraphExpr | None = None,
        **more: object,
    ) -> GraphExpr:
        """A layer in fixed point: a convolution, or a matrix product where there is no kernel."""
        shifted = call("subtract", call("cast", x, dtype=INT32), constant(np.int32(self.rng.integers(-128, 128))))
        weight = self.integers(-127, 128, outputs, inputs, *kernel)
        sums = (
            call("nn.conv2d", shifted, weight, **more) if kernel else call("matmul", shifted, weight, transpose_b=True)
        )
        return self.in_fixed_point(sums, outputs, kernel, residual)

    def in_fixed_point(
        self, sums: GraphExpr, outputs: int, kernel: tuple[int, ...], residual: GraphExpr | None = None
    ) -> GraphExpr:
        """Sums requantised by random parameters of their channels."""
        along = (outputs, *[1] * len(kernel))
        numbers = [self.integers(-9999, 9999, *along), self.integers(1, 32768, *along), self.integers(20, 30, *along)]
        extra = [] if residual is None else [residual, self.integers(1, 32768, *along), self.integers(0, 14, *along)]
        return call("qnn.fixed_point", sums, *numbers, *extra, offset=int(self.rng.integers(-9, 9)), low=-100)
