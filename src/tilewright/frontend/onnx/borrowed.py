"""ONNX's operators for other importers: what another format computes as ONNX does is converted by the same converters.

    operators = OnnxOperators(builder, functions)
    pooled = operators("MaxPool", data, kernel_shape=(2, 2), strides=(2, 2))
    values, places = operators.several("TopK", 2, data, count, axis=1)

Attributes are Python values; nothing of the package `onnx` is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tilewright.frontend.core.builder import Builder
from tilewright.frontend.core.forks import Fork
from tilewright.frontend.core.scopes import Captures
from tilewright.frontend.onnx import importer
from tilewright.frontend.onnx.context import Bodies, NodeContext
from tilewright.frontend.onnx.model import AttributeValue, OnnxGraph, OnnxNode
from tilewright.frontend.onnx.registry import find_converter
from tilewright.graph.ir.expr import Function, GraphExpr
from tilewright.support.errors import CompilerBug, UnsupportedError

assert importer.FAMILIES  # imported so that every converter is registered

Attribute = int | float | str | Sequence[int] | Sequence[float] | Sequence[str] | None
"""What an attribute is given as; None: it is left out."""
OPSET: Final = 23
"""The opset whose operators are meant."""


class OnnxOperators:
    """Builds what operators of ONNX give for values of a graph."""

    def __init__(self, builder: Builder, functions: list[Function] | None = None) -> None:
        self._builder = builder
        self._bodies = Bodies(_no_graph, _no_body, [] if functions is None else functions)

    def __call__(self, op_type: str, *inputs: GraphExpr | None, **attributes: Attribute) -> GraphExpr:
        """The first output of an operator; attributes that are None are left out."""
        return self.several(op_type, 1, *inputs, **attributes)[0]

    def several(
        self, op_type: str, outputs: int, *inputs: GraphExpr | None, **attributes: Attribute
    ) -> list[GraphExpr]:
        """The first outputs of an operator."""
        convert = find_converter("", op_type, OPSET)
        if convert is None:
            raise CompilerBug(f"there is no converter of {op_type} in opset {OPSET}")
        name = self._builder.span.source if self._builder.span is not None else op_type
        names = tuple(f"{name}_{index}" if index else name for index in range(outputs))
        given = {key: _attribute(value) for key, value in attributes.items() if value is not None}
        node = OnnxNode(op_type, "", name, ("",) * len(inputs), names, given)
        context = NodeContext(node, OPSET, list(inputs), self._builder, self._bodies)
        try:
            result = convert(context)
        except Fork as error:
            raise UnsupportedError(
                "the axes of an operator are computed when the model runs", hint="export them as constants"
            ) from error
        context.finish()
        results = [result] if isinstance(result, GraphExpr) else list(result)
        given_results = [item for item in results[:outputs] if item is not None]
        if len(given_results) != outputs:
            raise CompilerBug(f"{op_type} gave {len(given_results)} outputs, not {outputs}")
        return given_results


def _attribute(value: Any) -> AttributeValue:
    """A Python value as an attribute: texts are bytes there, truth values are numbers."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, (list, tuple)):
        return tuple(item.encode() if isinstance(item, str) else item for item in value)
    if not isinstance(value, (int, float)):
        raise CompilerBug(f"an attribute of an operator of ONNX is {value!r}")
    return value


def _no_graph(graph: OnnxGraph, values: Sequence[GraphExpr]) -> list[GraphExpr]:
    raise CompilerBug(f"the graph '{graph.name}' of an operator that another importer uses")


def _no_body(graph: OnnxGraph, values: Sequence[GraphExpr]) -> tuple[list[GraphExpr], Captures]:
    raise CompilerBug(f"the graph '{graph.name}' of an operator that another importer uses")
