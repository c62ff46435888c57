"""Import of Caffe models: a .prototxt with the .caffemodel of its name beside it, or a .caffemodel alone.

Inputs are those of the net, and what its data layers give; shapes that the net says may be changed by `shapes`, as
Caffe's own nets may be reshaped. Layers of training alone (losses, accuracy) are left out. The outputs are all blobs
that no layer reads, in the order of their names, as in Caffe.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.frontend.caffe import arithmetic, convolution, detection, pooling, recurrent, shape
from tilewright.frontend.caffe.files import CaffeModel, read_model
from tilewright.frontend.caffe.layer import Layer, converter
from tilewright.frontend.core.converters import NamingBuilder
from tilewright.frontend.core.functions import main_module, new_input, refuse_unknown
from tilewright.graph.ir.expr import GraphExpr, Var
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.function import IRModule
from tilewright.support.errors import UserError

FAMILIES = (arithmetic, convolution, detection, pooling, recurrent, shape)
"""The modules whose converters are registered."""
Shapes = dict[str, Sequence[int | str | None]]
_TEST = 1
_LEFT_OUT = ("Accuracy", "HDF5Output", "DetectionEvaluate")
_DATA = ("Data", "ImageData", "HDF5Data", "MemoryData", "WindowData", "DummyData", "AnnotatedData", "Input")


def from_caffe(
    source: str | os.PathLike[str] | bytes,
    shapes: Mapping[str, Sequence[int | str | None]] | None = None,
    weights: str | os.PathLike[str] | None = None,
) -> IRModule:
    """Import a Caffe model: the path of its .prototxt or .caffemodel, or the bytes of one.

    The other file lies beside it under the same name (or is the only one of its kind there); `weights` names another
    .caffemodel. `shapes` gives inputs other shapes: `{"data": ("batch", 3, 224, 224)}`.
    """
    return _Importer(read_model(source, weights)).module(dict(shapes or {}))


def _is_included(layer: Any, state: Any) -> bool:
    if layer.include:
        return any(_meets(rule, state) for rule in layer.include)
    return not any(_meets(rule, state) for rule in layer.exclude)


def _meets(rule: Any, state: Any) -> bool:
    """Whether a rule holds when the net is tested."""
    if rule.HasField("phase") and rule.phase != _TEST:
        return False
    if rule.HasField("min_level") and state.level < rule.min_level:
        return False
    if rule.HasField("max_level") and state.level > rule.max_level:
        return False
    stages = set(state.stage)
    return stages.issuperset(rule.stage) and not stages.intersection(rule.not_stage)


def _is_left_out(layer: Any) -> bool:
    return layer.type in _LEFT_OUT or layer.type.endswith("Loss")


class _Importer:
    """The import of one net."""

    def __init__(self, model: CaffeModel) -> None:
        self.model = model
        self.builder = NamingBuilder()
        self.values: dict[str, GraphExpr] = {}
        self.params: list[Var] = []
        self.shared: dict[str, Array] = {}
        self.unread: set[str] = set()

    def module(self, shapes: Shapes) -> IRModule:
        net = self.model.net
        layers = [layer for layer in net.layer if _is_included(layer, net.state)]
        if not layers:
            raise UserError("the net has no layers", where=self.model.source)
        self._inputs_of_net(shapes)
        read = {bottom for layer in layers if not _is_left_out(layer) for bottom in layer.bottom}
        for layer in layers:
            if layer.type in _DATA:
                self._inputs_of_layer(layer, read, shapes)
            elif layer.type == "SoftmaxWithLoss":
                self._unlabelled(layer)
            elif not _is_left_out(layer):
                self._convert(layer)
        refuse_unknown(shapes, [param.name for param in self.params])
        names = sorted(self.unread)
        if not names:
            raise UserError("the net has no outputs: every blob is read by some layer", where=self.model.source)
        return main_module(self.builder, self.params, [self.values[name] for name in names], names, net.name)

    # Inputs

    def _inputs_of_net(self, shapes: Shapes) -> None:
        net = self.model.net
        for at, name in enumerate(net.input):
            if len(net.input_shape) > at:
                shape: list[int] = [int(size) for size in net.input_shape[at].dim]
            elif len(net.input_dim) >= 4 * (at + 1):
                shape = [int(size) for size in net.input_dim[4 * at : 4 * at + 4]]
            else:
                shape = []
            self._new_input(name, shape or None, shapes)

    def _inputs_of_layer(self, layer: Any, read: set[str], shapes: Shapes) -> None:
        known = _declared_shapes(layer)
        for at, top in enumerate(layer.top):
            # Labels, which only losses read, are no inputs.
            if layer.type == "Input" or top in read:
                place = 0 if len(known) == 1 else at
                self._new_input(top, known[place] if place < len(known) else None, shapes)

    def _new_input(self, name: str, shape: Sequence[int] | None, shapes: Shapes) -> None:
        given = shapes.pop(name, None)
        if shape is None and given is None:
            raise UserError(
                f"the net does not say the shape of its input '{name}'",
                where=self.model.source,
                hint=f'give it: shapes={{"{name}": (1, 3, 224, 224)}}',
            )
        declared: Sequence[int | None] = shape or [None] * len(given or ())
        if given is not None and len(given) != len(declared):
            raise UserError(f"the input '{name}' has {len(declared)} dimensions {tuple(declared)}, not {len(given)}")
        sizes: list[int | str] = []
        for axis, (old, new) in enumerate(zip(declared, given or declared, strict=True)):
            sizes.append(new if new is not None else old if old is not None else f"{name}_{axis}")
        if any(isinstance(size, int) and size < 1 for size in sizes):
            raise UserError(f"the input '{name}' has the shape {tuple(sizes)}", where=self.model.source)
        variable = new_input(self.builder, name, sizes, FLOAT32)
        self.params.append(variable)
        self._define(name, variable)

    def _define(self, name: str, value: GraphExpr) -> None:
        self.values[name] = value
        self.unread.add(name)

    # Layers

    def _bottoms(self, layer: Any, names: Sequence[str]) -> list[GraphExpr]:
        for name in names:
            if name not in self.values:
                raise UserError(
                    f"the layer reads '{name}', which no layer before it gives", where=f"{layer.type} '{layer.name}'"
                )
            self.unread.discard(name)
        return [self.values[name] for name in names]

    def _blobs(self, layer: Any) -> list[Array]:
        """The blobs of a layer; those that layers share by name are the first one's."""
        own = list(self.model.blobs.get(layer.name, ()))
        for at, spec in enumerate(layer.param):
            if not spec.name:
                continue
            if spec.name in self.shared:
                own[at : at + 1] = [self.shared[spec.name]]
            elif at < len(own):
                self.shared[spec.name] = own[at]
        return own

    def _convert(self, layer: Any) -> None:
        bottoms = self._bottoms(layer, layer.bottom)
        node = Layer(layer, bottoms, self._blobs(layer), self.builder)
        results = converter.convert(self.builder, layer.type, layer.name, node)
        if len(results) < len(layer.top):
            raise UserError(
                f"the layer has {len(layer.top)} tops, {len(results)} are known", where=f"{layer.type} '{layer.name}'"
            )
        for name, value in zip(layer.top, results, strict=False):
            self._define(name, value)

    def _unlabelled(self, layer: Any) -> None:
        """The loss of a classifier that is asked for its classes: their chances."""
        bottoms = self._bottoms(layer, layer.bottom[:1])
        name = layer.top[1] if len(layer.top) > 1 else layer.name
        node = Layer(layer, bottoms, [], self.builder)
        self._define(name, converter.convert(self.builder, "Softmax", layer.name, node)[0])


def _declared_shapes(layer: Any) -> list[list[int]]:
    """The shapes that a data layer says its tops have."""
    match layer.type:
        case "Input":
            return [[int(size) for size in item.dim] for item in layer.input_param.shape]
        case "DummyData":
            options = layer.dummy_data_param
            old = zip(options.num, options.channels, options.height, options.width, strict=False)
            return [[int(size) for size in item.dim] for item in options.shape] or [
                list(map(int, sizes)) for sizes in old
            ]
        case "MemoryData":
            options = layer.memory_data_param
            return [[int(options.batch_size), int(options.channels), int(options.height), int(options.width)]]
    return []
