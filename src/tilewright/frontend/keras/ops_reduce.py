"""Operations that reduce: sums, means, extremes, moments, and running sums along an axis."""

from __future__ import annotations

from typing import Any

from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.keras.context import LayerCall
from tilewright.frontend.keras.layer import as_dtype
from tilewright.frontend.keras.ops_elementwise import tensor
from tilewright.frontend.keras.registry import operation
from tilewright.frontend.keras.values import KerasBuilder, promoted
from tilewright.graph.ir.dimensions import product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import BOOL, FLOAT32, INT32, DataType
from tilewright.support.errors import UserError


def axes_of(call: LayerCall, value: GraphExpr, default: Any = None) -> tuple[int, ...]:
    """The axes that an operation reduces: all unless it says which."""
    described = call.layer.option("axis", call.kwargs.get("axis", default))
    if described is None:
        return tuple(range(rank_of(value)))
    listed = list(described) if isinstance(described, (list, tuple)) else [described]
    return tuple(sorted({call.axis(item, rank_of(value)) for item in listed}))


def _keep(call: LayerCall) -> bool:
    return call.layer.flag("keepdims", bool(call.kwargs.get("keepdims", False)))


def _sum_type(dtype: DataType) -> DataType:
    """The type of sums: small whole numbers are added up in 32 bits."""
    if dtype.is_bool or (dtype.is_int and dtype.bits < 32):
        return INT32
    return DataType.of("uint32") if dtype.is_uint and dtype.bits < 32 else dtype


def _reduction(classes: str, name: str) -> None:
    def convert(call: LayerCall) -> GraphExpr:
        b, value = call.builder, tensor(call)
        axes, keep = axes_of(call, value), _keep(call)
        if name in ("all", "any"):
            value = b.truth(value)
        elif name in ("sum", "prod"):
            value = b.cast(value, _sum_type(dtype_of(value)))
        elif name == "mean":
            value = b.floating(value)
        result = b.reduce(name, value, axes, keep)
        described = call.layer.option("dtype")
        if name == "prod" and isinstance(described, str):
            result = b.cast(result, as_dtype(described))
        start = call.layer.option("initial")
        if start is not None and name in ("max", "min"):
            limit = b.scalar(call.layer.number("initial", 0.0), dtype_of(result))
            result = b.call("maximum" if name == "max" else "minimum", result, limit)
        return result

    convert.__doc__ = f"`{name}` over axes."
    operation(*classes.split())(convert)


for _classes, _name in {
    "All": "all",
    "Any": "any",
    "Sum": "sum",
    "Prod": "prod",
    "Mean": "mean",
    "Max Amax": "max",
    "Min Amin": "min",
}.items():
    _reduction(_classes, _name)


def variance(b: KerasBuilder, value: GraphExpr, axes: tuple[int, ...], keep: bool) -> GraphExpr:
    """The mean of squares of what differs from the mean."""
    centred = b.subtract(value, b.reduce("mean", value, axes, True))
    return b.reduce("mean", b.multiply(centred, centred), axes, keep)


@operation("Var", "Std")
def var(call: LayerCall) -> GraphExpr:
    """The variance, or its root."""
    b, value = call.builder, call.builder.floating(tensor(call))
    kind = dtype_of(value)
    wide = b.cast(value, promoted([kind, FLOAT32]))
    result = variance(b, wide, axes_of(call, value), _keep(call))
    return b.cast(b.call("sqrt", result) if call.layer.kind == "Std" else result, kind)


@operation("Moments")
def moments(call: LayerCall) -> tuple[GraphExpr, GraphExpr]:
    """The mean and the variance."""
    b, value = call.builder, tensor(call)
    kind = dtype_of(value)
    described = call.layer.option("axes")
    listed = list(described) if isinstance(described, (list, tuple)) else [described]
    axes = tuple(sorted(call.axis(item, rank_of(value)) for item in listed))
    wide, keep = b.cast(value, promoted([kind, FLOAT32])), _keep(call)
    mean, spread = b.reduce("mean", wide, axes, keep), variance(b, wide, axes, keep)
    return b.cast(mean, kind), b.cast(spread, kind)


@operation("Ptp")
def ptp(call: LayerCall) -> GraphExpr:
    """The greatest less the least."""
    b, value = call.builder, tensor(call)
    axes, keep = axes_of(call, value), _keep(call)
    return b.subtract(b.reduce("max", value, axes, keep), b.reduce("min", value, axes, keep))


@operation("CountNonzero")
def count_nonzero(call: LayerCall) -> GraphExpr:
    """How many are not zero."""
    b, value = call.builder, tensor(call)
    return b.reduce("sum", b.cast(b.truth(value), INT32), axes_of(call, value))


@operation("Logsumexp")
def logsumexp(call: LayerCall) -> GraphExpr:
    """The logarithm of the sum of exponentials."""
    b, value = call.builder, call.builder.floating(tensor(call))
    axes, keep = axes_of(call, value), _keep(call)
    most = b.reduce("max", value, axes, True)
    safe = b.where(b.call("isinf", most), 0.0, most)
    total = b.call("log", b.reduce("sum", b.call("exp", b.subtract(value, safe)), axes, True))
    result = b.add(total, safe)
    if keep:
        return result
    return b.reshape(result, [size for at, size in enumerate(sizes_of(value)) if at not in axes])


@operation("Average")
def average(call: LayerCall) -> GraphExpr:
    """The mean, with weights if they are given."""
    b, value = call.builder, call.builder.floating(tensor(call))
    weights = call.tensor("weights", 1)
    axes = axes_of(call, value)
    if weights is None:
        return b.reduce("mean", value, axes)
    value, weights = b.operands(value, weights)
    if rank_of(weights) != rank_of(value):
        shape = [sizes_of(value)[at] if at in axes else 1 for at in range(rank_of(value))]
        weights = b.reshape(weights, shape)
    weights = b.broadcast_to(weights, sizes_of(value))
    return b.divide(b.reduce("sum", b.multiply(value, weights), axes), b.reduce("sum", weights, axes))


@operation("Argmax", "Argmin")
def position(call: LayerCall) -> GraphExpr:
    """The place of the greatest or the least."""
    b, value = call.builder, tensor(call)
    described, keep = call.layer.option("axis"), _keep(call)
    value = b.cast(value, INT32) if dtype_of(value).is_bool else value
    rank = rank_of(value)
    name = call.layer.kind.lower()
    if described is None:
        flat = b.call(name, b.flatten(value), axis=0, keepdims=False)
        return b.cast(b.reshape(flat, (1,) * rank) if keep else flat, INT32)
    return b.cast(b.call(name, value, axis=call.axis(described, rank), keepdims=keep), INT32)


@operation("Cumsum", "Cumprod")
def running(call: LayerCall) -> GraphExpr:
    """Sums or products of all elements up to each."""
    b, value = call.builder, tensor(call)
    described, dtype = call.layer.option("axis"), call.layer.option("dtype")
    wanted = as_dtype(dtype) if isinstance(dtype, str) else INT32 if dtype_of(value).is_bool else dtype_of(value)
    value = b.cast(value, wanted)
    value = b.flatten(value) if described is None else value
    axis = 0 if described is None else call.axis(described, rank_of(value))
    return b.call(call.layer.kind.lower(), value, axis=axis)


# Without NaN


@operation("Nansum", "Nanprod", "Nanmax", "Nanmin", "Nanmean", "Nanvar", "Nanstd")
def without_nan(call: LayerCall) -> GraphExpr:
    """Reductions of the elements that are numbers."""
    b, value = call.builder, tensor(call)
    axes, keep, kind = axes_of(call, value), _keep(call), call.layer.kind.removeprefix("Nan")
    if not dtype_of(value).is_float:
        value = value if kind in ("max", "min") else b.cast(value, _sum_type(dtype_of(value)))
        if kind in ("sum", "prod", "max", "min"):
            return b.reduce(kind, value, axes, keep)
        value = b.floating(value)
    gone = b.call("isnan", value)
    if kind in ("sum", "prod"):
        return b.reduce(kind, b.where(gone, 0.0 if kind == "sum" else 1.0, value), axes, keep)
    if kind in ("max", "min"):
        infinite = float("-inf") if kind == "max" else float("inf")
        result = b.reduce(kind, b.where(gone, infinite, value), axes, keep)
        return b.where(b.reduce("all", gone, axes, keep), float("nan"), result)
    counts = b.reduce("sum", b.cast(b.call("logical_not", gone), dtype_of(value)), axes, True)
    mean = b.divide(b.reduce("sum", b.where(gone, 0.0, value), axes, True), counts)
    if kind != "mean":
        centred = b.where(gone, 0.0, b.subtract(value, mean))
        mean = b.divide(b.reduce("sum", b.multiply(centred, centred), axes, True), counts)
        mean = b.call("sqrt", mean) if kind == "std" else mean
    if keep:
        return mean
    return b.reshape(mean, [size for at, size in enumerate(sizes_of(value)) if at not in axes])


@operation("Nancumsum", "Nancumprod")
def running_without_nan(call: LayerCall) -> GraphExpr:
    """Running sums or products, in which NaN changes nothing."""
    b, value = call.builder, tensor(call)
    described = call.layer.option("axis")
    value = b.cast(value, INT32) if dtype_of(value).is_bool else value
    name = call.layer.kind.removeprefix("Nan")
    if dtype_of(value).is_float:
        value = b.where(b.call("isnan", value), 0.0 if name == "cumsum" else 1.0, value)
    value = b.flatten(value) if described is None else value
    result = b.call(name, value, axis=0 if described is None else call.axis(described, rank_of(value)))
    dtype = call.layer.option("dtype")
    return b.cast(result, as_dtype(dtype)) if isinstance(dtype, str) else result


# By order


def ordered(b: KerasBuilder, value: GraphExpr, axis: int) -> tuple[GraphExpr, GraphExpr]:
    """Elements by rising size along an axis, and where they were."""
    count = size_at(value, axis)
    whole = b.cast(value, INT32) if dtype_of(value) is BOOL else value
    both = b.call("topk", whole, axis=axis, k=count, largest=False)
    return b.cast(b.item(both, 0), dtype_of(value)), b.cast(b.item(both, 1), INT32)


@operation("Sort", "Argsort")
def sort(call: LayerCall) -> GraphExpr:
    """Elements, or their places, by rising size."""
    b, value = call.builder, tensor(call)
    described = call.layer.option("axis", -1)
    if described is None:
        value, described = b.flatten(value), 0
    if rank_of(value) == 0:
        return value if call.layer.kind == "Sort" else b.constant(0, INT32)
    values, places = ordered(b, value, call.axis(described, rank_of(value)))
    return values if call.layer.kind == "Sort" else places


@operation("TopK")
def top_k(call: LayerCall) -> tuple[GraphExpr, GraphExpr]:
    """The greatest of the last axis, and their places."""
    b, value = call.builder, tensor(call)
    both = b.call("topk", value, axis=rank_of(value) - 1, k=call.layer.integer("k"))
    return b.item(both, 0), b.cast(b.item(both, 1), INT32)


@operation("Median", "Quantile", "Percentile", "Nanmedian", "Nanquantile", "Nanpercentile")
def quantile(call: LayerCall) -> GraphExpr:
    """What so large a share of the elements is below."""
    b, value = call.builder, call.builder.floating(tensor(call))
    if call.layer.kind.startswith("Nan"):
        raise UserError(f"{call.layer.kind} is not supported", hint="use the operation without NaN")
    described = 0.5 if call.layer.kind == "Median" else call.argument("q", 1)
    shares = call.as_tensor(described)
    shares = b.divide(shares, 100.0) if call.layer.kind == "Percentile" else shares
    shares = b.cast(shares, dtype_of(value))
    axes, keep = axes_of(call, value), _keep(call)
    rest = [at for at in range(rank_of(value)) if at not in axes]
    turned = b.transpose(value, [*rest, *axes])
    lead = sizes_of(turned)[: len(rest)]
    flat = b.reshape(turned, (*lead, product(sizes_of(turned)[len(rest) :])))
    values = ordered(b, flat, len(rest))[0]
    picked = _at_share(b, values, b.flatten(shares), call.layer.option("method", "linear") or "linear")
    result = b.transpose(picked, (len(rest), *range(len(rest))))
    shape = [1 if at in axes else size for at, size in enumerate(sizes_of(value))] if keep else list(lead)
    return b.reshape(result, (*sizes_of(shares), *shape))


def _at_share(b: KerasBuilder, values: GraphExpr, shares: GraphExpr, method: str) -> GraphExpr:
    """Elements of the last axis, which rise, at shares of its length."""
    axis = rank_of(values) - 1
    last = size_at(values, axis) - 1
    place = b.multiply(shares, float(last))
    low, high = b.call("floor", place), b.call("ceil", place)
    match method:
        case "lower":
            return b.call("take", values, b.cast(low, "int64"), axis=axis, mode="clip")
        case "higher":
            return b.call("take", values, b.cast(high, "int64"), axis=axis, mode="clip")
        case "nearest":
            return b.call("take", values, b.cast(b.call("round", place), "int64"), axis=axis, mode="clip")
        case "midpoint" | "linear":
            below = b.call("take", values, b.cast(low, "int64"), axis=axis, mode="clip")
            above = b.call("take", values, b.cast(high, "int64"), axis=axis, mode="clip")
            share = b.scalar(0.5, dtype_of(values)) if method == "midpoint" else b.subtract(place, low)
            return b.add(below, b.multiply(b.subtract(above, below), share))
    raise UserError(f"the method {method!r} is not known")
