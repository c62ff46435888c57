"""Converters of special functions: the gamma family, error functions, Bessel functions, orthogonal polynomials.

Everything is computed in double precision and rounded at the end. Smooth parts are fitted to torch's own functions
(`fitted.py`); what is not smooth (logarithms, roots, oscillation) is split off and computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tilewright.frontend.core.arithmetic import Operand
from tilewright.frontend.torch.builder import TorchBuilder
from tilewright.frontend.torch.fitted import fitted, polynomial
from tilewright.frontend.torch.registry import Converter, converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import FLOAT64, INT64

Formula = Callable[[TorchBuilder, GraphExpr], GraphExpr]


def torch_function(name: str) -> Callable[[Array], Array]:
    """A function of torch in double precision, on arrays."""
    import torch

    function = getattr(torch.special, name)

    def run(values: Array) -> Array:
        return np.asarray(function(torch.from_numpy(np.ascontiguousarray(values, np.float64))).numpy())

    return run


def _wide(formula: Formula) -> Converter:
    def convert(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
        return b.cast(formula(b, b.cast(x, FLOAT64)), b.dtype)

    convert.__doc__ = formula.__doc__
    return convert


def _register(*names: str) -> Callable[[Formula], Formula]:
    """Register a formula in double precision as a converter."""

    def register(formula: Formula) -> Formula:
        converter(*names)(_wide(formula))
        return formula

    return register


def _square(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    return b.multiply(x, x)


def _nan_of(b: TorchBuilder, x: GraphExpr, value: GraphExpr) -> GraphExpr:
    """A value that is NaN where x is."""
    return b.where(b.call("isnan", x), math.nan, value)


def _cosine_sine(b: TorchBuilder, angle: GraphExpr) -> tuple[GraphExpr, GraphExpr]:
    return b.call("cos", angle), b.call("sin", angle)


# The gamma family

_SHIFT = 8
"""Arguments are shifted up by this much, to where asymptotic series are exact to double precision."""
_BERNOULLI = [1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510]


def _sine_of_pi(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """sin(pi * x), by the distance from the nearest whole number."""
    nearest = b.call("round", x)
    value = b.call("sin", b.multiply(b.subtract(x, nearest), math.pi))
    odd = b.compare("not_equal", b.call("floor_mod", nearest, b.scalar(2, FLOAT64)), 0)
    return b.where(odd, b.call("negative", value), value)


def _log_gamma_positive(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    product: GraphExpr | None = None
    for step in range(_SHIFT):
        factor = b.add(x, float(step))
        product = factor if product is None else b.multiply(product, factor)
    assert product is not None
    large = b.compare("greater", x, 100.0)
    product = b.where(large, 1.0, product)
    shifted = b.where(large, x, b.add(x, float(_SHIFT)))
    inverse = b.call("reciprocal", shifted)
    terms = [value / (2 * k * (2 * k - 1)) for k, value in enumerate(_BERNOULLI, 1)]
    series = b.multiply(polynomial(b, _square(b, inverse), terms), inverse)
    main = b.subtract(b.multiply(b.subtract(shifted, 0.5), b.call("log", shifted)), shifted)
    return b.subtract(b.add(b.add(main, 0.5 * math.log(2 * math.pi)), series), b.call("log", product))


@_register("lgamma", "special_gammaln")
def log_gamma(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """log |gamma(x)|: a shifted Stirling series, reflected for negative arguments."""
    negative = b.compare("less", x, 0.5)
    mirrored = b.where(negative, b.subtract(1.0, x), x)
    value = _log_gamma_positive(b, mirrored)
    sine = b.call("abs", _sine_of_pi(b, x))
    reflected = b.subtract(b.subtract(math.log(math.pi), b.call("log", sine)), value)
    result = b.where(negative, reflected, value)
    return b.where(b.call("isinf", x), math.inf, result)


@_register("digamma", "special_digamma", "special_psi")
def digamma(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """The derivative of log gamma: a shifted asymptotic series, reflected for negative arguments."""
    negative = b.compare("less", x, 0.5)
    mirrored = b.where(negative, b.subtract(1.0, x), x)
    total: GraphExpr | None = None
    for step in range(_SHIFT):
        term = b.call("reciprocal", b.add(mirrored, float(step)))
        total = term if total is None else b.add(total, term)
    assert total is not None
    shifted = b.add(mirrored, float(_SHIFT))
    inverse = b.call("reciprocal", shifted)
    square = _square(b, inverse)
    series = b.multiply(polynomial(b, square, [value / (2 * k) for k, value in enumerate(_BERNOULLI, 1)]), square)
    value = b.subtract(b.subtract(b.subtract(b.call("log", shifted), b.multiply(inverse, 0.5)), series), total)
    nearest = b.subtract(x, b.call("round", x))
    tangent = b.call("tan", b.multiply(nearest, math.pi))
    result = b.where(negative, b.subtract(value, b.divide(math.pi, tangent)), value)
    pole = b.call("logical_and", b.compare("less", x, 0), b.compare("equal", nearest, 0))
    result = b.where(pole, math.nan, result)
    sign_bits = b.call("reinterpret", x, dtype=INT64)
    at_zero = b.where(b.compare("less", sign_bits, 0), math.inf, -math.inf)
    result = b.where(b.compare("equal", x, 0), b.cast(at_zero, FLOAT64), result)
    return b.where(b.compare("equal", x, math.inf), math.inf, result)


_TERMS = 32
"""Terms of the zeta sum that are added one by one: beyond them the Euler-Maclaurin formula is exact."""


def _zeta(b: TorchBuilder, s: GraphExpr, q: GraphExpr) -> GraphExpr:
    """The Hurwitz zeta function by the Euler-Maclaurin formula; q down to -20."""
    total: GraphExpr | None = None
    minus = b.call("negative", s)
    whole = b.call("equal", s, b.call("floor", s))
    odd = b.compare("not_equal", b.call("floor_mod", s, b.scalar(2, FLOAT64)), 0)
    for step in range(_TERMS):
        base = b.add(q, float(step))
        term = b.call("power", b.call("abs", base), minus)
        flipped = b.call("logical_and", odd, b.compare("less", base, 0))
        term = b.where(flipped, b.call("negative", term), term)
        total = term if total is None else b.add(total, term)
    assert total is not None
    end = b.add(q, float(_TERMS))
    power = b.call("power", end, minus)
    total = b.add(total, b.divide(b.multiply(power, end), b.subtract(s, 1.0)))
    total = b.add(total, b.multiply(power, 0.5))
    factor = b.divide(b.multiply(s, power), end)
    for k, value in enumerate(_BERNOULLI, 1):
        total = b.add(total, b.multiply(factor, value / math.factorial(2 * k)))
        factor = b.divide(
            b.multiply(b.multiply(factor, b.add(s, float(2 * k - 1))), b.add(s, float(2 * k))), _square(b, end)
        )
    below = b.compare("less_equal", q, 0)
    result = b.where(b.call("logical_and", below, b.call("logical_not", whole)), math.nan, total)
    pole = b.call("logical_and", below, b.call("equal", q, b.call("floor", q)))
    result = b.where(b.call("logical_or", pole, b.compare("equal", s, 1.0)), math.inf, result)
    out = b.call("logical_or", b.compare("less", s, 1.0), b.compare("less", q, -20.0))
    return b.where(out, math.nan, result)


@converter("special_zeta")
def zeta(b: TorchBuilder, x: Operand, other: Operand) -> GraphExpr:
    """The Hurwitz zeta function."""
    return b.cast(_zeta(b, b.operand(x, FLOAT64), b.operand(other, FLOAT64)), b.dtype)


@converter("polygamma", "special_polygamma")
def polygamma(b: TorchBuilder, n: int, x: GraphExpr) -> GraphExpr:
    """The n-th derivative of digamma: a multiple of a zeta function."""
    value = b.cast(x, FLOAT64)
    if n == 0:
        return b.cast(digamma(b, value), b.dtype)
    factor = (-1.0) ** (n + 1) * math.factorial(n)
    return b.cast(b.multiply(_zeta(b, b.scalar(n + 1, FLOAT64), value), factor), b.dtype)


# Error functions


def _scaled_complement(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """exp(x^2) * erfc(x) of x >= 0, by 1 / (1 + x)."""
    run = torch_function("erfcx")
    near = b.call("reciprocal", b.add(x, 1.0))
    return b.multiply(fitted(b, near, lambda u: run(1 / u - 1) / u, 1e-9, 1.0, 24), near)


@_register("erfc", "special_erfc")
def erfc(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """1 - erf(x), exact for large x too."""
    size = b.call("abs", x)
    tail = b.multiply(_scaled_complement(b, size), b.call("exp", b.call("negative", _square(b, size))))
    return _nan_of(b, x, b.where(b.compare("less", x, 0), b.subtract(2.0, tail), tail))


@_register("special_erfcx")
def erfcx(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """exp(x^2) * erfc(x)."""
    size = b.call("abs", x)
    scaled = _scaled_complement(b, size)
    below = b.subtract(b.multiply(b.call("exp", _square(b, size)), 2.0), scaled)
    return _nan_of(b, x, b.where(b.compare("less", x, 0), below, scaled))


@_register("special_log_ndtr")
def log_ndtr(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """The logarithm of the normal distribution function."""
    scaled = b.multiply(x, math.sqrt(0.5))
    size = b.call("abs", scaled)
    tail = _scaled_complement(b, size)
    below = b.subtract(b.call("log", b.multiply(tail, 0.5)), _square(b, size))
    above = b.call("log1p", b.multiply(b.multiply(tail, b.call("exp", b.call("negative", _square(b, size)))), -0.5))
    return _nan_of(b, x, b.where(b.compare("less", x, 0), below, above))


@_register("erfinv", "special_erfinv")
def erfinv(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """The inverse of erf: x times a smooth function of sqrt(-log(1 - x^2))."""
    run = torch_function("erfinv")

    def ratio(s: Array) -> Array:
        y = np.sqrt(-np.expm1(-s * s))
        return np.asarray(run(y) / y)

    size = b.call("abs", x)
    near, far = b.compare("less", size, 1e-6), b.compare("greater_equal", size, 1)
    # The square root has no derivative at 0, nor the logarithm at 1: neither meets such an x.
    inner = b.where(b.call("logical_or", near, far), 0.5, x)
    depth = b.call("sqrt", b.call("negative", b.call("log1p", b.call("negative", _square(b, inner)))))
    value = b.multiply(fitted(b, depth, ratio, 1e-6, 5.5, 40), inner)
    value = b.where(near, b.multiply(x, math.sqrt(math.pi) / 2), value)
    # Functions that are infinite, or no number, there alone, and so are their derivatives.
    at_one, outside = b.compare("equal", size, 1), b.compare("greater", size, 1)
    value = b.where(at_one, b.call("atanh", b.where(at_one, x, 0.5)), value)
    beyond = b.call("sqrt", b.where(outside, b.call("negative", size), 1.0))
    return _nan_of(b, x, b.where(outside, beyond, value))


@_register("special_ndtri")
def ndtri(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """The inverse of the normal distribution function."""
    run = torch_function("ndtri")
    upper = b.compare("greater", x, 0.5)
    low = b.where(upper, b.subtract(1.0, x), x)
    depth = b.call("sqrt", b.multiply(b.call("log", low), -2.0))
    tail = fitted(b, depth, lambda s: run(np.exp(-s * s / 2)), 1.1, 16.0, 64)
    value = b.where(upper, b.call("negative", tail), tail)
    middle = fitted(b, b.subtract(x, 0.5), lambda t: run(t + 0.5), -0.2, 0.2, 8)
    value = b.where(b.compare("less", b.call("abs", b.subtract(x, 0.5)), 0.2), middle, value)
    value = b.where(b.compare("equal", x, 0), -math.inf, b.where(b.compare("equal", x, 1), math.inf, value))
    outside = b.call("logical_or", b.compare("less", x, 0), b.compare("greater", x, 1))
    return _nan_of(b, x, b.where(outside, math.nan, value))


# Bessel functions

_NEAR = 16.0
"""Up to here Bessel functions are fitted; beyond, Hankel's series is exact to double precision."""


def _hankel(order: int) -> tuple[list[float], list[float]]:
    """Coefficients of the two series in 1 / x^2."""
    terms = [1.0]
    for k in range(1, 12):
        terms.append(terms[-1] * (4 * order * order - (2 * k - 1) ** 2) / (8 * k))
    return [(-1) ** k * terms[2 * k] for k in range(6)], [(-1) ** k * terms[2 * k + 1] for k in range(6)]


def _oscillation(b: TorchBuilder, x: GraphExpr, order: int, second_kind: bool) -> GraphExpr:
    """Hankel's series for large x."""
    even, odd = _hankel(order)
    inverse = b.call("reciprocal", x)
    square = _square(b, inverse)
    first, second = polynomial(b, square, even), b.multiply(polynomial(b, square, odd), inverse)
    cosine, sine = _cosine_sine(b, b.subtract(x, (2 * order + 1) * math.pi / 4))
    if second_kind:
        wave = b.add(b.multiply(first, sine), b.multiply(second, cosine))
    else:
        wave = b.subtract(b.multiply(first, cosine), b.multiply(second, sine))
    return b.multiply(b.call("sqrt", b.multiply(inverse, 2 / math.pi)), wave)


def _bessel_j(b: TorchBuilder, x: GraphExpr, order: int) -> GraphExpr:
    size = b.call("abs", x)
    near = fitted(b, size, torch_function(f"bessel_j{order}"), 0.0, _NEAR, 32)
    far = _oscillation(b, b.call("maximum", size, b.scalar(1.0, FLOAT64)), order, second_kind=False)
    value = b.where(b.compare("less", size, _NEAR), near, far)
    value = b.where(b.call("isinf", x), 0.0, value)
    if order:
        value = b.where(b.compare("less", x, 0), b.call("negative", value), value)
    return _nan_of(b, x, value)


@_register("special_bessel_j0")
def bessel_j0(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """The Bessel function of the first kind, order 0."""
    return _bessel_j(b, x, 0)


@_register("special_bessel_j1")
def bessel_j1(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """The Bessel function of the first kind, order 1."""
    return _bessel_j(b, x, 1)


def _bessel_y(b: TorchBuilder, x: GraphExpr, order: int) -> GraphExpr:
    j, y = torch_function(f"bessel_j{order}"), torch_function(f"bessel_y{order}")

    def regular(values: Array) -> Array:
        rest = y(values) - 2 / np.pi * np.log(values / 2) * j(values)
        return rest + 2 / (np.pi * values) if order else rest

    size = b.call("abs", x)
    safe = b.where(b.compare("equal", size, 0), 1.0, size)
    logarithm = b.multiply(b.call("log", b.multiply(safe, 0.5)), 2 / math.pi)
    near = b.add(fitted(b, size, regular, 0.0, _NEAR, 32), b.multiply(logarithm, _bessel_j(b, size, order)))
    if order:
        near = b.subtract(near, b.divide(2 / math.pi, safe))
    far = _oscillation(b, b.call("maximum", size, b.scalar(1.0, FLOAT64)), order, second_kind=True)
    value = b.where(b.compare("less", size, _NEAR), near, far)
    value = b.where(b.call("isinf", x), 0.0, value)
    value = b.where(b.compare("less", x, 0), math.nan, value)
    return _nan_of(b, x, b.where(b.compare("equal", x, 0), -math.inf, value))


@_register("special_bessel_y0")
def bessel_y0(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """The Bessel function of the second kind, order 0."""
    return _bessel_y(b, x, 0)


@_register("special_bessel_y1")
def bessel_y1(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """The Bessel function of the second kind, order 1."""
    return _bessel_y(b, x, 1)


def _scaled_i(b: TorchBuilder, x: GraphExpr, order: int) -> GraphExpr:
    """exp(-|x|) * I(x): fitted up to 8; beyond, its product with sqrt(x) by 1 / x."""
    run = torch_function(f"i{order}e")
    size = b.call("abs", x)
    near = fitted(b, size, run, 0.0, 8.0, 24)
    inverse = b.call("reciprocal", b.call("maximum", size, b.scalar(1.0, FLOAT64)))
    far = fitted(b, inverse, lambda u: run(1 / u) / np.sqrt(u), 1e-9, 0.125, 4)
    value = b.where(b.compare("less", size, 8.0), near, b.multiply(far, b.call("sqrt", inverse)))
    if order:
        value = b.where(b.compare("less", x, 0), b.call("negative", value), value)
        # The absolute value has the derivative 0 at 0, and an odd function another.
        value = b.where(b.compare("equal", x, 0), b.multiply(x, 0.5), value)
    return _nan_of(b, x, value)


@_register("special_i0e")
def i0e(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """The scaled modified Bessel function of order 0."""
    return _scaled_i(b, x, 0)


@_register("special_i1e")
def i1e(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """The scaled modified Bessel function of order 1."""
    return _scaled_i(b, x, 1)


@_register("i0", "special_i0", "special_modified_bessel_i0")
def i0(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """The modified Bessel function of order 0."""
    return b.multiply(_scaled_i(b, x, 0), b.call("exp", b.call("abs", x)))


@_register("special_i1", "special_modified_bessel_i1")
def i1(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """The modified Bessel function of order 1."""
    return b.multiply(_scaled_i(b, x, 1), b.call("exp", b.call("abs", x)))


def _scaled_k(b: TorchBuilder, x: GraphExpr, order: int) -> GraphExpr:
    """exp(x) * K(x): the logarithm split off up to 2; beyond, its product with sqrt(x) by 1 / x."""
    scaled, i = torch_function(f"scaled_modified_bessel_k{order}"), torch_function(f"i{order}e")
    sign = -1.0 if order == 0 else 1.0

    def regular(values: Array) -> Array:
        k = scaled(values) * np.exp(-values)
        rest = k - sign * np.log(values / 2) * i(values) * np.exp(values)
        return rest - 1 / values if order else rest

    safe = b.where(b.compare("greater", x, 0), x, 1.0)
    small = b.call("minimum", safe, b.scalar(2.0, FLOAT64))
    growing = b.multiply(_scaled_i(b, small, order), b.call("exp", small))
    near = b.add(
        fitted(b, small, regular, 1e-9, 2.0, 16),
        b.multiply(b.multiply(b.call("log", b.multiply(small, 0.5)), growing), sign),
    )
    if order:
        near = b.add(near, b.call("reciprocal", small))
    near = b.multiply(near, b.call("exp", small))
    inverse = b.call("reciprocal", b.call("maximum", safe, b.scalar(1.0, FLOAT64)))
    far = b.multiply(fitted(b, inverse, lambda u: scaled(1 / u) / np.sqrt(u), 1e-9, 0.5, 16), b.call("sqrt", inverse))
    value = b.where(b.compare("less_equal", x, 2.0), near, far)
    value = b.where(b.compare("equal", x, 0), math.inf, b.where(b.compare("less", x, 0), math.nan, value))
    return _nan_of(b, x, value)


def _register_k(order: int) -> None:
    def scaled(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
        return _scaled_k(b, x, order)

    def plain(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
        return b.multiply(_scaled_k(b, x, order), b.call("exp", b.call("negative", x)))

    converter(f"special_scaled_modified_bessel_k{order}")(_wide(scaled))
    converter(f"special_modified_bessel_k{order}")(_wide(plain))


_register_k(0)
_register_k(1)


@_register("special_spherical_bessel_j0")
def spherical_bessel_j0(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """sin(x) / x."""
    small = b.compare("less", b.call("abs", x), 1e-4)
    series = b.subtract(1.0, b.divide(_square(b, x), 6.0))
    value = b.where(small, series, b.divide(b.call("sin", x), b.where(small, 1.0, x)))
    return b.where(b.call("isinf", x), 0.0, value)


@_register("special_airy_ai")
def airy_ai(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """The Airy function: fitted in the middle, its asymptotic series outside."""
    near = fitted(b, x, torch_function("airy_ai"), -8.0, 4.0, 48)
    size = b.call("maximum", b.call("abs", x), b.scalar(2.0, FLOAT64))
    phase = b.multiply(b.multiply(size, b.call("sqrt", size)), 2 / 3)
    inverse = b.call("reciprocal", phase)
    terms = [1.0]
    for k in range(1, 10):
        terms.append(terms[-1] * (6 * k - 5) * (6 * k - 3) * (6 * k - 1) / (216 * k * (2 * k - 1)))
    quarter = b.multiply(b.call("sqrt", b.call("sqrt", size)), math.sqrt(math.pi))
    decay = polynomial(b, inverse, [(-1) ** k * value for k, value in enumerate(terms)])
    right = b.divide(b.multiply(b.call("exp", b.call("negative", phase)), decay), b.multiply(quarter, 2.0))
    square = _square(b, inverse)
    even = polynomial(b, square, [(-1) ** k * terms[2 * k] for k in range(5)])
    odd = b.multiply(polynomial(b, square, [(-1) ** k * terms[2 * k + 1] for k in range(5)]), inverse)
    cosine, sine = _cosine_sine(b, b.subtract(phase, math.pi / 4))
    left = b.divide(b.add(b.multiply(even, cosine), b.multiply(odd, sine)), quarter)
    outer = b.where(b.compare("less", x, 0), left, right)
    middle = b.call("logical_and", b.compare("greater", x, -8.0), b.compare("less", x, 4.0))
    return _nan_of(b, x, b.where(middle, near, outer))


# Chebyshev polynomials: of the angle whose cosine x is, within -1 .. 1 and beyond


def _chebyshev(kind: str, shifted: bool) -> Converter:
    def convert(b: TorchBuilder, x: Operand, n: Operand) -> GraphExpr:
        value, degree = b.operand(x, FLOAT64), b.call("trunc", b.operand(n, FLOAT64))
        if shifted:
            value = b.subtract(b.multiply(value, 2.0), 1.0)
        inner = b.call("acos", b.call("clip", value, minimum=-1.0, maximum=1.0))
        size = b.call("abs", value)
        outer = b.call("acosh", b.call("maximum", size, b.scalar(1.0, FLOAT64)))
        odd = b.compare("not_equal", b.call("floor_mod", degree, b.scalar(2, FLOAT64)), 0)
        negative = b.compare("less", value, 0)
        flipped = b.call("logical_and", odd, negative)
        multiple, half = degree, None
        if kind == "u":
            multiple = b.add(degree, 1.0)
        elif kind in "vw":
            multiple, half = b.add(degree, 0.5), 0.5
        within = _ratio(b, kind, inner, multiple, half, "cos", "sin")
        # Beyond -1 the kinds v and w change places.
        beyond = _ratio(b, kind, outer, multiple, half, "cosh", "sinh")
        if kind in "vw":
            other = _ratio(b, "w" if kind == "v" else "v", outer, multiple, half, "cosh", "sinh")
            beyond = b.where(negative, other, beyond)
        beyond = b.where(flipped, b.call("negative", beyond), beyond)
        result = b.where(b.compare("greater", size, 1.0), beyond, within)
        if kind != "t":
            end = b.add(degree, 1.0) if kind == "u" else b.add(b.multiply(degree, 2.0), 1.0)
            first = 1.0 if kind == "v" else end
            last = end if kind in "uv" else 1.0
            at_one = first if isinstance(first, GraphExpr) else b.scalar(first, FLOAT64)
            at_minus = last if isinstance(last, GraphExpr) else b.scalar(last, FLOAT64)
            at_minus = b.where(odd, b.call("negative", at_minus), at_minus)
            result = b.where(b.compare("equal", value, 1.0), at_one, result)
            result = b.where(b.compare("equal", value, -1.0), at_minus, result)
        return b.cast(b.where(b.compare("less", degree, 0), 0.0, result), b.dtype)

    convert.__doc__ = f"The Chebyshev polynomial of kind {kind}."
    return convert


def _ratio(
    b: TorchBuilder, kind: str, angle: GraphExpr, multiple: GraphExpr, half: float | None, even: str, odd: str
) -> GraphExpr:
    """cos(n a), sin((n + 1) a) / sin(a), cos((n + 1/2) a) / cos(a / 2), sin((n + 1/2) a) / sin(a / 2)."""
    name = even if kind in "tv" else odd
    above = b.call(name, b.multiply(angle, multiple))
    if kind == "t":
        return above
    return b.divide(above, b.call(name, angle if half is None else b.multiply(angle, half)))


for _kind in "tuvw":
    converter(f"special_chebyshev_polynomial_{_kind}")(_chebyshev(_kind, shifted=False))
    converter(f"special_shifted_chebyshev_polynomial_{_kind}")(_chebyshev(_kind, shifted=True))


# Smaller ones


@converter("sinc", "special_sinc")
def sinc(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """sin(pi x) / (pi x)."""
    value = b.cast(x, b.dtype)
    zero = b.compare("equal", value, 0)
    scaled = b.multiply(value, math.pi)
    return b.where(zero, 1.0, b.divide(b.call("sin", scaled), b.where(zero, 1.0, scaled)))


def _times_log(name: str) -> Converter:
    def convert(b: TorchBuilder, x: Operand, other: Operand) -> GraphExpr:
        first, second = b.operand(x, b.dtype), b.operand(other, b.dtype)
        product = b.multiply(first, b.call(name, second))
        value = b.where(b.compare("equal", first, 0), 0.0, product)
        return b.where(b.call("isnan", second), math.nan, value)

    convert.__doc__ = f"x * {name}(y), 0 where x is 0."
    return convert


converter("xlogy", "special_xlogy")(_times_log("log"))
converter("special_xlog1py")(_times_log("log1p"))


@converter("special_entr")
def entropy(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """-x * log(x), 0 at 0, minus infinity below."""
    value = b.cast(x, b.dtype)
    inside = b.call("negative", b.multiply(value, b.call("log", value)))
    result = b.where(b.compare("equal", value, 0), 0.0, b.where(b.compare("less", value, 0), -math.inf, inside))
    return b.where(b.call("isnan", value), math.nan, result)
