"""How recurrences are written as ONNX nodes: a `Scan` over the steps, with the arithmetic of one step as its body.

ONNX's own recurrent nodes give the last cell alone and take the input before its products; ours have all states, and
products that were computed for all steps at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.graph.ir.expr import Call
from tilewright.ir.dtype import FLOAT32, FLOAT64, INT64, DataType
from tilewright.ir.types import TensorType, Type
from tilewright.onnx_writer.rules_shape import wide
from tilewright.onnx_writer.writer import Writer, rule

Step = Callable[[str, list[str]], list[str]]
"""What enters at a step and the states before it -> the states after it."""


class _Arithmetic:
    """Arithmetic of gates, in the type that sums are computed in."""

    def __init__(self, writer: Writer, call: Call, dtype: DataType) -> None:
        self.writer, self.own = writer, call.attributes
        self.dtype = dtype if dtype is FLOAT64 else FLOAT32

    def node(self, operation: str, *inputs: str, **attributes: Any) -> str:
        return str(self.writer.node(operation, *inputs, **attributes))

    def number(self, value: float) -> str:
        return self.writer.number(value, self.dtype)

    def widened(self, name: str) -> str:
        return self.node("Cast", name, to=self.writer.element(self.dtype))

    def gate(self, gates: str, number: int) -> str:
        """One gate of (batch, gates, size)."""
        return self.node("Gather", gates, self.writer.constant(np.int64(number)), axis=1)

    def products(self, state: str, weights: str) -> str:
        """The products of a state (batch, size) with matrices (gates, size, size): (batch, gates, size)."""
        turned = self.node("Transpose", self.widened(weights), perm=[0, 2, 1])
        return self.node("Transpose", self.node("MatMul", state, turned), perm=[1, 0, 2])

    def activated(self, place: int, value: str) -> str:
        """An activation function of what is clipped to the limit, if there is one."""
        own: Any = self.own
        if own.clip is not None:
            value = self.node("Clip", value, self.number(-own.clip), self.number(own.clip))
        return self.plain(place, value)

    def plain(self, place: int, x: str) -> str:
        """An activation function."""
        own: Any = self.own
        name, alpha, beta = own.activations[place]
        simple = {"sigmoid": "Sigmoid", "tanh": "Tanh", "relu": "Relu", "softplus": "Softplus", "softsign": "Softsign"}
        if name in simple:
            return self.node(simple[name], x)
        if name == "affine":
            return self.node("Add", self.node("Mul", x, self.number(alpha)), self.number(beta))
        if name == "leaky_relu":
            return self.node("LeakyRelu", x, alpha=alpha)
        if name == "thresholded_relu":
            return self.node("Where", self.node("Greater", x, self.number(alpha)), x, self.number(0))
        if name == "scaled_tanh":
            return self.node("Mul", self.node("Tanh", self.node("Mul", x, self.number(beta))), self.number(alpha))
        if name == "hard_sigmoid":
            return self.node("HardSigmoid", x, alpha=alpha, beta=beta)
        return self.node("Elu", x, alpha=alpha)


def _scanned(writer: Writer, call: Call, data: str, states: Sequence[str], lengths: str, step: Step) -> list[str]:
    """All states of all steps, initial ones first."""
    own: Any = call.attributes
    arithmetic = _Arithmetic(writer, call, call.args[0].tensor_type.dtype)
    dtype = call.args[0].tensor_type.dtype
    shape = call.args[0].tensor_type.shape
    kinds: list[Type] = [TensorType((None, None) if shape is None else (shape[1], shape[3]), dtype) for _ in states]
    before = [writer.fresh("state") for _ in states]
    entered, number = writer.fresh("entered"), writer.fresh("step")

    def body() -> list[str]:
        wide_states = [arithmetic.widened(name) for name in before]
        after = step(arithmetic.widened(entered), wide_states)
        if lengths:
            running = writer.node("Less", number, lengths)
            running = writer.node("Reshape", running, writer.constant([-1, 1], np.int64))
            after = [writer.node("Where", running, new, old) for new, old in zip(after, wide_states, strict=True)]
        found = [writer.node("Cast", name, to=writer.element(dtype)) for name in after]
        return [*found, *found]

    steps = writer.node("Shape", data, start=0, end=1)
    count = writer.node("Reshape", steps, writer.constant(np.zeros(0, np.int64)))
    numbers = writer.node("Range", writer.constant(np.int64(0)), count, writer.constant(np.int64(1)))
    ends: list[tuple[str, Type]] = [*zip(before, kinds, strict=True)]
    scanned: list[tuple[str, Type]] = [
        (entered, TensorType((None,) * 3 if shape is None else shape[1:], dtype)),
        (number, TensorType((), INT64)),
    ]
    results = writer.node(
        "Scan",
        *states,
        data,
        numbers,
        outputs=2 * len(states),
        body=writer.graph([*ends, *scanned], body, [*kinds, *kinds]),
        num_scan_inputs=2,
        scan_input_directions=[int(own.backward)] * 2,
    )
    first = writer.constant([0], np.int64)
    rows = [writer.node("Unsqueeze", state, first) for state in states]
    return [writer.node("Concat", row, found, axis=0) for row, found in zip(rows, results[len(states) :], strict=True)]


@rule("nn.lstm")
def _lstm(writer: Writer, call: Call, inputs: list[str]) -> tuple[str, ...]:
    own: Any = call.attributes
    data, weights, hidden, cell = inputs[:4]
    lengths = wide(writer, call.args[4], inputs[4]) if len(inputs) > 4 else ""
    of = _Arithmetic(writer, call, call.args[0].tensor_type.dtype)
    holes = [""] * 3
    if len(inputs) > 5:
        parts = [writer.constant(np.int64(number)) for number in range(3)]
        holes = [of.widened(str(writer.node("Gather", inputs[5], part, axis=0))) for part in parts]

    def step(entered: str, states: list[str]) -> list[str]:
        old, before = states
        gates = of.node("Add", entered, of.products(old, weights))

        def peeped(number: int, hole: str, state: str) -> str:
            gate = of.gate(gates, number)
            return of.node("Add", gate, of.node("Mul", hole, state)) if hole else gate

        enter = of.activated(0, peeped(0, holes[0], before))
        if own.coupled:
            forget = of.node("Sub", of.number(1), enter)
        else:
            forget = of.activated(0, peeped(2, holes[2], before))
        candidate = of.node("Mul", enter, of.activated(1, of.gate(gates, 3)))
        fresh = of.node("Add", of.node("Mul", forget, before), candidate)
        leave = of.activated(0, peeped(1, holes[1], fresh))
        return [of.node("Mul", leave, of.plain(2, fresh)), fresh]

    return tuple(_scanned(writer, call, data, [hidden, cell], lengths, step))


@rule("nn.gru")
def _gru(writer: Writer, call: Call, inputs: list[str]) -> str:
    own: Any = call.attributes
    data, weights, hidden, bias = inputs[:4]
    lengths = wide(writer, call.args[4], inputs[4]) if len(inputs) > 4 else ""
    of = _Arithmetic(writer, call, call.args[0].tensor_type.dtype)

    def step(entered: str, states: list[str]) -> list[str]:
        (old,) = states
        products = of.products(old, weights)
        sums = of.node("Add", entered, products)
        update, reset = (of.activated(0, of.gate(sums, number)) for number in (0, 1))
        if own.reset_after:
            product = of.node("Mul", reset, of.node("Add", of.gate(products, 2), of.widened(bias)))
        else:
            kept = of.products(of.node("Mul", reset, old), weights)
            product = of.node("Add", of.gate(kept, 2), of.widened(bias))
        candidate = of.activated(1, of.node("Add", of.gate(entered, 2), product))
        stays = of.node("Mul", of.node("Sub", of.number(1), update), candidate)
        return [of.node("Add", stays, of.node("Mul", update, old))]

    return _scanned(writer, call, data, [hidden], lengths, step)[0]


@rule("nn.rnn")
def _rnn(writer: Writer, call: Call, inputs: list[str]) -> str:
    data, weights, hidden = inputs[:3]
    lengths = wide(writer, call.args[3], inputs[3]) if len(inputs) > 3 else ""
    of = _Arithmetic(writer, call, call.args[0].tensor_type.dtype)

    def step(entered: str, states: list[str]) -> list[str]:
        sums = of.node("Add", entered, of.products(states[0], weights))
        return [of.activated(0, of.gate(sums, 0))]

    return _scanned(writer, call, data, [hidden], lengths, step)[0]


@rule("cumprod")
def _cumprod(writer: Writer, call: Call, inputs: list[str]) -> str:
    """Running products: a Scan along the axis whose state is the product so far."""
    own: Any = call.attributes
    kind = call.tensor_type
    shape = kind.shape
    rank = kind.rank or 0
    slice_kind = TensorType(
        (None,) * (rank - 1) if shape is None else (*shape[: own.axis], *shape[own.axis + 1 :]), kind.dtype
    )
    first = writer.node("ReduceSum", inputs[0], writer.constant([own.axis], np.int64), keepdims=0)
    start = writer.node("Expand", writer.number(1, kind.dtype), writer.node("Shape", first))
    before, entered = writer.fresh("product"), writer.fresh("entered")

    def body() -> list[str]:
        after = writer.node("Mul", before, entered)
        return [after, before if own.exclusive else after]

    return str(
        writer.node(
            "Scan",
            start,
            inputs[0],
            outputs=2,
            body=writer.graph([(before, slice_kind), (entered, slice_kind)], body, [slice_kind, slice_kind]),
            num_scan_inputs=1,
            scan_input_axes=[own.axis],
            scan_output_axes=[own.axis],
            scan_input_directions=[int(own.reverse)],
            scan_output_directions=[int(own.reverse)],
        )[1]
    )
