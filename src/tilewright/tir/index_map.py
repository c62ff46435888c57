"""Index maps: how the elements of a buffer are arranged anew, as expressions of the old indices.

`IndexMap.of(lambda k, n: (n // 16, k, n % 16), 2)` packs the columns of a matrix in panels of 16.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Final

import numpy as np
import numpy.typing as npt

from tilewright.ir.build import add, as_expr, floordiv, floormod, mul, sub
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import (
    ZERO,
    Add,
    BinaryExpr,
    ExprLike,
    FloorDiv,
    FloorMod,
    Mul,
    PrimExpr,
    Range,
    Sub,
    Var,
    const_value,
)
from tilewright.ir.node import Node, node
from tilewright.ir.visit import substitute
from tilewright.support.errors import UserError
from tilewright.tir.buffer import Buffer


@node()
class IndexMap(Node):
    """New indices (`outputs`) as expressions of old ones (`inputs`). Must be injective on the buffer it is used for."""

    inputs: tuple[Var, ...]
    outputs: tuple[PrimExpr, ...]

    @staticmethod
    def of(function: Callable[..., Sequence[ExprLike]], rank: int, subject: str = "") -> IndexMap:
        """The map of a Python function of `rank` indices; `subject` is what an error says it is for."""
        parameters = list(inspect.signature(function).parameters.values())
        names = [parameter.name for parameter in parameters]
        if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
            names = [f"i{n}" for n in range(rank)]
        if len(names) != rank:
            subject = subject or f"a buffer of {rank} dimensions"
            raise UserError(f"an index map of {len(names)} indices for {subject}")
        inputs = tuple(Var(name) for name in names)
        return IndexMap(inputs, tuple(as_expr(item, INDEX) for item in function(*inputs)))

    @staticmethod
    def given(value: MapLike, rank: int, subject: str = "") -> IndexMap:
        """The map that a user gave in any of its forms: itself, a function, its text or its plain data."""
        if isinstance(value, IndexMap):
            return value
        if callable(value):
            return IndexMap.of(value, rank, subject)
        return IndexMap.from_text(rank, value) if isinstance(value, str) else IndexMap.decode(rank, value)

    def apply(self, indices: Sequence[PrimExpr]) -> tuple[PrimExpr, ...]:
        """The new indices of an element."""
        wide = [index.astype(INDEX) if index.dtype.is_scalar else index for index in indices]
        mapping = dict(zip(self.inputs, wide, strict=True))
        return tuple(substitute(item, mapping) for item in self.outputs)

    def domains(self, buffer: Buffer) -> dict[Var, Range]:
        """The range of each input over a buffer."""
        return {var: Range(ZERO, dim) for var, dim in zip(self.inputs, buffer.shape, strict=True)}

    def steps(self) -> tuple[AxisStep, ...] | None:
        """The map as a rearrangement of whole and divided axes (i, i // c, i % c), or None if it is more than that.

        An inner part may be divided again (i % c // d), and a new index may join two parts: `i % c * d + j % d`.
        """
        steps: list[AxisStep] = []
        for item in self.outputs:
            part = _axis_steps(item, self.inputs)
            if part is None:
                return None
            steps += part
        return tuple(steps)

    def is_rearrangement(self) -> bool:
        """Whether the map only permutes whole axes and all parts of divided ones: injective on any shape."""
        steps = self.steps()
        return steps is not None and all(
            _is_whole([step for step in steps if step.axis == axis]) for axis in range(len(self.inputs))
        )

    def divides_again(self) -> bool:
        """Whether a rearrangement divides a part of an axis once more."""
        steps = self.steps() or ()
        return any(step.below > 1 for step in steps) or len({(step.axis, step.factor) for step in steps}) > len(
            {step.axis for step in steps}
        )

    def encode(self) -> tuple[tuple[int, str, int], ...]:
        """A rearrangement as plain data, for traces and attributes."""
        steps = self.steps()
        if steps is None:
            raise UserError("only maps made of i, i // c and i % c have a plain form")
        return tuple((step.axis, step.text, step.factor or 0) for step in steps)

    @staticmethod
    def decode(rank: int, data: Sequence[Sequence[object]]) -> IndexMap:
        """The map that `encode` described."""
        inputs = tuple(Var(f"i{n}") for n in range(rank))
        outputs: list[PrimExpr] = []
        for axis, part, factor in data:
            assert isinstance(axis, int) and isinstance(factor, int)
            index = inputs[axis]
            if part == "+inner":
                outputs[-1] = outputs[-1] * factor + index % factor
                continue
            name, _, below = str(part).partition("/")
            number = index if name == "whole" else index // factor if name == "outer" else index % factor
            outputs.append(number // int(below) if below else number)
        return IndexMap(inputs, tuple(outputs))

    def to_text(self) -> str:
        """The map as text, for traces: "i0 * 10 + i1, i2"; of sums, products and divisions of indices."""
        names = {var: f"i{n}" for n, var in enumerate(self.inputs)}
        return ", ".join(text_of_index(item, names) for item in self.outputs)

    @staticmethod
    def from_text(rank: int, text: str) -> IndexMap:
        """The map that `to_text` described."""
        inputs = tuple(Var(f"i{n}") for n in range(rank))
        try:
            tree = ast.parse(f"({text},)", mode="eval").body
        except SyntaxError as error:
            raise UserError(f"{text!r} is not an index map: {error.msg}") from None
        assert isinstance(tree, ast.Tuple)
        names = {var.name: var for var in inputs}
        return IndexMap(inputs, tuple(parsed_index(item, names, text) for item in tree.elts))

    def new_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape that holds a rearranged array; divided axes are rounded up."""
        return self.rearrange(np.zeros(tuple(shape), np.bool_)).shape

    def rearrange(self, array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """An array with its elements at their new places, zeros in the padding of divided axes."""
        steps = self.steps()
        if steps is None:
            raise UserError(
                "this index map cannot be applied to data at compile time",
                hint="use maps made of i, i // c and i % c of the old indices",
            )
        digits: dict[tuple[int, int], int] = {}
        widths: list[tuple[int, int]] = []
        for axis, size in enumerate(array.shape):
            cuts = _cuts(axis, steps)
            widths.append((0, -size % cuts[-1]))
            for below, above in zip(cuts, (*cuts[1:], size + widths[-1][1]), strict=True):
                digits[axis, below] = above // below
        padded = np.pad(array, widths) if any(high for _, high in widths) else array
        place = {digit: n for n, digit in enumerate(sorted(digits, key=lambda digit: (digit[0], -digit[1])))}
        shape = [digits[digit] for digit in place]
        own = [[digit for digit in place if step.has(*digit)] for step in steps]
        order = [place.pop(digit, -1) for group in own for digit in group]
        if -1 in order:
            raise UserError("an index map divides one axis by two different numbers")
        if place:
            raise UserError("an index map must keep every old index")
        moved = np.ascontiguousarray(padded.reshape(shape).transpose(order))
        merged: list[int] = []
        for step, group in zip(steps, own, strict=True):
            size = prod(digits[digit] for digit in group)
            if step.joined:
                merged[-1] *= size
            else:
                merged.append(size)
        return moved.reshape(merged)


MapLike = IndexMap | Callable[..., Sequence[ExprLike]] | str | Sequence[Sequence[object]]
"""What users may give for an index map."""
_SYMBOLS: Final[dict[type[PrimExpr], str]] = {Add: "+", Sub: "-", Mul: "*", FloorDiv: "//", FloorMod: "%"}
_OPERATORS: Final = {ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.FloorDiv: floordiv, ast.Mod: floormod}


def text_of_index(item: PrimExpr, names: dict[Var, str]) -> str:
    """An index expression as text, with names for its variables."""
    if isinstance(item, Var) and item in names:
        return names[item]
    value = const_value(item)
    if value is not None:
        return str(value)
    symbol = _SYMBOLS.get(type(item))
    if symbol is None or not isinstance(item, BinaryExpr):
        raise UserError("an index map in a trace is made of +, -, *, // and % of indices and constants")
    return f"({text_of_index(item.a, names)} {symbol} {text_of_index(item.b, names)})"


def parsed_index(item: ast.expr, names: dict[str, Var], text: str) -> PrimExpr:
    """The index expression that a piece of text describes."""
    if isinstance(item, ast.Name) and item.id in names:
        return names[item.id]
    if isinstance(item, ast.Constant) and type(item.value) is int:
        return as_expr(item.value, INDEX)
    if isinstance(item, ast.UnaryOp) and isinstance(item.op, ast.USub):
        return sub(ZERO, parsed_index(item.operand, names, text))
    if isinstance(item, ast.BinOp) and type(item.op) in _OPERATORS:
        left, right = parsed_index(item.left, names, text), parsed_index(item.right, names, text)
        return _OPERATORS[type(item.op)](left, right)
    raise UserError(f"{text!r} is not an index map", hint="it is made of +, -, *, // and % of i0, i1, ... and integers")


@dataclass(frozen=True, slots=True)
class AxisStep:
    """One new index: the whole, the outer part (i // factor) or the inner part (i % factor) of an old axis.

    An inner part may be divided once more, by `below`. A `joined` inner part continues the new index before it: that
    one times the factor, plus this one.
    """

    axis: int
    part: str
    factor: int | None
    joined: bool = False
    below: int = 1

    @property
    def text(self) -> str:
        """The part as plain data."""
        return f"{'+' if self.joined else ''}{self.part}{f'/{self.below}' if self.below > 1 else ''}"

    def has(self, axis: int, place: int) -> bool:
        """Whether the new index has the digit of an axis that counts by `place`."""
        if axis != self.axis or self.factor is None:
            return axis == self.axis
        return place >= self.factor if self.part == "outer" else self.below <= place < self.factor


def _is_whole(steps: Sequence[AxisStep]) -> bool:
    """Whether new indices have each digit of an axis, once."""
    ranges = sorted((step.factor or 1, 0) if step.part != "inner" else (step.below, step.factor or 0) for step in steps)
    ranges = [(low, end) for low, end in ranges if low != end]
    lows, ends = [low for low, _ in ranges], [end for _, end in ranges]
    return [*lows, 0] == [1, *ends] and all(end % low == 0 for low, end in ranges)


def _cuts(axis: int, steps: Sequence[AxisStep]) -> list[int]:
    """What the digits of an axis count by, the last one first: each a multiple of the one before."""
    factors = {number for step in steps if step.axis == axis for number in (step.factor or 1, step.below)}
    cuts = sorted({1, *factors})
    if any(above % below for below, above in pairwise(cuts)):
        raise UserError("an index map divides one axis by two different numbers")
    return cuts


def _axis_steps(item: PrimExpr, inputs: tuple[Var, ...]) -> list[AxisStep] | None:
    """The parts of one new index, outermost first."""
    if isinstance(item, Add) and isinstance(item.a, Mul):
        first, last = _axis_steps(item.a.a, inputs), _axis_step(item.b, inputs)
        if first is None or last is None or last.part != "inner" or const_value(item.a.b) != last.factor:
            return None
        return [*first, AxisStep(last.axis, last.part, last.factor, joined=True)]
    single = _axis_step(item, inputs)
    return None if single is None else [single]


def _axis_step(item: PrimExpr, inputs: tuple[Var, ...]) -> AxisStep | None:
    places = {var: axis for axis, var in enumerate(inputs)}
    if isinstance(item, Var):
        return AxisStep(places[item], "whole", None) if item in places else None
    if isinstance(item, FloorDiv) and isinstance(item.a, FloorMod):
        inner, below = _axis_step(item.a, inputs), const_value(item.b)
        return None if inner is None or not below else replace(inner, below=below)
    if isinstance(item, (FloorDiv, FloorMod)) and isinstance(item.a, Var) and item.a in places:
        factor = const_value(item.b)
        if factor is not None and factor > 0:
            return AxisStep(places[item.a], "outer" if isinstance(item, FloorDiv) else "inner", factor)
    return None
