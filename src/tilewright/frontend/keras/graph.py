"""Models as graphs of layers: which layer is called on what, in Keras' configurations of all versions.

A node of a functional model names the tensors it takes by the layer that gives them, the number of that layer's call
and the number of the output. Keras 3 writes arguments as they were given, with tensors among them; before that, a
node is a list of tensors with the keyword arguments behind the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tilewright.frontend.keras.layer import Layer, snake_case, unique
from tilewright.frontend.keras.values import leaves, mapped
from tilewright.support.errors import UnsupportedError, UserError


@dataclass(frozen=True, slots=True)
class Reference:
    """A tensor of a graph: an output of a call of a layer."""

    layer: str
    node: int
    tensor: int


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a call is given; tensors are references."""

    args: list[Any]
    kwargs: dict[str, Any]

    def references(self) -> Iterator[Reference]:
        """The tensors among the arguments."""
        for item in leaves([self.args, self.kwargs]):
            if isinstance(item, Reference):
                yield item

    def resolved(self, value_of: Callable[[Reference], Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments with values in the place of references."""

        def resolve(item: Any) -> Any:
            return value_of(item) if isinstance(item, Reference) else item

        return mapped(resolve, self.args), mapped(resolve, self.kwargs)


Structure: TypeAlias = "Any"
"""A tensor, or a list, tuple or dictionary of tensors."""


@dataclass(frozen=True)
class Graph:
    """A functional model."""

    layers: list[Layer]
    nodes: dict[str, list[Arguments]]
    """The calls of each layer by its name."""
    inputs: Structure
    outputs: Structure


def model_parts(model: Layer) -> list[Layer]:
    """The layers of a model, with their weights."""
    described = model.config.get("layers")
    if not isinstance(described, list):
        raise UserError("the model has no list of layers", where=model.where)
    container = "layers"
    if model.parts:
        return list(model.parts.values())
    used: dict[str, int] = {}
    names: set[str] = set()
    for number, item in enumerate(described):
        kind = item.get("class_name") if isinstance(item, dict) else None
        if not isinstance(kind, str):
            raise UserError(f"layer number {number} is described by {str(item)[:60]!r}", where=model.where)
        is_counted = not _is_operation_entry(item)
        label = unique(snake_case(kind.rpartition(">")[2]), used) if is_counted else f"operation {number}"
        part = model.part(f"{container}/{label}", item)
        if part.name in names:
            raise UserError(f"two layers have the name '{part.name}'", where=model.where)
        names.add(part.name)
    return list(model.parts.values())


def _is_operation_entry(item: dict[str, Any]) -> bool:
    module = item.get("module")
    return isinstance(module, str) and module.startswith("keras.src.ops")


def read_graph(model: Layer) -> Graph:
    """The graph of a functional or sequential model."""
    layers = model_parts(model)
    if model.kind == "Sequential" or "output_layers" not in model.config:
        return _chain(model, layers)
    nodes = {layer.name: _nodes_of(layer) for layer in layers}
    outputs = _references(model.config["output_layers"], model)
    inputs = _references(model.config.get("input_layers"), model)
    is_legacy = any(isinstance(item, list) for layer in layers for item in layer.entry.get("inbound_nodes") or ())
    return Graph(layers, *_renumbered(layers, nodes, inputs, outputs, is_legacy))


def _chain(model: Layer, layers: list[Layer]) -> Graph:
    """A sequential model: each layer takes what the one before gives."""
    if not layers:
        raise UserError("the model has no layers", where=model.where)
    nodes: dict[str, list[Arguments]] = {}
    first = layers[0]
    inputs = Reference("" if first.kind != "InputLayer" else first.name, 0, 0)
    before = inputs
    for layer in layers:
        if layer.kind == "InputLayer":
            nodes[layer.name] = []
            continue
        nodes[layer.name] = [Arguments([before], {})]
        before = Reference(layer.name, 0, -1)  # -1: all that the layer gives
    return Graph(layers, nodes, [inputs], before)


def _nodes_of(layer: Layer) -> list[Arguments]:
    described = layer.entry.get("inbound_nodes") or []
    if not isinstance(described, list):
        raise UserError("its nodes are no list", where=layer.where)
    return [_node(item, layer) for item in described]


def _node(item: Any, layer: Layer) -> Arguments:
    if isinstance(item, dict):
        args, kwargs = _argument(item.get("args", [])), _argument(item.get("kwargs", {}))
        if isinstance(args, (list, tuple)) and isinstance(kwargs, dict):
            return Arguments(list(args), kwargs)
    elif isinstance(item, list):
        return _legacy_node(item, layer)
    raise UserError(f"a node is described by {str(item)[:60]!r}", where=layer.where)


def _argument(item: Any) -> Any:
    """An argument as Keras 3 writes it."""
    if isinstance(item, list):
        return [_argument(part) for part in item]
    if not isinstance(item, dict):
        return item
    kind, config = item.get("class_name"), item.get("config")
    if not isinstance(kind, str) or config is None:
        return {key: _argument(part) for key, part in item.items()}
    match kind:
        case "__keras_tensor__":
            return _reference(config.get("keras_history") if isinstance(config, dict) else None)
        case "__tuple__":
            return tuple(_argument(part) for part in _listed(item))
        case "__slice__" if isinstance(config, dict):
            return slice(*(_argument(config.get(key)) for key in ("start", "stop", "step")))
        case "__ellipsis__":
            return Ellipsis
        case "__tensor__" | "__numpy__" if isinstance(config, dict):
            return _literal(config)
        case "__typespec__" | "__lambda__":
            raise UnsupportedError(f"an argument of the kind {kind}")
    return item  # an object of Keras, such as a layer or an initializer: for the converter


def _listed(item: dict[str, Any]) -> list[Any]:
    found = item.get("config")
    if isinstance(found, dict):
        found = found.get("value")
    if not isinstance(found, list):
        raise UserError(f"a tuple is described by {str(item)[:60]!r}")
    return found


def _literal(config: dict[str, Any]) -> Any:
    try:
        return np.asarray(config.get("value"), dtype=config.get("dtype"))
    except (TypeError, ValueError) as error:
        raise UserError(f"a tensor among the arguments is damaged: {error}") from error


def _reference(history: Any) -> Reference:
    if (
        isinstance(history, list)
        and len(history) >= 3
        and isinstance(history[0], str)
        and type(history[1]) is int
        and type(history[2]) is int
    ):
        return Reference(history[0], history[1], history[2])
    raise UserError(f"a tensor of the model is named by {str(history)[:60]!r}")


def _is_reference(item: Any) -> bool:
    return (
        isinstance(item, list)
        and 3 <= len(item) <= 4
        and isinstance(item[0], str)
        and all(type(part) is int for part in item[1:3])
    )


def _legacy_node(item: list[Any], layer: Layer) -> Arguments:
    """A node as Keras 1 and 2 write it: tensors, with keyword arguments behind them."""
    if _is_reference(item):
        item = [item]
    given: list[Any] = []
    kwargs: dict[str, Any] = {}
    for part in item:
        if not isinstance(part, list) or len(part) not in (3, 4) or not isinstance(part[0], str):
            raise UserError(f"a node is described by {str(part)[:60]!r}", where=layer.where)
        given.append(part[2] if part[0] == "_CONSTANT_VALUE" else _reference(part))
        if len(part) == 4:
            if not isinstance(part[3], dict):
                raise UserError(f"a node has the arguments {str(part[3])[:60]!r}", where=layer.where)
            kwargs.update({key: _legacy_argument(value) for key, value in part[3].items()})
    return Arguments([given[0] if len(given) == 1 else given], kwargs)


def _legacy_argument(item: Any) -> Any:
    if _is_reference(item):
        return item[2] if item[0] == "_CONSTANT_VALUE" else _reference(item)
    if isinstance(item, list):
        return [_legacy_argument(part) for part in item]
    if isinstance(item, dict):
        return {key: _legacy_argument(part) for key, part in item.items()}
    return item


def _references(item: Any, model: Layer) -> Structure:
    """The inputs or outputs of a model."""
    if _is_reference(item):
        return _reference(item)
    if isinstance(item, (list, tuple)):
        return [_references(part, model) for part in item]
    if isinstance(item, dict) and item.get("class_name") == "__tuple__":
        return [_references(part, model) for part in _listed(item)]
    if isinstance(item, dict):
        return {key: _references(part, model) for key, part in item.items()}
    raise UserError(f"an input or output is described by {str(item)[:60]!r}", where=model.where)


def _renumbered(
    layers: Sequence[Layer], nodes: dict[str, list[Arguments]], inputs: Structure, outputs: Structure, is_legacy: bool
) -> tuple[dict[str, list[Arguments]], Structure, Structure]:
    """Calls of models inside a model counted from 0: their own graph counts as a call in some places."""
    models = {layer.name: layer for layer in layers if layer.is_model}
    inner: dict[str, int] = {}
    outer: dict[str, int] = {}
    for name, layer in models.items():
        if is_legacy:
            found = [item for calls in nodes.values() for call in calls for item in call.references()]
            found += [item for item in leaves(outputs) if isinstance(item, Reference)]
            inner[name] = outer[name] = min((item.node for item in found if item.layer == name), default=0)
        elif layer.kind != "Sequential":
            outer[name] = 1

    def shift(by: dict[str, int]) -> Callable[[Any], Any]:
        def move(item: Any) -> Any:
            if not isinstance(item, Reference) or not by.get(item.layer):
                return item
            return Reference(item.layer, item.node - by[item.layer], item.tensor)

        return move

    moved = {
        name: [Arguments(mapped(shift(inner), call.args), mapped(shift(inner), call.kwargs)) for call in calls]
        for name, calls in nodes.items()
    }
    return moved, inputs, mapped(shift(outer), outputs)
