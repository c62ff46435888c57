"""Sizes that vary: torch's symbolic integers as expressions of symbols."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from tilewright.frontend.core.resampling import scaled_size
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size, Sizes
from tilewright.ir.expr import Var
from tilewright.support.errors import UnsupportedError


class TorchSizes:
    """The symbols of one program: torch's by their names, ours by what the user called them."""

    def __init__(self) -> None:
        self.symbols: dict[str, Size] = {}
        """What torch's symbols are: ours, or numbers that they are held at."""
        self.multiples: dict[str, tuple[int, Var]] = {}
        """Symbols of which an input has only a multiple (`2 * Dim("half")`): the factor, and our symbol for that."""
        self.wholes: dict[str, Var] = {}
        """Sizes of inputs whose own symbols are no size of an input (`s0 + s1`): our symbol for them."""

    def declare(self, size: Any, name: str) -> None:
        """Give a dimension of an input a name, if it is a symbol that has none yet."""
        expression = getattr(getattr(size, "node", None), "expr", None)
        if expression is None:
            return
        if expression.is_Symbol:
            self.symbols.setdefault(str(expression), Var(name))
        elif expression.is_Mul and len(expression.args) == 2:
            factor, symbol = expression.args
            if factor.is_Integer and symbol.is_Symbol and str(symbol) not in self.symbols:
                self.multiples.setdefault(str(symbol), (int(factor), Var(name)))

    def declare_whole(self, size: Any, name: str) -> None:
        """Give a dimension of an input a name if it is computed from symbols that no input has."""
        expression = getattr(getattr(size, "node", None), "expr", None)
        if expression is not None and not self.knows(expression):
            self.wholes.setdefault(str(expression), Var(name))

    def hold(self, size: Any, number: int) -> None:
        """Say that a symbol is a number in this program."""
        expression = size.node.expr
        if expression.is_Symbol:
            self.symbols[str(expression)] = number

    def fresh(self, size: Any, name: str) -> Var:
        """A new symbol for a size that only a run decides, which torch knows by a symbol of its own."""
        symbol = Var(name)
        expression = getattr(getattr(size, "node", None), "expr", None)
        if expression is not None and expression.is_Symbol:
            self.symbols[str(expression)] = symbol
        return symbol

    def size(self, value: Any) -> Size:
        """A number, or the expression that a symbolic integer stands for."""
        if isinstance(value, int):
            return value
        expression = value.node.expr
        return dimensions.normal(self.expression(expression))

    def shape(self, values: Sequence[Any]) -> Sizes:
        """All sizes of a shape."""
        return tuple(self.size(value) for value in values)

    def knows(self, value: Any) -> bool:
        """Whether a symbolic expression is one of the sizes of inputs."""
        return all(str(symbol) in self.symbols or str(symbol) in self.multiples for symbol in value.free_symbols)

    def expression(self, value: Any) -> Size:
        """A symbolic expression of torch's as one of ours."""
        if value.is_Integer:
            return int(value)
        if str(value) in self.wholes:
            return self.wholes[str(value)]
        if value.is_Symbol:
            found = self.symbols.get(str(value))
            if found is None and str(value) in self.multiples:
                factor, whole = self.multiples[str(value)]
                return dimensions.floor_divide(whole, factor)
            if found is None:
                raise UnsupportedError(
                    f"the size {value} depends on the values of a tensor", hint="use shapes that inputs decide"
                )
            return found
        name = type(value).__name__
        if name in ("TruncToInt", "FloorToInt", "CeilToInt"):
            quotient = self._quotient(value.args[0])
            if quotient is None:
                return self._scaled(value)
            above, below = quotient
            # The least number that is not less than a quotient is the negative of the greatest below its negative.
            upward = name == "CeilToInt"
            rounded = dimensions.floor_divide(dimensions.subtract(0, above) if upward else above, below)
            return dimensions.subtract(0, rounded) if upward else rounded
        if name == "Mul" and value.args[0].is_Integer:
            return self._multiple(int(value.args[0]), value.args[1:])
        parts = [self.expression(item) for item in value.args]
        match name:
            case "Add":
                return reduce(dimensions.add, parts)
            case "Mul":
                return reduce(dimensions.multiply, parts)
            case "FloorDiv" | "CleanDiv":
                return dimensions.floor_divide(parts[0], parts[1])
            case "Mod" | "PythonMod":
                return dimensions.modulo(parts[0], parts[1])
            case "Abs":
                return dimensions.maximum(parts[0], dimensions.subtract(0, parts[0]))
            case "Max":
                return reduce(dimensions.maximum, parts)
            case "Min":
                return reduce(dimensions.minimum, parts)
            case "Pow" if isinstance(parts[1], int) and 1 <= parts[1] <= 4:
                return dimensions.product([parts[0]] * parts[1])
        raise UnsupportedError(f"a size that is {value}")

    def _multiple(self, count: int, factors: Sequence[Any]) -> Size:
        """A number times other factors: so many of a multiple that an input has, if it is one."""
        parts: list[Size] = []
        for factor in factors:
            step, whole = self.multiples.get(str(factor), (0, None))
            if whole is not None and str(factor) not in self.symbols and count % step == 0:
                count //= step
                parts.append(whole)
            else:
                parts.append(self.expression(factor))
        return reduce(dimensions.multiply, [count, *parts])

    def _quotient(self, value: Any) -> tuple[Size, int] | None:
        """A size over a positive number, if a value is that; a fraction like 0.25 below is a factor above."""
        if type(value).__name__ not in ("FloatTrueDiv", "IntTrueDiv") or not value.args[1].is_number:
            return None
        above, below = value.args[0], float(value.args[1])
        size = self.expression(above.args[0] if type(above).__name__ == "ToFloat" else above)
        if below < 0:
            size, below = dimensions.subtract(0, size), -below
        if below.is_integer() and below:
            return size, int(below)
        factor = 1 / below if below else math.inf
        if factor.is_integer() and math.frexp(factor)[0] == 0.5:  # a power of two, which a float divides by exactly
            return dimensions.multiply(size, int(factor)), 1
        return None

    def _scaled(self, value: Any) -> Size:
        """A size times a float, rounded down: torch computes it in doubles, which a fraction has to agree with."""
        if type(value).__name__ == "CeilToInt":
            raise UnsupportedError(f"a size that is {value}")
        product = value.args[0]
        factors = product.args if type(product).__name__ == "Mul" else (product,)
        scale, size = 1.0, None
        for factor in factors:
            if factor.is_Float or factor.is_Integer:
                scale *= float(factor)
            elif type(factor).__name__ == "ToFloat" and size is None:
                size = self.expression(factor.args[0])
            else:
                raise UnsupportedError(f"a size that is {value}")
        found = None if size is None else scaled_size(size, scale, "float64")
        if found is None:
            raise UnsupportedError(f"a size that is {value}", hint="use a scale that is a fraction of a power of two")
        return found


def from_front(index: Size, size: Size) -> Size:
    """An index along an axis of some size, counted from the front."""
    if isinstance(index, int) and isinstance(size, int):
        return max(0, index + size) if index < 0 else min(index, size)
    # Of sizes that vary torch knows that they are not 0, so that what is not positive is negative.
    is_from_end = index < 0 if isinstance(index, int) else dimensions.at_least(0, index)
    return dimensions.add(size, index) if is_from_end else index


def dimension_names(dynamic_shapes: Any, inputs: Sequence[str]) -> dict[tuple[str, int], str]:
    """The names that the user gave dimensions: (input, axis) -> name of its `torch.export.Dim`."""
    if isinstance(dynamic_shapes, Mapping):
        entries = [(name, dynamic_shapes.get(name)) for name in inputs]
    elif isinstance(dynamic_shapes, (tuple, list)):
        entries = list(zip(inputs, dynamic_shapes, strict=False))
    else:
        return {}
    found: dict[tuple[str, int], str] = {}
    for name, entry in entries:
        if isinstance(entry, Mapping):
            listed = list(entry.items())
        elif isinstance(entry, (tuple, list)):
            listed = list(enumerate(entry))
        else:
            continue
        for axis, dim in listed:
            label = getattr(dim, "__name__", None)
            if isinstance(axis, int) and isinstance(label, str) and label.isidentifier():
                found[name, axis] = label
    return found
