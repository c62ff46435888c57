"""Elementwise operators of one input: arithmetic, transcendental functions, activations, conversion."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tilewright.graph.ir.expr import Attributes
from tilewright.graph.ir.op import Array, FusionKind, NoAttributes, Types, operator
from tilewright.graph.ops import special
from tilewright.graph.ops.common import require_bool, require_float, require_integer, require_number, tensor
from tilewright.ir.dtype import BOOL, FLOAT32, DataType
from tilewright.ir.node import node
from tilewright.ir.types import TensorType, Type
from tilewright.support.errors import UserError

Check = Callable[[DataType], None]


@node()
class CastAttributes(Attributes):
    """The data type to convert to."""

    dtype: DataType = FLOAT32


@node()
class ClipAttributes(Attributes):
    """Bounds; None leaves a side open. The gradient at a bound is 1, or 0 where `flat_bounds` says so."""

    minimum: float | None = None
    maximum: float | None = None
    flat_bounds: bool = False


@node()
class AlphaAttributes(Attributes):
    """One slope or scale."""

    alpha: float = 0.01


@node()
class EluAttributes(Attributes):
    """The scale of the negative side."""

    alpha: float = 1.0


@node()
class SeluAttributes(Attributes):
    """The two constants of selu."""

    alpha: float = 1.6732632423543772
    gamma: float = 1.0507009873554805


@node()
class HardSigmoidAttributes(Attributes):
    """Slope and offset."""

    alpha: float = 0.2
    beta: float = 0.5


@node()
class GeluAttributes(Attributes):
    """Whether to use the tanh approximation instead of erf."""

    approximate: bool = False


def _declare(
    name: str,
    compute: Callable[[Array], Array],
    description: str,
    check: Check = require_float,
    result: DataType | None = None,
) -> None:
    """Register an operator without attributes whose result has the type of its input, or the data type given."""

    def reference(args: list[Array], attributes: NoAttributes) -> Array:
        with np.errstate(all="ignore"):
            value = compute(args[0])
        return np.asarray(value, args[0].dtype if result is None else result.numpy())

    def infer(types: Types, attributes: NoAttributes) -> Type:
        data = tensor(types, 0, "the input")
        check(data.dtype)
        return data if result is None else TensorType(data.shape, result)

    infer.__doc__ = description
    operator(name, inputs=("data",), kind=FusionKind.INJECTIVE, reference=reference, elementwise=True)(infer)


def _require_float32(dtype: DataType) -> None:
    if dtype is not FLOAT32:
        raise UserError(f"only float32 is rounded to tf32, not {dtype}")


def _is_floating(x: Array) -> bool:
    return bool(np.issubdtype(x.dtype, np.floating))


_declare("negative", np.negative, "-x (integers wrap).", require_number)
_declare("abs", np.abs, "|x|.", require_number)
_declare("sign", np.sign, "-1, 0 or 1 by the sign; NaN stays NaN.", require_number)
_declare("exp", np.exp, "e to the power of x.")
_declare("log", np.log, "The natural logarithm.")
_declare("sqrt", np.sqrt, "The square root.")
_declare("rsqrt", lambda x: 1 / np.sqrt(x), "1 / sqrt(x).")
_declare("reciprocal", lambda x: 1 / x, "1 / x.")
_declare("sin", np.sin, "The sine.")
_declare("cos", np.cos, "The cosine.")
_declare("tan", np.tan, "The tangent.")
_declare("asin", np.arcsin, "The inverse sine.")
_declare("acos", np.arccos, "The inverse cosine.")
_declare("atan", np.arctan, "The inverse tangent.")
_declare("sinh", np.sinh, "The hyperbolic sine.")
_declare("cosh", np.cosh, "The hyperbolic cosine.")
_declare("tanh", np.tanh, "The hyperbolic tangent.")
_declare("asinh", np.arcsinh, "The inverse hyperbolic sine.")
_declare("acosh", np.arccosh, "The inverse hyperbolic cosine.")
_declare("atanh", np.arctanh, "The inverse hyperbolic tangent.")
_declare("erf", special.erf, "The error function.")
_declare("sigmoid", special.sigmoid, "1 / (1 + exp(-x)).")
_declare("log1p", np.log1p, "log(1 + x), accurate near 0.")
_declare("expm1", np.expm1, "exp(x) - 1, accurate near 0.")
_declare("floor", np.floor, "The greatest whole number not above x.")
_declare("ceil", np.ceil, "The least whole number not below x.")
_declare("round", np.rint, "The nearest whole number, halves to even.")
_declare("trunc", np.trunc, "The whole number next to x toward zero.")
_declare(
    "round_to_tf32",
    special.round_to_tf32,
    "x rounded to the 11 significant bits that tensor cores read of a float32 (tf32; ties away from zero).",
    _require_float32,
)
_declare("nn.relu", lambda x: np.maximum(x, np.zeros((), x.dtype)), "max(x, 0).", require_number)
_declare("nn.softplus", lambda x: np.logaddexp(np.zeros((), x.dtype), x), "log(1 + exp(x)).")
_declare("logical_not", np.logical_not, "Not x.", require_bool)
_declare("bitwise_not", np.invert, "The complement of the bits of x.", require_integer)
_declare("stop_gradient", np.array, "x; gradients take it for a constant.", lambda dtype: None)
_declare("isnan", np.isnan, "Whether x is not a number.", require_float, BOOL)
_declare("isinf", np.isinf, "Whether x is plus or minus infinity.", require_float, BOOL)


def _cast(args: list[Array], attributes: CastAttributes) -> Array:
    name = attributes.dtype.name
    with np.errstate(all="ignore"):
        if name == "bfloat16":
            return special.round_to_bfloat16(args[0].astype(np.float32))
        if attributes.dtype.is_small_float:
            return args[0].astype(np.float32)
        if attributes.dtype.is_integer and _is_floating(args[0]):
            return special.float_to_integer(args[0], attributes.dtype)
        return args[0].astype(attributes.dtype.numpy())


@operator(
    "cast",
    inputs=("data",),
    kind=FusionKind.INJECTIVE,
    reference=_cast,
    attributes=CastAttributes,
    elementwise=True,
)
def cast(types: Types, attributes: CastAttributes) -> Type:
    """x converted to another type: floats to integers truncate and saturate (NaN gives 0), to bool is x != 0."""
    return TensorType(tensor(types, 0, "the input").shape, attributes.dtype)


def _reinterpret(args: list[Array], attributes: CastAttributes) -> Array:
    return np.ascontiguousarray(args[0]).view(attributes.dtype.numpy()).reshape(args[0].shape)


@operator(
    "reinterpret",
    inputs=("data",),
    kind=FusionKind.INJECTIVE,
    reference=_reinterpret,
    attributes=CastAttributes,
    elementwise=True,
)
def reinterpret(types: Types, attributes: CastAttributes) -> Type:
    """The same bits read as another type of the same width."""
    data = tensor(types, 0, "the input")
    for dtype in (data.dtype, attributes.dtype):
        if dtype.is_bool or dtype.name == "bfloat16":
            raise UserError(f"the bits of {data.dtype} cannot be read as {attributes.dtype}")
    if data.dtype.bits != attributes.dtype.bits:
        raise UserError(f"{data.dtype} and {attributes.dtype} differ in width")
    return TensorType(data.shape, attributes.dtype)


def _clip(args: list[Array], attributes: ClipAttributes) -> Array:
    (x,) = args
    low, high = attributes.minimum, attributes.maximum
    if not _is_floating(x):
        # Bounds beyond the range of the integer type are no bounds.
        info = np.iinfo(x.dtype)
        low = None if low is None or low <= info.min else min(math.ceil(low), info.max)
        high = None if high is None or high >= info.max else max(math.floor(high), info.min)
    if low is not None:
        x = np.maximum(x, np.asarray(low, x.dtype))
    if high is not None:
        x = np.minimum(x, np.asarray(high, x.dtype))
    return x


@operator(
    "clip",
    inputs=("data",),
    kind=FusionKind.INJECTIVE,
    reference=_clip,
    attributes=ClipAttributes,
    elementwise=True,
)
def clip(types: Types, attributes: ClipAttributes) -> Type:
    """min(max(x, minimum), maximum): the maximum wins where the bounds cross; NaN stays NaN."""
    data = tensor(types, 0, "the input")
    require_number(data.dtype)
    return data


def _declare_activation(
    name: str, attributes: type[Attributes], compute: Callable[[Array, object], Array], description: str
) -> None:
    """Register a float activation with attributes."""

    def reference(args: list[Array], values: Attributes) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(compute(args[0], values), args[0].dtype)

    def infer(types: Types, values: Attributes) -> Type:
        data = tensor(types, 0, "the input")
        require_float(data.dtype)
        return data

    infer.__doc__ = description
    operator(
        name,
        inputs=("data",),
        kind=FusionKind.INJECTIVE,
        reference=reference,
        attributes=attributes,
        elementwise=True,
    )(infer)


def _leaky_relu(x: Array, values: object) -> Array:
    assert isinstance(values, AlphaAttributes)
    return np.where(x < 0, x * x.dtype.type(values.alpha), x)


def _elu(x: Array, values: object) -> Array:
    assert isinstance(values, EluAttributes)
    return np.where(x < 0, x.dtype.type(values.alpha) * np.expm1(np.minimum(x, 0)), x)


def _selu(x: Array, values: object) -> Array:
    assert isinstance(values, SeluAttributes)
    negative = x.dtype.type(values.alpha) * np.expm1(np.minimum(x, 0))
    return np.asarray(x.dtype.type(values.gamma) * np.where(x < 0, negative, x))


def _hard_sigmoid(x: Array, values: object) -> Array:
    assert isinstance(values, HardSigmoidAttributes)
    return np.asarray(np.clip(x * x.dtype.type(values.alpha) + x.dtype.type(values.beta), 0, 1))


def _gelu(x: Array, values: object) -> Array:
    assert isinstance(values, GeluAttributes)
    wide = x.astype(np.float64)
    if values.approximate:
        return np.asarray(0.5 * wide * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3))))
    return np.asarray(0.5 * wide * (1 + special.erf(wide / math.sqrt(2))))


_declare_activation("nn.leaky_relu", AlphaAttributes, _leaky_relu, "x, or alpha * x where x is negative.")
_declare_activation("nn.elu", EluAttributes, _elu, "x, or alpha * (exp(x) - 1) where x is negative.")
_declare_activation("nn.selu", SeluAttributes, _selu, "gamma * x, or gamma * alpha * (exp(x) - 1) where x is negative.")
_declare_activation("nn.hard_sigmoid", HardSigmoidAttributes, _hard_sigmoid, "alpha * x + beta, kept within 0 and 1.")
_declare_activation(
    "nn.gelu", GeluAttributes, _gelu, "x times the normal distribution function of x (erf or tanh form)."
)
