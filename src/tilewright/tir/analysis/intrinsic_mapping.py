"""How the iterators of a block map onto the axes of a tensor intrinsic, whatever its loops and layouts are.

An axis of a description is told by what moves with it: of a matrix product, rows move the first operand and the result,
columns the second and the result, steps both operands. The iterators of a block that move the same operands count that
axis together: of a convolution, the image and its pixels are rows, the filters columns, the window and the channels
steps.

    C[n, y, x, f] += A[n, y + r, x + s, c] * W[r, s, c, f]        i: n, y, x      j: f      k: r, s, c
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir.expr import Add, And, Max, Min, Mul, Or, PrimExpr, Var, const_value
from tilewright.ir.visit import variables
from tilewright.tir.analysis.match_intrin import Mismatch
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.stmt import Block, BlockIter, BufferStore
from tilewright.tir.tensor_intrin import TensorIntrin

_COMMUTATIVE = (Add, Mul, Min, Max, And, Or)
Operands = dict[Buffer, BufferLoad]
"""For each parameter of a description, the element that stands for it."""


@dataclass(frozen=True, slots=True)
class IntrinsicMapping:
    """The iterators (by number) that count each axis of an intrinsic, in the order of its description, and the rest."""

    operands: tuple[BufferLoad, ...]
    """The elements that stand for the description's parameters, in their order: the result last."""
    axes: tuple[tuple[int, ...], ...]
    extents: tuple[int, ...]
    """The extents of the axes in the intrinsic."""
    rest: tuple[int, ...]
    """Iterators that stay outside the intrinsic: those of a batch, say."""


def find_mapping(block: Block, intrinsic: TensorIntrin) -> IntrinsicMapping | Mismatch:
    """How an intrinsic could compute a block, or why it could not."""
    computation = intrinsic.block
    if not isinstance(block.body, BufferStore) or not isinstance(computation.body, BufferStore):
        return Mismatch("only blocks with a single store are matched")
    if (block.init is None) != (computation.init is None):
        return Mismatch(f"one of block {block.name} and {intrinsic.name} is a reduction and the other is not")
    reason = "the computation differs"
    for operands in _matches(computation.body, block.body):
        if computation.init is not None and not _same_init(computation.init, block.init, operands):
            reason = "the init differs"
            continue
        mapping = _with_operands(block, intrinsic, operands)
        if isinstance(mapping, IntrinsicMapping):
            return mapping
        reason = mapping.reason
    return Mismatch(reason)


def _matches(pattern: BufferStore, given: BufferStore) -> Iterator[Operands]:
    result, target = BufferLoad(pattern.buffer, pattern.indices), BufferLoad(given.buffer, given.indices)
    for operands in _unify(result, target, {}):
        yield from _unify(pattern.value, given.value, operands)


def _same_init(pattern: object, given: object, operands: Operands) -> bool:
    assert isinstance(pattern, BufferStore)
    return isinstance(given, BufferStore) and any(True for _ in _unify(pattern.value, given.value, operands))


def _unify(pattern: PrimExpr, given: PrimExpr, known: Operands) -> Iterator[Operands]:
    """Every way to find a description in an expression, where any element may stand for an operand."""
    if pattern.dtype is not given.dtype:
        return
    if isinstance(pattern, BufferLoad):
        if isinstance(given, BufferLoad) and known.get(pattern.buffer, given) is given:
            taken = [buffer for buffer, load in known.items() if load is given and buffer is not pattern.buffer]
            if not taken:
                yield {**known, pattern.buffer: given}
        return
    if type(pattern) is not type(given) or isinstance(pattern, Var):
        return
    if getattr(pattern, "name", None) != getattr(given, "name", None):
        return
    mine = [child for child in pattern.children() if isinstance(child, PrimExpr)]
    theirs = [child for child in given.children() if isinstance(child, PrimExpr)]
    if not mine:
        if pattern is given:
            yield known
        return
    if len(mine) == len(theirs):
        yield from _unify_all(mine, theirs, known)
        if isinstance(pattern, _COMMUTATIVE):
            yield from _unify_all(mine, theirs[::-1], known)


def _unify_all(patterns: Sequence[PrimExpr], given: Sequence[PrimExpr], known: Operands) -> Iterator[Operands]:
    if not patterns:
        yield known
        return
    for unified in _unify(patterns[0], given[0], known):
        yield from _unify_all(patterns[1:], given[1:], unified)


def _signature(item: BlockIter, operands: Mapping[Buffer, BufferLoad]) -> tuple[str, frozenset[Buffer]]:
    """What tells an axis: its kind, and the operands that move with it."""
    moved = (buffer for buffer, load in operands.items() if item.var in variables(load))
    return item.kind.value, frozenset(moved)


def _with_operands(block: Block, intrinsic: TensorIntrin, operands: Operands) -> IntrinsicMapping | Mismatch:
    params = intrinsic.description.buffers
    missing = [param.name for param in params if param not in operands]
    if missing:
        return Mismatch(f"nothing stands for operand {missing[0]}")
    described = _own_accesses(intrinsic)
    axes = [item for item in intrinsic.block.iters if const_value(item.domain.extent) != 1]
    kinds: dict[tuple[str, frozenset[Buffer]], list[int]] = {}
    for number, item in enumerate(block.iters):
        kinds.setdefault(_signature(item, operands), []).append(number)
    assigned: list[tuple[int, ...]] = [()] * len(axes)
    for number in reversed(range(len(axes))):
        signature = _signature(axes[number], described)
        left = kinds.get(signature, [])
        alone = all(_signature(other, described) != signature for other in axes[:number])
        # Of axes that nothing tells apart, the last has the last iterator, and the first all that are left.
        chosen = left if alone else left[-1:]
        if not chosen:
            name = axes[number].var.name.removeprefix("v_")
            return Mismatch(f"no iterator of block {block.name} moves just the operands that its axis {name} moves")
        assigned[number] = tuple(chosen)
        kinds[signature] = left[: len(left) - len(chosen)]
    rest = sorted(number for numbers in kinds.values() for number in numbers)
    extents = tuple(const_value(item.domain.extent) or 0 for item in axes)
    return IntrinsicMapping(tuple(operands[param] for param in params), tuple(assigned), extents, tuple(rest))


def _own_accesses(intrinsic: TensorIntrin) -> Operands:
    """The elements of a description's own parameters."""
    body = intrinsic.block.body
    assert isinstance(body, BufferStore)
    return next(iter(_matches(body, body)))
