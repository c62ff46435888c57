"""Options of graph passes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tilewright.graph.choices import GraphChoices
from tilewright.ir.dtype import DataType
from tilewright.support.errors import CompilerBug
from tilewright.target import Target


@dataclass(frozen=True)
class GraphOptions:
    """What a target wants of the graph: graph passes take it, and read what concerns them."""

    layout: str | None = None
    """The layout of convolutions and pools: NHWC, or None to keep the model's own."""
    fuse: bool = True
    """Whether operators are grouped into kernels."""
    target: Target | None = field(default=None, repr=False)
    """The machine that choices between algorithms are made for; None to make none."""
    host: Target | None = field(default=None, repr=False)
    """The CPU beside a target that computes layers alone."""
    half: DataType | None = None
    """The type of half precision that float32 models are computed in, if any."""
    float8: bool = False
    """Whether products of half precision may be computed in 8-bit floats."""
    winograd: bool = True
    """Whether convolutions may be computed by Winograd's algorithm, which rounds differently."""
    infinities: bool = False
    """Whether infinities and NaN must not spread: no zeros among weights, no Winograd's algorithm."""
    unchecked: bool = False
    """Whether indices and divisors are not checked when the model runs."""
    choices: GraphChoices = field(default_factory=GraphChoices, repr=False)
    """What was measured, and goes before estimates of speed; notes what was asked."""

    @property
    def machine(self) -> Target:
        """The target, for passes that run only where there is one."""
        if self.target is None:
            raise CompilerBug("a graph pass for a target runs without one")
        return self.target

    @property
    def beside_layers(self) -> GraphOptions:
        """The options for what is no layer of the target: the host computes it, where the target has layers alone."""
        if self.target is None or self.host is None or not self.target.capabilities.block_layers:
            return self
        return replace(self, target=self.host)

    @property
    def may_use_winograd(self) -> bool:
        """Whether convolutions may be computed by Winograd's algorithm."""
        return self.winograd and not self.infinities
