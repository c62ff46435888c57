"""CNTK's operators on sequences that need no loop: shifts by steps, unpacking, parts of sequences."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.frontend.cntk.context import Operator, Value, operator
from tilewright.frontend.cntk.model import Model, PrimitiveFunction
from tilewright.frontend.core.builder import dtype_of, evaluate, sizes_of
from tilewright.graph.ir.dimensions import Size, add, subtract
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UnsupportedError, UserError

Bounds = tuple[int, int | None]
"""Where a part of a sequence begins and ends, as slices of Python do."""


@operator("PastValue", "FutureValue")
def delayed(op: Operator) -> Value:
    """A sequence some steps later (or earlier), with an initial value where there is none."""
    x, initial = op.inputs[:2]
    offset = int(op.attribute("offset", 1))
    if not x.has_sequence or not x.has_batch or offset < 1:
        raise UnsupportedError(f"{op.kind} by {offset} steps of a value that is no sequence")
    sizes = sizes_of(x.data)
    steps = sizes[1]
    first = initial_state(op, initial, x, (sizes[0], offset))
    if isinstance(steps, int) and steps <= offset:
        return x.with_data(op.builder.slice_axis(first, 1, 0, steps))
    if op.kind == "PastValue":
        kept = op.builder.slice_axis(x.data, 1, 0, subtract(steps, offset))
        return x.with_data(op.builder.concatenate([first, kept], 1))
    kept = op.builder.slice_axis(x.data, 1, offset, steps)
    return x.with_data(op.builder.concatenate([kept, first], 1))


def initial_state(op: Operator, initial: Value, like: Value, leading: tuple[Size, ...]) -> GraphExpr:
    """An initial value for each sample and step, in the shape of another value."""
    data = initial.data
    if initial.has_sequence:
        raise UnsupportedError("an initial state that is a sequence")
    missing = like.rank - initial.rank
    batch = initial.leading if initial.has_batch else (1,)
    wide = op.builder.reshape(data, (*batch, *(1,) * (len(leading) - 1), *(1,) * missing, *initial.shape))
    return op.builder.cast(op.builder.broadcast_to(wide, (*leading, *like.shape)), dtype_of(like.data))


@operator("ReconcileDynamicAxis")
def reconcile(op: Operator) -> Value:
    """The first input with the samples and steps of the second."""
    x, like = op.inputs[:2]
    if x.dynamic == like.dynamic:
        return x
    tensors, _ = op.aligned([x, Value(like.data, like.has_batch, like.has_sequence)])
    data = op.builder.reshape(tensors[0], (*sizes_of(tensors[0])[: like.dynamic], *x.shape))
    return Value(op.builder.broadcast_to(data, (*like.leading, *x.shape)), like.has_batch, like.has_sequence)


@operator("UnpackSequence")
def unpack(op: Operator) -> list[Value]:
    """The steps as a dimension, and which of them are there: all."""
    x = op.x
    if not x.has_sequence:
        raise UserError("UnpackSequence of a value that is no sequence")
    ones = op.builder.filled(1, x.leading, dtype_of(x.data))
    return [Value(x.data, x.has_batch), Value(ones, x.has_batch)]


@operator("ToSequence", "ToSequenceLike")
def to_sequence(op: Operator) -> Value:
    """The first dimension as steps."""
    x = op.x
    if op.kind == "ToSequence" and len(op.inputs) > 1 and evaluate(op.input(1).data) is None:
        raise UnsupportedError("sequences of different lengths", hint="evaluate sequences of one length at a time")
    if x.has_sequence or not x.rank:
        raise UserError(f"{op.kind} of a value that is a sequence already, or has no dimensions")
    return Value(x.data, x.has_batch, True)


@operator("GatherPacked", "PackedIndex", "Where")
def packed(op: Operator) -> Value:
    """Parts of sequences that data decides."""
    raise UnsupportedError(
        "a part of each sequence that is chosen by data", hint="sequences of one call have one length here"
    )


# Parts of sequences by place: first, last and ranges are made of shifted zeros


def positions(model: Model, uid: str) -> Bounds | None:
    """The steps where a flag made of shifted zeros is 1; None if it is made of anything else."""
    found = model.owner(model.resolve(uid))
    if found is None:
        return None
    function, _ = found
    match function.operator:
        case "PastValue" | "FutureValue":
            source = model.owner(model.resolve(function.inputs[0]))
            offset = int(function.attributes.get("offset", 1))
            if (
                source is None
                or source[0].operator != "ReconcileDynamicAxis"
                or _number(model, function.inputs[1]) != 1
            ):
                return None
            if _number(model, source[0].inputs[0]) != 0:
                return None
            return (0, offset) if function.operator == "PastValue" else (-offset, None)
        case "Minus":
            inner = positions(model, function.inputs[1])
            if inner is None or _number(model, function.inputs[0]) != 1:
                return None
            begin, end = inner
            # What is not among the first is after them, what is not among the last before.
            return (0, begin) if end is None else (end, None) if begin == 0 else None
        case "ElementTimes":
            parts = [positions(model, item) for item in function.inputs]
            if None in parts:
                return None
            begins = [part[0] for part in parts if part is not None and part[0] != 0]
            ends = [part[1] for part in parts if part is not None and part[1] is not None]
            return (
                (begins[0] if begins else 0, ends[0] if ends else None) if len(begins) < 2 and len(ends) < 2 else None
            )
    return None


def _number(model: Model, uid: str) -> float | None:
    variable = model.variables.get(model.resolve(uid))
    if variable is None or variable.value is None or np.size(variable.value) != 1:
        return None
    return float(np.asarray(variable.value).ravel()[0])


def gathered(
    model: Model, function: PrimitiveFunction, value: Callable[[str], Value], op: Callable[[list[Value]], Operator]
) -> Value | None:
    """A part of each sequence by place: `GatherPacked(x, PackedIndex(x, Where(flags)))`; None if data decides."""
    index = model.owner(model.resolve(function.inputs[1]))
    if index is None or index[0].operator != "PackedIndex":
        return None
    where = model.owner(model.resolve(index[0].inputs[1]))
    if where is None or where[0].operator != "Where":
        return None
    bounds = positions(model, where[0].inputs[0])
    if bounds is None:
        return None
    x = value(function.inputs[0])
    steps = x.leading[-1]
    begin = bounds[0] if bounds[0] >= 0 else add(steps, bounds[0])
    end = steps if bounds[1] is None else bounds[1] if bounds[1] >= 0 else add(steps, bounds[1])
    part = op([x]).builder.slice_axis(x.data, x.dynamic - 1, begin, end)
    is_single = where[0].attributes.get("newSequenceAxisLengthScalingFactor") == 0 and (
        where[0].attributes.get("newSequenceAxisLengthAdditiveFactor") == 1
    )
    if not is_single:
        return x.with_data(part)
    builder = op([x]).builder
    return Value(builder.reshape(part, (*x.leading[:-1], *x.shape)), x.has_batch)
