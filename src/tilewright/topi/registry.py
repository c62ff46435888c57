"""What graph operators compute, as tensor expressions, by operator name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tilewright.graph.ir.op import get_operator
from tilewright.ir.expr import PrimExpr
from tilewright.ir.types import TensorType, TupleType, Type, tensor_type
from tilewright.support.errors import UnsupportedError
from tilewright.support.extensions import note_registration
from tilewright.te.tensor import Tensor

Compute = Callable[[list[Tensor], Any, Type], "Tensor | list[Tensor]"]
"""Input tensors, the operator's attributes and its inferred result type -> the result tensor(s)."""

CpuCompute = Callable[[list[Tensor], Any, Type], "Tensor | list[Tensor] | None"]
"""The same for CPUs: None where the general computation is the one to take."""

_COMPUTES: dict[str, Compute] = {}
_ON_CPUS: dict[str, CpuCompute] = {}
C = TypeVar("C", bound=Compute)
S = TypeVar("S", bound=CpuCompute)


def compute_of(*names: str) -> Callable[[C], C]:
    """Register the computation of one or several operators."""

    def register(function: C) -> C:
        note_registration(function)
        for name in names:
            _COMPUTES[name] = function
        return function

    return register


def compute_on_cpus(*names: str) -> Callable[[S], S]:
    """Register how a processor of few, quick threads computes operators: step by step, where that is less work.

    The general computation (`compute_of`) has no order among its elements, and serves every device.
    """

    def register(function: S) -> S:
        note_registration(function)
        for name in names:
            _ON_CPUS[name] = function
        return function

    return register


def compute_operator(
    name: str, inputs: list[Tensor], attributes: object, result: Type, *, on_cpu: bool = False
) -> list[Tensor]:
    """The result tensors of an operator applied to tensors; `on_cpu` if it is to run on a CPU."""
    special = _ON_CPUS.get(name) if on_cpu else None
    computed = None if special is None else special(inputs, attributes, result)
    if computed is not None:
        return computed if isinstance(computed, list) else [computed]
    function = _COMPUTES.get(name)
    if function is None:
        raise UnsupportedError(
            f"operator {name} has no computation for compiled targets",
            hint="register one with tilewright.topi.registry.compute_of",
        )
    outputs = function(inputs, attributes, result)
    return outputs if isinstance(outputs, list) else [outputs]


def apply_operator(name: str, inputs: Sequence[Tensor], /, **attributes: object) -> list[Tensor]:
    """The results of an operator, attributes by name: `apply_operator("matmul", [a, b], transpose_b=True)`."""
    operator = get_operator(name)
    values = operator.attributes_class(**attributes)
    result = operator.infer([tensor_type(item.shape, item.dtype) for item in inputs], values)
    return compute_operator(name, list(inputs), values, result)


def apply_on_cpu(name: str, inputs: Sequence[Tensor], /, **attributes: object) -> list[Tensor]:
    """The same as CPUs compute it."""
    operator = get_operator(name)
    values = operator.attributes_class(**attributes)
    result = operator.infer([tensor_type(item.shape, item.dtype) for item in inputs], values)
    return compute_operator(name, list(inputs), values, result, on_cpu=True)


def registered() -> tuple[str, ...]:
    """The names of operators that have a computation."""
    return tuple(_COMPUTES)


def registered_on_cpus() -> tuple[str, ...]:
    """The names of operators that CPUs compute in a way of their own."""
    return tuple(_ON_CPUS)


def result_shape(result: Type, index: int = 0) -> tuple[PrimExpr, ...]:
    """The dimensions of a tensor result (of one item of a tuple result)."""
    if isinstance(result, TupleType):
        result = result.items[index]
    assert isinstance(result, TensorType)
    if result.shape is None or any(dim is None for dim in result.shape):
        raise UnsupportedError("a kernel needs a result whose rank and dimensions are known or symbolic")
    return tuple(dim for dim in result.shape if dim is not None)
