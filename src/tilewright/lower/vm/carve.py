"""Straight runs of kernels carved out of a block: which kernels run together as one native segment.

Kernels wait for what the machine does (calls, branches, host functions) and the other way round. In each turn all
kernels that wait for nothing run as one segment, then all that the machine can do; a block has as few turns as the
longest chain of waiting makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr, Tuple, TupleGet, Var
from tilewright.graph.ir.op import get_operator, is_call_to
from tilewright.graph.ir.scopes import Scope
from tilewright.graph.ops.checks import CheckAttributes, CheckedAttributes, check_of
from tilewright.graph.views import is_view
from tilewright.ir.types import FunctionType, TupleType, Type
from tilewright.lower.vm.analysis import Analysis, is_kernel, is_leaf
from tilewright.support.errors import CompilerBug

Key = tuple[int, int]
"""A result of a kernel: identity of the call, number of the result (-1 where there is only one)."""


@dataclass(eq=False)
class Carved:
    """One turn: kernels that run as one segment, then what the machine does; each in an order that respects needs."""

    kernels: list[Call] = field(default_factory=list)
    others: list[GraphExpr] = field(default_factory=list)

    def function(self, analysis: Analysis) -> tuple[Function, list[GraphExpr], list[Key]]:
        """The kernels as a function: of the values they take from outside, to the results that others need."""
        return _SegmentFunction(analysis, self.kernels).make()


def carve(analysis: Analysis, block: Scope, items: Sequence[GraphExpr]) -> list[Carved]:
    """The turns of a block, for its values in an order that respects needs."""
    turn: dict[int, int] = {}
    native: set[int] = set()
    turns: list[Carved] = []
    for item in items:
        runs_natively = is_kernel(item) or _waits_for_no_machine(analysis, item, turn, native)
        when = 0
        for needed in _needed(analysis, block, item):
            if id(needed) not in turn:
                continue
            later = runs_natively and id(needed) not in native
            when = max(when, turn[id(needed)] + (1 if later else 0))
        turn[id(item)] = when
        if runs_natively:
            native.add(id(item))
        while len(turns) <= when:
            turns.append(Carved())
        if is_kernel(item):
            assert isinstance(item, Call)
            turns[when].kernels.append(item)
        else:
            turns[when].others.append(item)
    return turns


def _waits_for_no_machine(analysis: Analysis, item: GraphExpr, turn: dict[int, int], native: set[int]) -> bool:
    """Whether a value is there at the start, or is a view or a part of what is or of what kernels compute.

    A kernel may take it in its own turn.
    """
    if isinstance(item, Var) or is_leaf(item):
        return True
    if is_call_to(item, "checked"):
        assert isinstance(item, Call)
        base = analysis.value(item.args[1])
    elif isinstance(item, Call) and is_view(item):
        base = analysis.value(item.args[0])
    elif isinstance(item, TupleGet):
        base = analysis.value(item.value)
    else:
        return False
    return id(base) in native or id(base) not in turn


def _needed(analysis: Analysis, block: Scope, item: GraphExpr) -> list[GraphExpr]:
    """What must be there before a value is computed: its operands, and what its branches and closures use."""
    direct = [child for child, position in analysis.children(item) if not position]
    has_blocks = any(position for _, position in analysis.children(item))
    return [*direct, *analysis.reaches(item, [block])] if has_blocks else direct


class _SegmentFunction:
    """Builds the function of a segment."""

    def __init__(self, analysis: Analysis, kernels: Sequence[Call]) -> None:
        self.analysis = analysis
        self.kernels = kernels
        self.inside = {id(kernel) for kernel in kernels}
        self.made: dict[int, GraphExpr] = {}
        self.params: list[Var] = []
        self.inputs: list[GraphExpr] = []

    def make(self) -> tuple[Function, list[GraphExpr], list[Key]]:
        for kernel in self.kernels:
            call = Call(kernel.callee, tuple(self._operand(arg) for arg in kernel.args))
            call.span, call.type = kernel.span, kernel.type
            self.made[id(kernel)] = call
        outputs: list[Key] = []
        results: list[GraphExpr] = []
        for kernel in self.kernels:
            for number in self._used_outside(kernel):
                outputs.append((id(kernel), number))
                results.append(self._result(self.made[id(kernel)], number))
        self._keep_checks(outputs, results)
        body = results[0] if len(results) == 1 else Tuple(tuple(results))
        kinds = tuple(item.type for item in results if item.type is not None)
        body.type = kinds[0] if len(kinds) == 1 else TupleType(kinds)
        function = Function("segment", tuple(self.params), body)
        function.type = FunctionType(tuple(_known(param.type) for param in self.params), body.type)
        return function, self.inputs, outputs

    def _keep_checks(self, outputs: list[Key], results: list[GraphExpr]) -> None:
        """Checks whose values nothing here uses are done with the first result, or are one where there is no other."""
        checks = [kernel for kernel in self.kernels if check_of(kernel.callee) is not None]
        if checks and not results:
            outputs.append((id(checks[0]), -1))
            results.append(self.made[id(checks.pop(0))])
        for kernel in checks:
            call = check_of(kernel.callee)
            assert call is not None and isinstance(call.attributes, CheckAttributes)
            attributes = CheckedAttributes(call.attributes.what, call.attributes.axes)
            made = Call(get_operator("checked"), (results[0], self.made[id(kernel)]), attributes)
            made.span, made.type = call.span, results[0].type
            results[0] = made

    def _operand(self, item: GraphExpr) -> GraphExpr:
        item = self.analysis.value(item)
        found = self.made.get(id(item))
        if found is not None or isinstance(item, Constant):
            return item if found is None else found
        made: GraphExpr
        if isinstance(item, TupleGet) and id(self.analysis.value(item.value)) in self.inside:
            made = TupleGet(self._operand(item.value), item.index)
        elif isinstance(item, Call) and is_view(item) and self._reaches_inside(item):
            if is_call_to(item, "checked") and not self._checks_here(item):
                return self._operand(item.args[0])
            made = Call(item.callee, tuple(self._operand(arg) for arg in item.args), item.attributes)
        else:
            made = Var(f"x{len(self.params)}", item.type)
            self.params.append(made)
            self.inputs.append(item)
        made.span, made.type = item.span, item.type
        self.made[id(item)] = made
        return made

    def _checks_here(self, item: GraphExpr) -> bool:
        """Whether a value is one that a kernel of this segment checks."""
        if not isinstance(item, Call) or not is_call_to(item, "checked"):
            return False
        return id(self.analysis.value(item.args[1])) in self.inside

    def _reaches_inside(self, item: GraphExpr) -> bool:
        """Whether a view is of a kernel of this segment, of what one checks, or of a constant.

        Others are made by the machine once.
        """
        while isinstance(item, Call) and is_view(item):
            if self._checks_here(item):
                return True
            item = self.analysis.value(item.args[0])
        if isinstance(item, TupleGet):
            item = self.analysis.value(item.value)
        return id(item) in self.inside or isinstance(item, Constant)

    @staticmethod
    def _result(call: GraphExpr, number: int) -> GraphExpr:
        if number < 0:
            return call
        part = TupleGet(call, number)
        assert isinstance(call.type, TupleType)
        part.type = call.type.items[number]
        return part

    def _used_outside(self, kernel: Call) -> list[int]:
        """The results of a kernel that others need: other segments, the machine, other blocks, the result."""
        is_tuple = isinstance(kernel.type, TupleType)
        every = list(range(len(kernel.type.items))) if isinstance(kernel.type, TupleType) else [-1]
        used: set[int] = set()
        root = self.analysis.value(self.analysis.function.body)
        stack: list[tuple[GraphExpr, int | None]] = [(kernel, None if is_tuple else -1)]
        seen: set[int] = set()
        while stack:
            item, number = stack.pop()
            users = self.analysis.users[id(item)]
            if self._is_result(item) or item is root:
                used.update(every if number is None else [number])
            for user in users:
                if isinstance(user, TupleGet) and number is None and self.analysis.value(user.value) is item:
                    stack.append((user, user.index))
                elif is_call_to(user, "checked") and self._is_status(item, user):
                    if self.analysis.block_of[id(user)] is not self.analysis.block_of[id(item)]:
                        used.add(-1)
                elif is_view(user) and number is not None:
                    if id(user) not in seen:
                        seen.add(id(user))
                        stack.append((user, number))
                elif id(user) not in self.inside:
                    used.update(every if number is None else [number])
        return sorted(used)

    def _is_status(self, item: GraphExpr, user: GraphExpr) -> bool:
        """Whether a value is what a check found, to a use of what is checked: nobody reads it."""
        assert isinstance(user, Call)
        return self.analysis.value(user.args[1]) is item and self.analysis.value(user.args[0]) is not item

    def _is_result(self, item: GraphExpr) -> bool:
        """Whether a value is what a branch, a clause or a closure gives."""
        return any(
            position and child is item
            for user in self.analysis.users[id(item)]
            for child, position in self.analysis.children(user)
        )


def _known(kind: Type | None) -> Type:
    if kind is None:
        raise CompilerBug("a value of a segment has no type")
    return kind
