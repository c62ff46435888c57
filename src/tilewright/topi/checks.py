"""Checks of data: the first value that is wrong, found by comparing all of them.

CPUs compare whole vectors and look for the value only if there is one; then the kernel fails, so that nothing runs that
would use it. On devices kernels cannot fail: the status says what is wrong, and is read after the run.
"""

from __future__ import annotations

from typing import Any, Final

from tilewright.graph.ir.dimensions import as_dim
from tilewright.ir import build
from tilewright.ir.build import cast, const
from tilewright.ir.dtype import INDEX, INT64, UINT64
from tilewright.ir.expr import ExprLike, PrimExpr, Var, const_value
from tilewright.ir.types import Type
from tilewright.runtime.core.checks import FINE, STATUS_SIZE
from tilewright.te.language import compute, compute_many, extern, reduce_axis
from tilewright.te.reduction import comm_reducer
from tilewright.te.tensor import Tensor
from tilewright.tir.buffer import Buffer
from tilewright.tir.stmt import Assert, Stmt, seq
from tilewright.topi.registry import compute_of, compute_on_cpus
from tilewright.topi.statements import at_once, combined, memory, put, repeat, when, with_memory

_LANES: Final = 16
_NONE: Final = 2**62
"""A place after all others."""


def _limits(attributes: Any) -> list[PrimExpr]:
    """The size that the values of each column must fit."""
    return [as_dim(size) for size in attributes.sizes] or [const(0, INDEX)]


def _is_wrong(what: str, value: PrimExpr, size: PrimExpr) -> PrimExpr:
    """Whether a value is not what it must be."""
    if what == "divisor":
        return build.eq(value, const(0, value.dtype))
    wide, limit = cast(value, UINT64), cast(size, UINT64)
    if what == "index" and not value.dtype.is_uint:
        # Numbers without a sign wrap around: the values that fit, and no others, are below twice the size.
        return build.le(limit + limit, wide + limit)
    # A negative number without its sign is greater than any size.
    return build.lt(limit, wide) if what == "length" else build.le(limit, wide)


def _at(values: Tensor | Buffer, row: ExprLike, column: int) -> PrimExpr:
    return values[(row,) if len(values.shape) == 1 else (row, column)]


_first = comm_reducer(
    lambda a, b: tuple(build.select(build.le(a[0], b[0]), x, y) for x, y in zip(a, b, strict=True)),  # type: ignore[index, call-overload]
    lambda place, value, size: (const(_NONE, place), const(0, value), const(0, size)),
    "first",
)
"""Of places with values, the first."""


@compute_of("check_values")
def _check_values(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    (values,) = inputs
    limits = _limits(attributes)
    row = reduce_axis((0, values.shape[0]), "row")

    def best(*_: ExprLike) -> tuple[PrimExpr, ...]:
        first_wrong: tuple[PrimExpr, ...] | None = None
        for column in reversed(range(len(limits))):
            value = _at(values, row, column)
            wrong = _is_wrong(attributes.what, value, limits[column])
            place = row * len(limits) + column
            mine = (place, cast(value, INT64), limits[column])
            other = (const(_NONE, INDEX), const(0, INT64), const(0, INT64)) if first_wrong is None else first_wrong
            first_wrong = tuple(build.select(wrong, a, b) for a, b in zip(mine, other, strict=True))
        assert first_wrong is not None
        reduced = _first(first_wrong, [row])
        assert isinstance(reduced, tuple)
        return reduced

    place, value, size = compute_many((1,), best, "first_wrong")

    def status(i: ExprLike) -> PrimExpr:
        fine = build.eq(place[0], const(_NONE, INDEX))
        first = build.select(fine, const(FINE, INT64), place[0])
        return build.select(build.eq(i, 0), first, build.select(build.eq(i, 1), value[0], size[0]))

    return compute((STATUS_SIZE,), status, "status")


@compute_on_cpus("check_values")
def _checked_in_vectors(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    limits = _limits(attributes)
    # As wide as what is compared, so that a comparison of lanes is added as it is.
    counter = inputs[0].dtype if attributes.what == "divisor" and inputs[0].dtype.bits >= 32 else INT64

    def statement(sources: list[Buffer], results: list[Buffer]) -> Stmt:
        (values,), (status,) = sources, results
        rows = values.shape[0]
        hits, total = memory("hits", _LANES, counter), memory("total", 1, counter)
        first = memory("first", 1, INT64)

        def wrong(row: ExprLike) -> PrimExpr:
            return build.any_of(
                [_is_wrong(attributes.what, _at(values, row, n), limit) for n, limit in enumerate(limits)]
            )

        def noted(row: PrimExpr, lane: ExprLike) -> Stmt:
            return put(hits, lane, hits[lane] + cast(wrong(row), counter))

        def look(row: Var) -> Stmt:
            return seq(*(look_at(row, column) for column in range(len(limits))))

        def look_at(row: Var, column: int) -> Stmt:
            value = _at(values, row, column)
            is_first = build.logical_and(build.lt(first[0], 0), _is_wrong(attributes.what, value, limits[column]))
            return when(
                is_first,
                seq(
                    put(status, 1, cast(value, INT64)),
                    put(status, 2, limits[column]),
                    put(first, 0, row * len(limits) + column),
                ),
            )

        whole = build.floordiv(rows, _LANES)
        rest = build.floormod(rows, _LANES)
        steps: list[Stmt] = [
            put(first, 0, FINE),
            put(status, 1, 0),
            put(status, 2, 0),
            at_once(_LANES, lambda lane: put(hits, lane, const(0, counter))),
        ]
        if const_value(whole) != 0:
            steps.append(repeat(whole, lambda n: at_once(_LANES, lambda lane: noted(n * _LANES + lane, lane)), "n"))
        if const_value(rest) != 0:
            steps.append(repeat(rest, lambda row: noted(row, 0), "row", whole * _LANES))
        steps += [
            combined(total, hits, const(0, counter), build.add),
            when(build.ne(total[0], const(0, counter)), repeat(rows, look, "row")),
            put(status, 0, first[0]),
            Assert(build.lt(first[0], 0), "a value of the model's data is wrong"),
        ]
        return with_memory("check_values", [hits, total, first], [values], [status], *steps)

    status = extern((STATUS_SIZE,), inputs, statement, "check_values", INT64)
    assert isinstance(status, Tensor)
    return status


@compute_of("checked", "after")
def _checked(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    """The data: a model has it as a view. Whether it is right is what `check_values` looks at; when does not matter."""
    data = inputs[0]
    return compute(data.shape, lambda *i: data[i], "checked")
