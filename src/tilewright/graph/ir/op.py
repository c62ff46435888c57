"""The operator registry: one declaration an operator.

An operator declares its attributes (a node class), its type rule, its fusion kind and its reference semantics in
numpy. What it computes as a tensor expression, and its schedules, are registered by name in `tilewright.topi`.

    @operator("nn.relu", inputs=("data",), kind=FusionKind.INJECTIVE, reference=lambda args, _: np.maximum(args[0], 0))
    def relu(types: Types, attributes: NoAttributes) -> Type:
        '''max(x, 0) elementwise.'''
        return types[0]

A dimension of the result that only the values of the inputs decide is a symbol (`tilewright.ir.expr.Var`) of its own.
Type rules make no symbols, because they run more than once for a node: whoever builds the call makes them and puts
them among its attributes (`dims`), where the rule finds them. Only host operators introduce symbols, and a call that
does is bound by a `let` (`frontend.builder` sees to it): everything that uses a symbol comes after it has a value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, ClassVar, Self, TypeVar

import numpy.typing as npt

from tilewright.graph.ir.dimensions import symbols_of
from tilewright.graph.ir.expr import Attributes, Call, GraphExpr
from tilewright.ir.node import Node, node
from tilewright.ir.types import Type
from tilewright.support.errors import CompilerBug, UserError
from tilewright.support.extensions import note_registration
from tilewright.support.span import Span

Array = npt.NDArray[Any]
Types = Sequence[Type]


class FusionKind(IntEnum):
    """How an operator takes part in fusion, from freest to none."""

    INJECTIVE = 0
    """One-to-one map from outputs to input elements (add, relu, transpose, reshape, broadcast)."""
    REDUCTION = 1
    """Reduces; injective producers fuse into it."""
    OUT_FUSABLE = 2
    """Complex, but elementwise consumers fuse to its output (conv2d, matmul)."""
    OPAQUE = 3
    """Never fused (sort, control, sequence operators)."""


@node()
class NoAttributes(Attributes):
    """The attributes of an operator that has none."""


@node()
class Operator(GraphExpr):
    """An operator of the registry: a function-valued leaf of the graph, one object a name."""

    structural_ignored: ClassVar[tuple[str, ...]] = (
        "inputs",
        "kind",
        "attributes_class",
        "infer",
        "reference",
        "variadic",
        "optional",
        "elementwise",
        "host",
        "description",
    )
    name: str
    inputs: tuple[str, ...]
    kind: FusionKind
    attributes_class: type[Attributes]
    infer: Callable[[Types, Any], Type]
    """The type rule: input types and attributes -> result type, or a UserError that says what does not fit."""
    reference: Callable[[list[Array], Any], Array | tuple[Array, ...]]
    """The meaning, in numpy: input arrays and attributes -> result. The graph interpreter runs this."""
    variadic: bool = False
    """Whether the last input repeats any number of times."""
    optional: int = 0
    """How many of the last inputs may be left out."""
    elementwise: bool = False
    """Injective, and output element i depends only on input elements i (after broadcasting)."""
    host: bool = False
    """Whether no kernel does it but the host function of its name (`tilewright.runtime.host`), which gets the values
    of the inputs and the attributes as a mapping. It is opaque to fusion, and its reference is that function."""
    description: str = ""

    def children(self) -> tuple[Node, ...]:
        """An operator is a leaf."""
        return ()

    def rebuild(self, function: Callable[[Node], Node]) -> Self:
        """An operator is unique: never rebuilt."""
        return self


_REGISTRY: dict[str, Operator] = {}
F = TypeVar("F", bound=Callable[[Types, Any], Type])


def operator(
    name: str,
    *,
    inputs: tuple[str, ...],
    kind: FusionKind,
    reference: Callable[[list[Array], Any], Array | tuple[Array, ...]],
    attributes: type[Attributes] = NoAttributes,
    variadic: bool = False,
    optional: int = 0,
    elementwise: bool = False,
    host: bool = False,
) -> Callable[[F], F]:
    """Register an operator; decorates its type rule, whose docstring describes the operator."""

    def register(infer: F) -> F:
        if name in _REGISTRY:
            raise UserError(f"operator {name} is registered twice")
        if host and kind is not FusionKind.OPAQUE:
            raise CompilerBug(f"operator {name} is done by the host: it must be opaque")
        note_registration(infer)
        description = (infer.__doc__ or "").strip()
        _REGISTRY[name] = Operator(
            name, inputs, kind, attributes, infer, reference, variadic, optional, elementwise, host, description
        )
        return infer

    return register


def get_operator(name: str) -> Operator:
    """The operator of a name."""
    if name not in _REGISTRY:
        close = [known for known in _REGISTRY if name.split(".")[-1] in known][:5]
        raise UserError(f"unknown operator {name!r}", hint=f"did you mean: {', '.join(close)}" if close else None)
    return _REGISTRY[name]


def operators() -> dict[str, Operator]:
    """All operators by name (a copy)."""
    return dict(_REGISTRY)


def call(name: str, *args: GraphExpr, span: Span | None = None, **attributes: object) -> Call:
    """Apply an operator by name, with attributes as keywords.

    `call("nn.conv2d", data, weight, strides=(2, 2))`
    """
    found = get_operator(name)
    least = len(found.inputs) - found.optional - (1 if found.variadic else 0)
    if len(args) < least or (len(args) > len(found.inputs) and not found.variadic):
        raise UserError(f"operator {name} takes ({', '.join(found.inputs)}), got {len(args)} inputs")
    unknown = attributes.keys() - set(found.attributes_class.fields)
    if unknown:
        raise UserError(f"operator {name} has no attribute {', '.join(sorted(unknown))}")
    result = Call(found, args, found.attributes_class(**attributes))
    result.span = span
    return result


def introduces_symbols(expr: object) -> bool:
    """Whether an expression is a call to a host operator that may give values to symbols."""
    return (
        isinstance(expr, Call)
        and isinstance(expr.callee, Operator)
        and expr.callee.host
        and expr.attributes is not None
        and bool(symbols_of(expr.attributes))
    )


def is_call_to(expr: object, name: str) -> bool:
    """Whether an expression is a call to the operator of a name."""
    return isinstance(expr, Call) and isinstance(expr.callee, Operator) and expr.callee.name == name
