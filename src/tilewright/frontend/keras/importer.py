"""Import of Keras models: the layers of a configuration, called one after the other, as a graph.

    module = from_keras("model.keras")                                   # or model.h5
    module = from_keras("model.keras", shapes={"image": (1, 224, 224, 3)})
    module = from_keras("model.keras", layers={"Swish": swish})          # what a layer of one's own means

Inputs have the names of the input layers, outputs those of the layers that give them (or the keys of a dictionary). No
code of a file is run: layers that are functions of Python are refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.frontend.core.builder import dtype_of
from tilewright.frontend.core.functions import chosen_shape, main_module, new_input, refuse_unknown
from tilewright.frontend.keras import catalog
from tilewright.frontend.keras.context import LayerCall, Session
from tilewright.frontend.keras.files import KerasFile, read_keras
from tilewright.frontend.keras.graph import Arguments, Graph, Reference, model_parts, read_graph
from tilewright.frontend.keras.layer import Layer, Scope, as_dtype, find_kind, policy_name, read_layer
from tilewright.frontend.keras.legacy_weights import legacy_scope
from tilewright.frontend.keras.registry import Converter, Kind
from tilewright.frontend.keras.values import KerasBuilder, Value, as_values, leaves, mapped, tensors
from tilewright.graph.ir.expr import GraphExpr, Var
from tilewright.ir.dtype import DataType
from tilewright.ir.function import IRModule
from tilewright.support.errors import UnsupportedError, UserError
from tilewright.support.span import Span

assert catalog.__all__  # imported so that every layer is registered


def from_keras(
    source: str | os.PathLike[str] | bytes,
    shapes: Mapping[str, Sequence[int | str | None]] | None = None,
    *,
    layers: Mapping[str, Converter] | None = None,
) -> IRModule:
    """Import a model of Keras: the path or the content of a `.keras` archive or a `.h5` file.

    `shapes` fixes or names open dimensions of inputs. `layers` says what layers of your own mean: functions by the
    names of their classes, as `register_layer` takes them.
    """
    return _Importer(read_keras(source), dict(layers or {})).module(dict(shapes or {}))


class _Importer:
    """The import of one model."""

    def __init__(self, file: KerasFile, own: Mapping[str, Converter]) -> None:
        self.file = file
        self.builder = KerasBuilder()
        self.session = Session(self.builder, file.source, self.apply, own, file.assets, file.version)
        self.names: list[str] = []
        """The models that are being built, from the outermost one."""

    def module(self, shapes: dict[str, Sequence[int | str | None]]) -> IRModule:
        model = read_layer(self.file.config, self._weights(), 0, "model")
        if not model.is_model:
            raise UnsupportedError(
                f"the model is of the class {model.kind}, whose code is not in the file",
                where=self.file.source,
                hint="export it as SavedModel, TFLite or ONNX (model.export), or build it as a functional model",
            )
        if self.file.legacy is not None:
            model.weights = legacy_scope(self.file.legacy, model, self.session.own)
            model.parts.clear()
        graph = read_graph(model)
        params = self._inputs(model, graph, shapes)
        results = self._run(model, graph, [Value(param) for param in params])
        names = _output_names(graph.outputs)
        values = tensors(results)
        if not values:
            raise UserError("the model has no outputs", where=self.file.source)
        names = names if len(names) == len(values) else [f"output_{place}" for place in range(len(values))]
        outputs = [value.expr for value in values]
        return main_module(self.builder, params, outputs, names, model.name, self.session.functions)

    def _weights(self) -> Scope:
        weights = self.file.weights
        return Scope(lambda path: None if weights is None else weights.array(path))

    # Inputs

    def _inputs(self, model: Layer, graph: Graph, shapes: dict[str, Sequence[int | str | None]]) -> list[Var]:
        by_name = {layer.name: layer for layer in graph.layers}
        declared: list[tuple[str, list[Any], Any]] = []
        for item in leaves(graph.inputs):
            if not isinstance(item, Reference):
                raise UserError("an input of the model is no tensor", where=model.where)
            if item.layer in by_name and by_name[item.layer].kind == "InputLayer":
                declared.append(_declared_input(by_name[item.layer]))
            elif item.layer == "":
                declared.append(_first_layer_input(model, graph.layers[0], shapes))
            else:
                raise UserError(f"the input '{item.layer}' is no input layer of the model", where=model.where)
        names = [name for name, _, _ in declared]
        if len(set(names)) != len(names):
            raise UserError(f"two inputs have the same name: {', '.join(names)}", where=model.where)
        params: list[Var] = []
        for name, shape, dtype in declared:
            label: list[int | str] = [
                _size(size, name, "batch" if axis == 0 else f"{name}_{axis}") for axis, size in enumerate(shape)
            ]
            params.append(new_input(self.builder, name, chosen_shape(name, label, shapes), as_dtype(dtype)))
        refuse_unknown(shapes, names)
        return params

    # Models

    def _run(self, model: Layer, graph: Graph, given: Sequence[Value]) -> Any:
        """What a model gives for its inputs."""
        places = list(leaves(graph.inputs))
        if len(places) != len(given):
            raise UserError(f"the model takes {len(places)} tensors, not {len(given)}", where=model.where)
        results: dict[str, list[list[Any]]] = {layer.name: [] for layer in graph.layers}
        whole: dict[str, list[Any]] = {layer.name: [] for layer in graph.layers}
        entering: dict[str, Value] = {}
        by_name = {layer.name: layer for layer in graph.layers}
        for place, value in zip(places, given, strict=True):
            layer = by_name.get(place.layer)
            if layer is not None and layer.kind == "InputLayer":
                value = self._as_declared(value, as_dtype(_declared_input(layer)[2]))
                results[layer.name].append([value])
            else:
                entering[place.layer] = value

        def value_of(item: Reference) -> Any:
            if item.layer in entering:
                return entering[item.layer]
            if item.tensor == -1:
                return whole[item.layer][item.node]
            calls = results.get(item.layer)
            if calls is None or not 0 <= item.node < len(calls) or not 0 <= item.tensor < len(calls[item.node]):
                raise UserError(
                    f"there is no output {item.tensor} of call {item.node} of the layer '{item.layer}'",
                    where=model.where,
                )
            return calls[item.node][item.tensor]

        for layer, call in _in_order(model, graph, results):
            args, kwargs = call.resolved(value_of)
            result = self.apply(layer, args, kwargs)
            results[layer.name].append(list(leaves(result)))
            whole[layer.name].append(result)
        return mapped(lambda item: value_of(item) if isinstance(item, Reference) else item, graph.outputs)

    def _as_declared(self, value: Value, dtype: DataType) -> Value:
        """A tensor as an input layer declares it."""
        if dtype_of(value.expr) is dtype:
            return value
        return Value(self.builder.cast(value.expr, dtype), value.mask)

    # Layers

    def apply(self, layer: Layer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a layer: gives tensors with their masks."""
        outer = self.builder.span
        self.builder.span = Span("/".join([*self.names, layer.name]))
        try:
            if layer.is_model and layer.registered not in self.session.own:
                return self._call_model(layer, args, kwargs)
            return self._call_layer(layer, find_kind(layer, self.session.own), args, kwargs)
        except UserError as error:
            error.where = error.where or layer.where
            raise
        finally:
            self.builder.span = outer

    def _call_model(self, layer: Layer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self.names.append(layer.name)
        try:
            given = tensors(args[0]) if args else []
            mask = kwargs.get("mask")
            if isinstance(mask, Value) and len(given) == 1:
                given = [Value(given[0].expr, mask.expr)]
            return self._run(layer, read_graph(layer), given)
        finally:
            self.names.pop()

    def _call_layer(self, layer: Layer, kind: Kind, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if kind.autocast:
            args, kwargs = mapped(self._cast_to(layer), list(args)), mapped(self._cast_to(layer), dict(kwargs))
        call = LayerCall(layer, self.session, args, kwargs)
        result = kind.convert(call)
        if isinstance(result, GraphExpr) and kind.keeps_mask:
            return Value(result, call.mask)
        return as_values(result)

    def _cast_to(self, layer: Layer) -> Any:
        """Floats in the type that a layer computes in."""
        wanted = layer.dtype

        def cast(item: Any) -> Any:
            if not isinstance(item, Value):
                return item
            dtype = dtype_of(item.expr)
            if not dtype.is_float or not wanted.is_float or dtype is wanted:
                return item
            return Value(self.builder.cast(item.expr, wanted), item.mask)

        return cast


def _in_order(model: Layer, graph: Graph, results: Mapping[str, Sequence[object]]) -> Any:
    """The calls of all layers, each after those whose outputs it takes; `results` are of the calls that are done."""
    waiting = [(layer, list(graph.nodes.get(layer.name, []))) for layer in graph.layers]
    waiting = [(layer, calls) for layer, calls in waiting if calls]
    while waiting:
        progress = False
        for layer, calls in waiting:
            while calls and _is_ready(calls[0], results):
                progress = True
                yield layer, calls.pop(0)
        waiting = [(layer, calls) for layer, calls in waiting if calls]
        if waiting and not progress:
            names = ", ".join(f"'{layer.name}'" for layer, _ in waiting[:4])
            raise UserError(f"the layers {names} wait for tensors that nothing gives", where=model.where)


def _is_ready(call: Arguments, results: Mapping[str, Sequence[object]]) -> bool:
    return all(item.layer == "" or item.node < len(results.get(item.layer, ())) for item in call.references())


def _declared_input(layer: Layer) -> tuple[str, list[Any], Any]:
    """The name, shape and type of an input layer."""
    shape = layer.option("batch_shape", layer.option("batch_input_shape"))
    if layer.flag("sparse") or layer.flag("ragged"):
        raise UnsupportedError("a sparse or ragged input", where=layer.where, hint="build the model with a dense one")
    if not isinstance(shape, list):
        raise UnsupportedError(
            f"an input of the shape {shape!r}", where=layer.where, hint="build the model with keras.Input(shape)"
        )
    return layer.name, shape, policy_name(layer.option("dtype"))


def _first_layer_input(
    model: Layer, first: Layer, shapes: Mapping[str, Sequence[int | str | None]]
) -> tuple[str, list[Any], Any]:
    """The input of a sequential model without an input layer: its first layer, or the model itself, has its shape."""
    built = model.entry.get("build_config")
    candidates = [
        first.option("batch_input_shape"),
        model.option("build_input_shape"),
        built.get("input_shape") if isinstance(built, dict) else None,
    ]
    while first.is_model and model_parts(first):
        first = model_parts(first)[0]
        candidates.append(first.option("batch_shape", first.option("batch_input_shape")))
    dtype = first.option("input_dtype") or ("int32" if first.kind == "Embedding" else "float32")
    for shape in candidates:
        if isinstance(shape, list) and all(size is None or isinstance(size, int) for size in shape):
            return f"{first.name}_input", shape, dtype
    given = shapes.get(f"{first.name}_input")
    if given is not None:
        return f"{first.name}_input", [None] * len(given), dtype
    raise UserError(
        "the model does not say the shape of its input",
        where=model.where,
        hint=f"give it: shapes={{'{first.name}_input': (1, ...)}}, or save the model after it was built",
    )


def _size(size: Any, name: str, label: str) -> int | str:
    if size is None:
        return label
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise UserError(f"the input '{name}' has a dimension {size!r}")
    return size


def _output_names(outputs: Any) -> list[str]:
    """A name for each output: the key of a dictionary, or the layer that gives it."""
    names: list[str] = []
    if isinstance(outputs, dict) and all(isinstance(item, Reference) for item in outputs.values()):
        return sorted(outputs)
    for item in leaves(outputs):
        name = item.layer if isinstance(item, Reference) else "output"
        while name in names:
            name = f"{name}_{names.count(name)}" if f"{name}_{names.count(name)}" not in names else f"{name}_"
        names.append(name)
    return names
