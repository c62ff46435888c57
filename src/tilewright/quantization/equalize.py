"""Cross-layer equalisation: channels between two layers get like ranges, so that one scale fits them all.

Before:  conv(relu(conv(x, a) + b), c)
After:   conv(relu(conv(x, a / s) + b / s), c * s)     with s = sqrt(range(a) / range(c)) for each channel between

Exact for what is between the layers and gives s * f(x) for f(s * x), s > 0: ReLU, its leaky form, sums with constants.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.traverse import rewrite, users
from tilewright.graph.ops.convolution import Conv2dAttributes
from tilewright.ir.function import IRModule
from tilewright.quantization.layers import Layer, find_layers, is_operator, visible

Array = npt.NDArray[Any]
_LEAST, _MOST = 1e-3, 1e3
"""The most a channel is scaled by: beyond it, what is left is rounding noise."""
_ROUNDS = 3


def equalize(function: Function) -> Function:
    """Equalise every pair of convolutions that one ReLU or nothing lies between, a few times over."""
    for _ in range(_ROUNDS):
        order = visible(function)
        layers = {id(layer.call): layer for layer in find_layers(order)}
        readers = users(order)
        changed: dict[int, Array] = {}
        for layer in layers.values():
            _equalize_pair(layer, layers, readers, changed)
        if not changed:
            return function
        function = _with_constants(function, changed)
    return function


def _with_constants(function: Function, changed: dict[int, Array]) -> Function:
    def replace(old: GraphExpr, new: GraphExpr) -> GraphExpr | None:
        if id(old) not in changed:
            return None
        result = constant(changed[id(old)], "float32")
        result.span = old.span
        return result

    body = rewrite(function.body, replace)
    result = Function(function.name, function.params, body, None, function.type_parameters, function.notes)
    module = infer_types(IRModule({function.name: result}))
    typed = module[function.name]
    assert isinstance(typed, Function)
    return typed


def _equalize_pair(
    first: Layer, layers: dict[int, Layer], readers: dict[int, list[GraphExpr]], changed: dict[int, Array]
) -> None:
    shifts: list[Constant] = []
    item: GraphExpr = first.call
    while True:
        if len(readers[id(item)]) != 1:
            return
        (reader,) = readers[id(item)]
        if id(reader) in layers:
            break
        if is_operator(reader, "add"):
            assert isinstance(reader, Call)
            other = reader.args[1] if reader.args[0] is item else reader.args[0]
            if not isinstance(other, Constant) or other.data.size not in (1, _channels(first)):
                return
            shifts.append(other)
        elif not is_operator(reader, "nn.relu", "nn.leaky_relu"):
            return
        item = reader
    second = layers[id(reader)]
    if second.call.args[0] is not item or not _plain(first) or not _plain(second):
        return
    constants = [first.weight, second.weight, *shifts]
    if any(part is None or id(part) in changed or len(readers[id(part)]) != 1 for part in constants):
        return
    _scale_channels(first, second, shifts, changed)


def _plain(layer: Layer) -> bool:
    attributes = layer.call.attributes
    if layer.weight is None or not isinstance(attributes, Conv2dAttributes) or attributes.kernel_layout != "OIHW":
        return False
    return attributes.groups == 1 or layer.weight.data.shape[1] == 1


def _channels(layer: Layer) -> int:
    return layer.weight.data.shape[layer.output_axis] if layer.weight is not None else 0


def _scale_channels(first: Layer, second: Layer, shifts: list[Constant], changed: dict[int, Array]) -> None:
    assert first.weight is not None and second.weight is not None
    assert isinstance(second.call.attributes, Conv2dAttributes)
    depthwise = second.call.attributes.groups != 1
    a, c = first.weight.data.astype(np.float64), second.weight.data.astype(np.float64)
    if depthwise and c.shape[0] != a.shape[0]:
        return
    range_a = np.abs(a).max(axis=(1, 2, 3))
    range_c = np.abs(c).max(axis=(1, 2, 3) if depthwise else (0, 2, 3))
    usable = (range_a > 0) & (range_c > 0)
    scale = np.where(usable, np.sqrt(range_a / np.where(usable, range_c, 1.0)), 1.0)
    scale = np.clip(scale, _LEAST, _MOST)
    if np.allclose(scale, 1.0, rtol=0.01):
        return
    spread = (-1, 1, 1, 1) if depthwise else (1, -1, 1, 1)
    changed[id(first.weight)] = (a / scale.reshape(-1, 1, 1, 1)).astype(np.float32)
    changed[id(second.weight)] = (c * scale.reshape(spread)).astype(np.float32)
    for shift in shifts:
        wide = np.broadcast_to(shift.data, (len(scale), 1, 1)).astype(np.float64)
        changed[id(shift)] = (wide / scale.reshape(-1, 1, 1)).astype(np.float32)
