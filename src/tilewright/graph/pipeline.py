"""The graph pipeline: from an imported module to fused primitive functions, one readable list."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.graph.choices import GraphChoices
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.passes.attention import attention
from tilewright.graph.passes.canonicalize import canonicalize
from tilewright.graph.passes.choose_algorithm import choose_algorithm
from tilewright.graph.passes.convert_layout import convert_layout
from tilewright.graph.passes.drop_checks import drop_checks
from tilewright.graph.passes.eliminate_common_subexpressions import eliminate_common_subexpressions
from tilewright.graph.passes.eliminate_dead_code import eliminate_dead_code
from tilewright.graph.passes.fold_batch_norm import fold_batch_norm
from tilewright.graph.passes.fold_constants import fold_constants
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.passes.half_products import half_products
from tilewright.graph.passes.integer_products import integer_products
from tilewright.graph.passes.join_groups import join_groups
from tilewright.graph.passes.joint_products import joint_products
from tilewright.graph.passes.pad_channels import pad_channels
from tilewright.graph.passes.quantized_products import quantized_products
from tilewright.graph.passes.recognize import recognize
from tilewright.graph.passes.reduce_precision import reduce_precision
from tilewright.graph.passes.round_operands import round_operands
from tilewright.graph.passes.single_steps import single_steps
from tilewright.graph.passes.sink_reshapes import sink_reshapes
from tilewright.graph.passes.transposed_convolution import transposed_convolution
from tilewright.ir.dtype import DataType
from tilewright.ir.function import IRModule
from tilewright.ir.passes import Pass, Pipeline, module_pass
from tilewright.target import Target


@dataclass(frozen=True)
class GraphOptions:
    """What a target wants of the graph."""

    layout: str | None = None
    """The layout of convolutions and pools: NHWC, or None to keep the model's own."""
    fuse: bool = True
    """Whether operators are grouped into kernels."""
    target: Target | None = None
    """The machine that choices between algorithms are made for; None to make none."""
    half: DataType | None = None
    """The type of half precision that float32 models are computed in, if any."""
    winograd: bool = True
    """Whether convolutions may be computed by Winograd's algorithm, which rounds differently."""
    infinities: bool = False
    """Whether infinities and NaN must not spread: no zeros among weights, no Winograd's algorithm."""
    unchecked: bool = False
    """Whether indices and divisors are not checked when the model runs."""
    choices: GraphChoices = field(default_factory=GraphChoices)
    """What was measured, and goes before estimates of speed; notes what was asked."""


def _infer(module: IRModule) -> IRModule:
    return infer_types(module)


_SIMPLIFY: list[Pass[IRModule]] = [
    module_pass("canonicalize", requires="graph_typed")(canonicalize),
    module_pass("fold_constants", requires="graph_typed")(fold_constants),
    module_pass("eliminate_common_subexpressions", requires="graph_typed")(eliminate_common_subexpressions),
]


def graph_pipeline(options: GraphOptions) -> Pipeline:
    """The passes for a target, in order."""
    winograd = options.winograd and not options.infinities
    passes: list[Pass[IRModule]] = [
        module_pass("infer_types", leaves="graph_typed")(_infer),
        *([module_pass("drop_checks", requires="graph_typed")(drop_checks)] if options.unchecked else []),
        module_pass("eliminate_dead_code", requires="graph_typed")(eliminate_dead_code),
        module_pass("quantized_products", requires="graph_typed")(quantized_products).with_options(
            target=options.target
        ),
        *_SIMPLIFY,
        module_pass("recognize", requires="graph_typed")(recognize),
        module_pass("fold_batch_norm", requires="graph_typed")(fold_batch_norm),
        *_SIMPLIFY,
    ]
    if options.half is not None:
        halve = module_pass("reduce_precision", requires="graph_typed")(reduce_precision)
        passes += [halve.with_options(dtype=options.half), *_SIMPLIFY]
    if options.layout is not None:
        convert = module_pass("convert_layout", requires="graph_typed")(convert_layout)
        passes += [convert.with_options(layout=options.layout, target=options.target), *_SIMPLIFY]
    if options.target is not None:
        products = module_pass("integer_products", requires="graph_typed")(integer_products)
        halves = module_pass("half_products", requires="graph_typed")(half_products)
        steps = module_pass("single_steps", requires="graph_typed")(single_steps)
        passes += [
            products.with_options(target=options.target),
            *_SIMPLIFY,
            halves.with_options(target=options.target, winograd=winograd, choices=options.choices),
            steps.with_options(target=options.target, choices=options.choices),
        ]
    if options.target is not None:
        attend = module_pass("attention", requires="graph_typed")(attention)
        join = module_pass("joint_products", requires="graph_typed")(joint_products)
        passes += [attend.with_options(target=options.target), join.with_options(target=options.target), *_SIMPLIFY]
    if options.target is not None and options.layout == "NHWC":
        phases = module_pass("transposed_convolution", requires="graph_typed")(transposed_convolution)
        groups = module_pass("join_groups", requires="graph_typed")(join_groups)
        fill = module_pass("pad_channels", requires="graph_typed")(pad_channels)
        passes.append(
            phases.with_options(
                target=options.target, winograd=winograd, infinities=options.infinities, choices=options.choices
            )
        )
        if not options.infinities:
            passes.append(groups.with_options(target=options.target, choices=options.choices))
        passes.append(fill.with_options(target=options.target))
    if options.target is not None and winograd and options.layout == "NHWC":
        choose = module_pass("choose_algorithm", requires="graph_typed")(choose_algorithm)
        passes.append(choose.with_options(target=options.target, choices=options.choices))
    if options.target is not None:
        rounding = module_pass("round_operands", requires="graph_typed")(round_operands)
        passes.append(rounding.with_options(target=options.target))
    if options.fuse:
        passes += [module_pass("sink_reshapes", requires="graph_typed")(sink_reshapes), *_SIMPLIFY]
        group = module_pass("fuse", requires="graph_typed", leaves="graph_fused")(fuse)
        passes.append(group.with_options(target=options.target, choices=options.choices))
    return Pipeline("graph", passes)


def optimize(module: IRModule, options: GraphOptions | None = None) -> IRModule:
    """Run all graph passes; the result is typed and, unless asked otherwise, fused."""
    return graph_pipeline(options or GraphOptions()).run(module)
