"""The table of layers and operations: which function turns which class of Keras into graph operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tilewright.support.errors import UserError
from tilewright.support.extensions import note_registration

Converter = Callable[[Any], Any]
"""From a call (`context.LayerCall`) to a tensor, or a list, tuple or dictionary of them, as the layer gives it."""
C = TypeVar("C", bound=Converter)


@dataclass(frozen=True)
class Slot:
    """A variable of a layer: its path in a weights file, and whether training changes it."""

    path: str
    trainable: bool = True


Slots = Callable[[Any], Sequence[Slot]]
"""From a layer (`layer.Layer`) to its variables."""


def no_variables(layer: object) -> Sequence[Slot]:
    """A layer without variables."""
    return ()


@dataclass(frozen=True)
class Kind:
    """What is known of a class of layers."""

    convert: Converter
    variables: Slots = no_variables
    """The variables in the order in which `.h5` files have them."""
    keeps_mask: bool = False
    """Whether a mask of its (first) input is one of its output."""
    autocast: bool = True
    """Whether inputs of floats are converted to the layer's own type first."""


_LAYERS: dict[str, Kind] = {}
_OPERATIONS: dict[str, Kind] = {}


def layer(
    *names: str, variables: Slots = no_variables, keeps_mask: bool = False, autocast: bool = True
) -> Callable[[C], C]:
    """Register the converter of classes of layers."""

    def register(convert: C) -> C:
        for name in names:
            _LAYERS[name] = Kind(convert, variables, keeps_mask, autocast)
        return convert

    return register


def operation(*names: str) -> Callable[[C], C]:
    """Register the converter of operations (`keras.ops`) by the names of their classes."""

    def register(convert: C) -> C:
        for name in names:
            _OPERATIONS[name] = Kind(convert, autocast=False)
        return convert

    return register


def register_layer(name: str, *, keeps_mask: bool = False, variables: Slots = no_variables) -> Callable[[C], C]:
    """Say what a layer of your own means: `name` is its class, or the name that it is registered under.

        @register_layer("Swish")
        def swish(call):
            return call.builder.multiply(call.input(0), call.call("sigmoid", call.input(0)))

    A layer that is registered again (a cell of a notebook that runs twice) is replaced; those of Keras stay.
    """
    if name in _BUILT_IN:
        raise UserError(f"the layer {name} is one of Keras' own", hint="choose another name for your class")

    def register(convert: C) -> C:
        _LAYERS[name] = Kind(convert, variables, keeps_mask)
        note_registration(convert)
        return convert

    return register


_BUILT_IN: set[str] = set()


def finish_built_in() -> None:
    """Called once all layers of Keras are registered."""
    _BUILT_IN.update(_LAYERS)


def find_layer(name: str) -> Kind | None:
    """What is known of a class of layers."""
    return _LAYERS.get(name)


def find_operation(name: str) -> Kind | None:
    """What is known of a class of operations."""
    return _OPERATIONS.get(name)


def known_layers() -> list[str]:
    """The names of all classes of layers."""
    return sorted(_LAYERS)


def known_operations() -> list[str]:
    """The names of all classes of operations."""
    return sorted(_OPERATIONS)
