"""Weights of `.h5` files: the variables of each layer in a list, what training changes before the rest.

The list says nothing of what a variable is for: the layers do (`Kind.variables`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.frontend.keras.files import H5File
from tilewright.frontend.keras.graph import model_parts
from tilewright.frontend.keras.layer import Layer, Scope
from tilewright.frontend.keras.registry import Slot
from tilewright.frontend.keras.variables import all_slots
from tilewright.graph.ir.op import Array
from tilewright.support.errors import UserError

_GROUP = "model_weights"


def legacy_scope(file: H5File, model: Layer, own: Mapping[str, Any]) -> Scope:
    """The weights of a model by the paths that `.keras` archives have for them."""
    places: dict[str, str] = {}
    group = _GROUP if file.has(_GROUP) else ""
    for layer in model_parts(model):
        names = file.texts(f"{group}/{layer.name}", "weight_names") if file.has(f"{group}/{layer.name}") else None
        if not names:
            continue
        for slot, name in zip(_ordered(layer, own, len(names)), names, strict=True):
            places[layer.weights.prefix + slot.path] = f"{group}/{layer.name}/{name}"

    def read(path: str) -> Array | None:
        return file.array(places[path]) if path in places else None

    return Scope(read)


def _ordered(layer: Layer, own: Mapping[str, Any], count: int) -> list[Slot]:
    if layer.kind in own or layer.registered in own:
        return [Slot(f"vars/{number}") for number in range(count)]
    slots = all_slots(layer)
    if len(slots) != count:
        raise UserError(
            f"the file has {count} weights for it, where {len(slots)} belong to such a layer",
            where=layer.where,
            hint="save the model as a .keras archive",
        )
    return [slot for slot in slots if slot.trainable] + [slot for slot in slots if not slot.trainable]
