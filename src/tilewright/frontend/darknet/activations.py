"""Darknet's activation functions."""

from __future__ import annotations

from tilewright.frontend.core.builder import Builder
from tilewright.frontend.darknet.files import Section
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UnsupportedError

_PLAIN = {"logistic": "sigmoid", "relu": "nn.relu", "tanh": "tanh"}
_LEAKS = {"leaky": 0.1, "relie": 0.01}


def activated(builder: Builder, section: Section, value: GraphExpr, default: str) -> GraphExpr:
    """The activation function that a section names, of a value."""
    name = section.text("activation", default)

    def number(size: float) -> GraphExpr:
        return builder.constant_like(size, value)

    if name in _PLAIN:
        return builder.call(_PLAIN[name], value)
    if name in _LEAKS:
        return builder.call("nn.leaky_relu", value, alpha=_LEAKS[name])
    match name:
        case "linear":
            return value
        case "elu":
            return builder.call("nn.elu", value, alpha=1.0)
        case "selu":
            return builder.call("nn.selu", value, alpha=1.6732, gamma=1.0507)
        case "relu6":
            return builder.call("clip", value, minimum=0.0, maximum=6.0)
        case "hardtan":
            return builder.call("clip", value, minimum=-1.0, maximum=1.0)
        case "ramp":
            return builder.call("add", builder.call("nn.relu", value), builder.call("multiply", value, number(0.1)))
        case "loggy":
            doubled = builder.call("multiply", builder.call("sigmoid", value), number(2.0))
            return builder.call("subtract", doubled, number(1.0))
        case "swish":
            return builder.call("multiply", value, builder.call("sigmoid", value))
        case "mish":
            return builder.call("multiply", value, builder.call("tanh", builder.call("nn.softplus", value)))
    raise UnsupportedError(f"the activation function '{name}' of Darknet is not supported")
