"""Images of depthwise convolutions by dot products get their border where they are made, if that is no kernel's own.

Before:  qnn.window_dots(take(table, x), w, zero, padding=(1, 1, 1, 1))
After:   qnn.window_dots(pad(take(table, x), before=(0, 1, 1, 0), after=(0, 1, 3, 0), value=zero), w, zero,
                         padding=(0, 0, 0, -2))

The convolution copies an image that lacks pixels. What is looked up, or padded anyway, is written with them as quickly.
The pixels of some neighbouring windows are loaded in whole groups, so that some past the last window are beside the
image, too: the padding on the right is less than nothing by as many.
"""

from __future__ import annotations

from typing import Final

from tilewright.graph.ir.dimensions import add
from tilewright.graph.ir.expr import Call, GraphExpr
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.rewrite import Bindings, P, Rule, apply_rules, known_sizes, make
from tilewright.graph.ir.traverse import map_functions
from tilewright.graph.ops.shape import PadAttributes
from tilewright.graph.ops.window_dots import WindowDotsAttributes, pixels_read
from tilewright.ir.function import IRModule


def window_borders(module: IRModule) -> IRModule:
    """Write images with the border that windows meet."""
    return map_functions(module, lambda function: apply_rules(function, _RULES))


def _bordered(b: Bindings) -> GraphExpr | None:
    root, image = b.call("root"), b["image"]
    attributes, sizes, results = root.attributes, known_sizes(image), known_sizes(root)
    assert isinstance(attributes, WindowDotsAttributes) and sizes is not None and results is not None
    (top, left, bottom, right), width, columns = attributes.padding, sizes[2], results[2]
    if not (isinstance(width, int) and isinstance(columns, int)) or not b.used_once("image"):
        return None
    beside = max(0, right, pixels_read(columns, attributes.width, attributes.strides[1]) - left - width)
    if not (top or left or bottom or beside):
        return None
    value = float(b.constant("zero").data.reshape(()))
    padded = _padded(image, (0, top, left, 0), (0, bottom, beside, 0), value)
    if padded is None:
        return None
    more = {"strides": attributes.strides, "width": attributes.width, "padding": (0, 0, 0, right - beside)}
    return make("qnn.window_dots", padded, *root.args[1:], span=root.span, **more)


def _padded(image: GraphExpr, before: tuple[int, ...], after: tuple[int, ...], value: float) -> GraphExpr | None:
    """An image with a border, if the kernel that makes it can write that."""
    if is_call_to(image, "take"):
        return make("pad", image, before=before, after=after, value=value, span=image.span)
    if not is_call_to(image, "pad") or not isinstance(image, Call):
        return None
    given = image.attributes
    assert isinstance(given, PadAttributes)
    if given.mode != "constant" or given.value != value:
        return None
    first, last = (tuple(map(add, *pair)) for pair in ((given.before, before), (given.after, after)))
    return make("pad", image.args[0], before=first, after=last, value=value, span=image.span)


_RULES: Final = (
    Rule(
        "images with their border",
        P.op("qnn.window_dots", P.any("image"), P.any(), P.const("zero"), name="root"),
        _bordered,
    ),
)
