"""Products of integers of a few bits become bit-serial where counting bits is quicker than multiplying bytes.

Before:  nn.conv2d(int32(cast(clip(x, 0, 3), uint8)) - zero, w)            w: int32 constants of -2 to 1
After:   nn.bitserial_conv2d(nn.bitpack(cast(clip(x, 0, 3), uint8), bits=2), planes(w), signed=True, border=zero)
           - zero * column_sums(w)

The sums are the same integers. Weights of -1 and 1 alone are one plane whose bits meet by "xor":
`sum(a * w) = sum_i 2^i * (popcount(w) - popcount(a_i ^ w))`. How many bits activations have is known from the clip that
quantised them. The estimate counts vector instructions; what was measured (`graph/choices.py`) goes before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.graph.choices import GraphChoices
from tilewright.graph.ir.expr import Call, Constant, GraphExpr, constant
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.rewrite import Bindings, P, Rule, apply_rules, known_sizes, make
from tilewright.graph.ir.traverse import map_functions
from tilewright.graph.ops.bitserial import WORD_BYTES, bit_planes
from tilewright.graph.ops.contract import MatmulAttributes
from tilewright.graph.ops.convolution import Conv2dAttributes
from tilewright.graph.ops.elementwise import ClipAttributes
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.integer_operands import first_columns, shifted_bytes
from tilewright.graph.passes.quantized_products import MOST_MOVES, has_byte_products, known_value
from tilewright.ir.dtype import INT8, INT32, UINT8
from tilewright.ir.function import IRModule
from tilewright.target import Target

Array = npt.NDArray[Any]
MOST_BITS = 4
"""Bits of activations, and of weights, from which on bytes are quicker everywhere."""
_LEAST_GAIN = 1.3
"""How much quicker than bytes the estimate must be: counting reaches four fifths of its peak, bytes nearly all."""
_MOVES = ("transpose", "reshape", "slice", "assume_shape", "nn.max_pool2d", "concatenate")
"""Operators whose results are among the elements of their inputs."""
_GROUP = 4
"""Products that a lane of a dot-product instruction adds up."""
_TILES = 8
"""Vectors of dot products that matrix tiles do in the time of one."""
_PACKING = 32
"""Instructions that pack a vector of bytes of a plane: a load, a shift, a mask and an or for each bit."""
_BYTE_BITS = 8


def bitserial_products(module: IRModule, options: GraphOptions) -> IRModule:
    """Count bits instead of multiplying bytes where that is estimated, or was measured, to be quicker."""
    target = options.machine
    if not target.is_cpu or not has_byte_products(target):
        # The estimate and the schedule are of vectors; tensor cores multiply bytes as quickly as others count bits.
        return module
    rules = _Rules(target, options.choices).rules()
    return map_functions(module, lambda function: apply_rules(function, rules))


@dataclass(frozen=True, slots=True)
class Levels:
    """Activations as unsigned integers of a few bits: `number = level - zero`."""

    data: GraphExpr
    bits: int
    zero: int


@dataclass(frozen=True, slots=True)
class Planes:
    """Constant weights (..., depth, columns) as planes (..., bits, bytes, columns)."""

    planes: Array
    mode: str
    signed: bool
    values: Array

    def offset(self, levels: Levels) -> Array:
        """What is added to the counts (to minus the counts, for "xor") of each column, in 32 bits."""
        flat = self.values.reshape(-1, self.values.shape[-1]).astype(np.int64)
        total = -levels.zero * flat.sum(axis=0)
        if self.mode == "xor":
            total += ((1 << levels.bits) - 1) * (flat > 0).sum(axis=0)
        return np.asarray(total.astype(np.int32))


def find_levels(item: GraphExpr) -> Levels | None:
    """An int32 expression as levels of a few bits, if what quantised it says so."""
    shifted = shifted_bytes(item)
    if shifted is None:
        return None
    limits = _limits(shifted.data, MOST_MOVES)
    zero = np.zeros((), np.int32) if shifted.zero is None else known_value(shifted.zero)
    if limits is None or zero is None:
        return None
    low, high = limits
    bits, level = max(1, (high - low).bit_length()), int(zero.reshape(())) - low
    if bits > MOST_BITS or not 0 <= level < 1 << bits:
        return None
    data = shifted.data
    if low:
        data = make("subtract", make("cast", data, dtype=INT32), constant(np.int32(low)))
    return Levels(data if data.tensor_type.dtype is UINT8 else make("cast", data, dtype=UINT8), bits, level)


def _limits(item: GraphExpr, moves: int) -> tuple[int, int] | None:
    """The least and the largest of some bytes, by the clip that they come from."""
    if not isinstance(item, Call) or item.type is None or not moves:
        return None
    if any(is_call_to(item, name) for name in _MOVES):
        parts = [_limits(part, (moves - 1) // len(item.args)) for part in item.args]
        known = [part for part in parts if part is not None]
        if not known or len(known) < len(parts):
            return None
        return min(low for low, _ in known), max(high for _, high in known)
    if not is_call_to(item, "cast") or item.tensor_type.dtype not in (INT8, UINT8):
        return None
    source = item.args[0]
    if source.tensor_type.dtype.is_bool:
        return 0, 1
    if not isinstance(source, Call) or not isinstance(source.attributes, ClipAttributes):
        return None
    low, high = source.attributes.minimum, source.attributes.maximum
    if low is None or high is None or not float(low).is_integer() or not float(high).is_integer() or low > high:
        return None
    return int(low), int(high)


def find_planes(item: GraphExpr) -> Planes | None:
    """Constant weights (..., depth, columns) of a few bits as planes."""
    values = known_value(item)
    if values is None or values.dtype != np.int32 or values.size == 0:
        return None
    low, high = int(values.min()), int(values.max())
    levels: Array
    if -1 <= low and high <= 1 and bool((np.abs(values) == 1).all()):
        levels, bits, mode, signed = values > 0, 1, "xor", False
    elif low >= 0:
        levels, bits, mode, signed = values, max(1, high.bit_length()), "and", False
    else:
        bits = 1 + max((-low - 1).bit_length(), high.bit_length())
        levels, mode, signed = values & ((1 << bits) - 1), "and", True
    if bits > MOST_BITS:
        return None
    packed = bit_planes(np.moveaxis(levels, -2, -1).astype(np.uint8), bits)
    # (..., columns, bits, bytes) -> (..., bits, bytes, columns)
    return Planes(np.ascontiguousarray(np.moveaxis(packed, -3, -1)), mode, signed, values)


class _Rules:
    """The rules for one target."""

    def __init__(self, target: Target, choices: GraphChoices) -> None:
        self._target = target
        self._choices = choices

    def rules(self) -> tuple[Rule, ...]:
        """All of them, tried in order at each node."""
        return (
            Rule("product of few bits", P.op("matmul", name="root", where=_is_int32), self._matmul),
            Rule("convolution of few bits", P.op("nn.conv2d", name="root", where=_is_int32), self._conv2d),
        )

    def _matmul(self, b: Bindings) -> GraphExpr | None:
        call = b.call("root")
        assert isinstance(call.attributes, MatmulAttributes)
        weights = call.args[1]
        if call.attributes.transpose_a or weights.tensor_type.rank != 2:
            return None
        if call.attributes.transpose_b:
            weights = make("transpose", weights, axes=(1, 0))
        levels = find_levels(call.args[0])
        planes = None if levels is None else find_planes(weights)
        if levels is None or planes is None:
            return None
        packed = make("nn.bitpack", levels.data, bits=levels.bits, span=call.span)
        counts = make(
            "nn.bitserial_dense", packed, self._padded(planes), mode=planes.mode, signed=planes.signed, span=call.span
        )
        return self._chosen(call, counts, levels, planes, 1)

    def _conv2d(self, b: Bindings) -> GraphExpr | None:
        call = b.call("root")
        attributes = call.attributes
        assert isinstance(attributes, Conv2dAttributes)
        if attributes.groups != 1 or attributes.data_layout != "NHWC" or attributes.kernel_layout != "HWIO":
            return None
        levels = find_levels(call.args[0])
        planes = None if levels is None else find_planes(call.args[1])
        if levels is None or planes is None:
            return None
        packed = make("nn.bitpack", levels.data, bits=levels.bits, span=call.span)
        counts = make(
            "nn.bitserial_conv2d",
            packed,
            self._padded(planes),
            mode=planes.mode,
            signed=planes.signed,
            strides=attributes.strides,
            padding=attributes.padding,
            dilation=attributes.dilation,
            border=levels.zero,
            channels=planes.values.shape[-2],
            span=call.span,
        )
        return self._chosen(call, counts, levels, planes, attributes.strides[0] * attributes.strides[1])

    def _padded(self, planes: Planes) -> Constant:
        """Planes with whole vectors of columns."""
        extra = -planes.planes.shape[-1] % self._target.lanes(32)
        widths = [(0, 0)] * (planes.planes.ndim - 1) + [(0, extra)]
        return constant(np.ascontiguousarray(np.pad(planes.planes, widths)))

    def _chosen(self, call: Call, counts: Call, levels: Levels, planes: Planes, skipped: int) -> GraphExpr | None:
        """The product from the counts, if that is the answer to which is quicker."""
        if known_sizes(call) is None:
            return None
        gain = estimated_gain(self._target, levels.bits, planes.planes.shape, planes.values.shape, skipped)
        default = "bits" if gain >= _LEAST_GAIN else "bytes"
        if self._choices.choose([counts], ("bytes", "bits"), default) == "bytes":
            return None
        raw = first_columns(counts, planes.values.shape[-1])
        offset = planes.offset(levels)
        if planes.mode == "xor":
            return make("subtract", constant(offset), raw, span=call.span)
        return make("add", raw, constant(offset), span=call.span) if offset.any() else raw


def estimated_gain(
    target: Target, bits: int, planes: tuple[int, ...], weights: tuple[int, ...], skipped: int = 1
) -> float:
    """How many times quicker than products of bytes counting is, by vector instructions for a vector of results.

    `planes` and `weights` are shapes of weights: (..., bits, bytes, columns) and (..., depth, columns). Strides skip
    pixels that are packed all the same: one of `skipped` has a result.
    """
    *taps, weight_bits, size, columns = planes
    lanes = target.lanes(32)
    windows = int(np.prod(taps, dtype=np.int64))
    counting = windows * size // WORD_BYTES * bits * weight_bits * _instructions(target)
    vectors = -(-columns // lanes)
    packing = bits * skipped * _PACKING * -(-size * _BYTE_BITS // target.vector_bits) / vectors
    multiplying = windows * -(-weights[-2] // _GROUP)
    return multiplying / (_TILES if target.has_amx else 1) / (counting + packing)


def _instructions(target: Target) -> int:
    """Vector instructions that count the bits of a vector that meet: "and", counting, adding."""
    if target.has_feature("avx512vpopcntdq") or target.arch == "aarch64":
        return 3
    # Nibbles are taken apart and looked up.
    return 8


def _is_int32(call: Call) -> bool:
    return call.type is not None and call.tensor_type.dtype is INT32
