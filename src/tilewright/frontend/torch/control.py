"""Control flow of programs: `torch.cond`, `while_loop` and `scan`, whose bodies are graphs of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from tilewright.frontend.core.builder import evaluate, sizes_of
from tilewright.frontend.core.loops import Loop, Turn, build_loop, captured, stack
from tilewright.frontend.torch.builder import TorchBuilder
from tilewright.graph.ir.expr import Function, GraphExpr, If, Var
from tilewright.graph.ir.unify import Mismatch, Unifier, show_type
from tilewright.ir.types import Type
from tilewright.support.errors import UnsupportedError

RunGraph = Callable[[Any, Sequence[Any]], list[Any]]
"""Imports a graph module with values for its inputs; gives its outputs."""
_UNROLLED = 64
"""The most turns of a scan that are spelled out."""


class Control:
    """Builds control flow in one import; loops become functions of the module."""

    def __init__(self, builder: TorchBuilder, run: RunGraph) -> None:
        self.builder, self.run = builder, run
        self.functions: list[Function] = []

    def convert(self, name: str, arguments: Sequence[Any]) -> list[GraphExpr] | None:
        """The results of a control operator by its name; None if it is none."""
        match name:
            case "cond":
                return self._cond(*arguments)
            case "while_loop":
                return self._while_loop(*arguments)
            case "scan":
                return self._scan(*arguments)
        return None

    def _cond(self, condition: Any, then: Any, other: Any, operands: Sequence[Any] = ()) -> list[GraphExpr]:
        """A known condition chooses the branch now; else both are kept and one is computed."""
        b = self.builder
        known = evaluate(condition) if isinstance(condition, GraphExpr) else condition
        if known is not None:
            return _tensors(self.run(then if bool(known) else other, operands))
        counts: list[int] = []

        def side(graph: Any) -> GraphExpr:
            values = _tensors(self.run(graph, operands))
            counts.append(len(values))
            return b.tuple(values)

        sides = [b.enclosed(lambda graph=graph: side(graph)) for graph in (then, other)]  # type: ignore[misc]
        made = If(b.reshape(b.truth(condition), ()), sides[0], sides[1])
        try:
            made.type = Unifier().join(cast(Type, sides[0].type), cast(Type, sides[1].type))
        except Mismatch as error:
            texts = [show_type(cast(Type, item.type)) for item in sides]
            raise UnsupportedError(f"the branches of cond give {texts[0]} and {texts[1]}: {error}") from None
        made.span = b.span
        values = [made] if counts[0] == 1 else [b.item(made, index) for index in range(counts[0])]
        return [b.named(value, "branch") for value in values]

    def _while_loop(
        self, going: Any, body: Any, carried: Sequence[Any], additional: Sequence[Any] = ()
    ) -> list[GraphExpr]:
        """A function that calls itself as long as the condition holds."""
        b = self.builder
        start = _tensors(carried)

        def test(values: Sequence[GraphExpr], outer: Sequence[Any]) -> GraphExpr:
            (found,) = _tensors(self.run(going, [*values, *outer]))
            return b.reshape(b.truth(found), ())

        def turn(number: GraphExpr, values: list[GraphExpr]) -> Turn:
            captures: list[tuple[GraphExpr, Var]] = []
            outer = [captured(item, captures) if isinstance(item, GraphExpr) else item for item in additional]
            results = _tensors(self.run(body, [*values, *outer]))
            return Turn(test(results, outer), results, [], captures)

        made = Loop(self._name("loop"), None, test(start, additional), start, turn)
        return build_loop(b, self.functions, made)[0]

    def _scan(
        self, body: Any, init: Sequence[Any], scanned: Sequence[Any], additional: Sequence[Any] = ()
    ) -> list[GraphExpr]:
        """Over the first axis: spelled out if it is short, else a function that calls itself."""
        b = self.builder
        states, items = _tensors(init), _tensors(scanned)
        total = sizes_of(items[0])[0]
        if isinstance(total, int) and total <= _UNROLLED:
            columns: list[list[GraphExpr]] = []
            for step in range(total):
                parts = [b.select(item, 0, step) for item in items]
                results = _tensors(self.run(body, [*states, *parts, *additional]))
                states, found = results[: len(states)], results[len(states) :]
                columns = columns or [[] for _ in found]
                for column, value in zip(columns, found, strict=True):
                    column.append(value)
            return [*states, *(b.stack(column, 0) for column in columns)]

        def turn(number: GraphExpr, values: list[GraphExpr]) -> Turn:
            captures: list[tuple[GraphExpr, Var]] = []
            inside = [captured(item, captures) for item in items]
            outer = [captured(item, captures) if isinstance(item, GraphExpr) else item for item in additional]
            parts = [b.call("take", item, number, axis=0) for item in inside]
            results = _tensors(self.run(body, [*values, *parts, *outer]))
            return Turn(None, results[: len(values)], results[len(values) :], captures)

        limit = b.reshape(b.shape_tensor([total]), ())
        made = Loop(self._name("scan"), limit, None, states, turn)
        finished, collected = build_loop(b, self.functions, made)
        return [*finished, *(stack(b, item, total, 0, f"{made.name}_{at}") for at, item in enumerate(collected))]

    def _name(self, base: str) -> str:
        """A name that no other function of the module has."""
        taken = {function.name for function in self.functions}
        count = 0
        while f"{base}_{count}" in taken:
            count += 1
        return f"{base}_{count}"


def _tensors(values: Sequence[Any]) -> list[GraphExpr]:
    for value in values:
        if not isinstance(value, GraphExpr):
            raise UnsupportedError(
                f"control flow over a {type(value).__name__}", hint="carry tensors: torch.tensor(value)"
            )
    return list(values)
