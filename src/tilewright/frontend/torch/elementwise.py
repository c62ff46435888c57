"""Converters of elementwise functions of one tensor: arithmetic, transcendental functions, activations, conversions."""

from __future__ import annotations

import math

import numpy as np

from tilewright.frontend.core.arithmetic import Number
from tilewright.frontend.core.builder import dtype_of, rank_of, shape_of, sizes_of
from tilewright.frontend.torch.builder import TorchBuilder
from tilewright.frontend.torch.registry import Converter, converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import BOOL, FLOAT64, INT64, DataType
from tilewright.support.errors import UnsupportedError

_FLOAT_FUNCTIONS = {
    **{name: name for name in "exp log sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh".split()},
    **{name: name for name in "asinh acosh atanh erf sigmoid log1p expm1 reciprocal".split()},
    "special_erf": "erf",
    "special_expm1": "expm1",
    "special_log1p": "log1p",
    "special_expit": "sigmoid",
}
"""Functions whose result is a float whatever the input is."""


def _float_function(name: str) -> Converter:
    def convert(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
        return b.call(name, b.cast(x, b.dtype))

    convert.__doc__ = f"{name}, of integers in the default float type."
    return convert


for _torch_name, _name in _FLOAT_FUNCTIONS.items():
    converter(_torch_name)(_float_function(_name))


@converter("abs")
def absolute(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """|x|."""
    return x if dtype_of(x).is_bool else b.call("abs", x)


@converter("neg")
def negative(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """-x."""
    return b.call("negative", x)


@converter("sign", "sgn")
def sign(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """-1, 0 or 1; 0 for NaN."""
    if dtype_of(x).is_bool:
        return x
    found = b.call("sign", x)
    return b.where(b.call("isnan", x), 0, found) if dtype_of(x).is_float else found


def _whole(name: str) -> Converter:
    def convert(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
        return b.call(name, x) if dtype_of(x).is_float else x

    convert.__doc__ = f"{name}; integers are whole already."
    return convert


for _torch_name in ("floor", "ceil", "trunc"):
    converter(_torch_name)(_whole(_torch_name))


@converter("round")
def round_half_even(b: TorchBuilder, x: GraphExpr, decimals: int = 0) -> GraphExpr:
    """To the nearest whole number or decimal, halves to even."""
    if not dtype_of(x).is_float:
        return x
    if not decimals:
        return b.call("round", x)
    scale = 10.0 ** abs(decimals)
    if decimals > 0:
        return b.divide(b.call("round", b.multiply(x, scale)), scale)
    return b.multiply(b.call("round", b.divide(x, scale)), scale)


@converter("frac")
def fraction(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """What is left of x after its whole part."""
    return b.subtract(x, b.call("trunc", x))


@converter("exp2", "special_exp2")
def exp2(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """2 to the power of x."""
    value = b.cast(x, b.dtype)
    return b.call("power", b.scalar(2, b.dtype), value)


def _logarithm(base: float) -> Converter:
    def convert(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
        # log(x) / log(base) misses whole powers by a rounding: wide numbers do not.
        narrow = b.dtype
        return b.cast(b.multiply(b.call("log", b.cast(x, "float64")), 1 / math.log(base)), narrow)

    convert.__doc__ = f"The logarithm to the base {base}."
    return convert


converter("log2")(_logarithm(2.0))
converter("log10")(_logarithm(10.0))


def _question(name: str) -> Converter:
    def convert(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
        if not dtype_of(x).is_float:
            return b.filled(False, sizes_of(x), BOOL)
        return b.call(name, x)

    convert.__doc__ = f"{name}; never of integers."
    return convert


for _torch_name in ("isnan", "isinf"):
    converter(_torch_name)(_question(_torch_name))


@converter("signbit")
def sign_bit(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """Whether the sign is minus, that of -0.0 and NaN too."""
    dtype = dtype_of(x)
    if dtype.is_bool or dtype.is_uint:
        return b.filled(False, sizes_of(x), BOOL)
    if dtype.is_int:
        return b.compare("less", x, 0)
    bits = b.call("reinterpret", x, dtype=DataType.of(f"int{dtype.bits}"))
    return b.compare("less", bits, 0)


@converter("logical_not")
def logical_not(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """Whether x is zero."""
    return b.call("logical_not", b.truth(x))


@converter("bitwise_not")
def bitwise_not(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """All bits turned; of truth values, not."""
    return b.call("logical_not" if dtype_of(x).is_bool else "bitwise_not", x)


@converter("angle")
def angle(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """Pi for negative numbers, 0 for others."""
    value = b.cast(x, b.dtype)
    return b.where(b.call("isnan", value), value, b.where(b.compare("less", x, 0), math.pi, b.scalar(0, b.dtype)))


# Conversions


@converter(
    "clone",
    "alias",
    "alias_copy",
    "detach",
    "lift_fresh_copy",
    "lift_fresh",
    "contiguous",
    "positive",
    "conj",
    "_conj",
    "_conj_physical",
    "conj_physical",
    "resolve_conj",
    "resolve_neg",
    "real",
)
def identity(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """The value itself: programs are pure, so that a copy is the same."""
    return x


@converter("_to_copy", "to", "prims::convert_element_type", "type_as")
def convert_type(
    b: TorchBuilder, x: GraphExpr, dtype: DataType | None = None, other: GraphExpr | None = None
) -> GraphExpr:
    """To another data type; where it lives does not matter."""
    return _convert(b, x, b.dtype)


def _convert(b: TorchBuilder, x: GraphExpr, dtype: DataType) -> GraphExpr:
    found = dtype_of(x)
    if found.is_float and dtype.is_integer and dtype.bits < 32:
        # torch goes through a wide integer, whose low bits are kept.
        return b.cast(b.cast(x, "int64" if dtype.bits == 32 else "int32"), dtype)
    return b.cast(x, dtype)


@converter("view.dtype")
def view_as_type(b: TorchBuilder, x: GraphExpr, dtype: DataType) -> GraphExpr:
    """The same bits as another type."""
    return x if dtype_of(x) is dtype else b.call("reinterpret", x, dtype=dtype)


# Activations


@converter("relu")
def relu(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """max(x, 0)."""
    return b.call("nn.relu", x)


@converter("relu6")
def relu6(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """x between 0 and 6."""
    return b.call("clip", x, minimum=0.0, maximum=6.0, flat_bounds=True)


@converter("hardtanh")
def hardtanh(b: TorchBuilder, x: GraphExpr, min_val: Number = -1, max_val: Number = 1) -> GraphExpr:
    """x between two bounds."""
    return b.call("clip", x, minimum=float(min_val), maximum=float(max_val), flat_bounds=True)


@converter("gelu")
def gelu(b: TorchBuilder, x: GraphExpr, approximate: str = "none") -> GraphExpr:
    """x times the normal distribution function of x."""
    return b.call("nn.gelu", x, approximate=approximate == "tanh")


@converter("silu")
def silu(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """x * sigmoid(x)."""
    return b.multiply(x, b.call("sigmoid", x))


@converter("mish")
def mish(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """x * tanh(softplus(x))."""
    return b.multiply(x, b.chain(x, "nn.softplus", "tanh"))


@converter("leaky_relu")
def leaky_relu(b: TorchBuilder, x: GraphExpr, negative_slope: Number = 0.01) -> GraphExpr:
    """x, or a part of it where it is negative."""
    return b.call("nn.leaky_relu", x, alpha=float(negative_slope))


@converter("rrelu")
def rrelu(
    b: TorchBuilder, x: GraphExpr, lower: Number = 0.125, upper: Number = 1 / 3, training: bool = False
) -> GraphExpr:
    """x, or the mean slope times it where it is negative; random slopes in training are refused."""
    if training:
        raise UnsupportedError("slopes drawn at random", hint="call model.eval() first")
    return b.call("nn.leaky_relu", x, alpha=(float(lower) + float(upper)) / 2)


@converter("elu")
def elu(b: TorchBuilder, x: GraphExpr, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> GraphExpr:
    """scale * (x, or alpha * (exp(x * input_scale) - 1) where x is negative)."""
    low = b.multiply(b.call("expm1", b.multiply(b.call("clip", x, maximum=0.0), float(input_scale))), float(alpha))
    return b.multiply(b.where(b.compare("greater", x, 0), x, low), float(scale))


@converter("hardsigmoid")
def hardsigmoid(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """x / 6 + 1/2 between 0 and 1."""
    return b.divide(b.call("clip", b.add(x, 3.0), minimum=0.0, maximum=6.0), 6.0)


@converter("hardswish")
def hardswish(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """x times hardsigmoid(x)."""
    return b.divide(b.multiply(x, b.call("clip", b.add(x, 3.0), minimum=0.0, maximum=6.0)), 6.0)


@converter("softplus")
def softplus(b: TorchBuilder, x: GraphExpr, beta: Number = 1, threshold: Number = 20) -> GraphExpr:
    """log(1 + exp(beta * x)) / beta, and x itself where that makes no difference."""
    scaled = b.multiply(x, float(beta))
    smooth = b.divide(b.call("nn.softplus", scaled), float(beta))
    return b.where(b.compare("greater", scaled, float(threshold)), x, smooth)


@converter("log_sigmoid_forward")
def log_sigmoid(b: TorchBuilder, x: GraphExpr) -> tuple[GraphExpr, GraphExpr]:
    """log(sigmoid(x)), and what torch keeps for a gradient: exp(-|x|) on CPUs, nothing on GPUs."""
    value = b.call("negative", b.call("nn.softplus", b.call("negative", x)))
    if 0 in b.sizes.shape(b.meta[1].shape):
        return value, b.empty(b.sizes.shape(b.meta[1].shape), dtype_of(x))
    return value, b.call("exp", b.call("negative", b.call("abs", x)))


@converter("prelu", "_prelu_kernel")
def prelu(b: TorchBuilder, x: GraphExpr, weight: GraphExpr) -> GraphExpr:
    """x, or a slope a channel times x where it is negative."""
    if rank_of(weight) == 1 and rank_of(x) > 1:
        dims = [1] * rank_of(x)
        dims[1] = shape_of(weight)[0]
        weight = b.reshape(weight, dims)
    elif rank_of(x) == 0:
        weight = b.reshape(weight, ())
    return b.where(b.compare("greater", x, 0), x, b.multiply(weight, x))


@converter("nan_to_num")
def nan_to_num(
    b: TorchBuilder,
    x: GraphExpr,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> GraphExpr:
    """Numbers in the place of NaN and the infinities."""
    dtype = dtype_of(x)
    if not dtype.is_float:
        return x
    limits = np.finfo("float32" if dtype.name == "bfloat16" else dtype.name)
    high = float(limits.max) if posinf is None else posinf
    low = float(limits.min) if neginf is None else neginf
    result = b.where(b.call("isnan", x), 0.0 if nan is None else nan, x)
    result = b.where(b.compare("equal", x, math.inf), high, result)
    return b.where(b.compare("equal", x, -math.inf), low, result)


@converter("prims::frexp", "frexp")
def frexp(b: TorchBuilder, x: GraphExpr | None = None, a: GraphExpr | None = None) -> tuple[GraphExpr, GraphExpr]:
    """A fraction of size 1/2 .. 1 and a power of two, from the bits."""
    value = x if x is not None else a
    assert value is not None
    wide = b.cast(value, "float64")
    bits = b.call("reinterpret", wide, dtype=INT64)
    exponent = b.call("bitwise_and", b.call("right_shift", bits, b.scalar(52, INT64)), b.scalar(0x7FF, INT64))
    mantissa = b.call("bitwise_and", bits, b.scalar(~(0x7FF << 52), INT64))
    fraction = b.call("reinterpret", b.call("bitwise_or", mantissa, b.scalar(1022 << 52, INT64)), dtype=FLOAT64)
    odd = b.call("logical_or", b.call("isnan", wide), b.call("isinf", wide))
    plain = b.call("logical_or", odd, b.compare("equal", wide, 0))
    power = b.where(plain, 0, b.subtract(exponent, 1022))
    return b.cast(b.where(plain, wide, fraction), dtype_of(value)), b.cast(power, "int32")
