"""A small builder of ONNX graphs with seeded random weights, on which the model families are written.

The graphs look as exporters leave them: batch normalisation is a node of its own, linear layers are `Gemm` or
`MatMul` + `Add`, names follow the module path. Weights are scaled so that activations stay near one from the first
layer to the last; only then does a comparison of outputs say something about every layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8

_ELEMENT_TYPES = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}

CONSTANT = "constant_"
"""How the names of stored constants begin that are neither weights nor statistics."""


class GraphBuilder:
    """Collects nodes, weights, inputs and outputs; each method that adds a node returns its output's name."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.random = np.random.default_rng([seed, *name.encode()])
        self.parameters = 0
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._taken: dict[str, int] = {}

    def input(self, name: str, shape: Sequence[int | str], dtype: str = "float32") -> str:
        """Declare a model input."""
        self._inputs.append(helper.make_tensor_value_info(name, _ELEMENT_TYPES[dtype], list(shape)))
        return name

    def output(self, value: str, name: str, shape: Sequence[int | str], dtype: str = "float32") -> None:
        """Declare `value` a model output, under a name of its own."""
        self._nodes.append(helper.make_node("Identity", [value], [name], name=f"/{name}/Identity"))
        self._outputs.append(helper.make_tensor_value_info(name, _ELEMENT_TYPES[dtype], list(shape)))

    def node(self, op: str, inputs: Sequence[str], path: str, outputs: int = 1, **attributes: object) -> str:
        """Add a node called `/path/op`, the second such `/path/op_1`; returns the name of its first output.

        The names of the others end in `_1`, `_2`, ... instead of `_0`.
        """
        name = f"/{path}/{op}"
        count = self._taken.get(name, 0)
        self._taken[name] = count + 1
        name = f"{name}_{count}" if count else name
        names = [f"{name}_output_{index}" for index in range(outputs)]
        self._nodes.append(helper.make_node(op, list(inputs), names, name=name, **attributes))
        return names[0]

    def split(self, value: str, path: str, sizes: Sequence[int], axis: int) -> list[str]:
        """The parts of a value along an axis."""
        first = self.node("Split", [value, self.constant(list(sizes))], path, outputs=len(sizes), axis=axis)
        return [f"{first.removesuffix('0')}{index}" for index in range(len(sizes))]

    def reshape(self, value: str, path: str, shape: Sequence[int]) -> str:
        """A value in a constant shape."""
        return self.node("Reshape", [value, self.constant(list(shape))], path)

    def weight(self, name: str, array: np.ndarray) -> str:
        """Add a trained parameter (counted) and return its name."""
        self.parameters += array.size
        return self.buffer(name, array)

    def buffer(self, name: str, array: np.ndarray) -> str:
        """Add a stored tensor that is not trained, such as running statistics (not counted)."""
        self._weights.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def constant(self, value: np.ndarray | Sequence[int] | float) -> str:
        """A constant, stored once however often it is used: a float is float32, whole numbers are int64."""
        array = np.asarray(value)
        array = array.astype(np.int64 if array.dtype.kind == "i" else np.float32)
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.buffer(f"{CONSTANT}{len(self._constants)}", array)
        return self._constants[key]

    def normal(self, shape: Sequence[int], std: float, mean: float = 0.0) -> np.ndarray:
        """Random float32 weights."""
        return self.random.standard_normal(tuple(shape), dtype=np.float32) * np.float32(std) + np.float32(mean)

    def uniform(self, shape: Sequence[int], low: float, high: float) -> np.ndarray:
        """Uniform random float32 weights."""
        return self.random.uniform(low, high, tuple(shape)).astype(np.float32)

    def conv(
        self,
        value: str,
        path: str,
        channels: tuple[int, int],
        kernel: int,
        *,
        stride: int = 1,
        padding: int = 0,
        groups: int = 1,
        dilation: int = 1,
        axes: int = 2,
        bias: bool = False,
        gain: float = 2.0,
    ) -> str:
        """A square convolution from `channels[0]` to `channels[1]`; `gain` 2 suits inputs that come from a ReLU."""
        fan_in = channels[0] // groups * kernel**axes
        shape = (channels[1], channels[0] // groups, *[kernel] * axes)
        inputs = [value, self.weight(f"{path}.weight", self.normal(shape, math.sqrt(gain / fan_in)))]
        if bias:
            inputs.append(self.weight(f"{path}.bias", self.normal((channels[1],), 0.1)))
        return self.node(
            "Conv",
            inputs,
            path,
            dilations=[dilation] * axes,
            group=groups,
            kernel_shape=[kernel] * axes,
            pads=[padding] * 2 * axes,
            strides=[stride] * axes,
        )

    def batch_norm(self, value: str, path: str, channels: int, scale: float = 1.0) -> str:
        """Batch normalisation with statistics such as a trained network has: none exactly 0 or 1."""
        return self.node(
            "BatchNormalization",
            [
                value,
                self.weight(f"{path}.weight", self.uniform((channels,), 0.7 * scale, 1.3 * scale)),
                self.weight(f"{path}.bias", self.normal((channels,), 0.15)),
                self.buffer(f"{path}.running_mean", self.normal((channels,), 0.2)),
                self.buffer(f"{path}.running_var", self.uniform((channels,), 0.6, 1.5)),
            ],
            path,
            epsilon=1e-5,
            momentum=0.9,
        )

    def linear(self, value: str, path: str, features: tuple[int, int]) -> str:
        """A fully connected layer on a matrix, as `Gemm` with the weight stored output-major."""
        weight = self.weight(f"{path}.weight", self.normal((features[1], features[0]), 1 / math.sqrt(features[0])))
        bias = self.weight(f"{path}.bias", self.normal((features[1],), 0.1))
        return self.node("Gemm", [value, weight, bias], path, alpha=1.0, beta=1.0, transB=1)

    def dense(self, value: str, path: str, features: tuple[int, int], std: float | None = None) -> str:
        """A fully connected layer on the last axis of any tensor, as `MatMul` then `Add`."""
        std = 1 / math.sqrt(features[0]) if std is None else std
        weight = self.weight(f"{path}.weight", self.normal(features, std))
        bias = self.weight(f"{path}.bias", self.normal((features[1],), 0.1))
        product = self.node("MatMul", [value, weight], path)
        return self.node("Add", [bias, product], path)

    def finish(self) -> onnx.ModelProto:
        """The checked model."""
        graph = helper.make_graph(self._nodes, self.name, self._inputs, self._outputs, self._weights)
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="tilewright-bench",
        )
        helper.set_model_props(model, {"parameters": str(self.parameters)})
        onnx.checker.check_model(model)
        return model
