"""All variables of a layer with those of the layers inside it, in the order of Keras' `layer.weights`."""

from __future__ import annotations

from dataclasses import replace

from tilewright.frontend.keras.graph import model_parts
from tilewright.frontend.keras.layer import Layer, find_kind
from tilewright.frontend.keras.registry import Slot


def all_slots(layer: Layer) -> list[Slot]:
    """The variables, by paths from the layer; those of a layer that is not trained are not."""
    if layer.is_operation:
        return []
    if layer.is_model:
        found = [slot for part in model_parts(layer) for slot in under(layer, part)]
    else:
        found = list(find_kind(layer).variables(layer))
    return found if layer.is_trainable else [replace(slot, trainable=False) for slot in found]


def under(layer: Layer, part: Layer) -> list[Slot]:
    """The variables of a part, by paths from the layer that it is part of."""
    prefix = part.weights.prefix.removeprefix(layer.weights.prefix)
    return [replace(slot, path=prefix + slot.path) for slot in all_slots(part)]
