"""Recurrent operations of Core ML: LSTM, GRU and the plain recurrent network over (steps, batch, features)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontend.core.builder import dtype_of, sizes_of
from tilewright.frontend.coreml.operation import Operation, operation
from tilewright.frontend.onnx.borrowed import Attribute
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.support.errors import UnsupportedError, UserError

_ACTIVATIONS = {
    "sigmoid": ("Sigmoid", 0.0, 0.0),
    "tanh": ("Tanh", 0.0, 0.0),
    "relu": ("Relu", 0.0, 0.0),
    "linear": ("Affine", 1.0, 0.0),
    "hard_sigmoid": ("HardSigmoid", 0.2, 0.5),
    "sigmoid_hard": ("HardSigmoid", 0.2, 0.5),
    "scaled_tanh": ("Tanh", 0.0, 0.0),
}
"""Activations by Core ML's names: ONNX's, with alpha and beta. That of a scaled tanh are 1 here."""
_LSTM_ORDER = (0, 2, 1, 3)
"""Input, output, forget, cell among Core ML's input, forget, output, cell."""
_GRU_ORDER = (2, 0, 1)
"""Update, reset, output among Core ML's reset, output, update."""
_HIGHEST = 50.0
"""The bound of states that Core ML has by default, which is that of no bound: numbers beyond it mean nothing."""


def _activation(op: Operation, name: str, default: str) -> str:
    label = op.text(name, default).lower()
    if label not in _ACTIVATIONS:
        raise UserError(f"the activation {label!r} of {op.kind} is not known")
    return label


def _activations(labels: Sequence[str]) -> dict[str, Attribute]:
    known = [_ACTIVATIONS[label] for label in labels]
    return {
        "activations": [name for name, _, _ in known],
        "activation_alpha": [alpha for name, alpha, _ in known if name in ("Affine", "HardSigmoid")],
        "activation_beta": [beta for name, _, beta in known if name in ("Affine", "HardSigmoid")],
    }


def _gates(op: Operation, name: str, order: Sequence[int]) -> Array:
    """A weight (gates * size, ...) with its gates in another order."""
    weight = op.array(name).astype(np.float32)
    if weight.shape[0] % len(order):
        raise UserError(f"'{name}' of {op.kind} has {weight.shape[0]} rows, which are not {len(order)} gates")
    parts = np.split(weight, len(order))
    result: Array = np.concatenate([parts[at] for at in order])
    return result


def _bias(op: Operation, name: str, order: Sequence[int], rows: int, state: str | None = None) -> Array:
    """Biases of the data, then of the state, of all gates."""
    data = _gates(op, name, order) if op.has(name) else np.zeros(rows, np.float32)
    hidden = _gates(op, state, order) if state is not None and op.has(state) else np.zeros(rows, np.float32)
    return np.concatenate([data, hidden])


def _states(op: Operation, name: str, directions: int) -> GraphExpr:
    """States (batch, directions * size) as (directions, batch, size)."""
    state = op.builder.cast(op.value(name), "float32")
    batch, width = sizes_of(state)
    if not isinstance(width, int) or width % directions:
        raise UserError(f"'{name}' of {op.kind} does not hold the states of {directions} directions")
    parts = op.builder.reshape(state, (batch, directions, width // directions))
    return op.builder.transpose(parts, (1, 0, 2))


def _joined(op: Operation, state: GraphExpr) -> GraphExpr:
    """(directions, batch, size) as (batch, directions * size)."""
    directions, batch, size = sizes_of(state)
    assert isinstance(directions, int) and isinstance(size, int)
    return op.builder.reshape(op.builder.transpose(state, (1, 0, 2)), (batch, directions * size))


def _results(op: Operation, found: Sequence[GraphExpr]) -> list[GraphExpr]:
    """The steps (or the last one), and the last states, in the type of the data."""
    steps, directions, batch, size = sizes_of(found[0])
    assert isinstance(directions, int) and isinstance(size, int)
    whole = op.builder.reshape(op.builder.transpose(found[0], (0, 2, 1, 3)), (steps, batch, directions * size))
    if op.text("direction", "forward") == "reverse":
        # A sequence that is read backwards is given in the order in which it was read.
        whole = op.builder.flip(whole, (0,))
    last = [_joined(op, state) for state in found[1:]]
    if not op.flag("output_sequence", False):
        whole = op.builder.expand_dims(last[0], (0,))
    return [op.builder.cast(value, dtype_of(op.value())) for value in (whole, *last)]


def _refuse_clip(op: Operation) -> None:
    if op.has("clip") and op.number("clip") < _HIGHEST:
        raise UnsupportedError(
            f"{op.kind} with states that are clipped at {op.number('clip')}", hint="convert the model without a clip"
        )


@operation("lstm")
def lstm(op: Operation) -> Sequence[GraphExpr]:
    """Long short-term memory in one direction or both."""
    direction = op.text("direction", "forward")
    both = direction == "bidirectional"
    labels = [
        _activation(op, "recurrent_activation", "sigmoid"),
        _activation(op, "cell_activation", "tanh"),
        _activation(op, "activation", "tanh"),
    ]
    _refuse_clip(op)
    ends = ["", "_back"] if both else [""]
    weights = [
        np.stack([_gates(op, f"{name}{end}", _LSTM_ORDER) for end in ends]) for name in ("weight_ih", "weight_hh")
    ]
    rows = weights[0].shape[1]
    bias = np.stack([_bias(op, f"bias{end}", _LSTM_ORDER, rows) for end in ends])
    peepholes = None
    if op.has("peephole"):
        peepholes = op.builder.constant(np.stack([_gates(op, f"peephole{end}", (0, 2, 1)) for end in ends]), "float32")
    found = op.onnx.several(
        "LSTM",
        3,
        op.builder.cast(op.value(), "float32"),
        *(op.builder.constant(weight, "float32") for weight in (*weights, bias)),
        None,
        _states(op, "initial_h", len(ends)),
        _states(op, "initial_c", len(ends)),
        peepholes,
        hidden_size=rows // 4,
        direction=direction,
        **_activations(labels * len(ends)),
    )
    return _results(op, found)


@operation("gru")
def gru(op: Operation) -> Sequence[GraphExpr]:
    """A gated recurrent unit; the state is reset before its product, unless `reset_after` says otherwise."""
    weights = [_gates(op, name, _GRU_ORDER)[None] for name in ("weight_ih", "weight_hh")]
    rows = weights[0].shape[1]
    after = op.flag("reset_after", False)
    # With both biases, `bias` is that of the state.
    names = ("input_bias", "bias") if op.has("input_bias") else ("bias", None)
    bias = _bias(op, names[0], _GRU_ORDER, rows, names[1])[None]
    labels = [_activation(op, "recurrent_activation", "sigmoid"), _activation(op, "activation", "tanh")]
    found = op.onnx.several(
        "GRU",
        2,
        op.builder.cast(op.value(), "float32"),
        *(op.builder.constant(weight, "float32") for weight in (*weights, bias)),
        None,
        _states(op, "initial_h", 1),
        hidden_size=rows // 3,
        direction=op.text("direction", "forward"),
        linear_before_reset=after,
        **_activations(labels),
    )
    return _results(op, found)


@operation("rnn")
def rnn(op: Operation) -> Sequence[GraphExpr]:
    """A recurrent network: the activation of the products of data and state."""
    weights = [op.array(name).astype(np.float32)[None] for name in ("weight_ih", "weight_hh")]
    rows = weights[0].shape[1]
    found = op.onnx.several(
        "RNN",
        2,
        op.builder.cast(op.value(), "float32"),
        *(op.builder.constant(weight, "float32") for weight in (*weights, _bias(op, "bias", (0,), rows)[None])),
        None,
        _states(op, "initial_h", 1),
        hidden_size=rows,
        direction=op.text("direction", "forward"),
        **_activations([_activation(op, "activation", "tanh")]),
    )
    return _results(op, found)
