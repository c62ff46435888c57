"""What passes that compute in another float type share: each node in its new type, and conversions where types meet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from tilewright.graph.interpreter import to_bfloat16
from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr, Tuple, TupleGet
from tilewright.graph.ir.infer import fill_type
from tilewright.graph.ir.op import Operator
from tilewright.graph.ir.rewrite import make
from tilewright.graph.ir.traverse import children, post_order, with_children
from tilewright.ir.dtype import BFLOAT16, FLOAT16, DataType
from tilewright.ir.types import TensorType, TupleType, Type


def element_type(item: GraphExpr) -> DataType | None:
    """The type of a tensor's elements; None for what is no tensor."""
    return item.type.dtype if isinstance(item.type, TensorType) else None


class FloatTypes(ABC):
    """One run: for each node of the old graph its new value, and for those that exist in both types the other one."""

    def __init__(self, types: tuple[DataType, DataType]) -> None:
        self._types = types
        self._new: dict[int, GraphExpr] = {}
        self._cast: dict[tuple[int, DataType], GraphExpr] = {}
        self._kept: list[GraphExpr] = []

    @abstractmethod
    def computed_in(self, item: Call) -> DataType | None:
        """The type that an operator of the old graph computes in; None for the one it was written for."""

    def run(self, function: Function) -> Function:
        """The function in its new types."""
        for item in post_order(function):
            self._new[id(item)] = self._converted(item)
        result = self._new[id(function)]
        assert isinstance(result, Function)
        return result

    def new(self, item: GraphExpr) -> GraphExpr:
        """The new value of a node."""
        return self._new[id(item)]

    def converted_call(self, item: Call, dtype: DataType) -> GraphExpr:
        """An operator that computes in a type."""
        return self.typed_call(item, [dtype] * len(item.args))

    def typed_call(self, item: Call, dtypes: Sequence[DataType]) -> GraphExpr:
        """An operator that reads its inputs in these types."""
        pairs = zip(item.args, dtypes, strict=True)
        return self._typed(item, [self.as_type(self._new[id(arg)], dtype) for arg, dtype in pairs])

    def _converted(self, item: GraphExpr) -> GraphExpr:
        if isinstance(item, Call) and isinstance(item.callee, Operator):
            dtype = self.computed_in(item)
            if dtype is not None:
                return self.converted_call(item, dtype)
        if isinstance(item, TupleGet):
            return self._typed(item, [self._new[id(child)] for child in children(item)])
        # Everything else sees the types it was written for.
        return self._typed(item, [self._restored(self._new[id(child)], child.type) for child in children(item)])

    def _typed(self, item: GraphExpr, parts: list[GraphExpr]) -> GraphExpr:
        rebuilt = with_children(item, parts)
        if rebuilt is not item:
            fill_type(rebuilt)
            if rebuilt.type is None:
                rebuilt.type = item.type
        return rebuilt

    def _restored(self, new: GraphExpr, expected: Type | None) -> GraphExpr:
        """A new value in its old type."""
        if isinstance(expected, TensorType):
            return self.as_type(new, expected.dtype)
        if isinstance(expected, TupleType) and new.type is not expected:
            parts = [fill_type(TupleGet(new, number)) for number in range(len(expected.items))]
            pairs = zip(parts, expected.items, strict=True)
            return fill_type(Tuple(tuple(self._restored(part, kind) for part, kind in pairs)))
        return new

    def as_type(self, item: GraphExpr, dtype: DataType) -> GraphExpr:
        """A value of one of the two types in the other one."""
        element = element_type(item)
        if element is dtype or element not in self._types or dtype not in self._types:
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
    """A float constant in another type; what is beyond the range of halves becomes their largest number."""
    if dtype is BFLOAT16:
        return Constant(to_bfloat16(item.data), BFLOAT16)
    if dtype is FLOAT16:
        largest = float(np.finfo(np.float16).max)
        inside = np.where(np.isinf(item.data), item.data, np.clip(item.data, -largest, largest))
        return Constant(np.asarray(inside, np.float16), FLOAT16)
    return Constant(np.asarray(item.data, dtype.numpy()), dtype)
