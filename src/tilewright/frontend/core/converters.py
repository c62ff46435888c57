"""Tables of converters: which function turns which operator of a format into graph operators, and how it is run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.frontend.core.builder import Builder
from tilewright.frontend.core.registry import Registry
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.types import TensorType
from tilewright.support.errors import UnsupportedError, UserError
from tilewright.support.span import Span

N = TypeVar("N")
Results = GraphExpr | Sequence[GraphExpr]
"""The outputs in order; one value stands for a single output."""


class NamingBuilder(ArithmeticBuilder):
    """A builder whose results have a name for every size, also where only a run knows whether sizes fit."""

    def call(self, name: str, *args: GraphExpr, **attributes: object) -> GraphExpr:
        """Apply an operator; what it leaves open of the shape of its result are new symbols."""
        result = super().call(name, *args, **attributes)
        kind = result.type
        if isinstance(kind, TensorType) and kind.shape is not None and None in kind.shape:
            return self.named(result, "size")
        return result


class Converters(Generic[N]):
    """The converters of one format, by the names of its operators."""

    def __init__(self, title: str, reasons: dict[str, str] | None = None) -> None:
        self.title = title
        self._reasons = reasons or {}
        """Why operators are not supported, where there is a reason of principle."""
        self._table: Registry[str, Callable[[N], Results]] = Registry()

    def __call__(self, *operators: str) -> Callable[[Callable[[N], Results]], Callable[[N], Results]]:
        """Register a converter."""

        def register(convert: Callable[[N], Results]) -> Callable[[N], Results]:
            for name in operators:
                self._table.add(name, convert, convert)
            return convert

        return register

    def names(self) -> list[str]:
        """The operators that there are converters for."""
        return sorted(self._table.entries())

    def convert(self, builder: Builder, operator: str, name: str, node: N) -> list[GraphExpr]:
        """The results of a node; errors say the operator and the node."""
        where = f"{operator} '{name}'"
        builder.span = Span(name)
        convert = self._table.get(operator)
        if convert is None:
            reason = self._reasons.get(operator)
            message = f"the operator {operator} of {self.title} is not supported"
            raise UnsupportedError(message if reason is None else f"{message}: {reason}", where=where, hint=_HINT)
        try:
            results = convert(node)
        except UserError as error:
            if error.where is not None:
                raise
            kind = UnsupportedError if isinstance(error, UnsupportedError) else UserError
            raise kind(error.message, where=where, hint=error.hint) from error
        return [results] if isinstance(results, GraphExpr) else list(results)


_HINT = "cut the model before it, or convert it to ONNX with its own framework"
