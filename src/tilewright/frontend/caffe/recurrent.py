"""Converters of LSTM and RNN: sequences one after the other, with marks of where each begins."""

from __future__ import annotations

from tilewright.frontend.caffe.layer import Layer, converter
from tilewright.frontend.core.builder import rank_of, size_at, sizes_of
from tilewright.frontend.core.layers import flattened
from tilewright.graph.ir.dimensions import multiply
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32
from tilewright.support.errors import UnsupportedError, UserError

_MOST_STEPS = 2048


class _Sequence:
    """The bottoms of a recurrent layer, and what its data give all gates of all steps."""

    def __init__(self, layer: Layer, gates: int, states: int) -> None:
        self.layer, self.b = layer, layer.b
        options = layer.options("recurrent")
        self.size = int(options.num_output)
        self.exposed = bool(options.expose_hidden)
        data, marks = layer.input(0), layer.input(1)
        if rank_of(data) < 2 or rank_of(marks) != 2 or self.size < 1:
            raise UserError(f"{layer.message.type} of {self.size} numbers needs data (steps, batch, ...) and marks")
        self.steps, self.batch = size_at(data, 0), sizes_of(data)[1]
        if self.steps > _MOST_STEPS:
            raise UnsupportedError(f"{layer.message.type} of {self.steps} steps", hint=f"at most {_MOST_STEPS}")
        rows = gates * self.size
        flat = flattened(self.b, data, 2) if rank_of(data) > 2 else self.b.expand_dims(data, (2,))
        features = size_at(flat, 2)
        flat = self.b.reshape(flat, (multiply(self.steps, self.batch), features))
        entering = self.b.call("matmul", flat, layer.blob(0, (rows, features)), transpose_b=True)
        entering = self.b.call("add", entering, layer.blob(1, (rows,)))
        self.entering = self.b.reshape(entering, (self.steps, self.batch, rows))
        count = len(layer.inputs) - 2 - (states if self.exposed else 0)
        if count not in (0, 1):
            raise UserError(f"{layer.message.type} with {len(layer.inputs)} bottoms")
        self.next_blob = 2
        if count:
            static = flattened(self.b, layer.input(2), 1)
            fixed = self.b.call("matmul", static, layer.blob(2, (rows, size_at(static, 1))), transpose_b=True)
            self.entering = self.b.call("add", self.entering, self.b.expand_dims(fixed, (0,)))
            self.next_blob = 3
        self.marks = self.b.reshape(marks, (self.steps, self.batch, 1))
        self.first = [self._first_state(2 + count + at) for at in range(states)]

    def _first_state(self, index: int) -> GraphExpr:
        if self.exposed:
            return self.b.reshape(self.layer.input(index), (self.batch, self.size))
        return self.b.filled(0, (self.batch, self.size), FLOAT32)

    def step(self, at: int) -> tuple[GraphExpr, GraphExpr]:
        """What the data give the gates of a step, and the marks: 0 where a sequence begins."""
        return self.b.select(self.entering, 0, at), self.b.select(self.marks, 0, at)

    def results(self, outputs: list[GraphExpr], states: list[GraphExpr]) -> list[GraphExpr]:
        """All outputs, and the last states where they are asked for."""
        whole = self.b.stack(outputs, 0)
        return [whole, *(self.b.expand_dims(state, (0,)) for state in states)] if self.exposed else [whole]


@converter("LSTM")
def lstm(layer: Layer) -> list[GraphExpr]:
    """Gates in the order input, forget, output, cell; a mark of 0 forgets what was before."""
    sequence, b = _Sequence(layer, 4, 2), layer.b
    size = sequence.size
    weight = layer.blob(sequence.next_blob, (4 * size, size))
    hidden, cell = sequence.first
    outputs: list[GraphExpr] = []
    for at in range(sequence.steps):
        entering, mark = sequence.step(at)
        gates = b.add(entering, b.call("matmul", b.multiply(hidden, mark), weight, transpose_b=True))
        parts = [b.slice_axis(gates, 1, gate * size, (gate + 1) * size) for gate in range(4)]
        enter, forget, leave = (b.call("sigmoid", part) for part in parts[:3])
        kept = b.multiply(b.multiply(forget, mark), cell)
        cell = b.add(kept, b.multiply(enter, b.call("tanh", parts[3])))
        hidden = b.multiply(leave, b.call("tanh", cell))
        outputs.append(hidden)
    return sequence.results(outputs, [hidden, cell])


@converter("RNN")
def rnn(layer: Layer) -> list[GraphExpr]:
    """A state, and an output made of it, both by tanh."""
    sequence, b = _Sequence(layer, 1, 1), layer.b
    size, blob = sequence.size, sequence.next_blob
    weight, leaving = layer.blob(blob, (size, size)), layer.blob(blob + 1, (size, size))
    bias = layer.blob(blob + 2, (size,))
    hidden = sequence.first[0]
    outputs: list[GraphExpr] = []
    for at in range(sequence.steps):
        entering, mark = sequence.step(at)
        product = b.call("matmul", b.multiply(hidden, mark), weight, transpose_b=True)
        hidden = b.call("tanh", b.add(entering, product))
        outputs.append(b.call("tanh", b.add(b.call("matmul", hidden, leaving, transpose_b=True), bias)))
    return sequence.results(outputs, [hidden])
