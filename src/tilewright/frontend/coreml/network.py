"""Import of Core ML's neural networks: walks the layers, with branches and loops whose layers overwrite values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.frontend.core.builder import evaluate
from tilewright.frontend.core.loops import Loop, Turn, build_loop
from tilewright.frontend.core.registry import located
from tilewright.frontend.coreml import layers_arithmetic, layers_image, layers_shape
from tilewright.frontend.coreml.layer import Layer, convert_layer
from tilewright.frontend.coreml.operation import Captures
from tilewright.frontend.coreml.program import Scope
from tilewright.graph.ir.expr import Function, GraphExpr, If
from tilewright.graph.ir.unify import Mismatch, Unifier
from tilewright.ir.dtype import INT64
from tilewright.ir.types import Type
from tilewright.support.errors import UnsupportedError, UserError

LAYER_FAMILIES = (layers_arithmetic, layers_image, layers_shape)
"""The modules whose converters are registered, one a family of layers."""
_FIRST_KIND = 100
"""Numbers of fields of a layer from here on are kinds of layers."""
_DEEPEST = 32


def run_network(
    network: Any, inputs: Mapping[str, GraphExpr], builder: ArithmeticBuilder, source: str
) -> tuple[dict[str, GraphExpr], list[Function]]:
    """All values of a network by name, and further functions of the module."""
    walk = _Walk(builder, source)
    scope = Scope()
    scope.values.update(inputs)
    walk.layers(network, scope)
    return {name: value for name, value in scope.values.items() if isinstance(value, GraphExpr)}, walk.functions


class _Walk:
    """The import of one network."""

    def __init__(self, builder: ArithmeticBuilder, source: str) -> None:
        self.builder = builder
        self.source = source
        self.functions: list[Function] = []
        self.depth = 0

    def layers(self, network: Any, scope: Scope) -> None:
        """Import the layers of a network."""
        self.depth += 1
        if self.depth > _DEEPEST:
            raise UserError("networks are nested too deeply", where=self.source)
        for item in network.layers:
            kinds = [(field.name, value) for field, value in item.ListFields() if field.number >= _FIRST_KIND]
            kind, params = kinds[0] if kinds else ("unknown", None)
            with located(self.builder, self.source, item.name, kind):
                if kind == "branch":
                    self._branch(item, params, scope)
                elif kind == "loop":
                    self._loop(item, params, scope)
                elif kind in ("loopBreak", "loopContinue"):
                    raise UnsupportedError(
                        f"the layer {kind}", hint="convert the model with loops that end by their condition"
                    )
                else:
                    self._layer(item, kind, params, scope)
        self.depth -= 1

    def _layer(self, item: Any, kind: str, params: Any, scope: Scope) -> None:
        inputs = [self._value(scope, name) for name in item.input]
        results = convert_layer(Layer(kind, item.name, params, inputs, len(item.output), self.builder))
        if len(results) < len(item.output):
            raise UnsupportedError(f"a layer of the kind {kind} with {len(item.output)} results")
        scope.values.update(zip(item.output, results, strict=False))

    def _value(self, scope: Scope, name: str) -> GraphExpr:
        value = scope.find(name)
        if not isinstance(value, GraphExpr):
            raise UserError(f"nothing produces its input '{name}'")
        return value

    def _truth(self, value: GraphExpr) -> GraphExpr:
        return self.builder.truth(self.builder.reshape(value, ()))

    # Branches: what either side writes is seen afterwards

    def _branch(self, item: Any, params: Any, scope: Scope) -> None:
        condition = self._truth(self._value(scope, item.input[0]))
        known = evaluate(condition)
        if known is not None:
            self.layers(params.ifBranch if known.all() else params.elseBranch, scope)
            return
        networks = (params.ifBranch, params.elseBranch)
        names = self._written(networks, scope)
        if not names:
            return

        def side(network: Any) -> GraphExpr:
            inner = Scope(scope)
            self.layers(network, inner)
            return self.builder.tuple([self._value(inner, name) for name in names])

        sides = [self.builder.enclosed(lambda network=network: side(network)) for network in networks]  # type: ignore[misc]
        made = If(condition, sides[0], sides[1])
        try:
            made.type = Unifier().join(cast(Type, sides[0].type), cast(Type, sides[1].type))
        except Mismatch as error:
            raise UnsupportedError(f"the branches give values of different types: {error}") from None
        made.span = self.builder.span
        for at, name in enumerate(names):
            value = made if len(names) == 1 else self.builder.item(made, at)
            scope.values[name] = self.builder.named(value, name)

    def _written(self, networks: Sequence[Any], scope: Scope) -> list[str]:
        """The names that both sides give a value, or that one overwrites."""
        sets = [_outputs(network) for network in networks]
        return [
            name
            for name in dict.fromkeys((*sets[0], *sets[1]))
            if (name in sets[0] and name in sets[1]) or scope.find(name) is not None
        ]

    # Loops

    def _loop(self, item: Any, params: Any, scope: Scope) -> None:
        builder = self.builder
        has_condition = params.HasField("conditionNetwork") and bool(params.conditionVar)
        turns: GraphExpr | None = None
        if len(item.input):
            turns = builder.cast(builder.reshape(self._value(scope, item.input[0]), ()), INT64)
        elif params.maxLoopIterations:
            turns = builder.constant(int(params.maxLoopIterations), "int64")
        if turns is None and not has_condition:
            raise UserError("a loop without a condition and without a number of turns")
        written = (*_outputs(params.bodyNetwork), *_outputs(params.conditionNetwork))
        names = [name for name in dict.fromkeys(written) if scope.find(name) is not None]

        def going(inner: Scope) -> GraphExpr | None:
            if not has_condition:
                return None
            self.layers(params.conditionNetwork, inner)
            return self._truth(self._value(inner, params.conditionVar))

        def turn(number: GraphExpr, values: list[GraphExpr]) -> Turn:
            captures: Captures = []
            inner = Scope(scope, captures)
            inner.values.update(zip(names, values, strict=True))
            self.layers(params.bodyNetwork, inner)
            again = going(inner)
            return Turn(again, [self._value(inner, name) for name in names], [], captures)

        first = going(scope)
        carried = [self._value(scope, name) for name in names]
        loop = Loop(f"loop_{item.name}", turns, first, carried, turn)
        results, _ = build_loop(builder, self.functions, loop)
        scope.values.update(zip(names, results, strict=True))


def _outputs(network: Any) -> list[str]:
    """The names that layers of a network write, those of networks inside it too."""
    names: list[str] = []
    for item in network.layers:
        names.extend(item.output)
        if item.HasField("branch"):
            names.extend((*_outputs(item.branch.ifBranch), *_outputs(item.branch.elseBranch)))
        if item.HasField("loop"):
            names.extend((*_outputs(item.loop.bodyNetwork), *_outputs(item.loop.conditionNetwork)))
    return names
