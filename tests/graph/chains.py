"""Models that are long chains of one motif, as ONNX: thousands of nodes one after the other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

SIZE = 8
"""Rows and columns of what goes through a chain."""


class Chain:
    """Nodes, each of which takes what the one before it gives."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self.value = "x"

    def add(self, operator: str, *inputs: str, outputs: int = 1, **attributes: object) -> list[str]:
        """A node; what it gives goes on only if it is said (`then`)."""
        names = [f"v{len(self.nodes)}_{number}" for number in range(outputs)]
        self.nodes.append(helper.make_node(operator, list(inputs), names, **attributes))
        return names

    def then(self, operator: str, *inputs: str, **attributes: object) -> str:
        """A node on the chain's value, and inputs besides: its result is the chain's value from now on."""
        self.value = self.add(operator, self.value, *inputs, **attributes)[0]
        return self.value

    def weight(self, name: str, array: np.ndarray) -> str:
        """A constant of this name, the same each time."""
        self.weights.setdefault(name, array)
        return name

    def model(self, rows: int | str = SIZE) -> ModelProto:
        """The model that gives the last value."""
        shape = [rows, SIZE]
        graph = helper.make_graph(
            self.nodes,
            "chain",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(self.value, TensorProto.FLOAT, None)],
            [numpy_helper.from_array(array, name) for name, array in self.weights.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def _rotation() -> np.ndarray:
    """A weight that keeps values as large as they are."""
    return np.roll(np.eye(SIZE, dtype=np.float32), 1, axis=1)


def _elementwise(chain: Chain, turn: int) -> None:
    chain.then("Sigmoid" if turn % 2 else "Tanh")


def _residual(chain: Chain, turn: int) -> None:
    before = chain.value
    chain.then("Relu")
    chain.then("Neg")
    chain.then("Add", before)


def _quantised(chain: Chain, turn: int) -> None:
    """Quantise, dequantise, multiply: a quantised network as its author ships it."""
    scale = chain.weight("scale", np.array(0.01, np.float32))
    zero = chain.weight("zero", np.array(128, np.uint8))
    weight = chain.weight("bytes", (_rotation() * 100).astype(np.int8))
    middle = chain.weight("middle", np.array(0, np.int8))
    chain.then("QuantizeLinear", scale, zero)
    chain.then("DequantizeLinear", scale, zero)
    dequantised = chain.add("DequantizeLinear", weight, scale, middle)[0]
    chain.then("MatMul", dequantised)


def _dynamically_quantised(chain: Chain, turn: int) -> None:
    """Scales that each turn finds itself: nothing of a later turn is known without all the turns before it."""
    weight = chain.weight("bytes", (_rotation() * 100).astype(np.int8))
    chain.weight("weight_scale", np.array(0.01, np.float32))
    data, scale, zero = chain.add("DynamicQuantizeLinear", chain.value, outputs=3)
    product = chain.add("MatMulInteger", data, weight, zero)[0]
    wide = chain.add("Cast", product, to=TensorProto.FLOAT)[0]
    both = chain.add("Mul", scale, "weight_scale")[0]
    chain.value = chain.add("Mul", wide, both)[0]


def _moves(chain: Chain, turn: int) -> None:
    chain.then("Transpose", perm=[1, 0])
    chain.then("Reshape", chain.weight("shape", np.array([4, 2 * SIZE])))
    chain.then("Reshape", chain.weight("back", np.array([SIZE, SIZE])))
    if turn % 5 == 0:
        chain.then("Exp")
        chain.then("Neg")


def _transposes(chain: Chain, turn: int) -> None:
    """Nothing but movement, and a product that looks what was moved."""
    chain.then("Transpose", perm=[1, 0])
    if turn % 500 == 499:
        chain.then("MatMul", chain.weight("weight", _rotation()))


def _products(chain: Chain, turn: int) -> None:
    chain.then("MatMul", chain.weight("weight", _rotation()))
    chain.then("Add", chain.weight("bias", np.zeros(SIZE, np.float32)))
    chain.then("Relu")


def _normalised(chain: Chain, turn: int) -> None:
    """Layer normalisation spelled out: reductions between elementwise operators."""
    mean = chain.add("ReduceMean", chain.value, chain.weight("axes", np.array([-1])))[0]
    centred = chain.add("Sub", chain.value, mean)[0]
    square = chain.add("Mul", centred, centred)[0]
    spread = chain.add("ReduceMean", square, "axes")[0]
    moved = chain.add("Add", spread, chain.weight("epsilon", np.array(1e-5, np.float32)))[0]
    root = chain.add("Sqrt", moved)[0]
    chain.value = chain.add("Div", centred, root)[0]


def _powers(chain: Chain, turn: int) -> None:
    """Operators whose importers ask whether an input is known, of inputs that all that came before decides."""
    exponent = chain.add("ReduceMax", chain.value, keepdims=0)[0]
    chain.value = chain.add("Pow", chain.value, exponent)[0]
    chain.then(
        "Clip", chain.weight("least", np.array(0, np.float32)), chain.add("ReduceMax", chain.value, keepdims=0)[0]
    )


def _shapes(chain: Chain, turn: int) -> None:
    """Shape arithmetic between the turns."""
    shape = chain.add("Shape", chain.value)[0]
    flat = chain.add("Reshape", chain.value, chain.weight("flat", np.array([-1])))[0]
    chain.value = chain.add("Reshape", flat, shape)[0]
    if turn % 4 == 0:
        chain.then("Exp")


def _indices(chain: Chain, turn: int) -> None:
    """Rows by indices that the data decides, which are checked."""
    places = chain.add("ArgMax", chain.value, axis=1, keepdims=0)[0]
    moved = chain.add("Add", places, chain.weight("one", np.array(1)))[0]
    chain.value = chain.add("Gather", chain.value, moved)[0]


def _sized_by_data(chain: Chain, turn: int) -> None:
    """Tensors whose sizes the data decide: each is bound by a `let` of its own, and the machine runs the model."""
    places = chain.add("NonZero", chain.value)[0]
    floats = chain.add("Cast", places, to=TensorProto.FLOAT)[0]
    mean = chain.add("ReduceMean", floats, keepdims=0)[0]
    chain.then("Add", mean)
    chain.then("Sigmoid")


def _branches(chain: Chain, turn: int) -> None:
    """A branch that the data decide, in each turn."""
    total = chain.add("ReduceSum", chain.value, keepdims=0)[0]
    condition = chain.add("Greater", total, chain.weight("few", np.array(1, np.float32)))[0]
    sides = [
        helper.make_graph(
            [helper.make_node(operator, [chain.value], [f"{operator}_{turn}"])],
            operator,
            [],
            [helper.make_tensor_value_info(f"{operator}_{turn}", TensorProto.FLOAT, None)],
        )
        for operator in ("Sigmoid", "Exp")
    ]
    chain.value = chain.add("If", condition, then_branch=sides[0], else_branch=sides[1])[0]


MOTIFS: dict[str, Callable[[Chain, int], None]] = {
    "elementwise": _elementwise,
    "residual": _residual,
    "quantised": _quantised,
    "dynamically quantised": _dynamically_quantised,
    "moves": _moves,
    "transposes": _transposes,
    "products": _products,
    "normalised": _normalised,
    "powers": _powers,
    "shapes": _shapes,
    "indices": _indices,
    "sized by data": _sized_by_data,
    "branches": _branches,
}
"""What one turn of a chain is."""


def chain_of(motif: str, nodes: int, rows: int | str = SIZE) -> ModelProto:
    """A chain of about so many nodes."""
    chain = Chain()
    turn = 0
    while len(chain.nodes) < nodes:
        MOTIFS[motif](chain, turn)
        turn += 1
    return chain.model(rows)
