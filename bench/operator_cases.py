"""A model of one operator: how it is made, with inputs and weights from a seed.

What says something about shapes (axes, starts, sizes), and weights, are constants of the model.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

Array = npt.NDArray[Any]
Make = Callable[[np.random.Generator], Array]
OPSET = 21


@dataclass(frozen=True)
class Case:
    """A model of one operator. Inputs and constants are in the operator's order; an empty name leaves one out."""

    name: str
    family: str
    operator: str
    inputs: Mapping[str, Make]
    constants: Mapping[str, Make | Array] = field(default_factory=dict)
    attributes: Mapping[str, object] = field(default_factory=dict)
    order: tuple[str, ...] = ()
    """Names of the operator's arguments, where they are not the inputs and then the constants."""
    outputs: int = 1
    opset: int = OPSET
    tolerance: float = 1e-4

    def arrays(self) -> dict[str, Array]:
        """The inputs of a run."""
        return {name: make(self._generator(name)) for name, make in self.inputs.items()}

    def model(self) -> onnx.ModelProto:
        """The model."""
        stored = {
            name: item if isinstance(item, np.ndarray) else item(self._generator(name))
            for name, item in self.constants.items()
        }
        results = [f"y{number}" for number in range(self.outputs)]
        arguments = self.order or (*self.inputs, *self.constants)
        node = helper.make_node(self.operator, arguments, results, name=self.name, **self.attributes)
        graph = helper.make_graph(
            [node],
            self.name,
            [
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
                for name, array in self.arrays().items()
            ],
            [helper.make_empty_tensor_value_info(name) for name in results],
            [numpy_helper.from_array(array, name) for name, array in stored.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)

    def _generator(self, name: str) -> np.random.Generator:
        return np.random.default_rng(zlib.crc32(f"{self.name}.{name}".encode()))


def floats(*shape: int, scale: float = 1.0) -> Make:
    """Normal numbers."""
    return lambda generator: (generator.standard_normal(shape) * scale).astype(np.float32)


def positive(*shape: int) -> Make:
    """Numbers from 0.5 to 2."""
    return lambda generator: generator.uniform(0.5, 2.0, shape).astype(np.float32)


def integers(below: int, *shape: int, dtype: type[np.generic] = np.int64) -> Make:
    """Whole numbers from 0 on."""
    return lambda generator: generator.integers(0, below, shape).astype(dtype)


def signed_bytes(*shape: int) -> Make:
    """Whole numbers from -127 to 127."""
    return lambda generator: generator.integers(-127, 128, shape).astype(np.int8)


def flags(*shape: int) -> Make:
    """True and false."""
    return lambda generator: generator.integers(0, 2, shape).astype(np.bool_)
