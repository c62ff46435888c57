"""Reverse mode: a function and its cotangents as one program.

Straight code becomes straight code. The nodes of the function stay as they are; behind them come, from the last to the
first, the rules of their operators:

    y = x * x                     y = x * x
    z = sin(y)                    z = sin(y);  y' = z' * cos(y);  x' = y' * x + y' * x

Nothing here goes down a graph by recursion: a chain may have any length. What `if`, `match` and calls become is
`control.py`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tilewright.graph.gradient.accumulate import Contribution, Cotangent, OneItem, Parts
from tilewright.graph.gradient.control import Control
from tilewright.graph.gradient.expressions import typed, with_type
from tilewright.graph.gradient.program import Program
from tilewright.graph.gradient.regions import Region
from tilewright.graph.gradient.registry import require_rule
from tilewright.graph.ir.expr import (
    Call,
    Constant,
    ConstructorRef,
    Function,
    GlobalVar,
    GraphExpr,
    If,
    Let,
    Match,
    Tuple,
    TupleGet,
    Var,
)
from tilewright.graph.ir.op import Operator, introduces_symbols
from tilewright.graph.ir.traverse import children, with_children
from tilewright.ir.types import TensorType
from tilewright.support.errors import CompilerBug


class Reverse(Control):
    """The gradient of one function: first its own values (`forward`), then the cotangents (`backward`)."""

    def __init__(self, program: Program, function: Function, wrt: Iterable[Var]) -> None:
        super().__init__(program, function, wrt)
        for var in function.params:
            self.new[id(var)] = var
            self.regions.body.made.add(id(var))
        self._forward: dict[type, Callable[..., GraphExpr]] = {
            Var: self._variable,
            Constant: self._same,
            GlobalVar: self._same,
            ConstructorRef: self._same,
            Operator: self._same,
            Call: self._forward_call,
            Tuple: self._rebuilt,
            TupleGet: self._forward_item,
            Let: self._forward_let,
            If: self.forward_if,
            Match: self.forward_match,
            Function: self.refuse_closure,
        }
        self._backward: dict[type, Callable[..., None]] = {
            Call: self._backward_call,
            Tuple: self._backward_tuple,
            TupleGet: self._backward_item,
            Let: self._backward_let,
            Var: self._backward_variable,
            If: self.backward_arms,
            Match: self.backward_arms,
        }

    # The values

    def forward(self, region: Region) -> GraphExpr:
        """Build the values of a region; gives that of its root."""
        outer, self.region = self.region, region
        for node in region.nodes:
            if id(node) in self.new:
                continue
            made = self._forward[type(node)](node)
            if made.type is None:
                made.type = node.type
            self.new[id(node)] = made
            self.note(made)
        self.region = outer
        return self.new[id(region.root)]

    def note(self, made: GraphExpr) -> None:
        """Note what the region being built computes."""
        assert self.region is not None
        if not isinstance(made, (Constant, GlobalVar, ConstructorRef, Operator)):
            self.region.made.add(id(made))
            self.kept.append(made)

    def _same(self, node: GraphExpr) -> GraphExpr:
        return node

    def _variable(self, node: Var) -> GraphExpr:
        value = self.regions.binder.get(id(node))
        if value is None or id(value) not in self.new:
            raise CompilerBug(f"the variable {node.name} has no value yet")
        return self.new[id(value)]

    def _rebuilt(self, node: GraphExpr) -> GraphExpr:
        made = with_children(node, [self.new[id(child)] for child in children(node)])
        return made if made is node else typed(made, node.type)

    def _forward_item(self, node: TupleGet) -> GraphExpr:
        value = self.new[id(node.value)]
        return value.items[node.index] if isinstance(value, Tuple) else self._rebuilt(node)

    def _forward_let(self, node: Let) -> GraphExpr:
        return self.new[id(node.body)]

    def _forward_call(self, node: Call) -> GraphExpr:
        if isinstance(node.callee, GlobalVar):
            return self.forward_global(node)
        made = self._rebuilt(node)
        if not introduces_symbols(node):
            return made
        assert self.region is not None
        var = Var("sized")
        var.type = node.type
        self.region.bindings.append((var, made))
        return var

    # The cotangents

    def backward(self, region: Region, cotangent: Cotangent) -> dict[int, list[Contribution]]:
        """The contributions to what a region uses from outside (parameters too), by identity, given that of its root."""
        outer, self.pending = self.pending, {}
        outer_region, self.region = self.region, region
        self.contribute(region.root, cotangent)
        inside = {id(node) for node in region.nodes}
        left: dict[int, list[Contribution]] = {}
        for node in reversed(region.nodes):
            contributions = self.pending.pop(id(node), None)
            if contributions is None:
                continue
            total = self.program.data.combine(contributions, node.type)
            if isinstance(node, Var) and (id(node) not in self.regions.binder or id(node) in self.regions.in_patterns):
                left[id(node)] = [total]
            else:
                self._backward.get(type(node), self._refuse)(node, total)
        left |= {key: given for key, given in self.pending.items() if key not in inside}
        self.pending, self.region = outer, outer_region
        return left

    def contribute(self, node: GraphExpr, value: Contribution) -> None:
        """Add to the cotangent of a node."""
        if id(node) in self.active:
            self.pending.setdefault(id(node), []).append(value)

    def _refuse(self, node: GraphExpr, total: Cotangent) -> None:
        raise CompilerBug(f"a cotangent of {type(node).__name__}")

    def _backward_variable(self, node: Var, total: Cotangent) -> None:
        self.contribute(self.regions.binder[id(node)], total)

    def _backward_let(self, node: Let, total: Cotangent) -> None:
        self.contribute(node.body, total)

    def _backward_tuple(self, node: Tuple, total: Cotangent) -> None:
        assert isinstance(total, Parts)
        for part, given in zip(node.items, total.items, strict=True):
            if given is not None:
                self.contribute(part, given)

    def _backward_item(self, node: TupleGet, total: Cotangent) -> None:
        self.contribute(node.value, OneItem(node.index, total))

    def _backward_call(self, node: Call, total: Cotangent) -> None:
        if isinstance(node.callee, GlobalVar):
            self.backward_global(node, total)
        elif isinstance(node.callee, ConstructorRef):
            self.backward_constructor(node, total)
        elif isinstance(node.callee, Operator):
            self._backward_operator(node, node.callee, total)
        else:
            self.refuse_closure(node)

    def _backward_operator(self, node: Call, operator: Operator, total: Cotangent) -> None:
        rule = require_rule(node, operator.name).reverse
        assert rule is not None
        call = self._call_of(node)
        given = rule(call, _as_items(total) if isinstance(total, Parts) else with_type(total, node.type))
        if len(given) != len(node.args):
            raise CompilerBug(f"the gradient of {operator.name} gives {len(given)} cotangents for {len(node.args)}")
        for arg, new, value in zip(node.args, call.args, given, strict=True):
            if id(arg) not in self.active or value is None:
                continue
            made = value if isinstance(value, GraphExpr) else value()
            self.contribute(arg, self._checked(self.resized(made, new.type), new, operator))

    def _call_of(self, node: Call) -> Call:
        """The call of an operator in the new program, which may be bound to a variable."""
        made = self.new[id(node)]
        if isinstance(made, Var):
            assert self.region is not None
            made = next(value for var, value in self.region.bindings if var is made)
        assert isinstance(made, Call)
        return made

    def _checked(self, value: GraphExpr, primal: GraphExpr, operator: Operator) -> GraphExpr:
        """A cotangent must have the type of its value."""
        found, wanted = value.type, primal.type
        if isinstance(found, TensorType) and isinstance(wanted, TensorType):
            known = found.static_shape is None or wanted.static_shape is None or found.shape == wanted.shape
            if found.dtype is not wanted.dtype or not known:
                raise CompilerBug(f"the gradient of {operator.name} gives {found!r} for an input of {wanted!r}")
        return value


def _as_items(total: Parts) -> Sequence[GraphExpr | None]:
    items: list[GraphExpr | None] = []
    for part in total.items:
        assert not isinstance(part, Parts)
        items.append(part)
    return items
