"""Gradients of tensor expressions, which are tensor expressions themselves: `te.gradient(y, [x])`.

Reverse mode: from the results back to the inputs, each tensor's gradient is the sum over all reads of it. A step of a
computation that reads element m(i, k) gives it `gradient of the step * derivative of the step for what it read`; which
steps read an element is found by solving the index map (`index_inverse`), so that the sum is one over the steps that
are left open. Reads at places that are data are added up one after the other: sums come out the same each time.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.build import const
from tilewright.support.errors import UserError
from tilewright.te.contributions import Contribution, accumulated
from tilewright.te.language import compute
from tilewright.te.scan_gradient import scan_contributions
from tilewright.te.stage_gradient import contributions_of
from tilewright.te.tensor import ComputeOp, Operation, ScanOp, Tensor, operations_of


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
        if isinstance(op, ScanOp):
            found, given = scan_contributions(op, gradients, self.moving)
            for tensor, item in given.items():
                self.given.setdefault(tensor, []).append(item)
        elif isinstance(op, ComputeOp):
            readers = [None if item is None else item.__getitem__ for item in gradients]
            found = contributions_of(op, readers, self.moving)
        else:
            raise UserError(
                f"te.gradient: {op.name} is written by hand ({type(op).__name__}) and has no derivative",
                hint="write it with te.compute, or compute the gradient of what reads it and of what it reads apart",
            )
        for tensor, items in found.items():
            self.contributions.setdefault(tensor, []).extend(items)


def _zeros_like(tensor: Tensor) -> Tensor:
    return compute(tensor.shape, lambda *_: const(0.0, tensor.dtype), f"{tensor.name}_gradient")
