"""Import of Core ML's programs (MIL): walks the operations of a function and lets the converters build the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.frontend.core.registry import located
from tilewright.frontend.coreml import (
    compressed,
    control,
    elementwise,
    indexing,
    normalization,
    recurrent,
    resize,
    shapes,
    windows,
)
from tilewright.frontend.coreml.blobs import Weights, read_value
from tilewright.frontend.coreml.operation import Argument, Bodies, Captures, Operation, convert
from tilewright.frontend.coreml.types import type_name, value_dtype
from tilewright.graph.ir.expr import Constant, Function, GraphExpr, Var
from tilewright.ir.dtype import DataType
from tilewright.support.errors import UnsupportedError, UserError

FAMILIES = (compressed, control, elementwise, indexing, normalization, recurrent, resize, shapes, windows)
"""The modules whose converters are registered, one an operator family."""
_DEEPEST = 32
"""Blocks nested deeper than this are refused."""
_NAMES = ("name",)
"""Attributes of operations that are no arguments."""

Value = GraphExpr | str | list[Any]


class Scope:
    """Values by name; those of outer scopes are seen too, as parameters where a function begins."""

    def __init__(self, outer: Scope | None = None, captures: Captures | None = None) -> None:
        self.values: dict[str, Value] = {}
        self._outer = outer
        self._captures = captures

    def find(self, name: str) -> Value | None:
        """The value of a name."""
        if name in self.values:
            return self.values[name]
        value = None if self._outer is None else self._outer.find(name)
        if self._captures is None or not isinstance(value, GraphExpr) or isinstance(value, Constant):
            return value
        variable = Var("captured", value.type)
        self._captures.append((value, variable))
        self.values[name] = variable
        return variable


def run_function(
    function: Any, inputs: Mapping[str, GraphExpr], builder: ArithmeticBuilder, folder: Weights, source: str
) -> tuple[dict[str, GraphExpr], list[Function]]:
    """The results of a function by name, and further functions of the module."""
    walk = _Walk(builder, folder, source)
    block = function.block_specializations.get(function.opset)
    if block is None:
        if not function.block_specializations:
            raise UserError("the program's function has no block", where=source)
        block = function.block_specializations[min(function.block_specializations)]
    scope = Scope()
    scope.values.update(inputs)
    results = walk.block(block, scope)
    return dict(zip(block.outputs, results, strict=True)), walk.functions


class _Walk:
    """The import of one function."""

    def __init__(self, builder: ArithmeticBuilder, weights: Weights, source: str) -> None:
        self.builder = builder
        self.weights = weights
        self.source = source
        self.functions: list[Function] = []
        self.depth = 0

    def block(self, block: Any, scope: Scope) -> list[GraphExpr]:
        """The results of a block."""
        for item in block.operations:
            self._operation(item, scope)
        results: list[GraphExpr] = []
        for name in block.outputs:
            value = scope.find(name)
            if not isinstance(value, GraphExpr):
                raise UserError(f"nothing produces the result '{name}'", where=self.source)
            results.append(value)
        return results

    def _operation(self, item: Any, scope: Scope) -> None:
        outputs = [output.name for output in item.outputs]
        name = outputs[0] if outputs else item.type
        with located(self.builder, self.source, name, item.type):
            if item.type == "const":
                scope.values[name] = self._value(item.attributes.get("val"))
                return
            arguments = {
                key: self._argument(argument, key, scope) for key, argument in item.inputs.items() if argument.arguments
            }
            for key, value in item.attributes.items():
                if key not in arguments and key not in _NAMES:
                    arguments[key] = _argument_of(self._value(value))
            dtype = _output_dtype(item.outputs[0]) if item.outputs else None
            bodies = self._bodies(item, scope)
            results = convert(Operation(item.type, name, arguments, self.builder, bodies, dtype))
            if len(results) < len(outputs):
                raise UnsupportedError(f"{item.type} with {len(outputs)} results")
            scope.values.update(zip(outputs, results, strict=False))

    def _bodies(self, item: Any, scope: Scope) -> Bodies:
        def inline(block: Any, values: Sequence[GraphExpr]) -> list[GraphExpr]:
            return self._nested(block, values, Scope(scope))

        def closed(block: Any, values: Sequence[GraphExpr]) -> tuple[list[GraphExpr], Captures]:
            captures: Captures = []
            return self._nested(block, values, Scope(scope, captures)), captures

        return Bodies(item.blocks, inline, closed, self.functions)

    def _nested(self, block: Any, values: Sequence[GraphExpr], scope: Scope) -> list[GraphExpr]:
        names = [item.name for item in block.inputs]
        if len(names) != len(values):
            raise UserError(f"a block takes {len(names)} values, {len(values)} are given")
        scope.values.update(zip(names, values, strict=True))
        self.depth += 1
        if self.depth > _DEEPEST:
            raise UserError("blocks are nested too deeply")
        span = self.builder.span
        try:
            return self.block(block, scope)
        finally:
            self.depth -= 1
            self.builder.span = span

    def _value(self, value: Any) -> Value:
        if value is None:
            raise UserError("a constant without a value")
        read = read_value(value, self.weights)
        return self.builder.constant(read) if isinstance(read, np.ndarray) else read

    def _argument(self, argument: Any, key: str, scope: Scope) -> Argument:
        values: list[Value] = []
        for binding in argument.arguments:
            if binding.HasField("value"):
                values.append(self._value(binding.value))
                continue
            value = scope.find(binding.name)
            if value is None:
                raise UserError(f"nothing produces '{binding.name}', its argument '{key}'")
            values.append(value)
        return _argument_of(values[0] if len(values) == 1 else values)


def _argument_of(value: Value) -> Argument:
    """A value as converters see it; a list is flat."""
    if not isinstance(value, list):
        return value
    flat: list[Any] = []
    for item in value:
        flat.extend(item if isinstance(item, list) else [item])
    if any(isinstance(item, str) for item in flat):
        return [str(item) for item in flat]
    return flat


def _output_dtype(output: Any) -> DataType | None:
    """The type that the program gives a result."""
    if not output.type.HasField("tensorType"):
        return None
    name = type_name(output.type.tensorType.dataType)
    return None if name == "string" else value_dtype(name)
