"""Host functions on texts: tensors of Python strings."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from tilewright.runtime.host.registry import HostValue, register
from tilewright.runtime.host.values import (
    Attributes,
    integer,
    items,
    tensor,
    text,
    texts,
    whole_numbers,
)
from tilewright.support.errors import UserError

_CHANGES: dict[str, Callable[[str], str]] = {"LOWER": str.lower, "UPPER": str.upper, "NONE": str}


@register("text.concat")
def concat(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """Pairs of texts joined, with broadcasting."""
    left, right = np.broadcast_arrays(tensor(values[0]), tensor(values[1]))
    joined = [str(a) + str(b) for a, b in zip(left.reshape(-1), right.reshape(-1), strict=True)]
    return [texts(joined, left.shape)]


@register("text.split")
def split(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """The parts of each text between delimiters (empty: white space), padded to one number, and how many there are."""
    data = tensor(values[0])
    delimiter, most = text(attributes, "delimiter") or None, integer(attributes, "maxsplit")
    parts = [str(item).split(delimiter, most) for item in data.reshape(-1)]
    width = max((len(row) for row in parts), default=0)
    padded = [item for row in parts for item in [*row, *[""] * (width - len(row))]]
    counts = np.array([len(row) for row in parts], np.int64).reshape(data.shape)
    return [texts(padded, (*data.shape, width)), counts]


@register("text.full_match")
def full_match(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """Whether each whole text matches a regular expression."""
    data = tensor(values[0])
    pattern = re.compile(text(attributes, "pattern"))
    matches = [pattern.fullmatch(str(item)) is not None for item in data.reshape(-1)]
    return [np.array(matches, np.bool_).reshape(data.shape)]


@register("text.normalize")
def normalize(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """Texts in one case without stop words; a row from which all is removed holds one empty text."""
    data = tensor(values[0])
    if data.ndim not in (1, 2) or (data.ndim == 2 and data.shape[0] != 1):
        raise UserError(f"texts to normalize come as (n,) or (1, n), not {data.shape}")
    change = _CHANGES[text(attributes, "case_change_action")]
    exact = bool(attributes["is_case_sensitive"])
    stop = {str(word) if exact else str(word).casefold() for word in items(attributes, "stopwords")}
    words = [str(item) for item in data.reshape(-1)]
    kept = [change(item) for item in words if (item if exact else item.casefold()) not in stop] or [""]
    return [texts(kept, (1, len(kept)) if data.ndim == 2 else (len(kept),))]


@register("text.equal")
def equal(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """Whether texts are the same, with broadcasting."""
    return [np.asarray(np.equal(tensor(values[0]), tensor(values[1]), dtype=object)).astype(np.bool_)]


@register("text.lookup")
def lookup(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """Each element replaced by the value of its key, or by a default; a NaN is a key like any other."""
    data = tensor(values[0])
    keys, results = items(attributes, "keys"), items(attributes, "values")
    table = {_key(key): result for key, result in zip(keys, results, strict=True)}
    default = attributes["default"]
    values_found = [table.get(_key(item), default) for item in data.reshape(-1).tolist()]
    if attributes["dtype"] == "string":
        return [texts([str(item) for item in values_found], data.shape)]
    return [np.array(values_found, np.dtype(text(attributes, "dtype"))).reshape(data.shape)]


def _key(item: object) -> object:
    return "nan" if isinstance(item, float) and item != item else item


@register("text.from_numbers")
def from_numbers(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """Numbers written out: floats by their shortest form, truth values as 0 and 1."""
    data = tensor(values[0])
    if attributes["dtype"] == "bfloat16":
        data = (data.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if data.dtype.kind == "f":
        written = [np.format_float_positional(item, trim="-") if _is_plain(item) else _scientific(item)
                   for item in data.reshape(-1)]  # fmt: skip
    else:
        written = [str(int(item)) for item in data.reshape(-1)]
    return [texts(written, data.shape)]


def _is_plain(item: np.floating[object]) -> bool:  # type: ignore[type-var]
    value = abs(float(item))
    return value == 0 or 1e-4 <= value < 1e8


def _scientific(item: np.floating[object]) -> str:  # type: ignore[type-var]
    if np.isnan(item):
        return "NaN"
    if np.isinf(item):
        return "INF" if item > 0 else "-INF"
    return np.format_float_scientific(item, trim="-", exp_digits=2)


@register("text.to_numbers")
def to_numbers(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """Texts read as numbers of a data type."""
    data = tensor(values[0])
    name = text(attributes, "dtype")
    try:
        if name in ("float16", "float32", "float64", "bfloat16"):
            numbers = np.array([float(item) for item in data.reshape(-1)], np.float64).reshape(data.shape)
            if name != "bfloat16":
                return [numbers.astype(np.dtype(name))]
            bits = numbers.astype(np.float32).view(np.uint32)
            return [((bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16).astype(np.uint16)]
        return [np.array([int(item) for item in data.reshape(-1)]).astype(np.dtype(name)).reshape(data.shape)]
    except (ValueError, OverflowError) as error:
        raise UserError(f"a text is no number of type {name}: {error}") from error


@register("text.ngrams")
def ngrams(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """How often each n-gram of a pool occurs in each row, its items up to a number of places apart."""
    data = tensor(values[0])
    rows = data.reshape(1, -1) if data.ndim == 1 else data
    pool, places = items(attributes, "pool"), whole_numbers(attributes, "places")
    grams: dict[tuple[object, ...], int] = {}
    starts = whole_numbers(attributes, "starts")
    number = 0
    longest, shortest = integer(attributes, "longest"), integer(attributes, "shortest")
    for size, begin in enumerate(starts, 1):
        for at in range(begin, starts[size] if size < len(starts) else len(pool), size):
            if shortest <= size <= longest:
                grams[tuple(pool[at : at + size])] = places[number]
            number += 1
    counts = np.zeros((len(rows), integer(attributes, "width")), np.float32)
    skips = integer(attributes, "skips")
    for index, row in enumerate(rows.tolist()):
        for size in range(shortest, longest + 1):
            for gap in range(1, (skips if size > 1 else 0) + 2):
                for start in range(len(row) - (size - 1) * gap):
                    place = grams.get(tuple(row[start : start + (size - 1) * gap + 1 : gap]))
                    if place is not None:
                        counts[index, place] += 1
    return [counts.reshape(counts.shape[1:]) if data.ndim == 1 else counts]


# Moves: what kernels do with numbers.


@register("text.transpose")
def transpose(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """Dimensions in another order."""
    return [np.transpose(tensor(values[0]), whole_numbers(attributes, "axes"))]


@register("text.take")
def take(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """Slices at places along an axis; negative places count from the end."""
    return [np.take(tensor(values[0]), tensor(values[1]), axis=integer(attributes, "axis"))]


@register("text.concatenate")
def concatenate(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """Tensors one after the other along an axis."""
    return [np.concatenate([tensor(value) for value in values], axis=integer(attributes, "axis"))]


@register("text.where")
def where(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """One text or another, by a condition."""
    condition, left, right = (tensor(value) for value in values)
    return [np.where(condition, left, right)]
