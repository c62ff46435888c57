"""Loops of importers as recursion: a global function that calls itself until the last turn, in tail position.

    def loop(turn, going, carried..., collected..., captured..., sizes...):
        if turn < turns and going:
            ... one turn ...
            return loop(turn + 1, going', carried'..., collected'..., captured..., sizes...)
        return (carried..., collected...)

A dimension of a carried value that changes from turn to turn is a symbol of the function's own, and not known in its
result. Values that are collected are kept in sequences and stacked after the loop. A global function sees no symbols
of its caller: those that its body needs and that are no dimension of a parameter come as dimensions of tensors that
have no elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.frontend.core.builder import Builder, sizes_of
from tilewright.frontend.core.ranks import MOST_RANK
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size, as_dims, symbols_of
from tilewright.graph.ir.expr import Call, Constant, Function, GlobalVar, GraphExpr, If, Tuple, Var
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.ir.unify import Mismatch, Unifier
from tilewright.ir.dtype import BOOL, FLOAT32, INT64
from tilewright.ir.expr import IntImm, PrimExpr
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.types import OptionalType, SequenceType, TensorType, TupleType, Type
from tilewright.support.errors import UnsupportedError, UserError

_MOST_ATTEMPTS = 32
"""How often a body is built anew because a dimension turns out to change."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn of a loop gives."""

    going: GraphExpr | None
    """Whether the loop goes on; None if only the number of turns decides."""
    carried: Sequence[GraphExpr]
    collected: Sequence[GraphExpr]
    captured: Sequence[tuple[GraphExpr, Var]]
    """Values from outside, and the variables that stand for them in the turn."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop before it is built."""

    name: str
    turns: GraphExpr | None
    """The number of turns, an int64 scalar; None if there is no limit."""
    going: GraphExpr | None
    """Whether the first turn is done, a bool scalar; None if only the number of turns decides."""
    carried: Sequence[GraphExpr]
    run: Callable[[GraphExpr, list[GraphExpr]], Turn]
    """Builds one turn from its number and the carried values."""


@dataclass(frozen=True, slots=True)
class _Built:
    function: Function
    turn: Turn
    carried: list[Type]
    """The types of the carried values after the turn."""
    sizes: list[Symbol]


def build_loop(builder: Builder, functions: list[Function], loop: Loop) -> tuple[list[GraphExpr], list[GraphExpr]]:
    """The carried values after the loop, and the sequences of the collected ones; adds a function."""
    kinds = [_kind(value) for value in loop.carried]
    ranks = [builder.ranks.possible(value) for value in loop.carried]
    changing: set[Symbol] = set()
    before = len(functions)
    for _ in range(_MOST_ATTEMPTS):
        del functions[before:]  # of loops inside this one, which are built anew with it
        built = _build(builder, loop, kinds, ranks, changing)
        merged = [
            _merged(old, new, changing, f"value {place} carried by {loop.name}")
            for place, (old, new) in enumerate(zip(kinds, built.carried, strict=True))
        ]
        grown = [
            _grown(old, builder.ranks.possible(value)) if isinstance(kind, TensorType) else old
            for old, kind, value in zip(ranks, merged, built.turn.carried, strict=True)
        ]
        if all(old is new for old, new in zip(kinds, merged, strict=True)) and grown == ranks:
            break
        kinds, ranks = merged, grown
    else:
        raise UnsupportedError(f"the shapes that {loop.name} carries do not settle")
    functions.append(built.function)
    call = _first_call(builder, loop, built, kinds)
    results: list[GraphExpr] = []
    for place in range(len(kinds)):
        results.append(builder.named(builder.item(call, place), f"{loop.name}_{place}"))
        builder.ranks.note(results[-1], ranks[place])
    collected = [builder.item(call, len(kinds) + place) for place in range(len(built.turn.collected))]
    return results, collected


def _grown(old: frozenset[int], new: frozenset[int]) -> frozenset[int]:
    """The ranks that a carried value may have; one that changes more than once may come to any."""
    both = frozenset(rank for rank in old | new if rank <= MOST_RANK)
    return both if both == old or len(both) <= 2 else frozenset(range(MOST_RANK + 1))


def _kind(value: GraphExpr) -> Type:
    if value.type is None:
        raise UserError("a value carried by a loop has no type")
    return value.type


def _merged(old: Type, new: Type, changing: set[Symbol], what: str) -> Type:
    """The type that holds a carried value before and after a turn: dimensions that change become symbols."""
    if isinstance(old, TensorType) and isinstance(new, TensorType):
        if old.dtype is not new.dtype:
            raise UserError(f"{what} is {old.dtype} before a turn and {new.dtype} after it")
        if old.shape is None or new.shape is None or len(old.shape) != len(new.shape):
            return TensorType(None, old.dtype)
        dims: list[PrimExpr | None] = []
        for axis, (a, b) in enumerate(zip(old.shape, new.shape, strict=True)):
            if a is not None and (a in changing or (b is not None and dimensions.same(a, b))):
                dims.append(a)
            else:
                symbol = Symbol(f"d{axis}")
                changing.add(symbol)
                dims.append(symbol)
        return TensorType(tuple(dims), old.dtype)
    if isinstance(old, SequenceType) and isinstance(new, SequenceType):
        return SequenceType(_joined(old.item, new.item, what))
    if isinstance(old, OptionalType) or isinstance(new, OptionalType):
        # A value that is there is an optional as well.
        before, after = (kind.item if isinstance(kind, OptionalType) else kind for kind in (old, new))
        return OptionalType(_joined(before, after, what))
    if old is not new:
        raise UnsupportedError(f"{what} changes its type")
    return old


def _joined(old: Type, new: Type, what: str) -> Type:
    try:
        return Unifier().join(old, new)
    except Mismatch as error:
        raise UnsupportedError(f"{what} changes the type of its items: {error}") from None


def _as_carried(builder: Builder, value: GraphExpr, kind: Type) -> GraphExpr:
    """A value as one that a loop carries: an optional, if it may be missing in another turn."""
    if isinstance(kind, OptionalType) and not isinstance(value.type, OptionalType):
        return builder.call("optional.make", value, result=kind)
    return value


def _build(
    builder: Builder, loop: Loop, kinds: Sequence[Type], ranks: Sequence[frozenset[int]], changing: set[Symbol]
) -> _Built:
    number = Var("turn", TensorType((), INT64))
    limit = Var("turns", TensorType((), INT64))
    going = Var("going", TensorType((), BOOL))
    carried = [Var(f"carried_{place}", kind) for place, kind in enumerate(kinds)]
    for param, possible in zip(carried, ranks, strict=True):
        builder.declare(_kind(param))
        builder.ranks.note(param, possible)
    params: list[Var] = [number]
    turns: list[Turn] = []
    sizes: list[Symbol] = []
    lists: list[Var] = []

    def one_turn() -> GraphExpr:
        turn = loop.run(number, list(carried))
        turns.append(turn)
        arguments: list[GraphExpr] = [builder.call("add", number, builder.constant(1, "int64"))]
        if loop.turns is not None:
            params.append(limit)
            arguments.append(limit)
        if loop.going is not None:
            params.append(going)
            arguments.append(going if turn.going is None else turn.going)
        params.extend(carried)
        arguments.extend(_as_carried(builder, value, kind) for value, kind in zip(turn.carried, kinds, strict=True))
        inside = builder.introduced() | changing
        for place, item in enumerate(turn.collected):
            kind = SequenceType(outer_kind(_kind(item), inside))
            lists.append(Var(f"collected_{place}", kind))
            arguments.append(builder.call("sequence.insert", lists[-1], item, result=kind))
        captured = [var for _, var in turn.captured]
        params.extend((*lists, *captured))
        values = [value for _, value in builder.current_bindings()]
        sizes.extend(_missing_symbols([*values, *arguments], params, builder.introduced()))
        carriers = [Var(f"size_{symbol.name}", _carrier_type(symbol)) for symbol in sizes]
        params.extend(carriers)
        again = Call(GlobalVar(loop.name), (*arguments, *captured, *carriers))
        again.type, again.span = result_type(), builder.span
        return again

    def result_type() -> TupleType:
        return TupleType(tuple(outer_kind(kind, changing) for kind in [*kinds, *map(_kind, lists)]))

    again = builder.enclosed(one_turn)
    done = Tuple((*carried, *lists))
    done.type = TupleType(tuple(_kind(item) for item in done.items))
    condition: GraphExpr | None = None
    if loop.turns is not None:
        condition = builder.call("less", number, limit)
    if loop.going is not None:
        condition = going if condition is None else builder.call("logical_and", condition, going)
    if condition is None:
        raise UnsupportedError(f"{loop.name} has no end")
    body = If(condition, again, done)
    body.type, body.span = result_type(), builder.span
    function = Function(loop.name, tuple(params), body, result_type())
    function.span = builder.span
    return _Built(function, turns[0], [_kind(value) for value in turns[0].carried], sizes)


def outer_kind(kind: Type, inside: set[Symbol]) -> Type:
    """A type as it is seen outside of a turn: dimensions that depend on symbols of the turn are not known."""
    if isinstance(kind, TensorType) and kind.shape is not None:
        dims = tuple(
            None if dim is None or any(symbol in inside for symbol in symbols_of(dim)) else dim for dim in kind.shape
        )
        return TensorType(dims, kind.dtype)
    if isinstance(kind, (SequenceType, OptionalType)):
        return type(kind)(outer_kind(kind.item, inside))
    if isinstance(kind, TupleType):
        return TupleType(tuple(outer_kind(item, inside) for item in kind.items))
    return kind


def _missing_symbols(roots: Sequence[GraphExpr], params: Sequence[Var], introduced: set[Symbol]) -> list[Symbol]:
    """Symbols that a body uses and that neither a parameter nor the body itself gives a value."""
    given = set(introduced)
    used: dict[Symbol, None] = {}
    for param in params:
        if isinstance(param.type, TensorType):
            given.update(dim for dim in param.type.shape or () if isinstance(dim, Symbol))
        used.update(dict.fromkeys(symbols_of(param.type)))
    for item in post_order(*roots):
        if isinstance(item, Call):
            used.update(dict.fromkeys(symbols_of(item.attributes)))
    return [symbol for symbol in used if symbol not in given]


def _carrier_type(symbol: Symbol) -> TensorType:
    return TensorType((symbol, IntImm(0)), FLOAT32)


def _first_call(builder: Builder, loop: Loop, built: _Built, kinds: Sequence[Type]) -> GraphExpr:
    arguments: list[GraphExpr] = [builder.constant(0, "int64")]
    if loop.turns is not None:
        arguments.append(loop.turns)
    if loop.going is not None:
        arguments.append(loop.going)
    arguments.extend(_as_carried(builder, value, kind) for value, kind in zip(loop.carried, kinds, strict=True))
    lists = built.function.params[len(arguments) : len(arguments) + len(built.turn.collected)]
    arguments.extend(builder.call("sequence.make", result=_kind(param)) for param in lists)
    arguments.extend(value for value, _ in built.turn.captured)
    arguments.extend(builder.filled(0, (symbol, 0), FLOAT32) for symbol in built.sizes)
    call = Call(GlobalVar(loop.name), tuple(arguments))
    call.type, call.span = built.function.result_type, builder.span
    return call


def captured(value: GraphExpr, captures: list[tuple[GraphExpr, Var]]) -> GraphExpr:
    """A value from outside of a loop as its body sees it: a variable, unless it is known."""
    if isinstance(value, Constant):
        return value
    variable = Var("captured", value.type)
    captures.append((value, variable))
    return variable


def item_rank(sequence: GraphExpr) -> int:
    """The number of dimensions of the items of a sequence."""
    kind = sequence.type
    if not isinstance(kind, SequenceType) or not isinstance(kind.item, TensorType) or kind.item.shape is None:
        raise UnsupportedError("values collected by a loop must have a known number of dimensions")
    return len(kind.item.shape)


def stack(builder: Builder, sequence: GraphExpr, count: Size, axis: int, name: str) -> GraphExpr:
    """The items of a sequence of so many along a new axis; dimensions that are not known become symbols."""
    item_rank(sequence)
    assert isinstance(sequence.type, SequenceType)
    item = sequence.type.item
    assert isinstance(item, TensorType)
    assert item.shape is not None
    dims: list[PrimExpr] = [Symbol(f"{name}_{at}") if dim is None else dim for at, dim in enumerate(item.shape)]
    # Where there are no items, what is known of their shape is that of the result.
    known = [0 if dim is None else dimensions.as_size(dim) for dim in item.shape]
    dims[axis:axis] = as_dims((count,))
    return builder.call(
        "sequence.stack", sequence, builder.shape_tensor(known), dims=tuple(dims), axis=axis, dtype=item.dtype
    )


def reverse(builder: Builder, value: GraphExpr, axis: int) -> GraphExpr:
    """A value in the other direction along an axis."""
    sizes = sizes_of(value)
    begin: list[Size] = [0] * len(sizes)
    end, strides = list(sizes), [1] * len(sizes)
    begin[axis], end[axis], strides[axis] = dimensions.subtract(sizes[axis], 1), -1, -1
    return builder.call("slice", value, begin=tuple(begin), end=tuple(end), strides=tuple(strides))
