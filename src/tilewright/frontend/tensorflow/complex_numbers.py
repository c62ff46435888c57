"""Converters of complex numbers, which are pairs of real tensors, and of spectra."""

from __future__ import annotations

from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.core.complex_values import Complex
from tilewright.frontend.core.elementary import atan2
from tilewright.frontend.core.fourier import fitted_samples, real_from_half, transform
from tilewright.frontend.tensorflow.context import NodeContext
from tilewright.frontend.tensorflow.registry import converter
from tilewright.frontend.tensorflow.values import Value
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32
from tilewright.support.errors import UnsupportedError, UserError


def of_real(b: ArithmeticBuilder, real: GraphExpr) -> Complex:
    """Real numbers as complex ones."""
    return Complex(real, b.filled(0, sizes_of(real), dtype_of(real)))


def product(b: ArithmeticBuilder, x: Complex, y: Complex) -> Complex:
    """x * y."""
    real = b.subtract(b.multiply(x.real, y.real), b.multiply(x.imaginary, y.imaginary))
    return Complex(real, b.add(b.multiply(x.real, y.imaginary), b.multiply(x.imaginary, y.real)))


def magnitude(b: ArithmeticBuilder, x: Complex) -> GraphExpr:
    """|x|."""
    return b.call("sqrt", b.add(b.multiply(x.real, x.real), b.multiply(x.imaginary, x.imaginary)))


def unary(node: NodeContext, x: Complex) -> Value:
    """Functions of one complex number."""
    b = node.builder
    if node.operator == "Neg":
        return Complex(*(b.call("negative", part) for part in x.parts))
    if node.operator == "Exp":
        size = b.call("exp", x.real)
        turns = [b.call(name, x.imaginary) for name in ("cos", "sin")]
        return Complex(*(b.multiply(size, turn) for turn in turns))
    raise UnsupportedError(f"{node.operator} of complex numbers")


def binary(node: NodeContext, x: Value, y: Value) -> Complex:
    """Functions of two complex numbers."""
    b = node.builder
    if not isinstance(x, Complex) or not isinstance(y, Complex):
        raise UserError(f"{node.operator} of a complex and a real number")
    if node.operator in ("Add", "AddV2", "Sub"):
        name = "subtract" if node.operator == "Sub" else "add"
        return Complex(b.binary(name, x.real, y.real), b.binary(name, x.imaginary, y.imaginary))
    if node.operator == "Mul":
        return product(b, x, y)
    if node.operator in ("RealDiv", "Div"):
        square = b.add(b.multiply(y.real, y.real), b.multiply(y.imaginary, y.imaginary))
        turned = product(b, x, Complex(y.real, b.call("negative", y.imaginary)))
        return Complex(b.divide(turned.real, square), b.divide(turned.imaginary, square))
    raise UnsupportedError(f"{node.operator} of complex numbers")


def _complex(node: NodeContext, index: int = 0) -> Complex:
    value = node.value(index)
    return value if isinstance(value, Complex) else of_real(node.builder, node.input(index))


@converter("Complex")
def joined(node: NodeContext) -> Complex:
    """A complex number from its parts."""
    real, imaginary = node.input(0), node.input(1)
    zero = node.builder.multiply(imaginary, 0)
    return Complex(node.builder.add(real, zero), node.builder.add(imaginary, node.builder.multiply(real, 0)))


@converter("Real")
def real_part(node: NodeContext) -> GraphExpr:
    """The real parts."""
    return _complex(node).real


@converter("Imag")
def imaginary_part(node: NodeContext) -> GraphExpr:
    """The imaginary parts."""
    return _complex(node).imaginary


@converter("Conj")
def conjugate(node: NodeContext) -> Value:
    """The same with the other sign of the imaginary part."""
    value = node.value(0)
    return value if not isinstance(value, Complex) else Complex(value.real, node.call("negative", value.imaginary))


@converter("ComplexAbs")
def absolute(node: NodeContext) -> GraphExpr:
    """The magnitudes."""
    return magnitude(node.builder, _complex(node))


@converter("Angle")
def angle(node: NodeContext) -> GraphExpr:
    """The angles from the real axis."""
    value = _complex(node)
    return atan2(node.builder, value.imaginary, value.real)


def _along(node: NodeContext, value: Complex, axis: int, count: int, backward: bool) -> Complex:
    """The transform along any axis."""
    b, rank = node.builder, rank_of(value.real)
    order = [at for at in range(rank) if at != axis] + [axis]
    back = [order.index(at) for at in range(rank)]
    parts = [b.transpose(part, order) for part in value.parts]
    real, imaginary = transform(b, parts[0], parts[1], count, backward=backward)
    return Complex(b.transpose(real, back), b.transpose(imaginary, back))


def _fixed(node: NodeContext, data: GraphExpr, axis: int) -> int:
    size = sizes_of(data)[axis]
    if not isinstance(size, int):
        raise UnsupportedError(f"{node.operator} of an open size", hint="give the shapes of inputs: shapes={...}")
    return size


@converter("FFT", "IFFT", "FFT2D", "IFFT2D", "FFT3D", "IFFT3D")
def complex_transform(node: NodeContext) -> Complex:
    """The spectrum of complex numbers over the last axes."""
    value, backward = _complex(node), node.operator.startswith("I")
    count = int(node.operator[-2]) if node.operator.endswith("D") else 1
    rank = rank_of(value.real)
    for axis in range(rank - count, rank):
        size = _fixed(node, value.real, axis)
        value = _along(node, value, axis, size, backward)
        if backward:
            b = node.builder
            value = Complex(*(b.multiply(part, 1 / size) for part in value.parts))
    return value


@converter("RFFT", "RFFT2D", "RFFT3D")
def real_transform(node: NodeContext) -> Complex:
    """The first half of the spectrum of real numbers over the last axes."""
    b, data = node.builder, node.builder.cast(node.input(0), FLOAT32)
    lengths = node.constant_ints(1, "the lengths")
    rank = rank_of(data)
    if len(lengths) > rank or min(lengths, default=0) < 1:
        raise UserError(f"{node.operator} of lengths {lengths}")
    first = rank - len(lengths)
    for axis, length in enumerate(lengths, first):
        data = fitted_samples(b, data, axis, length)
    value = Complex(*transform(b, data, None, lengths[-1] // 2 + 1, backward=False))
    for axis, length in enumerate(lengths[:-1], first):
        value = _along(node, value, axis, length, False)
    return value


@converter("IRFFT")
def inverse_real_transform(node: NodeContext) -> GraphExpr:
    """Real numbers from the first half of their spectrum."""
    b, value = node.builder, _complex(node)
    (length,) = node.constant_ints(1, "the lengths")
    axis, half = rank_of(value.real) - 1, length // 2 + 1
    parts = [fitted_samples(b, part, axis, half) for part in value.parts]
    return b.multiply(real_from_half(b, parts[0], parts[1], length), 1 / length)
