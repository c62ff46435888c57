"""The import of graphs that `torch.compile` captured: fx graphs of ATen operators whose inputs are flat lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.frontend.core.complex_values import Complex
from tilewright.frontend.torch.importer import GraphImporter, finish_module, load_torch
from tilewright.frontend.torch.output_views import storage_order
from tilewright.frontend.torch.training import STORAGE_ORDER
from tilewright.graph.ir.expr import GraphExpr, Var
from tilewright.ir.dtype import BOOL, INT64
from tilewright.ir.expr import PrimExpr
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.support.errors import TilewrightError, UnsupportedError
from tilewright.support.text import kind_of

Number = bool | int | float


@dataclass(frozen=True, slots=True)
class Captured:
    """A captured graph as a module."""

    module: IRModule | None
    """None if no output is computed."""
    given: list[int]
    """The places of the inputs that the module takes. Where the input is a size, it takes a tensor of that length."""
    orders: dict[int, list[int]]
    """By place, the inputs that the module takes with their axes in another order: that of their storage."""
    computed: list[bool]
    """For each output whether the module computes it (the others are nothing, which is what torch expects there)."""
    numbers: list[bool]
    """For each output whether it is a number and no tensor."""
    draws: bool
    """Whether the module draws random numbers: it then takes a seed as well, after the inputs."""


def import_graph(graph: Any, inputs: Sequence[Any], constants: Mapping[int, Any], *, may_draw: bool) -> Captured:
    """A captured graph as a module, some of its inputs as constants: tensors, and numbers that are no sizes.

    Unless it `may_draw`, operators that draw random numbers are refused.
    """
    importer = GraphImporter(load_torch())
    seed = _seeded(importer, may_draw)
    nodes = list(graph.graph.nodes)
    params, given, orders = _declare(importer, nodes, inputs, constants)
    outputs = importer.run(nodes)
    computed = [isinstance(value, (GraphExpr, Complex, PrimExpr, bool, int, float)) for value in outputs]
    numbers = [isinstance(value, (PrimExpr, bool, int, float)) for value in outputs]
    names = [f"output{index}" for index in range(len(outputs))]
    if not any(computed):
        return Captured(None, given, orders, computed, numbers, False)
    draws = importer.builder.draws > 0
    if draws:
        params.append(seed)
    module = finish_module(importer.builder, "captured", params, outputs, names, importer.control.functions)
    return Captured(module, given, orders, computed, numbers, draws)


def _seeded(importer: GraphImporter, may_draw: bool) -> Var:
    """What random numbers are drawn from, if any may be: a parameter that the builder knows."""
    seed = Var("seed", tensor_type((), INT64))
    if may_draw:
        importer.builder.seed = seed
    return seed


def refused_nodes(
    graph: Any, inputs: Sequence[Any], constants: Mapping[int, Any], *, may_draw: bool
) -> dict[Any, TilewrightError]:
    """The nodes of a captured graph that cannot be imported, and why; what they give is taken for inputs."""
    importer = _Trial(load_torch())
    _seeded(importer, may_draw)
    nodes = list(graph.graph.nodes)
    _declare(importer, nodes, inputs, constants)
    importer.run(nodes)
    return importer.refused


def is_size(value: Any) -> bool:
    """Whether a symbolic number is the size of something: it is not negative."""
    bounds = value.node.shape_env.bound_sympy(value.node.expr)
    return bool(bounds.lower >= 0)


def _declare(
    importer: GraphImporter, nodes: Sequence[Any], inputs: Sequence[Any], constants: Mapping[int, Any]
) -> tuple[list[Var], list[int], dict[int, list[int]]]:
    """Give the inputs of a graph values: tensors first, whose sizes the numbers among the inputs are.

    Gives the parameters, their places among the inputs, and the order of axes of those that are stored in another one.
    """
    torch = importer.torch
    orders: dict[int, list[int]] = {}
    placeholders = [node for node in nodes if node.op == "placeholder"]
    params: dict[int, Var] = {}
    listed = list(enumerate(zip(placeholders, inputs, strict=True)))
    dims = [
        (dim, f"{node.name}_{axis}")
        for _, (node, example) in listed
        if isinstance(example, torch.Tensor)
        for axis, dim in enumerate(example.shape)
    ]
    for declare in (importer.builder.sizes.declare, importer.builder.sizes.declare_whole):
        for dim, name in dims:
            declare(dim, name)
    for place, (node, example) in sorted(listed, key=lambda item: isinstance(item[1][1], torch.SymInt)):
        if place in constants:
            importer.values[node] = _held(importer, node.name, example, constants[place])
        elif isinstance(example, torch.Tensor):
            order = node.meta.get(STORAGE_ORDER) or storage_order(example)
            stored = example if order is None else example.permute(order)
            params[place] = var = importer.parameter(node.name, stored)
            value = importer.value_of(var)
            if order is not None:
                orders[place] = order
                value = importer.builder.transpose(value, [order.index(axis) for axis in range(len(order))])
            importer.values[node] = value
        elif isinstance(example, torch.SymInt):
            sizes = importer.builder.sizes
            if not sizes.knows(example.node.expr):
                sizes.declare(example, node.name)
                params[place] = Var(node.name, tensor_type(sizes.shape([example]), BOOL))
            importer.values[node] = sizes.size(example)
        elif isinstance(example, (bool, int, float)):
            importer.values[node] = example
        else:
            raise UnsupportedError(f"the input '{node.name}' of the captured graph is {kind_of(example)}")
    given = sorted(params)
    return [params[place] for place in given], given, orders


def _held(importer: GraphImporter, name: str, example: Any, value: Any) -> Any:
    """An input that is held: a tensor as a constant, a number as itself."""
    if isinstance(value, importer.torch.Tensor):
        return importer.constant(name, value)
    if isinstance(example, importer.torch.SymInt):
        importer.builder.sizes.hold(example, value)
    return value


class _Trial(GraphImporter):
    """An import that goes on after what is not supported."""

    def __init__(self, torch: Any) -> None:
        super().__init__(torch)
        self.refused: dict[Any, TilewrightError] = {}

    def convert(self, node: Any) -> Any:
        """What a call gives: if it cannot be imported, what torch says about it."""
        try:
            return super().convert(node)
        except TilewrightError as error:
            self.refused[node] = error
            return self._stand_in(node.name, node.meta.get("val"))

    def outputs(self, node: Any) -> list[Any]:
        """Nothing: what comes out of a graph does not matter here."""
        return []

    def parameter(self, name: str, example: Any) -> Any:
        """A parameter, or what every use of is refused: then nodes of torch's own use it."""
        try:
            return super().parameter(name, example)
        except UnsupportedError as error:
            return _Absent(error)

    def value_of(self, var: Any) -> Any:
        """What a parameter is in the graph."""
        return var if isinstance(var, _Absent) else super().value_of(var)

    def _stand_in(self, name: str, meta: Any) -> Any:
        if isinstance(meta, (tuple, list)):
            return [self._stand_in(f"{name}_{place}", item) for place, item in enumerate(meta)]
        if isinstance(meta, self.torch.Tensor):
            return self.value_of(self.parameter(name, meta))
        return _Absent(UnsupportedError(f"a number that {name} gives"))

    def _argument(self, value: Any) -> Any:
        found = super()._argument(value)
        if isinstance(found, _Absent):
            raise found.error
        return found


@dataclass(frozen=True, slots=True)
class _Absent:
    """A value that cannot be imported."""

    error: UnsupportedError
