"""Activations that operators of frameworks apply to their results, by the names that converters give them."""

from __future__ import annotations

from tilewright.frontend.core.builder import Builder
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UnsupportedError

BOUNDS: dict[str, tuple[float | None, float | None]] = {
    "NONE": (None, None),
    "RELU": (0.0, None),
    "RELU6": (0.0, 6.0),
    "RELU_N1_TO_1": (-1.0, 1.0),
    "RELU_0_TO_1": (0.0, 1.0),
}
"""Activations that keep a result within bounds."""


def activated(builder: Builder, value: GraphExpr, name: str) -> GraphExpr:
    """A result of floats with an activation applied."""
    if name in BOUNDS:
        low, high = BOUNDS[name]
        if low is None and high is None:
            return value
        return (
            builder.call("nn.relu", value) if high is None else builder.call("clip", value, minimum=low, maximum=high)
        )
    if name == "TANH":
        return builder.call("tanh", value)
    if name == "SIGN_BIT":
        return builder.call("cast", builder.call("less", value, builder.constant_like(0, value)), dtype="int32")
    raise UnsupportedError(f"the activation {name}")
