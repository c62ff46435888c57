"""Operators of StableHLO in TFLite files: the operations of the StableHLO importer, with options for attributes.

Regions are graphs of the model. They are shown to the converters as blocks of operations, by which those know what a
region does (a sum, a comparison); what they run is the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.frontend.stablehlo import contract, convolution, indexing, scatter, sorting, windows
from tilewright.frontend.stablehlo import reduce as reductions
from tilewright.frontend.stablehlo.builder import StableBuilder
from tilewright.frontend.stablehlo.program import Block, Operation, TensorSpec, Value
from tilewright.frontend.tflite.context import NodeContext
from tilewright.frontend.tflite.model import TfliteGraph, TfliteOperator, TfliteTensor
from tilewright.frontend.tflite.registry import converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import DataType
from tilewright.support.errors import CompilerBug, UnsupportedError, UserError

_OPERATIONS: dict[str, Callable[..., Any]] = {
    "dot_general": contract.dot_general,
    "convolution": convolution.convolution,
    "gather": indexing.gather,
    "scatter": scatter.scatter,
    "sort": sorting.sort,
    "reduce": reductions.reduce,
    "reduce_window": windows.reduce_window,
}
_PREFIX = "STABLEHLO_"
_BUILT_IN = {"ADD": "add", "MUL": "multiply", "MAXIMUM": "maximum", "MINIMUM": "minimum"}
"""Operators of TFLite in regions that are operations of StableHLO by other names."""
_DIRECTIONS = ("EQ", "NE", "GE", "GT", "LE", "LT")
_COMPARISONS = ("NOTYPE", "FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED")
_FLOATS = {"float16": "f16", "float32": "f32", "float64": "f64", "bfloat16": "bf16"}


@converter("STABLEHLO_DOT_GENERAL")
def dot_general(node: NodeContext) -> Sequence[GraphExpr]:
    """Products summed over any dimensions."""
    names = [f"{side}_{what}_dimensions" for side in ("lhs", "rhs") for what in ("batching", "contracting")]
    return _converted(node, "dot_general", {"dot_dimension_numbers": _lists(node, names)})


@converter("STABLEHLO_CONVOLUTION")
def convolve(node: NodeContext) -> Sequence[GraphExpr]:
    """A convolution of any layout."""
    places = [
        ("input", "batch", "feature"),
        ("kernel", "input_feature", "output_feature"),
        ("output", "batch", "feature"),
    ]
    layout: dict[str, Any] = {}
    for what, *axes in places:
        layout |= {f"{what}_{axis}_dimension": node.integer(f"{what}_{axis}_dimension") for axis in axes}
        layout |= _lists(node, [f"{what}_spatial_dimensions"])
    lists = _lists(node, ["window_strides", "padding", "lhs_dilation", "rhs_dilation", "window_reversal"])
    counts = {name: node.integer(name, 1) for name in ("feature_group_count", "batch_group_count")}
    given = {name: value for name, value in lists.items() if value}
    return _converted(node, "convolution", {"dimension_numbers": layout, **given, **counts})


@converter("STABLEHLO_GATHER")
def gather(node: NodeContext) -> Sequence[GraphExpr]:
    """Windows at places that are data."""
    layout = _lists(node, ["offset_dims", "collapsed_slice_dims", "start_index_map"])
    layout["index_vector_dim"] = node.integer("index_vector_dim")
    return _converted(node, "gather", {"dimension_numbers": layout, **_lists(node, ["slice_sizes"])})


@converter("STABLEHLO_SCATTER")
def scattered(node: NodeContext) -> Sequence[GraphExpr]:
    """Windows of updates combined into a tensor."""
    layout = _lists(node, ["update_window_dims", "inserted_window_dims", "scatter_dims_to_operand_dims"])
    layout["index_vector_dim"] = node.integer("index_vector_dim")
    attributes = {"scatter_dimension_numbers": layout, "unique_indices": node.flag("unique_indices")}
    return _converted(node, "scatter", attributes, node.integer("update_computation_subgraph_index"))


@converter("STABLEHLO_SORT")
def sort(node: NodeContext) -> Sequence[GraphExpr]:
    """Tensors along an axis, in the order of a comparator."""
    attributes = {"dimension": node.integer("dimension"), "is_stable": node.flag("is_stable")}
    return _converted(node, "sort", attributes, node.integer("comparator_subgraph_index"))


@converter("STABLEHLO_REDUCE")
def reduce(node: NodeContext) -> Sequence[GraphExpr]:
    """Elements along dimensions combined by a graph."""
    return _converted(node, "reduce", _lists(node, ["dimensions"]), node.integer("body_subgraph_index"))


@converter("STABLEHLO_REDUCE_WINDOW")
def reduce_window(node: NodeContext) -> Sequence[GraphExpr]:
    """Elements of windows combined by a graph."""
    names = ["window_dimensions", "window_strides", "base_dilations", "window_dilations", "padding"]
    given = {name: value for name, value in _lists(node, names).items() if value}
    return _converted(node, "reduce_window", given, node.integer("body_subgraph_index"))


def _lists(node: NodeContext, names: Sequence[str]) -> dict[str, Any]:
    return {name: [int(item) for item in node.option(name, ())] for name in names}


def _converted(
    node: NodeContext, name: str, attributes: dict[str, Any], region: int | None = None
) -> Sequence[GraphExpr]:
    """What the converter of an operation gives for the inputs of a node."""
    builder = node.builder
    if not isinstance(builder, StableBuilder):
        raise CompilerBug("operators of StableHLO need its builder")
    if any(node.is_quantized(at) for at in range(len(node.node.inputs))):
        raise UnsupportedError(f"{node.node.name} of quantised tensors", hint="convert the model to TFLite's operators")
    results = [Value(_spec(node.output_tensor(at))) for at in range(len(node.node.outputs))]
    blocks = [] if region is None else [_block(node, region)]
    before = builder.operation, builder.run_block
    builder.operation = Operation(f"stablehlo.{name}", [], attributes, results, blocks)
    builder.run_block = lambda _, values: node.bodies.run(region or 0, values)
    try:
        produced = _OPERATIONS[name](builder, builder.operation, *node.all_inputs())
    finally:
        builder.operation, builder.run_block = before
    values = produced if isinstance(produced, list) else [produced]
    return [value for value in values if isinstance(value, GraphExpr)]


def _spec(tensor: TfliteTensor) -> TensorSpec:
    if tensor.dtype is None or tensor.dims is None:
        raise UnsupportedError(f"a {tensor.kind} whose dimensions are not known")
    return TensorSpec(tensor.dims, _element(tensor.dtype))


def _element(dtype: DataType) -> str:
    """The name of a data type in StableHLO."""
    if dtype.is_bool:
        return "i1"
    if dtype.is_float:
        if dtype.name not in _FLOATS:
            raise UnsupportedError(f"StableHLO's operators of {dtype.name}")
        return _FLOATS[dtype.name]
    return f"{'ui' if dtype.is_uint else 'i'}{dtype.bits}"


def _block(node: NodeContext, number: int) -> Block:
    """A graph of the model as a block of operations."""
    graphs = node.bodies.graphs
    if not 0 <= number < len(graphs):
        raise UserError(f"{node.node.name} names the graph {number}, which the model does not have")
    graph = graphs[number]
    values = [Value(_spec(tensor)) for tensor in graph.tensors]
    operations = [_operation(graph, item, values) for item in graph.operators]
    last = Operation("stablehlo.return", [values[place] for place in graph.outputs], {}, [])
    return Block([values[place] for place in graph.inputs], [*operations, last])


def _operation(graph: TfliteGraph, item: TfliteOperator, values: Sequence[Value]) -> Operation:
    short = _BUILT_IN.get(item.name) or item.name.removeprefix(_PREFIX).lower()
    attributes: dict[str, Any] = {}
    if item.name == "STABLEHLO_COMPARE":
        direction, kind = (int(item.options.get(name) or 0) for name in ("comparison_direction", "compare_type"))
        if not 0 <= direction < len(_DIRECTIONS) or not 0 <= kind < len(_COMPARISONS):
            raise UserError(f"the comparison number {direction} of type {kind} is not known")
        attributes = {"comparison_direction": _DIRECTIONS[direction], "compare_type": _COMPARISONS[kind]}
    operands = [values[place] for place in item.inputs if place >= 0]
    return Operation(f"stablehlo.{short}", operands, attributes, [values[place] for place in item.outputs])
