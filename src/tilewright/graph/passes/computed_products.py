"""Products of two computed values of bytes, as in attention, become products of integers.

Before:  quantize(matmul(scale_a * float(int(a) - zero_a), scale_b * float(int(b) - zero_b)))
After:   quantize(float(sums) * (scale_a * scale_b))
         sums = qnn.matmul(a, b) - zero_b * row_sums(a) - zero_a * column_sums(b) + depth * zero_a * zero_b

Where bytes do not pay (GPUs, few rows), products have the zero points taken off first. Up to a depth of 258 they are of
floats, which represent all their sums:

         sums = matmul(float(int(a) - zero_a), float(int(b) - zero_b))

Only products whose result is quantised again: those of other attention are better part of one kernel with its softmax.
"""

from __future__ import annotations

import numpy as np

from tilewright.graph.ir.expr import Call, GraphExpr, constant
from tilewright.graph.ir.infer import fill_type
from tilewright.graph.ir.op import Operator
from tilewright.graph.ir.rewrite import Bindings, P, Rule, apply_rules, known_sizes, make
from tilewright.graph.ir.traverse import map_functions
from tilewright.graph.ops.contract import MatmulAttributes
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.integer_operands import Operands, ShiftedBytes, first_columns, flipped, shifted_bytes
from tilewright.graph.passes.quantized_products import known_value, scaled_integers, sums_are_floats
from tilewright.ir.dtype import FLOAT32, INT8, INT16, INT32, UINT8
from tilewright.ir.function import IRModule
from tilewright.target import Target

_MOST_DEPTH = 1 << 15
"""Products of two unsigned bytes that fit 32 bits when added up."""
_LEAST_DEPTH = 16
_LEAST_ROWS = 8
"""Rows from which on it pays to pack the columns that they meet."""


def computed_products(module: IRModule, options: GraphOptions) -> IRModule:
    """Multiply what is computed in bytes, and quantised again, as integers (sums of integers are no halves)."""
    target = options.target
    if target is None or options.half is not None:
        return module
    rules = _Rules(target).rules()
    return map_functions(module, lambda function: apply_rules(function, rules))


class _Rules:
    """The rules for one target."""

    def __init__(self, target: Target) -> None:
        self._operands = Operands.of(target)
        self._is_cpu = target.is_cpu

    def rules(self) -> tuple[Rule, ...]:
        """All of them, tried in order at each node."""
        product = P.op("matmul", P.any("a"), P.any("b"), name="product")
        scaled = P.op(("divide", "multiply"), product, P.const("step"), name="scaled")
        return (Rule("product of computed bytes", P.op("round", scaled), self._product),)

    def _product(self, b: Bindings) -> GraphExpr | None:
        call, scaled = b.call("product"), b.call("scaled")
        assert isinstance(call.attributes, MatmulAttributes)
        left, right = scaled_integers(b["a"]), scaled_integers(b["b"])
        if left is None or right is None or not b.used_once("product"):
            return None
        sums = self._of_bytes(call, left.integers, right.integers) or _of_numbers(call, left.integers, right.integers)
        if sums is None:
            return None
        product = make("multiply", sums, constant(np.float32(left.scale) * np.float32(right.scale)), span=call.span)
        assert isinstance(scaled.callee, Operator)
        return make("round", make(scaled.callee.name, product, b["step"], span=scaled.span))

    def _of_bytes(self, call: Call, left: GraphExpr, right: GraphExpr) -> GraphExpr | None:
        """The sums, as floats, by products that the processor has instructions for, where they pay."""
        assert isinstance(call.attributes, MatmulAttributes)
        rows, columns = shifted_bytes(left), shifted_bytes(right)
        if not self._is_cpu or rows is None or columns is None or call.attributes.transpose_a:
            return None
        if any(_zero(item) is None for item in (rows, columns)):
            return None
        if call.attributes.transpose_b:
            columns = ShiftedBytes(_turned(columns.data), columns.zero)
        if not _is_worthwhile(rows.data, columns.data):
            return None
        if self._operands.columns is INT16 and sums_are_floats(_sizes(columns.data)[-2]):
            return None
        return make("cast", self._sums(*self._suited(rows, columns)), dtype=FLOAT32, span=call.span)

    def _suited(self, rows: ShiftedBytes, columns: ShiftedBytes) -> tuple[ShiftedBytes, ShiftedBytes]:
        """Operands of signs that the processor multiplies: unsigned rows with signed columns, or both of one sign."""
        if self._operands.columns is INT16:
            return self._operands.suited(rows), self._operands.suited(columns)
        if self._operands.rows == (UINT8,):
            rows = self._operands.suited(rows)
            return rows, columns if columns.data.tensor_type.dtype is INT8 else flipped(columns)
        if rows.data.tensor_type.dtype is not columns.data.tensor_type.dtype:
            # Columns are the fewer ones: scores have a row for each of them.
            columns = flipped(columns)
        return rows, columns

    def _sums(self, rows: ShiftedBytes, columns: ShiftedBytes) -> GraphExpr:
        """The product of shifted bytes, from that of the bytes as they are."""
        *_, depth, width = _sizes(columns.data)
        missing = -depth % self._operands.group
        filled = [_padded(rows.data, (0, missing))]
        filled.append(_padded(columns.data, (missing, -width % self._operands.lanes)))
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


def _of_numbers(call: Call, left: GraphExpr, right: GraphExpr) -> GraphExpr | None:
    """The sums, as floats, of products of the integers that bytes stand for; None where 32 bits may not hold them."""
    attributes, sizes = call.attributes, known_sizes(left)
    assert isinstance(attributes, MatmulAttributes)
    if sizes is None or len(sizes) < 1:
        return None
    depth = sizes[-2 if attributes.transpose_a and len(sizes) > 1 else -1]
    if not isinstance(depth, int) or depth > _MOST_DEPTH:
        return None
    exact = FLOAT32 if sums_are_floats(depth) else INT32
    operands = [item if exact is INT32 else make("cast", item, dtype=FLOAT32) for item in (left, right)]
    product = Call(call.callee, tuple(operands), attributes)
    product.span = call.span
    fill_type(product)
    return product if exact is FLOAT32 else make("cast", product, dtype=FLOAT32, span=call.span)


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
