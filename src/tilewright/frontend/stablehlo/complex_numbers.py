"""Complex numbers: pairs of a real and an imaginary part, and what elementwise operations do to them."""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.core.complex_values import Complex
from tilewright.frontend.core.elementary import atan2, is_negative
from tilewright.frontend.stablehlo.builder import StableBuilder, Tensor
from tilewright.frontend.stablehlo.program import Operation
from tilewright.frontend.stablehlo.registry import converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UnsupportedError


def whole(b: StableBuilder, value: Tensor) -> Complex:
    """A value as complex numbers."""
    if isinstance(value, Complex):
        return value
    zero = b.scalar(0, dtype_of(value))
    shape = sizes_of(value)
    return Complex(value, b.repeated(b.reshape(zero, (1,) * rank_of(value)), shape) if shape else zero)


class _Arithmetic:
    """Elementwise operators on parts, in few letters."""

    def __init__(self, b: StableBuilder) -> None:
        self.b = b

    def __call__(self, operator: str, *values: GraphExpr) -> GraphExpr:
        return self.b.elementwise(operator, *values)

    def number(self, value: float, like: GraphExpr) -> GraphExpr:
        return self.b.scalar(value, dtype_of(like))

    def add(self, x: Complex, y: Complex) -> Complex:
        return Complex(self("add", x.real, y.real), self("add", x.imaginary, y.imaginary))

    def subtract(self, x: Complex, y: Complex) -> Complex:
        return Complex(self("subtract", x.real, y.real), self("subtract", x.imaginary, y.imaginary))

    def multiply(self, x: Complex, y: Complex) -> Complex:
        real = self("subtract", self("multiply", x.real, y.real), self("multiply", x.imaginary, y.imaginary))
        imaginary = self("add", self("multiply", x.real, y.imaginary), self("multiply", x.imaginary, y.real))
        return Complex(real, imaginary)

    def divide(self, x: Complex, y: Complex) -> Complex:
        """By the larger part first (Smith), so that squares do not overflow."""
        steep = self("less", self("abs", y.real), self("abs", y.imaginary))
        large, small = (
            self("where", steep, first, second) for first, second in ((y.imaginary, y.real), (y.real, y.imaginary))
        )
        ratio = self("divide", small, large)
        ratio = self("where", self("equal", large, self.number(0, large)), self.number(0, large), ratio)
        scale = self("add", large, self("multiply", small, ratio))
        flat = (
            self("add", x.real, self("multiply", x.imaginary, ratio)),
            self("subtract", x.imaginary, self("multiply", x.real, ratio)),
        )
        high = (
            self("add", self("multiply", x.real, ratio), x.imaginary),
            self("subtract", self("multiply", x.imaginary, ratio), x.real),
        )
        parts = [self("divide", self("where", steep, p, q), scale) for p, q in zip(high, flat, strict=True)]
        return Complex(parts[0], parts[1])

    def scaled(self, x: Complex, factor: float) -> Complex:
        return Complex(*(self("multiply", part, self.number(factor, part)) for part in x.parts))

    def plus(self, x: Complex, value: float) -> Complex:
        return Complex(self("add", x.real, self.number(value, x.real)), x.imaginary)

    def turned(self, x: Complex) -> Complex:
        """i x."""
        return Complex(self("negative", x.imaginary), x.real)

    def negative(self, x: Complex) -> Complex:
        return Complex(self("negative", x.real), self("negative", x.imaginary))


def magnitude(b: StableBuilder, x: Complex) -> GraphExpr:
    """The distance from 0, of parts of any size."""
    c = _Arithmetic(b)
    first, second = c("abs", x.real), c("abs", x.imaginary)
    large, small = c("maximum", first, second), c("minimum", first, second)
    ratio = c("divide", small, large)
    plain = c("multiply", large, c("sqrt", c("add", c("multiply", ratio, ratio), c.number(1, large))))
    odd = c("logical_or", c("equal", large, c.number(0, large)), c("equal", large, c.number(math.inf, large)))
    return c("where", odd, large, plain)


def is_not_zero(b: StableBuilder, x: Complex) -> GraphExpr:
    """Whether either part is not zero."""
    c = _Arithmetic(b)
    return c("logical_or", *(c("not_equal", part, c.number(0, part)) for part in x.parts))


def sign(b: StableBuilder, x: Complex) -> Complex:
    """x divided by its magnitude; 0 for 0."""
    c = _Arithmetic(b)
    size = magnitude(b, x)
    is_zero = c("equal", size, c.number(0, size))
    divisor = c("where", is_zero, c.number(1, size), size)
    return Complex(*(c("where", is_zero, c.number(0, part), c("divide", part, divisor)) for part in x.parts))


def compare(b: StableBuilder, relation: str, x: Complex, y: Complex) -> GraphExpr:
    """Whether numbers are equal, or not."""
    c = _Arithmetic(b)
    same = c("logical_and", c("equal", x.real, y.real), c("equal", x.imaginary, y.imaginary))
    if relation not in ("equal", "not_equal"):
        raise UnsupportedError("complex numbers have no order", hint="compare real parts, or magnitudes")
    return same if relation == "equal" else c("logical_not", same)


def exponential(c: _Arithmetic, x: Complex) -> Complex:
    """e to the power of x; of a real number it is real."""
    size = c("exp", x.real)
    is_real = c("equal", x.imaginary, c.number(0, size))
    imaginary = c("where", is_real, x.imaginary, c("multiply", size, c("sin", x.imaginary)))
    return Complex(c("multiply", size, c("cos", x.imaginary)), imaginary)


def logarithm(c: _Arithmetic, x: Complex) -> Complex:
    """The logarithm of the magnitude, and the angle."""
    return Complex(c("log", magnitude(c.b, x)), atan2(c.b, x.imaginary, x.real))


def square_root(c: _Arithmetic, x: Complex) -> Complex:
    """The root of positive real part; the sign of the imaginary part is that of x's."""
    size = magnitude(c.b, x)
    half = c("multiply", c("add", size, c("abs", x.real)), c.number(0.5, size))
    root = c("sqrt", half)
    is_zero = c("equal", root, c.number(0, root))
    other = c("divide", c("abs", x.imaginary), c("where", is_zero, c.number(1, root), c("add", root, root)))
    right = c("greater_equal", x.real, c.number(0, root))
    real, imaginary = c("where", right, root, other), c("where", right, other, root)
    below = is_negative(c.b, x.imaginary)
    return Complex(real, c("where", below, c("negative", imaginary), imaginary))


def _sine(c: _Arithmetic, x: Complex) -> Complex:
    return Complex(
        c("multiply", c("sin", x.real), c("cosh", x.imaginary)), c("multiply", c("cos", x.real), c("sinh", x.imaginary))
    )


def _cosine(c: _Arithmetic, x: Complex) -> Complex:
    product = c("multiply", c("sin", x.real), c("sinh", x.imaginary))
    return Complex(c("multiply", c("cos", x.real), c("cosh", x.imaginary)), c("negative", product))


def _hyperbolic_tangent(c: _Arithmetic, x: Complex) -> Complex:
    """(tanh a + i tan b) / (1 + i tanh a tan b)."""
    t, u = c("tanh", x.real), c("tan", x.imaginary)
    one = Complex(c("add", c("multiply", t, c.number(0, t)), c.number(1, t)), c("multiply", t, u))
    return c.divide(Complex(t, u), one)


def _tangent(c: _Arithmetic, x: Complex) -> Complex:
    found = _hyperbolic_tangent(c, c.turned(x))
    return Complex(found.imaginary, c("negative", found.real))


def _minus_one(c: _Arithmetic, x: Complex) -> Complex:
    """exp(x) - 1 = expm1(a) cos(b) - 2 sin(b / 2)^2 + i exp(a) sin(b)."""
    half = c("sin", c("multiply", x.imaginary, c.number(0.5, x.imaginary)))
    real = c("multiply", c("expm1", x.real), c("cos", x.imaginary))
    real = c("subtract", real, c("multiply", c.number(2, half), c("multiply", half, half)))
    return Complex(real, exponential(c, x).imaginary)


def _plus_one(c: _Arithmetic, x: Complex) -> Complex:
    """log(1 + x): the magnitude is that of 1 + (2 a + a^2 + b^2)."""
    square = c("add", c("multiply", x.real, x.real), c("multiply", x.imaginary, x.imaginary))
    excess = c("add", c("add", x.real, x.real), square)
    small = c("multiply", c("log1p", excess), c.number(0.5, excess))
    above = c.plus(x, 1)
    near = c("less", c("abs", excess), c.number(0.5, excess))
    plain = c("log", magnitude(c.b, above))
    return Complex(c("where", near, small, plain), atan2(c.b, x.imaginary, above.real))


def _logistic(c: _Arithmetic, x: Complex) -> Complex:
    below = c.plus(exponential(c, c.negative(x)), 1)
    return c.divide(c.plus(c.scaled(x, 0), 1), below)


def _reciprocal_root(c: _Arithmetic, x: Complex) -> Complex:
    return c.divide(c.plus(c.scaled(x, 0), 1), square_root(c, x))


_FUNCTIONS: dict[str, Callable[[_Arithmetic, Complex], Complex]] = {
    "exp": exponential,
    "log": logarithm,
    "sqrt": square_root,
    "rsqrt": _reciprocal_root,
    "sin": _sine,
    "cos": _cosine,
    "tan": _tangent,
    "tanh": _hyperbolic_tangent,
    "expm1": _minus_one,
    "log1p": _plus_one,
    "sigmoid": _logistic,
    "negative": lambda c, x: c.negative(x),
}


def function(b: StableBuilder, operator: str, x: Complex) -> Complex:
    """A function of one complex number, by the graph's name of the real one."""
    formula = _FUNCTIONS.get(operator)
    if formula is None:
        raise UnsupportedError(
            f"{operator} of complex numbers is not supported", hint="compute with real and imaginary parts"
        )
    return formula(_Arithmetic(b), x)


def binary(b: StableBuilder, operator: str, x: Tensor, y: Tensor) -> Complex:
    """An operator of two complex numbers."""
    c = _Arithmetic(b)
    first, second = whole(b, x), whole(b, y)
    match operator:
        case "add":
            return c.add(first, second)
        case "subtract":
            return c.subtract(first, second)
        case "multiply":
            return c.multiply(first, second)
        case "divide":
            return c.divide(first, second)
        case "power":
            return _power(c, first, second)
    raise UnsupportedError(f"{operator} of complex numbers is not supported", hint="compare and choose by parts")


def _power(c: _Arithmetic, x: Complex, y: Complex) -> Complex:
    """exp(y log x); 0 to any power but 0 is 0."""
    found = exponential(c, c.multiply(y, logarithm(c, x)))
    is_zero = c("equal", magnitude(c.b, x), c.number(0, x.real))
    no_power = c("equal", magnitude(c.b, y), c.number(0, x.real))
    one, zero = c.number(1, x.real), c.number(0, x.real)
    real = c("where", is_zero, c("where", no_power, one, zero), found.real)
    return Complex(real, c("where", is_zero, zero, found.imaginary))


@converter("complex")
def from_parts(b: StableBuilder, operation: Operation, real: GraphExpr, imaginary: GraphExpr) -> Complex:
    """From a real and an imaginary part."""
    return Complex(real, imaginary)


@converter("real", of_complex="taken")
def real_part(b: StableBuilder, operation: Operation, x: Tensor) -> GraphExpr:
    """The real part."""
    return x.real if isinstance(x, Complex) else x


@converter("imag", of_complex="taken")
def imaginary_part(b: StableBuilder, operation: Operation, x: Tensor) -> GraphExpr:
    """The imaginary part."""
    return whole(b, x).imaginary


@converter("chlo.conj", of_complex="taken")
def conjugate(b: StableBuilder, operation: Operation, x: Tensor) -> Complex:
    """The mirror image below the real axis."""
    value = whole(b, x)
    return Complex(value.real, b.elementwise("negative", value.imaginary))
