"""ONNX's operators for importers of other formats: what an operator means is said by its name and attributes.

onnx = Operators(builder)
onnx("Conv", data, weight, strides=(2, 2), auto_pad="SAME_UPPER")
values, places = onnx.several(2, "TopK", data, count, axis=1)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.frontend.core.builder import Builder
from tilewright.frontend.onnx.context import Bodies, Captures, NodeContext
from tilewright.frontend.onnx.importer import FAMILIES
from tilewright.frontend.onnx.model import AttributeValue, OnnxGraph, OnnxNode
from tilewright.frontend.onnx.registry import find_converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import CompilerBug

Attribute = int | float | str | Sequence[int] | Sequence[float] | Sequence[str]
_OPSET = 23
assert FAMILIES  # imported so that every converter is registered


class Operators:
    """The operators of one opset, applied to values of a builder."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder

    def __call__(self, name: str, *inputs: GraphExpr | None, **attributes: Attribute) -> GraphExpr:
        """The first result of an operator; inputs that are None are left out."""
        return self.several(1, name, *inputs, **attributes)[0]

    def several(self, count: int, name: str, *inputs: GraphExpr | None, **attributes: Attribute) -> list[GraphExpr]:
        """The first results of an operator."""
        span = self.builder.span
        label = name if span is None else span.source
        outputs = tuple(f"{label}_{index}" if index else label for index in range(count))
        given = {key: _attribute(value) for key, value in attributes.items()}
        node = OnnxNode(name, "", label, ("",) * len(inputs), outputs, given)
        convert = find_converter("", name, _OPSET)
        if convert is None:
            raise CompilerBug(f"ONNX has no operator {name}")
        context = NodeContext(node, _OPSET, inputs, self.builder, Bodies(_no_graph, _no_graph_closed, []))
        result = convert(context)
        context.finish()
        results = [result] if isinstance(result, GraphExpr) else list(result)
        if len(results) < count or any(item is None for item in results[:count]):
            raise CompilerBug(f"{name} gives {len(results)} results, not {count}")
        return [item for item in results[:count] if item is not None]


def _attribute(value: Attribute) -> AttributeValue:
    """An attribute as a node holds it."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bool, int)):
        return int(value)
    if isinstance(value, float):
        return value
    items: list[Any] = list(value)
    if any(isinstance(item, str) for item in items):
        return tuple(str(item).encode() for item in items)
    if any(isinstance(item, float) for item in items):
        return tuple(float(item) for item in items)
    return tuple(int(item) for item in items)


def _no_graph(graph: OnnxGraph, values: Sequence[GraphExpr]) -> list[GraphExpr]:
    raise CompilerBug(f"the graph {graph.name} of an operator that has none")


def _no_graph_closed(graph: OnnxGraph, values: Sequence[GraphExpr]) -> tuple[list[GraphExpr], Captures]:
    raise CompilerBug(f"the graph {graph.name} of an operator that has none")
