"""The graph pipeline: from an imported module to fused primitive functions, one readable list."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from tilewright.graph.ir.infer import infer_types
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.accelerator_layers import accelerator_layers
from tilewright.graph.passes.attention import attention
from tilewright.graph.passes.bitserial_products import bitserial_products
from tilewright.graph.passes.byte_tables import byte_tables
from tilewright.graph.passes.canonicalize import canonicalize
from tilewright.graph.passes.channel_blocks import Blocks
from tilewright.graph.passes.choose_algorithm import choose_algorithm
from tilewright.graph.passes.column_parts import column_parts
from tilewright.graph.passes.computed_kernels import computed_kernels
from tilewright.graph.passes.computed_products import computed_products
from tilewright.graph.passes.convert_layout import convert_layout
from tilewright.graph.passes.drop_checks import drop_checks
from tilewright.graph.passes.eliminate_common_subexpressions import eliminate_common_subexpressions
from tilewright.graph.passes.eliminate_dead_code import eliminate_dead_code
from tilewright.graph.passes.expand_quantization import expand_quantization
from tilewright.graph.passes.fixed_point import fixed_point
from tilewright.graph.passes.float8_products import float8_products
from tilewright.graph.passes.fold_batch_norm import fold_batch_norm
from tilewright.graph.passes.fold_constants import fold_but_bytes, fold_constants
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.passes.fuse_horizontally import fuse_horizontally
from tilewright.graph.passes.half_products import half_products
from tilewright.graph.passes.image_lines import image_lines
from tilewright.graph.passes.integer_epilogues import integer_epilogues
from tilewright.graph.passes.integer_products import integer_products
from tilewright.graph.passes.integer_recurrence import integer_recurrence
from tilewright.graph.passes.join_groups import join_groups
from tilewright.graph.passes.joint_products import joint_products
from tilewright.graph.passes.joint_results import joint_results
from tilewright.graph.passes.kept_exponentials import kept_exponentials
from tilewright.graph.passes.narrow_results import narrow_results
from tilewright.graph.passes.open_batch_norm import open_batch_norm
from tilewright.graph.passes.operand_order import operand_order
from tilewright.graph.passes.packed_weights import packed_weights
from tilewright.graph.passes.pad_channels import pad_channels
from tilewright.graph.passes.paired_columns import paired_columns
from tilewright.graph.passes.quantized_products import quantized_products
from tilewright.graph.passes.recognize import recognize
from tilewright.graph.passes.recompute_late import recompute_late
from tilewright.graph.passes.reduce_precision import reduce_precision
from tilewright.graph.passes.requantize import requantize
from tilewright.graph.passes.round_operands import round_operands
from tilewright.graph.passes.scaled_products import scaled_products
from tilewright.graph.passes.shared_numbers import shared_numbers
from tilewright.graph.passes.single_steps import single_steps
from tilewright.graph.passes.sink_reshapes import sink_reshapes
from tilewright.graph.passes.sums_as_floats import sums_as_floats
from tilewright.graph.passes.sums_of_parts import sums_of_parts
from tilewright.graph.passes.transposed_convolution import transposed_convolution
from tilewright.graph.passes.widen_halves import widen_halves
from tilewright.graph.passes.widen_where_read import widen_where_read
from tilewright.graph.passes.window_borders import window_borders
from tilewright.graph.passes.word_products import word_products
from tilewright.graph.verify import verify_fused, verify_typed
from tilewright.ir.function import IRModule
from tilewright.ir.passes import Pass, Pipeline, module_pass, register_stage

register_stage("graph_typed", verify_typed)
register_stage("graph_fused", verify_fused)


def _infer(module: IRModule) -> IRModule:
    return infer_types(module)


_SIMPLIFY: list[Pass[IRModule]] = [
    module_pass("canonicalize", requires="graph_typed")(canonicalize),
    module_pass("fold_constants", requires="graph_typed")(fold_constants),
    module_pass("eliminate_common_subexpressions", requires="graph_typed")(eliminate_common_subexpressions),
]

_KEEP_BYTES = [_SIMPLIFY[0], module_pass("fold_constants", requires="graph_typed")(fold_but_bytes), _SIMPLIFY[2]]
"""The same where products of bytes have not been looked for."""

_FEWER_OPERATORS: list[Pass[IRModule]] = [
    module_pass("recognize", requires="graph_typed")(recognize),
    module_pass("fold_batch_norm", requires="graph_typed")(fold_batch_norm),
    module_pass("sums_of_parts", requires="graph_typed")(sums_of_parts),
    *_KEEP_BYTES,
]
"""One operator in the place of several, for any target."""


def _block_layers(options: GraphOptions) -> list[Pass[IRModule]]:
    """Quantised layers as those of a tensor processor, for targets that are one."""
    if options.target is None or not options.target.capabilities.block_layers:
        return []
    layers = partial(accelerator_layers, blocks=Blocks.of(options.target))
    return [
        module_pass("fixed_point", requires="graph_typed")(fixed_point),
        *_SIMPLIFY,
        module_pass("accelerator_layers", requires="graph_typed")(layers),
        *_SIMPLIFY,
    ]


_NUMBERS: Final = {
    "round_operands": round_operands,
    "sums_as_floats": sums_as_floats,
    "narrow_results": narrow_results,
}
"""How a target takes the numbers of products and what follows them, when these are the last ones."""


def _with_options(
    options: GraphOptions, name: str, function: Callable[[IRModule, GraphOptions], IRModule]
) -> Pass[IRModule]:
    return module_pass(name, requires="graph_typed")(function).with_options(options)


def _convolutions(options: GraphOptions) -> list[Pass[IRModule]]:
    """Which convolutions there are, and how they are computed, for targets that hold images with channels last."""
    if options.target is None or options.layout != "NHWC":
        return []
    with_options = partial(_with_options, options)
    return [
        with_options("transposed_convolution", transposed_convolution),
        module_pass("computed_kernels", requires="graph_typed")(computed_kernels),
        *([] if options.infinities else [with_options("join_groups", join_groups)]),
        with_options("pad_channels", pad_channels),
        *([with_options("choose_algorithm", choose_algorithm)] if options.may_use_winograd else []),
    ]


def _kernels(options: GraphOptions) -> list[Pass[IRModule]]:
    """What makes kernels of operators, and what is done to kernels."""
    target = options.target
    passes = [
        module_pass("sink_reshapes", requires="graph_typed")(sink_reshapes),
        *_SIMPLIFY,
        module_pass("widen_where_read", requires="graph_typed")(widen_where_read),
        # Behind what would have products read their operands as they lay before.
        *([_with_options(options, "operand_order", operand_order)] if target is not None else []),
        module_pass("fuse", requires="graph_typed", leaves="graph_fused")(fuse).with_options(options),
        module_pass("joint_results", requires="graph_fused")(joint_results).with_options(options),
    ]
    if target is None:
        return passes
    if target.is_cpu:
        passes.append(module_pass("shared_numbers", requires="graph_fused")(shared_numbers))
    else:
        passes.append(module_pass("recompute_late", requires="graph_fused")(recompute_late).with_options(options))
    if target.capabilities.horizontal_buffers is not None:
        horizontal = module_pass("fuse_horizontally", requires="graph_fused")(fuse_horizontally)
        passes.append(horizontal.with_options(options))
    return passes


def graph_pipeline(options: GraphOptions) -> Pipeline:
    """The passes for a target, in order."""
    layers, options = _block_layers(options), options.beside_layers

    with_options = partial(_with_options, options)
    passes: list[Pass[IRModule]] = [
        module_pass("infer_types", leaves="graph_typed")(_infer),
        *([module_pass("drop_checks", requires="graph_typed")(drop_checks)] if options.unchecked else []),
        module_pass("eliminate_dead_code", requires="graph_typed")(eliminate_dead_code),
        *layers,
        module_pass("expand_quantization", requires="graph_typed")(expand_quantization),
        *([with_options("widen_halves", widen_halves)] if options.target is not None and options.half is None else []),
        module_pass("requantize", requires="graph_typed")(requantize),
        with_options("quantized_products", quantized_products),
        with_options("computed_products", computed_products),
        with_options("integer_recurrence", integer_recurrence),
        with_options("packed_weights", packed_weights),
        with_options("scaled_products", scaled_products),
        *_KEEP_BYTES,
        *_FEWER_OPERATORS,
    ]
    if options.half is not None:
        passes += [with_options("reduce_precision", reduce_precision), *_KEEP_BYTES]
    if options.layout is not None:
        passes.append(module_pass("image_lines", requires="graph_typed")(image_lines))
        passes += [with_options("convert_layout", convert_layout), *_KEEP_BYTES]
    passes.append(module_pass("open_batch_norm", requires="graph_typed")(open_batch_norm))
    passes += _SIMPLIFY if options.target is None else _KEEP_BYTES
    if options.target is not None:
        passes += [
            with_options("bitserial_products", bitserial_products),
            with_options("integer_products", integer_products),
            *_SIMPLIFY,
            with_options("byte_tables", byte_tables),
            module_pass("window_borders", requires="graph_typed")(window_borders),
            with_options("integer_epilogues", integer_epilogues),
            with_options("word_products", word_products),
            with_options("half_products", half_products),
            with_options("single_steps", single_steps),
            with_options("attention", attention),
            with_options("paired_columns", paired_columns),
            with_options("column_parts", column_parts),
            with_options("joint_products", joint_products),
            with_options("kept_exponentials", kept_exponentials),
            *_SIMPLIFY,
            *([with_options("float8_products", float8_products)] if options.float8 else []),
        ]
    passes += _convolutions(options)
    if options.target is not None:
        passes += [with_options(name, function) for name, function in _NUMBERS.items()]
    if options.fuse:
        passes += _kernels(options)
    return Pipeline("graph", passes)


def optimize(module: IRModule, options: GraphOptions | None = None) -> IRModule:
    """Run all graph passes; the result is typed and, unless asked otherwise, fused."""
    return graph_pipeline(options or GraphOptions()).run(module)
