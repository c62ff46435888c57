"""Horizontal fusion: small kernels that do not read one another share a launch, whose blocks are divided among them.

Before:  a = cast(p);  b = cast(q);  c = fused_multiply_sum(r)
After:   all = fused_cast_multiply_sum(p, q, r)       with the note `horizontal`: a function of calls to kernels
         (all.0, all.1, all.2)

A kernel of a few blocks takes as long as the device needs to start and end it, whatever it computes: the casts, norms
and updates of small parameters are most launches of a training step. Such kernels wait until something needs what they
compute, or until memory that they read would otherwise be free; those that then wait together are fused. Kernels of the
same names that could run already go with them, as long as keeping their results takes little memory. Each group comes
after all that it reads and before all that reads it; and new values of state after all that read the old ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import prod
from typing import Final, TypeGuard

from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr, Tuple, TupleGet, Var
from tilewright.graph.ir.infer import fill_type
from tilewright.graph.ir.op import FusionKind, Operator
from tilewright.graph.ir.traverse import children, map_functions, post_order, with_children
from tilewright.graph.ops.checks import check_of
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.fuse import is_primitive
from tilewright.graph.passes.joint_results import fused_nodes
from tilewright.graph.state import StatePair, dependents, memory_of, ordered, state_pairs
from tilewright.graph.views import is_view
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType, TupleType, Type
from tilewright.support.order import children_first

HORIZONTAL: Final = "horizontal"
"""The note of a function whose body calls kernels that share launches, and gives all their results in order."""
_WAVE_BYTES: Final = 96 << 10
"""What the threads of a core move at a time, 48 bytes each: kernels of up to so many bytes for each core are small."""
_SMALL_VALUE: Final = 64 << 10
"""Bytes of a value that costs nothing, however long it lives."""
_SPARE_SHARE: Final = 32
"""The part of all memory that results of kernels which run early may take."""
_MOST_KINDS: Final = 24
"""Kernels of different code in a launch: more take the compiler of the device longer than they save."""
_NAME_LENGTH: Final = 60


def fuse_horizontally(module: IRModule, options: GraphOptions) -> IRModule:
    """Fuse small independent kernels of every straight function, where launches of the target may be shared."""
    most = None if options.target is None else options.target.capabilities.horizontal_buffers
    if most is None:
        return module
    wave = options.machine.cores * _WAVE_BYTES
    state = state_pairs(module)

    def fused(function: Function) -> Function:
        own = state if function.name == "main" else ()
        return _Fuser(function, own, most, wave).run() if is_straight(function) else function

    return map_functions(module, fused)


def parts_of(function: Function) -> list[Call]:
    """The calls of a function with the note `HORIZONTAL`: to kernels, whose results follow each other in its body."""
    assert isinstance(function.body, Tuple)
    calls = [item.value if isinstance(item, TupleGet) else item for item in function.body.items]
    return list({id(call): call for call in calls if isinstance(call, Call)}.values())


def result_count(kind: Type | None) -> int:
    """How many results a call of a type has."""
    return len(kind.items) if isinstance(kind, TupleType) else 1


def is_straight(function: Function) -> bool:
    """Whether all of a function, which is no kernel itself, is calls to kernels and what needs none."""
    return not is_primitive(function) and all(
        isinstance(item, (Var, Constant, Tuple, TupleGet, Function))
        or (isinstance(item, Call) and (is_primitive(item.callee) or is_view(item)))
        for item in post_order(function, closures=False)
    )


class _Fuser:
    """One run over a function."""

    def __init__(self, function: Function, state: Sequence[StatePair], most: int, wave: int) -> None:
        self._function, self._most, self._wave = function, most, wave
        items = [item for item in post_order(function, closures=False) if item is not function]
        later = dependents(items, function, state)
        order = ordered(later)
        self._kernels = [item for place in order if _is_kernel(item := items[place])]
        self._place = {id(call): place for place, call in enumerate(self._kernels)}
        self._needs: dict[int, set[int]] = {}
        """The kernels that each kernel comes after: those that it reads, and where it updates state some more."""
        reached: list[set[int]] = [set() for _ in items]
        for place in order:
            item = items[place]
            if id(item) in self._place:
                self._needs[id(item)], reached[place] = reached[place], {id(item)}
            for user in later[place]:
                reached[user] |= reached[place]
        self._small = {id(call) for call in self._kernels if self._is_small(call)}
        self._readers: dict[int, list[int]] = {id(call): [] for call in self._kernels}
        for place, call in enumerate(self._kernels):
            for value in {id(memory_of(arg)): memory_of(arg) for arg in call.args}.values():
                if _is_kernel(value):
                    self._readers[id(value)].append(place)
        self._live = self._live_bytes()
        self._deadline = self._deadlines()
        self._spare = max(self._live) // _SPARE_SHARE
        self._by_name: dict[str, list[Call]] = {}
        for call in self._kernels:
            if id(call) in self._small:
                self._by_name.setdefault(_name(call), []).append(call)
        self._done: set[int] = set()
        self._waiting: dict[int, Call] = {}
        self._groups: list[list[Call]] = []

    def run(self) -> Function:
        """The function with groups of kernels in the place of those that can share launches."""
        for place, call in enumerate(self._kernels):
            self._start(self._closure(key for key in self._waiting if self._deadline[key] < place))
            if id(call) in self._done:
                continue
            if id(call) in self._small:
                self._waiting[id(call)] = call
                continue
            self._start(self._closure(self._needs[id(call)]))
            self._done.add(id(call))
            self._groups.append([call])
        self._start(dict(self._waiting))
        if all(len(group) == 1 for group in self._groups):
            return self._function
        return self._rebuilt()

    def _is_small(self, call: Call) -> bool:
        """Whether a kernel may share a launch: it is simple, and takes no longer than all that starts at once."""
        assert isinstance(call.callee, Function)
        moved = [*(arg.type for arg in call.args), *_results(call.type)]
        if check_of(call.callee) is not None or any(_bytes(kind) is None for kind in moved):
            return False
        simple = all(
            isinstance(item.callee, Operator) and item.callee.kind <= FusionKind.REDUCTION
            for item in post_order(call.callee.body)
            if isinstance(item, Call)
        )
        return simple and sum(_bytes(kind) or 0 for kind in moved) <= self._wave

    def _deadlines(self) -> dict[int, int]:
        """The last place at which all large values that a kernel reads are alive whether it waits or not.

        Kernels that nothing waits for have none as long as what they hold fits beside all that is alive later.
        """
        live, end = self._live, len(self._kernels)
        found: dict[int, int] = {}
        held = later = 0
        for place, call in reversed([*enumerate(self._kernels)]):
            values = {id(value): value for value in map(memory_of, call.args) if _is_kernel(value)}.values()
            large = [value for value in values if _result_bytes(value) > _SMALL_VALUE]
            others = [[other for other in self._readers[id(value)] if other != place] for value in large]
            found[id(call)] = min((max(places, default=place) for places in others), default=end)
            later = max(later, live[place])
            own = sum(_result_bytes(value) for value in large)
            if not self._readers[id(call)] and found[id(call)] < end and held + own <= max(live) - later:
                held += own
                found[id(call)] = end
        return found

    def _live_bytes(self) -> list[int]:
        """The bytes of results that are alive while each kernel runs."""
        change = [0] * (len(self._kernels) + 1)
        for place, call in enumerate(self._kernels):
            size = _result_bytes(call)
            change[place] += size
            change[max(self._readers[id(call)], default=place) + 1] -= size
        return list(accumulate(change))

    def _closure(self, wanted: Iterator[int] | set[int]) -> dict[int, Call]:
        """Those of some kernels that wait, and what waits that they need."""
        found: dict[int, Call] = {}
        stack = [key for key in wanted if key in self._waiting]
        while stack:
            key = stack.pop()
            if key not in found:
                found[key] = self._waiting[key]
                stack += [need for need in self._needs[key] if need in self._waiting]
        return found

    def _start(self, calls: dict[int, Call]) -> None:
        """Start kernels that wait: all that need none of the others at a time, with others of their names."""
        while calls:
            ready = [call for key, call in calls.items() if not self._needs[key] & calls.keys()]
            taken = {id(call) for call in ready}
            for name in dict.fromkeys(_name(call) for call in ready):
                for call in self._by_name[name]:
                    if id(call) not in taken and id(call) not in self._done and self._may_join(call):
                        self._spare -= 0 if id(call) in self._waiting else _result_bytes(call)
                        taken.add(id(call))
                        ready.append(call)
            ready.sort(key=lambda call: self._place[id(call)])
            self._groups += self._divided(ready)
            for call in ready:
                self._done.add(id(call))
                self._waiting.pop(id(call), None)
                calls.pop(id(call), None)

    def _may_join(self, call: Call) -> bool:
        """Whether a kernel could run already, at little cost of memory."""
        is_cheap = id(call) in self._waiting or _result_bytes(call) <= max(_SMALL_VALUE, self._spare)
        return is_cheap and self._needs[id(call)] <= self._done

    def _divided(self, calls: Sequence[Call]) -> Iterator[list[Call]]:
        """Groups that one launch may have the buffers of, kernels of one kind next to each other."""
        kinds: dict[tuple[object, ...], list[Call]] = {}
        for call in calls:
            kinds.setdefault((_name(call), *(arg.type for arg in call.args)), []).append(call)
        group: list[Call] = []
        buffers: set[int] = set()
        count = 0
        for alike in kinds.values():
            count += 1
            for call in alike:
                own = {id(arg) for arg in call.args}
                results = sum(result_count(item.type) for item in (*group, call))
                if group and (len(buffers | own) + results > self._most or count > _MOST_KINDS):
                    yield group
                    group, buffers, count = [], set(), 1
                group.append(call)
                buffers |= own
        yield group

    def _rebuilt(self) -> Function:
        made: dict[int, GraphExpr] = {}
        for group in self._groups:
            if len(group) > 1:
                args = [[_renewed(arg, made) for arg in call.args] for call in group]
                self._call(group, args, made)
            else:
                _renewed(group[0], made)
        result = self._function.replace(body=_renewed(self._function.body, made))
        result.type, result.span = self._function.type, self._function.span
        return result

    @staticmethod
    def _call(group: Sequence[Call], args: Sequence[Sequence[GraphExpr]], made: dict[int, GraphExpr]) -> None:
        """One call for the kernels of a group, and what its results are of."""
        inputs = {id(arg): arg for own in args for arg in own}
        params = {key: Var(f"p{number}", arg.type) for number, (key, arg) in enumerate(inputs.items())}
        parts = [Call(old.callee, tuple(params[id(arg)] for arg in own)) for old, own in zip(group, args, strict=True)]
        for old, part in zip(group, parts, strict=True):
            part.type, part.span = old.type, old.span
        items = [
            fill_type(TupleGet(part, n)) if isinstance(part.type, TupleType) else part
            for part in parts
            for n in range(result_count(part.type))
        ]
        body = fill_type(Tuple(tuple(items)))
        function = Function("", tuple(params.values()), body, body.type, (), _notes(group))
        function.span = group[0].span
        call = fill_type(Call(fill_type(function), tuple(inputs.values())))
        call.span = group[0].span
        number = 0
        for old in group:
            count = result_count(old.type)
            own_results = [fill_type(TupleGet(call, number + index)) for index in range(count)]
            made[id(old)] = fill_type(Tuple(tuple(own_results))) if isinstance(old.type, TupleType) else own_results[0]
            number += count


def _is_kernel(item: GraphExpr) -> TypeGuard[Call]:
    return isinstance(item, Call) and is_primitive(item.callee)


def _name(call: Call) -> str:
    """What a kernel is made of, in words."""
    assert isinstance(call.callee, Function)
    name = str(call.callee.notes["name"])
    return name.rstrip("0123456789").rstrip("_") if name[-1].isdigit() else name


def _results(kind: Type | None) -> Sequence[Type | None]:
    return kind.items if isinstance(kind, TupleType) else (kind,)


def _result_bytes(call: Call) -> int:
    return sum(_bytes(kind) or 0 for kind in _results(call.type))


def _bytes(kind: Type | None) -> int | None:
    """The bytes of a tensor; None where they are not known."""
    shape = kind.static_shape if isinstance(kind, TensorType) else None
    return None if shape is None or not isinstance(kind, TensorType) else prod(shape) * kind.dtype.itemsize


def _notes(group: Sequence[Call]) -> dict[str, object]:
    names = dict.fromkeys(_name(call).removeprefix("fused_") for call in group)
    nodes = dict.fromkeys(node for call in group for node in fused_nodes(call))
    name = f"horizontal_{'_'.join(names)}"[:_NAME_LENGTH].rstrip("_")
    return {"primitive": True, "name": name, "nodes": tuple(nodes), HORIZONTAL: True}


def _renewed(root: GraphExpr, made: dict[int, GraphExpr]) -> GraphExpr:
    """An expression with groups in the place of kernels: `made` knows those and all that was renewed before."""

    def below(item: GraphExpr) -> Sequence[GraphExpr]:
        return () if id(item) in made or isinstance(item, Function) else children(item)

    for item in children_first([root], below):
        if id(item) in made:
            continue
        parts = below(item)
        new = with_children(item, [made[id(part)] for part in parts]) if parts else item
        if isinstance(new, TupleGet) and isinstance(new.value, Tuple):
            new = new.value.items[new.index]
        elif new is not item:
            new.type = item.type
        made[id(item)] = new
    return made[id(root)]
