"""Converters of calls: functions of the program, composites, and the custom calls that JAX emits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tilewright.frontend.core.builder import dtype_of, evaluate, rank_of, sizes_of
from tilewright.frontend.core.symbolic_values import symbolic_value
from tilewright.frontend.stablehlo.builder import StableBuilder
from tilewright.frontend.stablehlo.elementwise import total_order
from tilewright.frontend.stablehlo.program import Operation
from tilewright.frontend.stablehlo.registry import Converter, converter, find_converter, refuse
from tilewright.frontend.stablehlo.sorting import along
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import Call, GraphExpr
from tilewright.graph.ir.op import Operator
from tilewright.support.errors import UnsupportedError, UserError

_C = TypeVar("_C", bound=Converter)
TARGETS: dict[str, Converter] = {}
"""Custom calls by their targets: called with the builder, the operation and its operands."""
_TRANSPARENT = frozenset(
    {
        "Sharding",
        "SPMDFullToShardShape",
        "SPMDShardToFullShape",
        "annotate_device_placement",
        "xla.sdy.FuncResultSharding",
    }
)
"""Targets that say where a value is to live: they give it back."""


def target(*names: str) -> Callable[[_C], _C]:
    """Register what custom calls mean."""

    def register(convert: _C) -> _C:
        for name in names:
            TARGETS[name] = convert
        return convert

    return register


@converter("call", of_complex="taken")
def call(b: StableBuilder, operation: Operation, *operands: Any) -> list[Any]:
    """A function of the program: its body, here."""
    return b.call_function(str(operation.attributes.get("callee")), operands)


@converter("composite", of_complex="taken")
def composite(b: StableBuilder, operation: Operation, *operands: Any) -> Any:
    """An operation that the program also spells out: by its name if that is known, else as it is spelled."""
    name = str(operation.attributes.get("name"))
    known = find_converter(name) if name.startswith("chlo.") else None
    if known is not None and not any(not isinstance(value, GraphExpr) for value in operands):
        inner = Operation(
            name,
            operation.operands,
            dict(operation.attributes.get("composite_attributes", {})),
            operation.results,
            location=operation.location,
        )
        b.operation = inner
        return known.convert(b, inner, *operands)
    return b.call_function(str(operation.attributes.get("decomposition")), operands)


@converter("custom_call", of_complex="taken")
def custom_call(b: StableBuilder, operation: Operation, *operands: Any) -> Any:
    """A call of something outside of StableHLO."""
    name = str(operation.attributes.get("call_target_name"))
    if name in _TRANSPARENT:
        return list(operands)
    convert = TARGETS.get(name)
    if convert is None and name.startswith(("chlo.", "mhlo.", "stablehlo.")):
        return _as_operation(b, operation, name, operands)
    if convert is None:
        reason = "it calls a library of another runtime"
        if name.startswith(("lapack_", "cusolver", "hipsolver")):
            reason = "a routine of LAPACK that has no counterpart here"
        elif name.startswith(("__gpu", "triton", "cudnn", "__cublas")):
            reason = "a kernel for one kind of processor"
        elif "callback" in name:
            reason = "it calls back into Python"
        raise UnsupportedError(
            f"the custom call @{name} is not supported: {reason}",
            hint="compute it outside of the compiled function, or with operations of jax.numpy and jax.lax",
        )
    return convert(b, operation, *operands)


def _as_operation(b: StableBuilder, operation: Operation, name: str, operands: Sequence[Any]) -> Any:
    """An operation of another dialect that was packed into a custom call (`mhlo.erf`, `mhlo.topk`)."""
    plain = name.split(".", 1)[1]
    for candidate in (name, f"chlo.{plain}", f"stablehlo.{plain}"):
        known = find_converter(candidate)
        if known is not None and candidate != "stablehlo.custom_call":
            packed = operation.attributes.get("mhlo.attributes", {})
            inner = Operation(
                candidate, operation.operands, dict(packed), operation.results, location=operation.location
            )
            b.operation = inner
            return known.convert(b, inner, *operands)
    raise UnsupportedError(f"the custom call @{name} is not supported")


@target("shape_assertion")
def shape_assertion(b: StableBuilder, operation: Operation, condition: GraphExpr, *_: GraphExpr) -> list[Any]:
    """What must hold of the sizes of inputs; checked when the program runs unless it is certain."""
    known = evaluate(condition)
    message = str(operation.attributes.get("error_message", "a condition on sizes"))
    if known is not None:
        if not bool(known.all()):
            raise UserError(f"the sizes of the inputs are wrong: {message}")
        return []
    pairs = size_condition(condition)
    if pairs is None:
        raise UnsupportedError("a condition on sizes that is not a comparison of them")
    b.required.extend(pairs)
    return []


def size_condition(condition: GraphExpr) -> list[tuple[Size, Size]] | None:
    """A comparison of sizes as pairs of sizes that are equal where it holds."""
    if not isinstance(condition, Call) or not isinstance(condition.callee, Operator) or len(condition.args) != 2:
        return None
    sides = [symbolic_value(value) for value in condition.args]
    if sides[0] is None or sides[1] is None:
        return None
    first, second = (side.reshape(-1)[0] for side in sides if side is not None)
    return _ordered(condition.callee.name, first, second)


def _ordered(name: str, first: Size, second: Size) -> list[tuple[Size, Size]] | None:
    match name:
        case "equal":
            return [(first, second)]
        case "greater_equal":
            return [(dimensions.maximum(first, second), first)]
        case "less_equal":
            return [(dimensions.maximum(first, second), second)]
        case "greater":
            return [(dimensions.maximum(first, dimensions.add(second, 1)), first)]
        case "less":
            return [(dimensions.maximum(dimensions.add(first, 1), second), second)]
    return None


# Order


@converter("chlo.top_k")
def top_k(b: StableBuilder, operation: Operation, x: GraphExpr) -> list[GraphExpr]:
    """The greatest along the last axis, NaN first, and their places."""
    axis = rank_of(x) - 1
    count = b.number_of("k")
    places_type = operation.results[1].tensor.dtype
    if count == 0 or 0 in sizes_of(x):
        shape = (*sizes_of(x)[:-1], count)
        return [b.empty(shape, dtype_of(x)), b.empty(shape, places_type)]
    key = total_order(b, x) if dtype_of(x).is_float else x
    if dtype_of(x).is_bool:
        key = b.cast(x, "int8")
    largest = operation.attributes.get("largest", True) is not False
    both = b.call("topk", key, axis=axis, k=count, largest=largest)
    places = b.item(both, 1)
    return [along(b, x, places, axis), b.cast(places, places_type)]


@target("ApproxTopK")
def approximate_top_k(
    b: StableBuilder, operation: Operation, x: GraphExpr, places: GraphExpr, *_: GraphExpr
) -> list[GraphExpr]:
    """The greatest or least along a dimension, here exactly; their places are those that the call was given."""
    config = operation.attributes.get("mhlo.backend_config")
    computed = operation.attributes.get("called_computations")
    axis = config.get("reduction_dim") if isinstance(config, dict) else None
    if not isinstance(axis, int) or not isinstance(computed, list) or not computed:
        raise UserError("ApproxTopK does not say along which dimension")
    count = operation.results[0].tensor.shape[axis]
    if not isinstance(count, int):
        raise UnsupportedError("the greatest of an open dimension", hint="give it a size")
    largest = "_gt_" in str(computed[0])
    found = b.item(b.call("topk", x, axis=axis, k=count, largest=largest), 1)
    return [along(b, x, found, axis), along(b, places, found, axis)]


refuse(
    "it exchanges values between devices, and a compiled program runs on one",
    *("all_gather", "all_reduce", "all_to_all", "collective_broadcast", "collective_permute", "reduce_scatter"),
    *("partition_id", "replica_id", "cross-replica-sum", "send", "recv"),
)
refuse("values from and to a host queue have no place in a compiled program", "infeed", "outfeed")
refuse(
    "quantised types are not supported; convert them with --stablehlo-legalize-quant-to-math",
    *("uniform_quantize", "uniform_dequantize"),
)
