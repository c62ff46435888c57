"""Functions of one byte that take long to compute become tables of their 256 results, for CPUs.

Before:  uint8(clip(round(gelu(float(int(x) - zero) * scale) / step), 0, 255))            x: bytes
After:   take(table, x)

All that is computed of the same bytes is one function of them, however many times it is quantised on its way. The table
holds what the interpreter computes. Arithmetic alone (a scale, a clamp) is quicker than looking up; products of fixed
point are not where tables lie in registers, and no kernel has the bytes there: those of inputs.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tilewright.graph.interpreter import apply_operator
from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr, Var, constant
from tilewright.graph.ir.infer import fill_type
from tilewright.graph.ir.op import Operator
from tilewright.graph.ir.rewrite import make
from tilewright.graph.ir.traverse import children, map_functions, post_order, rewrite
from tilewright.graph.options import GraphOptions
from tilewright.ir.dtype import INT8, INT16, UINT8
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType
from tilewright.support.order import children_first

Array = npt.NDArray[Any]
_SLOW: Final = frozenset(
    """exp exp2 log log2 log10 log1p expm1 sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf sigmoid power
    nn.gelu nn.softplus nn.elu nn.selu""".split()
)
"""Elementwise operators that take many more instructions than a load."""
_RESCALING: Final = frozenset(["qnn.high_product"])
"""Those that take more than a place in registers does."""
_RESULTS: Final = (INT8, UINT8, INT16)
"""Types of results that are looked up: what quantised layers read."""


def byte_tables(module: IRModule, options: GraphOptions) -> IRModule:
    """Look functions of bytes up that take long to compute."""
    if not options.machine.is_cpu:
        return module
    of_inputs = _SLOW | _RESCALING if options.machine.has_byte_tables else _SLOW
    return map_functions(module, lambda function: _Functions(function, of_inputs).rewritten())


class _Functions:
    """The functions of bytes in a function of the graph."""

    def __init__(self, function: Function, of_inputs: frozenset[str]) -> None:
        self._function = function
        self._of_inputs = of_inputs
        """Operators that take long on bytes that a kernel reads for them."""
        self._nodes = list(post_order(function.body))
        self._source: dict[int, GraphExpr] = {}
        """The bytes that a node is a function of, by the node: itself if it is bytes, and of nothing else."""
        self._slow: set[int] = set()
        """Nodes with slow operators between them and their bytes."""
        for node in self._nodes:
            self._visit(node)

    def rewritten(self) -> Function:
        """The function with tables for slow functions of bytes."""
        if not any(self._is_looked_up(node) for node in self._nodes):
            return self._function
        now: dict[int, GraphExpr] = {}

        def replaced(old: GraphExpr, rebuilt: GraphExpr) -> GraphExpr:
            if rebuilt.type is None:
                fill_type(rebuilt)
            if isinstance(old, Call) and self._is_looked_up(old):
                rebuilt = self._looked_up(old, now[id(self._source[id(old)])])
            now[id(old)] = rebuilt
            return rebuilt

        result = rewrite(self._function, replaced)
        assert isinstance(result, Function)
        return result

    def _is_looked_up(self, node: GraphExpr) -> bool:
        return id(node) in self._slow and node.tensor_type.dtype in _RESULTS

    def _visit(self, node: GraphExpr) -> None:
        source = self._common_source(node)
        if source is not None:
            self._source[id(node)] = source
            assert isinstance(node, Call) and isinstance(node.callee, Operator)
            slow = self._of_inputs if isinstance(source, Var) else _SLOW
            if node.callee.name in slow or any(id(item) in self._slow for item in node.args):
                self._slow.add(id(node))
        elif isinstance(node.type, TensorType) and node.type.dtype in (INT8, UINT8):
            self._source[id(node)] = node

    def _common_source(self, node: GraphExpr) -> GraphExpr | None:
        """The bytes that all operands of an elementwise operator are functions of, element by element."""
        if not isinstance(node, Call) or not isinstance(node.callee, Operator) or not node.callee.elementwise:
            return None
        values = [item for item in node.args if not (isinstance(item, Constant) and item.data.size == 1)]
        sources = {id(self._source.get(id(item))): self._source.get(id(item)) for item in values}
        shape = node.tensor_type.shape
        if len(sources) != 1 or shape is None or any(item.tensor_type.shape != shape for item in values):
            return None
        return next(iter(sources.values()))

    def _looked_up(self, node: Call, source: GraphExpr) -> GraphExpr:
        """A function of bytes, looked up for those that `source` is now."""
        is_unsigned = source.tensor_type.dtype is UINT8
        place = source if is_unsigned else make("cast", source, dtype=UINT8, span=node.span)
        return make("take", constant(self._table(node)), place, axis=0, mode="inside", span=node.span)

    def _table(self, node: Call) -> Array:
        """What a function gives for each byte, in the order of bytes without a sign."""
        source = self._source[id(node)]
        bytes_in_order = np.arange(256).astype(np.uint8)
        values: dict[int, Array] = {id(source): bytes_in_order.view(source.tensor_type.dtype.numpy())}
        roots: list[GraphExpr] = [node]
        for item in children_first(roots, lambda inner: () if inner is source else children(inner)):
            if item is source:
                continue
            if isinstance(item, Constant):
                values[id(item)] = item.data.reshape(())
                continue
            assert isinstance(item, Call)
            parts = [values[id(part)] for part in item.args]
            one = Call(item.callee, tuple(constant(part) for part in parts), item.attributes)
            fill_type(one)
            values[id(item)] = np.asarray(apply_operator(one, list(parts)))
        return values[id(node)]
