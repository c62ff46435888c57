"""Values that are dequantised, moved and quantised again with the same scale stay as they are: only bytes move.

Before:  quantize(transpose(dequantize(q)))        quantize: cast(clip(round(x / scale) + zero), uint8)
After:   transpose(q)                              dequantize: float(int(q) - zero) * scale

Tools that quantise models write this around every operator that only moves data, pooling by maximum among them (what
keeps the order of numbers keeps that of bytes). A byte comes back as it was: the quotient, or the product with the
inverse of the scale, is within a rounding error of the integer, and `round` takes that away.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr
from tilewright.graph.ir.infer import fill_type
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.rewrite import Bindings, P, Rule, apply_rules
from tilewright.graph.ir.traverse import map_functions
from tilewright.graph.ops.elementwise import ClipAttributes
from tilewright.ir.dtype import FLOAT32, INT8, INT32, UINT8, DataType
from tilewright.ir.function import IRModule

_MOVES = (
    "transpose",
    "reshape",
    "slice",
    "concatenate",
    "tile",
    "broadcast_to",
    "assume_shape",
    "nn.max_pool2d",
    "take",
)
"""Operators whose results are elements of their inputs: of all of them, or of the first (`take`, as resizing to the
nearest has it)."""
_CLOSE = 1e-6
"""How near to 1 a scale times its inverse is, both of float32: 255 steps are off by far less than half of one."""
_LEAST_FACTOR = 1e-35
"""Beyond it, numbers of the largest integers leave the range of float32."""
_MOST_MOVES = 16
"""Operators in between that are looked through, in all."""


def requantize(module: IRModule) -> IRModule:
    """Take away pairs of dequantising and quantising around moves of data."""
    return map_functions(module, _rewritten)


def _rewritten(function: Function) -> Function:
    return apply_rules(function, RULES)


@dataclass(frozen=True, slots=True)
class _Levels:
    """What bytes stand for: one scale (or what numbers are multiplied by, its inverse) and one zero point."""

    factor: float
    inverse: bool
    zero: float
    dtype: DataType

    def is_scale(self, scale: float | None) -> bool:
        """Whether numbers of a scale become the integers that they were."""
        if scale is None or not self.inverse:
            return scale == self.factor
        return abs(scale * self.factor - 1) < _CLOSE


def _single(item: GraphExpr) -> float | None:
    """The number that a constant is."""
    if not isinstance(item, Constant) or item.data.size != 1:
        return None
    return float(item.data.reshape(()))


def _quantized(root: Call) -> tuple[GraphExpr, _Levels] | None:
    """What a quantising cast quantises, and how."""
    dtype, clip = root.tensor_type.dtype, root.args[0]
    if dtype not in (INT8, UINT8) or not is_call_to(clip, "clip") or not isinstance(clip, Call):
        return None
    low, high = (0.0, 255.0) if dtype is UINT8 else (-128.0, 127.0)
    attributes = clip.attributes
    assert isinstance(attributes, ClipAttributes)
    if attributes.minimum != low or attributes.maximum != high:
        return None
    level, zero = clip.args[0], 0.0
    if is_call_to(level, "add") and isinstance(level, Call):
        shift = _single(level.args[1])
        if shift is None:
            return None
        level, zero = level.args[0], shift
    if not is_call_to(level, "round") or not isinstance(level, Call):
        return None
    steps = level.args[0]
    if not isinstance(steps, Call) or steps.tensor_type.dtype is not FLOAT32:
        return None
    factor = _single(steps.args[1]) if is_call_to(steps, "divide") or is_call_to(steps, "multiply") else None
    if factor is None or not _LEAST_FACTOR < factor < 1 / _LEAST_FACTOR:
        return None
    return steps.args[0], _Levels(factor, is_call_to(steps, "multiply"), zero, dtype)


def _dequantized(item: Call, levels: _Levels) -> GraphExpr | None:
    """The bytes that a product stands for, if they stand for it in this way."""
    value, factor = item.args
    if not is_call_to(value, "cast") or not isinstance(value, Call) or not levels.is_scale(_single(factor)):
        return None
    shifted, zero = value.args[0], 0.0
    if is_call_to(shifted, "subtract") and isinstance(shifted, Call):
        shift = _single(shifted.args[1])
        if shift is None:
            return None
        shifted, zero = shifted.args[0], shift
    if zero != levels.zero or not is_call_to(shifted, "cast") or not isinstance(shifted, Call):
        return None
    stored = shifted.args[0]
    is_same = shifted.tensor_type.dtype is INT32 and stored.tensor_type.dtype is levels.dtype
    return stored if is_same else None


def _bytes_below(item: GraphExpr, levels: _Levels, moves: int) -> GraphExpr | None:
    """A float value as bytes that were moved as it was."""
    if not isinstance(item, Call) or item.type is None or item.tensor_type.dtype is not FLOAT32:
        return None
    if is_call_to(item, "multiply"):
        return _dequantized(item, levels)
    if not moves or not any(is_call_to(item, name) for name in _MOVES):
        return None
    parts: list[GraphExpr] = []
    for arg in item.args[:1] if is_call_to(item, "take") else item.args:
        below = _bytes_below(arg, levels, (moves - 1) // len(item.args))
        if below is None:
            return None
        parts.append(below)
    moved = Call(item.callee, (*parts, *item.args[len(parts) :]), item.attributes)
    moved.span = item.span
    fill_type(moved)
    return moved


def _requantized(b: Bindings) -> GraphExpr | None:
    quantized = _quantized(b.call("root"))
    return None if quantized is None else _bytes_below(quantized[0], quantized[1], _MOST_MOVES)


RULES = (Rule("quantised as it was", P.op("cast", P.op("clip", P.any("x")), name="root"), _requantized),)
"""All rules, tried in order at each node."""
