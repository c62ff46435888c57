"""Nodes of the graph IR: a functional language with tensors, tuples, closures, control flow and algebraic data.

Graph nodes carry identity (they are not interned), a span that names the user's own node, and a `type` that inference
fills. A model is a `Function`; sharing a node object means computing it once (graphs are DAGs), `Let` makes order and
scope explicit where effects of scope matter (inside `If`, `Match` and closures).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tilewright.ir.dtype import DataType
from tilewright.ir.function import BaseFunction, Constructor
from tilewright.ir.node import Node, node
from tilewright.ir.types import FunctionType, TensorType, Type, TypeVariable, tensor_type
from tilewright.support.errors import CompilerBug
from tilewright.support.span import Span


class GraphExpr(Node):
    """A value of the graph IR."""

    __slots__ = ("known", "span", "type")
    side_data: ClassVar[tuple[str, ...]] = ("known", "span", "type")
    span: Span | None
    """The user's own name for this node (for an ONNX model, the node's name)."""
    type: Type | None
    """Filled by type inference."""
    known: bool | None
    """Whether it is made of constants alone; None until somebody asks (`graph/ir/known.py`)."""

    def _post_init(self) -> None:
        self.span = None
        self.type = None
        self.known = None

    def copy_side_data(self, other: Node) -> None:
        """Keep the span on rebuilt nodes (the type must be inferred anew)."""
        if isinstance(other, GraphExpr) and other.span is None:
            other.span = self.span

    @property
    def tensor_type(self) -> TensorType:
        """The inferred tensor type; a CompilerBug if inference has not run or it is no tensor."""
        if not isinstance(self.type, TensorType):
            raise CompilerBug(f"{type(self).__name__} has type {self.type!r}, a tensor was expected")
        return self.type


class Attributes(Node):
    """Base of operator attributes: one small node class (`@node()`) an operator, fields with defaults.

    Field values: int, float, bool, str, DataType, None, and tuples of these.
    """

    __slots__ = ()


@node()
class Var(GraphExpr):
    """A variable: unique by identity; `annotation` is its declared type, if any."""

    structural_unique: ClassVar[bool] = True
    structural_ignored: ClassVar[tuple[str, ...]] = ("name",)
    name: str
    annotation: Type | None = None

    def _post_init(self) -> None:
        self.span = None
        self.type = self.annotation
        self.known = None


@node()
class Constant(GraphExpr):
    """A tensor known at compile time. `data` holds the storage (bfloat16 as uint16); never written to."""

    data: npt.NDArray[np.generic]
    dtype: DataType

    def _post_init(self) -> None:
        self.span = None
        self.known = True
        self.type = tensor_type(tuple(int(d) for d in self.data.shape), self.dtype)


def constant(value: npt.ArrayLike, dtype: DataType | str | None = None) -> Constant:
    """A constant from anything array-like."""
    array = np.asarray(value) if dtype is None else np.asarray(value, DataType.of(dtype).numpy())
    return Constant(array, DataType.of(dtype if dtype is not None else array.dtype))


@node()
class GlobalVar(GraphExpr):
    """A function of the module, by name."""

    name: str


@node()
class ConstructorRef(GraphExpr):
    """A constructor of an algebraic data type used as a function."""

    constructor: Constructor


@node()
class Call(GraphExpr):
    """Apply an operator, function, global, closure or constructor to arguments.

    `callee` is an `Operator` (see `tilewright.graph.ir.op`) with `attributes`, or any function-valued expression.
    """

    # A shared call is computed once, two equal ones twice: not the same graph.
    structural_unique: ClassVar[bool] = True
    callee: GraphExpr
    args: tuple[GraphExpr, ...]
    attributes: Attributes | None = None


@node()
class Tuple(GraphExpr):
    """A tuple of values."""

    items: tuple[GraphExpr, ...]


@node()
class TupleGet(GraphExpr):
    """One item of a tuple."""

    value: GraphExpr
    index: int


@node()
class Let(GraphExpr):
    """Bind a variable to a value in a body (the value is in its own scope if it is a function: recursion)."""

    var: Var
    value: GraphExpr
    body: GraphExpr


@node()
class If(GraphExpr):
    """One of two values by a scalar bool tensor; only the chosen one is computed."""

    condition: GraphExpr
    then_value: GraphExpr
    else_value: GraphExpr


@node()
class Function(GraphExpr, BaseFunction):
    """A function: global (named in a module) or a closure (empty name).

    Fused groups are functions with the attribute `primitive: True`: each becomes one kernel.
    """

    name: str
    params: tuple[Var, ...]
    body: GraphExpr
    result_type: Type | None = None
    type_parameters: tuple[TypeVariable, ...] = ()
    notes: dict[str, object] = {}  # noqa: RUF012  (never mutated)

    def __repr__(self) -> str:
        """The signature; `print(function)` shows the whole text."""
        return f"Function({self.name or '<closure>'}({', '.join(var.name for var in self.params)}))"

    @property
    def args(self) -> tuple[Var, ...]:
        """The parameters, under the name the papers use."""
        return self.params

    @property
    def function_type(self) -> FunctionType:
        """The inferred type."""
        if not isinstance(self.type, FunctionType):
            raise CompilerBug(f"function {self.name or '<closure>'} has not been typed")
        return self.type


class Pattern(Node):
    """Base of match patterns."""

    __slots__ = ()


@node()
class WildcardPattern(Pattern):
    """Matches anything."""


@node()
class VarPattern(Pattern):
    """Matches anything and binds it."""

    var: Var


@node()
class ConstructorPattern(Pattern):
    """Matches values built by a constructor, and their fields."""

    constructor: Constructor
    patterns: tuple[Pattern, ...]


@node()
class TuplePattern(Pattern):
    """Matches a tuple item by item."""

    patterns: tuple[Pattern, ...]


@node()
class Clause(Node):
    """One case of a match."""

    pattern: Pattern
    body: GraphExpr


@node()
class Match(GraphExpr):
    """The body of the first clause whose pattern fits the value; clauses must be exhaustive."""

    value: GraphExpr
    clauses: tuple[Clause, ...]


def tuple_of(items: Sequence[GraphExpr]) -> GraphExpr:
    """A tuple of several values; a single value stays itself."""
    return items[0] if len(items) == 1 else Tuple(tuple(items))
