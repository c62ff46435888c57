"""Building graphs whose types are known at once: what importers write their conversions with.

Every value gets its type when it is made, and what depends on constants and on symbols of dimensions only is computed
right away (so the shape arithmetic that exporters leave in models disappears while it is imported). Big results are
left to the graph passes.

A dimension is a number or an expression of symbols (`Size`). Where shapes must fit and it cannot be proved that they
do, the value is given a run-time check (`shape.match`). Calls that introduce symbols are bound by `let`: `enclosed`
puts the bindings that were made while a body was built in front of it, `body` those of the outermost function.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.frontend.core.fitting import fitting_rule, stretched
from tilewright.frontend.core.ranks import MOST_RANK, Ranks
from tilewright.frontend.core.symbolic_values import SymbolicArray, apply_symbolic
from tilewright.frontend.core.texts import concerns_texts, on_host
from tilewright.graph import ops as _ops
from tilewright.graph import text as _text
from tilewright.graph.interpreter import apply_operator
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size, Sizes, as_dims, as_size
from tilewright.graph.ir.expr import Call, Constant, GraphExpr, Let, Tuple, TupleGet, Var, constant
from tilewright.graph.ir.known import is_known
from tilewright.graph.ir.op import Array, Operator, call, get_operator, introduces_symbols
from tilewright.graph.ir.traverse import children, post_order
from tilewright.graph.ops.common import shape_text, sizes_text
from tilewright.ir.dtype import INT64, DataType
from tilewright.ir.expr import PrimExpr
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.types import TensorType, TupleType, Type
from tilewright.support.errors import CompilerBug, UnsupportedError, UserError
from tilewright.support.span import Span
from tilewright.support.text import human_bytes

FOLD_LIMIT = 1 << 16
"""The most elements of a result that is computed while importing."""
LARGEST_MADE = 1 << 26
"""The most elements of a constant that an importer makes itself."""
LARGEST_BYTES = 1 << 48
"""The most bytes of any tensor: more than any machine has, and few enough that sums of them are 64-bit numbers."""
MOST_DIMENSIONS = 64
"""The most dimensions of any tensor: arrays of numpy have no more."""
_VIEWS = frozenset({"reshape", "slice", "split"})
"""Operators whose results are no larger than their inputs: constants go through them whatever their size."""

_SAME_NUMBERS = frozenset({"cast", "reshape", "transpose"})
"""Operators whose result is all the numbers of their input, in another form."""

_OF_ANY_RANK = frozenset({"host.rank", "shape.match", "shape.reshape"})
"""Operators, beside those on sequences and optionals, on tensors of any number of dimensions."""

assert _ops.__all__  # imported so that every operator is registered
assert _text.__all__  # imported so that models print as text


class Undecided(UnsupportedError):
    """Something about the shape of a value must be known here that only a run decides: an importer may ask the run.

    `most` is the highest rank that the value may have, or the most elements of a list whose length is not known.
    """

    def __init__(self, value: GraphExpr, most: int, message: str) -> None:
        super().__init__(message)
        self.value = value
        self.most = most

    def __reduce__(self) -> tuple[object, ...]:
        return (UnsupportedError, (self.message,), {"where": self.where})


def of_known_rank(value: GraphExpr) -> GraphExpr:
    """A tensor whose number of dimensions is known."""
    if isinstance(value.type, TensorType) and value.type.shape is None:
        raise Undecided(value, MOST_RANK, "a tensor whose number of dimensions is known is needed here")
    return value


def of_known_length(value: GraphExpr, most: int) -> GraphExpr:
    """A list (or a scalar) whose number of elements is known; if only a run knows it, it is at most so many."""
    sizes = sizes_of(value)
    if len(sizes) == 1 and not isinstance(sizes[0], int):
        raise Undecided(value, most, f"a list of known length is needed here, it is {sizes_text(sizes)}")
    return value


def sizes_of(value: GraphExpr) -> Sizes:
    """The shape of a tensor: numbers, and expressions of symbols."""
    found = value.type
    if not isinstance(found, TensorType):
        raise UserError(f"a tensor is needed here, not {found!r}")
    of_known_rank(value)
    sizes: list[Size] = []
    for dim in found.shape or ():
        if dim is None:
            raise CompilerBug(f"a dimension of {shape_text(found.shape)} has no name")
        sizes.append(as_size(dim))
    return tuple(sizes)


def shape_of(value: GraphExpr) -> tuple[int, ...]:
    """The constant shape of a tensor; an error if it has symbolic dimensions."""
    sizes = sizes_of(value)
    shape = dimensions.constants(sizes)
    if shape is None:
        raise UnsupportedError(
            f"a tensor of constant shape is needed here, it is {sizes_text(sizes)}",
            hint="give the dimensions that the model leaves open: shapes={...}",
        )
    return shape


def size_at(value: GraphExpr, axis: int) -> int:
    """A dimension that must be a number."""
    sizes = sizes_of(value)
    size = sizes[axis]
    if not isinstance(size, int):
        raise UnsupportedError(
            f"dimension {axis} of {sizes_text(sizes)} must be a number here",
            hint="give the dimensions that the model leaves open: shapes={...}",
        )
    return size


def dtype_of(value: GraphExpr) -> DataType:
    """The data type of a tensor."""
    if not isinstance(value.type, TensorType):
        raise UserError(f"a tensor is needed here, not {value.type!r}")
    return value.type.dtype


def rank_of(value: GraphExpr) -> int:
    """The number of dimensions of a tensor."""
    found = value.type
    return len(found.shape) if isinstance(found, TensorType) and found.shape is not None else len(sizes_of(value))


def is_plain(dtype: DataType) -> bool:
    """Whether numpy computes with the storage of a data type directly (what results lie beyond few bits apart)."""
    return dtype.name in ("bool", "float16", "float32", "float64") or dtype.is_integer


def elements(kind: Type) -> int:
    """The number of elements of a value of a type (of all its items)."""
    if isinstance(kind, TupleType):
        return sum(elements(item) for item in kind.items)
    if isinstance(kind, TensorType) and kind.static_shape is not None:
        return math.prod(kind.static_shape)
    return FOLD_LIMIT + 1


def check_size(kind: Type) -> None:
    """Refuse tensors of too many dimensions, or so large that bytes of several are no 64-bit numbers."""
    for item in kind.items if isinstance(kind, TupleType) else (kind,):
        if not isinstance(item, TensorType) or item.shape is None:
            continue
        if len(item.shape) > MOST_DIMENSIONS:
            raise UserError(
                f"a tensor of {len(item.shape)} dimensions has too many",
                hint=f"at most {MOST_DIMENSIONS} are supported; reshape it to fewer",
            )
        shape = item.static_shape
        count = 0 if shape is None else math.prod(shape)
        if count * max(item.dtype.itemsize, 1) > LARGEST_BYTES:
            raise UserError(
                f"a tensor of {count} elements is too large", hint=f"a tensor has at most {human_bytes(LARGEST_BYTES)}"
            )


class Builder:
    """Makes typed graph nodes that carry a span."""

    def __init__(self) -> None:
        self.span: Span | None = None
        """Put on every node made from now on."""
        self._bindings: list[list[tuple[Var, GraphExpr]]] = [[]]
        """Calls that introduce symbols, in order, of each body that is being built."""
        self._introduced: list[set[Symbol]] = [set()]
        """The symbols that each body that is being built introduces itself."""
        self._nested: list[set[Symbol]] = [set()]
        """The symbols that finished bodies inside each body introduced."""
        self._known: set[Symbol] = set()
        """Symbols that have values where nodes are made now."""
        self.weights: dict[int, Constant] = {}
        """Constants, by identity, that training changes: what is computed from them is no constant."""
        self.ranks = Ranks()
        self.numbers = itertools.count()
        """Numbers for what is never one: draws of random numbers, functions of loops."""

    def constant(self, value: npt.ArrayLike, dtype: DataType | str | None = None) -> Constant:
        """A constant tensor."""
        made = constant(value, dtype)
        made.span = self.span
        return made

    def constant_like(self, value: float | int, other: GraphExpr) -> GraphExpr:
        """A scalar constant of the data type of another value."""
        dtype = dtype_of(other)
        if dtype.is_integer and not (float(value).is_integer() and dtype.min_value() <= value <= dtype.max_value()):
            raise UserError(f"a value of type {dtype} cannot hold {value}: a floating-point type is needed here")
        if is_plain(dtype):
            return self.constant(value, dtype)
        return self.call("cast", self.constant(value, "float32"), dtype=dtype)

    def filled(self, value: float | int, shape: Sequence[Size], dtype: DataType) -> GraphExpr:
        """A tensor of one value."""
        scalar: GraphExpr = self.constant(value, dtype if is_plain(dtype) else "float32")
        return self.broadcast_to(self.cast(scalar, dtype), shape)

    def count(self, size: int, step: int = 1) -> Array:
        """0, step, 2 * step ... for a table that becomes a constant; refuses tables that are too large."""
        if size > LARGEST_MADE:
            raise UnsupportedError(f"a table of {size} entries is needed here, which is too large")
        return np.arange(size, dtype=np.int64) * step

    def dimensions(self, values: SymbolicArray, dtype: DataType = INT64) -> GraphExpr:
        """A tensor of sizes: a constant if all of them are numbers."""
        items: list[Size] = [dimensions.normal(item) for item in values.reshape(-1)]
        numbers = dimensions.constants(items)
        if numbers is not None:
            return self.constant(np.array(numbers, np.int64).reshape(values.shape), dtype)
        made = call("dimensions", span=self.span, values=tuple(items), shape=values.shape, dtype=dtype)
        made.type = TensorType(as_dims(values.shape), dtype)
        return made

    def shape_tensor(self, sizes: Sequence[Size]) -> GraphExpr:
        """Sizes as a tensor of one dimension."""
        values = np.empty(len(sizes), object)
        values[:] = list(sizes)
        return self.dimensions(values)

    def arange(self, count: Size, start: Size = 0, step: int = 1, dtype: DataType = INT64) -> GraphExpr:
        """start, start + step, ...: a constant if it is known and small enough."""
        if isinstance(count, int) and isinstance(start, int) and count <= FOLD_LIMIT:
            return self.constant(start + np.arange(count, dtype=np.int64) * step, dtype)
        return self.call("arange", count=count, start=start, step=step, dtype=dtype)

    def call(self, name: str, *args: GraphExpr, **attributes: object) -> GraphExpr:
        """Apply an operator.

        The result is a constant if all inputs are and it is small, a tensor of sizes if all inputs are that, and a
        variable bound by `let` if the call introduces symbols.
        """
        operator = get_operator(name)
        given = self._fitted(operator, args, attributes)
        if not operator.host:
            attributes = {key: _normalised(value) for key, value in attributes.items()}
        made = call(name, *given, span=self.span, **attributes)
        types: list[Type] = []
        for arg in given:
            if arg.type is None:
                raise CompilerBug(f"an input of {name} has no type")
            if name not in _OF_ANY_RANK and not name.startswith(("sequence.", "optional.")):
                of_known_rank(arg)
            types.append(arg.type)
        made.type = operator.infer(types, made.attributes)
        check_size(made.type)
        if operator.host:
            return self.bind(made) if introduces_symbols(made) else made
        if concerns_texts(given, attributes):
            form = on_host(name, given, made.attributes, made.type)
            return self.call(form.name, *form.args, *map(self.shape_tensor, form.sizes), **form.attributes)
        if not given:
            return made
        if all(isinstance(arg, Constant) and is_plain(arg.dtype) for arg in given):
            is_small = name in _VIEWS or elements(made.type) <= FOLD_LIMIT
            is_small &= name in _SAME_NUMBERS or not any(id(arg) in self.weights for arg in given)
            return self._fold(made, made.type) if is_small and is_bound(made) else made
        if elements(made.type) <= FOLD_LIMIT:
            symbolic = apply_symbolic(operator, given, made.attributes)
            if symbolic is not None:
                return self._symbolic(symbolic, made.type)
        return made

    def _symbolic(self, found: SymbolicArray | tuple[SymbolicArray, ...], kind: Type) -> GraphExpr:
        if isinstance(found, tuple):
            assert isinstance(kind, TupleType)
            return self.tuple([self._symbolic(part, item) for part, item in zip(found, kind.items, strict=True)])
        assert isinstance(kind, TensorType)
        if kind.dtype.is_bool:
            return self.constant(found.astype(bool), kind.dtype)
        return self.dimensions(found, kind.dtype)

    # Symbols and checks

    def bind(self, value: GraphExpr, name: str = "bound") -> GraphExpr:
        """A variable bound to a value in front of everything that is built from now on."""
        variable = Var(name, value.type)
        variable.span = self.span
        self._bindings[-1].append((variable, value))
        if isinstance(value, Call) and introduces_symbols(value):
            fresh = set(dimensions.symbols_of(value.attributes)) - self._known
            self._known |= fresh
            self._introduced[-1] |= fresh
        return variable

    def declare(self, kind: Type) -> None:
        """Say that the symbols of a type (of a parameter) have values."""
        self._known.update(dimensions.symbols_of(kind))

    def enclosed(self, build: Callable[[], GraphExpr]) -> GraphExpr:
        """A body (of a branch, of a function) with the bindings that building it makes in front of it."""
        self._bindings.append([])
        self._introduced.append(set())
        self._nested.append(set())
        try:
            return self.body(build())
        finally:
            self._bindings.pop()
            # They mean nothing outside of the body.
            fresh = self._introduced.pop()
            self._known -= fresh
            inner = self._nested.pop()
            self._nested[-1] |= fresh | inner

    def body(self, value: GraphExpr) -> GraphExpr:
        """A value with all bindings of the current body in front of it."""
        for variable, bound in reversed(self._bindings[-1]):
            made = Let(variable, bound, value)
            made.type, made.span = value.type, variable.span
            value = made
        self._bindings[-1].clear()
        return value

    def forget(self, count: int) -> None:
        """Drop the bindings of the body that is being built but for the first ones: what they were for is not used."""
        del self._bindings[-1][count:]

    def current_bindings(self) -> list[tuple[Var, GraphExpr]]:
        """The bindings of the body that is being built, so far."""
        return list(self._bindings[-1])

    def introduced(self) -> set[Symbol]:
        """The symbols that the body that is being built introduces, so far, and those of bodies inside it."""
        return self._introduced[-1] | self._nested[-1]

    def introduces(self, symbol: Symbol) -> bool:
        """Whether the body that is being built has introduced a symbol itself."""
        return symbol in self._introduced[-1]

    def match(self, value: GraphExpr, sizes: Sequence[Size]) -> GraphExpr:
        """A value whose shape is said, and checked when it runs (itself if it certainly has that shape)."""
        known = value.type
        if isinstance(known, TensorType) and known.shape is not None and None not in known.shape:
            found = sizes_of(value)
            if len(found) == len(sizes) and all(map(dimensions.same, found, sizes)):
                return value
        if self._known.issuperset(dimensions.symbols_of((known, tuple(sizes)))):
            return self.call("assume_shape", value, shape=tuple(sizes))
        return self.call("shape.match", value, dims=as_dims(sizes))

    def fitting(self, value: GraphExpr, *factors: GraphExpr) -> GraphExpr:
        """A value whose open sizes are those of factors that broadcast to it; checked when it runs."""
        sizes = list(sizes_of(value))
        for factor in factors:
            missing = len(sizes) - rank_of(factor)
            for axis, size in enumerate(sizes_of(factor), missing):
                if axis >= 0 and isinstance(size, int) and size != 1 and not isinstance(sizes[axis], int):
                    sizes[axis] = size
        return self.match(value, sizes)

    def under(self, value: GraphExpr, pairs: Sequence[tuple[Size, Size]]) -> GraphExpr:
        """A value that a run gives only if pairs of sizes are equal."""
        known = self.named(value, "size")
        return self.call(
            "assume_shape", known, shape=sizes_of(known), equal=tuple(itertools.chain.from_iterable(pairs))
        )

    def named(self, value: GraphExpr, names: Sequence[str] | str) -> GraphExpr:
        """A value with a new symbol for each dimension that is not known."""
        found = value.type
        if not isinstance(found, TensorType) or found.shape is None:
            return value
        if all(dim is not None for dim in found.shape):
            return value
        labels = [f"{names}_{axis}" for axis in range(len(found.shape))] if isinstance(names, str) else names
        dims = [Symbol(labels[axis]) if dim is None else dim for axis, dim in enumerate(found.shape)]
        return self.call("shape.match", value, dims=tuple(dims))

    def _fitted(self, operator: Operator, args: Sequence[GraphExpr], attributes: dict[str, object]) -> list[GraphExpr]:
        """The inputs, with run-time checks where it is not certain that their shapes fit."""
        given = list(args)
        kinds = [arg.type for arg in given]
        for kind in kinds:
            if isinstance(kind, TensorType) and kind.static_shape is None:
                self.declare(kind)  # what a value is made of has values already
        if len(given) < 2 or all(isinstance(kind, TensorType) and kind.static_shape is not None for kind in kinds):
            return given
        if not all(isinstance(kind, TensorType) and kind.shape is not None for kind in kinds):
            return given
        rule = fitting_rule(operator)
        wanted = None if rule is None else rule([list(sizes_of(arg)) for arg in given], attributes)
        return given if wanted is None else list(map(self._fit, given, wanted))

    def _fit(self, value: GraphExpr, sizes: Sequence[Size]) -> GraphExpr:
        """A value whose shape is said, unless it certainly is another: the operator complains about that."""
        return value if any(map(dimensions.different, sizes_of(value), sizes)) else self.match(value, sizes)

    def _fold(self, made: Call, kind: Type) -> GraphExpr:
        kinds = kind.items if isinstance(kind, TupleType) else (kind,)
        dtypes = [item.dtype for item in kinds if isinstance(item, TensorType)]
        if not all(is_plain(dtype) for dtype in dtypes):
            return made
        result = apply_operator(made, [arg.data for arg in made.args if isinstance(arg, Constant)])
        if isinstance(result, tuple):
            items = [self.constant(np.asarray(item), dtype) for item, dtype in zip(result, dtypes, strict=True)]
            folded = Tuple(tuple(items))
            folded.type, folded.span = kind, self.span
            return folded
        whole = self.constant(np.asarray(result), dtypes[0])
        if isinstance(made.callee, Operator) and made.callee.name in _SAME_NUMBERS and made.args[0].span is not None:
            # A weight in another form is still that weight, by its name.
            whole.span = made.args[0].span
            if id(made.args[0]) in self.weights:
                self.weights[id(whole)] = whole
        return whole

    def item(self, value: GraphExpr, index: int) -> GraphExpr:
        """One item of a tuple."""
        if isinstance(value, Tuple):
            return value.items[index]
        if not isinstance(value.type, TupleType):
            raise CompilerBug(f"an item of {value.type!r}")
        made = TupleGet(value, index)
        made.type, made.span = value.type.items[index], self.span
        return made

    # Sugar: the forms that frameworks know are all a reshape or a slice.

    def reshape(self, value: GraphExpr, shape: Sequence[Size]) -> GraphExpr:
        """The same elements under another shape (itself if it has that shape); checked when it runs if need be."""
        wanted = tuple(dimensions.normal(size) for size in shape)
        if isinstance(value.type, TensorType) and value.type.shape is None:
            return self.call("shape.reshape", value, self.shape_tensor(wanted), dims=as_dims(wanted))
        known = sizes_of(value)
        if len(known) == len(wanted) and all(map(dimensions.same, known, wanted)):
            return value
        if dimensions.same(dimensions.product(known), dimensions.product(wanted)):
            return self.call("reshape", value, shape=wanted)
        if dimensions.constants((*known, *wanted)) is not None:
            return self.call("reshape", value, shape=wanted)
        return self.call("shape.reshape", value, self.shape_tensor(wanted), dims=as_dims(wanted))

    def expand_dims(self, value: GraphExpr, axes: Sequence[int]) -> GraphExpr:
        """New dimensions of 1 at places counted in the result."""
        shape = list(sizes_of(value))
        for axis in sorted(axes):
            shape.insert(axis, 1)
        return self.reshape(value, shape)

    def transpose(self, value: GraphExpr, axes: Sequence[int]) -> GraphExpr:
        """Dimensions in another order (itself if the order is the same)."""
        order = tuple(int(axis) for axis in axes)
        return value if order == tuple(range(rank_of(value))) else self.call("transpose", value, axes=order)

    def cast(self, value: GraphExpr, dtype: DataType | str) -> GraphExpr:
        """Converted to a data type (itself if it has that type)."""
        wanted = DataType.of(dtype)
        return value if dtype_of(value) is wanted else self.call("cast", value, dtype=wanted)

    def broadcast_to(self, value: GraphExpr, shape: Sequence[Size]) -> GraphExpr:
        """Repeated to fill a shape (itself if it has that shape); checked when it runs if need be."""
        wanted = tuple(dimensions.normal(size) for size in shape)
        known = list(sizes_of(value))
        if len(known) == len(wanted) and all(map(dimensions.same, known, wanted)):
            return value
        for at in range(1, min(len(known), len(wanted)) + 1):
            if not isinstance(known[-at], int) or (known[-at] != 1 and not isinstance(wanted[-at], int)):
                known[-at] = stretched(known[-at], wanted[-at])
        return self.call("broadcast_to", self.match(value, known), shape=wanted)

    def slice_axis(self, value: GraphExpr, axis: int, begin: Size, end: Size) -> GraphExpr:
        """Elements begin .. end-1 along one axis."""
        shape = sizes_of(value)
        if isinstance(begin, int) and begin == 0 and dimensions.same(end, shape[axis]):
            return value
        starts: list[Size] = [0] * len(shape)
        ends = list(shape)
        starts[axis], ends[axis] = begin, end
        return self.call("slice", value, begin=tuple(starts), end=tuple(ends), strides=(1,) * len(shape))

    def concatenate(self, values: Sequence[GraphExpr], axis: int) -> GraphExpr:
        """Values one after the other along an axis."""
        return values[0] if len(values) == 1 else self.call("concatenate", *values, axis=axis)

    def tuple(self, items: Sequence[GraphExpr]) -> GraphExpr:
        """A tuple; a single value stays itself."""
        if len(items) == 1:
            return items[0]
        made = Tuple(tuple(items))
        kinds: list[Type] = []
        for item in items:
            if item.type is None:
                raise CompilerBug("an item of a tuple has no type")
            kinds.append(item.type)
        made.type, made.span = TupleType(tuple(kinds)), self.span
        return made


def _normalised(value: object) -> object:
    """Sizes among attributes as numbers where they are constant, in normal form elsewhere."""
    if isinstance(value, PrimExpr):
        return dimensions.normal(value)
    if isinstance(value, tuple):
        return tuple(_normalised(item) for item in value)
    return value


def is_bound(made: Call) -> bool:
    """Whether the attributes of a call depend on no symbols."""
    return made.attributes is None or not dimensions.symbols_of(made.attributes)


def evaluate(value: GraphExpr) -> Array | None:
    """The value of an expression that depends on constants only, whatever its size; None if it depends on inputs."""
    if not is_known(value):
        return None
    values: dict[int, Any] = {}
    for node in post_order(value):
        parts = [values[id(child)] for child in children(node)]
        if isinstance(node, Constant) and is_plain(node.dtype):
            values[id(node)] = node.data
        elif isinstance(node, Tuple):
            values[id(node)] = tuple(parts)
        elif isinstance(node, TupleGet):
            values[id(node)] = parts[0][node.index]
        elif isinstance(node, Call) and isinstance(node.callee, Operator):
            values[id(node)] = apply_operator(node, parts)
        else:
            return None
    result = values[id(value)]
    return result if isinstance(result, np.ndarray) else None
