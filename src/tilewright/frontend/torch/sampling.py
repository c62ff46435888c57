"""Converters of operators that read data at computed places between its elements."""

from __future__ import annotations

from tilewright.frontend.core.builder import dtype_of
from tilewright.frontend.core.sampling import sample_grid
from tilewright.frontend.torch.builder import TorchBuilder
from tilewright.frontend.torch.registry import converter
from tilewright.graph.ir.expr import GraphExpr

_MODES = ("linear", "nearest", "cubic")
_PADDINGS = ("zeros", "border", "reflection")


@converter("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def grid_sampler(
    b: TorchBuilder,
    input: GraphExpr,
    grid: GraphExpr,
    interpolation_mode: int = 0,
    padding_mode: int = 0,
    align_corners: bool = False,
) -> GraphExpr:
    """Data at the places of a grid."""
    if 0 in b.shape:
        return b.empty(b.shape, dtype_of(input))
    return sample_grid(b, input, grid, _MODES[interpolation_mode], _PADDINGS[padding_mode], align_corners)
