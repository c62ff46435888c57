"""Models of float16 on processors without products of float16 are computed in float32, as models of float32 are.

Before:  x (float16) -> nn.conv2d(x, w) -> nn.relu -> ... -> y (float16)
After:   x -> cast -> nn.conv2d(float32; w converted when the model is compiled) -> nn.relu -> ... -> cast -> y

Sums of products are in float32 there at any rate. Such a processor would convert every number that it multiplies, of a
convolution each pixel once for every tap and output, and have no use of Winograd's algorithm. Products of a few rows
stay: reading their weights is all their work, of which halves are half as much. Parts of constant tables are converted
after they are taken.
"""

from __future__ import annotations

from math import prod

from tilewright.graph.ir.expr import Call, Constant, GraphExpr
from tilewright.graph.ir.op import Operator, is_call_to
from tilewright.graph.ir.rewrite import make, static_shape
from tilewright.graph.ir.traverse import map_functions
from tilewright.graph.ops.elementwise import CastAttributes
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.float_types import FloatTypes, element_type
from tilewright.ir.dtype import FLOAT16, FLOAT32, DataType
from tilewright.ir.function import IRModule
from tilewright.target import Target
from tilewright.target.machine import cpu_parameters

_STAYS = ("avx512fp16", "mve.fp")
"""Processors with kernels for products of halves (`half_products`), and those that have no memory to spare."""


def widen_halves(module: IRModule, options: GraphOptions) -> IRModule:
    """Compute in float32 what is float16, where no products of halves are quicker."""
    target = options.machine
    if not target.is_cpu or target.has_feature(*_STAYS):
        return module
    return map_functions(module, lambda function: _Widen(target).run(function))


class _Widen(FloatTypes):
    """One run over a function."""

    def __init__(self, target: Target) -> None:
        super().__init__((FLOAT16, FLOAT32))
        self._few_rows = cpu_parameters(target).product.few_rows

    def computed_in(self, item: Call) -> DataType | None:
        """Float32, but for what is better read in halves."""
        assert isinstance(item.callee, Operator)
        halves = FLOAT16 in (element_type(item), *map(element_type, item.args))
        if not halves or item.callee.host or self._is_read_once(item):
            return None
        return FLOAT32

    def converted_call(self, item: Call, dtype: DataType) -> GraphExpr:
        """An operator in float32; one to float16 is one to float32."""
        if is_call_to(item, "cast") and isinstance(item.attributes, CastAttributes):
            to = FLOAT32 if item.attributes.dtype is FLOAT16 else item.attributes.dtype
            return make("cast", self.as_type(self.new(item.args[0]), dtype), dtype=to, span=item.span)
        return super().converted_call(item, dtype)

    def _is_read_once(self, item: Call) -> bool:
        """Whether constants, which are most of what an operator reads, are read once or less."""
        if is_call_to(item, "take"):
            return isinstance(item.args[0], Constant)
        if not is_call_to(item, "matmul") or not isinstance(item.args[1], Constant):
            return False
        shape = static_shape(item)
        return shape is not None and prod(shape[:-1]) < self._few_rows
