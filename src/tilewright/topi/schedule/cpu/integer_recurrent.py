"""The schedule of recurrent layers with weights of bytes: dot products with the digits of the state, step by step."""

from __future__ import annotations

from tilewright.ir.expr import PrimExpr, const_value
from tilewright.ir.visit import find_all
from tilewright.tir.annotations import Anchor
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.index_map import IndexMap
from tilewright.tir.schedule.handles import BlockHandle
from tilewright.topi.intrinsics.dot import DotInstruction, dot_instruction
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.cpu.anchors import blocks_of_kind
from tilewright.topi.schedule.cpu.dot_product import schedule_dot_tile
from tilewright.topi.schedule.cpu.recurrent import rows_together, spread_panels
from tilewright.topi.schedule.packing import constant_parameters
from tilewright.topi.schedule.template import Template

_DIGITS = 2
_MOST_VECTORS = 8
"""Vectors of a gate: more leave a larger part of the last panel empty."""
_OUTER = 2
"""The loops over steps and sequences."""


def _matches(context: ScheduleContext) -> str | None:
    """A recurrence whose constant weights are bytes that the processor multiplies with signed ones."""
    blocks = blocks_of_kind(context, Anchor.INTEGER_RECURRENCE)
    if not blocks:
        return f"no {Anchor.INTEGER_RECURRENCE} block"
    weights, instruction = _weights(context, blocks[0]), _instruction(context, blocks[0])
    if weights is None or instruction is None:
        return "no constant weights of bytes that this processor multiplies with signed ones"
    depth = const_value(weights.buffer.shape[2])
    return None if depth is not None and depth % instruction.group == 0 else "the depth is no whole number of groups"


def _weights(context: ScheduleContext, product: BlockHandle) -> BufferLoad | None:
    constants = constant_parameters(context.sch.func)
    loads = find_all(context.block(product).body, BufferLoad)
    return next((item for item in loads if item.buffer in constants), None)


def _instruction(context: ScheduleContext, product: BlockHandle) -> DotInstruction | None:
    weights = _weights(context, product)
    loads = find_all(context.block(product).body, BufferLoad)
    rows = [
        item for item in loads if item.dtype.bits == 8 and weights is not None and item.buffer is not weights.buffer
    ]
    return None if weights is None or not rows else dot_instruction(context.target, rows[0].dtype, weights.dtype)


def schedule_integer_recurrence(context: ScheduleContext) -> None:
    """Compute each panel of the products where the step uses it; the weights lie in that order.

    Before:  for t:  digits = bytes of h[t-1]
                     for b, g, d, n, k: product[t, b, g, d, n] += digits[b, d, k] * w[g, n, k]
                     for b, n: h[t, b, n] = step(...)
    After:   for t:  digits = bytes of h[t-1];  parallel chunk: zigzag panel:
                       acc[b, g, d, l] = 0
                       for k: acc[b, g, d, l] = dot(acc[b, g, d, l], digits[b, d, 4 k ..], packed[panel, k, g, l, ..])
                       h[t, b, panel*L + l] = step(acc[b, :, :, l], ...)
    """
    sch = context.sch
    products = blocks_of_kind(context, Anchor.INTEGER_RECURRENCE)
    steps = {consumer.name for handle in products for consumer in sch.get_consumers(handle)}
    for handle in sch.blocks():
        if handle.name.endswith("_first"):
            sch.compute_inline(handle)
        elif handle not in products and handle.name not in steps and not context.block(handle).is_reduction:
            _vectorize(context, handle)
    gates = max(_gates(context, handle) for handle in products)
    registers = context.target.vector_registers
    # Sums of all gates and digits, the weights of a gate, and the digits: all in registers. One width for all products:
    # they share weights, which have one arrangement.
    vectors = max(1, min(_MOST_VECTORS, (registers - _DIGITS - 2) // (gates * _DIGITS)))
    for handle in products:
        _schedule_product(context, handle, vectors)


def _gates(context: ScheduleContext, product: BlockHandle) -> int:
    return const_value(context.block(product).writes[0].buffer.shape[2]) or 1


def _schedule_product(context: ScheduleContext, product: BlockHandle, vectors: int) -> None:
    """The panels of one product, in the loops of what uses it."""
    sch = context.sch
    (consumer,) = sch.get_consumers(product)
    weights, instruction = _weights(context, product), _instruction(context, product)
    assert weights is not None and instruction is not None
    lanes, group = instruction.lanes, instruction.group
    depth, width = const_value(weights.buffer.shape[2]) or 0, vectors * lanes
    # Each gate is a stream of its own, where several help prefetchers.
    streams = _gates(context, product) <= context.cpu.streams.count

    def arrange(gate: PrimExpr, row: PrimExpr, k: PrimExpr) -> tuple[PrimExpr, ...]:
        outer = (gate, k // group) if streams else (k // group, gate)
        return (row // width, *outer, row % width, k % group)

    if constant_parameters(sch.func)[weights.buffer] not in context.packing:
        context.pack(product, weights.buffer, IndexMap.of(arrange, 3))
    else:
        depth = (const_value(weights.buffer.shape[2 if streams else 1]) or 0) * group
    # The last panel is padded: all panels are computed alike, without guards.
    sch.over_compute(product, 4, width)
    _, batch, column = sch.get_loops(consumer)
    panel, vector, lane = sch.split(column, [None, vectors, lanes])
    rows = rows_together(context, batch, _gates(context, product) * _DIGITS * vectors)
    batch_outer, batch_inner = sch.split(batch, [None, rows])
    sch.reorder(panel, batch_outer, batch_inner, vector, lane)
    sch.compute_at(product, batch_outer)
    steps = instruction.steps if depth % (group * instruction.steps) == 0 else 1
    schedule_dot_tile(context, product, batch_outer, instruction, steps)
    sch.unroll(batch_inner)
    sch.unroll(vector)
    sch.vectorize(lane)
    spread_panels(context, product, panel)


def _vectorize(context: ScheduleContext, handle: BlockHandle) -> None:
    """What is computed for each element of a state, in vectors."""
    sch = context.sch
    loops = sch.get_loops(handle)
    if len(loops) > _OUTER:
        _, lane = sch.split(loops[-1], [None, context.lanes(handle)])
        sch.vectorize(lane)


TEMPLATE = Template(
    "integer-recurrence",
    "inside the loop over time, dot products of a panel of weights with the digits of the state",
    _matches,
    schedule_integer_recurrence,
)
