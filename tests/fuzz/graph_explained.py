"""Differences between Tilewright and its oracles that have a reason, which is written here.

`graphs.py` shrinks each difference to as few nodes as show it; one that an entry fits is counted under its reason. Some
nodes, to whose results an oracle gives another shape (`is_avoided`), are left out of graphs: what follows would differ.
The tests of the importer hold each of these to the standard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import helper

Fits = Callable[[str, dict[str, Any], onnx.NodeProto], bool]
"""Whether an entry is about a node: of its operator, its attributes and the node itself."""


@dataclass(frozen=True)
class Explained:
    """A reason, and whether it fits a node."""

    reason: str
    fits: Fits
    is_avoided: bool = False
    said: str = ""
    """What the text of the difference must have."""


def _is_same(attributes: dict[str, Any]) -> bool:
    return str(attributes.get("auto_pad", "")).startswith("SAME")


TABLE: tuple[Explained, ...] = (
    Explained(
        "onnxruntime's SAME padding of pools forgets dilations",
        lambda op, a, node: (
            op in ("MaxPool", "AveragePool", "LpPool") and _is_same(a) and max(a.get("dilations", [1])) > 1
        ),
        is_avoided=True,
    ),
    Explained(
        "onnxruntime gives less than input times stride where strides are over the kernel",
        lambda op, a, node: op == "ConvTranspose" and _is_same(a) and "strides" in a,
        is_avoided=True,
    ),
    Explained(
        "SAME padding below zero (strides over the kernel) is undefined: onnxruntime refuses, the reference cuts off",
        lambda op, a, node: op.endswith("Pool") and _is_same(a) and max(a.get("strides", [1])) > min(a["kernel_shape"]),
    ),
    Explained(
        "ArgMax and ArgMin of nothing are undefined: refused here and by the reference",
        lambda op, a, node: op in ("ArgMax", "ArgMin"),
    ),
    Explained(
        "open sizes in broadcasts are taken to fit, and checked (docs/frontend_onnx.md)",
        lambda op, a, node: True,
        said="the model needs",
    ),
    Explained(
        "whole numbers divided by zero are an error here; what other runtimes give is undefined",
        lambda op, a, node: op in ("Mod", "Div"),
        said="a divisor of an integer division is zero",
    ),
    Explained(
        "TopK of more elements than there are is undefined",
        lambda op, a, node: op == "TopK",
        said="k is",
    ),
    Explained(
        "the standard divides 0 by 0 in DynamicQuantizeLinear of zeros",
        lambda op, a, node: op == "DynamicQuantizeLinear",
    ),
    Explained(
        "edges below 0 Hz of MelWeightMatrix are undefined, onnxruntime refuses them",
        lambda op, a, node: op == "MelWeightMatrix",
    ),
    Explained(
        "onnxruntime's MaxUnpool takes places as those of the given output_shape",
        lambda op, a, node: op == "MaxUnpool" and len(node.input) == 3,
    ),
    Explained(
        "onnxruntime's Resize cuts integers off, and halves round by the noise of floats",
        lambda op, a, node: op == "Resize" and a.get("mode") in ("linear", "cubic"),
        said=" elements",  # of integers
    ),
    Explained(
        "onnxruntime's Resize stretches by the rounded size, and leaves out what is outside with antialias",
        lambda op, a, node: (
            op == "Resize" and (a.get("coordinate_transformation_mode") == "align_corners" or bool(a.get("antialias")))
        ),
    ),
)


def explain(nodes: Sequence[onnx.NodeProto], text: str = "", avoided_only: bool = False) -> str | None:
    """The reason for a difference that some nodes show, if it is known."""
    for node in nodes:
        attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        plain = {name: value.decode() if isinstance(value, bytes) else value for name, value in attributes.items()}
        for entry in TABLE:
            asked = entry.said in text and (entry.is_avoided or not avoided_only)
            if asked and entry.fits(node.op_type, plain, node):
                return entry.reason
    return None
