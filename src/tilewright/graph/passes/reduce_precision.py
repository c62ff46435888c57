"""Models computed in half precision: products in float16 or bfloat16, and what lies between them.

Before:  x (float32) -> conv2d(x, w) -> + b -> relu -> ... -> softmax -> y (float32)
After:   x -> cast -> conv2d(float16) -> + b -> relu -> ... -> softmax -> cast -> y

Products take their operands in half precision and add up in float32. Operators that neither grow values much nor lose
digits follow their inputs: elementwise ones, pools, moves, and softmax and norms, which compute in float32 inside. The
rest (exponentials, quotients, powers, long sums, recurrent layers) stays in float32. Inputs and results keep their
types; constants are rounded at compile time.
"""

from __future__ import annotations

import numpy as np

from tilewright.graph.interpreter import to_bfloat16
from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr, Tuple, TupleGet
from tilewright.graph.ir.infer import fill_type
from tilewright.graph.ir.op import Operator
from tilewright.graph.ir.rewrite import make
from tilewright.graph.ir.traverse import children, map_functions, post_order, with_children
from tilewright.graph.options import GraphOptions
from tilewright.ir.dtype import BFLOAT16, FLOAT16, FLOAT32, DataType
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType, TupleType, Type

PRODUCTS = frozenset(["matmul", "nn.conv2d", "nn.conv2d_transpose", "nn.attention"])
"""Operators whose float32 inputs become halves."""
FOLLOWERS = frozenset(
    "add subtract multiply maximum minimum negative abs clip where sign nn.relu nn.leaky_relu nn.prelu nn.elu nn.selu "
    "nn.hard_sigmoid nn.gelu sigmoid tanh erf concatenate split reshape transpose slice pad tile take broadcast_to "
    "assume_shape nn.max_pool2d nn.avg_pool2d nn.softmax nn.layer_norm mean max min".split()
)
"""Operators that compute in half precision where what they read is."""
HALVES = (FLOAT16, BFLOAT16)


def reduce_precision(module: IRModule, options: GraphOptions) -> IRModule:
    """Compute float32 models in half precision where that is safe."""
    dtype = options.half
    if dtype is None:
        return module
    result = map_functions(module, lambda function: _Reduce(dtype).run(function))
    assert isinstance(result, IRModule)
    return result


def _element(item: GraphExpr) -> DataType | None:
    return item.type.dtype if isinstance(item.type, TensorType) else None


class _Reduce:
    """One run: for each node of the old graph its new value, and for those that exist in both types the other one."""

    def __init__(self, dtype: DataType) -> None:
        self._dtype = dtype
        self._new: dict[int, GraphExpr] = {}
        self._cast: dict[tuple[int, DataType], GraphExpr] = {}
        self._kept: list[GraphExpr] = []

    def run(self, function: Function) -> Function:
        for item in post_order(function):
            self._new[id(item)] = self._converted(item)
        result = self._new[id(function)]
        assert isinstance(result, Function)
        return result

    def _converted(self, item: GraphExpr) -> GraphExpr:
        if isinstance(item, Call) and isinstance(item.callee, Operator) and self._is_half(item):
            args = [self._as(self._new[id(arg)], self._dtype) for arg in item.args]
            return self._typed(item, args)
        if isinstance(item, TupleGet):
            return self._typed(item, [self._new[id(child)] for child in children(item)])
        # Everything else sees the types it was written for.
        return self._typed(item, [self._original(child) for child in children(item)])

    def _typed(self, item: GraphExpr, parts: list[GraphExpr]) -> GraphExpr:
        rebuilt = with_children(item, parts)
        if rebuilt is not item:
            fill_type(rebuilt)
            if rebuilt.type is None:
                rebuilt.type = item.type
        return rebuilt

    def _is_half(self, item: Call) -> bool:
        """Whether an operator computes in half precision."""
        assert isinstance(item.callee, Operator)
        name = item.callee.name
        floats = [arg for arg in item.args if _element(arg) is FLOAT32]
        if not floats:
            return False
        if name in PRODUCTS:
            return True
        moving = [arg for arg in floats if not isinstance(arg, Constant)]
        return name in FOLLOWERS and any(_element(self._new[id(arg)]) is self._dtype for arg in moving)

    def _original(self, child: GraphExpr) -> GraphExpr:
        """The new value of a node in its old type."""
        return self._restored(self._new[id(child)], child.type)

    def _restored(self, new: GraphExpr, expected: Type | None) -> GraphExpr:
        if isinstance(expected, TensorType):
            return self._as(new, expected.dtype)
        if isinstance(expected, TupleType) and new.type is not expected:
            parts = [fill_type(TupleGet(new, number)) for number in range(len(expected.items))]
            pairs = zip(parts, expected.items, strict=True)
            return fill_type(Tuple(tuple(self._restored(part, kind) for part, kind in pairs)))
        return new

    def _as(self, item: GraphExpr, dtype: DataType) -> GraphExpr:
        """A float value in another float type."""
        element = _element(item)
        if element is dtype or element not in (FLOAT32, self._dtype) or dtype not in (FLOAT32, self._dtype):
            return item
        key = (id(item), dtype)
        cached = self._cast.get(key)
        if cached is None:
            if isinstance(item, Constant):
                cached = rounded(item, dtype)
            else:
                cached = make("cast", item, dtype=dtype, span=item.span)
            self._cast[key] = cached
            self._kept.append(item)
        return cached


def rounded(item: Constant, dtype: DataType) -> Constant:
    """A float32 constant in another type; what is beyond its range becomes its largest number."""
    if dtype is BFLOAT16:
        return Constant(to_bfloat16(item.data), BFLOAT16)
    if dtype is FLOAT16:
        largest = float(np.finfo(np.float16).max)
        inside = np.where(np.isinf(item.data), item.data, np.clip(item.data, -largest, largest))
        return Constant(np.asarray(inside, np.float16), FLOAT16)
    return Constant(np.asarray(item.data, dtype.numpy()), dtype)
