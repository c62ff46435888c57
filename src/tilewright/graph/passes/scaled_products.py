"""Products of 8-bit floats with scales, in the form that the target computes best.

Scales that do not change along the reduction are applied to its results (of a float32 product, where the processor does
not multiply 8-bit floats):

    qnn.scaled_matmul(a, b, scale_a, scale_b)     ->   qnn.matmul(a, transpose(b)) * (scale_a * transpose(scale_b))

Scales of blocks stay with the operator where warp groups multiply 8-bit floats: each step of theirs is a block, whose
sums are scaled in registers. Rows are filled up to whole tiles:

    qnn.scaled_matmul(a[100, 512], ...)   ->   slice(qnn.scaled_matmul(pad(a)[128, 512], ...), stop=100)

Elsewhere numbers are scaled before they meet, once for constants, and multiplied in float32:

    matmul(float32(a) * spread(scale_a), transpose(float32(b) * spread(scale_b)))
"""

from __future__ import annotations

from typing import Final

from tilewright.graph.ir.expr import Call, GraphExpr
from tilewright.graph.ir.rewrite import Bindings, P, Rule, apply_rules, make, static_shape
from tilewright.graph.ir.traverse import map_functions
from tilewright.graph.ops.common import constant_dim
from tilewright.graph.ops.scaled_products import ScaledMatmulAttributes
from tilewright.graph.options import GraphOptions
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.function import IRModule
from tilewright.target import Target

GROUP_ROWS: Final = 64
"""Rows of a warp group."""
GROUP_DEPTH: Final = 128
"""Steps of a warp group: those of a block."""
_LEAST_COLUMNS: Final = 64


def scaled_products(module: IRModule, options: GraphOptions) -> IRModule:
    """Spell out products with scales, but for those of blocks on warp groups."""
    machine = options.target
    rule = Rule("product with scales", P.op("qnn.scaled_matmul", name="root"), lambda b: _product(b, machine))
    return map_functions(module, lambda function: apply_rules(function, [rule]))


def _product(b: Bindings, machine: Target | None) -> GraphExpr | None:
    call = b.call("root")
    is_small = machine is not None and machine.has_float8_products
    by_blocks = machine is not None and is_small and machine.has_warp_group_products
    attributes = call.attributes
    assert isinstance(attributes, ScaledMatmulAttributes)
    rows, columns, scale_a, scale_b = (static_shape(item) for item in call.args)
    steps = call.args[2].tensor_type.shape
    if columns is None or scale_b is None or steps is None:
        return None
    if constant_dim(steps[1]) == 1 == scale_b[1]:
        return _scaled_after(call, attributes, columns[0], scale_b[0], is_small)
    if rows is None or scale_a is None:
        return None  # The operator's own computation takes any number of rows.
    fits = columns[0] % _LEAST_COLUMNS == 0 and rows[1] % GROUP_DEPTH == 0 and 0 not in (*rows, *columns)
    if by_blocks and fits and attributes.block_depth == GROUP_DEPTH:
        return _whole_rows(call, attributes, rows[0], scale_a[0])
    return _scaled_before(call, attributes, rows, columns)


def _scaled_after(
    call: Call, attributes: ScaledMatmulAttributes, columns: int, scales: int, is_small: bool
) -> GraphExpr:
    """`is_small`: the processor multiplies 8-bit floats as they are."""
    a, b, scale_a, scale_b = call.args
    if is_small:
        product = make("qnn.matmul", a, make("transpose", b, axes=(1, 0)), span=call.span)
    else:
        operands = (make("cast", item, dtype=FLOAT32, span=call.span) for item in (a, b))
        product = make("matmul", *operands, transpose_b=True, span=call.span)
    if scales not in (1, columns):
        scale_b = _spread(scale_b, 0, scales, attributes.block_columns, columns, 1)
    scale = make("multiply", scale_a, make("transpose", scale_b, axes=(1, 0)), span=call.span)
    return make("multiply", product, scale, span=call.span)


def _whole_rows(call: Call, attributes: ScaledMatmulAttributes, rows: int, scales: int) -> GraphExpr | None:
    """The product of whole tiles of rows; None where they are whole."""
    missing = -rows % GROUP_ROWS
    if not missing:
        return None
    a, b, scale_a, scale_b = call.args
    filled = make("pad", a, before=(0, 0), after=(missing, 0), value=0.0, span=call.span)
    if scales > 1:
        scale_a = make("pad", scale_a, before=(0, 0), after=(missing, 0), value=0.0, span=call.span)
    product = make(
        "qnn.scaled_matmul",
        *(filled, b, scale_a, scale_b),
        block_columns=attributes.block_columns,
        block_depth=attributes.block_depth,
        span=call.span,
    )
    columns = static_shape(call)
    assert columns is not None
    return make("slice", product, begin=(0, 0), end=(rows, columns[1]), strides=(1, 1), span=call.span)


def _scaled_before(
    call: Call, attributes: ScaledMatmulAttributes, rows: tuple[int, ...], columns: tuple[int, ...]
) -> GraphExpr:
    a, b, scale_a, scale_b = call.args
    left = _scaled(a, scale_a, 1, attributes.block_depth, rows)
    right = _scaled(b, scale_b, attributes.block_columns, attributes.block_depth, columns)
    return make("matmul", left, right, transpose_b=True, span=call.span)


def _scaled(operand: GraphExpr, scale: GraphExpr, block: int, block_depth: int, shape: tuple[int, ...]) -> GraphExpr:
    """The numbers that an operand stands for."""
    for axis, length in ((0, block), (1, block_depth)):
        count = static_shape(scale)
        assert count is not None
        if count[axis] not in (1, shape[axis]):
            scale = _spread(scale, axis, count[axis], length, shape[axis], count[1 - axis])
    return make("multiply", make("cast", operand, dtype=FLOAT32), scale)


def _spread(scale: GraphExpr, axis: int, count: int, block: int, size: int, other: int) -> GraphExpr:
    """Scales of blocks along an axis, one for each element of them; the last block may be a part."""
    before, after = (
        ((count, 1, other), (count, block, other)) if axis == 0 else ((other, count, 1), (other, count, block))
    )
    spread = make("broadcast_to", make("reshape", scale, shape=before), shape=after)
    whole = (count * block, other) if axis == 0 else (other, count * block)
    end = (size, other) if axis == 0 else (other, size)
    flat = make("reshape", spread, shape=whole)
    return flat if whole == end else make("slice", flat, begin=(0, 0), end=end, strides=(1, 1))
