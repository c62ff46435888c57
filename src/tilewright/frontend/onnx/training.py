"""Converters of `ai.onnx.preview.training`: one step of an optimiser, written out."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontend.core.builder import dtype_of
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.registry import converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UserError

_DOMAIN = "ai.onnx.preview.training"


def _groups(node: NodeContext, count: int) -> tuple[GraphExpr, GraphExpr, list[list[GraphExpr]]]:
    """The rate, the number of steps so far, and for each optimised tensor its value, gradient and so on."""
    values = node.all_inputs()
    rest = values[2:]
    if len(rest) < count or len(rest) % count:
        raise UserError(f"{node.node.op_type} takes a rate, a count and groups of {count} inputs, not {len(values)}")
    total = len(rest) // count
    groups = [[rest[part * total + index] for part in range(count)] for index in range(total)]
    return values[0], node.builder.cast(values[1], dtype_of(rest[0])), groups


def _scaled(node: NodeContext, value: GraphExpr, factor: float) -> GraphExpr:
    return node.call("multiply", value, node.builder.constant_like(factor, value))


def _regularised(node: NodeContext, value: GraphExpr, gradient: GraphExpr) -> GraphExpr:
    coefficient = node.number("norm_coefficient", 0.0)
    return node.call("add", _scaled(node, value, coefficient), gradient) if coefficient else gradient


def _flattened(columns: Sequence[Sequence[GraphExpr]]) -> list[GraphExpr]:
    """Results are given kind by kind: all values, then all of the next."""
    return [row[index] for index in range(len(columns[0])) for row in columns]


@converter("Momentum", domain=_DOMAIN)
def momentum(node: NodeContext) -> list[GraphExpr]:
    """Gradient descent with momentum, standard or Nesterov's."""
    rate, steps, groups = _groups(node, 3)
    mode, alpha, beta = node.text("mode"), node.number("alpha"), node.number("beta")
    if mode not in ("standard", "nesterov"):
        raise UserError(f"unknown mode {mode!r} of Momentum", hint="one of standard, nesterov")
    zero, one = node.builder.constant_like(0, steps), node.builder.constant_like(1, steps)
    factor = node.call("where", node.call("greater", steps, zero), node.builder.constant_like(beta, steps), one)
    results: list[list[GraphExpr]] = []
    for value, gradient, moment in groups:
        slope = _regularised(node, value, gradient)
        fresh = node.call("add", _scaled(node, moment, alpha), node.call("multiply", factor, slope))
        direction = fresh if mode == "standard" else node.call("add", slope, _scaled(node, fresh, alpha))
        results.append([node.call("subtract", value, node.call("multiply", rate, direction)), fresh])
    return _flattened(results)


@converter("Adagrad", domain=_DOMAIN)
def adagrad(node: NodeContext) -> list[GraphExpr]:
    """Rates that shrink with the squares of the gradients so far."""
    rate, steps, groups = _groups(node, 3)
    one = node.builder.constant_like(1, steps)
    decay = node.call("add", one, _scaled(node, steps, node.number("decay_factor", 0.0)))
    rate = node.call("divide", rate, decay)
    epsilon = node.number("epsilon", 0.0)
    results: list[list[GraphExpr]] = []
    for value, gradient, squares in groups:
        slope = _regularised(node, value, gradient)
        fresh = node.call("add", squares, node.call("multiply", slope, slope))
        scale = node.call("add", node.call("sqrt", fresh), node.builder.constant_like(epsilon, fresh))
        step = node.call("divide", node.call("multiply", rate, slope), scale)
        results.append([node.call("subtract", value, step), fresh])
    return _flattened(results)


@converter("Adam", domain=_DOMAIN)
def adam(node: NodeContext) -> list[GraphExpr]:
    """Averages of gradients and of their squares."""
    rate, steps, groups = _groups(node, 4)
    alpha, beta = node.number("alpha", 0.9), node.number("beta", 0.999)
    epsilon, after = node.number("epsilon", 0.0), node.number("norm_coefficient_post", 0.0)
    zero, one = node.builder.constant_like(0, steps), node.builder.constant_like(1, steps)

    def remaining(base: float) -> GraphExpr:
        power = node.call("power", node.builder.constant_like(base, steps), steps)
        return node.call("subtract", one, power)

    corrected = node.call("divide", node.call("multiply", rate, node.call("sqrt", remaining(beta))), remaining(alpha))
    rate = node.call("where", node.call("greater", steps, zero), corrected, rate)
    results: list[list[GraphExpr]] = []
    for value, gradient, average, squares in groups:
        slope = _regularised(node, value, gradient)
        mean = node.call("add", _scaled(node, average, alpha), _scaled(node, slope, 1 - alpha))
        square = node.call(
            "add", _scaled(node, squares, beta), _scaled(node, node.call("multiply", slope, slope), 1 - beta)
        )
        scale = node.call("add", node.call("sqrt", square), node.builder.constant_like(epsilon, square))
        fresh = node.call("subtract", value, node.call("divide", node.call("multiply", rate, mean), scale))
        results.append([_scaled(node, fresh, 1 - after) if after else fresh, mean, square])
    return _flattened(results)
