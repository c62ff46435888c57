"""Recurrent layers: a serial loop over the steps around one product a gate and the update of the states.

Each product has one consumer, which uses all its gates: the schedule computes a panel of the state with all its gates
in registers, then updates that panel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.ir import build, intrinsics
from tilewright.ir.build import cast, const
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import ExprLike, PrimExpr
from tilewright.ir.types import Type
from tilewright.te import reduction
from tilewright.te.language import compute, compute_many, placeholder, reduce_axis, scan
from tilewright.te.tensor import Tensor
from tilewright.tir.annotations import ANCHOR, Anchor
from tilewright.topi.elementwise import elu, hard_sigmoid, leaky_relu, relu, softplus
from tilewright.topi.reduce import accumulator_type
from tilewright.topi.registry import compute_of

Activation = Callable[[PrimExpr], PrimExpr]
Product = Callable[[ExprLike, ExprLike, int, ExprLike], PrimExpr]
"""What a state's product with the weights of a gate is: of the row, the sequence, the gate and the place."""

_ACTIVATIONS: dict[str, Callable[[PrimExpr, float, float], PrimExpr]] = {
    "sigmoid": lambda x, a, b: intrinsics.sigmoid(x),
    "tanh": lambda x, a, b: intrinsics.tanh(x),
    "relu": lambda x, a, b: relu(x),
    "softplus": lambda x, a, b: softplus(x),
    "softsign": lambda x, a, b: x / (const(1, x.dtype) + intrinsics.abs(x)),
    "affine": lambda x, a, b: const(a, x.dtype) * x + const(b, x.dtype),
    "leaky_relu": lambda x, a, b: leaky_relu(x, a),
    "thresholded_relu": lambda x, a, b: build.select(build.lt(const(a, x.dtype), x), x, const(0, x.dtype)),
    "scaled_tanh": lambda x, a, b: const(a, x.dtype) * intrinsics.tanh(const(b, x.dtype) * x),
    "hard_sigmoid": hard_sigmoid,
    "elu": lambda x, a, b: elu(x, a),
}


class _Gates:
    """What goes through the gates of recurrent layers."""

    def __init__(self, attributes: Any) -> None:
        self.attributes = attributes

    def activation(self, number: int) -> Activation:
        """One of the layer's activation functions."""
        name, alpha, beta = self.attributes.activations[number]
        return lambda x: _ACTIVATIONS[name](x, alpha, beta)

    def clipped(self, x: PrimExpr) -> PrimExpr:
        """What activations get."""
        if self.attributes.clip is None:
            return x
        limit = self.attributes.clip
        return build.minimum(build.maximum(x, const(-limit, x.dtype)), const(limit, x.dtype))

    def lstm(self, gate: Callable[[int, PrimExpr | None], PrimExpr], old: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
        """The hidden state and the cell after a step; `gate` gives what enters one that may see the cell."""
        f, g, h = (self.activation(number) for number in range(3))
        enter = f(gate(0, old))
        forget = const(1, old.dtype) - enter if self.attributes.coupled else f(gate(2, old))
        fresh = forget * old + enter * g(gate(3, None))
        return f(gate(1, fresh)) * h(fresh), fresh


class Recurrence(_Gates):
    """What the steps of a recurrent layer share; all arithmetic is in a type of at least 32 bits."""

    def __init__(self, attributes: Any, data: Tensor, weights: Tensor, lengths: Tensor | None) -> None:
        super().__init__(attributes)
        self.data = data
        self.weights = weights
        self.lengths = lengths
        self.wide = accumulator_type(data.dtype)
        self.steps, self.batch, _, self.size = data.shape
        self.rows = self.steps + 1

    def state(self, name: str, initial: Tensor) -> Tensor:
        """The rows of a state, as the steps read them."""
        return placeholder((self.rows, self.batch, self.size), initial.dtype, name)

    def run(self, initial: list[Tensor], updates: list[Tensor], states: list[Tensor], name: str) -> list[Tensor]:
        """All rows of the states: the initial ones, then one a step."""
        scanned = scan([self._first(item) for item in initial], updates, states, name=name)
        return [scanned] if isinstance(scanned, Tensor) else list(scanned)

    def _first(self, initial: Tensor) -> Tensor:
        return compute((1, self.batch, self.size), lambda _, b, n: initial[b, n], f"{initial.name}_first")

    def time(self, row: ExprLike) -> PrimExpr:
        """The step whose data a row uses."""
        return build.sub(self.steps, row) if self.attributes.backward else build.sub(row, 1)

    def entered(self, row: ExprLike, b: ExprLike, gate: int, n: ExprLike) -> PrimExpr:
        """What enters a gate."""
        return cast(self.data[self.time(row), b, gate, n], self.wide)

    def old(self, state: Tensor, row: ExprLike, b: ExprLike, n: ExprLike) -> PrimExpr:
        """A state before a step."""
        return cast(state[build.sub(row, 1), b, n], self.wide)

    def product(self, source: Tensor, back: int, gates: range, name: str) -> Product:
        """Rows of a tensor, `back` steps back, times the weights of some gates."""
        k = reduce_axis((0, self.size), "k")

        def element(t: ExprLike, b: ExprLike, g: ExprLike, n: ExprLike) -> PrimExpr:
            gate = build.add(g, gates.start) if gates.start else g
            left = cast(source[build.sub(t, back), b, k], self.wide)
            return reduction.sum(left * cast(self.weights[gate, n, k], self.wide), [k])

        shape = (self.rows, self.batch, len(gates), self.size)
        product = compute(shape, element, name, ANCHOR.entry(Anchor.RECURRENCE))
        return lambda t, b, gate, n: product[t, b, gate - gates.start, n]

    def kept(self, state: Tensor, row: ExprLike, b: ExprLike, n: ExprLike, fresh: PrimExpr) -> PrimExpr:
        """A state after a step: the old one in sequences that have ended."""
        if self.lengths is not None:
            running = build.lt(self.time(row), cast(self.lengths[b], INDEX))
            fresh = build.select(running, fresh, self.old(state, row, b, n))
        return cast(fresh, state.dtype)


def optional(inputs: list[Tensor], index: int) -> Tensor | None:
    """An input that may be left out."""
    return inputs[index] if len(inputs) > index else None


@compute_of("nn.lstm")
def _lstm(inputs: list[Tensor], attributes: Any, result: Type) -> list[Tensor]:
    data, weights, hidden, cell = inputs[:4]
    return lstm_states(Recurrence(attributes, data, weights, optional(inputs, 4)), hidden, cell, optional(inputs, 5))


def lstm_states(layer: Recurrence, hidden: Tensor, cell: Tensor, peepholes: Tensor | None) -> list[Tensor]:
    """All states of a long short-term memory."""
    hiddens = layer.state("hidden", hidden)
    product = layer.product(hiddens, 1, range(4), "lstm_product")
    cells = layer.state("cell", cell)

    def step(t: ExprLike, b: ExprLike, n: ExprLike) -> tuple[PrimExpr, PrimExpr]:
        def gate(number: int, seen: PrimExpr | None) -> PrimExpr:
            total = layer.entered(t, b, number, n) + product(t, b, number, n)
            if peepholes is not None and seen is not None:
                total = total + cast(peepholes[number, n], layer.wide) * seen
            return layer.clipped(total)

        hidden_after, cell_after = layer.lstm(gate, layer.old(cells, t, b, n))
        return layer.kept(hiddens, t, b, n, hidden_after), layer.kept(cells, t, b, n, cell_after)

    updates = compute_many((layer.rows, layer.batch, layer.size), step, "lstm")
    return layer.run([hidden, cell], list(updates), [hiddens, cells], "lstm_states")


@compute_of("nn.lstm_step")
def _lstm_step(inputs: list[Tensor], attributes: Any, result: Type) -> list[Tensor]:
    data, hidden, cell, weights, bias = inputs
    gates, wide = _Gates(attributes), accumulator_type(hidden.dtype)
    batch, size = hidden.shape
    width = data.shape[1]
    k = reduce_axis((0, build.add(width, size)), "k")

    def element(b: ExprLike, g: ExprLike, n: ExprLike) -> PrimExpr:
        inside = build.lt(k, width)
        entered, kept = cast(data[b, k], wide), cast(hidden[b, build.sub(k, width)], wide)
        return reduction.sum(build.select(inside, entered, kept) * cast(weights[g, n, k], wide), [k])

    product = compute((batch, 4, size), element, "lstm_product", ANCHOR.entry(Anchor.RECURRENT_STEP))

    def step(b: ExprLike, n: ExprLike) -> tuple[PrimExpr, PrimExpr]:
        def gate(number: int, seen: PrimExpr | None) -> PrimExpr:
            return gates.clipped(product[b, number, n] + cast(bias[number, n], wide))

        after = gates.lstm(gate, cast(cell[b, n], wide))
        return cast(after[0], hidden.dtype), cast(after[1], hidden.dtype)

    return list(compute_many((batch, size), step, "lstm_step"))


@compute_of("nn.gru")
def _gru(inputs: list[Tensor], attributes: Any, result: Type) -> list[Tensor]:
    data, weights, hidden, bias = inputs[:4]
    return gru_states(Recurrence(attributes, data, weights, optional(inputs, 4)), hidden, bias)


def gru_states(layer: Recurrence, hidden: Tensor, bias: Tensor) -> list[Tensor]:
    """All states of a gated recurrent unit."""
    f, g = layer.activation(0), layer.activation(1)
    hiddens = layer.state("hidden", hidden)
    shape = (layer.rows, layer.batch, layer.size)

    def blend(t: ExprLike, b: ExprLike, n: ExprLike, update: PrimExpr, total: PrimExpr) -> PrimExpr:
        old = layer.old(hiddens, t, b, n)
        fresh = (const(1, layer.wide) - update) * g(layer.clipped(total)) + update * old
        return layer.kept(hiddens, t, b, n, fresh)

    def gate(product: Product, number: int, t: ExprLike, b: ExprLike, n: ExprLike) -> PrimExpr:
        return f(layer.clipped(layer.entered(t, b, number, n) + product(t, b, number, n)))

    if layer.attributes.reset_after:
        product = layer.product(hiddens, 1, range(3), "gru_product")

        def step(t: ExprLike, b: ExprLike, n: ExprLike) -> PrimExpr:
            linear = product(t, b, 2, n) + cast(bias[n], layer.wide)
            total = layer.entered(t, b, 2, n) + gate(product, 1, t, b, n) * linear
            return blend(t, b, n, gate(product, 0, t, b, n), total)

        update = compute(shape, step, "gru")
    else:
        gates = layer.product(hiddens, 1, range(2), "gru_gates")

        def reset(t: ExprLike, b: ExprLike, n: ExprLike) -> tuple[PrimExpr, PrimExpr]:
            kept = gate(gates, 1, t, b, n) * layer.old(hiddens, t, b, n)
            return cast(kept, layer.data.dtype), gate(gates, 0, t, b, n)

        resets, updates = compute_many(shape, reset, "gru_reset")
        linear = layer.product(resets, 0, range(2, 3), "gru_product")

        def last(t: ExprLike, b: ExprLike, n: ExprLike) -> PrimExpr:
            total = layer.entered(t, b, 2, n) + linear(t, b, 2, n) + cast(bias[n], layer.wide)
            return blend(t, b, n, updates[t, b, n], total)

        update = compute(shape, last, "gru")
    return layer.run([hidden], [update], [hiddens], "gru_states")


@compute_of("nn.rnn")
def _rnn(inputs: list[Tensor], attributes: Any, result: Type) -> list[Tensor]:
    data, weights, hidden = inputs[:3]
    return rnn_states(Recurrence(attributes, data, weights, optional(inputs, 3)), hidden)


def rnn_states(layer: Recurrence, hidden: Tensor) -> list[Tensor]:
    """All states of a plain recurrent network."""
    f = layer.activation(0)
    hiddens = layer.state("hidden", hidden)
    product = layer.product(hiddens, 1, range(1), "rnn_product")

    def step(t: ExprLike, b: ExprLike, n: ExprLike) -> PrimExpr:
        fresh = f(layer.clipped(layer.entered(t, b, 0, n) + product(t, b, 0, n)))
        return layer.kept(hiddens, t, b, n, fresh)

    update = compute((layer.rows, layer.batch, layer.size), step, "rnn")
    return layer.run([hidden], [update], [hiddens], "rnn_states")
