"""Which values of the way forward a step keeps for the way back, under an amount of memory.

The operators of a step are taken in the order in which their kernels run. For a set of values that are not kept, that
says how much is alive when (a value that is computed again lives from its first reader on the way back to its last),
and what computing again costs. Starting with everything kept, one value after the other is given up: the one that
lowers what is alive above the limit, summed over time, most for what its second computation costs. In that cost is all
that must be computed with it, and in what is alive all that waits for its own readers since then: giving up the inputs
of two layers would bring both layers back at once.

    above the limit:   h (16 MiB, one addition a byte)   s (16 MiB, 32 multiplications a byte)    ->  h is given up

Results of operators that fuse into their reader take no memory; views are their inputs.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr, Tuple, Var
from tilewright.graph.ir.op import FusionKind, Operator
from tilewright.graph.ir.traverse import children, post_order
from tilewright.graph.ops.contract import MatmulAttributes
from tilewright.graph.views import is_view
from tilewright.ir.types import TensorType, TupleType, Type

LEAST_BYTES = 4096
"""Values smaller than this are kept: they are not what memory goes to."""
_ELEMENT_COST = 32
"""What an element of an operator that is no product costs, in multiplications of a product: it moves memory."""
_MOST_TURNS = 4
_TRIED_TOGETHER = 8


@dataclass
class Choice:
    """Values that are given up, what is then alive at most, and what computing them again costs."""

    given_up: frozenset[int]
    """Their identities."""
    peak: int
    cost: float


def bytes_of(kind: Type | None) -> int:
    """What a value takes; 0 where its shape is not all numbers."""
    if isinstance(kind, TupleType):
        return sum(bytes_of(item) for item in kind.items)
    if not isinstance(kind, TensorType) or kind.static_shape is None:
        return 0
    return math.prod(kind.static_shape) * kind.dtype.itemsize


def _operator(item: GraphExpr) -> Operator | None:
    return item.callee if isinstance(item, Call) and isinstance(item.callee, Operator) else None


def cost_of(item: GraphExpr) -> float:
    """Multiplications, or what takes as long, of computing a value from its operands."""
    operator = _operator(item)
    kind = item.type
    if operator is None or not isinstance(kind, TensorType) or kind.static_shape is None or is_view(item):
        return 0.0
    assert isinstance(item, Call)
    elements = math.prod(kind.static_shape)
    if operator.kind is not FusionKind.OUT_FUSABLE:
        read = (arg.type for arg in item.args)
        sizes = [math.prod(part.static_shape or ()) for part in read if isinstance(part, TensorType)]
        return float(_ELEMENT_COST * max(elements, *sizes, 1))
    weight = item.args[1].type
    assert isinstance(weight, TensorType)
    shape = weight.static_shape or (1,)
    # Products sum over all of the weight but its outputs: one axis of a matrix, the rest of a kernel.
    depth = math.prod(shape[1:])
    if isinstance(item.attributes, MatmulAttributes):
        depth = shape[-1 if item.attributes.transpose_b else -2]
    return float(elements * max(depth, _ELEMENT_COST))


class Keeping:
    """The order of a step, and which of its values can be given up."""

    def __init__(self, main: Function, state: Collection[str]) -> None:
        assert isinstance(main.body, Tuple)
        self.order = [item for item in post_order(main.body) if not isinstance(item, (Operator, Function))]
        self.place = {id(item): place for place, item in enumerate(self.order)}
        self.forward = {id(item) for item in post_order(main.body.items[0])}
        """The loss, and all that it is computed from."""
        self._of_data = {id(param) for param in main.params if param.name not in state}
        self._readers: dict[int, list[GraphExpr]] = defaultdict(list)
        """Operators that read a value, itself or a view of it."""
        for item in self.order:
            if not is_view(item):
                for key in {id(self.root(part)) for part in children(item)}:
                    self._readers[key].append(item)
            if any(id(part) in self._of_data for part in children(item)):
                self._of_data.add(id(item))
        self._results = {id(self.root(item)) for item in main.body.items}
        self._when = self._effective()
        self.marks = self._marks()
        """Places of values of the way back that are in memory, and after which a value may be computed again."""
        self.read_back = self._values_read_back()
        """Values of the way forward that the way back reads: when first, and when last."""
        self.spans = self._spans()

    def root(self, item: GraphExpr) -> GraphExpr:
        """The value whose memory one is in."""
        while is_view(item):
            assert isinstance(item, Call)
            item = item.args[0]
        return item

    def can_repeat(self, item: GraphExpr) -> bool:
        """Whether a value can be computed again: by an operator that depends on its operands alone, of the batch."""
        operator = _operator(item)
        if operator is None or id(item) not in self.forward or id(item) not in self._of_data:
            return False
        return not operator.host and (operator.kind is not FusionKind.OPAQUE or operator.name == "nn.attention")

    def is_stored(self, item: GraphExpr, given_up: Collection[int]) -> bool:
        """Whether a value of the way forward is there on the way back."""
        value = self.root(item)
        if id(value) in given_up:
            return False
        return id(value) in self.read_back or not self.can_repeat(value) or bytes_of(value.type) < LEAST_BYTES

    def _fuses(self, item: GraphExpr, reader: GraphExpr) -> bool:
        """Whether a value that only one operator reads is computed inside of it."""
        operator, after = _operator(item), _operator(reader)
        if operator is None or after is None or id(item) in self._results:
            return False
        if operator.kind is FusionKind.INJECTIVE:
            return after.kind is FusionKind.INJECTIVE or after.kind is FusionKind.REDUCTION
        return operator.kind is FusionKind.OUT_FUSABLE and after.elementwise and item.type == reader.type

    def _effective(self) -> list[int]:
        """When each operator runs: with its reader, where it fuses into that."""
        when = list(range(len(self.order)))
        self._in_memory = [True] * len(self.order)
        for place in reversed(range(len(self.order))):
            item = self.order[place]
            readers = self._readers[id(item)]
            same_way = all((id(item) in self.forward) == (id(reader) in self.forward) for reader in readers)
            if len(readers) == 1 and same_way and self._fuses(item, readers[0]):
                when[place] = when[self.place[id(readers[0])]]
                self._in_memory[place] = False
            if isinstance(item, (Var, Constant, Tuple)) or is_view(item):
                self._in_memory[place] = False
        return when

    def _marks(self) -> list[int]:
        """Operands of products of the way back are in memory anyway: one more reader of them changes no kernel."""
        found: set[int] = set()
        for item in self.order:
            operator = _operator(item)
            if operator is None or id(item) in self.forward or operator.kind is not FusionKind.OUT_FUSABLE:
                continue
            for part in children(item):
                value = self.root(part)
                late = id(value) not in self.forward and id(value) in self._of_data
                if late and _operator(value) is not None and bytes_of(value.type):
                    found.add(self.place[id(value)])
        return sorted(found)

    def mark_before(self, place: int) -> int | None:
        """The last value before a place of the way back that is in memory."""
        count = bisect_left(self.marks, place)
        return self.marks[count - 1] if count else None

    def _values_read_back(self) -> dict[int, tuple[int, int]]:
        found: dict[int, list[int]] = defaultdict(list)
        for place, item in enumerate(self.order):
            if id(item) in self.forward or is_view(item):
                continue
            for part in children(item):
                value = self.root(part)
                if id(value) in self.forward and id(value) in self._of_data and not isinstance(value, (Var, Constant)):
                    found[id(value)].append(place)
        return {key: (min(places), max(self._when[place] for place in places)) for key, places in found.items()}

    def candidates(self) -> list[GraphExpr]:
        """Values that could be given up."""
        return [
            self.order[self.place[key]]
            for key, (first, _) in self.read_back.items()
            if bytes_of(self.order[self.place[key]].type) >= LEAST_BYTES
            and self.can_repeat(self.order[self.place[key]])
            and self.mark_before(first) is not None
        ]

    def second_computation(self, root: GraphExpr, given_up: Collection[int]) -> tuple[list[GraphExpr], list[GraphExpr]]:
        """What is computed again for a value that is given up, operands first, and what is kept that it reads."""
        computed: dict[int, GraphExpr] = {}
        kept: dict[int, GraphExpr] = {}
        stack: list[tuple[GraphExpr, bool]] = [(root, False)]
        while stack:
            item, done = stack.pop()
            if done:
                computed.setdefault(id(item), item)
            elif id(item) in computed or id(item) in kept:
                continue
            elif self.is_stored(item, given_up):
                kept[id(item)] = item
            else:
                stack.append((item, True))
                stack.extend((part, False) for part in reversed(children(item)) if _is_value(part))
        return list(computed.values()), list(kept.values())

    def simulate(self, given_up: Set[int]) -> Simulation:
        """What is alive when, if some values are not kept."""
        return Simulation(self, given_up)

    def _spans(self) -> list[tuple[int, int, int, int]]:
        """Values in memory: identity, bytes, place, and the last reader of the same way (of both on the way back)."""
        found = []
        for place, item in enumerate(self.order):
            if self._in_memory[place] and id(item) not in self._results:
                last = self._last_reader(item, forward_only=id(item) in self.forward)
                found.append((id(item), bytes_of(item.type), place, last))
        return found

    def _last_reader(self, item: GraphExpr, *, forward_only: bool) -> int:
        readers = [r for r in self._readers[id(item)] if id(r) in self.forward or not forward_only]
        return max((self._when[self.place[id(reader)]] for reader in readers), default=self.place[id(item)])


def _is_value(item: GraphExpr) -> bool:
    return not isinstance(item, (Operator, Function))


class Simulation:
    """A step in which some values are not kept: how much is alive when, and what computing them again costs."""

    def __init__(self, keeping: Keeping, given_up: Set[int]) -> None:
        self.keeping = keeping
        self.given_up = given_up
        self.cost = 0.0
        self._first: dict[int, int] = {}
        """When values that are computed again are first there, by their identities."""
        self._last: dict[int, int] = {}
        self._kept_until = {key: last for key, (_, last) in keeping.read_back.items() if key not in given_up}
        for key in sorted(given_up, key=lambda key: keeping.read_back[key][0]):
            self._repeat(key)
        self.alive = self._alive()
        self.peak = int(self.alive.max())

    def _repeat(self, key: int) -> None:
        keeping = self.keeping
        start, last = keeping.read_back[key]
        start = self._first.get(key, start)
        computed, kept = keeping.second_computation(keeping.order[keeping.place[key]], self.given_up)
        for item in kept:
            root = id(keeping.root(item))
            self._kept_until[root] = max(self._kept_until.get(root, start), start)
        for item in computed:
            if id(item) not in self._first:
                self._first[id(item)] = start
                self.cost += cost_of(item)
            if id(item) in self.given_up:
                self._last[id(item)] = max(self._last.get(id(item), start), start)
        self._last[key] = max(self._last[key], last)

    def _alive(self) -> npt.NDArray[np.int64]:
        """Bytes that are alive at each place."""
        changes = np.zeros(len(self.keeping.order) + 2, np.int64)
        for key, size, start, last in self.keeping.spans:
            changes[start] += size
            changes[max(last, self._kept_until.get(key, last)) + 1] -= size
        for key, last in self._last.items():
            size = bytes_of(self.keeping.order[self.keeping.place[key]].type)
            changes[self._first[key]] += size
            changes[last + 1] -= size
        return changes.cumsum()

    def above(self, limit: int) -> float:
        """What is alive above a limit, summed over time."""
        return float(np.maximum(self.alive - limit, 0).sum())

    def cost_of_giving_up(self, value: GraphExpr) -> float:
        """What a second computation of one more value would add."""
        computed, _ = self.keeping.second_computation(value, {*self.given_up, id(value)})
        return sum(cost_of(item) for item in computed if id(item) not in self._first)


def choose(keeping: Keeping, limit: int) -> Choice:
    """Give up values until no more than a limit is alive at any time, or nothing that frees memory is left.

    A value that was given up early may do harm after others were: computing those again computes it as well, long
    before it is read. Such values are kept after all, and others are given up in their place.
    """
    now, kept = keeping.simulate(frozenset()), set[int]()
    for _ in range(_MOST_TURNS):
        now = _given_up(now, limit, kept)
        found, back = _taken_back(now, limit)
        if not back:
            break
        kept |= back
        now = found
    return Choice(frozenset(now.given_up), now.peak, now.cost)


def _given_up(now: Simulation, limit: int, kept: Collection[int]) -> Simulation:
    """Give up one value after the other, but none of those that are kept."""
    candidates = [value for value in now.keeping.candidates() if id(value) not in kept]
    while now.peak > limit:
        left = [value for value in candidates if id(value) not in now.given_up]
        left.sort(key=lambda value: now.cost_of_giving_up(value) / bytes_of(value.type))
        found = _best(now, left, limit)
        if found is None:
            break
        now = found
    return now


def _best(now: Simulation, left: Sequence[GraphExpr], limit: int) -> Simulation | None:
    """The step with one more value given up that is best for its cost, of the first few that are good at all."""
    above = now.above(limit)
    for begin in range(0, len(left), _TRIED_TOGETHER):
        best: tuple[float, Simulation] | None = None
        for value in left[begin : begin + _TRIED_TOGETHER]:
            tried = now.keeping.simulate(now.given_up | {id(value)})
            gain = (above - tried.above(limit)) / max(tried.cost - now.cost, 1.0)
            if gain > 0 and (best is None or gain > best[0]):
                best = (gain, tried)
        if best is not None:
            return best[1]
    return None


def _taken_back(now: Simulation, limit: int) -> tuple[Simulation, set[int]]:
    """Keep values after all, where less is alive then, or no more than may be for less cost; and which these are."""
    back: set[int] = set()
    for key in sorted(now.given_up, key=lambda key: -now.keeping.place[key]):
        tried = now.keeping.simulate(now.given_up - {key})
        fits = tried.peak <= max(limit, now.peak) and tried.cost < now.cost
        if fits or tried.above(limit) < now.above(limit):
            now = tried
            back.add(key)
    return now, back
