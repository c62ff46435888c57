"""Less memory for a step: what the way back reads of the way forward is computed again instead of kept.

The way forward ends with the loss. What the way back reads of it lives from the one to the other, and that is most of
the memory of a step. Values that are given up (`kept_values.py` chooses them) are computed a second time, from what is
kept, right before the way back reads them:

    before:  c = conv(x), r = relu(c), ..., dw = weight_gradient(dy, r)              c and r, or r alone, live on
    after:   ..., r' = relu(after(c, dy)), dw = weight_gradient(dy, r')              c lives on

`after` keeps the second computation from becoming one with the first, and from starting early.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.frontend.core.builder import rank_of
from tilewright.graph.ir.expr import Constant, Function, GraphExpr, Tuple, Var
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.traverse import children, rewrite, with_children
from tilewright.graph.passes.eliminate_common_subexpressions import eliminate_common_subexpressions
from tilewright.graph.passes.plan_memory import MemoryPlan
from tilewright.graph.state import STATE
from tilewright.graph.views import is_view
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType
from tilewright.support.errors import UserError
from tilewright.train.kept_values import LEAST_BYTES, Choice, Keeping, bytes_of, choose
from tilewright.train.model import main_of

_MOST_PLANS = 6
"""How many choices are planned before the best of them is taken."""


@dataclass(frozen=True)
class Recomputed:
    """A step that fits an amount of memory, or comes as near to it as it can."""

    module: IRModule
    plan: MemoryPlan
    cost: float
    """Multiplications that are done a second time, or what takes as long."""


def recomputed(module: IRModule, limit: int) -> IRModule:
    """A step that keeps less from the way forward to the way back, so that no more than a limit is alive if it can be.

    Its first result is the loss.
    """
    module, keeping = _prepared(module)
    return _applied(module, keeping, choose(keeping, limit))


def _prepared(module: IRModule) -> tuple[IRModule, Keeping]:
    if not isinstance(main_of(module).body, Tuple):
        raise UserError("a step with control flow cannot be computed again in parts", hint="leave out memory=")
    # What the loss and its gradient both compute is one value.
    module = eliminate_common_subexpressions(module)
    declared = module.attributes.get(STATE, ())
    assert isinstance(declared, (tuple, list))
    return module, Keeping(main_of(module), {name for name, _ in declared})


def _applied(module: IRModule, keeping: Keeping, choice: Choice) -> IRModule:
    return infer_types(module.with_function(_Recompute(main_of(module), keeping, choice.given_up).run()))


def fitted(module: IRModule, planned: Callable[[IRModule], MemoryPlan], kept: int, budget: int) -> Recomputed:
    """The step that costs least of those whose plan fits; else the one whose plan takes least.

    What is alive by the order of operators is near to what the plan of the kernels takes, but not the same: the limit
    of the one follows from the other, in a few rounds.
    """
    module, keeping = _prepared(module)
    everything = keeping.simulate(frozenset()).peak
    limit = int(everything * budget / kept)
    best: Recomputed | None = None
    fits: Recomputed | None = None
    seen: set[frozenset[int]] = set()
    for _ in range(_MOST_PLANS):
        choice = choose(keeping, limit)
        if choice.given_up in seen:
            break
        seen.add(choice.given_up)
        made = _applied(module, keeping, choice)
        found = Recomputed(made, planned(made), choice.cost)
        size = found.plan.workspace_bytes
        if best is None or size < best.plan.workspace_bytes:
            best = found
        if size <= budget and (fits is None or found.cost < fits.cost):
            fits = found
        if size <= budget < 1.03 * size:
            break
        limit = int(min(choice.peak, limit) * budget / size) if size > budget else int(limit * (1 + budget / size) / 2)
    assert best is not None
    return fits or best


class _Recompute:
    def __init__(self, main: Function, keeping: Keeping, given_up: Collection[int]) -> None:
        self._main = main
        self._keeping = keeping
        self._given_up = given_up
        self._new: dict[int, GraphExpr] = {}
        """Nodes after rewriting, by what they were."""
        self._again: dict[int, GraphExpr] = {}
        """Second computations, by what they compute."""
        self._scalars: dict[int, GraphExpr] = {}
        """An element of each value of the way back that something comes after, by its place."""
        self._builder = ArithmeticBuilder()
        for param in main.params:
            assert param.type is not None
            self._builder.declare(param.type)

    def run(self) -> Function:
        """The function with second computations."""
        return self._main.replace(body=rewrite(self._main.body, self._replaced))

    def _replaced(self, old: GraphExpr, new: GraphExpr) -> GraphExpr | None:
        if new.type is None:
            new.type = old.type
        made = self._with_second_operands(old, new)
        self._new[id(old)] = made
        return None if made is new else made

    def _with_second_operands(self, old: GraphExpr, new: GraphExpr) -> GraphExpr:
        keeping = self._keeping
        # Views are made again with what they are of, for whoever reads them.
        if id(old) in keeping.forward or isinstance(old, Tuple) or is_view(old):
            return new
        before, parts = children(old), list(children(new))
        early = [at for at, part in enumerate(before) if self._is_given_up(part)]
        if not early:
            return new
        mark = keeping.mark_before(keeping.place[id(old)])
        assert mark is not None
        for at in early:
            parts[at] = self._second(before[at], self._scalar(mark))
        made = with_children(new, parts)
        made.type = old.type
        return made

    def _is_given_up(self, part: GraphExpr) -> bool:
        return id(self._keeping.root(part)) in self._given_up

    def _scalar(self, mark: int) -> GraphExpr:
        """One element of a value, which is there when the value is."""
        if mark not in self._scalars:
            value = self._new[id(self._keeping.order[mark])]
            b, rank = self._builder, rank_of(value)
            first = b.call("slice", value, begin=(0,) * rank, end=(1,) * rank, strides=(1,) * rank) if rank else value
            self._scalars[mark] = b.reshape(first, ())
        return self._scalars[mark]

    def _second(self, root: GraphExpr, when: GraphExpr) -> GraphExpr:
        """A value of the way forward computed again, after a value of the way back."""
        computed, kept = self._keeping.second_computation(root, self._given_up)
        for item in kept:
            if id(item) not in self._again:
                self._again[id(item)] = self._kept(item, when)
        for item in computed:
            if id(item) not in self._again:
                parts = [self._again.get(id(part), part) for part in children(item)]
                made = with_children(item, parts)
                made.type = item.type
                self._again[id(item)] = made
        return self._again[id(root)]

    def _kept(self, item: GraphExpr, when: GraphExpr) -> GraphExpr:
        """A value that is kept, as a second computation reads it."""
        if isinstance(item, (Constant, Var)) or not isinstance(item.type, TensorType):
            return item
        return item if bytes_of(item.type) < LEAST_BYTES else self._builder.call("after", item, when)


def parse_bytes(text: str | float, whole: int) -> int:
    """An amount of memory: a number of bytes, a text such as "2GiB" or "500MB", or a share of the whole (0.5)."""
    units: Sequence[tuple[str, int]] = [
        *((f"{letter}iB", 1 << 10 * (power + 1)) for power, letter in enumerate("KMGT")),
        *((f"{letter}B", 10 ** (3 * (power + 1))) for power, letter in enumerate("KMGT")),
        ("B", 1),
    ]
    if isinstance(text, str):
        plain = text.strip().replace(" ", "")
        for unit, size in units:
            if plain.upper().endswith(unit.upper()):
                try:
                    return int(float(plain[: -len(unit)]) * size)
                except ValueError:
                    break
    elif isinstance(text, int) and not isinstance(text, bool) and text > 0:
        return text
    elif isinstance(text, float) and 0 < text < 1:
        return int(text * whole)
    raise UserError(
        f"an amount of memory is a number of bytes, a text such as '2GiB' or a share below 1 of what keeping "
        f"everything takes, not {text!r}"
    )
