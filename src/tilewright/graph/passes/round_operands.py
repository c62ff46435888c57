"""Operands of float32 products in tf32 are rounded to nearest by whatever makes them.

Before:  y = nn.relu(...); nn.conv2d(y, w, ...); add(y, ...)
After:   y = round_to_tf32(nn.relu(...)); nn.conv2d(y, w', ...); add(y, ...)      w' rounded at compile time

Warp groups read operands from shared memory, where their instructions ignore the low 13 bits of a float32. Bits that
are cut off make every product too small, an error that grows with the depth of a network; rounding errors cancel out.
The rounding is fused into the kernel that makes the value, so that it costs nothing there. All readers see the rounded
value: one that only products see would have to be written beside the other. Inputs of the model, which are there
already, are rounded for products alone (what updates a weight must see all its bits), and results are not.
Instructions of single warps have their operands in registers and round small products by themselves.
"""

from __future__ import annotations

from math import prod
from typing import Final

from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr, Var, constant
from tilewright.graph.ir.infer import fill_type
from tilewright.graph.ir.op import Operator, is_call_to
from tilewright.graph.ir.rewrite import make, static_shape
from tilewright.graph.ir.traverse import children, map_functions, post_order, with_children
from tilewright.graph.ops.contract import MatmulAttributes
from tilewright.graph.ops.convolution import Conv2dAttributes
from tilewright.graph.ops.convolution_gradient import Conv2dWeightGradientAttributes
from tilewright.graph.ops.special import round_to_tf32
from tilewright.graph.options import GraphOptions
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.function import IRModule
from tilewright.target.tensor_cores import ROUNDED_PRODUCT, truncates_operands

_PRODUCTS: Final = ("matmul", "nn.conv2d", "nn.conv2d_weight_gradient")
_KEEPS_ROUNDED: Final = frozenset(
    "nn.relu nn.max_pool2d reshape transpose slice concatenate broadcast_to maximum minimum max min tile".split()
)
"""Operators whose results are among their inputs (or zero): rounded where those are."""
_MOVES: Final = ("nn.max_pool2d", "reshape", "transpose", "slice")
"""Those of one input that are kernels of their own, or none."""


def round_operands(module: IRModule, options: GraphOptions) -> IRModule:
    """Round the operands of large float32 products, where the target's tensor cores would cut bits off."""
    target = options.machine
    if not truncates_operands(target):
        return module
    return map_functions(module, lambda function: _Rounding(function).run(function))


class _Rounding:
    """One function: which values products read, and for each node of the old graph its new value."""

    def __init__(self, function: Function) -> None:
        self._order = post_order(function)
        self._read = {id(arg) for item in self._order if is_large_product(item) for arg in children(item)}
        for item in reversed(self._order):
            # What moves values may as well move rounded ones: whoever makes them rounds at no cost.
            if id(item) in self._read and isinstance(item, Call) and any(is_call_to(item, name) for name in _MOVES):
                self._read.add(id(item.args[0]))
        self._plain: dict[int, GraphExpr] = {}
        self._rounded: dict[int, GraphExpr] = {}
        self._exact: set[int] = set()

    def run(self, function: Function) -> Function:
        for item in self._order:
            self._visit(item)
        result = self._plain[id(function)]
        assert isinstance(result, Function)
        return result

    def _visit(self, item: GraphExpr) -> None:
        parts = [self._seen_by(item, child) for child in children(item)]
        new = with_children(item, parts)
        if new is not item:
            new = fill_type(new)
            new.type = new.type or item.type
        self._plain[id(item)] = new
        is_exact = self._keeps_rounded(item)
        if id(item) in self._read and not isinstance(item, Constant) and not is_exact:
            self._rounded[id(item)] = make("round_to_tf32", new, span=item.span)
            is_exact = True
        if is_exact:
            self._exact.add(id(item))

    def _seen_by(self, reader: GraphExpr, child: GraphExpr) -> GraphExpr:
        new = self._plain[id(child)]
        if isinstance(child, Constant):
            return constant(round_to_tf32(child.data)) if is_large_product(reader) else new
        return self._rounded.get(id(child), new) if self._reads_rounded(reader, child) else new

    def _reads_rounded(self, reader: GraphExpr, child: GraphExpr) -> bool:
        """Whether a node reads what is rounded: operators do, results of functions and branches stay as they are."""
        if isinstance(child, Var):
            return is_large_product(reader) or id(reader) in self._read
        return isinstance(reader, Call) and isinstance(reader.callee, Operator)

    def _keeps_rounded(self, item: GraphExpr) -> bool:
        """Whether a value has no low bits because what it is made of has none."""
        if not (isinstance(item, Call) and isinstance(item.callee, Operator) and item.callee.name in _KEEPS_ROUNDED):
            return False
        return bool(item.args) and all(id(arg) in self._exact and self._reads_rounded(item, arg) for arg in item.args)


def is_large_product(item: GraphExpr) -> bool:
    """Whether warp groups may compute a product; one whose size is not known may be large."""
    if not (isinstance(item, Call) and isinstance(item.callee, Operator)):
        return False
    if item.callee.name not in _PRODUCTS or item.tensor_type.dtype is not FLOAT32:
        return False
    shape, weight = static_shape(item), static_shape(item.args[1])
    if shape is None or weight is None:
        return True
    if isinstance(item.attributes, MatmulAttributes):
        depth = weight[-1] if item.attributes.transpose_b else weight[-2]
    elif isinstance(item.attributes, Conv2dWeightGradientAttributes):
        depth = prod(weight) // max(1, weight[item.attributes.data_layout.index("C")])
    else:
        assert isinstance(item.attributes, Conv2dAttributes)
        depth = prod(weight) // max(1, shape[item.attributes.data_layout.index("C")])
    return prod(shape) * depth >= ROUNDED_PRODUCT
