"""Gradients of tensor expressions, which are tensor expressions themselves: `te.gradient(y, [x])`.

Reverse mode: from the results back to the inputs, each tensor's gradient is the sum over all reads of it. A step of a
computation that reads element m(i, k) gives it `gradient of the step * derivative of the step for what it read`; which
steps read an element is found by solving the index map (`index_inverse`), so that the sum is one over the steps that
are left open. Reads at places that are data are added up one after the other: sums come out the same each time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.ir import build
from tilewright.ir import expr as e
from tilewright.ir.build import const
from tilewright.ir.expr import TRUE, PrimExpr, Var
from tilewright.ir.node import Node
from tilewright.ir.visit import substitute
from tilewright.support.errors import UserError
from tilewright.te import reduction
from tilewright.te.contributions import Contribution, accumulated
from tilewright.te.derivatives import Guard, derivatives
from tilewright.te.language import compute, tensors_in
from tilewright.te.reduction import Reduce, SingleReducer
from tilewright.te.tensor import Axis, ComputeOp, Operation, Tensor, operations_of


def gradient(
    outputs: Tensor | Sequence[Tensor], inputs: Sequence[Tensor], head: Tensor | Sequence[Tensor] | None = None
) -> list[Tensor]:
    """The gradients of outputs for inputs: tensors like the inputs, of ordinary computations.

    `head` gives the gradient of what is wanted in the end for each output; without it, that is the sum of all elements
    of the outputs. An input may be a placeholder or computed.

        C = te.compute((n, m), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k))
        dA, dB = te.gradient(C, [A, B], head=dC)    # dA[i, k] = sum(dC[i, j] * B[k, j] over j)
    """
    results = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    heads = [head] if isinstance(head, Tensor) else head
    given = _checked_heads(results, heads)
    for item in (*results, *inputs):
        if not item.dtype.is_float:
            raise UserError(f"te.gradient: {item.name} is {item.dtype}, which has no derivative", hint="cast it")
    return _Reverse(results, list(inputs), given).run()


def _checked_heads(results: list[Tensor], heads: Sequence[Tensor] | None) -> list[Tensor]:
    if heads is None:
        return [_ones_like(item) for item in results]
    if len(heads) != len(results):
        raise UserError(f"te.gradient: {len(results)} outputs but {len(heads)} heads")
    for result, head in zip(results, heads, strict=True):
        if head.shape != result.shape or head.dtype is not result.dtype:
            raise UserError(f"te.gradient: the head {head!r} is not like the output {result!r}")
    return list(heads)


def _ones_like(tensor: Tensor) -> Tensor:
    return compute(tensor.shape, lambda *_: const(1.0, tensor.dtype), f"{tensor.name}_head")


class _Reverse:
    """One run: what is known of the gradient of each tensor, from the outputs back."""

    def __init__(self, outputs: list[Tensor], inputs: list[Tensor], heads: list[Tensor]) -> None:
        self.inputs = inputs
        self.operations = operations_of(outputs)
        self.given: dict[Tensor, list[Tensor]] = {}
        for output, head in zip(outputs, heads, strict=True):
            self.given.setdefault(output, []).append(head)
        self.contributions: dict[Tensor, list[Contribution]] = {}
        self.moving: set[Tensor] = set(inputs)
        """Tensors that depend on inputs."""
        for op in self.operations:
            if any(item in self.moving for item in op.inputs):
                self.moving.update(item for item in op.outputs if item.dtype.is_float)

    def run(self) -> list[Tensor]:
        gradients: dict[Tensor, Tensor] = {}
        for op in reversed(self.operations):
            for tensor in op.outputs:
                if tensor in self.moving:
                    total = accumulated(tensor, self.contributions.pop(tensor, []), self.given.pop(tensor, []))
                    if total is not None:
                        gradients[tensor] = total
            if any(item in self.moving for item in op.inputs) and any(item in gradients for item in op.outputs):
                self._operation(op, [gradients.get(item) for item in op.outputs])
        return [gradients.get(item) or _zeros_like(item) for item in self.inputs]

    def _operation(self, op: Operation, gradients: list[Tensor | None]) -> None:
        if not isinstance(op, ComputeOp):
            raise UserError(
                f"te.gradient: {op.name} is written by hand ({type(op).__name__}) and has no derivative",
                hint="write it with te.compute, or compute the gradient of what reads it and of what it reads apart",
            )
        for tensor, items in _contributions(op, gradients, self.moving).items():
            self.contributions.setdefault(tensor, []).extend(items)


def _zeros_like(tensor: Tensor) -> Tensor:
    return compute(tensor.shape, lambda *_: const(0.0, tensor.dtype), f"{tensor.name}_gradient")


def _contributions(
    op: ComputeOp, gradients: list[Tensor | None], moving: set[Tensor]
) -> dict[Tensor, list[Contribution]]:
    """What a computation gives to the gradients of what it reads."""
    place = tuple(axis.as_prim_expr() for axis in op.axis)
    found: dict[Tensor, list[Contribution]] = {}
    domain = (*op.axis, *op.reduce_axis)
    for number, own in enumerate(gradients):
        if own is None:
            continue
        body = op.body[number]
        terms: list[_Seeded] = [((), body, own[place])]
        if isinstance(body, Reduce):
            terms = _reduced(op, body, own[place])
        for outer, value, seed in terms:
            for load, parts in derivatives(value, seed, lambda item: item.tensor in moving).items():
                items = found.setdefault(load.tensor, [])
                items += [Contribution(domain, load.indices, (*outer, *guard), part) for guard, part in parts.items()]
    return found


_Seeded = tuple[Guard, PrimExpr, PrimExpr]
"""When a step of a reduction counts, the value that it takes in, and the gradient for that."""


def _reduced(op: ComputeOp, body: Reduce, own: PrimExpr) -> list[_Seeded]:
    """What a step of a reduction takes in, and the gradient for it."""
    reducer = body.reducer
    kind = type(reducer.results[0]) if len(reducer.results) == 1 else None
    known = kind is not None and {*reducer.results[0].children()} == {*reducer.left, *reducer.right}
    rule = _REDUCERS.get(kind) if kind is not None and known else None
    if rule is None or tensors_in(reducer.identity):
        raise UserError(
            f"te.gradient: the reducer of {op.name} has no known derivative",
            hint="te.sum, te.max, te.min and te.prod of one value have one",
        )
    guard: Guard = () if body.condition is TRUE else (body.condition,)
    return [rule(op, guard, body.sources[0], own)]


def _sum(op: ComputeOp, guard: Guard, source: PrimExpr, own: PrimExpr) -> _Seeded:
    return guard, source, own


def _extremum(op: ComputeOp, guard: Guard, source: PrimExpr, own: PrimExpr) -> _Seeded:
    """Steps that give the result share its gradient evenly."""
    result = op.outputs[0]
    dtype = result.dtype
    equal = build.eq(source, result[_place(op)])
    count = _again(
        op, lambda value, at: build.select(build.eq(value, result[at]), const(1.0, dtype), const(0.0, dtype))
    )
    return (*guard, equal), source, own / count[_place(op)]


def _product(op: ComputeOp, guard: Guard, source: PrimExpr, own: PrimExpr) -> _Seeded:
    """The product of the other steps' values: that of all by the own one, unless there are zeros among them."""
    dtype = op.outputs[0].dtype
    zero, one = const(0.0, dtype), const(1.0, dtype)
    zeros = _again(op, lambda value, _: build.select(build.eq(value, zero), one, zero))[_place(op)]
    others = _again(op, lambda value, _: build.select(build.eq(value, zero), one, value), reduction.prod)[_place(op)]
    alone = build.select(build.eq(zeros, one), others, zero)
    factor = build.select(build.eq(zeros, zero), others / source, zero)
    return guard, source, own * build.select(build.eq(source, zero), alone, factor)


_REDUCERS: dict[type[Node], Callable[[ComputeOp, Guard, PrimExpr, PrimExpr], _Seeded]] = {
    e.Add: _sum,
    e.Max: _extremum,
    e.Min: _extremum,
    e.Mul: _product,
}


def _place(op: ComputeOp) -> tuple[PrimExpr, ...]:
    return tuple(axis.as_prim_expr() for axis in op.axis)


def _again(
    op: ComputeOp,
    element: Callable[[PrimExpr, tuple[PrimExpr, ...]], PrimExpr],
    reducer: SingleReducer = reduction.sum,
) -> Tensor:
    """The steps of a reduction once more, each as something else: of its value and the place of the result."""
    body = op.body[0]
    assert isinstance(body, Reduce)
    axes = [Axis(Var(axis.name), axis.domain, axis.kind) for axis in body.axes]

    def again(*i: Axis) -> PrimExpr:
        place = tuple(axis.as_prim_expr() for axis in i)
        renamed = {axis.var: index for axis, index in zip(op.axis, place, strict=True)}
        renamed |= {old.var: new.var for old, new in zip(body.axes, axes, strict=True)}
        value, condition = (substitute(item, renamed) for item in (body.sources[0], body.condition))
        return reducer(element(value, place), axes, condition if condition is not TRUE else True)

    return compute(op.outputs[0].shape, again, f"{op.name}_again")
