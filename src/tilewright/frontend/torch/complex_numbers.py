"""Complex numbers: pairs of a real and an imaginary part, each an ordinary value of the graph.

Operators that move elements or add them up work on each part by itself; products are made of products of parts. An
operator that takes real numbers too has its form for complex ones in a table of its own here; those that know only
complex numbers (and Fourier transforms, in `fourier.py`) are converters like any other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeVar

from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.core.complex_values import Complex
from tilewright.frontend.core.elementary import atan2
from tilewright.frontend.torch.builder import TorchBuilder, from_torch_dtype
from tilewright.frontend.torch.registry import Converter, converter, find_converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UnsupportedError

_C = TypeVar("_C", bound=Converter)


@dataclass(frozen=True, slots=True)
class ComplexType:
    """A data type of complex numbers, where an operator is given one; what torch says of the result says which."""


Operand = Complex | GraphExpr | complex | float
"""A tensor or a number; a real one has an imaginary part of 0."""

_PARTWISE = frozenset(
    "view reshape _unsafe_view view_copy flatten unflatten permute transpose t numpy_T mT squeeze unsqueeze expand "
    "slice select narrow split split_with_sizes chunk unbind movedim diagonal unfold flip roll repeat tile "
    "index index_select gather clone alias detach contiguous lift_fresh_copy constant_pad_nd tril triu sum mean "
    "cumsum neg zeros_like".split()
)
"""Operators that do to each part by itself what they do to real numbers; their other tensors are indices."""
_COMPLEX_ONLY = frozenset("view_as_real imag _fft_c2c _fft_c2r istft".split())
"""Operators that take nothing but complex numbers: their converters are for them."""

_FORMS: dict[str, Converter] = {}


def complex_form(*names: str) -> Callable[[_C], _C]:
    """Register what operators do to complex numbers, if it is other than to their parts."""

    def register(convert: _C) -> _C:
        _FORMS.update(dict.fromkeys(names, convert))
        return convert

    return register


def has_complex(value: object) -> bool:
    """Whether an argument is, or contains, complex numbers."""
    if isinstance(value, (list, tuple)):
        return any(map(has_complex, value))
    return isinstance(value, (Complex, ComplexType, complex))


def convert_complex(b: TorchBuilder, operator: str, arguments: Mapping[str, Any]) -> Any:
    """The result of an operator (by its qualified name) of which an argument is complex."""
    name = operator.removeprefix("aten::").split(".")[0]
    if name in _FORMS:
        return _FORMS[name](b, **arguments)
    plain = find_converter(operator)
    if plain is not None and name in _COMPLEX_ONLY:
        return plain(b, **arguments)
    if plain is None or name not in _PARTWISE:
        raise UnsupportedError(
            f"the operator {operator} of complex numbers is not supported", hint="compute with real and imaginary parts"
        )
    return _partwise(b, functools.partial(_named, plain, arguments), _split(arguments))


def _named(convert: Converter, arguments: Mapping[str, Any], b: TorchBuilder, *values: Any) -> Any:
    return convert(b, **dict(zip(arguments, values, strict=True)))


def _split(arguments: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """The parts of each argument; what is not complex is the same for both."""
    return [value.parts if isinstance(value, Complex) else (value, value) for value in arguments.values()]


def _partwise(b: TorchBuilder, convert: Converter, pairs: Sequence[tuple[Any, Any]]) -> Any:
    """What a converter for real numbers gives for the real parts, and for the imaginary ones."""
    whole, b.meta = b.meta, _real_meta(b.meta)
    try:
        real, imaginary = (convert(b, *values) for values in zip(*pairs, strict=True))
    finally:
        b.meta = whole
    if isinstance(real, (list, tuple)):
        return [Complex(*pair) for pair in zip(real, imaginary, strict=True)]
    return Complex(real, imaginary)


def _real_meta(meta: Any) -> Any:
    """What torch says about a complex result, said about a part of it."""
    if isinstance(meta, (tuple, list)):
        return [_real_meta(item) for item in meta]
    return SimpleNamespace(shape=meta.shape, dtype=meta.dtype.to_real())


def _parts(b: TorchBuilder, value: Operand) -> tuple[GraphExpr | float, GraphExpr | float]:
    """The parts of data."""
    if isinstance(value, Complex):
        return value.parts
    if isinstance(value, GraphExpr):
        return value, b.filled(0, sizes_of(value), dtype_of(value))
    return complex(value).real, complex(value).imag


def _whole(b: TorchBuilder, value: Operand) -> Complex:
    """Data as complex numbers of the type of the result."""
    dtype = from_torch_dtype(b.meta.dtype.to_real())
    real, imaginary = (b.operand(part, dtype) for part in _parts(b, value))
    return Complex(real, imaginary)


# Sums and products


@complex_form("add")
def add(b: TorchBuilder, x: Operand, other: Operand, alpha: float = 1) -> Complex:
    """a + alpha * b."""
    first, second = _whole(b, x), _whole(b, other)
    parts = [
        b.add(p, q if alpha == 1 else b.multiply(q, alpha)) for p, q in zip(first.parts, second.parts, strict=True)
    ]
    return Complex(*parts)


@complex_form("sub")
def subtract(b: TorchBuilder, x: Operand, other: Operand, alpha: float = 1) -> Complex:
    """a - alpha * b."""
    return add(b, x, other, -alpha)


@complex_form("rsub")
def subtract_from(b: TorchBuilder, x: Operand, other: Operand, alpha: float = 1) -> Complex:
    """b - alpha * a."""
    return add(b, other, x, -alpha)


@complex_form("cat", "stack")
def joined(b: TorchBuilder, tensors: Sequence[Operand], dim: int = 0) -> Complex:
    """Next to each other along an axis (`stack`: of tensors that have no such axis)."""
    wholes = [_whole(b, item) for item in tensors]
    rank = len(b.shape)
    axis = b.axis(dim, rank)
    join = b.concatenate if rank_of(wholes[0].real) == rank else b.stack
    return Complex(join([item.real for item in wholes], axis), join([item.imaginary for item in wholes], axis))


def _product(b: TorchBuilder, x: Operand, y: Operand, multiply: Callable[[Any, Any], GraphExpr]) -> Complex:
    """By products of parts; of a real number there is only one."""
    if not isinstance(x, (Complex, complex)):
        real, imaginary = _parts(b, y)
        return Complex(multiply(x, real), multiply(x, imaginary))
    if not isinstance(y, (Complex, complex)):
        real, imaginary = _parts(b, x)
        return Complex(multiply(real, y), multiply(imaginary, y))
    (a, c), (d, e) = _parts(b, x), _parts(b, y)
    real_part = b.subtract(multiply(a, d), multiply(c, e))
    return Complex(real_part, b.add(multiply(a, e), multiply(c, d)))


@complex_form("mul")
def multiply(b: TorchBuilder, x: Operand, other: Operand) -> Complex:
    """a * b."""
    return _product(b, x, other, b.multiply)


def _matrix_product(name: str, first: str, second: str) -> None:
    def convert(b: TorchBuilder, **arguments: Any) -> Complex:
        whole, b.meta = b.meta, _real_meta(b.meta)
        plain = find_converter(f"aten::{name}")
        assert plain is not None
        try:
            return _product(b, arguments[first], arguments[second], lambda p, q: plain(b, **{first: p, second: q}))
        finally:
            b.meta = whole

    convert.__doc__ = f"Matrix products ({name})."
    complex_form(name)(convert)


for _name, _second in (("mm", "mat2"), ("bmm", "mat2"), ("matmul", "other"), ("mv", "vec")):
    _matrix_product(_name, "x", _second)


def _square(b: TorchBuilder, z: Complex) -> GraphExpr:
    """The squared magnitude."""
    return b.add(b.multiply(z.real, z.real), b.multiply(z.imaginary, z.imaginary))


@complex_form("reciprocal")
def reciprocal(b: TorchBuilder, x: Complex) -> Complex:
    """1 / z."""
    square = _square(b, x)
    return Complex(b.divide(x.real, square), b.divide(b.call("negative", x.imaginary), square))


@complex_form("div")
def divide(b: TorchBuilder, x: Operand, other: Operand) -> Complex:
    """a / b."""
    if isinstance(other, Complex):
        return multiply(b, x, reciprocal(b, other))
    if isinstance(other, complex):
        return multiply(b, x, 1 / other)
    assert isinstance(x, Complex)
    return Complex(b.divide(x.real, other), b.divide(x.imaginary, other))


@complex_form("where")
def where(b: TorchBuilder, condition: GraphExpr, x: Operand, other: Operand) -> Complex:
    """One or the other."""
    first, second = _whole(b, x), _whole(b, other)
    return Complex(*(b.where(condition, p, q) for p, q in zip(first.parts, second.parts, strict=True)))


@complex_form("pow")
def power(b: TorchBuilder, x: Complex, exponent: object) -> Complex:
    """A whole power, by repeated products."""
    if not isinstance(x, Complex) or not isinstance(exponent, int) or not 1 <= exponent <= 64:
        raise UnsupportedError(f"a complex number to the power of {exponent}", hint="use whole powers from 1 to 64")
    result: Complex | None = None
    square = x
    while exponent:
        if exponent & 1:
            result = square if result is None else multiply(b, result, square)
        exponent >>= 1
        square = multiply(b, square, square) if exponent else square
    assert result is not None
    return result


# Functions


@complex_form("abs")
def magnitude(b: TorchBuilder, x: Complex) -> GraphExpr:
    """The distance from 0."""
    return b.call("sqrt", _square(b, x))


@complex_form("angle")
def angle(b: TorchBuilder, x: Complex) -> GraphExpr:
    """The angle to the real axis."""
    return atan2(b, x.imaginary, x.real)


@complex_form("exp")
def exponential(b: TorchBuilder, x: Complex) -> Complex:
    """e to a complex power."""
    return polar(b, b.call("exp", x.real), x.imaginary)


@complex_form("_to_copy", "to")
def converted(b: TorchBuilder, x: Operand, **_: object) -> Operand:
    """Of another precision; to real numbers, without the imaginary part."""
    if isinstance(x, Complex) and not b.meta.dtype.is_complex:
        return b.cast(x.real, b.dtype)
    return _whole(b, x)


# Pairs and parts


@converter("view_as_complex")
def view_as_complex(b: TorchBuilder, x: GraphExpr) -> Complex:
    """Pairs along the last axis as complex numbers."""
    axis = rank_of(x) - 1
    return Complex(b.select(x, axis, 0), b.select(x, axis, 1))


@converter("view_as_real")
def view_as_real(b: TorchBuilder, x: Complex) -> GraphExpr:
    """Complex numbers as pairs along a new last axis."""
    return b.stack(x.parts, rank_of(x.real))


@converter("complex")
def from_parts(b: TorchBuilder, real: GraphExpr, imag: GraphExpr) -> Complex:
    """From real and imaginary parts, which broadcast."""
    return Complex(b.broadcast_to(real, b.shape), b.broadcast_to(imag, b.shape))


@converter("polar")
def polar(b: TorchBuilder, abs: GraphExpr, angle: GraphExpr) -> Complex:
    """From distances and angles."""
    return Complex(b.multiply(abs, b.call("cos", angle)), b.multiply(abs, b.call("sin", angle)))


@complex_form("real")
def real_part(b: TorchBuilder, x: Complex) -> GraphExpr:
    """The real part."""
    return x.real


@converter("imag")
def imaginary_part(b: TorchBuilder, x: Complex) -> GraphExpr:
    """The imaginary part."""
    return x.imaginary


@complex_form("_conj", "_conj_physical", "conj", "conj_physical")
def conjugate(b: TorchBuilder, x: Complex) -> Complex:
    """The mirror image below the real axis."""
    return Complex(x.real, b.call("negative", x.imaginary))


@complex_form("resolve_conj", "resolve_neg")
def resolved(b: TorchBuilder, x: Complex) -> Complex:
    """Itself: nothing is put off here."""
    return x
