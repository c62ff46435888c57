"""CNTK 2 models as files, written by its schema: `python -m bench.cntk_writer FOLDER` writes those of the tests.

CNTK itself no longer installs. What the files of the tests should give is computed by numpy and torch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.frontend.cntk.dictionary import SCHEMA, Axis
from tilewright.frontend.cntk.model import CONSTANT, INPUT, OPERATORS, PARAMETER, PLACEHOLDER

Array = Any
BATCH = Axis(2**31 - 1, "defaultBatchAxis", False)
SEQUENCE = Axis(2**31 - 1, "defaultDynamicAxis", True)


class Shape(tuple[int, ...]):
    """Sizes in the order of the file."""


def value(item: Any) -> Any:
    """A value of a dictionary."""
    made = SCHEMA.message("DictionaryValue")(version=1)
    match item:
        case bool():
            made.value_type, made.bool_value = 1, item
        case int():
            made.value_type, made.size_t_value = 3, item
        case float():
            made.value_type, made.double_value = 5, item
        case str():
            made.value_type, made.string_value = 6, item
        case Shape():
            made.value_type = 7
            made.nd_shape_value.shape_dim.extend(item)
        case Axis():
            made.value_type = 8
            made.axis_value.static_axis_idx, made.axis_value.name = item.number, item.name
            made.axis_value.is_ordered_dynamic_axis = item.ordered
        case list():
            made.value_type = 9
            made.vector_value.value.extend(value(part) for part in item)
        case dict():
            made.value_type = 10
            made.dictionary_value.CopyFrom(dictionary(item))
        case _:
            array = np.asarray(item, np.float32)
            made.value_type = 11
            view = made.nd_array_view_value
            view.data_type = 1
            view.shape.shape_dim.extend(reversed(array.shape))
            view.float_values.value.extend(array.ravel())
    return made


def dictionary(items: dict[str, Any]) -> Any:
    """A dictionary of the file."""
    made = SCHEMA.message("Dictionary")(version=1)
    for key, item in items.items():
        made.data[key].CopyFrom(value(item))
    return made


class Network:
    """A model being written: variables and functions by uid."""

    def __init__(self) -> None:
        self.variables: list[dict[str, Any]] = []
        self.functions: list[dict[str, Any]] = []

    def variable(self, kind: int, shape: Sequence[int], axes: Sequence[Axis], name: str, data: Array = None) -> str:
        """A variable; its shape is that of numpy."""
        uid = name or f"v{len(self.variables)}"
        item: dict[str, Any] = {
            "version": 1,
            "type": "Variable",
            "uid": uid,
            "kind": kind,
            "data_type": 1,
            "dynamic_axis": list(axes),
            "is_sparse": False,
            "needs_gradient": False,
            "shape": Shape(reversed(tuple(shape))),
            "name": name,
        }
        if data is not None:
            item["value"] = np.asarray(data, np.float32)
        self.variables.append(item)
        return uid

    def input(self, name: str, shape: Sequence[int], sequence: bool = False) -> str:
        """An input variable."""
        return self.variable(INPUT, shape, [SEQUENCE, BATCH] if sequence else [BATCH], name)

    def parameter(self, data: Array) -> str:
        """A parameter."""
        return self.variable(PARAMETER, np.shape(data), [], "", data)

    def constant(self, number: float) -> str:
        """A constant scalar."""
        return self.variable(CONSTANT, (), [], "", number)

    def call(self, operator: str, *inputs: str, uid: str = "", **attributes: Any) -> str:
        """An operator; gives the uid of its first output."""
        own = uid or f"{operator}{len(self.functions)}"
        self.functions.append(
            {
                "version": 1,
                "type": "PrimitiveFunction",
                "uid": own,
                "op": OPERATORS.index(operator),
                "name": "",
                "inputs": list(inputs),
                "attributes": attributes,
            }
        )
        return f"{own}_Output_0"

    def save(self, *outputs: str) -> bytes:
        """The file."""
        root = outputs[0].partition("_Output_")[0]
        if len(outputs) > 1:
            root = self.call("Combine", *outputs).partition("_Output_")[0]
        items = {"version": 1, "type": "CompositeFunction", "root": root, "uid": "CompositeFunction0", "name": "net"}
        content = {**items, "inputs": self.variables, "primitive_functions": self.functions}
        return bytes(dictionary(content).SerializeToString())


def _image(random: np.random.Generator) -> tuple[bytes, Array, Array]:
    """A convolution, pooling and a dense layer."""
    import torch

    weight = random.standard_normal((4, 1, 3, 3)).astype(np.float32)
    dense = random.standard_normal((4, 4, 4, 3)).astype(np.float32)
    net = Network()
    x = net.input("x", (1, 8, 8))
    sides: dict[str, Any] = {"lowerPad": Shape((0,)), "upperPad": Shape((0,))}
    y = net.call(
        "Convolution", net.parameter(weight), x, strides=Shape((1, 1, 1)), autoPadding=[True, True, False], **sides
    )
    y = net.call(
        "Pooling", net.call("ReLU", y), poolingType=0, poolingWindowShape=Shape((2, 2)), strides=Shape((2, 2)), **sides
    )
    y = net.call("Softmax", net.call("Times", net.parameter(dense), y, outputRank=1))
    data = random.standard_normal((2, 1, 8, 8)).astype(np.float32)
    maps = torch.relu(torch.nn.functional.conv2d(torch.from_numpy(data), torch.from_numpy(weight), padding=1))
    pooled = torch.nn.functional.max_pool2d(maps, 2)
    return net.save(y), data, torch.softmax(torch.einsum("nchw,chwo->no", pooled, torch.from_numpy(dense)), 1).numpy()


def _sequence(random: np.random.Generator) -> tuple[bytes, Array, Array]:
    """A recurrence: h(t) = tanh(W x(t) + R h(t - 1))."""
    weight, again = random.standard_normal((4, 3)), random.standard_normal((3, 3)) / 2
    net = Network()
    x = net.input("x", (4,), sequence=True)
    net.variable(PLACEHOLDER, (3,), [SEQUENCE, BATCH], "state_Output_0")
    past = net.call("PastValue", "state_Output_0", net.constant(0.0), offset=1)
    total = net.call("Plus", net.call("Times", net.parameter(weight), x), net.call("Times", net.parameter(again), past))
    y = net.call("Tanh", total, uid="state")
    data = random.standard_normal((2, 5, 4)).astype(np.float32)
    states = [np.zeros((2, 3))]
    for step in range(5):
        states.append(np.tanh(data[:, step] @ weight + states[-1] @ again))
    return net.save(y), data, np.stack(states[1:], axis=1).astype(np.float32)


def main(arguments: list[str]) -> None:
    """Write the files of the tests into a folder."""
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for name, made in (("image", _image(random)), ("sequence", _sequence(random))):
        content, data, expected = made
        (folder / f"{name}.dnn").write_bytes(content)
        np.savez(folder / f"{name}.npz", x=data, y=expected)


if __name__ == "__main__":
    main(sys.argv[1:])
