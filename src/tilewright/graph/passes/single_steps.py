"""One step of a recurrent layer is one product: that of input and state with the weights of both.

Before:  nn.lstm(reshape(add(matmul(x, w), b)), r, h, c)       two streams of weights, two rounds of all cores
After:   gates = matmul(concatenate(x, h), [w; r]) + b         one stream, and an update of a few elements
         cell = sigmoid(forget) * c + sigmoid(enter) * tanh(fresh);  hidden = sigmoid(leave) * tanh(cell)

On GPUs all of it is one operator, `nn.lstm_step`: each kernel has its price there. In half precision its weights are
halves, and its states stay as they are.

Many steps keep the operator: its input products are made for all of them at once. On CPUs what was measured
(`graph/choices.py`) goes before the estimate, that products are better merged for several cores.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from tilewright.graph.choices import GraphChoices
from tilewright.graph.ir.expr import Call, Constant, GraphExpr, Tuple, TupleGet, constant
from tilewright.graph.ir.infer import fill_type
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.rewrite import Bindings, P, Rule, apply_rules, make, static_shape
from tilewright.graph.ir.traverse import map_functions
from tilewright.graph.ops.contract import MatmulAttributes
from tilewright.graph.ops.recurrent import LstmAttributes
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.float_types import rounded
from tilewright.ir.function import IRModule

_ACTIVATIONS = ("sigmoid", "tanh", "tanh")


def single_steps(module: IRModule, options: GraphOptions) -> IRModule:
    """Merge the products of single steps where several cores share them: each round of all cores has its price."""
    target, asked = options.machine, options.choices
    if not target.is_cpu and target.cores < 2:
        return module
    estimated = "together" if target.cores > 1 else "apart"
    rules = GPU_RULES if not target.is_cpu else (Rule(_NAME, _STEP, partial(_merged, asked, estimated)),)
    return map_functions(module, lambda function: apply_rules(function, rules))


def _merged(choices: GraphChoices, estimated: str, b: Bindings) -> GraphExpr | None:
    lstm, product = b.call("lstm"), b.call("product")
    attributes, how = lstm.attributes, product.attributes
    assert isinstance(attributes, LstmAttributes) and isinstance(how, MatmulAttributes)
    steps, batch, _, size = static_shape(b["data"]) or (0, 0, 0, 0)
    x, entering, recurrent, hidden, cell = (b[name] for name in ("x", "w", "r", "hidden", "cell"))
    assert isinstance(entering, Constant) and isinstance(recurrent, Constant)
    plain = tuple(name for name, _, _ in attributes.activations) == _ACTIVATIONS
    if steps != 1 or not plain or attributes.clip is not None or attributes.coupled or how.transpose_a:
        return None
    shape = static_shape(x)
    if shape is None or len(shape) != 2 or entering.data.ndim != 2 or b.uses(product) > 1:
        return None
    if choices.choose([product, lstm], ("apart", "together"), estimated) == "apart":
        return None
    rows = entering.data.T if how.transpose_b else entering.data
    weights = np.concatenate([rows, recurrent.data.reshape(4 * size, size).T])
    both = make("concatenate", x, hidden, axis=1, span=lstm.span)
    gates = make("add", make("matmul", both, constant(weights), span=lstm.span), b["bias"], span=lstm.span)

    def gate(number: int) -> GraphExpr:
        begin, end = (0, number * size), (batch, (number + 1) * size)
        return make("slice", gates, begin=begin, end=end, strides=(1, 1), span=lstm.span)

    def sigmoid(value: GraphExpr) -> GraphExpr:
        return make("sigmoid", value, span=lstm.span)

    def times(first: GraphExpr, second: GraphExpr) -> GraphExpr:
        return make("multiply", first, second, span=lstm.span)

    fresh = times(sigmoid(gate(0)), make("tanh", gate(3), span=lstm.span))
    new_cell = make("add", times(sigmoid(gate(2)), cell), fresh, span=lstm.span)
    new_hidden = times(sigmoid(gate(1)), make("tanh", new_cell, span=lstm.span))

    def states(old: GraphExpr, new: GraphExpr) -> GraphExpr:
        rows = [make("reshape", item, shape=(1, batch, size), span=lstm.span) for item in (old, new)]
        return make("concatenate", *rows, axis=0, span=lstm.span)

    return Tuple((states(hidden, new_hidden), states(cell, new_cell)))


def _joined(b: Bindings) -> GraphExpr | None:
    """One step as one operator."""
    lstm, product = b.call("lstm"), b.call("product")
    attributes, how = lstm.attributes, product.attributes
    assert isinstance(attributes, LstmAttributes) and isinstance(how, MatmulAttributes)
    shape, data = static_shape(lstm.args[0]), static_shape(b["x"])
    entering, recurrent, bias = (b[name] for name in ("w", "r", "bias"))
    assert isinstance(entering, Constant) and isinstance(recurrent, Constant)
    if shape is None or data is None or shape[0] != 1 or len(data) != 2 or how.transpose_a or entering.data.ndim != 2:
        return None
    _, batch, _, size = shape
    if not isinstance(bias, Constant) or bias.data.size != 4 * size or b.uses(product) > 1:
        return None
    rows = entering.data if how.transpose_b else entering.data.T
    halved = rounded(recurrent, entering.dtype)
    weights = np.concatenate([rows.reshape(4, size, -1), halved.data], axis=2)
    x = b["x"]
    if is_call_to(x, "cast") and isinstance(x, Call) and x.args[0].tensor_type.dtype is recurrent.dtype:
        # What was rounded for a product with halves is as good as it was.
        x = x.args[0]
    step = make(
        "nn.lstm_step",
        x,
        b["hidden"],
        b["cell"],
        Constant(weights, entering.dtype),
        Constant(bias.data.reshape(4, size), bias.dtype),
        activations=attributes.activations,
        clip=attributes.clip,
        coupled=attributes.coupled,
        span=lstm.span,
    )

    def states(old: GraphExpr, place: int) -> GraphExpr:
        new = fill_type(TupleGet(step, place))
        parts = [make("reshape", item, shape=(1, batch, size), span=lstm.span) for item in (old, new)]
        return make("concatenate", *parts, axis=0, span=lstm.span)

    return Tuple((states(b["hidden"], 0), states(b["cell"], 1)))


_PRODUCT = P.op("matmul", P.any("x"), P.const("w"), name="product")
_DATA = P.op("reshape", P.op("add", _PRODUCT, P.any("bias")), name="data")
_STATES = (P.const("r"), P.any("hidden"), P.any("cell"))
_STEP = P.op("nn.lstm", _DATA, *_STATES, name="lstm")
_NAME = "single step of an LSTM"
GPU_RULES = (
    Rule(_NAME, _STEP, _joined),
    Rule("single step of an LSTM, halved", P.op("nn.lstm", P.op("cast", _DATA), *_STATES, name="lstm"), _joined),
)
"""The rules for GPUs, tried in order at each node."""
