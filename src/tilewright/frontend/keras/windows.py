"""Windows of convolutions and pools by the options of layers, over data with channels first or last."""

from __future__ import annotations

from dataclasses import replace

from tilewright.frontend.core.builder import Builder, sizes_of
from tilewright.frontend.core.windows import Extents, same_paddings
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UserError


def extents_of(kernel: tuple[int, ...], strides: tuple[int, ...], dilation: tuple[int, ...]) -> Extents:
    """A window without padding."""
    if min((*kernel, *strides, *dilation), default=1) < 1:
        raise UserError(f"kernel {kernel}, strides {strides} and dilations {dilation} must be positive")
    none = (0,) * len(kernel)
    return Extents(kernel, strides, none, none, dilation)


def padded(
    builder: Builder, data: GraphExpr, extents: Extents, padding: str, channels_first: bool, fill: float = 0.0
) -> tuple[GraphExpr, Extents]:
    """The data and the window with its padding; what only a run knows of it becomes part of the data."""
    count = len(extents.kernel)
    if padding == "valid":
        return data, extents
    if padding == "causal" and count == 1:
        return data, replace(extents, before=((extents.kernel[0] - 1) * extents.dilation[0],))
    if padding != "same":
        raise UserError(f"the padding {padding!r} is not known", hint="one of valid, same and (of Conv1D) causal")
    first = 2 if channels_first else 1
    before, after = same_paddings(extents, sizes_of(data)[first : first + count])
    known = [item for item in (*before, *after) if isinstance(item, int)]
    if len(known) == 2 * count:
        return data, replace(extents, before=tuple(known[:count]), after=tuple(known[count:]))
    outer, inner = [0] * first, [0] * (2 - first)
    data = builder.call("pad", data, before=(*outer, *before, *inner), after=(*outer, *after, *inner), value=fill)
    return data, extents
