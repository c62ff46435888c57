"""Products of two computed values of bytes, as in attention, become products of bytes.

Before:  quantize(matmul(scale_a * float(int(a) - zero_a), scale_b * float(int(b) - zero_b)))
After:   quantize(float(sums) * (scale_a * scale_b))
         sums = qnn.matmul(a, b) - zero_b * row_sums(a) - zero_a * column_sums(b) + depth * zero_a * zero_b

Only products whose result is quantised again: those of other attention are better part of one kernel with its softmax.
"""

from __future__ import annotations

import numpy as np

from tilewright.graph.ir.expr import Function, GraphExpr, constant
from tilewright.graph.ir.op import Operator
from tilewright.graph.ir.rewrite import Bindings, P, Rule, apply_rules, known_sizes, make
from tilewright.graph.ir.traverse import map_functions
from tilewright.graph.ops.contract import MatmulAttributes
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.integer_operands import GROUP, ShiftedBytes, first_columns, flipped, shifted_bytes
from tilewright.graph.passes.quantized_products import has_byte_products, known_value, scaled_integers
from tilewright.ir.dtype import FLOAT32, INT8, INT32, UINT8
from tilewright.ir.function import IRModule
from tilewright.target import Target

_MOST_DEPTH = 1 << 15
"""Products of two unsigned bytes that fit 32 bits when added up."""
_LEAST_DEPTH = 16
_LEAST_ROWS = 8
"""Rows from which on it pays to pack the columns that they meet."""


def computed_products(module: IRModule, options: GraphOptions) -> IRModule:
    """Multiply what is computed in bytes, and quantised again, as bytes."""
    target = options.target
    if target is None or not target.is_cpu or not has_byte_products(target):
        return module
    rules = _Rules(target).rules()

    def rewritten(function: Function) -> Function:
        return apply_rules(function, rules)

    result = map_functions(module, rewritten)
    assert isinstance(result, IRModule)
    return result


class _Rules:
    """The rules for one target."""

    def __init__(self, target: Target) -> None:
        self._lanes = target.lanes(32)
        self._is_mixed = target.has_vnni

    def rules(self) -> tuple[Rule, ...]:
        """All of them, tried in order at each node."""
        product = P.op("matmul", P.any("a"), P.any("b"), name="product")
        scaled = P.op(("divide", "multiply"), product, P.const("step"), name="scaled")
        return (Rule("product of computed bytes", P.op("round", scaled), self._product),)

    def _product(self, b: Bindings) -> GraphExpr | None:
        call, scaled = b.call("product"), b.call("scaled")
        assert isinstance(call.attributes, MatmulAttributes)
        left, right = scaled_integers(b["a"]), scaled_integers(b["b"])
        if left is None or right is None or call.attributes.transpose_a or not b.used_once("product"):
            return None
        rows, columns = shifted_bytes(left.integers), shifted_bytes(right.integers)
        if rows is None or columns is None or any(_zero(item) is None for item in (rows, columns)):
            return None
        if call.attributes.transpose_b:
            columns = ShiftedBytes(_turned(columns.data), columns.zero)
        if not _is_worthwhile(rows.data, columns.data):
            return None
        sums = make("cast", self._sums(*self._suited(rows, columns)), dtype=FLOAT32, span=call.span)
        product = make("multiply", sums, constant(np.float32(left.scale) * np.float32(right.scale)), span=call.span)
        assert isinstance(scaled.callee, Operator)
        return make("round", make(scaled.callee.name, product, b["step"], span=scaled.span))

    def _suited(self, rows: ShiftedBytes, columns: ShiftedBytes) -> tuple[ShiftedBytes, ShiftedBytes]:
        """Operands of signs that the processor multiplies: unsigned rows with signed columns, or both of one sign."""
        if self._is_mixed:
            rows = rows if rows.data.tensor_type.dtype is UINT8 else flipped(rows)
            return rows, columns if columns.data.tensor_type.dtype is INT8 else flipped(columns)
        if rows.data.tensor_type.dtype is not columns.data.tensor_type.dtype:
            # Columns are the fewer ones: scores have a row for each of them.
            columns = flipped(columns)
        return rows, columns

    def _sums(self, rows: ShiftedBytes, columns: ShiftedBytes) -> GraphExpr:
        """The product of shifted bytes, from that of the bytes as they are."""
        *_, depth, width = _sizes(columns.data)
        filled = [_padded(rows.data, (0, -depth % GROUP))]
        filled.append(_padded(columns.data, (-depth % GROUP, -width % self._lanes)))
        sums = first_columns(make("qnn.matmul", *filled), width)
        zeros = [_zero(item) or 0 for item in (rows, columns)]
        for item, axis, zero in ((rows, -1, zeros[1]), (columns, -2, zeros[0])):
            if zero:
                rank = item.data.tensor_type.rank
                assert rank is not None
                wide = make("cast", item.data, dtype=INT32)
                totals = make("sum", wide, axes=(rank + axis,), keepdims=True)
                sums = make("subtract", sums, make("multiply", totals, constant(np.int32(zero))))
        if all(zeros):
            sums = make("add", sums, constant(np.int32(depth * zeros[0] * zeros[1])))
        return sums


def _zero(item: ShiftedBytes) -> int | None:
    """The zero point of bytes, if it is known."""
    if item.zero is None:
        return 0
    value = known_value(item.zero)
    return None if value is None else int(value.reshape(()))


def _sizes(matrix: GraphExpr) -> tuple[int, ...]:
    sizes = known_sizes(matrix)
    assert sizes is not None
    return tuple(size if isinstance(size, int) else -1 for size in sizes)


def _is_worthwhile(rows: GraphExpr, columns: GraphExpr) -> bool:
    """Whether there is a matrix of columns for each matrix of rows, of known size, that enough rows meet."""
    left, right = known_sizes(rows), known_sizes(columns)
    if left is None or right is None or len(left) != len(right) or left[:-2] != right[:-2] or len(left) < 2:
        return False
    count, (depth, width) = left[-2], right[-2:]
    if not isinstance(depth, int) or not isinstance(width, int) or not _LEAST_DEPTH <= depth <= _MOST_DEPTH:
        return False
    return width > 0 and (not isinstance(count, int) or count >= _LEAST_ROWS)


def _turned(matrix: GraphExpr) -> GraphExpr:
    rank = matrix.tensor_type.rank
    assert rank is not None
    return make("transpose", matrix, axes=(*range(rank - 2), rank - 1, rank - 2))


def _padded(matrix: GraphExpr, after: tuple[int, int]) -> GraphExpr:
    """A matrix with rows and columns of zeros after its own."""
    rank = matrix.tensor_type.rank
    assert rank is not None
    if not any(after):
        return matrix
    return make("pad", matrix, before=(0,) * rank, after=(*(0,) * (rank - 2), *after))
