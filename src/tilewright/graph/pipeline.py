"""The graph pipeline: from an imported module to fused primitive functions, one readable list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tilewright.graph.infer import infer_types
from tilewright.graph.passes.canonicalize import canonicalize
from tilewright.graph.passes.convert_layout import convert_layout
from tilewright.graph.passes.eliminate_common_subexpressions import eliminate_common_subexpressions
from tilewright.graph.passes.eliminate_dead_code import eliminate_dead_code
from tilewright.graph.passes.fold_batch_norm import fold_batch_norm
from tilewright.graph.passes.fold_constants import fold_constants
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.passes.recognize import recognize
from tilewright.ir.function import IRModule
from tilewright.support import trace

Pass = Callable[[IRModule], IRModule]


@dataclass(frozen=True)
class GraphOptions:
    """What a target wants of the graph."""

    layout: str | None = None
    """The layout of convolutions and pools: NHWC, or None to keep the model's own."""
    fuse: bool = True
    """Whether operators are grouped into kernels."""


def passes(options: GraphOptions) -> Sequence[Pass]:
    """The passes for a target, in order."""
    simplify: list[Pass] = [canonicalize, fold_constants, eliminate_common_subexpressions]
    result: list[Pass] = [
        infer_types,
        eliminate_dead_code,
        *simplify,
        recognize,
        fold_batch_norm,
        *simplify,
    ]
    if options.layout is not None:
        result += [partial(convert_layout, layout=options.layout), *simplify]
    if options.fuse:
        result.append(fuse)
    return result


def pass_name(one: Pass) -> str:
    """The name of a pass, for reports."""
    return str(getattr(one.func if isinstance(one, partial) else one, "__name__", "pass"))


def optimize(module: IRModule, options: GraphOptions | None = None) -> IRModule:
    """Run all graph passes; the result is typed and, unless asked otherwise, fused."""
    for one in passes(options or GraphOptions()):
        with trace.span(f"graph:{pass_name(one)}"):
            module = one(module)
    return module
