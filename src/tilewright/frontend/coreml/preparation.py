"""Core ML's models that prepare features, on rows: scaling, missing values, categories, vectors of features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.coreml.estimators import as_rows
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import BOOL, FLOAT64, INT64, STRING
from tilewright.ir.expr import Var as Symbol
from tilewright.support.errors import UnsupportedError, UserError

_LARGEST, _SUM, _ROOT = range(3)


def scaled(b: ArithmeticBuilder, model: Any, value: GraphExpr) -> GraphExpr:
    """scale * (x + shift), with one number each, or one for each feature."""
    result = b.cast(value, FLOAT64)
    for numbers, kind in ((model.shiftValue, "add"), (model.scaleValue, "multiply")):
        table = np.array(numbers, np.float64)
        if table.size > 1 and (rank_of(value) != 2 or size_at(value, 1) != table.size):
            raise UserError(f"{table.size} numbers of a scaler do not fit its features")
        if table.size:
            result = b.call(kind, result, b.constant(table if table.size > 1 else table[0], FLOAT64))
    return result


def normalized(b: ArithmeticBuilder, model: Any, value: GraphExpr) -> GraphExpr:
    """Divided by the greatest feature of the row, the sum of magnitudes or the root of the squares."""
    x = b.cast(value, FLOAT64)
    if model.normType == _LARGEST:
        norm = b.reduce("max", x, (1,), True)
    elif model.normType == _SUM:
        norm = b.reduce("sum", b.call("abs", x), (1,), True)
    elif model.normType == _ROOT:
        norm = b.call("sqrt", b.reduce("sum", b.call("multiply", x, x), (1,), True))
    else:
        raise UserError(f"the norm {model.normType} is not known")
    safe = b.where(b.compare("equal", norm, 0.0), 1.0, norm)
    return b.call("divide", x, safe)


def imputed(b: ArithmeticBuilder, model: Any, value: GraphExpr) -> GraphExpr:
    """With values that stand for missing ones replaced."""
    kinds = [field.name for field, _ in model.ListFields() if field.number < 10]
    replaced = [(field.name, item) for field, item in model.ListFields() if field.number > 10]
    if not kinds:
        raise UserError("an imputer without values")
    if kinds[0] not in ("imputedDoubleValue", "imputedInt64Value", "imputedDoubleArray", "imputedInt64Array"):
        raise UnsupportedError(f"missing values replaced by {kinds[0]}", hint="texts and dictionaries are not imputed")
    given = getattr(model, kinds[0])
    numbers = np.array(given.vector if hasattr(given, "vector") else given)
    dtype = dtype_of(value)
    if numbers.size > 1 and (rank_of(value) != 2 or size_at(value, 1) != numbers.size):
        raise UserError(f"{numbers.size} values of an imputer do not fit its features")
    marker = float("nan") if not replaced or replaced[0][0] == "replaceStringValue" else float(replaced[0][1])
    if np.isnan(marker):
        missing = b.call("isnan", value) if dtype.is_float else b.filled(0, sizes_of(value), BOOL)
    else:
        missing = b.compare("equal", value, marker if dtype.is_float else int(marker))
    table = b.constant(numbers.astype(dtype.numpy()), dtype)
    return b.call("where", missing, table, value)


def one_hot(b: ArithmeticBuilder, model: Any, value: GraphExpr) -> GraphExpr:
    """A row of zeros with a one where the category is; an unknown one is an error, or all zeros.

    A dictionary of the one category that is there is such a row as well.
    """
    if model.HasField("stringCategories"):
        keys: tuple[Any, ...] = tuple(model.stringCategories.vector)
    else:
        keys = tuple(int(item) for item in model.int64Categories.vector)
        value = b.cast(value, INT64)
    if (dtype_of(value) is STRING) is not model.HasField("stringCategories"):
        raise UserError("the categories of an encoder are not of the type of its input")
    places = _looked_up(b, value, keys, tuple(range(len(keys))), -1, model.handleUnknown == 0)
    found = b.call("equal", b.expand_dims(places, (rank_of(places),)), b.constant(np.arange(len(keys)), INT64))
    return b.cast(found, FLOAT64)


def _looked_up(
    b: ArithmeticBuilder, value: GraphExpr, keys: tuple[Any, ...], values: tuple[int, ...], default: int, strict: bool
) -> GraphExpr:
    """Numbers of keys; a run with an unknown key is an error where that is strict."""
    found = b.call("text.lookup", value, keys=keys, values=values, default=default, dtype=INT64)
    if not strict:
        return found
    known = b.reduce("all", b.compare("not_equal", found, default), tuple(range(rank_of(found))))
    message = "a category is not known to the model"
    # The size of what the check gives is 1, which the result is put under: so the check is part of it.
    held = b.call("host.require", b.reshape(known, (1,)), dims=(Symbol("known"),), message=message)
    return b.under(found, [(sizes_of(held)[0], 1)])


def mapped(b: ArithmeticBuilder, model: Any, value: GraphExpr) -> GraphExpr:
    """Texts as numbers, or numbers as texts."""
    if model.HasField("stringToInt64Map"):
        pairs = dict(model.stringToInt64Map.map)
        default: Any = int(model.int64Value)
        to = INT64
    else:
        pairs = {int(key): text for key, text in model.int64ToStringMap.map.items()}
        default, to = model.strValue, STRING
        value = b.cast(value, INT64)
    return b.call("text.lookup", value, keys=tuple(pairs), values=tuple(pairs.values()), default=default, dtype=to)


def vectorized(b: ArithmeticBuilder, model: Any, values: Mapping[str, GraphExpr]) -> GraphExpr:
    """Features side by side in the order of the model."""
    columns: list[GraphExpr] = []
    for item in model.inputList:
        if item.inputColumn not in values:
            raise UserError(f"a vector of features wants '{item.inputColumn}', which is not there")
        row = as_rows(b, [values[item.inputColumn]])
        if item.inputDimensions and size_at(row, 1) != item.inputDimensions:
            raise UserError(f"'{item.inputColumn}' has {size_at(row, 1)} features, not {item.inputDimensions}")
        columns.append(row)
    return as_rows(b, columns)


def extracted(b: ArithmeticBuilder, model: Any, value: GraphExpr) -> GraphExpr:
    """Some features of each row; one alone is a number."""
    places: Sequence[int] = [int(item) for item in model.extractIndex]
    row = value if rank_of(value) > 1 else b.expand_dims(value, (1,))
    if rank_of(row) != 2 or any(place >= size_at(row, 1) for place in places) or not places:
        raise UserError(f"features {list(places)} cannot be taken from a row of them")
    taken = b.call("take", row, b.constant(np.array(places), INT64), axis=1)
    return b.reshape(taken, sizes_of(taken)[:1]) if len(places) == 1 else taken
