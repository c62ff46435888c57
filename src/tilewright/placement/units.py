"""A model's graph as units that are placed as wholes, and the parts that a placement cuts it into.

Targets fuse operators into kernels each in its own way. A place that can run anything can run any piece of the graph:
operators are one unit where all such places have them in one kernel. One that refuses kernels must get those that it
takes whole, with all that its passes made them of. Units in a row at one place are then a part: a graph of its own,
compiled, and fused, for that place as any model is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr, Tuple, TupleGet, Var, tuple_of
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.known import is_known
from tilewright.graph.ir.op import Operator
from tilewright.graph.ir.traverse import post_order, rewrite
from tilewright.ir.expr import const_value
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType
from tilewright.placement.assignment import HOST, Value
from tilewright.runtime.device.parts import Source
from tilewright.support.errors import UserError
from tilewright.support.span import Span

ENTRY = "main"
_MARK = "#"
"""Between a node's name in the user's model and its number here."""
_NOBODY = -1
"""Of the parts, the one that reads the model's results."""

Rewrite = Callable[[GraphExpr, GraphExpr], GraphExpr | None]


@dataclass(frozen=True, slots=True)
class Unit:
    """Operators that are placed together."""

    name: str
    calls: tuple[Call, ...]
    nodes: tuple[str, ...]
    """Their names in the user's model."""


@dataclass(frozen=True, slots=True)
class PlaceKernel:
    """A kernel that a place has for the whole model: its operators by name, what it takes, whether it is refused."""

    nodes: tuple[str, ...]
    seconds: float
    is_refused: bool


@dataclass(frozen=True, slots=True)
class GraphPart:
    """What one place computes without a break: its graph, and where each of its inputs comes from."""

    place: int
    units: tuple[Unit, ...]
    module: IRModule
    inputs: tuple[Source, ...]


def numbered(module: IRModule) -> IRModule:
    """The same model, each of whose operators has a name of its own, by which kernels are told apart."""
    function = module.functions.get(ENTRY)
    if not isinstance(function, Function) or len(module.functions) != 1:
        raise _not_straight("it has several functions")
    count = 0

    def renamed(old: GraphExpr, new: GraphExpr) -> GraphExpr | None:
        nonlocal count
        if not isinstance(old, (Var, Constant, Tuple, TupleGet, Call)):
            raise _not_straight(f"it has {type(old).__name__.lower()} nodes")
        if not isinstance(new, Call):
            return None
        if not isinstance(new.callee, Operator):
            raise _not_straight("it calls functions")
        made = Call(new.callee, new.args, new.attributes)
        span = old.span or Span("")
        made.span = Span(f"{span}{_MARK}{count}", operation=span.operation)
        count += 1
        return made

    return infer_types(module.with_functions({ENTRY: function.replace(body=rewrite(function.body, renamed))}))


def _not_straight(reason: str) -> UserError:
    return UserError(
        f"the model cannot be divided among places: {reason}",
        hint="models of operators alone are placed, without control flow",
    )


def user_name(name: str) -> str:
    """The user's own name of a node."""
    return name.rpartition(_MARK)[0]


class ModelGraph:
    """The operators of a numbered model, who reads what, and units of them."""

    def __init__(self, module: IRModule) -> None:
        function = module.functions[ENTRY]
        assert isinstance(function, Function)
        self.module, self.function = module, function
        body = function.body
        self.outputs = tuple(body.items) if isinstance(body, Tuple) else (body,)
        order = post_order(*self.outputs)
        self.calls = [item for item in order if isinstance(item, Call) and not is_known(item)]
        self._numbers = {id(call): number for number, call in enumerate(self.calls)}
        self._by_name = {str(call.span): number for number, call in enumerate(self.calls)}
        self._readers: dict[int, list[int]] = {}
        for number, call in enumerate(self.calls):
            for item in self.reads(call):
                writer = self.writer(item)
                if writer is not None:
                    self._readers.setdefault(self._numbers[id(writer)], []).append(number)
        self._renamed: Rewrite = _with_user_names
        for item in (*self.function.params, *self.calls):
            _check_sizes(item)

    def reads(self, call: Call) -> list[GraphExpr]:
        """The tensors that an operator reads: inputs of the model, and results of operators that are not constants."""
        return [tensor for argument in call.args for tensor in self.tensors(argument)]

    def tensors(self, item: GraphExpr) -> list[GraphExpr]:
        """The tensors that an expression is made of, without constants."""
        if is_known(item):
            return []
        if isinstance(item, Tuple):
            return [tensor for part in item.items for tensor in self.tensors(part)]
        if isinstance(item, TupleGet) and isinstance(item.value, Tuple):
            return self.tensors(item.value.items[item.index])
        return [item]

    def writer(self, tensor: GraphExpr) -> Call | None:
        """The operator that a tensor is a result of; None for inputs."""
        while isinstance(tensor, TupleGet):
            tensor = tensor.value
        return tensor if isinstance(tensor, Call) else None

    def units(self, places: Sequence[Sequence[PlaceKernel]]) -> list[Unit]:
        """Units in an order in which they can run, from the kernels that each place has for the model."""
        groups = _Groups(len(self.calls))
        choosy = [kernels for kernels in places if any(kernel.is_refused for kernel in kernels)]
        taken: set[int] = set()
        for kernels in choosy:
            taken |= self._join_taken(groups, [self._members_of(item) for item in kernels if not item.is_refused])
        others = [kernels for kernels in places if not any(kernel.is_refused for kernel in kernels)]
        self._join_common(groups, [list(map(self._members_of, kernels)) for kernels in others], taken)
        self._join_cycles(groups)
        found: dict[int, list[Call]] = {}
        for number, call in enumerate(self.calls):
            found.setdefault(groups.of(number), []).append(call)
        return [self._unit(number, found[first]) for number, first in enumerate(self._ordered(groups, found))]

    def _members_of(self, kernel: PlaceKernel) -> list[int]:
        return [self._by_name[name] for name in kernel.nodes if name in self._by_name]

    def _join_taken(self, groups: _Groups, kernels: Sequence[list[int]]) -> set[int]:
        """What a place that refuses others takes: a kernel is called by its last operators, what they read is in it."""
        in_some = {number for members in kernels for number in members}
        taken = set(in_some)
        for members in kernels:
            groups.join(members)
        for number in range(len(self.calls) - 1, -1, -1):
            readers = self._readers.get(number, ())
            if number not in in_some and readers and all(reader in taken for reader in readers):
                roots = {groups.of(reader) for reader in readers}
                if len(roots) == 1:
                    groups.join([number, readers[0]])
                    taken.add(number)
        return taken

    def _join_common(self, groups: _Groups, places: Sequence[Sequence[list[int]]], taken: set[int]) -> None:
        """Join what every place has in one kernel, but nothing to what was `taken`.

        What no kernel has (views) goes with its writer, else with a reader.
        """
        keys: dict[int, list[tuple[int, int]]] = {}
        for place, kernels in enumerate(places):
            for kernel, members in enumerate(kernels):
                for number in members:
                    if not any(known == place for known, _ in keys.get(number, ())):
                        keys.setdefault(number, []).append((place, kernel))
        alike: dict[tuple[tuple[int, int], ...], list[int]] = {}
        for number, key in keys.items():
            if number not in taken:
                alike.setdefault(tuple(key), []).append(number)
        for members in alike.values():
            groups.join(members)
        for number, call in enumerate(self.calls):
            for item in self.reads(call):
                writer = self.writer(item)
                if writer is not None and not isinstance(item.type, TensorType):
                    groups.join([number, self._numbers[id(writer)]])
        for number, call in enumerate(self.calls):
            if number in keys or not groups.is_alone(number):
                continue
            writers = [self._numbers[id(writer)] for item in self.reads(call) if (writer := self.writer(item))]
            beside = [*writers, *self._readers.get(number, ())]
            groups.join([number, *beside[:1]])

    def _join_cycles(self, groups: _Groups) -> None:
        """Join units that each need the other."""
        while True:
            after = self._after(groups)
            loops = [loop for loop in _loops(after) if len(loop) > 1]
            if not loops:
                return
            for loop in loops:
                groups.join(loop)

    def _after(self, groups: _Groups) -> dict[int, set[int]]:
        """The units that read of each."""
        after: dict[int, set[int]] = {groups.of(number): set() for number in range(len(self.calls))}
        for number, call in enumerate(self.calls):
            for item in self.reads(call):
                writer = self.writer(item)
                if writer is not None:
                    first = groups.of(self._numbers[id(writer)])
                    if first != groups.of(number):
                        after[first].add(groups.of(number))
        return after

    def _ordered(self, groups: _Groups, found: Mapping[int, list[Call]]) -> list[int]:
        after = self._after(groups)
        missing = dict.fromkeys(found, 0)
        for readers in after.values():
            for reader in readers:
                missing[reader] += 1
        ready, order = [item for item in found if not missing[item]], []
        while ready:
            item = min(ready)
            ready.remove(item)
            order.append(item)
            for reader in sorted(after[item]):
                missing[reader] -= 1
                if not missing[reader]:
                    ready.append(reader)
        return order

    def _unit(self, number: int, calls: Sequence[Call]) -> Unit:
        # Nodes without a name are called by what they do.
        nodes = dict.fromkeys(user_name(str(call.span)) or _operator(call) for call in calls)
        return Unit(f"unit {number}", tuple(calls), tuple(nodes))

    def values(self, units: Sequence[Unit]) -> list[Value]:
        """The tensors between units, and between them and the host."""
        owner = {id(call): unit.name for unit in units for call in unit.calls}
        readers: dict[int, set[str]] = {}
        tensors: dict[int, GraphExpr] = {}
        pairs = [(unit.name, item) for unit in units for call in unit.calls for item in self.reads(call)]
        pairs += [(HOST, item) for output in self.outputs for item in self.tensors(output)]
        for reader, item in pairs:
            tensors[id(item)] = item
            readers.setdefault(id(item), set()).add(reader)
        made = []
        for key, item in tensors.items():
            writer = self.writer(item)
            name = HOST if writer is None else owner[id(writer)]
            others = frozenset(readers[key] - {name})
            if others:
                made.append(Value(name, others, _nbytes(item)))
        return made

    # ------------------------------------------------------------------ parts

    def parts(
        self, units: Sequence[Unit], places: Mapping[str, int], renamed: Rewrite | None = None
    ) -> tuple[list[GraphPart], list[Source]]:
        """What each place computes, in an order in which it can, and where the model's results come from.

        Operators have the user's names; `renamed=keep_names` leaves them those by which units know them.
        """
        self._renamed = renamed or _with_user_names
        members = self._members(units, places)
        inside = {id(call): number for number, group in enumerate(members) for unit in group for call in unit.calls}
        sources: dict[int, Source] = {id(var): Source(None, index) for index, var in enumerate(self.function.params)}
        wanted: list[dict[int, GraphExpr]] = [{} for _ in members]
        needed = [(inside[id(call)], item) for call in self.calls for item in self.reads(call)]
        needed += [(_NOBODY, item) for output in self.outputs for item in self.tensors(output)]
        for reader, item in needed:
            writer = self.writer(item)
            if writer is not None and inside[id(writer)] != reader:
                wanted[inside[id(writer)]].setdefault(id(item), item)
        for number, tensors in enumerate(wanted):
            sources.update({key: Source(number, index) for index, key in enumerate(tensors)})
        made = []
        for number, (group, tensors) in enumerate(zip(members, wanted, strict=True)):
            made.append(self._part(places[group[0].name], group, list(tensors.values()), sources, f"part_{number}"))
        constants = [output for output in self.outputs if is_known(output)]
        if constants:
            sources.update({id(item): Source(len(made), index) for index, item in enumerate(constants)})
            made.append(self._part(0, (), constants, sources, f"part_{len(made)}"))
        results = [sources[id(item)] for output in self.outputs for item in self.tensors(output) or [output]]
        return made, results

    def _members(self, units: Sequence[Unit], places: Mapping[str, int]) -> list[tuple[Unit, ...]]:
        """Units in parts. A part is a level above what it reads of other places: so parts never form a cycle."""
        owner = {id(call): unit for unit in units for call in unit.calls}
        level: dict[str, int] = {}
        groups = _Groups(len(units))
        index = {unit.name: number for number, unit in enumerate(units)}
        for unit in units:
            before = [owner[id(w)] for call in unit.calls for item in self.reads(call) if (w := self.writer(item))]
            before = [other for other in before if other is not unit]
            here = places[unit.name]
            level[unit.name] = max((level[u.name] + (places[u.name] != here) for u in before), default=0)
            for other in before:
                if places[other.name] == here and level[other.name] == level[unit.name]:
                    groups.join([index[unit.name], index[other.name]])
        found: dict[int, list[Unit]] = {}
        for number, unit in enumerate(units):
            found.setdefault(groups.of(number), []).append(unit)
        return [tuple(group) for group in sorted(found.values(), key=lambda group: level[group[0].name])]

    def _part(
        self,
        place: int,
        units: tuple[Unit, ...],
        results: Sequence[GraphExpr],
        sources: Mapping[int, Source],
        name: str,
    ) -> GraphPart:
        inside = {id(call) for unit in units for call in unit.calls}
        given: dict[int, GraphExpr] = {}
        for unit in units:
            for call in unit.calls:
                for item in self.reads(call):
                    writer = self.writer(item)
                    if writer is None or id(writer) not in inside:
                        given.setdefault(id(item), item)
        params = {key: Var(f"x{number}", item.type) for number, (key, item) in enumerate(given.items())}
        body = rewrite(tuple_of(results), self._renamed, params)
        module = infer_types(IRModule([Function(ENTRY, tuple(params.values()), body)]))
        return GraphPart(place, units, module, tuple(sources[key] for key in given))


def unit_seconds(units: Sequence[Unit], kernels: Sequence[PlaceKernel]) -> dict[str, float | None]:
    """What each unit takes at a place; None where that refuses all of it.

    The time of a kernel is that of the units whose operators are the least free in it: the convolution's, of one with
    what follows it.
    """
    owner = {str(call.span): (unit.name, _kind(call)) for unit in units for call in unit.calls}
    found: dict[str, float | None] = {unit.name: 0.0 for unit in units}
    refused: set[str] = set()
    taken: set[str] = set()
    last = [unit.name for unit in units[:1]]
    for kernel in kernels:
        members = [owner[node] for node in kernel.nodes if node in owner]
        (refused if kernel.is_refused else taken).update(name for name, _ in members)
        most = max((kind for _, kind in members), default=0)
        # A kernel that passes made goes with the one before it.
        last = list(dict.fromkeys(name for name, kind in members if kind == most)) or last
        for name in last:
            found[name] = (found[name] or 0.0) + kernel.seconds / len(last)
    return {name: None if name in refused - taken else seconds for name, seconds in found.items()}


def _kind(call: Call) -> int:
    assert isinstance(call.callee, Operator)
    return call.callee.kind


def _operator(call: Call) -> str:
    assert isinstance(call.callee, Operator)
    return call.callee.name


def keep_names(old: GraphExpr, new: GraphExpr) -> GraphExpr | None:
    """Operators with the names that they have."""
    return Call(new.callee, new.args, new.attributes) if isinstance(new, Call) else None


def _with_user_names(old: GraphExpr, new: GraphExpr) -> GraphExpr | None:
    if not isinstance(new, Call):
        return None
    made = Call(new.callee, new.args, new.attributes)
    span = old.span or Span("")
    name = user_name(str(span))
    made.span = Span(name, operation=span.operation) if name else None
    return made


def _check_sizes(item: GraphExpr) -> None:
    if isinstance(item.type, TensorType) and _extents(item.type) is None:
        raise UserError(
            "a model is placed for fixed sizes, and a call decides the sizes of this one",
            hint="give the shapes of its inputs: options=tw.CompileOptions(shapes={...})",
        )


def _extents(kind: TensorType) -> list[int] | None:
    """The sizes of a tensor; None where they are not all known."""
    sizes = [None if extent is None else const_value(extent) for extent in kind.shape or ()]
    known = [size for size in sizes if size is not None]
    return known if kind.shape is not None and len(known) == len(sizes) else None


def _nbytes(item: GraphExpr) -> int:
    kind = item.tensor_type
    return prod(_extents(kind) or ()) * kind.dtype.itemsize


class _Groups:
    """Numbers that are joined into groups; a group is called by its least."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))
        self._size = [1] * count

    def of(self, number: int) -> int:
        while self._parent[number] != number:
            self._parent[number] = self._parent[self._parent[number]]
            number = self._parent[number]
        return number

    def is_alone(self, number: int) -> bool:
        return self._size[self.of(number)] == 1

    def join(self, numbers: Sequence[int]) -> None:
        roots = sorted({self.of(number) for number in numbers})
        for root in roots[1:]:
            self._parent[root] = roots[0]
            self._size[roots[0]] += self._size[root]


def _loops(after: Mapping[int, set[int]]) -> list[list[int]]:
    """Sets of nodes that reach each other: what is left when all without a way in, or out, are taken away, by reach."""
    reach: dict[int, set[int]] = {}
    for start in after:
        seen: set[int] = set()
        waiting = [*after[start]]
        while waiting:
            item = waiting.pop()
            if item not in seen:
                seen.add(item)
                waiting += after[item]
        reach[start] = seen
    found, done = [], set[int]()
    for start in after:
        if start not in done:
            loop = [start, *(item for item in after if item != start and item in reach[start] and start in reach[item])]
            done.update(loop)
            found.append(loop)
    return found
