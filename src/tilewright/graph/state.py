"""State of a model: pairs of a parameter and a result of `main`, where a call's result is the next call's argument.

    module.attributes["state"] == (("weight", 1), ("count", 2))

says that the parameter `weight` is what result 1 gave in the call before. Whoever runs the model keeps such values: it
neither takes them from a caller nor gives them back. Where a kernel may write the new value over the old one is for the
memory plan to prove; `updates_last` orders the kernels so that it mostly can.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.graph.ir.expr import Call, Function, GraphExpr, Tuple, TupleGet, Var
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.traverse import children
from tilewright.graph.ops.checks import check_of
from tilewright.graph.views import is_view
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType, TupleType, Type
from tilewright.support.errors import CompilerBug, UserError
from tilewright.support.text import kind_of

STATE = "state"
"""The attribute of a module that lists its state."""


@dataclass(frozen=True, slots=True)
class StatePair:
    """A value that calls hand on: the number of a parameter, and of the result that is its next value."""

    parameter: int
    result: int


def with_state(module: IRModule, state: Mapping[str, str | int], entry: str = "main") -> IRModule:
    """A module whose state is these parameters of its entry, by name, with the result (name or number) of each."""
    main = module[entry]
    if not isinstance(main, Function):
        raise UserError(f"{entry} is not a graph function: it has no state")
    if main.body.type is None:
        infer_types(module)
    names = module.attributes.get("output_names")
    labels = [str(name) for name in names] if isinstance(names, (tuple, list)) else []
    results = result_types(main)
    pairs: list[tuple[str, int]] = []
    for name, result in state.items():
        number = _result_number(result, labels, len(results), name)
        _check_pair(main, name, number, results)
        pairs.append((name, number))
    taken = [number for _, number in pairs]
    twice = next((number for number in taken if taken.count(number) > 1), None)
    if twice is not None:
        both = ", ".join(repr(name) for name, number in pairs if number == twice)
        raise UserError(f"the result {twice} is the next value of more than one state: {both}")
    return module.with_attributes(**{STATE: tuple(pairs)})


def result_types(function: Function) -> tuple[Type | None, ...]:
    """The types of a function's results."""
    result = function.body.type
    return result.items if isinstance(result, TupleType) else (result,)


def _result_number(result: object, labels: Sequence[str], count: int, name: str) -> int:
    known = ", ".join(labels) or f"numbers from 0 to {count - 1}"
    if isinstance(result, str):
        if result not in labels:
            raise UserError(f"the state '{name}' has no result '{result}'", hint=f"the results: {known}")
        return labels.index(result)
    if not isinstance(result, int) or isinstance(result, bool):
        raise UserError(f"the result of the state '{name}' is its name or number, not {kind_of(result)}")
    if not 0 <= result < count:
        raise UserError(f"the state '{name}' has no result {result}", hint=f"the results: {known}")
    return result


def _check_pair(main: Function, name: str, number: int, results: Sequence[Type | None]) -> None:
    parameter = next((param for param in main.params if param.name == name), None)
    if parameter is None:
        known = ", ".join(param.name for param in main.params) or "none"
        raise UserError(f"the state '{name}' is no input of the model", hint=f"its inputs: {known}")
    old, new = parameter.type, results[number]
    if not isinstance(old, TensorType) or old.static_shape is None:
        raise UserError(f"the state '{name}' is {old!r}: state is tensors of known shapes")
    if not isinstance(new, TensorType) or new.static_shape != old.static_shape or new.dtype is not old.dtype:
        raise UserError(f"the state '{name}' is {old!r}, but its next value, the result {number}, is {new!r}")


def state_pairs(module: IRModule, entry: str = "main") -> tuple[StatePair, ...]:
    """The state that a module declares."""
    declared = module.attributes.get(STATE, ())
    if not declared:
        return ()
    main = module[entry]
    assert isinstance(declared, (tuple, list)) and isinstance(main, Function)
    numbers = {param.name: number for number, param in enumerate(main.params)}
    return tuple(StatePair(numbers[name], result) for name, result in declared)


def results_of(function: Function) -> Sequence[GraphExpr]:
    """The expressions of a function's results; the function's one call, where that gives them all."""
    return function.body.items if isinstance(function.body, Tuple) else [function.body]


def memory_of(item: GraphExpr) -> GraphExpr:
    """The expression whose memory a tensor is in: views and parts of tuples are looked through."""
    while True:
        if isinstance(item, Call) and is_view(item):
            item = item.args[0]
        elif isinstance(item, TupleGet):
            item = item.value.items[item.index] if isinstance(item.value, Tuple) else item.value
        else:
            return item


def updates_last(order: Sequence[GraphExpr], function: Function, state: Sequence[StatePair]) -> list[GraphExpr]:
    """Nodes of a fused function, each after its operands, in an order in which new values of state come late."""
    return [order[place] for place in ordered(dependents(order, function, state))]


def dependents(order: Sequence[GraphExpr], function: Function, state: Sequence[StatePair]) -> list[set[int]]:
    """For each node of a fused function the places of those that come after it: what uses it, and new values of state.

    The kernel that gives a new value comes after all that read the old one, so that it may write it there; and after
    all that check data, so that a call which fails leaves state as it was. Where such an order would go in a circle
    (what reads the old value also reads the new one), that reader stays where it is.
    """
    places = {id(item): place for place, item in enumerate(order)}
    users: list[set[int]] = [set() for _ in order]
    for place, item in enumerate(order):
        for part in children(item):
            if id(part) in places:
                users[places[id(part)]].add(place)
    if not state:
        return users
    checks = [place for place, item in enumerate(order) if isinstance(item, Call) and check_of(item.callee) is not None]
    readers = _readers(order, function)
    results = results_of(function)
    for pair in state:
        producer = memory_of(results[pair.result] if isinstance(function.body, Tuple) else function.body)
        if id(producer) not in places:
            raise CompilerBug("a result of the model has no storage of its own; run `fuse` first")
        place = places[id(producer)]
        for reader in (*readers.get(pair.parameter, ()), *checks):
            if reader != place and not _reaches(users, place, reader):
                users[reader].add(place)
    return users


def _readers(order: Sequence[GraphExpr], function: Function) -> dict[int, list[int]]:
    """The calls that read each parameter."""
    numbers = {id(param): number for number, param in enumerate(function.params)}
    found: dict[int, list[int]] = {}
    for place, item in enumerate(order):
        if isinstance(item, Call) and not is_view(item):
            for base in {id(memory_of(arg)) for arg in item.args if isinstance(memory_of(arg), Var)}:
                if base in numbers:
                    found.setdefault(numbers[base], []).append(place)
    return found


def _reaches(users: Sequence[set[int]], start: int, goal: int) -> bool:
    """Whether an item needs another, directly or not."""
    seen, waiting = {start}, [start]
    while waiting:
        for user in users[waiting.pop()]:
            if user == goal:
                return True
            if user not in seen:
                seen.add(user)
                waiting.append(user)
    return False


def ordered(users: Sequence[set[int]]) -> list[int]:
    """All items, each after what it needs, and else in the order given."""
    missing = [0] * len(users)
    for needing in users:
        for user in needing:
            missing[user] += 1
    ready = [place for place, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    made: list[int] = []
    while ready:
        place = heapq.heappop(ready)
        made.append(place)
        for user in users[place]:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, user)
    return made
