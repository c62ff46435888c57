"""The gradient of a recurrence, which is a recurrence that runs backwards in time.

    s[t] = f(s[t - 1], x[t])        ->    s'[t] = y'[t] + s'[t + 1] * df/ds(s[t], x[t + 1])        from the last row on
                                          x'[t] = s'[t] * df/dx(s[t - 1], x[t])                    for all rows at once

The steps are written once more as computations of all rows, which read the rows that the recurrence has made: their
gradients are those of any computation. What they give to earlier rows is then put under a scan of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.arith.analyzer import Analyzer
from tilewright.ir import build
from tilewright.ir.build import const
from tilewright.ir.expr import ExprLike, PrimExpr, Var, const_value
from tilewright.ir.node import Node
from tilewright.ir.visit import find_all, substitute, transform
from tilewright.support.errors import UserError
from tilewright.te.contributions import Contribution, accumulated
from tilewright.te.language import compute, compute_many, placeholder, scan
from tilewright.te.reduction import Reduce
from tilewright.te.stage_gradient import Reader, contributions_of
from tilewright.te.tensor import Axis, ComputeOp, ScanOp, Tensor, TensorLoad, operations_of

Contributions = dict[Tensor, list[Contribution]]


def scan_contributions(
    op: ScanOp, gradients: list[Tensor | None], moving: set[Tensor]
) -> tuple[Contributions, dict[Tensor, Tensor]]:
    """What a recurrence gives to the gradients of what its steps read, and the gradients of its first rows."""
    return _Recurrence(op, moving).run(gradients)


class _Recurrence:
    def __init__(self, op: ScanOp, moving: set[Tensor]) -> None:
        self.op = op
        self.rows = const_value(op.init[0].shape[0]) or 0
        if any(const_value(item.shape[0]) != self.rows for item in op.init):
            raise UserError(f"te.gradient: the states of {op.name} begin with different numbers of rows")
        self.time = op.outputs[0].shape[0]
        self.stages: dict[Tensor, Tensor] = dict(zip(op.state, op.outputs, strict=True))
        """For states and what steps compute: all rows of it."""
        self.steps = [self._of_all_rows(step) for step in op.steps]
        self.updates = {self.stages[item]: number for number, item in enumerate(op.update)}
        own = {item for step in self.steps for item in step.outputs if item.dtype.is_float}
        self.moving = {*moving, *op.outputs, *own}

    def _of_all_rows(self, step: ComputeOp) -> ComputeOp:
        """A step as a computation of all rows but the first ones, which are zero."""

        def whole(item: Node) -> Node | None:
            replaced = self.stages.get(item.tensor) if isinstance(item, TensorLoad) else None
            return None if replaced is None or not isinstance(item, TensorLoad) else TensorLoad(replaced, item.indices)

        def element(*i: Axis) -> tuple[PrimExpr, ...]:
            places = {axis.var: own.as_prim_expr() for axis, own in zip(step.axis, i, strict=True)}
            runs = build.le(self.rows, i[0])
            first = step.body[0]
            if not isinstance(first, Reduce):
                values = [substitute(transform(item, whole), places) for item in step.body]
                return tuple(build.select(runs, value, const(0, value.dtype)) for value in values)
            axes = tuple(Axis(Var(axis.name), axis.domain, axis.kind) for axis in first.axes)
            places |= {old.var: new.as_prim_expr() for old, new in zip(first.axes, axes, strict=True)}
            sources = tuple(substitute(transform(item, whole), places) for item in first.sources)
            where = build.logical_and(runs, substitute(transform(first.condition, whole), places))
            return tuple(Reduce(first.reducer, sources, axes, where, n) for n in range(len(sources)))

        outputs = compute_many(step.outputs[0].shape, element, f"{step.name}_rows")
        self.stages.update(zip(step.outputs, outputs, strict=True))
        made = outputs[0].op
        assert isinstance(made, ComputeOp)
        return made

    def run(self, gradients: list[Tensor | None]) -> tuple[Contributions, dict[Tensor, Tensor]]:
        backwards = self._backwards(gradients)
        last = self.time - 1
        # What runs backwards is known for all rows now: everything else is computed from it at once.
        known = {
            stage: compute(stage.shape, _turned_rows(backwards[number], last), f"{stage.name}_gradient")
            for stage, number in self.updates.items()
        }
        outer = self._collected(lambda stage: known[stage].__getitem__, turned=False)
        for item in self.op.outputs:
            outer.pop(item, None)
        first = {
            item: compute(item.shape, _turned_rows(rows, last), f"{item.name}_gradient")
            for item, rows in zip(self.op.init, backwards, strict=True)
        }
        return outer, first

    def _backwards(self, gradients: list[Tensor | None]) -> list[Tensor]:
        """The gradients of all rows of the states, the last row first."""
        last = self.time - 1
        outputs = self.op.outputs
        states = [placeholder(item.shape, item.dtype, f"{item.name}_later") for item in outputs]
        found = self._collected(lambda stage: _turned(states[self.updates[stage]], last), turned=True)
        updates, first = [], []
        for output, own in zip(outputs, gradients, strict=True):
            given = [] if own is None else [compute(output.shape, _turned_rows(own, last), f"{own.name}_backwards")]
            total = accumulated(output, found.get(output, []), given, turn=last)
            updates.append(total or _zeros(output.shape, output))
            rows: tuple[ExprLike, ...] = (1, *output.shape[1:])
            first.append(_zeros(rows, output) if own is None else compute(rows, _turned_rows(own, last), "last_row"))
        self._check(updates, states)
        made = scan(first, updates, states, name=f"{self.op.name}_gradient")
        assert isinstance(made, tuple)
        return list(made)

    def _check(self, updates: list[Tensor], states: list[Tensor]) -> None:
        """Refuse what would read rows that come later."""
        for op in operations_of(updates):
            loads = [load for item in getattr(op, "body", ()) for load in find_all(item, TensorLoad)]
            for load in loads:
                distance = Analyzer().simplify(op.axis[0].var - load.indices[0]) if load.tensor in states else const(1)
                if (const_value(distance) or 0) < 1:
                    raise UserError(
                        f"te.gradient: a step of {self.op.name} reads its state at no fixed distance in time",
                        hint="read state[t - 1, ...]",
                    )

    def _collected(self, update: Callable[[Tensor], Reader | None], *, turned: bool) -> Contributions:
        """What all steps give to what they read, from the gradients of the updates."""
        found: Contributions = {}
        for step in reversed(self.steps):
            readers = [self._reader(item, found.pop(item, []), update, turned=turned) for item in step.outputs]
            if any(reader is not None for reader in readers):
                for tensor, items in contributions_of(step, readers, self.moving).items():
                    found.setdefault(tensor, []).extend(items)
        return found

    def _reader(
        self, stage: Tensor, given: list[Contribution], update: Callable[[Tensor], Reader | None], *, turned: bool
    ) -> Reader | None:
        """The gradient of what a step computes: as the state's next row, and for other steps of the same row."""
        own = update(stage) if stage in self.updates else None
        # Backwards, the scan has come to the row after when it computes what that row's steps give: it is a row late.
        total = accumulated(stage, given, turn=self.time if turned else None)
        beside = None if total is None else (_turned(total, self.time) if turned else total.__getitem__)
        if own is None or beside is None:
            return own or beside
        return lambda place: build.add(own(place), beside(place))


def _turned(tensor: Tensor, last: PrimExpr) -> Reader:
    """What a tensor that runs backwards has for a place."""
    return lambda place: tensor[(last - place[0], *place[1:])]


def _turned_rows(tensor: Tensor, last: PrimExpr) -> Callable[..., PrimExpr]:
    return lambda *i: tensor[(last - i[0], *i[1:])]


def _zeros(shape: tuple[ExprLike, ...], like: Tensor) -> Tensor:
    return compute(shape, lambda *_: const(0, like.dtype), f"{like.name}_zero")
