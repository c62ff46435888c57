"""Recurrent layers whose weights are dequantised bytes multiply bytes, in every step.

Before:  nn.lstm(data, scale_w * float(int(w) - zero_w), hidden, cell)
After:   qnn.lstm(data, bytes(w), scale_w, hidden, cell)                     nn.gru and nn.rnn likewise

Weights are read in each step: bytes are a quarter of floats. The state becomes integers of 16 bits, which lose no more
than 2^-16 of its largest element. Processors without products of bytes multiply floats, as the model says.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.graph.ir.expr import GraphExpr, constant
from tilewright.graph.ir.rewrite import Bindings, P, Rule, apply_rules, make, static_shape
from tilewright.graph.ir.traverse import map_functions
from tilewright.graph.ops.recurrent import RecurrentAttributes
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.quantized_products import MOST_PRODUCTS, known_dequantized
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.function import IRModule

Array = npt.NDArray[Any]
_LAYERS = ("lstm", "gru", "rnn")
_DEPTH = 16
"""Bytes of a row that are loaded at once."""


def integer_recurrence(module: IRModule, options: GraphOptions) -> IRModule:
    """Compute recurrences with weights of bytes in integers, on CPUs with products of bytes."""
    target = options.target
    if target is None or not target.is_cpu or not (target.has_vnni or target.has_dotprod):
        return module
    # x86 multiplies signed bytes, which digits are, with unsigned ones.
    low = 0 if target.has_vnni else -128
    rules = [_rule(name, low) for name in _LAYERS]
    return map_functions(module, lambda function: apply_rules(function, rules))


def _rule(layer: str, low: int) -> Rule:
    return Rule(f"{layer} of bytes", P.op(f"nn.{layer}", name="root"), lambda b: _of_bytes(b, f"qnn.{layer}", low))


def _of_bytes(b: Bindings, name: str, low: int) -> GraphExpr | None:
    call = b.call("root")
    attributes, weights = call.attributes, known_dequantized(call.args[1])
    assert isinstance(attributes, RecurrentAttributes)
    if weights is None or call.args[0].tensor_type.dtype is not FLOAT32 or static_shape(call.args[1]) is None:
        return None
    integers, scale = weights
    rows = np.broadcast_to(scale, integers.shape)
    if not 0 < integers.shape[2] <= MOST_PRODUCTS or not bool((rows == rows[:, :, :1]).all()):
        return None
    least, most = int(integers.min()), int(integers.max())
    if most - least > 255:
        return None
    # Numbers that are bytes as they are need no offset.
    offset = 0 if least >= low and most <= low + 255 else least - low
    extra = -integers.shape[2] % _DEPTH
    stored = np.pad(integers - offset, ((0, 0), (0, 0), (0, extra))).astype(np.int8 if low else np.uint8)
    return make(
        name,
        call.args[0],
        constant(stored),
        constant(np.ascontiguousarray(rows[:, :, 0], np.float32)),
        *call.args[2:],
        **{field: getattr(attributes, field) for field in attributes.fields},
        offset=offset,
        span=call.span,
    )
