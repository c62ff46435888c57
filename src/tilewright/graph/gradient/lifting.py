"""Local functions as functions of the module: those that call themselves, and those that are given to others.

A lifted function takes what its closure saw as further parameters. A function that takes a function and calls itself
is copied for each function that it is given: the copy takes what that one saw instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.graph.gradient.binders import with_fresh_binders
from tilewright.graph.gradient.expressions import substituted
from tilewright.graph.gradient.inlining import reduce_closures
from tilewright.graph.ir.expr import (
    Call,
    Constant,
    ConstructorRef,
    Function,
    GlobalVar,
    GraphExpr,
    Let,
    Var,
)
from tilewright.graph.ir.op import Operator
from tilewright.graph.ir.scopes import ScopeMap, find_scopes
from tilewright.graph.ir.traverse import bound_variables, children, graph_functions, post_order, rewrite
from tilewright.ir.function import IRModule
from tilewright.ir.types import FunctionType
from tilewright.support.order import children_first


@dataclass(frozen=True, eq=False)
class Partial:
    """A function of the module together with the arguments behind those of a call."""

    name: str
    captured: tuple[GraphExpr, ...]


class _Names:
    def __init__(self, module: IRModule) -> None:
        self.taken = set(module.functions)

    def give(self, wanted: str) -> str:
        name, number = wanted, 1
        while name in self.taken:
            number += 1
            name = f"{wanted}_{number}"
        self.taken.add(name)
        return name


def lift_closures(module: IRModule) -> IRModule:
    """Local functions that call themselves as functions of the module."""
    names = _Names(module)
    done: dict[str, Function] = {}
    waiting = list(graph_functions(module).values())
    while waiting:
        function = waiting.pop()
        let = next((item for item in post_order(function) if _is_local_recursion(item)), None)
        if let is None:
            done[function.name] = function
            continue
        assert isinstance(let, Let) and isinstance(let.value, Function)
        name = names.give(let.var.name)
        captured = captures(function, let.value)
        inner = _lifted(let.value, name, captured, let.var)
        outside = _eta(let.value, Partial(name, tuple(captured)))

        def drop(old: GraphExpr, new: GraphExpr, let: Let = let) -> GraphExpr | None:
            if old is let:
                assert isinstance(new, Let)
                return new.body
            return None

        result = rewrite(function, drop, {id(let.var): outside})
        assert isinstance(result, Function)
        waiting += [reduce_closures(result), reduce_closures(inner)]
    return module.with_functions({**module.functions, **done})


def _is_local_recursion(item: GraphExpr) -> bool:
    return isinstance(item, Let) and isinstance(item.value, Function)


def captures(outer: Function, closure: Function) -> list[GraphExpr]:
    """What a closure sees of the function around it, in order of first use."""
    order = post_order(outer)
    scopes = find_scopes(order)
    home = scopes.inside(closure, 0)
    bound = bound_variables(closure)
    own = next((item.var for item in order if isinstance(item, Let) and item.value is closure), None)

    def is_outside(item: GraphExpr) -> bool:
        if isinstance(item, Var):
            return item not in bound and item is not own
        return not _within(scopes, item, home)

    def below(item: GraphExpr) -> Sequence[GraphExpr]:
        return () if item is not closure and is_outside(item) else children(item)

    plain = (Constant, GlobalVar, ConstructorRef, Operator)
    roots: list[GraphExpr] = [closure]
    found = children_first(roots, below)
    return [item for item in found if item is not closure and not isinstance(item, plain) and is_outside(item)]


def _within(scopes: ScopeMap, item: GraphExpr, home: object) -> bool:
    scope = scopes.scope(item)
    return scope is home or any(around is home for around in scope.around())


def _lifted(closure: Function, name: str, captured: Sequence[GraphExpr], own: Var | None) -> Function:
    """A closure as a function of the module."""
    params: list[Var] = []
    mapping: dict[int, GraphExpr] = {}
    for value in captured:
        var = Var(value.name if isinstance(value, Var) else "captured", value.type)
        params.append(var)
        mapping[id(value)] = var
    if own is not None:
        mapping[id(own)] = _eta(closure, Partial(name, tuple(params)))
    body = substituted(closure.body, mapping)
    return Function(name, (*closure.params, *params), body, closure.result_type)


def _eta(function: Function, partial: Partial) -> Function:
    """A closure that calls a function of the module."""
    params = tuple(Var(var.name, var.annotation) for var in function.params)
    for var, old in zip(params, function.params, strict=True):
        var.type = old.type
    return Function("", params, Call(GlobalVar(partial.name), (*params, *partial.captured)))


class _Specializer:
    """Copies of functions that take functions, one for each function that they are given."""

    def __init__(self, module: IRModule) -> None:
        self.functions = graph_functions(module)
        self.names = _Names(module)
        self.partials: dict[int, Partial] = {}
        self.kept: list[GraphExpr] = []
        self.copies: dict[tuple[object, ...], str] = {}
        self.done: dict[str, Function] = {}
        self.waiting: list[Function] = []

    def run(self) -> dict[str, Function]:
        self.waiting = [item for item in self.functions.values() if not _takes_functions(item)]
        while self.waiting:
            function = self.waiting.pop()
            self.done[function.name] = self._specialized(function)
        return self.done

    def _specialized(self, function: Function) -> Function:
        def replace(old: GraphExpr, new: GraphExpr) -> GraphExpr | None:
            if not (isinstance(new, Call) and isinstance(new.callee, GlobalVar)):
                return None
            callee = self.functions.get(new.callee.name)
            if callee is None or not (_takes_functions(callee) or callee.type_parameters):
                return None
            return self._call(function, callee, old, new)

        result = rewrite(function, replace)
        assert isinstance(result, Function)
        return reduce_closures(result)

    def _call(self, around: Function, callee: Function, old: GraphExpr, new: Call) -> GraphExpr | None:
        assert isinstance(old, Call)
        given: list[Partial | None] = [self._partial(around, arg) for arg in new.args]
        if any(
            part is None and isinstance(var.type, FunctionType) for part, var in zip(given, callee.params, strict=True)
        ):
            return None
        captured = [value for part in given if part is not None for value in part.captured]
        kinds = tuple(arg.type for arg, part in zip(old.args, given, strict=True) if part is None)
        key = (callee.name, kinds, tuple(None if part is None else part.name for part in given))
        if key not in self.copies:
            self.copies[key] = self.names.give(callee.name)
            self.waiting.append(self._copy(callee, self.copies[key], given, captured, kinds))
        plain = [arg for arg, part in zip(new.args, given, strict=True) if part is None]
        return Call(GlobalVar(self.copies[key]), (*plain, *captured))

    def _partial(self, around: Function, arg: GraphExpr) -> Partial | None:
        if isinstance(arg, GlobalVar):
            return Partial(arg.name, ())
        if not isinstance(arg, Function):
            return None
        known = self.partials.get(id(arg))
        if known is None:
            name = self.names.give("closure")
            captured = captures(around, arg) if any(item is arg for item in post_order(around)) else _free(arg)
            inner = _lifted(with_fresh_binders(arg), name, captured, None)
            self.waiting.append(inner)
            self.functions[name] = inner
            known = self.partials[id(arg)] = Partial(name, tuple(captured))
            self.kept.append(arg)
        return known

    def _copy(
        self,
        callee: Function,
        name: str,
        given: Sequence[Partial | None],
        captured: Sequence[GraphExpr],
        kinds: Sequence[object],
    ) -> Function:
        fresh = with_fresh_binders(callee)
        behind = [Var("captured", value.type) for value in captured]
        rest = iter(behind)
        mapping: dict[int, GraphExpr] = {}
        params: list[Var] = []
        types = iter(kinds)
        for var, part in zip(fresh.params, given, strict=True):
            if part is None:
                kind = next(types)
                plain = Var(var.name, kind if callee.type_parameters else var.annotation)  # type: ignore[arg-type]
                params.append(plain)
                mapping[id(var)] = plain
                continue
            own = Partial(part.name, tuple(next(rest) for _ in part.captured))
            target = self.functions[part.name]
            closure = _eta(target.replace(params=target.params[: len(target.params) - len(own.captured)]), own)
            self.partials[id(closure)] = own
            self.kept.append(closure)
            mapping[id(var)] = closure
        body = substituted(fresh.body, mapping)
        result = None if callee.type_parameters else fresh.result_type
        made = Function(name, (*params, *behind), body, result)
        self.functions[name] = made
        return made


def _free(closure: Function) -> list[GraphExpr]:
    bound = {var for item in post_order(closure) if isinstance(item, Function) for var in item.params}
    return [item for item in post_order(closure) if isinstance(item, Var) and item not in bound]


def _takes_functions(function: Function) -> bool:
    return any(isinstance(var.type, FunctionType) for var in function.params)


def specialize(module: IRModule) -> IRModule:
    """The module in which no function takes a function, as far as the functions given are known."""
    done = _Specializer(module).run()
    others = {name: item for name, item in module.functions.items() if not isinstance(item, Function)}
    return module.with_functions({**others, **done})
