"""An ONNX graph as a torch module: the operators that the benchmark models use, with torch's own functions.

Each node becomes a closure when the module is built; inputs that only say something about shapes (axes, starts, sizes)
must be constants and are read then. Weights are buffers of the module, so that torch.compile can freeze them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import torch
import torch.nn.functional as functional
from onnx import numpy_helper

Step = Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]


class OnnxModule(torch.nn.Module):
    """A module that runs the nodes of an ONNX graph in order."""

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__()
        graph = model.graph
        self.constants = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
        self.input_names = [item.name for item in graph.input if item.name not in self.constants]
        self.output_names = [item.name for item in graph.output]
        self._buffer_of: dict[str, str] = {}
        self._steps: list[tuple[Step, list[str], list[str]]] = []
        for node in graph.node:
            make = _STEPS.get(node.op_type)
            if make is None:
                raise ValueError(f"no torch equivalent of the ONNX operator {node.op_type} is known here")
            attributes = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
            step, used = make(self, list(node.input), attributes)
            self._steps.append((step, used, [name for name in node.output if name]))
            for name in used:
                if name in self.constants:
                    self._keep(name)

    def _keep(self, name: str) -> None:
        if name not in self._buffer_of:
            self._buffer_of[name] = f"weight_{len(self._buffer_of)}"
            self.register_buffer(self._buffer_of[name], torch.from_numpy(self.constants[name].copy()))

    def add_module_of(self, module: torch.nn.Module) -> torch.nn.Module:
        """Register a part that has weights of its own."""
        self.add_module(f"part_{len(list(self.children()))}", module)
        return module

    def numbers(self, name: str) -> list[int]:
        """A constant input that says something about shapes."""
        if name not in self.constants:
            raise ValueError(f"the input {name} is not a constant")
        return [int(value) for value in self.constants[name].reshape(-1)]

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the graph; inputs and outputs are in the graph's order."""
        values = dict(zip(self.input_names, inputs, strict=True))
        for name, buffer in self._buffer_of.items():
            values[name] = getattr(self, buffer)
        for step, used, made in self._steps:
            result = step(*(values[name] for name in used))
            if isinstance(result, torch.Tensor):
                values[made[0]] = result
            else:
                values.update(zip(made, result, strict=False))
        return tuple(values[name] for name in self.output_names)


Made = tuple[Step, list[str]]
"""A step, and the names of the tensors that it takes."""
Attributes = dict[str, object]


def _simple(function: Step) -> Callable[[OnnxModule, list[str], Attributes], Made]:
    return lambda module, names, attributes: (function, names)


def _binary(function: Step) -> Callable[[OnnxModule, list[str], Attributes], Made]:
    """Single numbers stay numbers: torch.compile recognises attention only when its scale is one."""

    def make(module: OnnxModule, names: list[str], attributes: Attributes) -> Made:
        numbers = {n: module.constants[name] for n, name in enumerate(names) if name in module.constants}
        right = numbers.get(1)
        if right is not None and right.ndim == 0 and 0 not in numbers:
            value = right.item()
            return (lambda x: function(x, value)), names[:1]
        return function, names

    return make


def _pads(attributes: Attributes, axes: int = 2) -> list[int]:
    pads = list(attributes.get("pads", [0] * 2 * axes))
    if pads[:axes] != pads[axes:]:
        raise ValueError(f"padding {pads} is not the same on both sides")
    return pads[:axes]


def _conv_options(attributes: Attributes, axes: int) -> dict[str, object]:
    return {
        "stride": attributes.get("strides", [1] * axes),
        "padding": _pads(attributes, axes),
        "dilation": attributes.get("dilations", [1] * axes),
        "groups": attributes.get("group", 1),
    }


def _conv(module: OnnxModule, names: list[str], attributes: Attributes) -> Made:
    axes = module.constants[names[1]].ndim - 2
    options = _conv_options(attributes, axes)
    function = {1: functional.conv1d, 2: functional.conv2d}[axes]
    return (lambda *tensors: function(*tensors, **options)), names


def _conv_transpose(module: OnnxModule, names: list[str], attributes: Attributes) -> Made:
    axes = module.constants[names[1]].ndim - 2
    options = {**_conv_options(attributes, axes), "output_padding": attributes.get("output_padding", [0] * axes)}
    function = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d}[axes]
    return (lambda *tensors: function(*tensors, **options)), names


def _batch_norm(module: OnnxModule, names: list[str], attributes: Attributes) -> Made:
    epsilon = attributes.get("epsilon", 1e-5)
    return (lambda x, scale, bias, mean, var: functional.batch_norm(x, mean, var, scale, bias, eps=epsilon)), names


def _layer_norm(module: OnnxModule, names: list[str], attributes: Attributes) -> Made:
    epsilon = attributes.get("epsilon", 1e-5)
    shape = list(module.constants[names[1]].shape)
    return (lambda x, scale, bias: functional.layer_norm(x, shape, scale, bias, epsilon)), names


def _linear(module: OnnxModule, names: list[str], attributes: Attributes) -> Made:
    """torch.nn.Linear, whose weight is stored output-major."""
    weight, bias = (torch.from_numpy(module.constants[name].copy()) for name in names[1:])
    layer = torch.nn.Linear(weight.shape[0], weight.shape[1], dtype=weight.dtype)
    with torch.no_grad():
        layer.weight.copy_(weight.T)
        layer.bias.copy_(bias)
    module.add_module_of(layer)
    return layer, names[:1]


def _attention(module: OnnxModule, names: list[str], attributes: Attributes) -> Made:
    scale = attributes["scale"]

    def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)

    return step, names


def _max_pool(module: OnnxModule, names: list[str], attributes: Attributes) -> Made:
    window, strides, pads = attributes["kernel_shape"], attributes.get("strides", [1, 1]), _pads(attributes)
    return (lambda x: functional.max_pool2d(x, window, strides, pads)), names


def _average_pool(module: OnnxModule, names: list[str], attributes: Attributes) -> Made:
    window, strides, pads = attributes["kernel_shape"], attributes.get("strides", [1, 1]), _pads(attributes)
    return (lambda x: functional.avg_pool2d(x, window, strides, pads, count_include_pad=False)), names


def _resize(module: OnnxModule, names: list[str], attributes: Attributes) -> Made:
    scales = module.constants[names[2]].tolist() if len(names) > 2 and names[2] else []
    how = (attributes.get("mode"), attributes.get("coordinate_transformation_mode"), attributes.get("nearest_mode"))
    if how != (b"nearest", b"asymmetric", b"floor") or scales[:2] != [1, 1]:
        raise ValueError("Resize other than of images to their nearest pixels")
    return (lambda x: functional.interpolate(x, scale_factor=tuple(scales[2:]), mode="nearest")), names[:1]


def _split(module: OnnxModule, names: list[str], attributes: Attributes) -> Made:
    sizes = module.numbers(names[1])
    return (lambda x: torch.split(x, sizes, attributes.get("axis", 0))), names[:1]


def _expand(module: OnnxModule, names: list[str], attributes: Attributes) -> Made:
    shape = module.numbers(names[1])
    return (lambda x: x.expand(torch.broadcast_shapes(x.shape, shape))), names[:1]


def _prelu(module: OnnxModule, names: list[str], attributes: Attributes) -> Made:
    return (lambda x, slope: torch.where(x < 0, slope * x, x)), names


def _gemm(module: OnnxModule, names: list[str], attributes: Attributes) -> Made:
    if attributes.get("transA", 0) or attributes.get("alpha", 1.0) != 1.0 or attributes.get("beta", 1.0) != 1.0:
        raise ValueError("Gemm with transA, alpha or beta")
    if attributes.get("transB", 0):
        return functional.linear, names
    return (lambda x, weight, bias: torch.addmm(bias, x, weight)), names


def _flatten(module: OnnxModule, names: list[str], attributes: Attributes) -> Made:
    return (lambda x: torch.flatten(x, attributes.get("axis", 1))), names


def _clip(module: OnnxModule, names: list[str], attributes: Attributes) -> Made:
    low, high = (float(module.constants[name].reshape(())) if name else None for name in (*names[1:], "")[:2])
    return (lambda x: torch.clamp(x, low, high)), names[:1]


def _reshape(module: OnnxModule, names: list[str], attributes: Attributes) -> Made:
    shape = module.numbers(names[1])

    def step(x: torch.Tensor) -> torch.Tensor:
        return x.reshape([x.shape[n] if size == 0 else size for n, size in enumerate(shape)])

    return step, names[:1]


def _transpose(module: OnnxModule, names: list[str], attributes: Attributes) -> Made:
    order = attributes["perm"]
    return (lambda x: x.permute(*order)), names


def _unsqueeze(module: OnnxModule, names: list[str], attributes: Attributes) -> Made:
    axes = module.numbers(names[1])

    def step(x: torch.Tensor) -> torch.Tensor:
        for axis in sorted(axes):
            x = x.unsqueeze(axis)
        return x

    return step, names[:1]


def _squeeze(module: OnnxModule, names: list[str], attributes: Attributes) -> Made:
    axes = tuple(module.numbers(names[1])) if len(names) > 1 else ()
    return (lambda x: x.squeeze(axes) if axes else x.squeeze()), names[:1]


def _slice(module: OnnxModule, names: list[str], attributes: Attributes) -> Made:
    starts, ends = module.numbers(names[1]), module.numbers(names[2])
    axes = module.numbers(names[3]) if len(names) > 3 and names[3] else list(range(len(starts)))
    steps = module.numbers(names[4]) if len(names) > 4 else [1] * len(starts)
    if min(steps) < 1:
        raise ValueError("Slice that goes backwards")

    def step(x: torch.Tensor) -> torch.Tensor:
        for axis, start, end, every in zip(axes, starts, ends, steps, strict=True):
            # Python's slices count from the end and stop at it just as ONNX's do.
            x = x[(slice(None),) * (axis % x.ndim) + (slice(start, end, every),)]
        return x

    return step, names[:1]


def _concat(module: OnnxModule, names: list[str], attributes: Attributes) -> Made:
    return (lambda *tensors: torch.cat(tensors, attributes["axis"])), names


def _gather(module: OnnxModule, names: list[str], attributes: Attributes) -> Made:
    axis = attributes.get("axis", 0)
    if names[1] in module.constants and module.constants[names[1]].ndim == 0:
        index = int(module.constants[names[1]])
        return (lambda x: x.select(axis, index)), names[:1]
    if axis == 0:
        return (lambda x, index: functional.embedding(index, x)), names
    return (lambda x, index: torch.index_select(x, axis, index)), names


def _cast(module: OnnxModule, names: list[str], attributes: Attributes) -> Made:
    dtype = torch.from_numpy(np.zeros(1, onnx.helper.tensor_dtype_to_np_dtype(attributes["to"]))).dtype
    return (lambda x: x if x.dtype == dtype else x.to(dtype)), names


def _softmax(module: OnnxModule, names: list[str], attributes: Attributes) -> Made:
    return (lambda x: torch.softmax(x, attributes.get("axis", -1))), names


def _reduce_mean(module: OnnxModule, names: list[str], attributes: Attributes) -> Made:
    axes = list(attributes["axes"]) if "axes" in attributes else module.numbers(names[1])
    keep = bool(attributes.get("keepdims", 1))
    return (lambda x: x.mean(axes, keepdim=keep)), names[:1]


def _reduce_max(module: OnnxModule, names: list[str], attributes: Attributes) -> Made:
    keep = bool(attributes.get("keepdims", 1))
    return (lambda x: torch.amax(x, list(attributes["axes"]), keepdim=keep)), names[:1]


def _gru(module: OnnxModule, names: list[str], attributes: Attributes) -> Made:
    """torch.nn.GRU in both directions, with ONNX's gates (update, reset, hidden) in torch's order (r, z, n)."""
    if attributes.get("direction") != b"bidirectional" or not attributes.get("linear_before_reset") or len(names) > 4:
        raise ValueError("a GRU that is not bidirectional, or not torch's")
    hidden = attributes["hidden_size"]
    weights, recurrent, biases = (module.constants[name] for name in names[1:4])
    cell = torch.nn.GRU(weights.shape[2], hidden, bidirectional=True)

    def ordered(array: np.ndarray) -> torch.Tensor:
        gates = array.reshape(3, hidden, *array.shape[1:])
        return torch.from_numpy(gates[[1, 0, 2]].reshape(array.shape).copy())

    with torch.no_grad():
        for direction, suffix in enumerate(("", "_reverse")):
            getattr(cell, f"weight_ih_l0{suffix}").copy_(ordered(weights[direction]))
            getattr(cell, f"weight_hh_l0{suffix}").copy_(ordered(recurrent[direction]))
            getattr(cell, f"bias_ih_l0{suffix}").copy_(ordered(biases[direction][: 3 * hidden]))
            getattr(cell, f"bias_hh_l0{suffix}").copy_(ordered(biases[direction][3 * hidden :]))
    module.add_module_of(cell)

    def step(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, last = cell(x)
        return y.reshape(*y.shape[:2], 2, hidden).transpose(1, 2), last

    return step, names[:1]


def _lstm(module: OnnxModule, names: list[str], attributes: Attributes) -> Made:
    """torch.nn.LSTM with ONNX's gates (input, output, forget, cell) put into torch's order (i, f, g, o)."""
    if attributes.get("direction", b"forward") != b"forward" or attributes.get("layout", 0):
        raise ValueError("an LSTM that is not plain and forward")
    hidden = attributes["hidden_size"]
    weight, recurrent, bias = (module.constants[name][0] for name in names[1:4])

    def ordered(array: np.ndarray) -> torch.Tensor:
        gates = array.reshape(4, hidden, *array.shape[1:])
        return torch.from_numpy(gates[[0, 2, 3, 1]].reshape(array.shape).copy())

    cell = torch.nn.LSTM(weight.shape[1], hidden, dtype=ordered(weight).dtype)
    with torch.no_grad():
        cell.weight_ih_l0.copy_(ordered(weight))
        cell.weight_hh_l0.copy_(ordered(recurrent))
        cell.bias_ih_l0.copy_(ordered(bias[: 4 * hidden]))
        cell.bias_hh_l0.copy_(ordered(bias[4 * hidden :]))
    module.add_module_of(cell)

    def step(x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, (last_h, last_c) = cell(x, (h, c))
        return y.unsqueeze(1), last_h, last_c

    return step, [names[0], names[5], names[6]]


_STEPS: dict[str, Callable[[OnnxModule, list[str], Attributes], Made]] = {
    "Add": _binary(torch.add),
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "Clip": _clip,
    "Concat": _concat,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Cos": _simple(torch.cos),
    "Div": _binary(torch.div),
    "Erf": _simple(torch.erf),
    "Expand": _expand,
    "Flatten": _flatten,
    "GRU": _gru,
    "Gather": _gather,
    "Gelu": _simple(functional.gelu),
    "Gemm": _gemm,
    "GlobalAveragePool": _simple(lambda x: functional.adaptive_avg_pool2d(x, 1)),
    "Identity": _simple(lambda x: x),
    "LSTM": _lstm,
    "LayerNormalization": _layer_norm,
    "Linear": _linear,
    "MatMul": _simple(torch.matmul),
    "MaxPool": _max_pool,
    "Mul": _binary(torch.mul),
    "Neg": _simple(torch.neg),
    "PRelu": _prelu,
    "Pow": _binary(torch.pow),
    "ReduceMax": _reduce_max,
    "ReduceMean": _reduce_mean,
    "Relu": _simple(torch.relu),
    "Reshape": _reshape,
    "Resize": _resize,
    "ScaledDotProductAttention": _attention,
    "Sigmoid": _simple(torch.sigmoid),
    "Sin": _simple(torch.sin),
    "Slice": _slice,
    "Softmax": _softmax,
    "Split": _split,
    "Sqrt": _simple(torch.sqrt),
    "Squeeze": _squeeze,
    "Sub": _binary(torch.sub),
    "Tanh": _simple(torch.tanh),
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
