"""Operators that move elements: reshape, transpose, broadcast, slices, concatenation, padding, gather."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from tilewright.graph.ir.dimensions import same
from tilewright.ir import build
from tilewright.ir.build import cast, const
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import ONE, ExprLike, PrimExpr, const_value
from tilewright.ir.types import Type
from tilewright.support.errors import UnsupportedError
from tilewright.te.language import compute, extern_rows
from tilewright.te.tensor import Tensor
from tilewright.tir.buffer import Buffer
from tilewright.tir.stmt import Stmt, seq
from tilewright.topi.elementwise import broadcast_index
from tilewright.topi.registry import compute_of, compute_on_cpus, result_shape
from tilewright.topi.statements import at_once, in_vectors, put, repeat


@compute_of("reshape")
def _reshape(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    (x,) = inputs
    shape = result_shape(result)

    def element(*i: ExprLike) -> PrimExpr:
        return x[_regroup(i, shape, x.shape)]

    return compute(shape, element, "reshape")


def _regroup(
    indices: tuple[ExprLike, ...], source: tuple[PrimExpr, ...], target: tuple[PrimExpr, ...]
) -> tuple[PrimExpr, ...]:
    """Indices of `source` turned into indices of `target`, matching groups of dimensions with equal products.

    Working group by group keeps indices simple: (n, c*h*w) -> (n, c, h, w) divides only the second index.
    """
    result: list[PrimExpr] = []
    a, b = 0, 0
    while a < len(source) or b < len(target):
        a_end, b_end = a, b
        a_size: PrimExpr = ONE
        b_size: PrimExpr = ONE
        while True:
            grow_a = a_end < len(source) and (a_end == a or _is_behind(a_size, b_size, target[b_end:]))
            if grow_a:
                a_size = a_size * source[a_end]
                a_end += 1
            elif b_end < len(target):
                b_size = b_size * target[b_end]
                b_end += 1
            elif a_end < len(source):
                a_size = a_size * source[a_end]
                a_end += 1
            if same(a_size, b_size) and (a_end > a or b_end > b):
                break
            if a_end == len(source) and b_end == len(target):
                break
        flat: PrimExpr = const(0)
        for n in range(a, a_end):
            flat = flat * source[n] + indices[n]
        parts: list[PrimExpr] = []
        for n in reversed(range(b, b_end)):
            if n == b:
                parts.append(flat)
            else:
                parts.append(flat % target[n])
                flat = flat // target[n]
        result.extend(reversed(parts))
        a, b = a_end, b_end
    return tuple(result)


def _is_behind(a: PrimExpr, b: PrimExpr, rest: Sequence[PrimExpr]) -> bool:
    """Whether the group of sizes whose product is `a` needs the next one before that of `b`, which `rest` follow.

    Of open sizes nothing tells which product is smaller: `a` waits where `b` comes to the same product later.
    """
    compared = const_value(build.lt(a, b))
    if compared is not None:
        return compared == 1
    return not any(same(a, size) for size in accumulate(rest, operator.mul, initial=b))


@compute_of("transpose")
def _transpose(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    (x,) = inputs

    def element(*i: ExprLike) -> PrimExpr:
        source: list[ExprLike] = [0] * len(i)
        for position, axis in enumerate(attributes.axes):
            source[axis] = i[position]
        return x[tuple(source)]

    return compute(result_shape(result), element, "transpose")


@compute_of("broadcast_to")
def _broadcast_to(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    (x,) = inputs
    shape = result_shape(result)
    return compute(shape, lambda *i: x[broadcast_index(x, shape, i)], "broadcast_to")


@compute_of("concatenate")
def _concatenate(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    axis = attributes.axis
    shape = result_shape(result)

    def element(*i: ExprLike) -> PrimExpr:
        position = build.as_expr(i[axis])
        starts: list[PrimExpr] = []
        total: PrimExpr = const(0)
        for x in inputs:
            starts.append(total)
            total = total + x.shape[axis]
        value: PrimExpr | None = None
        for x, start in zip(reversed(inputs), reversed(starts), strict=True):
            load = x[(*i[:axis], position - start, *i[axis + 1 :])]
            value = load if value is None else build.select(build.lt(position, start + x.shape[axis]), load, value)
        assert value is not None
        return value

    return compute(shape, element, "concatenate")


@compute_of("split")
def _split(inputs: list[Tensor], attributes: Any, result: Type) -> list[Tensor]:
    (x,) = inputs
    axis = attributes.axis
    outputs: list[Tensor] = []
    start = 0
    for n, size in enumerate(attributes.sizes):
        outputs.append(_part(x, axis, start, result_shape(result, n), f"split_{n}"))
        start += size
    return outputs


def _part(x: Tensor, axis: int, start: int, shape: tuple[PrimExpr, ...], name: str) -> Tensor:
    return compute(shape, lambda *i: x[(*i[:axis], build.add(i[axis], start), *i[axis + 1 :])], name)


@compute_of("slice")
def _slice(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    (x,) = inputs

    def element(*i: ExprLike) -> PrimExpr:
        return x[
            tuple(
                build.add(build.mul(index, stride), begin)
                for index, begin, stride in zip(i, attributes.begin, attributes.strides, strict=True)
            )
        ]

    return compute(result_shape(result), element, "slice")


@compute_on_cpus("take")
def _take_inside(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor | None:
    """Places that were checked: on a CPU nothing runs if one of them is wrong."""
    if attributes.mode != "inside":
        return None
    data, indices = inputs
    axis, count = attributes.axis, indices.ndim

    def element(*i: ExprLike) -> PrimExpr:
        place = cast(indices[i[axis : axis + count]], INDEX)
        return data[(*i[:axis], place, *i[axis + count :])]

    return compute(result_shape(result), element, "take")


@compute_of("take")
def _take(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    x, indices = inputs
    axis = attributes.axis
    size = x.shape[axis]

    def element(*i: ExprLike) -> PrimExpr:
        position = cast(indices[i[axis : axis + indices.ndim]], INDEX)
        if attributes.mode == "wrap_negative" and not indices.dtype.is_uint:
            position = build.select(build.lt(position, 0), position + size, position)
        # Out-of-range positions are the user's error; clamping keeps memory safe whatever the data.
        safe = build.maximum(build.minimum(position, size - 1), 0)
        return x[(*i[:axis], safe, *i[axis + indices.ndim :])]

    return compute(result_shape(result), element, "take")


@compute_of("tile")
def _tile(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    (x,) = inputs
    return compute(
        result_shape(result),
        lambda *i: x[tuple(build.floormod(index, dim) for index, dim in zip(i, x.shape, strict=True))],
        "tile",
    )


_SHORT_LINE = 16
"""Lines that are shorter have no vectors to be copied in."""


@compute_of("pad")
def _pad(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    (x,) = inputs
    shape = result_shape(result)
    before = tuple(attributes.before)
    after = tuple(attributes.after)
    if attributes.mode == "constant":
        return pad_constant(x, before, after, shape, attributes.value)

    def element(*i: ExprLike) -> PrimExpr:
        return x[
            tuple(
                _reflected(attributes.mode, build.sub(index, low), dim) if low or high else build.as_expr(index)
                for index, low, high, dim in zip(i, before, after, x.shape, strict=True)
            )
        ]

    return compute(shape, element, "pad")


@compute_on_cpus("pad")
def _pad_lines(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor | None:
    """Lines copied as they are, and their borders element by element: indices of vectors would all be computed."""
    (x,) = inputs
    shape = result_shape(result)
    if attributes.mode == "constant" or not shape or const_value(x.shape[-1]) is None:
        return None
    low, high = attributes.before[-1], attributes.after[-1]
    width = const_value(x.shape[-1]) or 0
    if not (low or high) or min(low, high) < 0 or width < _SHORT_LINE:
        return None

    def statement(sources: list[Buffer], results: list[Buffer], at: tuple[PrimExpr, ...]) -> Stmt:
        (source,), (target,) = sources, results
        line = tuple(
            _reflected(attributes.mode, build.sub(index, first), dim) if first or last else index
            for index, first, last, dim in zip(at[:-1], attributes.before, attributes.after, x.shape[:-1], strict=False)
        )

        def border(column: PrimExpr) -> Stmt:
            place = _reflected(attributes.mode, column - low, x.shape[-1])
            return put(target, (*at[:-1], column), source[(*line, place)])

        def part(begin: PrimExpr, count: int) -> Stmt:
            return at_once(
                count, lambda lane: put(target, (*at[:-1], begin + lane + low), source[(*line, begin + lane)])
            )

        steps = [in_vectors(width, part)]
        if low:
            steps.append(repeat(low, border, "column"))
        if high:
            steps.append(repeat(high, border, "column", low + width))
        return seq(*steps)

    return extern_rows((shape,), len(shape) - 1, [x], statement, "pad", (x.dtype,))[0]


def _reflected(mode: str, index: PrimExpr, dim: PrimExpr) -> PrimExpr:
    if mode == "edge":
        return build.maximum(build.minimum(index, dim - 1), 0)
    if mode == "reflect":
        positive = build.select(build.lt(index, 0), build.neg(index), index)
        last = dim - 1
        return build.select(build.lt(last, positive), last * 2 - positive, positive)
    raise UnsupportedError(f"padding mode {mode!r} has no computation")


def pad_constant(
    x: Tensor,
    before: tuple[int, ...],
    after: tuple[int, ...],
    shape: tuple[PrimExpr, ...],
    value: float,
    name: str = "pad",
) -> Tensor:
    """A tensor surrounded by a constant (negative amounts crop); a fraction truncates to an integer type."""
    fill = const(value if x.dtype.is_float else int(value), x.dtype)

    def element(*i: ExprLike) -> PrimExpr:
        inside: list[PrimExpr] = []
        source: list[PrimExpr] = []
        for index, low, high, dim in zip(i, before, after, x.shape, strict=True):
            position = build.sub(index, low)
            source.append(position)
            if not (isinstance(low, int) and low <= 0):
                inside.append(build.le(0, position))
            if not (isinstance(high, int) and high <= 0):
                inside.append(build.lt(position, dim))
        return build.select(build.all_of(inside), x[tuple(source)], fill)

    return compute(shape, element, name)
