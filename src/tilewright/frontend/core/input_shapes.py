"""Shapes of the model's inputs: what the model says, completed and checked by what the user says.

A dimension with a name in the model (`dim_param`) is one symbol wherever that name occurs; a dimension without a name
is a symbol of its own, named after the input. Names that are arithmetic over other names (`batch*2`) are read as such.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from tilewright.graph.ir.dimensions import Size, Sizes, normal
from tilewright.ir.expr import Var
from tilewright.support.errors import UserError

Entry = int | str | None
"""A dimension as given: a number, a name, or nothing (left as the model has it)."""


class Declared(Protocol):
    """An input as a model declares it."""

    @property
    def name(self) -> str:
        """What the model calls it."""
        ...

    @property
    def dims(self) -> tuple[Entry, ...] | None:
        """Numbers, names, or None where open; None if not even their number is known."""
        ...


_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


class Symbols:
    """The symbols of one model, by name; some are fixed at numbers by the user."""

    def __init__(self) -> None:
        self.fixed: dict[str, tuple[int, str]] = {}
        self.symbols: dict[str, Var] = {}

    def size(self, name: str) -> Size:
        """The number or the symbol that a name stands for."""
        if name in self.fixed:
            return self.fixed[name][0]
        return self.symbols.setdefault(name, Var(name))


def input_shapes(source: str, inputs: Sequence[Declared], shapes: Mapping[str, Sequence[Entry]]) -> list[Sizes | None]:
    """A shape for every input; None where neither says how many dimensions there are.

    `shapes` fixes dimensions at numbers, or names them. A dimension that has a name in the model takes the same size
    wherever that name occurs, so giving the shape of one input may be enough for others.
    """
    names = {info.name for info in inputs}
    for name in shapes:
        if name not in names:
            raise UserError(
                f"shapes names '{name}', which is no input of the model",
                where=source,
                hint=f"its inputs are {', '.join(sorted(names)) or 'none'}",
            )
    given = {info.name: _checked(source, info, shapes[info.name]) for info in inputs if info.name in shapes}
    symbols = Symbols()
    for info in inputs:
        if info.name in given:
            _fix(source, info, given[info.name], symbols)
    wanted = [given.get(info.name, info.dims) for info in inputs]
    plain = {dim for dims in wanted for dim in dims or () if isinstance(dim, str) and dim.isidentifier()}
    return [
        None if dims is None else tuple(_size(info.name, axis, dim, symbols, plain) for axis, dim in enumerate(dims))
        for info, dims in zip(inputs, wanted, strict=True)
    ]


def _size(input_name: str, axis: int, dim: Entry, symbols: Symbols, plain: set[str]) -> Size:
    if isinstance(dim, int):
        return dim
    if dim is None:
        return Var(f"{input_name}_{axis}")
    if not dim.isidentifier() and dim not in symbols.fixed:
        # Only names that some input has as a whole dimension get values when a model is called.
        found = _arithmetic(dim, symbols, plain)
        if found is not None:
            return found
    return symbols.size(dim)


def _arithmetic(text: str, symbols: Symbols, plain: set[str]) -> Size | None:
    """The size that a text over known names means; None if it means none."""
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None

    def read(place: ast.expr) -> Size | None:
        if isinstance(place, ast.Constant) and type(place.value) is int:
            return place.value
        if isinstance(place, ast.Name) and place.id in plain | set(symbols.fixed):
            return symbols.size(place.id)
        if isinstance(place, ast.BinOp) and type(place.op) in _ARITHMETIC:
            left, right = read(place.left), read(place.right)
            is_division = isinstance(place.op, (ast.FloorDiv, ast.Div, ast.Mod))
            if left is None or right is None or (is_division and right == 0):
                return None
            return normal(_ARITHMETIC[type(place.op)](left, right))
        return None

    return read(tree)


def _checked(source: str, info: Declared, shape: Sequence[Entry]) -> tuple[Entry, ...]:
    where = f"{source}, shapes[{info.name!r}]"
    hint = "a tuple of whole numbers and names"
    if isinstance(shape, str):
        raise UserError(f"{shape!r} is not a shape", where=where, hint=hint)
    given: list[Entry] = []
    try:
        for dim in shape:
            given.append(dim if dim is None or isinstance(dim, str) else int(dim))
    except (TypeError, ValueError) as error:
        raise UserError(f"{shape!r} is not a shape", where=where, hint=hint) from error
    if any(isinstance(dim, int) and dim < 0 for dim in given):
        raise UserError(f"{tuple(given)} has a negative dimension", where=where)
    if info.dims is None:
        return tuple(given)
    if len(given) != len(info.dims):
        raise UserError(f"the input has {len(info.dims)} dimensions, {tuple(given)} has {len(given)}", where=where)
    for index, (wanted, dim) in enumerate(zip(info.dims, given, strict=True)):
        if dim is None:
            given[index] = wanted
        elif isinstance(wanted, int) and wanted not in (0, dim):
            raise UserError(
                f"the model fixes dimension {index} of '{info.name}' at {wanted}, not {dim}",
                where=where,
                hint="shapes can fill in open dimensions only; export the model again for another size",
            )
    return tuple(given)


def _fix(source: str, info: Declared, shape: tuple[Entry, ...], symbols: Symbols) -> None:
    """Remember the numbers, or other names, that names of the model are given."""
    for name, dim in zip(info.dims or (), shape, strict=False):
        if isinstance(name, str) and isinstance(dim, str):
            symbols.symbols.setdefault(name, symbols.symbols.setdefault(dim, Var(dim)))
        elif isinstance(name, str) and isinstance(dim, int):
            known = symbols.fixed.setdefault(name, (dim, info.name))
            if known[0] != dim:
                raise UserError(
                    f"the dimension '{name}' is {known[0]} in '{known[1]}' but {dim} in '{info.name}'", where=source
                )
