"""Recurrences of CNTK: functions that depend on their own past become a loop over the steps of a sequence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.frontend.cntk.context import Operator, Value
from tilewright.frontend.cntk.dictionary import FREE, INFERRED
from tilewright.frontend.cntk.model import Model, PrimitiveFunction
from tilewright.frontend.cntk.sequences import initial_state
from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.frontend.core.builder import dtype_of, sizes_of
from tilewright.frontend.core.loops import Loop, Turn, build_loop, captured, reverse, stack
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import Function, GraphExpr, Var
from tilewright.support.errors import UnsupportedError, UserError

DELAYS = ("PastValue", "FutureValue")


def cycles(model: Model, roots: Sequence[str]) -> dict[str, frozenset[str]]:
    """For each function that depends on itself, all functions of its cycle (Tarjan's algorithm, without recursion)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stacked: list[str] = []
    inside: set[str] = set()
    found: dict[str, frozenset[str]] = {}

    def next_functions(uid: str) -> list[str]:
        owners = [model.owner(model.resolve(item)) for item in model.functions[uid].inputs]
        return [owner[0].uid for owner in owners if owner is not None]

    for root in roots:
        work: list[tuple[str, list[str]]] = []
        if root not in order:
            work.append((root, next_functions(root)))
            order[root] = lowest[root] = len(order)
            stacked.append(root)
            inside.add(root)
        while work:
            uid, rest = work[-1]
            if rest:
                item = rest.pop()
                if item not in order:
                    order[item] = lowest[item] = len(order)
                    stacked.append(item)
                    inside.add(item)
                    work.append((item, next_functions(item)))
                elif item in inside:
                    lowest[uid] = min(lowest[uid], order[item])
                continue
            work.pop()
            if work:
                lowest[work[-1][0]] = min(lowest[work[-1][0]], lowest[uid])
            if lowest[uid] == order[uid]:
                members: list[str] = []
                while not members or members[-1] != uid:
                    members.append(stacked.pop())
                    inside.discard(members[-1])
                if len(members) > 1 or uid in next_functions(uid):
                    found |= dict.fromkeys(members, frozenset(members))
    return found


@dataclass(frozen=True)
class Recurrence:
    """The functions of one cycle, and how the importer evaluates what they are made of."""

    model: Model
    members: frozenset[str]
    builder: ArithmeticBuilder
    functions: list[Function]
    outside: Callable[[str], Value]
    """The value of a variable or of a function that is not in the cycle."""
    apply: Callable[[PrimitiveFunction, list[Value]], list[Value]]

    def values(self) -> dict[str, list[Value]]:
        """The results of all functions of the cycle, as sequences."""
        delays = [uid for uid in sorted(self.members) if self.model.functions[uid].operator in DELAYS]
        kinds = {self.model.functions[uid].operator for uid in delays}
        if len(kinds) != 1:
            raise UnsupportedError("a recurrence that looks both back and ahead, or neither")
        backward = kinds == {"FutureValue"}
        externals = self._externals(delays)
        sequences = {uid: value for uid, value in externals.items() if value.has_sequence}
        if not sequences:
            raise UnsupportedError("a recurrence without a sequence that says how many steps there are")
        first = next(iter(sequences.values()))
        batch, steps = sizes_of(first.data)[:2]
        limit = self.builder.reshape(self.builder.shape_tensor([steps]), ())
        states = [self._state(uid, batch, first) for uid in delays]
        order = self._order(delays)

        def run(number: GraphExpr, carried: list[GraphExpr]) -> Turn:
            captures: list[tuple[GraphExpr, Var]] = []
            place = number
            if backward:
                last = self.builder.subtract(captured(limit, captures), 1)
                place = self.builder.subtract(last, number)
            known = self._step(externals, place, captures)
            history = _grouped(carried, [len(item) for item in states])
            for uid, past in zip(delays, history, strict=True):
                known[uid] = [Value(past[0], True)]
            for uid in order:
                function = self.model.functions[uid]
                known[uid] = self.apply(function, [self._inner(known, item) for item in function.inputs])
            handed: list[GraphExpr] = []
            for uid, past in zip(delays, history, strict=True):
                newest = self._inner(known, self.model.functions[uid].inputs[0])
                handed.extend([*past[1:], self._as_state(newest, past[0])])
            collected = [known[uid][0].data for uid in (*order, *delays)]
            return Turn(None, handed, collected, captures)

        loop = Loop(f"recurrence_{min(self.members)}", limit, None, [item for group in states for item in group], run)
        _, lists = build_loop(self.builder, self.functions, loop)
        results: dict[str, list[Value]] = {}
        for uid, items in zip((*order, *delays), lists, strict=True):
            whole = stack(self.builder, items, steps, 1, f"{uid}_steps")
            results[uid] = [Value(reverse(self.builder, whole, 1) if backward else whole, True, True)]
        return results

    def _externals(self, delays: Sequence[str]) -> dict[str, Value]:
        """The values from outside by uid; initial states are not among them."""
        found: dict[str, Value] = {}
        for uid in sorted(self.members):
            inputs = self.model.functions[uid].inputs
            for item in inputs[:1] if uid in delays else inputs:
                resolved = self.model.resolve(item)
                owner = self.model.owner(resolved)
                if (owner is None or owner[0].uid not in self.members) and resolved not in found:
                    found[resolved] = self.outside(resolved)
        return found

    def _state(self, uid: str, batch: Size, like: Value) -> list[GraphExpr]:
        """What a delay hands out in the first steps, one for each step that it looks back."""
        function = self.model.functions[uid]
        initial = self.outside(self.model.resolve(function.inputs[1]))
        variable = self.model.variables.get(function.inputs[0]) or self.model.variables.get(
            self.model.resolve(function.inputs[0])
        )
        shape: tuple[Size, ...] = initial.shape
        if variable is not None and not any(size in (INFERRED, FREE) for size in variable.shape):
            shape = tuple(reversed(variable.shape))
        offset = int(function.attributes.get("offset", 1))
        if not 1 <= offset <= 64:
            raise UserError(f"a delay of {offset} steps")
        model_value = Value(self.builder.filled(0, (batch, *shape), dtype_of(like.data)), True)
        op = Operator(function, [], self.builder)
        return [initial_state(op, initial, model_value, (batch,))] * offset

    def _order(self, delays: Sequence[str]) -> list[str]:
        """The other functions of the cycle, each behind what it needs."""
        rest = [uid for uid in self.members if uid not in delays]
        needs = {
            uid: {
                owner[0].uid
                for owner in (self.model.owner(self.model.resolve(item)) for item in self.model.functions[uid].inputs)
                if owner is not None and owner[0].uid in rest
            }
            for uid in rest
        }
        ordered: list[str] = []
        while needs:
            ready = sorted(uid for uid, wanted in needs.items() if not wanted)
            if not ready:
                raise UserError("functions depend on each other without a delay")
            ordered.extend(ready)
            needs = {uid: wanted - set(ready) for uid, wanted in needs.items() if uid not in ready}
        return ordered

    def _step(
        self, externals: Mapping[str, Value], place: GraphExpr, captures: list[tuple[GraphExpr, Var]]
    ) -> dict[str, list[Value]]:
        """Values from outside as one step sees them."""
        known: dict[str, list[Value]] = {}
        for uid, value in externals.items():
            inside = captured(value.data, captures)
            if value.has_sequence:
                inside = self.builder.call("take", inside, place, axis=value.dynamic - 1, mode="clip")
            known[uid] = [Value(inside, value.has_batch)]
        return known

    def _inner(self, known: Mapping[str, list[Value]], uid: str) -> Value:
        resolved = self.model.resolve(uid)
        owner = self.model.owner(resolved)
        if owner is not None and owner[0].uid in known:
            return known[owner[0].uid][owner[1]]
        return known[resolved][0]

    def _as_state(self, value: Value, state: GraphExpr) -> GraphExpr:
        data = value.data
        if not value.has_batch:
            data = self.builder.broadcast_to(data, sizes_of(state))
        return self.builder.cast(data, dtype_of(state))


def _grouped(values: Sequence[GraphExpr], counts: Sequence[int]) -> list[list[GraphExpr]]:
    """Values in groups of so many."""
    groups: list[list[GraphExpr]] = []
    place = 0
    for count in counts:
        groups.append(list(values[place : place + count]))
        place += count
    return groups
