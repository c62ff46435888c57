"""Sums of products by an equation of letters: two operands at a time, as transposes, one matrix product, and a sum."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontend.core.builder import Builder, rank_of, sizes_of
from tilewright.graph.ir.dimensions import Size, add, different, multiply
from tilewright.graph.ir.dimensions import product as elements
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import size_text, sizes_text
from tilewright.support.errors import UnsupportedError, UserError

Term = tuple[GraphExpr, str]
"""A value and one letter a dimension."""
_ELLIPSIS_LETTERS = "".join(chr(code) for code in range(0x3B1, 0x3CA))
"""Letters that stand for the dimensions of an ellipsis."""


def einsum(builder: Builder, equation: str, values: Sequence[GraphExpr]) -> GraphExpr:
    """Products and sums over named dimensions."""
    equation = equation.replace(" ", "")
    terms, result = _parse(equation, values)
    operands = [_without_repeats(builder, value, letters) for value, letters in zip(values, terms, strict=True)]
    while len(operands) > 1:
        left, right = operands[0], operands[1]
        needed = set(result) | {letter for _, letters in operands[2:] for letter in letters}
        operands[:2] = [_contract(builder, left, right, needed)]
    value, letters = _sum_out(builder, operands[0], set(result))
    missing = set(result) - set(letters)
    if missing:
        raise UserError(f"the result of {equation!r} names {', '.join(sorted(missing))}, which no input has")
    return builder.transpose(value, [letters.index(letter) for letter in result])


def _parse(equation: str, values: Sequence[GraphExpr]) -> tuple[list[str], str]:
    sides = equation.split("->")
    terms = sides[0].split(",")
    if len(sides) > 2 or len(terms) != len(values):
        raise UserError(f"the equation {equation!r} does not fit {len(values)} inputs")
    most = 0
    for term, value in zip(terms, values, strict=True):
        named = len(term.replace("...", ""))
        if not all(letter.isalpha() for letter in term.replace("...", "")) or term.count("...") > 1:
            raise UserError(f"{term!r} is not a term of an equation")
        spare = rank_of(value) - named
        if spare < 0 or (spare and "..." not in term):
            raise UserError(f"the term {term!r} does not fit an input of shape {sizes_text(sizes_of(value))}")
        most = max(most, spare)
    if most > len(_ELLIPSIS_LETTERS):
        raise UnsupportedError(f"an ellipsis of {most} dimensions")
    expanded = []
    for term, value in zip(terms, values, strict=True):
        spare = rank_of(value) - len(term.replace("...", ""))
        expanded.append(term.replace("...", _ELLIPSIS_LETTERS[most - spare : most]))
    if len(sides) == 2:
        result = sides[1].replace("...", _ELLIPSIS_LETTERS[:most])
        if len(set(result)) != len(result) or not all(letter.isalpha() for letter in result):
            raise UserError(f"{sides[1]!r} is not the result of an equation")
        return expanded, result
    letters = "".join(expanded)
    once = sorted(letter for letter in set(letters) if letters.count(letter) == 1 and letter not in _ELLIPSIS_LETTERS)
    return expanded, _ELLIPSIS_LETTERS[:most] + "".join(once)


def _without_repeats(builder: Builder, value: GraphExpr, letters: str) -> Term:
    """A letter twice in one term means its diagonal."""
    for letter in dict.fromkeys(letters):
        while letters.count(letter) > 1:
            first = letters.index(letter)
            second = letters.index(letter, first + 1)
            value, letters = _diagonal(builder, value, letters, first, second)
    return value, letters


def _diagonal(builder: Builder, value: GraphExpr, letters: str, first: int, second: int) -> Term:
    shape = sizes_of(value)
    size = shape[first]
    if different(shape[second], size):
        raise UserError(f"dimensions {first} and {second} of {sizes_text(shape)} have one letter but two sizes")
    value = builder.match(value, [size if axis == second else dim for axis, dim in enumerate(shape)])
    others = [axis for axis in range(len(shape)) if axis not in (first, second)]
    moved = builder.transpose(value, [*others, first, second])
    rest = [shape[axis] for axis in others]
    flat = builder.reshape(moved, (*rest, multiply(size, size)))
    step = builder.reshape(builder.shape_tensor((add(size, 1),)), ())
    places = builder.call("multiply", builder.arange(size), step)
    return builder.call("take", flat, places, axis=len(rest)), "".join(letters[axis] for axis in others) + letters[
        first
    ]


def _sum_out(builder: Builder, term: Term, keep: set[str]) -> Term:
    value, letters = term
    axes = tuple(axis for axis, letter in enumerate(letters) if letter not in keep)
    if not axes:
        return term
    return builder.call("sum", value, axes=axes, keepdims=False), "".join(c for c in letters if c in keep)


def _contract(builder: Builder, left: Term, right: Term, needed: set[str]) -> Term:
    """The product of two terms, summed over what no one needs any more."""
    left = _sum_out(builder, left, needed | set(right[1]))
    right = _sum_out(builder, right, needed | set(left[1]))
    sizes: dict[str, Size] = {}
    for value, letters in (left, right):
        for letter, size in zip(letters, sizes_of(value), strict=True):
            known = sizes.setdefault(letter, size)
            if known == 1 or size == 1:
                sizes[letter] = size if known == 1 else known
            elif different(known, size):
                raise UserError(
                    f"the dimension {letter!r} is {size_text(known)} in one input and {size_text(size)} in another"
                )
            elif isinstance(size, int):
                sizes[letter] = size
    shared = [letter for letter in left[1] if letter in right[1]]
    batch = [letter for letter in shared if letter in needed]
    inner = [letter for letter in shared if letter not in needed]
    rows = [letter for letter in left[1] if letter not in shared]
    columns = [letter for letter in right[1] if letter not in shared]

    def matrix(term: Term, first: list[str], last: list[str]) -> GraphExpr:
        value, letters = term
        value = builder.broadcast_to(value, [sizes[letter] for letter in letters])
        value = builder.transpose(value, [letters.index(letter) for letter in (*batch, *first, *last)])
        groups = [[sizes[letter] for letter in group] for group in (first, last)]
        return builder.reshape(value, (*(sizes[letter] for letter in batch), elements(groups[0]), elements(groups[1])))

    product = builder.call("matmul", matrix(left, rows, inner), matrix(right, inner, columns))
    letters = "".join((*batch, *rows, *columns))
    return builder.reshape(product, [sizes[letter] for letter in letters]), letters
