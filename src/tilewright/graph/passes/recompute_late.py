"""Training on devices: what is cheap to compute again is not kept from the way forward to the way back.

Before:  g = gelu(u);  y = product(g, w);  ...;  du = gelu_gradient(u, dg);  dw = product(g, dy)
After:   g = gelu(u);  y = product(g, w);  ...;  du = gelu_gradient(u, dg);  dw = product(gelu(after(u, dy)), dy)

Results of elementwise kernels and of normalisations that are alive when most is, and are read on both sides of that
time, are computed a second time by the kernel that gave them: from what is alive then anyway (`u`), or from what can be
computed again likewise. It must fit the device's cache, where what it reads mostly is (the way back has just read `u`).
Those that move fewest bytes for a byte that they free go first, as long as all of them together move no more than a
share of what the products of the step do. `after` keeps a second computation from starting early.
(`train/recompute.py` has what costs more, under a limit that the user gives.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np
import numpy.typing as npt

from tilewright.graph.ir.expr import Call, Function, GraphExpr, Tuple, TupleGet
from tilewright.graph.ir.infer import fill_type
from tilewright.graph.ir.op import FusionKind, Operator, call
from tilewright.graph.ir.traverse import children, post_order, with_children
from tilewright.graph.memory_order import Lifetimes, Value, memory_order
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.fuse_horizontally import is_straight
from tilewright.graph.state import state_pairs, updates_last
from tilewright.graph.views import is_view
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType, TupleType, Type

_LEAST_BYTES: Final = 1 << 20
"""Smaller values are kept."""
_LAUNCH_BYTES: Final = 8 << 20
"""What could be moved while a kernel starts and ends: 2 microseconds."""
_MOST_FOR_A_BYTE: Final = 3
"""Bytes that are moved for one that is freed: an elementwise kernel moves two, and its launch."""
_MOST_MOVED: Final = 1 / 6
"""What all second computations may move, as a share of what products do."""
_MOST_KERNELS: Final = 3
"""Kernels of one second computation."""


def recompute_late(module: IRModule, options: GraphOptions) -> IRModule:
    """Compute cheap values of a training step (a function with state) a second time, where that lowers its peak."""
    main, state = module["main"], state_pairs(module)
    if options.machine.is_cpu or not state or not isinstance(main, Function) or not is_straight(main):
        return module
    order = [item for item in post_order(main, closures=False) if item is not main]
    if any(_bytes(item.type) is None for item in order if not isinstance(item, Function)):
        return module
    order = memory_order(updates_last(order, main, state), main, state)
    chosen = _Choice(order, main, options.machine.l2_bytes).run()
    return module.with_function(_Rebuilt(order, main, chosen).run()) if chosen else module


@dataclass(frozen=True)
class _Second:
    """A value that is computed again before the first of its late readers."""

    value: Value
    readers: frozenset[int]
    start: int
    after: GraphExpr
    """What is there when the first late reader is about to run, and not much earlier."""
    kernels: tuple[int, ...]
    """The places of the kernels that compute it, in order; the last is its own."""


def _operators(item: GraphExpr) -> list[Operator]:
    """The operators of a kernel."""
    if not isinstance(item, Call) or not isinstance(item.callee, Function):
        return []
    calls = (part for part in post_order(item.callee.body) if isinstance(part, Call))
    return [part.callee for part in calls if isinstance(part.callee, Operator)]


def _bytes(kind: Type | None) -> int | None:
    """The bytes of a value; None where they are not known."""
    kinds = kind.items if isinstance(kind, TupleType) else (kind,)
    sizes = [
        prod(item.static_shape) * item.dtype.itemsize
        for item in kinds
        if isinstance(item, TensorType) and item.static_shape is not None
    ]
    return sum(sizes) if len(sizes) == len(kinds) else None


class _Choice:
    """Which values are given up, one after the other, and what is alive then."""

    def __init__(self, order: Sequence[GraphExpr], main: Function, cache: int) -> None:
        self._order = order
        self._graph = graph = Lifetimes(order, main)
        self._readers = {value: sorted(readers) for value, readers in graph.readers().items()}
        self._last = {value: max(readers, default=value[0]) for value, readers in self._readers.items()}
        self._moved = [self._bytes_moved(item) if graph.given[place] else 0 for place, item in enumerate(order)]
        kinds = [{operator.kind for operator in _operators(item)} for item in order]
        self._is_cheap = [
            len(graph.given[place]) == 1
            and found <= {FusionKind.INJECTIVE, FusionKind.REDUCTION}
            and self._moved[place] <= cache
            for place, found in enumerate(kinds)
        ]
        products = sum(
            moved for moved, found in zip(self._moved, kinds, strict=True) if FusionKind.OUT_FUSABLE in found
        )
        self._budget = products * _MOST_MOVED
        self._alive = np.zeros(len(order) + 1, np.int64)
        for value, last in self._last.items():
            self._alive[value[0] : last + 1] += self._size(value)

    @staticmethod
    def _bytes_moved(item: GraphExpr) -> int:
        values = {id(part): part for part in (*children(item), item) if not isinstance(part, Function)}
        return sum(_bytes(part.type) or 0 for part in values.values())

    def _size(self, value: Value) -> int:
        return self._graph.given[value[0]][value]

    def run(self) -> list[_Second]:
        """The values that are computed again."""
        chosen: list[_Second] = []
        while True:
            peak = int(self._alive.argmax())
            tried = [second for value in self._readers if (second := self._second(value, peak)) is not None]
            tried.sort(key=self._for_a_byte)
            for second in tried:
                alive = self._alive_with(second)
                pays = self._for_a_byte(second) <= _MOST_FOR_A_BYTE and self._cost(second) <= self._budget
                if pays and alive[peak] < self._alive[peak] >= alive.max():
                    break
            else:
                return chosen
            self._take(second, alive)
            chosen.append(second)

    def _cost(self, second: _Second) -> int:
        return sum(self._moved[place] + _LAUNCH_BYTES for place in second.kernels)

    def _for_a_byte(self, second: _Second) -> float:
        return self._cost(second) / self._size(second.value)

    def _second(self, value: Value, peak: int) -> _Second | None:
        """How a value would be computed again that is alive at a place, but not read there."""
        place, last = value[0], self._last[value]
        if not (place < peak < last and self._is_cheap[place] and self._size(value) >= _LEAST_BYTES):
            return None
        late = [reader for reader in self._readers[value] if peak < reader <= last]
        if peak in self._readers[value]:
            return None
        start = late[0]
        after = self._computed_before(start, peak)
        kernels = self._kernels(place, peak) if after is not None else None
        if after is None or not kernels:
            return None
        return _Second(value, frozenset(late), start, after, tuple(kernels))

    def _computed_before(self, start: int, peak: int) -> GraphExpr | None:
        """What is there, but was not at the peak, when a kernel is about to run.

        One of its arguments; for one that reads nothing else (it turns an operand round) the result before it.
        """
        reader = self._order[start]
        assert isinstance(reader, Call)
        places = {self._graph.value_of(arg)[0]: arg for arg in reader.args}
        fresh = [place for place in places if place > peak and self._graph.given[place]]
        if fresh:
            return places[max(fresh)]
        single = (place for place in range(start - 1, peak, -1) if len(self._graph.given[place]) == 1)
        return next((self._order[place] for place in single if isinstance(self._order[place].type, TensorType)), None)

    def _kernels(self, place: int, peak: int) -> list[int] | None:
        """The kernels that compute a value from what is alive at a place; None if there is no cheap way."""
        found: dict[int, None] = {}
        stack = [(place, False)]
        while stack:
            at, done = stack.pop()
            if done:
                found.setdefault(at)
                continue
            stack.append((at, True))
            for value in sorted(self._graph.read[at]):
                if self._last[value] <= peak:
                    stack.append((value[0], False))
            if not self._is_cheap[at] or len(stack) + len(found) > 2 * _MOST_KERNELS:
                return None
        return list(found) if len(found) <= _MOST_KERNELS else None

    def _inputs(self, second: _Second) -> set[Value]:
        """What is alive anyway that a second computation reads."""
        read = {value for place in second.kernels for value in self._graph.read[place]}
        return {value for value in read if value[0] not in second.kernels}

    def _early(self, second: _Second) -> int:
        """The last reader of a value before it is computed again."""
        return max((r for r in self._readers[second.value] if r not in second.readers), default=second.value[0])

    def _alive_with(self, second: _Second) -> npt.NDArray[np.int64]:
        alive, value = self._alive.copy(), second.value
        alive[self._early(second) + 1 : second.start] -= self._size(value)
        for other in self._inputs(second):
            alive[self._last[other] + 1 : second.start + 1] += self._size(other)
        # Until the last of its kernels is done, all that they compute is there.
        alive[second.start] += sum(self._size((place, 0)) for place in second.kernels[:-1])
        return alive

    def _take(self, second: _Second, alive: npt.NDArray[np.int64]) -> None:
        self._alive = alive
        self._budget -= self._cost(second)
        self._last[second.value] = self._early(second)
        for other in self._inputs(second):
            self._last[other] = max(self._last[other], second.start)


class _Rebuilt:
    """The function with second computations."""

    def __init__(self, order: Sequence[GraphExpr], main: Function, chosen: Sequence[_Second]) -> None:
        self._order, self._main = order, main
        self._graph = Lifetimes(order, main)
        self._seconds = {(second.value, reader): second for second in chosen for reader in second.readers}
        self._made: dict[int, GraphExpr] = {}
        self._again: dict[Value, GraphExpr] = {}

    def run(self) -> Function:
        """The new one."""
        for place, item in enumerate(self._order):
            parts = [self._part(part, place) for part in children(item)]
            self._made[id(item)] = self._with(item, parts)
        result = self._main.replace(body=self._made[id(self._main.body)])
        result.type, result.span = self._main.type, self._main.span
        return result

    @staticmethod
    def _with(item: GraphExpr, parts: Sequence[GraphExpr]) -> GraphExpr:
        if all(old is new for old, new in zip(children(item), parts, strict=True)):
            return item
        made = with_children(item, list(parts))
        made.type = item.type
        return made

    def _part(self, part: GraphExpr, reader: int) -> GraphExpr:
        """An operand of a node: of a kernel perhaps what is computed again."""
        if isinstance(part, Function) or not self._graph.given[reader]:
            return self._made.get(id(part), part)
        second = self._seconds.get((self._graph.value_of(part), reader))
        if second is None:
            return self._made[id(part)]
        if second.value not in self._again:
            self._again[second.value] = self._computed(second)
        return self._viewed(part, self._again[second.value])

    def _viewed(self, part: GraphExpr, value: GraphExpr) -> GraphExpr:
        """A view of one value as that of another."""
        if isinstance(part, Call) and is_view(part):
            others = [self._made.get(id(item), item) for item in part.args[1:]]
            made = Call(part.callee, (self._viewed(part.args[0], value), *others), part.attributes)
            made.type, made.span = part.type, part.span
            return made
        if isinstance(part, TupleGet) and isinstance(part.value, Tuple):
            return self._viewed(part.value.items[part.index], value)
        return value

    def _computed(self, second: _Second) -> GraphExpr:
        when = self._scalar(self._made[id(second.after)])
        done: dict[int, GraphExpr] = {}
        for place in second.kernels:
            kernel = self._order[place]
            assert isinstance(kernel, Call)
            args = []
            for arg in kernel.args:
                source = done.get(self._graph.value_of(arg)[0])
                known = self._made.get(id(arg), arg) if source is None else self._viewed(arg, source)
                args.append(known)
            args[0] = fill_type(call("after", args[0], when))
            made = Call(kernel.callee, tuple(args), kernel.attributes)
            made.type, made.span = kernel.type, kernel.span
            done[place] = made
        return done[second.kernels[-1]]

    @staticmethod
    def _scalar(value: GraphExpr) -> GraphExpr:
        """One element of a value, which is there when the value is."""
        rank = len(value.tensor_type.shape or ())
        ones = (1,) * rank
        first = fill_type(call("slice", value, begin=(0,) * rank, end=ones, strides=ones)) if rank else value
        return fill_type(call("reshape", first, shape=()))
